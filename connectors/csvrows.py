"""Rows of a CSV file as text, for commands that do not encode records.

`files.CSVSource`, `streamdp predict` and `streamdp produce` take a CSV file apart by one grammar, `csvgrammar`, so that
they agree. A record is unusable for the same reasons everywhere: a source makes it a dead letter, `predict` writes it
without a prediction, `produce` stops with an error. A row number counts records, and the header is 1.

Two rules differ: a source makes a dead letter of an empty line, and here it is skipped; a source does not read a last
record without an end, because it may learn a part of it, and here it counts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from connectors.csvgrammar import CSVGrammar, usual_delimiter
from connectors.recordblocks import RecordBlocks, Records
from connectors.textform import TextForm
from streamdp.errors import SchemaError

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
    def header(self) -> list[str]:
        """The fields of the header as they are written, but for the byte order mark."""
        return self.grammar.header

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [name.strip() for name in self.header]

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
