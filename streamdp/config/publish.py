"""Where the committed model is published: files, and sinks of other systems. They write secrets as sources do."""

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import BeforeValidator, Field

from streamdp.config.kafka import KafkaClientConfig
from streamdp.config.settings import PROXY, Secret, Settings, by_type, like, secret
from streamdp.errors import ConfigError, needs

if TYPE_CHECKING:
    from connectors.sinks import Sink, TableSink, TopicSink, WebhookSink


class SinkConfig(Settings):
    """A sink of published documents. `needs` is the module that it needs, and the extra that has it."""

    needs: ClassVar[tuple[str, str] | None] = None
    type: str

    @property
    def name(self) -> str:
        """What messages call the sink."""
        raise NotImplementedError

    def build(self) -> "Sink":
        """Connect."""
        raise NotImplementedError

    def check_installed(self) -> None:
        """Raise `ConfigError` if what it needs is not installed."""
        if self.needs is not None and find_spec(self.needs[0]) is None:
            raise ConfigError(needs(f"publish: a sink of type: {self.type}", self.needs[1]))


class TableConfig(SinkConfig):
    """A table of a PostgreSQL database, with each commit once. See `connectors.sinks.TableSink`.

    - `url`: the database, `postgresql://USER@HOST/DATABASE`, as PostgreSQL's own clients write it.
    - `table`: the name of the table, with its schema and a dot in front or without. It is created if it does not exist.
    - `password`: `{env: NAME}` or `{file: PATH}`. None: as PostgreSQL's own clients find it.
    """

    needs = ("psycopg", "postgres")
    type: Literal["postgresql"]
    url: str = Field(pattern=like(r"^postgres(ql)?://[^?]*(\?.*)?$", "an address, as postgresql://USER@HOST/DATABASE"))
    table: str = Field(pattern=like(r"^\w+(\.\w+)?$", "a table, as TABLE or SCHEMA.TABLE"), max_length=127)
    password: Secret | None = None

    @property
    def name(self) -> str:
        return f"the table {self.table}"

    def build(self) -> "TableSink":
        """Connect."""
        from connectors.sinks import TableSink

        return TableSink(self.url, self.table, secret("publish.password", self.password))


class TopicConfig(KafkaClientConfig, SinkConfig):
    """A topic of Kafka, which may be compacted: the key is the job. See `connectors.sinks.TopicSink`.

    - `brokers`, `options`: see `KafkaClientConfig`.
    """

    needs = ("kafka", "kafka")
    type: Literal["kafka"]
    topic: str = Field(min_length=1)

    @property
    def name(self) -> str:
        return f"the topic {self.topic}"

    def build(self) -> "TopicSink":
        """Connect."""
        from connectors.sinks import TopicSink

        return TopicSink(self.topic, self.servers, self.security_options())


class WebhookConfig(SinkConfig):
    """An address that gets each published commit by POST. See `connectors.sinks.WebhookSink`.

    - `url`: the address. Nothing follows its redirections.
    - `token`: `{env: NAME}` or `{file: PATH}` of a bearer token. None: no authentication.
    - `proxy`: the address of a proxy to send them through. None: no proxy, whatever the environment says.
    """

    needs = ("httpx", "webhook")
    type: Literal["webhook"]
    url: str = Field(pattern=like(r"^https?://[^/@?#]+(/[^@#]*)?$", "an address without a login, as https://HOST/PATH"))
    token: Secret | None = None
    proxy: str | None = Field(default=None, pattern=PROXY)

    @property
    def name(self) -> str:
        return f"the webhook of {urlsplit(self.url).netloc}"

    def build(self) -> "WebhookSink":
        """Make the client."""
        from connectors.sinks import WebhookSink

        token = secret("publish.token", self.token)
        return WebhookSink(self.url, {} if token is None else {"Authorization": f"Bearer {token}"}, self.proxy)


SINKS: dict[str, object] = {"postgresql": TableConfig, "kafka": TopicConfig, "webhook": WebhookConfig}
"""The settings of each type of sink. A package adds a `SinkConfig` by an entry point of the group `streamdp.sinks`."""
SINKS |= {found.name: found.load() for found in entry_points(group="streamdp.sinks")}


def _of_url(value: object) -> object:
    """The settings of a sink that is written as a URL: that of a webhook, or of a database with the table."""
    if not isinstance(value, str) or "://" not in value:
        return value
    parts = urlsplit(value)
    if parts.scheme in ("http", "https"):
        return {"type": "webhook", "url": value}
    if parts.scheme not in ("postgres", "postgresql") or not (table := parse_qs(parts.query).get("table")):
        raise ValueError("expected a file, postgresql://USER@HOST/DATABASE?table=NAME, https://HOST/PATH or a mapping")
    kept = [pair for pair in parts.query.split("&") if not pair.startswith("table=")]
    return {"type": "postgresql", "url": parts._replace(query="&".join(kept)).geturl(), "table": table[-1]}


def _listed(value: object) -> object:
    return [] if value is None else value if isinstance(value, list) else [value]


if TYPE_CHECKING:
    Place = str | SinkConfig
else:
    Place = Annotated[by_type({"file": str} | SINKS, ""), BeforeValidator(_of_url)]
Places = Annotated[list[Place], BeforeValidator(_listed, json_schema_input_type=Place | list[Place] | None)]
"""A place, or several."""
