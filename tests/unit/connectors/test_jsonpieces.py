"""A large JSON call in pieces means what it means as a whole, and is refused where that is."""

import json
import random
from typing import Any

import pytest
from pydantic_core import from_json

from connectors import jsonpieces
from connectors.jsonpieces import TooManyValuesError, pieces


def _joined(text: bytes) -> Any:
    first, *more = [found for found, _ in pieces(text, "records")]
    if more:
        first["records"] = [one for part in more for one in part]
    return first


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth < 4 else 4)
    if kind == 4:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {rng.choice(["records", "x", "a,b", "]"]): _value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [rng.random(), rng.randrange(10**30), rng.choice(['"', "\\", "],[", "{", "\u00e9", ""]), None][kind]


def test_pieces_mean_what_the_whole_means_and_damage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonpieces, "PIECE_BYTES", 5)
    rng, compared, refused = random.Random(7), 0, 0
    for _ in range(3000):
        call = {"a": _value(rng, 2), "records": [_value(rng, 2) for _ in range(rng.randrange(8))], "b": "records"}
        text = json.dumps(call, ensure_ascii=False, indent=rng.choice([None, 1])).encode()
        assert _joined(text) == call
        at = rng.randrange(len(text))
        damaged = text[:at] + rng.choice([b"", b",", b" ", b"[", b"]", b"}", b'"', b"\\"]) + text[at + 1 :]
        try:
            whole = from_json(damaged, allow_inf_nan=False)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError):  # noqa: PT011 - the parser's own
                _joined(damaged)
        else:
            compared += 1
            if not any(twice for _, twice in pieces(damaged, "records")):
                assert _joined(damaged) == whole
    assert compared > 300
    assert refused > 300


@pytest.mark.parametrize("hole", [b"[1%s,]", b"[%s,1]", b"[1,%s,1]"])
def test_an_element_that_is_missing_is_refused_wherever_it_is_cut(hole: bytes) -> None:
    blank = b" " * (3 * jsonpieces.PIECE_BYTES)
    with pytest.raises(ValueError, match=r"."):
        _joined(b'{"records": %s}' % (hole % blank))


def test_a_key_that_comes_twice_is_told_in_each_piece() -> None:
    for text in (b'{"records": [{"x": {"a": 1, "a": 2}}]}', b'{"records": [], "records": []}', b'{"a": 1, "a": 1}'):
        assert any(twice for _, twice in pieces(text, "records"))


@pytest.mark.parametrize("text", [b'{"records": [%s]}', b'{"records": [[%s]]}', b'{"a": [%s], "records": []}'])
def test_the_values_of_one_element_are_bounded(text: bytes) -> None:
    many = b"0," * (jsonpieces.MOST_VALUES + 1) + b"0"
    if b"[[" in text or b'"a"' in text:
        with pytest.raises(TooManyValuesError):
            _joined(text % many)
    else:
        assert len(_joined(text % many)["records"]) == jsonpieces.MOST_VALUES + 2
