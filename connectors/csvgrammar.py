"""Where CSV records end and what their fields are (RFC 4180).

This is our own code because a stream needs what CSV libraries do not tell: where each record ends, so that a run can
continue after it, and which records are malformed, so that one bad quote costs one line and not the rest of the file.
It is also the one definition of CSV for `files.CSVSource` and `CSVRows`. Python's `csv` module and polars give
neither, and repair malformed records silently, each in its own way. polars still reads the values of records that all
readers take apart in the same way.

`CSVRows` has rows as text, for commands that do not encode records: `streamdp predict` writes an unusable record
without a prediction, `produce` stops with an error, and a source makes it a dead letter. A row number counts records,
and the header is 1. Two rules differ: a source makes a dead letter of an empty line, and here it is skipped; a source
does not read a last record without an end, because it may learn a part of it, and here it counts.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from connectors.recordblocks import MAX_RECORD_BYTES, Grammar, RecordBlocks, Records, count_byte, cut_lines, find_byte
from connectors.textform import TextForm
from streamdp.data.records import PACKED
from streamdp.errors import ConfigError, SchemaError, SourceError, suggestion

_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""Bytes that no line of text has."""
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


def usual_delimiter(path: str) -> str:
    """Return the delimiter of a file if none is declared: a tab if `path` ends in `.tsv`, else a comma.

    The file may be compressed.
    """
    return "\t" if re.sub(PACKED, "", path).endswith(".tsv") else ","


