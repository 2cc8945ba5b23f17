"""Large JSON calls in pieces, so that a thread that parses one lets other threads run between them.

A parser keeps the interpreter's lock for as long as it runs. A body of some megabytes would keep all others waiting.
"""

from collections.abc import Iterator
from itertools import pairwise

from pydantic_core import from_json

from connectors.jsoncuts import find_cuts
from connectors.jsonrows import has_duplicate_key

PIECE_BYTES = 1 << 16
MOST_VALUES = 100_000
"""The most values of one element, or of all that is beside the array."""


class TooManyValuesError(ValueError):
    """An element has more than `MOST_VALUES` values."""


def pieces(text: bytes, key: str) -> Iterator[tuple[object, bool]]:
    """Parse the JSON object `text`: first with an empty array under `key`, then the elements, several at a time.

    Each piece comes with whether an object of it has a key twice. Without such an array the first piece is everything.
    Raises `ValueError` for what is no JSON object of at most 64 levels, has NaN or an infinity or a whole number of
    more than 4300 digits; and `TooManyValuesError`.
    """
    if (found := find_cuts(text, b'"%s"' % key.encode(), PIECE_BYTES, MOST_VALUES)) is None:
        raise ValueError("brackets do not match")
    values, cuts = found
    if values > MOST_VALUES:
        raise TooManyValuesError
    if not len(cuts):
        yield _parsed(text)
        return
    first, *_, last = places = cuts.tolist()
    yield _parsed(text[: first + 1] + text[last:])
    for start, end in pairwise(places):
        part, twice = _parsed(b"[%s]" % text[start + 1 : end])
        if not part and len(places) > 2:
            raise ValueError("an element is missing")
        yield part, twice


def _parsed(text: bytes) -> tuple[object, bool]:
    found = from_json(text, allow_inf_nan=False)
    return found, text.count(b":") != _keys(found) and has_duplicate_key(text, True)


def _keys(found: object) -> int:
    """How many keys the objects of two levels have."""
    if isinstance(found, dict):
        return len(found)
    if not isinstance(found, list):
        return 0
    records = [record for record in found if isinstance(record, dict)]
    return sum(map(len, records)) + sum(len(x) for record in records if isinstance(x := record.get("x"), dict))
