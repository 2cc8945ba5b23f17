"""The work of the commands for Kafka: run a worker, send a file to a topic, ask for the lag."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

from streamdp.cli.common import naming, need_clients, patient, say, say_cheaper, say_opened, warn, warn_if_not_private
from streamdp.data.records import Position, Shard
from streamdp.errors import (
    ConfigError,
    NotAvailableError,
    SchemaError,
    SourceError,
    StoreUnavailableError,
    file_errors,
)
from streamdp.store.snapshot import Snapshot

_UNHEARD = logging.NullHandler()

if TYPE_CHECKING:
    from connectors.csvgrammar import CSVRow
    from connectors.kafka import KafkaSource
    from connectors.kafkasink import SnapshotTopic
    from streamdp.config.file import FileSourceConfig
    from streamdp.config.job import Accepted, JobConfig
    from streamdp.data.notation import Notation
    from streamdp.runtime.display import WorkerDisplay
    from streamdp.runtime.protocols import Observer
    from streamdp.serving.publish import Publisher


def run_worker(
    config: JobConfig,
    *,
    max_records: int | None = None,
    idle_seconds: float | None = None,
    metrics_port: int | None = None,
    accepted: Accepted,
) -> None:
    """Run one worker of the job's group, as `streamdp run` does, until SIGINT or SIGTERM.

    Stop after `max_records`, or after `idle_seconds` without records; None: no limit. Serve Prometheus metrics on
    `metrics_port` of loopback; 0: any free port; None: no metrics.
    """
    from streamdp.config.checking import apart
    from streamdp.config.kafka import KafkaSourceConfig
    from streamdp.privacy.guarantees import amount
    from streamdp.runtime.display import WorkerDisplay
    from streamdp.runtime.expected import Expected
    from streamdp.runtime.worker import Worker
    from streamdp.serving.doubts import doubts
    from streamdp.serving.publish import Publisher, committed
    from streamdp.store.store import Store

    logging.getLogger("streamdp").addHandler(_UNHEARD)  # the display shows the retries
    kafka = config.source
    assert isinstance(kafka, KafkaSourceConfig), "`run` has refused others"
    need_clients()
    patiently = patient()

    def connect() -> KafkaSource:
        with naming(kafka.servers):
            return kafka.build_source(config.job, config.build_schema(), config.key_is_subject)

    with ExitStack() as stack:
        source = patiently(connect)
        stack.callback(source.close)
        display = stack.enter_context(WorkerDisplay(source.lag))
        spend = config.build_estimator().record_budget
        observers: list[Observer] = [display, Expected(config.expected_records, spend, warn)]
        if metrics_port is not None:
            from streamdp.runtime.prometheus import Metrics

            metrics = Metrics(amount(spend), source.lag)
            with file_errors(ConfigError, f"--metrics-port {metrics_port}"):
                display.metrics(metrics.serve(metrics_port))
            observers.append(metrics)
        publish: list[Callable[[list[Snapshot]], None]] = []
        if (topic := patiently(kafka.build_snapshot_topic)) is not None:
            stack.callback(topic.close)
            publish.append(partial(_to_topic, topic))
        if config.publish or config.holdout is not None or config.validation is not None:
            publisher = stack.enter_context(Publisher(config, (display.measured,), display.published))
            publish.append(lambda snapshots: _publish_whole(publisher, config, display))
        dead_letters = patiently(kafka.build_dead_letters)
        if dead_letters is not None:
            stack.callback(dead_letters.close)
        # Last, because what fails before leaves no new store behind.
        store = stack.enter_context(patiently(lambda: config.open_store(accepted, shared=True)))
        say_opened(store)
        snapshots = patiently(lambda: Store.snapshots(config.store_path, config.job))
        learned = any(snapshot.counts.learned for snapshot in snapshots)
        warn_if_not_private(config.build_estimator(store.ledger))
        say_cheaper(config)
        worker = Worker(
            source,
            lambda: config.build_estimator(store.ledger),
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            max_bad_in_a_row=kafka.max_bad_in_a_row,
            max_bad_share=None if learned else kafka.max_bad_share,
            name=kafka.topic,
            dead_letters=dead_letters,
            observers=observers,
            publish=publish,
            on_unfit=warn,
        )
        records = worker.run(max_records, idle_seconds)
        found: list[str] = []
        with suppress(NotAvailableError, StoreUnavailableError):  # nothing is committed, or it cannot be read now
            model = committed(config.store_path, config.job)
            found = doubts(model.estimator, model.snapshot.counts)
            models = sum(bool(snapshot.state) for snapshot in Store.snapshots(config.store_path, config.job))
            found += apart(config, models, model.snapshot.counts.learned) if config.has_model else []
        display.finished(records, "stopped" if worker.stopping else "done", found)
        for line in display.conclusions():
            say(line)
        worker.unlearned.check()


def _to_topic(topic: SnapshotTopic, snapshots: list[Snapshot]) -> None:
    from streamdp.serving.snapshots import snapshot_to_json

    topic.publish(snapshots[0].job, {(s.shard, s.epoch): snapshot_to_json(s) for s in snapshots})


def _publish_whole(publisher: Publisher, config: JobConfig, display: WorkerDisplay) -> None:
    """Publish the job's model over all shards, including those of other workers."""
    from streamdp.serving.snapshots import combined
    from streamdp.store.store import Store

    shown = None
    for _ in range(3):  # another worker may have committed meanwhile, and a sink may keep what comes last
        snapshot = combined(Store.snapshots(config.store_path, config.job))
        if snapshot.seq == shown:
            return
        model = publisher.model(snapshot)
        display.judged(model.quality)
        display.followed(model.estimator)
        publisher(snapshot)
        shown = snapshot.seq


