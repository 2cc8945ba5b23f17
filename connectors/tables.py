"""Parquet and Arrow files as sources. polars reads them; here is what a source needs beside it.

The columns become the texts and numbers that a CSV file with the same values would have, so that one schema fits both.
"""

import contextlib
import glob
import json
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl

from connectors.recordblocks import Blocks, Records
from connectors.recordfile import RecordFile
from streamdp.data.records import FLOATS, Batch, Encoder
from streamdp.errors import SchemaError, SourceError, suggestion

_BLOCK_ROWS, _MOST_ROWS, _BLOCK_VALUES = 65_536, 131_072, 1 << 21
"""A block of a table of few columns has more rows: polars unpacks the rows before a slice again."""

_LOOKED_AT = 1_000
_DIGITS = 38
"""polars reads decimals of so many digits."""


@dataclass(frozen=True, slots=True)
class TableRows(Records):
    """n rows of a table with the encoder's columns; see `recordblocks.Records`, of which the data are empty."""

    frame: pl.DataFrame = field(kw_only=True)

    @classmethod
    def of(cls, frame: pl.DataFrame) -> "TableRows":
        """The rows of a frame."""
        return cls(b"", np.arange(1, frame.height + 1), {}, frame=frame)

    def raw(self, rows: Iterable[int]) -> list[bytes]:
        """See `Records.raw`: the values of a row as a JSON array."""
        return [json.dumps(self.frame.row(i), ensure_ascii=False).encode() for i in rows]

    def after(self, count: int) -> "TableRows":
        return TableRows.of(self.frame.slice(count))


