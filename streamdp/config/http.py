"""The parts of a job configuration for the HTTP service: the source of requests, and who may use the job."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from streamdp.config.kafka import KafkaClientConfig
from streamdp.config.settings import DeadLettersConfig, Settings
from streamdp.data.records import Position

if TYPE_CHECKING:
    from connectors.reporttopic import ReportTopic

COMMIT_SECONDS = 0.05
"""The default of `commit.seconds` for a job that learns from requests: they wait for their commit."""
BATCH_SECONDS = 2.0
"""The same for sums: each commit ends a batch, and each batch adds noise."""

MOST_SHARDS = 16
"""The default of `shards`: as many as `benchmarks/shards.md` measures."""

Scope = Literal["read", "predict", "learn", "report", "metrics"]


class CallsConfig(DeadLettersConfig):
    """What `streamdp serve` learns by itself. See `connectors.http`, and `DeadLettersConfig` for its setting.

    - `remember_hours`: how long the keys of calls and the ids of records are remembered, in hours: a retry within this
      time counts once.
    - `label_wait_seconds`, `label_wait_records`: how long the features of a prediction with an id wait in memory for
      their label, in seconds, and how many.
    - `queue_records`: how many records may wait for their commit. Calls beyond it are refused with 429.
    - `max_staleness`: how many versions old the document may be that a device's report answers. Older reports are dead
      letters.
    """

    own_budgets = True

    remember_hours: float = Field(default=24.0, gt=0, le=24 * 366)
    label_wait_seconds: float = Field(default=3600.0, gt=0)
    label_wait_records: int = Field(default=100_000, ge=0)
    queue_records: int = Field(default=100_000, ge=10_000)
    max_staleness: int = Field(default=100, ge=0, le=100_000)

    @property
    def most_shards(self) -> int:
        """How many services may learn the job at the same time."""
        return getattr(self, "shards", 1)


class HTTPSourceConfig(CallsConfig):
    """Records and reports that come by requests to `streamdp serve`. See `CallsConfig` for the other settings.

    - `shards`: how many services may learn the job at the same time, if its store is on a server. Each has a shard of
      its own, and the model is their average. Further services wait for a shard.
    """

    type: Literal["http"]
    shards: int = Field(default=MOST_SHARDS, ge=1, le=1000)


class ReportsSourceConfig(CallsConfig, KafkaClientConfig):
    """A topic of devices' reports, which `streamdp serve` reads beside the requests. See `connectors.reporttopic`.

    - `brokers`, `options`: see `KafkaClientConfig`.
    - `topic`: the topic. Each message is one report as JSON; see docs/reports.md.
    """

    type: Literal["kafka"]
    content: Literal["reports"]
    topic: str = Field(min_length=1)

    def build_topic(self, position: Position) -> "ReportTopic":
        """Open the topic at a `position` (see `ReportTopic`). Needs the extra `kafka`.

        Raises the errors of `ReportTopic`, and `ConfigError` if no brokers are named.
        """
        from connectors.reporttopic import ReportTopic

        return ReportTopic(self.topic, self.servers, self.client_options(), position)


class TokenConfig(Settings):
    """A bearer token of the service, as its digest.

    - `sha256`: the SHA-256 of the token, in hexadecimal.
    """

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = Field(min_length=1)


class ServiceConfig(Settings):
    """Who may use a job over HTTP.

    - `tokens`: the tokens of this job. Without tokens, here or in STREAMDP_TOKENS, the service listens on loopback
      only.
    - `origins`: the origins of web pages that may use the job (CORS), such as `https://example.org`.
    """

    tokens: tuple[TokenConfig, ...] = ()
    origins: tuple[str, ...] = ()

    @field_validator("origins")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any("*" in origin or "://" not in origin or origin.count("/") > 2 for origin in value):
            raise ValueError("expected origins such as https://example.org, without a path and without *")
        return value