def lags(brokers: str, options: Mapping[str, object], positions: Mapping[Shard, Position]) -> dict[Shard, int | None]:
    """Count the records that a job has not read yet.

    The `options` are those of `kafka.KafkaConsumer`, and `brokers` is `host:port[,host:port]`. A partition of these
    topics without a committed position in `positions` counts from its beginning. Returns the number of records of each
    partition, None where it is not known. Raises `SourceError` if the job does not read Kafka, or the brokers do not
    have a topic.
    """
    need_clients()
    from connectors.topicwatch import unread

    if any("offset" not in position for position in positions.values()):
        raise SourceError("this job does not read Kafka")
    with naming(brokers):
        return unread(brokers, options, positions)


def produce(
    source: FileSourceConfig | str, topic: str, brokers: str, key: str | None, partitions: int | None = None
) -> int:
    """Send the rows of a CSV file as JSON objects of text; return how many.

    `topic`, `brokers`, `key` and `partitions` are those of `streamdp produce`; `source` is the file and how it
    is written, or its path.
    Empty lines are skipped. Raises `SchemaError` for a column that is not there and for a row that is unusable by the
    rules of `connectors.csvgrammar`, `SourceError` if the file cannot be read or the rows cannot be sent.
    """
    need_clients()
    from connectors.kafkasink import TopicWriter, make_topic, send_all
    from streamdp.config.file import FileSourceConfig

    source = FileSourceConfig(path=source) if isinstance(source, str) else source
    with naming(brokers):
        if partitions is not None:
            make_topic(topic, brokers, partitions)
        writer = TopicWriter(topic, brokers)
    with closing(writer):
        return send_all(writer, _messages(source, key))


def _with_texts(rows: list[CSVRow], notation: Notation | None) -> Iterator[tuple[CSVRow, list[str]]]:
    """Rows with their texts, of which numbers in the `notation` are in the usual one."""
    texts = [text for row in rows for text in row.fields]
    if notation is not None:
        import polars as pl

        texts = notation.usual(pl.Series(texts, dtype=pl.String)).to_list()
    left = iter(texts)
    for row in rows:
        yield row, list(islice(left, len(row.fields)))


def _messages(source: FileSourceConfig, key: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Keys and values of messages. Rows are read by the rules of `csvgrammar`; an unusable one is an error."""
    import orjson

    from connectors.csvgrammar import CSVRows

    path = source.paths[0]
    with closing(CSVRows(path, source.delimiter, form=source.form)) as rows:
        names = rows.names
        if len(set(names)) < len(names):
            raise SchemaError(f"{path}: the header has a column twice")
        if key is not None and key not in names:
            raise SchemaError(f"{path}: the header lacks the column {key!r} (is the delimiter right?)")
        place = None if key is None else names.index(key)
        written = chain.from_iterable(map(_with_texts, rows, repeat(source.notation)))
        for sent, (row, texts) in enumerate(written):
            if row.reason is not None:
                what = _UNUSABLE.get(row.reason, f"expected {len(names)} fields, got {len(row.fields)}")
                raise SchemaError(f"{path}, row {row.number}: {what}; the {sent:,} records before it were sent")
            if place is not None:
                texts[place] = row.fields[place]
            value = orjson.dumps(dict(zip(names, texts, strict=True)))
            yield None if place is None else row.fields[place].encode(), value


_UNUSABLE = {
    "not_utf8": "not UTF-8",
    "malformed_quotes": "not CSV, as its quotes do not match",
    "too_long": "longer than 1 MiB",
}
"""What `produce` says of rows that have these reasons; the others are about the number of fields."""
