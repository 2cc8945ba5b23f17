"""Sources of records in CSV and JSON lines files, gzip or not, complete or growing, or on standard input.

CSV is cut into records by `csvgrammar`, which says why that is our own code. Values are parsed by polars.
"""

import codecs
import os
import re
import warnings
from dataclasses import replace

import numpy as np
import polars as pl

from connectors.csvgrammar import CSVGrammar, usual_delimiter
from connectors.jsonrows import encode_json_lines, merge
from connectors.recordblocks import Grammar, Records, cut_lines
from connectors.recordfile import RecordFile
from connectors.textform import TextForm
from streamdp.data.records import Batch, DeadLetter, Encoder, by_position
from streamdp.errors import SourceError, check_path

_BOM = codecs.BOM_UTF8
_ARRAY = re.compile(rb"\s*\[\s*\{")


class CSVSource(RecordFile):
    """A CSV file with a header, quoted as RFC 4180 says; a `records.Source`.

    The header holds the encoder's columns in any order, and others, which are ignored. Lines end in LF or CRLF. A row
    number counts records, and the header is 1: it is the line number as long as no field holds a line end. The file at
    `path` is plain or packed, or `-` for standard input. The delimiter is one ASCII character; by default a tab if the
    name ends in `.tsv`, else a comma. With `follow`, the source waits for more at the end of a plain file that grows,
    until `close()`. With `keep_payload`, the raw bytes of bad records, which are personal data, are in their dead
    letters. `form` is how the text differs from UTF-8 with a header first.

    `TooManyBadRecordsError` is raised if more than `max_bad_share` (in [0, 1]; None: never) of the records so far
    became dead letters and they are 100 or more, or if a file ends without one good record.

    Raises `SourceError` if the file cannot be opened and `SchemaError` if its header lacks a column. A record that
    cannot be used is a dead letter: `empty_line`, `too_few_fields`, `too_many_fields`, `not_utf8`, `malformed_quotes`
    (the record is then its first line, and reading goes on with the next), `too_long`, or a reason of the encoder.
    """

    _grammar: CSVGrammar

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoder: Encoder,
        *,
        delimiter: str | None = None,
        follow: bool = False,
        max_bad_share: float | None = 0.05,
        keep_payload: bool = False,
        form: TextForm | None = None,
    ) -> None:
        path = check_path("path", path)
        self._grammar = CSVGrammar(usual_delimiter(path) if delimiter is None else delimiter, encoder.columns)
        super().__init__(
            path, encoder, follow=follow, max_bad_share=max_bad_share, keep_payload=keep_payload, form=form
        )

    def _decode(self, records: Records, rows: np.ndarray) -> Batch:
        return CSVDecoder(self._grammar, self._encoder).decode(records, rows)


