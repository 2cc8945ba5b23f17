"""The source part of a job configuration that reads a Redis stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from streamdp.config.kafka import secret
from streamdp.config.settings import Settings
from streamdp.runtime.defaults import BAD_SHARE

if TYPE_CHECKING:
    from connectors.letterfile import DeadLetterFile
    from connectors.redis import RedisSource
    from streamdp.data.records import Encoder


class RedisSourceConfig(Settings):
    """A stream of Redis 7 or later, of which one run learns. Needs the extra `redis`. See `connectors.redis`.

    Parameters
    ----------
    url
        `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.
    stream
        The name of the stream.
    user
        The user of the server. None: its default user.
    password
        `{env: NAME}` or `{file: PATH}`. None: no authentication.
    follow
        Whether to wait for more entries at the end of the stream.
    max_bad_share
        Stop a job that has learned nothing, before anything is spent, if a larger share, from 0 to 1, of the entries
        before the first commit does not fit the schema. None: no limit.
    dead_letters
        A file for the positions of bad entries: their numbers in the stream. None: they are only counted.
    keep_payload
        Whether `dead_letters` holds the bad entries, which are personal data.
    """

    type: Literal["redis"]
    url: str = Field(pattern=r"^rediss?://[^/@?#]+(/\d*)?$")
    stream: str = Field(min_length=1)
    user: str | None = Field(default=None, min_length=1)
    password: dict[Literal["env", "file"], str] | None = Field(default=None, min_length=1, max_length=1)
    follow: bool = False
    max_bad_share: float | None = Field(default=BAD_SHARE, ge=0, le=1)
    dead_letters: str | None = None
    keep_payload: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keep_payload and self.dead_letters is None:
            raise ValueError("keep_payload needs dead_letters, the file for the payloads")
        return self

    @property
    def name(self) -> str:
        """What messages call the source."""
        return self.stream

    def build(self, encoder: Encoder) -> RedisSource:
        """Make the source, whose columns the `encoder` reads; it connects with the first poll.

        Raises `ConfigError` if the password cannot be read.
        """
        from connectors.redis import RedisSource

        return RedisSource(
            self.url,
            self.stream,
            encoder,
            follow=self.follow,
            keep_payload=self.keep_payload,
            username=self.user,
            password=secret("source.password", self.password),
        )

    def build_dead_letters(self) -> DeadLetterFile | None:
        """See `FileSourceConfig.build_dead_letters`."""
        from connectors.letterfile import DeadLetterFile

        return None if self.dead_letters is None else DeadLetterFile(self.dead_letters)
