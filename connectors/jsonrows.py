"""JSON objects, one a record, to a batch. Used for JSON lines and for messages of a broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import polars as pl

from streamdp.records import Batch, DeadLetter, Encoder, Position


def encode_json(raw: Sequence[bytes], positions: np.ndarray, position: Position, encoder: Encoder) -> Batch:
    """Decode and encode n JSON texts; `positions` is (n,) int64, `position` what follows the last of them.

    Dead letters beside the encoder's: `empty_line`, `not_utf8`, `not_json` (NaN and Infinity are not), `not_an_object`
    (null included), `duplicate_key`, and `nested` for an object or array where a value belongs. Keys that the encoder
    does not know are ignored. A number may come as text; a boolean counts as the text `true` or `false`.
    """
    objects: list[dict[str, Any]] = []
    kept: list[int] = []
    dead: list[DeadLetter] = []
    for place, text in zip(positions.tolist(), raw, strict=True):
        try:
            item = orjson.loads(text)
        except orjson.JSONDecodeError:
            dead.append(DeadLetter(place, _not_json(text)))
            continue
        if not isinstance(item, dict):
            dead.append(DeadLetter(place, "not_an_object"))
        # orjson keeps the last of equal keys. More colons than keys: equal keys, nesting, or a colon in a value.
        elif text.count(b":") != len(item) and _has_duplicate_key(text):
            dead.append(DeadLetter(place, "duplicate_key"))
        else:
            objects.append(item)
            kept.append(place)
    frame, nested = _frame(objects, encoder)
    if nested:
        dead += [DeadLetter(kept[i], "nested", column) for i, column in nested.items()]
        frame = frame.filter([i not in nested for i in range(len(kept))])
        kept = [place for i, place in enumerate(kept) if i not in nested]
    batch = encoder.encode(frame, np.array(kept, dtype=np.int64), position)
    return replace(batch, dead=sorted([*batch.dead, *dead], key=lambda letter: letter.position))


def _frame(objects: list[dict[str, Any]], encoder: Encoder) -> tuple[pl.DataFrame, dict[int, str]]:
    """The declared columns, and by index the first column of each object that holds an object or array."""
    nested: dict[int, str] = {}
    numeric = frozenset(encoder.numeric_columns)
    columns = []
    for name in encoder.columns:
        values = [item.get(name) for item in objects]
        types = set(map(type, values))
        if types & {dict, list}:
            for i, value in enumerate(values):
                if isinstance(value, dict | list):
                    nested.setdefault(i, name)
                    values[i] = None
        if name in numeric and types <= {int, float}:
            columns.append(pl.Series(name, np.array(values, dtype=np.float64)))
        else:
            text = values if types <= {str, type(None)} else [_text(value) for value in values]
            columns.append(pl.Series(name, text, dtype=pl.String))
    return pl.DataFrame(columns), nested


def _not_json(text: bytes) -> str:
    if not text.strip():
        return "empty_line"
    try:
        text.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return "not_json"


def _has_duplicate_key(text: bytes) -> bool:
    """Whether a key of the outermost object comes twice; `text` is valid JSON."""
    pairs: list[str] = []

    def note(found: list[tuple[str, Any]]) -> None:
        pairs[:] = [key for key, _ in found]  # the outermost object is closed last

    try:
        json.loads(text, object_pairs_hook=note, parse_int=str)
    except RecursionError:  # nested too deep to look into: not the flat object we expect
        return True
    return len(set(pairs)) < len(pairs)


def _text(value: str | bool | int | float | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return repr(value).lower() if isinstance(value, bool) else repr(value)
