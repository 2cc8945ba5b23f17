"""JSON objects to batches, one object for each record. Used for JSON lines and for messages of a broker.

Two ways lead to the same result. The fast way, `read`, is compiled, makes no Python objects and lets other threads
run; it takes a record only if its meaning is certain: a flat object without escapes, with numbers in the numeric
columns. All other records are decoded one by one in `_encode_exactly`, which defines what a record means.

The scanner of the fast way finds the bytes of the declared fields of each record and checks them against JSON's
grammar. It writes them to a table, and polars reads the table: the scanner computes no number. Reason: a worker
decodes in one thread while its client polls in another. A library that makes Python objects holds the interpreter's
lock during that time. The scanner and polars release the lock.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
import polars as pl

from connectors.jsonscan_loop import CELL, scan
from connectors.recordblocks import MAX_RECORD_BYTES, Records
from streamdp.data.records import Batch, DeadLetter, Encoder, Position, by_position, lookup

_MORE_KEYS, _KEY_BYTES = 64, 4096
"""The number of undeclared keys that a scan remembers, and their bytes in all. Records with further keys are not
certain.
"""


def read(records: Records, encoder: Encoder) -> tuple[pl.DataFrame | None, np.ndarray]:
    """Read the records whose meaning is certain.

    Records with a flaw are not certain, and none is if the text is not UTF-8. Returns the encoder's columns for the
    certain records, None if there are none; and (n,) bool, True for the certain records.
    """
    n, data = len(records.ends), records.data
    certain = np.zeros(n, dtype=bool)
    try:
        data.isascii() or data.decode()
    except UnicodeDecodeError:
        return None, certain
    numeric = [c for c in encoder.columns if c in encoder.numeric_columns]
    other = [c for c in encoder.columns if c not in encoder.numeric_columns]
    names = [c.encode(errors="surrogatepass") for c in (*numeric, *other)]
    keys = bytearray(b"".join(names)) + bytes(_KEY_BYTES)
    bounds = np.zeros(len(names) + _MORE_KEYS + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=bounds[1 : len(names) + 1])
    starts = records.starts
    starts[list(records.flaws)] = records.ends[list(records.flaws)] - 1
    table = np.empty(len(data) + n * (len(names) + 2), dtype=np.uint8)
    size = scan(data, starts, records.ends - 1, keys, bounds, len(numeric), len(names), certain.view(np.uint8), table)
    if not size:
        return None, certain
    types = [pl.String, *[pl.Float64] * len(numeric), *[pl.String] * len(other)]
    cells = pl.read_csv(
        table[:size].tobytes(),
        has_header=False,
        separator=chr(CELL),
        quote_char=None,
        schema={str(k): kind for k, kind in enumerate(types)},
    )
    columns = dict(zip((*numeric, *other), cells.get_columns()[1:], strict=True))
    return pl.DataFrame({name: columns[name] for name in encoder.columns}), certain


FRAME_BYTES = 5
"""A zero byte and the number of a schema, before each value that Confluent's serializers write."""


def encode_json(raw: Sequence[bytes | None], positions: np.ndarray, position: Position, encoder: Encoder) -> Batch:
    """Decode and encode n JSON texts, `raw`; None is a message without a value.

    `positions` (n,) int64, ascending, are those of the records, and `position` is the source's after the last one.

    Returns the batch. A number may come as text, and NaN and infinities are missing, as null; a boolean counts as the
    text `true` or `false`; keys that the encoder does not know are ignored. Dead letters beside the encoder's have
    these reasons: `empty_line`; `not_utf8`; `not_json`; `not_an_object`, also for null; `duplicate_key`; `nested` for
    an object or array in a declared column (a column may be a path with dots); `tombstone` for None; `too_long` for
    more than `MAX_RECORD_BYTES`.
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
    return _encode(records, lambda rows: [texts[i] for i in rows], positions, position, encoder)


def encode_framed_json(
    raw: Sequence[bytes | None], positions: np.ndarray, position: Position, encoder: Encoder
) -> Batch:
    """As `encode_json`, for values that begin with a zero byte and the 4 bytes of a schema's number.

    Confluent's serializers write this header. The number is ignored: the encoder's columns are the schema. A value
    without the header is a dead letter with the reason `not_framed`.
    """
    good = [i for i, value in enumerate(raw) if not value or (value[0] == 0 and len(value) >= FRAME_BYTES)]
    kept = np.array(good, dtype=np.int64)
    texts = [value[FRAME_BYTES:] if (value := raw[i]) else value for i in good]
    batch = encode_json(texts, positions[kept], position, encoder)
    bad = np.delete(positions, kept).tolist()
    return replace(batch, dead=by_position([*batch.dead, *(DeadLetter(place, "not_framed") for place in bad)]))


def encode_json_lines(records: Records, rows: np.ndarray, encoder: Encoder) -> Batch:
    """Decode and encode n lines of a file, with the results of `encode_json`; `rows` (n,) int64 are their numbers."""
    return _encode(records, records.raw, rows, {}, encoder)


def _encode(
    records: Records,
    pick: Callable[[list[int]], list[bytes]],
    positions: np.ndarray,
    position: Position,
    encoder: Encoder,
) -> Batch:
    """Encode the certain records the fast way, and the others exactly; `pick` returns the texts at some indices."""
    frame, certain = read(records, encoder)
    if frame is not None and certain.all():
        return encoder.encode(frame, positions, position)
    uncertain = ~certain
    uncertain[list(records.flaws)] = False
    rest = np.flatnonzero(uncertain).tolist()
    batch = _encode_exactly(pick(rest), positions[uncertain], position, encoder)
    if frame is not None:
        batch = merge(encoder.encode(frame, positions[certain], position), batch)
    flawed = [DeadLetter(int(positions[i]), reason) for i, reason in records.flaws.items()]
    return replace(batch, dead=by_position([*batch.dead, *flawed]))


def merge(a: Batch, b: Batch) -> Batch:
    """Merge two batches of the same encoder, in the order of positions, with the source's position of `a`."""
    joined: dict[str, Any] = {}
    for name in ("X", "y", "positions", "subjects", "budgets", "times"):
        first, second = getattr(a, name), getattr(b, name)
        both = first is not None and second is not None
        if name == "subjects":
            joined[name] = [*first, *second] if both else None
        else:
            joined[name] = np.concatenate((first, second)) if both else None
    order = np.argsort(joined["positions"], kind="stable")
    return replace(a, **joined, dead=by_position([*a.dead, *b.dead])).take(order)


