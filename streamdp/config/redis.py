"""The source part of a job configuration that reads a Redis stream."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from streamdp.config.settings import ReadConfig, Secret, like, secret

if TYPE_CHECKING:
    from connectors.redis import RedisSource
    from streamdp.data.records import Encoder


class RedisSourceConfig(ReadConfig):
    """A stream of Redis 7 or later, of which one run learns. Needs the extra `redis`. See `connectors.redis`.

    - `url`: `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.
    - `user`: the user of the server. None: its default user.
    - `password`: `{env: NAME}` or `{file: PATH}`. None: no authentication.
    - `follow`: whether to wait for more entries at the end of the stream.
    - `max_bad_share`, `dead_letters`, `keep_payload`: see `BadRecordsConfig`. The position of an entry in
      `dead_letters` is its number in the stream.
    """

    type: Literal["redis"]
    url: str = Field(pattern=like(r"^rediss?://[^/@?#]+(/\d*)?$", "an address without a login, as redis://HOST:6379/0"))
    stream: str = Field(min_length=1)
    user: str | None = Field(default=None, min_length=1)
    password: Secret | None = None

    @property
    def name(self) -> str:
        """What messages call the source."""
        return self.stream

    def build(self, encoder: "Encoder") -> "RedisSource":
        """Make the source, whose columns the `encoder` reads.

        Raises `ConfigError` if the password cannot be read, and the errors of `connectors.redis.RedisSource`.
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
