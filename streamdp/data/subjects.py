"""The subjects of records: which of them are one person, and a subject with the time of its record."""

from __future__ import annotations

import contextlib
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import cast

import numpy as np

from streamdp.errors import SchemaError

Subject = str | bytes | int


class Dated(bytes):
    """A subject with the time of its record, for caps that renew. It equals the bytes of the subject alone.

    Parameters
    ----------
    subject
        The person.
    time
        The time of the record, in seconds since 1970 (UTC). It is public.

    Raises `SchemaError` for a subject that `subject_bytes` refuses, and for a time that is not a number.

    >>> Dated("ann", 1.7e9) == Dated("ann", 1.8e9) == b"ann"
    True
    """

    time: float

    def __new__(cls, subject: Subject, time: float) -> Dated:
        """Make the subject of a record."""
        new = super().__new__(cls, subject_bytes(subject) or b"")
        try:
            new.time = float(time)
        except (TypeError, ValueError, OverflowError):
            new.time = math.nan
        if not math.isfinite(new.time):
            raise SchemaError("time: expected a finite number of seconds since 1970 (UTC)")
        return new


SPELLING = (
    "people are told apart by their subjects, which are compared as text in Unicode's form NFC, a whole number as its "
    "decimal text; every other spelling is another person"
)
"""Which subjects are one person; a phrase for statements."""


def subject_bytes(subject: Subject | None) -> bytes | None:
    """Return the bytes by which the ledger tells subjects apart: text in the form NFC as UTF-8, None for None.

    Bytes that are UTF-8 are that text; other bytes stay as they are. A whole number is its decimal text. ASCII text
    stays as it is, and so does a `Dated` subject.

    Raises `SchemaError` for a subject that is not text, bytes, a whole number or None, such as a float or a truth
    value, whose texts differ between programs.
    """
    if type(subject) is str and subject.isascii():  # first, because the time of an admission is mostly spent here
        return subject.encode()
    if subject is None or type(subject) is Dated:
        return subject
    if isinstance(subject, str):  # also of a subclass, whose own methods are not asked
        return _composed(str.encode(subject, "utf-8", "surrogatepass"))
    if isinstance(subject, bytes):
        return _composed(subject if type(subject) is bytes else b"".join((subject,)))
    if isinstance(subject, int | np.integer) and not isinstance(subject, bool):
        number = int.__index__(subject) if isinstance(subject, int) else int(subject)
        if number.bit_length() < 1024:
            return b"%d" % number
    raise SchemaError(f"a subject must be str, bytes, a whole number or None, got {type(subject).__name__}")


def subject_list(subjects: Iterable[Subject | None], records: int) -> list[Subject | None]:
    """Return the subjects of records as a list.

    Parameters
    ----------
    subjects
        A list, an array or a series, with one subject for each record.
    records
        How many records there are.

    Raises `SchemaError` for anything else, such as a single text, and for another number of subjects.
    """
    found = None
    if not isinstance(subjects, str | bytes | Mapping | Set):
        with contextlib.suppress(Exception):  # an object may raise anything when it is asked for its items
            found = list(subjects)
    if found is None:
        raise SchemaError(f"subjects: expected a list with the subject of each record, got {type(subjects).__name__}")
    if len(found) != records:
        raise SchemaError(f"subjects: expected {records}, got {len(found)}")
    return found


def subjects_bytes(subjects: Sequence[Subject | None]) -> list[bytes | None]:
    """Return what `subject_bytes` returns for each subject; plain ASCII text takes no call for each.

    Raises the errors of `subject_bytes`.
    """
    if set(map(type, subjects)) == {str} and "".join(texts := cast("Sequence[str]", subjects)).isascii():
        return [text.encode() for text in texts]
    return [subject_bytes(subject) for subject in subjects]


def _composed(text: bytes) -> bytes:
    """Text in UTF-8 in Unicode's form NFC; other bytes as they are."""
    if text.isascii():
        return text
    try:
        return unicodedata.normalize("NFC", text.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text
