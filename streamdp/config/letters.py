"""What a source does with records that do not fit the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from streamdp.config.settings import Settings
from streamdp.runtime.defaults import BAD_SHARE

if TYPE_CHECKING:
    from connectors.letterfile import DeadLetterFile


class DeadLettersConfig(Settings):
    """Where the positions of bad records are kept.

    - `dead_letters`: a file for the positions of bad records. None: they are only counted.
    """

    dead_letters: str | None = None

    def build_dead_letters(self) -> DeadLetterFile | None:
        """The file of dead letters. None if there is none. Raises `SourceError` if it cannot be written."""
        from connectors.letterfile import DeadLetterFile

        return None if self.dead_letters is None else DeadLetterFile(self.dead_letters)


class BadRecordsConfig(DeadLettersConfig):
    """Bad records: the share that stops a run, and what is kept of them. See `DeadLettersConfig`.

    Parameters
    ----------
    max_bad_share
        Stop if the share of records that do not fit the schema, from 0 to 1, is larger. The first records decide before
        anything is spent. None: no limit.
    keep_payload
        Whether dead letters hold the raw bad records, which are personal data.
    """

    max_bad_share: float | None = Field(default=BAD_SHARE, ge=0, le=1)
    keep_payload: bool = False

    @model_validator(mode="after")
    def _has_place(self) -> Self:
        if self.keep_payload and not any(getattr(self, place, None) for place in ("dead_letters", "dead_letter_topic")):
            raise ValueError("keep_payload needs dead_letters, or another place for the payloads")
        return self
