"""What the commands do for a job that reads Kafka: run a worker, produce a file, ask for the lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from streamdp.errors import ConfigError, SchemaError, SourceUnavailableError
from streamdp.records import Position, Shard
from streamdp.store import Snapshot

if TYPE_CHECKING:
    from streamdp.config import JobConfig
    from streamdp.kafka_config import KafkaSourceConfig


def run_worker(
    config: JobConfig,
    *,
    max_records: int | None = None,
    idle_seconds: float | None = None,
    metrics_port: int | None = None,
) -> None:
    """Run one worker of the job's group, as `streamdp run` does, until it is told to stop or `idle_seconds` pass."""
    from streamdp.guarantees import amount, parse_budget
    from streamdp.publish import Holdout, Publisher
    from streamdp.store import Store
    from streamdp.worker import Worker
    from streamdp.worker_progress import worker_display

    kafka = kafka_source(config)
    with ExitStack() as stack:
        holdout = None if config.holdout is None else Holdout(config)
        store = stack.enter_context(
            Store(
                config.store_path,
                config.job,
                config.fingerprint(),
                cap=config.cap_budget,
                config=config.text(),
                shared=True,
            )
        )
        key_is_subject = config.schema_.subject is not None and kafka.subject_from == "key"
        source = _patiently_built(kafka, config, key_is_subject)
        display = stack.enter_context(worker_display(source.lag))
        observers: list[Any] = [display]
        if metrics_port is not None:
            from streamdp.metrics import Metrics

            metrics = Metrics(amount(parse_budget(config.model.budget)), source.lag)
            metrics.serve(metrics_port)
            observers.append(metrics)
        publish: list[Any] = []
        if (topic := kafka.build_snapshot_topic()) is not None:
            stack.callback(topic.close)
            publish.append(_to_topic(topic))
        if config.publish is not None or holdout is not None:
            publisher = Publisher(config.publish, holdout)
            publish.append(lambda snapshots: publisher(_whole(config)))
        dead_letters: Any = kafka.build_dead_letters()
        if dead_letters is not None:
            stack.callback(dead_letters.close)

        def build() -> Any:
            return config.build_estimator(store.ledger)

        worker = Worker(
            source,
            build,
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            max_bad_in_a_row=kafka.max_bad_in_a_row,
            max_bad_share=kafka.max_bad_share,
            dead_letters=dead_letters,
            observers=observers,
            publish=publish,
        )
        records = worker.run(max_records, idle_seconds)
        display.finished(records, "stopped" if worker.stopping else "done")


def kafka_source(config: JobConfig) -> KafkaSourceConfig:
    """The job's source; raises `ConfigError` where it is none of Kafka's."""
    from streamdp.kafka_config import KafkaSourceConfig

    if not isinstance(config.source, KafkaSourceConfig):
        raise ConfigError("expected a job with a source of type: kafka")
    return config.source


def _patiently_built(kafka: KafkaSourceConfig, config: JobConfig, key_is_subject: bool) -> Any:
    """The source, as soon as there is a broker: one that is down at the start is waited for."""
    import sys
    import time

    while True:
        try:
            return kafka.build_source(config.job, config.build_schema(), key_is_subject)
        except SourceUnavailableError as error:
            print(f"streamdp: {error}; trying again", file=sys.stderr, flush=True)
            time.sleep(1.0)


def _to_topic(topic: Any) -> Any:
    from streamdp.snapshots import snapshot_to_json

    def publish(snapshots: list[Snapshot]) -> None:
        topic.publish(snapshots[0].job, {s.shard: snapshot_to_json(s) for s in snapshots})

    return publish


def _whole(config: JobConfig) -> Snapshot:
    """The job's model over all shards, those of other workers too."""
    from streamdp.snapshots import combined
    from streamdp.store import Store

    return combined(Store.snapshots(config.store_path, config.job))


def lags(brokers: str, options: Mapping[str, Any], positions: Mapping[Shard, Position]) -> dict[Shard, int]:
    """How many records the broker has after these positions."""
    from kafka import TopicPartition

    from connectors.kafka import connect, kafka_errors

    consumer = connect(brokers, None, dict(options))
    try:
        with kafka_errors():
            ends = consumer.end_offsets([TopicPartition(*shard) for shard in positions])
    finally:
        consumer.close(autocommit=False)
    return {shard: ends[TopicPartition(*shard)] - position["offset"] for shard, position in positions.items()}


def produce(
    path: str, topic: str, brokers: str, key: str | None, partitions: int | None = None, delimiter: str = ","
) -> int:
    """Send the rows of a CSV file (`-`: standard input) as JSON objects of text; returns how many.

    `key` names the column that becomes the message's key, so that a subject's records share a partition. Raises
    `SchemaError` for a column that is not there or a row of another length.
    """
    from connectors.kafkasink import TopicWriter, make_topic, send_all

    if partitions is not None:
        make_topic(topic, brokers, partitions)
    writer = TopicWriter(topic, brokers)
    try:
        return send_all(writer, _messages(path, key, delimiter))
    finally:
        writer.close()


def _messages(path: str, key: str | None, delimiter: str) -> Iterator[tuple[bytes | None, bytes]]:
    import csv
    import sys

    import orjson

    from streamdp.errors import SourceError

    with ExitStack() as stack:
        try:
            file: Any = sys.stdin if path == "-" else stack.enter_context(open(path, encoding="utf-8-sig", newline=""))
        except OSError as error:
            raise SourceError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
        rows = csv.reader(file, delimiter=delimiter)
        try:
            header = next(rows, None)
            if not header:
                raise SourceError(f"{path}: expected a header line")
            if key is not None and key not in header:
                raise SchemaError(f"{path}: there is no column {key!r}; there are {', '.join(header)}")
            place = None if key is None else header.index(key)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise SchemaError(f"{path}, line {rows.line_num}: expected {len(header)} fields, got {len(row)}")
                yield None if place is None else row[place].encode(), orjson.dumps(dict(zip(header, row, strict=True)))
        except (csv.Error, UnicodeDecodeError) as error:
            raise SourceError(f"{path}, line {rows.line_num}: not CSV ({type(error).__name__})") from None
