"""Calls of the service: the compiled cut says what Python's JSON reader says, and runs into nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.jsoncalls import Cut, cut
from connectors.jsoncalls_loop import LABEL
from streamdp.errors import SchemaError

TEXT = st.sampled_from(["", "a", 'q"', "\\", "}{", "][", "é,:", "null", "x" * 256, "x" * 257])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
FEATURES = st.dictionaries(TEXT, VALUE, max_size=3)
ID = TEXT | st.integers(-2, 10**6) | st.none() | st.floats(0, 1) | st.booleans()
MEMBERS = st.one_of(
    st.tuples(st.just("x"), FEATURES | VALUE),
    st.tuples(st.just("id"), ID | VALUE),
    st.tuples(st.sampled_from(["y", "subject", "budget", "z"]) | TEXT, VALUE),
)
RECORD = st.lists(MEMBERS, max_size=5) | VALUE.filter(lambda value: not isinstance(value, dict))
SPACES = ["", "", "", " ", "\n\t", "\r"]


class Members(list[tuple[str, Any]]):
    """An object as its members in order, equal keys included."""


def written(value: Any, spaces: random.Random) -> str:
    """JSON with white space at every place that allows it."""

    def space() -> str:
        return spaces.choice(SPACES)

    if isinstance(value, dict):
        value = Members(value.items())
    if isinstance(value, Members):
        inner = [f"{space()}{json.dumps(k)}{space()}:{space()}{written(v, spaces)}{space()}" for k, v in value]
        return "{" + (",".join(inner) or space()) + "}"
    if isinstance(value, list):
        return "[" + (",".join(space() + written(v, spaces) + space() for v in value) or space()) + "]"
    return json.dumps(value, ensure_ascii=spaces.random() < 0.5)


def read(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=Members)


def expected(record: Any, learn: bool) -> tuple[int | str, Members | None]:
    """What becomes of a record: its code or reason, and the flat record if it is not dead."""
    if not isinstance(record, Members):
        return "not_an_object", None
    flat, flaw, seen = Members(), None, set()
    for key, value in record:
        known = key == "id" or (learn and key in ("x", "y", "subject", "budget"))
        if known and key in seen:
            flaw = "duplicate_key"
        seen.add(key)
        if key == "id":
            if not (value is None or is_id(value)):
                flaw = "bad_id"
        elif not learn:
            flat.append((key, value))
        elif key == "x":
            if isinstance(value, Members):
                flat.extend(value)
            else:
                flaw = "not_an_object"
        elif known:
            flat.append((f"${key}", value))
        else:
            flaw = "unknown_field"
    if flaw is not None:
        return flaw, None
    return (LABEL if learn and "x" not in seen else 0), flat


def is_id(value: Any) -> bool:
    if isinstance(value, str):
        return 0 < len(json.dumps(value, ensure_ascii=False).encode()) - 2 <= 256
    return type(value) is int and value >= 0


def flat_records(call: Cut) -> list[bytes]:
    return [call.flat.data[a:b] for a, b in zip(call.flat.starts, call.flat.ends, strict=True)] if len(call) else []


def check_cut(call: Cut, records: list[Any], learn: bool) -> None:
    assert len(call) == len(records)
    spans, ids = call.texts(call.spans), call.texts(call.ids)
    for i, record in enumerate(records):
        code, flat = expected(record, learn)
        assert read(spans[i]) == record
        assert call.flat.flaws.get(i, LABEL if i in call.labels else 0) == code
        assert (i in call.named) == bool(call.ids[i, 1])  # an empty text is an id too, and a bad one
        if flat is None:
            continue
        assert read(flat_records(call)[i]) == flat
        (name,) = [value for key, value in record if key == "id" and value is not None] or [""]
        assert json.loads(b'"%s"' % ids[i]) == str(name)


@settings(max_examples=100, deadline=None)
@given(st.lists(RECORD, max_size=4), st.booleans(), st.integers(0, 99))
@pytest.mark.slow
def test_a_call_is_cut_as_its_json_is_read(records: list[Any], learn: bool, seed: int) -> None:
    """Equal keys, nested values, escapes, white space, ids of each kind, and records that are no objects."""
    spaces = random.Random(seed)
    written_records = [Members(record) if is_members(record) else record for record in records]
    text = written(Members([("records", written_records)]), spaces).encode()
    check_cut(cut(spaces.choice(SPACES).encode() + text + b" \n", learn, 10), dict(read(text))["records"], learn)


def is_members(record: Any) -> bool:
    return isinstance(record, list) and all(isinstance(member, tuple) for member in record)


CALL = b'{"records": [{"x": {"a": 1, "b": "\\"}"}, "y": 2.5, "id": "r 1"}, 7, {"y": null, "id": 12}]}'


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(CALL)), st.integers(0, 3), st.sampled_from(b'",:\\{}[] 0nx\n\0\xff')), max_size=4
    ),
    st.booleans(),
)
def test_a_broken_call_is_refused_or_keeps_its_records_apart(changes: list[tuple[int, int, int]], learn: bool) -> None:
    """A call that the cut accepts and JSON's reader too has the same records. Other calls end without harm."""
    body = CALL
    for at, gone, byte in changes:
        body = body[:at] + bytes([byte]) + body[at + gone :]
    try:
        call = cut(body, learn, 10)
    except SchemaError:
        call = None
    try:
        document = read(body)
    except ValueError:
        document = None
    is_call = (
        isinstance(document, Members)
        and [key for key, _ in document] == ["records"]
        and isinstance(document[0][1], list)
        and not isinstance(document[0][1], Members)
    )
    if is_call:
        assert call is not None
        assert len(call) == len(document[0][1])
    if call is not None:
        edges = call.spans.ravel()
        assert np.all(np.diff(edges) >= 0)
        assert edges[-1:].tolist() <= [len(body)]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5])
def test_one_more_than_the_most_records_shows_that_there_are_too_many(n: int) -> None:
    body = json.dumps({"records": [{"a": i} for i in range(n)]}).encode()
    assert len(cut(body, False, 3)) == min(n, 4)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"[]", b'{"records"', b'{"records": ', b'{"records": [', b'{"records": []', b'{"records": {}}',
        b'{"records": [1}', b'{"records": [1,]}', b'{"records": [,1]}', b'{"records": [1]]}', b'{"records": [1]} x',
        b'{"record": [1]}', b'{"recordsx": [1]}', b'{"records": [1], "more": 2}', b'{"records": [{]}',
        b'{"records": [{"a"}]}', b'{"records": [{"a": }]}', b'{"records": [{"a": 1,}]}', b'{"records": [{"a": "}]}',
        b'{"records": [{"a": "\\',
    ],
)  # fmt: skip
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(SchemaError):
        cut(body, True, 10)