class CSVGrammar(Grammar):
    """CSV with a header and one delimiter.

    A field that starts with a quote ends at the next quote that is not doubled, and a delimiter or line end follows.
    Any other field ends at the next delimiter or line end; quotes inside it are plain characters. A record that does
    not fit is malformed; it ends with its first line. Lines end in LF or CRLF; a CR elsewhere is a plain character, but
    none is in the header.

    The header is UTF-8, may begin with a byte order mark, and must name each of `columns` exactly once, in any order
    and among others. Blanks around a name do not count.

    If the file is known to be `whole`, a quote that is open at its end is malformed. Otherwise the record may still be
    written, and is left, unless a line after it is a record by itself. Raises `ConfigError` unless the delimiter is one
    ASCII character, no quote and no line end.
    """

    header_rows = 1

    def __init__(self, delimiter: str, columns: Sequence[str] = (), *, whole: bool = False) -> None:
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise ConfigError("expected one ASCII character, no quote and no line end, as delimiter")
        d = re.escape(delimiter)
        quoted = r'"(?:[^"]++|"")*+'
        field = rf'(?>{quoted}"|[^"\n{d}][^\n{d}]*+|)'
        self._record = re.compile(rf"{field}(?:{d}{field})*+\r?\n".encode())
        self._start_of_record = re.compile(rf'(?:{field}{d})*+(?:{quoted}(?:"\r?)?|{field})\Z'.encode())
        self._field = re.compile(rf'{d}(?:"((?:[^"]++|"")*+)"|([^{d}]*+))')
        self._columns = columns
        self._whole = whole
        self.delimiter = delimiter
        self.head = ""
        self.header: list[str] = []
        """The fields of the header as they are written, but for the byte order mark."""
        self.width = 0
        """How many fields a record has."""
        self.places: dict[str, int] = {}
        """The index of the field of each of the columns."""

    def read_header(self, data: bytes, ended: bool) -> int | None:
        mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        data = data[mark:]
        unended = ended and bool(data) and not data.endswith(b"\n")
        records = self.split(data + b"\n" if unended else data, ended)
        if len(records.ends) == 0:
            if len(data) > MAX_RECORD_BYTES:
                raise _bad_header(f"first line is over {MAX_RECORD_BYTES} bytes long")
            return None
        if 0 in records.flaws:
            raise _bad_header("header has quotes that do not match")
        raw = records.raw([0])[0]
        line = raw.decode(errors="replace")
        _need_text(raw, line.encode() == raw)
        if "\r" in line.rstrip("\r\n").replace("\r\n", "\n"):  # such a header holds records, or all of them
            raise _bad_header("header has a CR that ends no line: lines end in LF or CRLF, not in CR")
        self.header = self._fields(line)
        names = [name.strip() for name in self.header]
        self.width = len(names)
        if not self._columns and (other := _other_form(line)):
            raise _bad_header(f"first line looks like {other}")
        absent = [c for c in self._columns if c not in names]
        twice = [c for c in self._columns if names.count(c) > 1]
        if absent or twice:
            what, columns = ("lacks", absent) if absent else ("repeats", twice)
            usual = "; fix the header or the schema"
            if len(absent) == len(self._columns):  # without a header this is a record, and no value of it is shown
                usual = "; does the data begin with a line of column names?"
                names = [name for name in names if name.lower() == absent[0].lower()]
            if other := _other_form(line):
                usual = f"; it looks like {other}, and not like a header: is source.type right?"
            elif self.width == 1:
                usual = f"; it is one column if cut at {self.delimiter!r}: is the delimiter right (source.delimiter)?"
            hint = (absent and suggestion(absent[0], names)) or usual
            raise SchemaError(f"the header {what} the declared {', '.join(map(repr, columns))}{hint}")
        self.places = {c: names.index(c) for c in self._columns}
        self.head = blake2b(line.encode(), digest_size=8).hexdigest()
        length = int(records.ends[0])
        return mark + length if length <= len(data) else None

    def split(self, data: bytes, ended: bool) -> Records:
        if b'"' not in data:
            return cut_lines(data)
        ends = self._ends_in_order(data, ended)
        if ends is not None:
            return Records(data[: ends[-1]], ends, {})
        found, flaws = self._scan(data, ended)
        ends = np.array(found, dtype=np.int64)
        return Records(data[: ends[-1]] if found else b"", ends, flaws, in_order=False)

    def read(self, raw: bytes, flaw: str | None) -> tuple[list[str], str | None]:
        """Read the fields of a record without its line end, and the reason why it cannot be used: None if it can.

        With a `flaw`, as from `Records.flaws`, the `raw` record is one field, empty if it is `too_long`. Other reasons:
        `empty_line`, `not_utf8` (the bytes that are not UTF-8 are lone surrogates in the fields), `too_few_fields`,
        `too_many_fields`.
        """
        if flaw is not None:
            return ["" if flaw == "too_long" else raw.decode(errors="surrogateescape")], flaw
        if not raw:
            return [""], "empty_line"
        try:
            fields = self._fields(raw.decode())
        except UnicodeDecodeError:
            return self._fields(raw.decode(errors="surrogateescape")), "not_utf8"
        if len(fields) == self.width:
            return fields, None
        return fields, "too_few_fields" if len(fields) < self.width else "too_many_fields"

    def _fields(self, record: str) -> list[str]:
        """The fields of a well-formed record without its line end."""
        if '"' not in record:
            return record.split(self.delimiter)
        found = self._field.findall(self.delimiter + record)
        return [quoted.replace('""', '"') or plain for quoted, plain in found]

    def may_be_plain(self, records: Records) -> bool:
        """Check records of `split` cheaply: ASCII, no quotes, and as many delimiters as the records have together."""
        data = records.data
        if records.flaws or b'"' in data or not data.isascii():
            return False
        return count_byte(data, self.delimiter.encode()) == (self.width - 1) * len(records.ends)

    def plain(self, records: Records) -> np.ndarray:
        """(n,) bool: records of `split` with `width` fields on one line that CSV readers take apart in one way."""
        quotes = find_byte(records.data, b'"')
        delimiters = find_byte(records.data, self.delimiter.encode())
        lines = find_byte(records.data, b"\n")
        if len(quotes) and records.in_order:
            delimiters = delimiters[_is_even(np.searchsorted(quotes, delimiters))]
        plain: np.ndarray = _per_record(delimiters, records.ends) == self.width - 1
        plain &= _per_record(lines, records.ends) == 1
        if not records.in_order:  # then the quotes before a record may not match
            plain &= _per_record(quotes, records.ends) == 0
        plain[list(records.flaws)] = False
        return plain

    def _ends_in_order(self, data: bytes, ended: bool) -> np.ndarray | None:
        """Record ends by the parity of quotes, or None if that may differ from reading character by character.

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
        delimiter = ord(self.delimiter)
        in_order = (
            np.isin(before, (delimiter, _NEWLINE, _QUOTE)).all()
            and np.isin(after, (delimiter, _NEWLINE, _RETURN, _QUOTE)).all()
            and (text[at_return + 2] == _NEWLINE).all()
        )
        return ends if in_order else None

    def _may_go_on(self, lines: bytes) -> bool:
        """Whether a record whose quote is open at the end of the file may still be written; its later lines."""
        most = self.width - 1
        records = (b'"' not in line and line.count(self.delimiter.encode()) == most for line in lines.splitlines())
        return bool(self.width) and not self._whole and not any(records)

    def _scan(self, data: bytes, ended: bool) -> tuple[list[int], dict[int, str]]:
        """Record ends one by one, and the flaws by index: the definition, with which the fast way must agree."""
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
                begun = newline < 0 or (room and self._start_of_record.match(data, start))
                if begun and (newline < 0 or not ended or self._may_go_on(data[newline + 1 :])):
                    break  # the rest of the record is still to come
                flaws[len(ends)] = "too_long" if newline + 1 - start > MAX_RECORD_BYTES else "malformed_quotes"
                start = newline + 1
            ends.append(start)
        return ends, flaws


def _need_text(header: bytes, is_utf8: bool) -> None:
    wide = header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not wide and _CONTROL.search(header):
        raise SourceError(
            "the first line is no text; expected a line of column names: is this a CSV file? UTF-16 without a byte"
            " order mark needs source.encoding: utf-16-le"
        )
    if not is_utf8:
        raise SourceError(
            f"the header is not UTF-8 text{', but UTF-16' * wide}; expected a line of column names: set "
            f"source.encoding: {'utf-16' if wide else 'cp1252'}, or convert the file"
        )


def _other_form(line: str) -> str | None:
    """What else than a header a first line looks like."""
    first = line.lstrip()[:1]
    return "JSON" if first in ("{", "[") else "HTML" if first == "<" else None


def _bad_header(what: str) -> SourceError:
    return SourceError(f"the {what}; expected a line of column names")


def _is_even(numbers: np.ndarray) -> np.ndarray:
    return (numbers & 1) == 0


def _per_record(places: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,) how many of the sorted places lie in each record."""
    return np.diff(np.searchsorted(places, ends), prepend=0)


