"""The part of a job in writing that reads a file, and what it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from streamdp.config.settings import Settings

if TYPE_CHECKING:
    from connectors.files import DeadLetterFile
    from streamdp.data.records import Encoder, Source


def tab(value: Any) -> Any:
    r"""A tab for the two characters `\t`, which is how people type it in a shell."""
    return "\t" if value == r"\t" else value


class FileSourceConfig(Settings):
    """Where the records come from; `path` is a file, or `-` for standard input. See `connectors.files`.

    `max_bad_share` may be null for no limit; `keep_payload` puts raw bad records, personal data, into `dead_letters`.
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
            raise ValueError("keep_payload needs dead_letters, the file to keep them in")
        return self

    def for_file(self, path: str) -> FileSourceConfig:
        """How a public file of the same records is read."""
        return self.model_copy(update={"path": path, "follow": False, "dead_letters": None, "keep_payload": False})

    def build(self, encoder: Encoder) -> Source:
        """Open the source. Raises `SourceError`, and `SchemaError` for a header that lacks a declared column."""
        from connectors.files import CSVSource, JSONLSource

        given: dict[str, Any] = {"follow": self.follow, "keep_payload": self.keep_payload}
        if "max_bad_share" in self.model_fields_set:
            given["max_bad_share"] = self.max_bad_share
        if self.type == "jsonl":
            return JSONLSource(self.path, encoder, **given)
        return CSVSource(self.path, encoder, delimiter=self.delimiter or ",", **given)

    def build_dead_letters(self) -> DeadLetterFile | None:
        """The file of dead letters, if there is to be one. Raises `SourceError` where it cannot be written."""
        from connectors.files import DeadLetterFile

        return None if self.dead_letters is None else DeadLetterFile(self.dead_letters)
