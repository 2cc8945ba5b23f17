"""The source part of a job configuration that reads a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from streamdp.config.settings import Settings

if TYPE_CHECKING:
    from connectors.letterfile import DeadLetterFile
    from connectors.recordfile import RecordFile
    from streamdp.data.records import Encoder


def file_type(path: str) -> Literal["csv", "jsonl"]:
    """The type of a data file, from the ending of its name.

    Parameters
    ----------
    path
        The file, possibly compressed (`.gz`). Other endings than `.jsonl` and `.ndjson` mean CSV.
    """
    return "jsonl" if path.removesuffix(".gz").endswith((".jsonl", ".ndjson")) else "csv"


def tab(value: Any) -> Any:
    r"""Convert the two characters `\t` to a tab, because they are easier to type in a shell.

    Parameters
    ----------
    value
        A delimiter. Other values are returned unchanged.
    """
    return "\t" if value == r"\t" else value


class FileSourceConfig(Settings):
    r"""A CSV or JSONL file, or standard input. See `connectors.files`.

    Parameters
    ----------
    type
        The format of the file.
    path
        The file, or `-` for standard input.
    follow
        Whether to wait for more records at the end of the file.
    delimiter
        The character between the fields of a CSV file, `,` by default. The text `\t` means a tab.
    max_bad_share
        Stop if the share of bad records, from 0 to 1, is larger. None: no limit. Not set: 0.1.
    dead_letters
        A file for the positions of bad records. None: they are only counted.
    keep_payload
        Whether `dead_letters` holds the raw bad records, which are personal data.
    """

    type: Literal["csv", "jsonl"] = "csv"
    path: str
    follow: bool = False
    delimiter: Annotated[str | None, BeforeValidator(tab)] = Field(default=None, min_length=1, max_length=1)
    max_bad_share: float | None = Field(default=None, ge=0, le=1)
    dead_letters: str | None = None
    keep_payload: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.delimiter is not None and self.type != "csv":
            raise ValueError("delimiter is for type: csv")
        if self.follow and self.path == "-":
            raise ValueError("follow is for files; standard input ends when its writer closes it")
        if self.keep_payload and self.dead_letters is None:
            raise ValueError("keep_payload needs dead_letters, the file for the payloads")
        return self

    def for_file(self, path: str) -> FileSourceConfig:
        """The configuration for a public file with the same kind of records.

        Parameters
        ----------
        path
            The public file.
        """
        return self.model_copy(update={"path": path, "follow": False, "dead_letters": None, "keep_payload": False})

    def build(self, encoder: Encoder) -> RecordFile:
        """Open the source.

        Parameters
        ----------
        encoder
            Converts raw columns to numbers.

        Raises `SourceError` if the file cannot be read, and `SchemaError` for a header that lacks a declared column.
        """
        from connectors.files import CSVSource, JSONLSource

        given: dict[str, Any] = {"follow": self.follow, "keep_payload": self.keep_payload}
        if "max_bad_share" in self.model_fields_set:
            given["max_bad_share"] = self.max_bad_share
        if self.type == "jsonl":
            return JSONLSource(self.path, encoder, **given)
        return CSVSource(self.path, encoder, delimiter=self.delimiter or ",", **given)

    def build_dead_letters(self) -> DeadLetterFile | None:
        """The file of dead letters. None if there is none. Raises `SourceError` if it cannot be written."""
        from connectors.letterfile import DeadLetterFile

        return None if self.dead_letters is None else DeadLetterFile(self.dead_letters)
