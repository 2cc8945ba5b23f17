"""JSON objects, one a record, to a batch. Used for JSON lines and for messages of a broker.

There are two ways. `jsonscan` is compiled, makes no Python objects and lets other threads run; it reads a record only
where it is sure of its meaning. All other records go one by one through `_encode_exactly`, which alone says what a
record means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
import polars as pl

from connectors.jsonscan import read
from connectors.recordblocks import MAX_RECORD_BYTES, Records
from streamdp.data.records import Batch, DeadLetter, Encoder, Position

Given = Mapping[str, Sequence[str | None]]


def encode_json(
    raw: Sequence[bytes | None],
    positions: np.ndarray,
    position: Position,
    encoder: Encoder,
    given: Given | None = None,
) -> Batch:
    """Decode and encode n JSON texts; `positions` is (n,) int64, ascending, `position` what follows the last of them.

    Dead letters beside the encoder's: `empty_line`, `not_utf8`, `not_json` (NaN and Infinity are not), `not_an_object`
    (null included), `duplicate_key`, and `nested` for an object or array where a value belongs; `tombstone` for None
    in place of a text, and `too_long` for one over `MAX_RECORD_BYTES`. Keys that the encoder does not know are
    ignored. A number may come as text; a boolean counts as the text `true` or `false`.

    `given` holds columns of the encoder whose n values come from elsewhere; keys of their names are then ignored.
    """
    n, texts, flaws = len(raw), list[Any](raw), {}
    try:
        lengths = np.fromiter(map(len, texts), np.int64, n)
    except TypeError:
        flaws = {i: "tombstone" for i, text in enumerate(raw) if text is None}
        texts = [text or b"" for text in raw]
        lengths = np.fromiter(map(len, texts), np.int64, n)
    flaws |= dict.fromkeys(np.flatnonzero(lengths > MAX_RECORD_BYTES).tolist(), "too_long")
    records = Records(b"\n".join([*texts, b""]), np.cumsum(lengths + 1), flaws)
    return _encode(records, lambda rows: [texts[i] for i in rows], positions, position, encoder, given or {})


def encode_json_lines(records: Records, rows: np.ndarray, encoder: Encoder) -> Batch:
    """Decode and encode the lines of a file as `encode_json` does; `rows` are their numbers, (n,) int64."""
    return _encode(records, records.raw, rows, {}, encoder, {})


def _encode(
    records: Records,
    pick: Callable[[list[int]], list[bytes]],
    positions: np.ndarray,
    position: Position,
    encoder: Encoder,
    given: Given,
) -> Batch:
    """Encode texts, the fast way or the exact one, each of which ends in a line end; `pick` gives some of them."""
    frame, sure = read(records, encoder, given)
    if frame is not None and sure.all():
        return encoder.encode(frame, positions, position)
    unsure = ~sure
    unsure[list(records.flaws)] = False
    rest = np.flatnonzero(unsure).tolist()
    part = {name: [values[i] for i in rest] for name, values in given.items()}
    batch = _encode_exactly(pick(rest), positions[unsure], position, encoder, part)
    if frame is not None:
        batch = merge(encoder.encode(frame, positions[sure], position), batch)
    flawed = [DeadLetter(int(positions[i]), reason) for i, reason in records.flaws.items()]
    return replace(batch, dead=by_position([*batch.dead, *flawed]))


def merge(a: Batch, b: Batch) -> Batch:
    """Two batches of the same encoder as one, in the order of positions."""
    order = np.argsort(np.concatenate((a.positions, b.positions)), kind="stable")
    subjects, budgets = None, None
    if a.subjects is not None and b.subjects is not None:
        both = [*a.subjects, *b.subjects]
        subjects = [both[i] for i in order.tolist()]
    if a.budgets is not None and b.budgets is not None:
        budgets = np.concatenate((a.budgets, b.budgets))[order]
    return Batch(
        features=a.features,
        X=np.concatenate((a.X, b.X))[order],
        y=np.concatenate((a.y, b.y))[order],
        positions=np.concatenate((a.positions, b.positions))[order],
        position=a.position,
        subjects=subjects,
        budgets=budgets,
        dead=by_position([*a.dead, *b.dead]),
    )


def by_position(dead: list[DeadLetter]) -> list[DeadLetter]:
    """Letters in the order of their positions."""
    return sorted(dead, key=lambda letter: letter.position)


# The exact way.


def _encode_exactly(
    raw: Sequence[bytes], positions: np.ndarray, position: Position, encoder: Encoder, given: Given
) -> Batch:
    objects: list[dict[str, Any]] = []
    kept: list[int] = []
    dead: list[DeadLetter] = []
    for i, (place, text) in enumerate(zip(positions.tolist(), raw, strict=True)):
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
            kept.append(i)
    part = {name: [values[i] for i in kept] for name, values in given.items()}
    return encode_objects(objects, positions[kept], position, encoder, part, dead)


def encode_objects(
    objects: list[dict[str, Any]],
    positions: np.ndarray,
    position: Position,
    encoder: Encoder,
    given: Given,
    dead: Sequence[DeadLetter] = (),
) -> Batch:
    """Encode n objects of None, text, booleans, numbers, dicts and lists; `dead` are letters to go with theirs."""
    frame, nested = _frame(objects, encoder, given)
    letters = [*dead, *(DeadLetter(int(positions[i]), "nested", column) for i, column in nested.items())]
    if nested:
        flat = np.array([i not in nested for i in range(len(objects))])
        frame, positions = frame.filter(flat), positions[flat]
    batch = encoder.encode(frame, positions, position)
    return replace(batch, dead=by_position([*batch.dead, *letters]))


def _frame(objects: list[dict[str, Any]], encoder: Encoder, given: Given) -> tuple[pl.DataFrame, dict[int, str]]:
    """The declared columns, and by index the first column of each object that holds an object or array."""
    nested: dict[int, str] = {}
    numeric = frozenset(encoder.numeric_columns)
    columns = []
    for name in encoder.columns:
        if name in given:
            columns.append(pl.Series(name, given[name], dtype=pl.String))
            continue
        try:
            values = list(map(itemgetter(name), objects))
        except KeyError:
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