_WAIT_S = 60.0


class CSVRow(NamedTuple):
    """A record of a CSV file."""

    number: int  # how many records precede it, plus 1; the header counts
    fields: list[str]  # see `CSVGrammar.read` for those of an unusable record
    reason: str | None  # why it is unusable; None if it is not


class CSVRows:
    """The rows of a CSV file, in lists as they arrive. Empty lines are skipped.

    `path`, `delimiter` and `form` are as for `files.CSVSource`; the header must name `columns` exactly once, in any
    order and among others. Waits for the header. Raises `SourceError` if the file cannot be read, and `SchemaError` if
    there is no header or it does not fit.
    """

    def __init__(
        self, path: str, delimiter: str | None = None, columns: Sequence[str] = (), form: TextForm | None = None
    ) -> None:
        self.grammar = CSVGrammar(usual_delimiter(path) if delimiter is None else delimiter, columns, whole=True)
        self._blocks = RecordBlocks(path, self.grammar, whole=True, form=form)
        self._records: Records | None = None
        while not (self._blocks.has_header or self._blocks.finished):
            self._records = self._blocks.next(_WAIT_S)
        if self.names in ([], [""]):
            self.close()
            raise SchemaError(f"{self._blocks.name}: expected a header line with the names of columns")

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [name.strip() for name in self.grammar.header]

    def __iter__(self) -> Iterator[list[CSVRow]]:
        return map(self._rows, self.blocks())

    def blocks(self) -> Iterator[Records]:
        """The records as they arrive, with empty lines."""
        records = self._records
        while records is not None or not self._blocks.finished:
            if records is not None:
                yield records
            records = self._blocks.next(_WAIT_S)

    def _rows(self, records: Records) -> list[CSVRow]:
        count = len(records.ends)
        first = self._blocks.row - count + 1
        read = (self.grammar.read(raw, records.flaws.get(i)) for i, raw in enumerate(records.raw(range(count))))
        rows = (CSVRow(number, *found) for number, found in enumerate(read, start=first))
        return [row for row in rows if row.reason != "empty_line"]

    def close(self) -> None:
        """Close the file; standard input stays open. Safe to call twice."""
        self._blocks.close()
