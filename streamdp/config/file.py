"""The source part of a job configuration that reads a file."""

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from streamdp.config.settings import ReadConfig
from streamdp.data.notation import Notation
from streamdp.data.records import PACKED, Encoder
from streamdp.errors import SourceError, file_errors

if TYPE_CHECKING:
    from connectors.recordfile import FileList, RecordFile
    from connectors.textform import TextForm


WRITTEN = frozenset(("delimiter", "encoding", "skip_lines", "comment", "decimal", "thousands", "units"))
"""The settings that say how the text of a file is written."""
STANDARD_INPUT = "standard input"
FileType = Literal["csv", "jsonl", "parquet", "arrow"]

_ENDINGS: dict[FileType, tuple[str, ...]] = {
    "csv": (".csv", ".tsv", ".txt"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
}


def file_type(path: str) -> FileType:
    """The type of a data file, or of the first one in a folder, from the ending of its name.

    Unknown endings of `path` mean CSV; a file that ends in `.json` is read as JSON lines. It may be compressed. A
    folder of an object store has Parquet files.
    """
    if "://" in path and path.endswith("/"):
        return "parquet"
    if re.sub(PACKED, "", path).endswith(".json"):
        return "jsonl"  # not in `_ENDINGS`: in a folder of data, such a file may be about the data
    names = sorted(name for name in os.listdir(path) if _known(name)) if os.path.isdir(path) else [path]
    return next((kind for name in names[:1] if (kind := _known(name)) is not None), "csv")


def stem(path: str) -> str:
    """The name of a file or a folder at `path` without its endings, by which a job is named."""
    name = os.path.basename(os.path.abspath(path))  # also of the folder .
    return name.split(".")[0] or name


def _known(name: str) -> FileType | None:
    """The type of a file by its ending; None for an unknown one and for hidden files."""
    name = re.sub(PACKED, "", os.path.basename(name))
    hidden = name.startswith((".", "_"))
    return next((kind for kind, endings in _ENDINGS.items() if name.endswith(endings) and not hidden), None)


def tab(value: object) -> Any:
    r"""Convert the two characters `\t` to a tab, because they are easier to type in a shell.

    Any other `value` is returned unchanged.
    """
    return "\t" if value == r"\t" else value


def _names(value: object) -> object:
    """Check both forms of a path here, for one error and not two."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ValueError("expected the name of a file or a folder, or a list of names")
    return value


class FileSourceConfig(ReadConfig):
    r"""Files, one after another, or standard input. See `connectors.files` and `connectors.tables`.

    - `type`: the format of the files; CSV and JSONL files may be packed by gzip or Zstandard.
    - `path`: the file, or `-` for standard input; a list of files; or a folder: its files with an ending of the type,
      in the order of their names. Files may be added at the end. For `type: parquet`, an address in an object store,
      such as `s3://BUCKET/FOLDER/` or `gs://BUCKET/FILE.parquet`, whose credentials come from the environment.
    - `follow`: whether to wait for more records at the end of the file.
    - `delimiter`: the character between the fields of a CSV file. None: a tab if its name ends in `.tsv`, else a comma.
      The text `\t` means a tab.
    - `encoding`: the encoding of CSV and JSONL files, such as `latin-1`, `cp1252` or `utf-16`. None: UTF-8.
    - `skip_lines`: how many lines to pass over before the header, or before the first object.
    - `comment`: lines that begin with this text are passed over. No quoted field may have such a line.
    - `decimal`, `thousands`: how numbers are written in a CSV file: the decimal mark, and what is between groups of
      digits, if anything.
    - `units`: texts before or after the numbers of a CSV file that are passed over, such as `[CHF, "%"]`: 12 % is 12.
    - `max_bad_share`, `dead_letters`, `keep_payload`: see `BadRecordsConfig`.
    """

    type: FileType = "csv"
    path: Annotated[str | list[str], BeforeValidator(_names)]
    delimiter: Annotated[str | None, BeforeValidator(tab)] = Field(default=None, min_length=1, max_length=1)
    encoding: str | None = None
    skip_lines: int = Field(default=0, ge=0)
    comment: str | None = Field(default=None, min_length=1)
    decimal: Literal[".", ","] = "."
    thousands: Literal[".", ",", " ", "'", "_"] | None = None
    units: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.delimiter is not None and self.type != "csv":
            raise ValueError("delimiter is for type: csv")
        if self.notation is not None and self.type != "csv":
            raise ValueError("decimal, thousands and units are for type: csv")
        if self.form is not None and self.type not in ("csv", "jsonl"):
            raise ValueError("encoding, skip_lines and comment are for type: csv or jsonl")
        if self.follow and (self.path == "-" or isinstance(self.path, list) or self.type not in ("csv", "jsonl")):
            raise ValueError("follow is for one CSV or JSONL file, which grows")
        if self.path == "-" and self.type not in ("csv", "jsonl"):
            raise ValueError("standard input is of type csv or jsonl")
        if isinstance(self.path, list) and ("-" in self.path or len(set(self.path)) < len(self.path)):
            raise ValueError("expected a list of different files")
        return self

    def for_file(self, path: str) -> "FileSourceConfig":
        """The configuration for a public file at `path` with the same kind of records."""
        return self.model_copy(update={"path": path, "follow": False, "dead_letters": None, "keep_payload": False})

    @property
    def written(self) -> dict[str, object] | None:
        """The settings that say how the text is written; None if it is CSV as usual."""
        return self.model_dump(include={"type", *WRITTEN}, exclude_defaults=True) or None

    @property
    def form(self) -> "TextForm | None":
        """How the text differs from UTF-8 with a header first; None if it does not."""
        if (self.encoding, self.skip_lines, self.comment) == (None, 0, None):
            return None
        from connectors.textform import TextForm

        return TextForm(self.encoding, self.skip_lines, self.comment)

    @property
    def notation(self) -> Notation | None:
        """How numbers are written; None: as Python writes them."""
        found = Notation(self.decimal, self.thousands, self.units)
        return None if found == Notation(".") else found

    @property
    def paths(self) -> list[str]:
        """The files, or the folder."""
        return self.path if isinstance(self.path, list) else [self.path]

    @property
    def name(self) -> str:
        """What messages call the source."""
        if self.path == "-":
            return STANDARD_INPUT
        return ", ".join(self.paths[:3]) + (", ..." if len(self.paths) > 3 else "")

    def build(self, encoder: Encoder) -> "RecordFile | FileList":
        """Open the source; the `encoder` converts raw columns to numbers.

        Raises `SourceError` if the file cannot be read, and `SchemaError` for a header that lacks a declared column.
        """
        if isinstance(self.path, str) and not (os.path.isdir(self.path) or self._stored_folder):
            return self._build_one(self.files()[0], encoder)
        from connectors.recordfile import FileList

        return FileList(self.files(), partial(self._build_one, encoder=encoder))

    def files(self) -> list[str]:
        """The files, in order. Raises `SourceError` for a URL, and for a folder without files of the type."""
        stored = self.type == "parquet" and not any(path.startswith("http") for path in self.paths)
        if not stored and any(re.match(r"[a-z0-9]+://", path) for path in self.paths):
            raise SourceError(
                "expected a file of this machine, or Parquet files of an object store, such as s3://BUCKET/FOLDER/, got"
                " another URL: a run that is interrupted must find the same records again; download the file, as with"
                " curl -O"
            )
        if self._stored_folder:
            from connectors.tables import stored_tables

            if not (names := list(filter(_known, stored_tables(self.paths[0], ".parquet")))):
                raise SourceError(f"{self.path} has no file with records that ends in .parquet")
            return names
        if isinstance(self.path, list) or not os.path.isdir(self.path):
            return self.paths
        if self.follow:
            raise SourceError(f"cannot follow {self.path}: it is a folder, and follow needs a file")
        with file_errors(SourceError, f"cannot read {self.path}"):
            names = [name for name in sorted(os.listdir(self.path)) if _known(name) == self.type]
        if not names:
            endings = ", ".join(_ENDINGS[self.type])
            raise SourceError(f"{self.path} has no file that ends in {endings}; check source.type")
        return [os.path.join(self.path, name) for name in names]

    @property
    def _stored_folder(self) -> bool:
        return isinstance(self.path, str) and "://" in self.path and self.path.endswith("/")

    def _build_one(self, path: str, encoder: Encoder) -> "RecordFile":
        given: dict[str, Any] = {"keep_payload": self.keep_payload, "max_bad_share": self.max_bad_share}
        if self.type in ("parquet", "arrow"):
            from connectors.tables import TableSource

            return TableSource(path, encoder, kind=self.type, **given)
        from connectors.files import CSVSource, JSONLSource

        given |= {"follow": self.follow, "form": self.form}
        if self.type == "jsonl":
            return JSONLSource(path, encoder, **given)
        if self.notation is not None:
            encoder = encoder.reading(self.notation)
        return CSVSource(path, encoder, delimiter=self.delimiter, **given)
