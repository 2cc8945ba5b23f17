"""The subjects of records: which of them are one person, and a subject with the time of its record.

The rule of a key, which `subject_bytes` makes of every subject, wherever it comes from:

- A whole number is its decimal text, exact at any length up to 300 digits.
- Text is compared in Unicode's form NFC, and bytes that are UTF-8 are that text. Nothing else is changed: texts that
  differ in case or blanks, and 7 and 007, are different people (`type: integer` in the schema makes the last two one).
- A float is refused, and so is text that writes one, such as 1.0 or 1e+20: a table with a missing id turns whole
  numbers into floats, so that 1 and 1.0 would be two people, and above 2^53 several people one.
- The frame and the quotes of a broker's key are removed first (`connectors.kafkakeys`).
"""

import contextlib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import blake2b
from itertools import repeat
from operator import add, is_not
from typing import cast

import numpy as np

from streamdp.errors import SchemaError

Subject = str | bytes | int


class Dated(bytes):
    """A `subject` with the `time` of its record, for caps that renew. It equals the bytes of the subject alone.

    The time is in seconds since 1970 (UTC), and public. Raises `SchemaError` for a subject that `subject_bytes`
    refuses, and for a time that is not a number.

    >>> Dated("ann", 1.7e9) == Dated("ann", 1.8e9) == b"ann"
    True
    """

    time: float

    def __new__(cls, subject: Subject, time: float) -> "Dated":
        """Make the subject of a record."""
        new = super().__new__(cls, subject_bytes(subject) or b"")
        try:
            new.time = float(time)
        except (TypeError, ValueError, OverflowError):
            new.time = math.nan
        if not math.isfinite(new.time):
            raise SchemaError("time: expected a finite number of seconds since 1970 (UTC)")
        return new


FLOATS = "store the ids as integers or text (in pandas, Int64 for whole numbers with gaps)"
"""What to do about subjects that are floats."""

FLOAT_TEXT = r"^[+-]?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE]\+[0-9]+)$"
"""The text of a float, as a regular expression."""
_is_float = re.compile(FLOAT_TEXT.encode()).fullmatch  # `match` would let a line end follow
_float_line = re.compile(FLOAT_TEXT.replace("^", "\n", 1).replace("$", "\n")).search  # with a first byte to search for

SPELLING = (
    "people are identified by their subjects, which are compared as text in Unicode's form NFC, a whole number as its "
    "decimal text; every other spelling is another person"
)
"""Which subjects are one person; a phrase for statements."""


def subject_bytes(subject: Subject | None) -> bytes | None:
    """Return the bytes by which the ledger identifies subjects: text in the form NFC as UTF-8, None for None.

    See the rule at the head of this module. Bytes that are not UTF-8 stay as they are, and so does a `Dated` subject.

    Raises `SchemaError` for a float, the text of one, and whatever is not text, bytes, a whole number or None.
    """
    if subject is None or type(subject) is Dated:
        return subject
    if type(subject) is str and subject.isascii():  # first, because the time of an admission is mostly spent here
        key = subject.encode()
    elif isinstance(subject, str):  # also of a subclass, whose own methods are not called
        key = _composed(str.encode(subject, "utf-8", "surrogatepass"))
    elif isinstance(subject, bytes):
        key = _composed(subject if type(subject) is bytes else b"".join((subject,)))
    elif isinstance(subject, int | np.integer) and not isinstance(subject, bool):
        number = int.__index__(subject) if isinstance(subject, int) else int(subject)
        if number.bit_length() >= 1024:
            raise SchemaError("a subject that is a whole number has at most 300 digits")
        return b"%d" % number
    else:
        kind = type(subject).__name__
        raise SchemaError(f"a subject must be str, bytes, a whole number or None, got {kind}: {FLOATS}")
    if (46 in key or 43 in key) and _is_float(key):
        raise SchemaError(f"a subject must not be the text of a float: {FLOATS}")
    return key


def subject_list(subjects: Iterable[Subject | None], records: int) -> list[Subject | None]:
    """Return the subjects of records, a list, an array or a series with one for each record, as a list.

    Raises `SchemaError` for anything else, such as a single text, and for another number than `records`.
    """
    found = None
    if not isinstance(subjects, str | bytes | Mapping | Set):
        with contextlib.suppress(Exception):  # an object may raise anything when it is asked for its items
            array = isinstance(subjects, np.ndarray) and subjects.dtype.kind in "iuUS" and subjects.ndim == 1
            found = subjects.tolist() if array else list(subjects)  # type: ignore[attr-defined]
    if found is None:
        raise SchemaError(f"subjects: expected a list with the subject of each record, got {type(subjects).__name__}")
    if len(found) != records:
        raise SchemaError(f"subjects: expected {records}, got {len(found)}")
    return found


def subjects_bytes(subjects: Sequence[Subject | None]) -> list[bytes | None]:
    """Return what `subject_bytes` returns for each subject; plain ASCII text and whole numbers take no call for each.

    Raises the errors of `subject_bytes`.
    """
    if (kinds := set(map(type, subjects))) == {type(None)}:
        return [None] * len(subjects)
    if kinds == {str}:
        lines = "\n".join(["", *(texts := cast("Sequence[str]", subjects)), ""])
        if lines.isascii() and not (("." in lines or "+" in lines) and _float_line(lines)):
            return list(map(str.encode, texts))
    if kinds == {int}:
        numbers = cast("Sequence[int]", subjects)
        if max(map(int.bit_length, numbers)) < 1024:
            return list(map(b"%d".__mod__, numbers))
    return list(map(subject_bytes, subjects))


def hash_start(key: bytes, size: int = 16) -> Callable[[], blake2b]:
    """Return what begins a hash of `size` bytes, of one subject, under the `key`: see `hash_people`."""
    return blake2b(digest_size=size, key=key, person=b"streamdp-subject").copy


def hash_people(
    people: Sequence[bytes | None], key: bytes, periods: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return keyed hashes of `people`, which `subjects_bytes` returned, or of people and periods.

    A hash is 16 bytes of BLAKE2b under the key, personalised for this use, of these bytes. With a period, it is 12
    bytes of BLAKE2b of the subject and the period, and then the number of the period in 4 bytes, so that the rows of
    old periods can be found. Without the key, rows of one subject in two periods cannot be recognised as such. The
    result is (n, 2) uint64, the little-endian words of the hashes; and (n,) bool, False for None, whose hash has no
    meaning. The key has 32 to 64 secret bytes, and `periods` (n,) int64 are numbers from 0 to 2^32 - 1; see
    `subject_key.period_of`.
    """
    present = np.fromiter(map(is_not, people, repeat(None)), dtype=np.bool_, count=len(people))
    # A copy spares the set-up. BLAKE2b compresses the block with the key at the first update, so for each subject anew.
    start = hash_start(key, 16 if periods is None else 12)
    suffixes = [] if periods is None else np.ascontiguousarray(periods, ">u4").view("V4").tolist()
    texts = people if periods is None else map(add, (person or b"" for person in people), suffixes)
    digests = []
    for text in texts:
        one = start()
        one.update(text or b"")
        digests.append(one.digest())
    digests = digests if periods is None else list(map(add, digests, suffixes))
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(-1, 2), present


def _composed(text: bytes) -> bytes:
    """Text in UTF-8 in Unicode's form NFC; other bytes as they are."""
    if text.isascii():
        return text
    try:
        return unicodedata.normalize("NFC", text.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text