def _encode_exactly(raw: Sequence[bytes], positions: np.ndarray, position: Position, encoder: Encoder) -> Batch:
    """Encode n texts one by one; this defines the meaning of every record."""
    objects: list[dict[str, object]] = []
    kept: list[int] = []
    dead: list[DeadLetter] = []
    has_paths = any("." in column for column in encoder.columns)
    for i, (place, text) in enumerate(zip(positions.tolist(), raw, strict=True)):
        try:
            item = orjson.loads(text)
        except orjson.JSONDecodeError:
            if (item := _with_constants(text)) is None:
                dead.append(DeadLetter(place, _not_json(text)))
                continue
        if not isinstance(item, dict):
            dead.append(DeadLetter(place, "not_an_object"))
        # orjson keeps the last of equal keys. If there are more colons than keys, then there are equal keys, nested
        # objects, or colons in values.
        elif text.count(b":") != len(item) and has_duplicate_key(text, has_paths):
            dead.append(DeadLetter(place, "duplicate_key"))
        else:
            if encoder.subject is not None and type(lookup(item, encoder.subject)) is float:
                # orjson makes a float of a whole number of 2^64 and more; here a float is text, which is refused
                with contextlib.suppress(RecursionError):  # nested too deep: it remains a float
                    item[encoder.subject] = lookup(json.loads(text, parse_int=str, parse_float=str), encoder.subject)
            objects.append(item)
            kept.append(i)
    return encode_objects(objects, positions[kept], position, encoder, dead)


def _with_constants(text: bytes) -> dict[str, object] | None:
    """The object of a text that is JSON but for NaN and infinities, which Python writes; they are None, as null is."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        item = json.loads(text.decode(), parse_constant=lambda _: None)
        json.dumps(item, ensure_ascii=False).encode()  # raises for half of a surrogate pair, as orjson does
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


def encode_objects(
    objects: list[dict[str, object]],
    positions: np.ndarray,
    position: Position,
    encoder: Encoder,
    dead: Sequence[DeadLetter] = (),
) -> Batch:
    """Encode decoded objects, whose values are None, text, booleans, numbers, dicts and lists.

    `positions` and `position` are as for `encode_json`. The letters in `dead` are added to the batch.
    """
    frame, nested = _frame(objects, encoder)
    letters = [*dead, *(DeadLetter(int(positions[i]), "nested", column) for i, column in nested.items())]
    if nested:
        flat = np.array([i not in nested for i in range(len(objects))])
        frame, positions = frame.filter(flat), positions[flat]
    batch = encoder.encode(frame, positions, position)
    return replace(batch, dead=by_position([*batch.dead, *letters]))


def _frame(objects: list[dict[str, object]], encoder: Encoder) -> tuple[pl.DataFrame, dict[int, str]]:
    """The declared columns; and for each object with a nested value, by its index, the first such column."""
    nested: dict[int, str] = {}
    numeric = frozenset(encoder.numeric_columns)
    columns = []
    for name in encoder.columns:
        try:
            values = list(map(itemgetter(name), objects))
        except KeyError:
            values = [lookup(item, name) for item in objects]
        types = set(map(type, values))
        if types & {dict, list}:
            for i, value in enumerate(values):
                if isinstance(value, dict | list):
                    nested.setdefault(i, name)
                    values[i] = None
        if name in numeric and types <= {int, float}:
            with contextlib.suppress(OverflowError):  # a whole number beyond all doubles
                columns.append(pl.Series(name, np.array(values, dtype=np.float64)))
                continue
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


def has_duplicate_key(text: bytes, inside: bool) -> bool:
    """Whether a key occurs twice in the outermost object of valid JSON text; if `inside`, in any object of it."""
    twice: list[bool] = []

    def note(found: list[tuple[str, object]]) -> None:
        twice.append(len({key for key, _ in found}) < len(found))

    try:
        json.loads(text, object_pairs_hook=note, parse_int=str)
    except RecursionError:  # nested too deep to check, so not an object that we expect
        return True
    return any(twice) if inside else twice[-1]  # the outermost object comes last


def _text(value: str | bool | int | float | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return repr(value).lower() if isinstance(value, bool) else repr(value)