class _TableBlocks(Blocks):
    header_rows = 0
    has_header = True
    unended = False

    def __init__(self, path: str, kind: str, encoder: Encoder) -> None:
        self.name = path
        self.row = 0
        self._kind = kind
        self._table, types, self._height = _open(path, kind)
        try:
            self._columns = [
                _text(self._table, types, name, name in encoder.numeric_columns, name == encoder.subject)
                for name in encoder.columns
            ]
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None
        self._rows = min(_MOST_ROWS, max(_BLOCK_ROWS, _BLOCK_VALUES // len(self._columns)))
        self.head = blake2b(repr([*types.items()]).encode(), digest_size=8).hexdigest()

    @property
    def share(self) -> float:
        return self.row / self._height if self._height else 1.0

    @property
    def finished(self) -> bool:
        return self.row >= self._height

    def next(self, timeout_s: float) -> Records | None:
        if self.finished:
            return None
        frame = None
        with contextlib.suppress(*_FAULTS):  # they may have values in their messages
            frame = self._table.slice(self.row, self._rows).select(self._columns).collect()
        if frame is None:
            raise _damaged(self.name, self._kind)
        self.row += frame.height
        return TableRows.of(frame)

    def close(self) -> None:
        pass


_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, NotImplementedError)
"""What polars raises at a file that it cannot read."""
_MAGIC = {"parquet": b"PAR1", "arrow": b"ARROW1"}
"""The first and last bytes of a whole file."""
_OFFSET = re.compile("([+-])([0-9]{2}):?([0-9]{2})")

# Else polars panics at a column in such an offset, be it used or not. It may be set after polars was imported.
os.environ.setdefault("POLARS_IGNORE_TIMEZONE_PARSE_ERROR", "1")


def _open(path: str, kind: str) -> tuple[pl.LazyFrame, pl.Schema, int]:
    """The table, the types of its columns and its number of rows."""
    if "://" not in path and not os.path.exists(path):
        raise SourceError(f"cannot open {path}: no such file or directory")
    with contextlib.suppress(*_FAULTS):
        table = pl.scan_parquet(path, glob=False) if kind == "parquet" else pl.scan_ipc(glob.escape(path))
        return table, table.collect_schema(), int(table.select(pl.len()).collect().item())
    raise _damaged(path, kind)


def stored_tables(folder: str, ending: str) -> list[str]:
    """The Parquet files with an `ending` in a `folder` of an object store, in the order of their names.

    Files without a row are left out. Raises `SourceError` if the store cannot be read.
    """
    with contextlib.suppress(*_FAULTS):
        table = pl.scan_parquet(f"{folder}*{ending}", include_file_paths=_NAME, hive_partitioning=False)
        return sorted(table.select(pl.col(_NAME).unique()).collect().get_column(_NAME).to_list())
    raise _damaged(folder, "parquet")


_NAME = "the name of the file"


def _damaged(path: str, kind: str) -> SourceError:
    if "://" in path:
        return SourceError(
            f"{path} cannot be read: check the address, the credentials, which come from the environment, and whether"
            f" there are whole {kind} files of one schema"
        )
    magic = _MAGIC[kind]
    with contextlib.suppress(OSError), open(path, "rb") as file:
        head = file.read(len(magic))
        file.seek(-len(magic), os.SEEK_END)
        if head == magic == file.read():
            return SourceError(
                f"{path} cannot be read: it has two columns of one name, or a column of a type that is not read"
                " (intervals, unions, views of lists, run-end encoding), or is damaged: write it again without it"
            )
    return SourceError(f"{path} is no {kind} file, or is damaged: check source.type, or write it again")


_NO_VALUES: dict[type | tuple[type, ...], str] = {
    pl.Struct: "parts: declare the path to a value in it, with dots",
    (pl.List, pl.Array): "lists",
    pl.Duration: "durations: write them as numbers, such as seconds",
    pl.Object: "objects",
}
"""What a column of these types holds."""


def _need_values(name: str, kind: pl.DataType) -> None:
    nested = "lists" if kind.is_nested() else None
    if (what := next((what for refused, what in _NO_VALUES.items() if isinstance(kind, refused)), nested)) is not None:
        raise SchemaError(f"{name!r} holds no numbers, texts or dates, but {what}")


def _need_utf8(name: str, column: pl.LazyFrame) -> None:
    """Refuse a column whose first bytes are mostly no text, such as the fixed-size binary of a UUID."""
    first = pl.Series()
    with contextlib.suppress(*_FAULTS):
        first = column.drop_nulls().head(_LOOKED_AT).collect().to_series()
    if 2 * _decoded(first).null_count() > len(first):
        raise SchemaError(f"{name!r} holds bytes that are no text, such as fixed-size binary: write texts, as in hex")


def _decoded(column: pl.Series) -> pl.Series:
    """Bytes as text; null for what is not UTF-8."""
    with contextlib.suppress(pl.exceptions.PolarsError):
        return column.cast(pl.String)
    texts = (None if value is None else value.decode(errors="replace") for value in column)
    return pl.Series(column.name, [None if text and "\ufffd" in text else text for text in texts], pl.String)


def _text(table: pl.LazyFrame, types: pl.Schema, name: str, numeric: bool, subject: bool) -> pl.Expr:
    """A column, or a path into a nested one, as text; as Float64 if it is numeric and wanted so."""
    steps = [name] if name in types else name.split(".")
    found = pl.col(steps[0])
    kind: Any = types.get(steps[0])
    for step in steps[1:]:
        kind = dict(kind.to_schema()).get(step) if isinstance(kind, pl.Struct) else None
        found = found.struct.field(step)
    if kind is None:
        hint = suggestion(name, types.names()) or "; fix the schema"
        raise SchemaError(f"the table lacks the declared {name!r}{hint}")
    _need_values(name, kind)
    if kind == pl.Binary:  # as Hive and Impala write texts
        _need_utf8(name, table.select(found))
        return found.map_batches(_decoded, return_dtype=pl.String).alias(name)
    if subject and (kind.is_float() or (isinstance(kind, pl.Decimal) and kind.scale)):
        raise SchemaError(f"the subject {name!r} is a column of floats: {FLOATS}")
    if isinstance(kind, pl.Decimal) and (kind.precision or 0) > _DIGITS:
        raise SchemaError(f"{name!r} has decimals of {kind.precision} digits: write {_DIGITS} at most, or floats")
    if kind.is_float():
        found = found.fill_nan(None)
    if kind.is_numeric() and numeric:
        return found.cast(pl.Float64).alias(name)
    if isinstance(kind, pl.Datetime):
        return _iso(found, name, kind).alias(name)
    return found.cast(pl.String).alias(name)


def _iso(moments: pl.Expr, name: str, kind: pl.Datetime) -> pl.Expr:
    """Moments as text in ISO 8601: in their own zone, with its offset; without an offset if they have no zone."""
    written, zone = "%Y-%m-%dT%H:%M:%S", kind.time_zone
    if zone is None:
        return moments.dt.strftime(written)
    if offset := _OFFSET.fullmatch(zone):
        sign, hours, minutes = offset.groups()
        ahead = pl.duration(hours=int(sign + hours), minutes=int(sign + minutes))
        moments = moments.cast(pl.Int64).cast(pl.Datetime(kind.time_unit)) + ahead
        return moments.dt.strftime(f"{written}{sign}{hours}:{minutes}")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = None
    if zone is None:
        raise SchemaError(f"{name!r} has times in a zone that is not known: write them in UTC or with an offset")
    return moments.dt.strftime(written + "%:z")


def read_texts(path: str, kind: str, rows: int | None) -> pl.DataFrame:
    """Read the columns of a file that hold numbers, texts or dates, as text; nested ones under their paths.

    `kind` is `parquet` or `arrow`; None for `rows` reads all. Warns of each other column. Raises `SourceError` if the
    file at `path` cannot be read.
    """
    table, types, _ = _open(path, kind)
    columns = []
    for name in _paths(types.items()):
        try:
            columns.append(_text(table, types, name, False, False))
        except SchemaError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    with contextlib.suppress(*_FAULTS):
        return (table if rows is None else table.head(rows)).select(columns).collect()
    raise _damaged(path, kind)


def frame_of(path: str, kind: str, encoder: Encoder) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a whole table, and the columns of an `encoder` as it reads them.

    `kind` is `parquet` or `arrow`. Raises `SourceError` if the file at `path` cannot be read, and `SchemaError` if it
    lacks a column.
    """
    table, types, _ = _open(path, kind)
    columns = [_text(table, types, name, name in encoder.numeric_columns, False) for name in encoder.columns]
    with contextlib.suppress(*_FAULTS):
        whole = table.collect()
        return whole, whole.select(columns)
    raise _damaged(path, kind)


def _paths(types: Iterable[tuple[str, Any]], before: str = "") -> list[str]:
    out = []
    for name, kind in types:
        inner = isinstance(kind, pl.Struct)
        out += _paths(kind.to_schema().items(), f"{before}{name}.") if inner else [before + name]
    return out


class TableSource(RecordFile):
    """A Parquet or Arrow IPC file, by its kind `parquet` or `arrow`; a `records.Source`.

    A row number counts rows from 1. A column of the encoder may be a path into a nested one. For `max_bad_share`
    and `keep_payload` see `files.CSVSource`; a payload is the encoder's columns as a JSON array. Raises
    `SourceError` if the file cannot be opened and `SchemaError` if it lacks a column.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoder: Encoder,
        *,
        kind: str,
        max_bad_share: float | None = 0.05,
        keep_payload: bool = False,
    ) -> None:
        self._kind = kind
        super().__init__(path, encoder, max_bad_share=max_bad_share, keep_payload=keep_payload)

    def _read_blocks(self) -> Blocks:
        return _TableBlocks(self.path, self._kind, self._encoder)

    def _decode(self, records: Records, rows: np.ndarray) -> Batch:
        assert isinstance(records, TableRows)
        return self._encoder.encode(records.frame, rows, {})
