"""Sinks of published documents: a table of PostgreSQL, a topic of Kafka, a webhook.

A document is sent again after a crash and after a fault. The table has each commit once; the topic and the webhook may
get a commit twice, with the same number and key, by which a consumer leaves the second one out.
"""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote

from streamdp.errors import SinkError

if TYPE_CHECKING:
    import psycopg

ANSWER_S = 10
"""How long a sink may take to connect, and for an answer, in seconds."""


class Message(NamedTuple):
    """What a sink gets of a commit."""

    job: str
    commit: int
    committed_at: float  # in seconds since 1970 (UTC)
    document: bytes  # JSON


class Sink(Protocol):
    """Takes messages; built by the settings of its type."""

    def send(self, message: Message) -> None:
        """Deliver the `message`. Raises `SinkError`."""

    def close(self) -> None:
        """Close the connection."""


class TableSink:
    """A table with the columns `job`, `commit`, `committed_at` and `document`, by key (job, commit).

    It is created if it does not exist. A commit that the table has is left as it is, unless the new one is later: then
    the job has begun again. `url` is PostgreSQL's, without the `password` or with it; `table` may have a schema and a
    dot in front. Raises `SinkError` if the server cannot be reached.
    """

    def __init__(self, url: str, table: str, password: str | None = None) -> None:
        import psycopg
        from psycopg import conninfo, sql

        name = sql.Identifier(*table.split("."))
        self._errors = psycopg.Error
        self._statement = sql.SQL(
            "INSERT INTO {0} AS old VALUES (%s, %s, to_timestamp(%s), %s) ON CONFLICT (job, commit) DO UPDATE SET"
            " committed_at = excluded.committed_at, document = excluded.document"
            " WHERE old.committed_at < excluded.committed_at"
        ).format(name)
        create = sql.SQL(
            "CREATE TABLE {0} (job text, commit bigint, committed_at timestamptz NOT NULL, document jsonb NOT NULL,"
            " PRIMARY KEY (job, commit))"
        ).format(name)
        address = conninfo.conninfo_to_dict(url).get("hostaddr") or ""  # PGHOSTADDR would lead to another server
        try:
            self._connection = psycopg.connect(
                conninfo.make_conninfo(url, password=password, hostaddr=address),
                autocommit=True,
                connect_timeout=ANSWER_S,
                tcp_user_timeout=1000 * ANSWER_S,
                keepalives_idle=5,
            )
            with contextlib.suppress(psycopg.errors.DuplicateTable):  # another process has created it meanwhile
                if self._connection.execute("SELECT to_regclass(%s)", [name.as_string()]).fetchone() == (None,):
                    self._connection.execute(create)
        except psycopg.Error as error:
            raise _of_database(error) from None

    def send(self, message: Message) -> None:
        """Insert the `message`. Raises `SinkError`."""
        try:
            self._connection.execute(self._statement, [*message[:3], message.document.decode()])
        except self._errors as error:
            raise _of_database(error) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _of_database(error: "psycopg.Error") -> SinkError:
    """An error that shows neither the document nor the URL, which may have a password."""
    return SinkError(error.diag.message_primary or "no connection to the database")


class TopicSink:
    """A topic of Kafka, which may be compacted: the key is the job, and the header `commit` the number of the commit.

    For `topic`, `bootstrap_servers`, `options` and errors see `kafkasink.TopicWriter`.
    """

    def __init__(self, topic: str, bootstrap_servers: str, options: Mapping[str, object]) -> None:
        from connectors.kafkasink import TopicWriter

        self._writer = TopicWriter(topic, bootstrap_servers, options)

    def send(self, message: Message) -> None:
        """Send the `message`, and wait until the broker has it; see `TopicWriter.flush`."""
        headers = [("commit", b"%d" % message.commit), ("committed_at", _time(message.committed_at).encode())]
        self._writer.send(message.job.encode(), message.document, headers)
        self._writer.flush()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class WebhookSink:
    """A `url` that gets each document by POST, with a header `Idempotency-Key`; any answer of 2xx is taken as done.

    `headers` are sent, too. `proxy` is the address of a proxy to send them through; None: no proxy.
    """

    def __init__(self, url: str, headers: Mapping[str, str], proxy: str | None = None) -> None:
        import httpx

        self._url, self._errors = url, httpx.HTTPError
        self._client = httpx.Client(
            headers={"Content-Type": "application/json", **headers},
            timeout=ANSWER_S,
            verify=httpx.create_ssl_context(),
            trust_env=False,  # no proxy and no password of the environment
            proxy=proxy,
        )

    def send(self, message: Message) -> None:
        """Send the `message`. Raises `SinkError`."""
        key = f"{quote(message.job, safe='')}/{message.commit}/{_time(message.committed_at)}"
        try:
            answer = self._client.post(self._url, content=message.document, headers={"Idempotency-Key": key})
        except self._errors as error:
            raise SinkError(f"no answer: {type(error).__name__}") from None
        if not answer.is_success:
            raise SinkError(f"it answered {answer.status_code}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