class CSVDecoder:
    """Decodes records of CSV that a `grammar` has cut, whose header it has read, for an `encoder`."""

    def __init__(self, grammar: CSVGrammar, encoder: Encoder) -> None:
        self._grammar, self._encoder = grammar, encoder

    def decode(self, records: Records, rows: np.ndarray) -> Batch:
        """Plain records by polars; by hand the others, and those in which polars could not read a number.

        The fast way may refuse more records than the slow one. It never accepts more, nor reads another value.
        """
        everything = np.ones(len(rows), dtype=bool)
        frame, complete, plain = None, False, everything
        if self._grammar.may_be_plain(records):
            frame, complete = self._parse(records, everything)
        if not complete:
            # If the number of delimiters is right and each last field has a value, each record has all its fields.
            # Otherwise count them, because polars accepts short and long records silently.
            plain = self._grammar.plain(records) & _utf8(records)
            if frame is None or not plain.all():
                frame, _ = self._parse(records, plain)
        if frame is None:
            return self._decode_by_hand(records, rows, everything)
        suspect = np.zeros(frame.height, dtype=bool)
        for name in self._encoder.numeric_columns:
            column = frame.get_column(name)
            if column.null_count():
                suspect |= column.is_null().to_numpy()
        if not suspect.any() and plain.all():
            return self._encoder.encode(frame, rows, {})
        plain[np.flatnonzero(plain)[suspect]] = False
        batch = self._encoder.encode(frame.filter(~suspect), rows[plain], {})
        return merge(batch, self._decode_by_hand(records, rows, ~plain))

    def _parse(self, records: Records, which: np.ndarray) -> tuple[pl.DataFrame | None, bool]:
        """Some records by polars, declared columns only; None if it does not find the same number of records.

        Also whether each record has a value in its last field, declared or not.
        """
        data = records.data
        if not which.all():
            lengths = np.diff(records.ends, prepend=0)
            data = np.frombuffer(data, np.uint8)[np.repeat(which, lengths)].tobytes()
        if not data:
            return None, False
        numeric = self._encoder.numeric_columns
        types: dict[str, type[pl.DataType]] = dict.fromkeys(map(str, range(self._grammar.width)), pl.String)
        types |= {str(place): pl.Float64 for c, place in self._grammar.places.items() if c in numeric}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frame = pl.read_csv(
                    data,
                    has_header=False,
                    schema=types,
                    columns=sorted({*self._grammar.places.values(), self._grammar.width - 1}),
                    separator=self._grammar.delimiter,
                    quote_char='"' if b'"' in data else None,
                    ignore_errors=True,
                )
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None, False
        if frame.height != np.count_nonzero(which):
            return None, False
        complete = not frame.get_column(str(self._grammar.width - 1)).null_count()
        frame = frame.select(pl.col(str(place)).alias(c) for c, place in self._grammar.places.items())
        return frame, complete

    def _decode_by_hand(self, records: Records, rows: np.ndarray, which: np.ndarray) -> Batch:
        """Some records one by one: their fields, or the reasons why they have none."""
        indices = np.flatnonzero(which).tolist()
        kept: list[int] = []
        values: list[list[str]] = []
        dead: list[DeadLetter] = []
        for i, raw in zip(indices, records.raw(indices), strict=True):
            fields, reason = self._grammar.read(raw, records.flaws.get(i))
            if reason is None:
                kept.append(i)
                values.append(fields)
            else:
                dead.append(DeadLetter(int(rows[i]), reason))
        frame = pl.DataFrame(
            {c: [fields[place] for fields in values] for c, place in self._grammar.places.items()},
            schema=dict.fromkeys(self._grammar.places, pl.String),
        )
        batch = self._encoder.encode(frame, rows[kept], {})
        return replace(batch, dead=by_position([*batch.dead, *dead]))


def _utf8(records: Records) -> np.ndarray:
    """(n,) bool: all True if the records are UTF-8; else True for those that are ASCII."""
    try:
        records.data.decode()
    except UnicodeDecodeError:
        high = np.frombuffer(records.data, np.uint8) >= 128
        return ~np.logical_or.reduceat(high, records.starts)
    return np.ones(len(records.ends), dtype=bool)


class Lines(Grammar):
    """Lines without a header, but perhaps a byte order mark."""

    header_rows = 0
    head = ""

    def read_header(self, data: bytes, ended: bool) -> int | None:
        """See `recordblocks.Grammar.read_header`. Raises `SourceError` for a JSON array of objects."""
        if _BOM.startswith(data) and data != _BOM and not ended:
            return None
        if _ARRAY.match(data.removeprefix(_BOM)):
            raise SourceError(
                "the file holds one JSON array: expected JSON lines, one object on each line; convert it, as"
                " `jq -c '.[]' FILE > FILE.jsonl` does"
            )
        return len(_BOM) if data.startswith(_BOM) else 0

    def split(self, data: bytes, ended: bool) -> Records:
        return cut_lines(data)


class JSONLSource(RecordFile):
    """A file of JSON objects, one a line; each has the encoder's columns as keys. A `records.Source`.

    The parameters are those of `CSVSource`. A row number is a line number. Raises `SourceError` if the file cannot be
    opened. A line that cannot be used is a dead letter; its reasons are those of `jsonrows.encode_json`, of the
    encoder, and `too_long`.
    """

    _grammar = Lines()

    def _decode(self, records: Records, rows: np.ndarray) -> Batch:
        return encode_json_lines(records, rows, self._encoder)
