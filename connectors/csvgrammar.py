"""Where CSV records end and what their fields are (RFC 4180), at the speed of numpy where quotes are in order."""

from __future__ import annotations

import re

import numpy as np

from connectors.recordfile import MAX_RECORD_BYTES, Records, count_byte, find_byte

_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


class CSVGrammar:
    """CSV with one delimiter (an ASCII character).

    A field that starts with a quote ends at the next quote that is not doubled, and a delimiter or line end follows.
    Any other field ends at the next delimiter or line end; quotes inside it are plain characters. A record that does
    not fit is malformed; it ends with its first line.
    """

    def __init__(self, delimiter: str) -> None:
        d = re.escape(delimiter)
        quoted = r'"(?:[^"]++|"")*+'
        field = rf'(?>{quoted}"|[^"\n{d}][^\n{d}]*+|)'
        self._record = re.compile(rf"{field}(?:{d}{field})*+\r?\n".encode())
        self._start_of_record = re.compile(rf'(?:{field}{d})*+(?:{quoted}(?:"\r?)?|{field})\Z'.encode())
        self._field = re.compile(rf'{d}(?:"((?:[^"]++|"")*+)"|([^{d}]*+))')
        self._delimiter = delimiter

    def split(self, data: bytes, ended: bool) -> Records:
        """The complete records of `data`, which starts one. With `ended`, data ends with LF and nothing follows."""
        ends = self._ends_in_order(data, ended)
        if ends is not None:
            return Records(data[: ends[-1]], ends, {})
        found, flaws = self._scan(data, ended)
        ends = np.array(found, dtype=np.int64)
        return Records(data[: ends[-1]] if found else b"", ends, flaws, in_order=False)

    def fields(self, record: str) -> list[str]:
        """The fields of a well-formed record without its line end."""
        if '"' not in record:
            return record.split(self._delimiter)
        found = self._field.findall(self._delimiter + record)
        return [quoted.replace('""', '"') or plain for quoted, plain in found]

    def may_be_plain(self, records: Records, width: int) -> bool:
        """A cheap look: ASCII without quotes, and as many delimiters as records of `width` fields have together."""
        data = records.data
        if records.flaws or b'"' in data or not data.isascii():
            return False
        return count_byte(data, self._delimiter.encode()) == (width - 1) * len(records.ends)

    def plain(self, records: Records, width: int) -> np.ndarray:
        """(n,) bool: records of `width` fields on one line that any CSV reader takes apart in the same way."""
        quotes = find_byte(records.data, b'"')
        delimiters = find_byte(records.data, self._delimiter.encode())
        lines = find_byte(records.data, b"\n")
        if len(quotes) and records.in_order:
            delimiters = delimiters[_is_even(np.searchsorted(quotes, delimiters))]
        plain = _per_record(delimiters, records.ends) == width - 1
        plain &= _per_record(lines, records.ends) == 1
        if not records.in_order:  # then the quotes before a record say nothing about it
            plain &= _per_record(quotes, records.ends) == 0
        plain[list(records.flaws)] = False
        return plain

    def _ends_in_order(self, data: bytes, ended: bool) -> np.ndarray | None:
        """Record ends by the parity of quotes, or None where that is not the same as reading character by character.

        Induction over the quotes: outside of quotes, a quote right after a delimiter or record end opens a field, and
        one right after a quote resumes the field that a doubled quote interrupted; inside, a quote before a delimiter,
        line end or quote closes or interrupts it. Nothing else may occur.
        """
        text = np.frombuffer(data, np.uint8)
        quotes = find_byte(data, b'"')
        lines = find_byte(data, b"\n")
        ends = lines[_is_even(np.searchsorted(quotes, lines))] + 1
        if len(ends) == 0 or (ended and ends[-1] < len(data)):
            return None
        if np.diff(ends, prepend=0).max() > MAX_RECORD_BYTES:
            return None
        quotes = quotes[quotes < ends[-1]]
        opening, closing = quotes[0::2], quotes[1::2]
        before = np.where(opening == 0, _NEWLINE, text[opening - 1])
        after = text[closing + 1]
        at_return = closing[after == _RETURN]
        delimiter = ord(self._delimiter)
        in_order = (
            np.isin(before, (delimiter, _NEWLINE, _QUOTE)).all()
            and np.isin(after, (delimiter, _NEWLINE, _RETURN, _QUOTE)).all()
            and (text[at_return + 2] == _NEWLINE).all()
        )
        return ends if in_order else None

    def _scan(self, data: bytes, ended: bool) -> tuple[list[int], dict[int, str]]:
        """Record ends one by one, and the flaws by index. The truth that the fast way must agree with."""
        ends: list[int] = []
        flaws: dict[int, str] = {}
        start = 0
        while start < len(data):
            match = self._record.match(data, start, start + MAX_RECORD_BYTES)
            if match:
                start = match.end()
            else:
                newline = data.find(b"\n", start)
                room = len(data) - start < MAX_RECORD_BYTES
                if newline < 0 or (room and not ended and self._start_of_record.match(data, start)):
                    break  # the rest of the record is still to come
                flaws[len(ends)] = "too_long" if newline + 1 - start > MAX_RECORD_BYTES else "malformed_quotes"
                start = newline + 1
            ends.append(start)
        return ends, flaws


def _is_even(numbers: np.ndarray) -> np.ndarray:
    return (numbers & 1) == 0


def _per_record(places: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,) how many of the sorted places lie in each record."""
    return np.diff(np.searchsorted(places, ends), prepend=0)
