"""Workers on a real broker: what is counted, who may commit, what happens to bad messages and to bad connections."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest

from connectors.kafka import KafkaSource
from connectors.kafkaclient import CONNECTION
from servers.broker import Broker, create_topic
from streamdp import GaussianDP, LDPASGDRegressor, PureDP
from streamdp.cli.kafka_job import lags
from streamdp.data.records import Batch, DeadLetter, Position, Shard, Stall
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, StoreDamagedError, TooManyBadRecordsError
from streamdp.runtime.protocols import Observer
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.kafka_job import counts
from tests.support.sizes import some
from tests.support.topics import delete_and_create, send
from tests.support.waiting import PATIENCE_S, wait_until

CAP = PureDP(3.0)
SCHEMA = Schema({"a": (0, 1), "b": (-1, 1)}, "y", target_bounds=(0, 1))


both = pytest.mark.parametrize("client", ["kafka-python", "confluent"])
python_client, fast_client = (pytest.mark.parametrize("client", some(["kafka-python", "confluent"], k)) for k in (0, 1))
"""Where the worker or the store is tried, one client is enough; the campaign takes both."""


def fields(i: int) -> dict[str, Any]:
    return {"a": (i % 7) / 7, "b": (i % 3) - 1.0, "y": i % 5 / 5, "extra": "x"}


def source(bootstrap: str, topic: str, **options: Any) -> KafkaSource:
    client = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 300} | options.pop("options", {})
    given = {"group": f"g-{topic}", "key_is_subject": True, "options": client} | options
    return KafkaSource(topic, given.pop("schema", SCHEMA), bootstrap_servers=bootstrap, **given)


def model(store: Store) -> LDPASGDRegressor:
    return LDPASGDRegressor(features=["a", "b"], budget="eps=1", ledger=store.ledger)


class Letters:
    """Dead letters in memory."""

    name = "letters"

    def __init__(self) -> None:
        self.found: list[DeadLetter] = []

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        self.found += letters

    def commit(self) -> None: ...

    def resume(self, places: object) -> None: ...


class Watcher(Observer):
    """An observer that remembers; `on_learned` is called with each batch."""

    def __init__(self, on_learned: Callable[[], object] = lambda: None) -> None:
        self.mine: tuple[Shard, ...] = ()
        self.polled = 0
        self.troubles: list[tuple[str, str]] = []
        self._on_learned = on_learned

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        self.polled += len(batch) + len(batch.dead)
        self._on_learned()

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None: ...

    def assigned(self, shards: Iterable[Shard]) -> None:
        self.mine = tuple(shards)

    def on_retry(self, kind: str, message: str) -> None:
        self.troubles.append((kind, message))


class Colleague:
    """A worker with a store of its own, in a thread."""

    def __init__(
        self,
        job: Job,
        source: KafkaSource,
        watcher: Watcher | None = None,
        make: Callable[[Store], Any] = model,
        cap: PureDP | GaussianDP = CAP,
        **options: Any,
    ) -> None:
        self.watcher = watcher or Watcher()
        self._make, self._cap = make, cap
        self.started: set[Shard] = set()
        """Shards whose first offset is known: what is produced from now on comes after it."""
        start = source.start

        def started(shard: Shard, position: Any) -> Any:
            origin = start(shard, position)
            if origin is not None:  # else it was revoked, and starts again
                self.started.add(shard)
            return origin

        source.start = started  # type: ignore[method-assign]
        self.done = 0
        self.error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(job.path, source, options))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _run(self, path: Path, source: KafkaSource, options: dict[str, Any]) -> None:
        try:
            with Store(path, "job", "f", cap=self._cap, shared=True) as store:
                self.store = store
                self.worker = Worker(source, lambda: self._make(store), store, observers=[self.watcher], **options)
                self._ready.set()
                self.done = self.worker.run()
        except BaseException as error:  # noqa: BLE001 - whatever it was, `leave` raises it
            self.error = error
            self._ready.set()

    def leave(self) -> None:
        """Stop it; its failure is ours."""
        self.worker.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None

    def __enter__(self) -> Colleague:
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "worker"):
            self.worker.stop()
        self._thread.join(PATIENCE_S)


class Job:
    """A topic, and the store of the job that reads it."""

    def __init__(self, broker: Broker, topic: str, path: Path) -> None:
        self.bootstrap, self.topic, self.path = broker.bootstrap, topic, path

    def produce(self, messages: Sequence[tuple[str | None, Any]], partition: int | None = None) -> None:
        """JSON values, or bytes as they are; Kafka spreads keys over the partitions unless one is given."""
        values = (value if isinstance(value, bytes | None) else json.dumps(value).encode() for _, value in messages)
        keys = (None if key is None else key.encode() for key, _ in messages)
        send(self.bootstrap, self.topic, zip(keys, values, strict=True), partition)

    def source(self, **options: Any) -> KafkaSource:
        return source(self.bootstrap, self.topic, **options)

    def store(self) -> Store:
        return Store(self.path, "job", "f", cap=CAP, shared=True)

    def work(self, source: KafkaSource, count: int | None = None, **options: Any) -> int:
        """Learn `count` records, or until an error."""
        with self.store() as store:
            return Worker(source, lambda: model(store), store, **options).run(count, PATIENCE_S)

    @property
    def counts(self) -> Counts:
        return counts(self.path, "job")

    @property
    def positions(self) -> dict[int, int]:
        return {s.shard.partition: s.position["offset"] for s in Store.snapshots(self.path, "job")}

    def admin(self) -> contextlib.closing[kafka.KafkaAdminClient]:
        return contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=self.bootstrap))

    def delete_before(self, offset: int) -> None:
        """Delete the first records of the first partition."""
        with self.admin() as control:
            control.delete_records({kafka.TopicPartition(self.topic, 0): offset})

    def create_again(self, records: int) -> None:
        """Another topic of the same name."""
        delete_and_create(self.bootstrap, self.topic)
        self.produce([(f"n{i}", fields(i)) for i in range(records)])

    def writer(self, **options: Any) -> Any:
        """A producer of librdkafka, which writes what kafka-python does not."""
        return confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20} | options)

    def transactional_writer(self) -> Any:
        """Another client that writes to this topic in transactions."""
        writer = self.writer(**{"transactional.id": f"tx-{self.topic}"})
        writer.init_transactions(30)
        return writer

    def send(self, writer: Any, numbers: Iterable[int]) -> None:
        """Records of subjects s0, s1, ...; returns when the broker has them."""
        for i in numbers:
            writer.produce(self.topic, json.dumps(fields(i)).encode(), f"s{i}".encode(), 0)
        assert writer.flush(30) == 0

    def group_offsets(self) -> dict[int, int]:
        """What a lag tool sees."""
        with self.admin() as control:
            (found,) = control.list_group_offsets([f"g-{self.topic}"]).values()
            return {partition.partition: said.offset for partition, said in found.items()}


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(broker: Broker, make_topic: Callable[..., str], tmp_path: Path) -> MakeJob:
    """`make_job(partitions=1)`."""
    return lambda partitions=1: Job(broker, make_topic(partitions), tmp_path / "job.db")


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    return make_job()


@python_client
def test_every_record_counts_once_over_restarts(make_job: MakeJob, client: str) -> None:
    job = make_job(4)
    job.produce([(f"s{i % 500}", fields(i)) for i in range(1000)])
    assert job.work(job.source(client=client), 1000, commit_records=100) == 1000
    assert job.counts == Counts(1000, 0, 0)
    assert job.group_offsets() == job.positions
    job.produce([(f"s{i % 500}", fields(i)) for i in range(1000)])
    assert job.work(job.source(client=client), 1000, commit_records=100) == 1000
    assert job.counts == Counts(1500, 500, 0)  # each subject has 3, and 4 records
    shards = {snapshot.shard: snapshot.position for snapshot in Store.snapshots(job.path)}
    assert set(shards) == {Shard(job.topic, i) for i in range(4)}
    assert sum(position["offset"] for position in shards.values()) == 2000
    assert job.group_offsets() == job.positions


GOOD = json.dumps(fields(1)).encode()
BAD: dict[str, tuple[bytes | None, str, str | None]] = {  # by what it is: the message, its reason, the column
    "not UTF-8": (b'{"a": 0.5, "b": 0, "y": "\xff"}', "not_utf8", None),
    "not JSON": (b"a=1;b=2", "not_json", None),
    "NaN": (b'{"a": NaN, "b": 0, "y": 1}', "missing", "a"),
    "Infinity": (b'{"a": 1, "b": -Infinity, "y": 1}', "missing", "b"),
    "text nan": (b'{"a": "nan", "b": 0, "y": 1}', "not_finite", "a"),
    "too large": (b'{"a": 1, "b": "1e999", "y": 1}', "not_finite", "b"),
    "missing field": (b'{"a": 0.5, "y": 1}', "missing", "b"),
    "null field": (b'{"a": 0.5, "b": null, "y": 1}', "missing", "b"),
    "deep": (b"[" * 5000 + b"]" * 5000, "not_json", None),
    "boolean": (b'{"a": 1, "b": true, "y": 1}', "not_a_number", "b"),
    "tombstone": (None, "tombstone", None),
    "null key": (GOOD, "missing", "key"),
}


def test_no_bad_message_stops_the_good_ones(make_job: MakeJob) -> None:
    job, rounds = make_job(2), 800
    huge = b'{"a": 1, "b": 0, "y": 1, "extra": "' + b"x" * 10_000_000 + b'"}'

    def messages() -> Iterable[tuple[str | None, Any]]:
        for i in range(rounds):
            for kind, (message, _, _) in BAD.items():
                if kind != "deep" or i < 50:
                    yield (None if kind == "null key" else f"bad{i}"), message
            yield f"s{i}", fields(i)
            if i in (10, 700):
                yield "huge", huge

    options = {"compression.type": "gzip", "message.max.bytes": 20_000_000, "queue.buffering.max.messages": 200_000}
    writer = job.writer(**options)
    for key, value in messages():
        writer.produce(job.topic, json.dumps(value).encode() if isinstance(value, dict) else value, key)
    assert writer.flush(60) == 0
    letters = Letters()
    total = (len(BAD) - 1) * rounds + 50 + rounds + 2
    assert job.work(job.source(), total, dead_letters=letters) == total
    expected: Counter[tuple[str, str | None]] = Counter({("too_long", None): 2})
    for kind, (_, reason, column) in BAD.items():
        expected[reason, column] += 50 if kind == "deep" else rounds
    assert Counter((letter.reason, letter.column) for letter in letters.found) == expected
    assert sum(expected.values()) > 8_000
    assert job.counts == Counts(rounds, 0, total - rounds)
    assert all(letter.payload is None for letter in letters.found)


@both
def test_keys_count_without_frames_and_quotes(job: Job, client: str) -> None:
    frames = [b"\0" + number.to_bytes(4, "big") + b'"ann"' for number in (5, 6, 7)]
    keys = [*frames, b'"ann"', b"ann", b"100000000000000000001", b"1.0", b"\0\0\0\0\x05{}"]
    send(job.bootstrap, job.topic, [(key, json.dumps(fields(1)).encode()) for key in keys], None)
    letters = Letters()
    with job.store() as store:
        Worker(job.source(client=client), lambda: model(store), store, dead_letters=letters).run(8, PATIENCE_S)
        assert store.ledger.spent("ann").epsilon == CAP.epsilon == 3
        assert store.ledger.spent(10**20 + 1).epsilon == 1
        assert store.ledger.n_subjects == 2
    assert [(d.position, d.reason, d.column) for d in letters.found] == [(i, "missing", "key") for i in (6, 7)]
    assert job.counts == Counts(4, 2, 2)


def test_a_wrong_schema_stops_before_anything_is_spent(job: Job) -> None:
    job.produce([(f"s{i}", b"bad" if i % 3 else fields(i)) for i in range(150)])
    with pytest.raises(
        TooManyBadRecordsError, match=r"do not fit the schema: not json \(.*nothing was learned or spent"
    ):
        job.work(job.source(), 150, max_bad_share=0.05)
    assert job.counts == Counts()
    assert job.work(job.source(), 150, max_bad_share=0.7) == 150


@both
def test_offsets_that_are_gone(job: Job, client: str) -> None:
    job.produce([(f"s{i}", fields(i)) for i in range(100)])
    job.work(job.source(client=client), 100)
    job.produce([(f"t{i}", fields(i)) for i in range(100)])
    job.delete_before(150)
    with pytest.raises(
        SourceError, match=r"50 records are lost.* --on-missing earliest .* --on-missing latest "
    ) as caught:
        job.work(job.source(client=client))
    assert not isinstance(caught.value, SourceUnavailableError)
    assert job.positions == {0: 100}
    assert job.work(job.source(client=client, on_missing="earliest"), 50) == 50
    assert (job.counts, job.positions) == (Counts(150, 0, 0), {0: 200})

    job.produce([("u", fields(1))] * 10)
    job.delete_before(205)
    latest = Watcher()
    with Colleague(job, job.source(client=client, on_missing="latest"), latest) as colleague:
        wait_until(lambda: colleague.started)
        job.produce([(f"v{i}", fields(i)) for i in range(5)])
        wait_until(lambda: colleague.watcher.polled == 5)
        colleague.leave()
    assert (job.counts, job.positions) == (Counts(155, 0, 0), {0: 215})

    with job.admin() as control:
        control.delete_topics([job.topic])
        wait_until(lambda: job.topic not in control.list_topics())
    create_topic(job.bootstrap, job.topic)
    with pytest.raises(SourceError, match="has 0 to 0: the topic was deleted and created again"):
        job.work(job.source(client=client))
    job.produce([(f"w{i}", fields(i)) for i in range(5)])
    assert job.work(job.source(client=client, on_missing="earliest"), 5) == 5
    assert (job.counts, job.positions) == (Counts(160, 0, 0), {0: 5})


def test_another_topic_of_the_same_name_is_recognised(job: Job) -> None:
    """It is longer than the stored offset. Without the topic's id, its first records are skipped in silence."""
    job.produce([(f"s{i}", fields(i)) for i in range(100)])
    job.work(job.source(), 100)
    [before] = Store.snapshots(job.path, "job")
    assert lags(job.bootstrap, {}, {before.shard: before.position}) == {before.shard: 0}
    job.create_again(250)
    assert lags(job.bootstrap, {}, {before.shard: before.position}) == {before.shard: None}
    with pytest.raises(SourceError, match="deleted and created again"):
        job.work(job.source(), 50)
    assert (job.counts, job.positions) == (Counts(100), {0: 100})
    assert job.work(job.source(on_missing="earliest"), 250) == 250
    assert (job.counts, job.positions) == (Counts(350), {0: 250})
    job.produce([(f"m{i}", fields(i)) for i in range(10)])
    assert job.work(job.source(), 10) == 10  # the position has the new topic's id


@both
def test_a_position_without_an_id_gets_the_topics_at_the_first_start(job: Job, client: str) -> None:
    shard = Shard(job.topic, 0)
    job.produce([(f"s{i}", fields(i)) for i in range(20)])
    with job.store() as store:
        store.claim([shard])
        store.commit_parts({shard: Part(model(store).state_dict(), {"offset": 20}, Counts(20))})
    with Colleague(job, job.source(client=client), commit_seconds=0.1) as colleague:
        wait_until(lambda: "topic_id" in Store.snapshots(job.path, "job")[0].position)
        colleague.leave()
    job.create_again(30)
    with pytest.raises(SourceError, match="deleted and created again"):
        job.work(job.source(client=client), 10)
    assert job.counts == Counts(20)


def poll_in_turn(reader: KafkaSource, monkeypatch: pytest.MonkeyPatch) -> threading.Lock:
    """A lock that each poll of the reader holds: who has it is between two fetches."""
    turn, poll = threading.Lock(), reader.poll

    def locked(max_records: int, timeout_s: float) -> list[tuple[Shard, list[Any]]]:
        with turn:
            return poll(max_records, timeout_s)

    monkeypatch.setattr(reader, "poll", locked)
    return turn


while_read = pytest.mark.parametrize(
    ("on_missing", "client"), [("stop", "kafka-python"), ("earliest", "kafka-python"), ("earliest", "confluent")]
)
"""What a reader does about records that go, and by which client it reads."""


@while_read
def test_a_topic_that_is_created_again_while_it_is_read_stops_the_worker(
    job: Job, monkeypatch: pytest.MonkeyPatch, on_missing: str, client: str
) -> None:
    job.produce([(f"s{i}", fields(i)) for i in range(100)])
    reader = job.source(client=client, on_missing=on_missing)
    turn = poll_in_turn(reader, monkeypatch)
    with Colleague(job, reader, commit_seconds=0.2) as colleague:
        wait_until(lambda: job.path.exists() and job.positions == {0: 100})
        with turn:  # between two fetches: the client sees a topic that has grown, or has less than it has read
            job.create_again(250 if on_missing == "stop" else 60)
        wait_until(lambda: colleague.error)
        assert "deleted and created again while it was read" in str(colleague.error)
    assert (job.counts, job.positions) == (Counts(100), {0: 100})


@while_read
def test_records_that_go_while_they_are_read(
    job: Job, monkeypatch: pytest.MonkeyPatch, on_missing: str, client: str
) -> None:
    job.produce([(f"s{i}", fields(i)) for i in range(10)])
    reader = job.source(client=client, on_missing=on_missing)
    turn = poll_in_turn(reader, monkeypatch)
    with Colleague(job, reader, commit_seconds=0.2) as colleague:
        wait_until(lambda: job.path.exists() and job.positions == {0: 10})
        with turn:  # of our own making: the client stands at an offset that is no more
            job.produce([(f"t{i}", fields(i)) for i in range(10)])
            job.delete_before(16)
            reader._group.read_from(0, 12)
        if on_missing == "earliest":
            wait_until(lambda: job.positions == {0: 20})
            colleague.leave()
            assert job.counts == Counts(14, 0, 0)
        else:
            wait_until(lambda: colleague.error)
            assert isinstance(colleague.error, SourceError)
            assert "4 records are lost" in str(colleague.error)


def test_a_position_that_is_none_and_a_topic_that_is_not_there(job: Job) -> None:
    with pytest.raises(SourceError, match="there is no topic 'absent'"):
        job.work(source(job.bootstrap, "absent"))
    for position, match in (({"offset": 7}, "truncated or recreated"), ({"row": 7}, "position of a topic")):
        job.path = job.path.with_name(f"{match}.db")
        with job.store() as store:
            store.claim([Shard(job.topic, 0)])
            store.commit_parts({Shard(job.topic, 0): Part(model(store).state_dict(), position, Counts(1))})
        with pytest.raises(SourceError, match=match):
            job.work(job.source())


def test_a_partition_may_begin_at_its_end(job: Job) -> None:
    job.produce([("s", fields(1))] * 10)
    with Colleague(job, job.source(start="latest")) as colleague:
        wait_until(lambda: colleague.started)
        job.produce([("t", fields(1))] * 2)
        wait_until(lambda: colleague.watcher.polled == 2)
        colleague.leave()
    assert job.positions == {0: 12}
    job.produce([("u", fields(1))] * 3)
    assert job.work(job.source(start="latest"), 3) == 3  # from where it was, not from the end
    assert (job.counts, job.positions) == (Counts(5, 0, 0), {0: 15})


@pytest.mark.parametrize("position", [None, {"offset": 3}])
def test_a_rebalance_before_the_first_commit_skips_no_new_records(job: Job, position: dict[str, int] | None) -> None:
    shard, held = Shard(job.topic, 0), list[Shard]()
    job.produce([("s", fields(1))] * 10)
    job.delete_before(5)
    with contextlib.closing(job.source(start="latest", on_missing="latest")) as reader:

        def hold() -> list[Shard]:
            reader.poll(1, 0.2)
            held.extend(reader.assigned())
            return held

        reader.subscribe(Nobody())
        wait_until(hold)
        began = reader.start(shard, position)
        assert began["offset"] == 10
        job.produce([("t", fields(1))] * 2)
        assert reader.start(shard, position) == began


@fast_client
def test_two_workers_share_and_hand_over(make_job: MakeJob, client: str) -> None:
    job = make_job(4)
    options = {"commit_records": 150, "commit_seconds": 0.5}
    with (
        Colleague(job, job.source(client=client), **options) as first,
        Colleague(job, job.source(), **options) as second,  # both clients may be in one group
    ):
        wait_until(lambda: len(first.watcher.mine) == len(second.watcher.mine) == 2)
        assert {*first.watcher.mine, *second.watcher.mine} == {Shard(job.topic, i) for i in range(4)}
        job.produce([(f"s{i}", fields(i)) for i in range(1000)])
        wait_until(lambda: first.watcher.polled and second.watcher.polled)
        first.leave()  # commits what it has learned
        assert first.done == first.watcher.polled
        job.produce([(f"t{i}", fields(i)) for i in range(1000)])
        wait_until(lambda: sum(job.positions.values()) == 2000)
        assert len(second.watcher.mine) == 4
        with pytest.raises(ConfigError, match="ledger"):
            Worker(job.source(client=client), lambda: LDPASGDRegressor(features=["a"], budget="eps=1"), second.store)
        second.leave()
    assert job.counts == Counts(2000, 0, 0)
    assert first.done + second.done >= 2000
    assert job.group_offsets() == job.positions
    assert not [kind for kind, _ in first.watcher.troubles + second.watcher.troubles if kind != "fenced"]


@pytest.mark.parametrize("codec", some(["none", "gzip", "snappy", "lz4", "zstd"], 0, 3, 4))
@pytest.mark.parametrize("idempotent", some([False, True], 1))
def test_all_that_another_client_writes_is_read(job: Job, codec: str, idempotent: bool) -> None:
    options = {"compression.type": codec, "enable.idempotence": idempotent, "message.max.bytes": 10_000_000}
    writer = job.writer(**options)
    large = json.dumps(fields(0) | {"extra": "x" * 3_000_000}).encode()
    writer.produce(job.topic, large, b"large")
    job.send(writer, range(300))
    letters = Letters()
    assert job.work(job.source(), 301, dead_letters=letters) == 301
    assert job.counts == Counts(300, 0, 1)
    assert [letter.reason for letter in letters.found] == ["too_long"]


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_a_codec_that_is_not_installed_is_an_error_at_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    job.send(job.writer(), range(10))
    job.send(job.writer(**{"compression.type": codec}), range(10, 20))
    monkeypatch.setattr(f"kafka.codec.has_{codec}", lambda: False)
    with pytest.raises(SourceError, match=rf"{codec} .* pip install '.\[kafka\]'") as caught:
        job.work(job.source(), 20)
    assert not isinstance(caught.value, SourceUnavailableError)
    assert (job.counts, job.positions) == (Counts(10, 0, 0), {0: 10})


@both
def test_only_committed_transactions_are_learned(job: Job, monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """And lag has the messages of an open transaction, which wait: until now it was 0, and nothing told of them."""
    monkeypatch.setattr("connectors.topicwatch.ASK_S", 0.3)
    monkeypatch.setattr("connectors.topicwatch.STALL_S", 1.0)
    shard = Shard(job.topic, 0)
    writer = job.transactional_writer()
    for numbers, end in (
        (range(200), writer.abort_transaction),
        (range(200, 500), writer.commit_transaction),
        (range(500, 700), writer.abort_transaction),
        (range(700, 900), writer.commit_transaction),
        (range(900, 1000), writer.abort_transaction),
    ):
        writer.begin_transaction()
        job.send(writer, numbers)
        end(30)
    writer.begin_transaction()
    job.send(writer, range(1000, 1007))  # stays open
    reader = job.source(client=client)

    class StallWatcher(Watcher):
        stalls = frozenset[tuple[str, str]]()

        def watched(self, positions: dict[Shard, Position], stalls: Sequence[Stall]) -> None:
            self.stalls = frozenset((stall.where, stall.reason) for stall in stalls)

    with Colleague(job, reader, watcher := StallWatcher(), commit_seconds=0.2) as colleague:
        wait_until(lambda: job.path.exists() and job.positions == {0: 1005})  # 1000 records and 5 markers
        assert job.counts == Counts(500, 0, 0)
        wait_until(lambda: reader.lag({shard: {"offset": 1005}}) == {shard: 7})
        assert lags(job.bootstrap, {}, {shard: {"offset": 1005}}) == {shard: 7}
        assert lags(job.bootstrap, {}, {shard: {"offset": 1000}}) == {shard: 12}
        wait_until(lambda: watcher.stalls == {(str(shard), "open_transaction")})
        writer.commit_transaction(30)
        wait_until(lambda: job.positions == {0: 1013})
        wait_until(lambda: reader.lag({shard: {"offset": 1013}}) == {shard: 0} and not watcher.stalls)
        assert job.counts == Counts(507, 0, 0)
        colleague.leave()
    assert job.group_offsets() == {0: 1013}


def test_deleted_records_of_aborted_transactions_are_no_loss(job: Job) -> None:
    writer = job.transactional_writer()
    for numbers, end in ((range(10), writer.commit_transaction), (range(10, 120), writer.abort_transaction)):
        writer.begin_transaction()
        job.send(writer, numbers)
        end(30)
    with Colleague(job, job.source(), commit_seconds=0.2) as colleague:
        wait_until(lambda: job.path.exists() and job.positions == {0: 122})
        colleague.leave()
    job.delete_before(122)
    job.send(job.writer(), range(5))
    assert job.work(job.source(), 5) == 5
    assert (job.counts, job.positions) == (Counts(15, 0, 0), {0: 127})


@both
def test_a_store_that_is_ahead_of_an_open_transaction_waits_for_its_end(job: Job, client: str) -> None:
    """It has read uncommitted records before; that is no truncated topic."""
    writer = job.transactional_writer()
    writer.begin_transaction()
    job.send(writer, range(10))
    uncommitted = job.source(client=client, options={"isolation_level": "read_uncommitted"})
    assert job.work(uncommitted, 10) == 10
    with Colleague(job, job.source(client=client), commit_seconds=0.2) as colleague:
        wait_until(lambda: colleague.watcher.mine)
        writer.commit_transaction(30)
        job.send(job.writer(), range(10, 15))
        wait_until(lambda: job.positions == {0: 16})
        colleague.leave()
    assert job.counts == Counts(15, 0, 0)


class Nobody:
    """Listens to a source without a worker."""

    def revoked(self, shards: set[Shard]) -> None: ...

    def lost(self, shards: set[Shard]) -> None: ...


def test_a_poll_that_ends_within_a_rebalance_leaves_it_to_the_next_poll(job: Job) -> None:
    """The leader of a group rejoins because the topic has grown; a poll ends before it collects the new assignment."""
    reader = job.source(options={"metadata_max_age_ms": 300})
    coordinator = reader._consumer._coordinator
    wait_for, left, new = coordinator._manager.wait_for, [], set()

    async def end_too_early(future: Any, timeout_ms: float | None) -> Any:
        if future is coordinator._join_task:
            await future
            left.append(future)
            raise kafka.errors.KafkaTimeoutError
        return await wait_for(future, timeout_ms)

    def polled() -> set[Shard]:
        reader.poll(1, 0.2)
        new.update(reader.assigned())
        return new

    with contextlib.closing(reader):
        assert "its broker does not let this worker in yet" in reader.awaited()
        reader.subscribe(Nobody())
        wait_until(polled)
        with job.admin() as control:
            control.create_partitions({job.topic: 2})
        new.clear()
        coordinator._manager.wait_for = end_too_early
        wait_until(lambda: polled() or left)
        assert not new
        assert "the rebalance of the group" in reader.awaited()
        coordinator._manager.wait_for = wait_for
        wait_until(polled)
        assert new == {Shard(job.topic, 0), Shard(job.topic, 1)}


@both
def test_a_member_without_a_partition_says_that_others_have_them(job: Job, client: str) -> None:
    readers = [job.source(client=client) for _ in range(2)]
    said = f"a partition of '{job.topic}': other members of the group 'g-{job.topic}' have all of them"
    assert not any(reader.settled for reader in readers)
    with Colleague(job, readers[0]) as one, Colleague(job, readers[1]) as other:

        def told() -> bool:
            idle = [reader for reader, c in zip(readers, (one, other), strict=True) if not c.watcher.mine]
            return all(reader.settled for reader in readers) and [reader.awaited() for reader in idle] == [said]

        wait_until(told)
        one.leave()
        other.leave()


@fast_client
def test_stopping_commits_and_leaves_the_group(job: Job, client: str) -> None:
    job.produce([(f"s{i}", fields(i)) for i in range(30)])
    with Colleague(job, job.source(client=client), commit_seconds=60.0) as colleague:
        wait_until(lambda: colleague.watcher.polled == 30)
        assert set(job.positions.values()) <= {0}
        colleague.leave()
    assert job.positions == job.group_offsets() == {0: 30}
    with job.admin() as control:
        (described,) = control.describe_groups([f"g-{job.topic}"]).values()
    assert "Empty" in str(described)  # not waiting for a member that is gone
    job.produce([("t", fields(1))])
    assert job.work(job.source(client=client), 1) == 1


@python_client
def test_a_store_that_fails_while_shards_are_taken_away_is_not_called_a_silent_broker(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    job = make_job(2)
    with Colleague(job, job.source(client=client), commit_seconds=60.0) as first:
        wait_until(lambda: len(job.positions) == 2)  # the commit of where they begin is behind us

        def broken(*parts: object) -> None:
            raise StoreDamagedError("the database is damaged")

        monkeypatch.setattr(first.store, "commit_parts", broken)
        job.produce([("s", fields(1))])
        wait_until(lambda: first.watcher.polled)
        with Colleague(job, job.source(client=client)):
            wait_until(lambda: first.error)
    assert isinstance(first.error, StoreDamagedError)


@python_client
def test_what_is_committed_while_shards_are_taken_away_is_no_lag(make_job: MakeJob, client: str) -> None:
    job = make_job(2)
    with Colleague(job, job.source(client=client), commit_seconds=60.0) as first:
        wait_until(lambda: len(first.watcher.mine) == 2)
        job.produce([(f"s{i}", fields(i)) for i in range(40)])
        wait_until(lambda: first.watcher.polled == 40)
        assert set(job.positions.values()) <= {0}
        with Colleague(job, job.source(client=client)) as second:
            wait_until(lambda: len(second.watcher.mine) == len(first.watcher.mine) == 1)
            assert sum(job.positions.values()) == 40
            wait_until(lambda: job.group_offsets() == job.positions)
            first.leave()
            second.leave()
    assert job.counts == Counts(40, 0, 0)


def test_options_that_are_ours_unknown_or_wrong(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    for options in (
        {"enable_auto_commit": True},
        {"group_id": "hush"},
        {"sasl_plain_pasword": "hush"},
        {"security_protocol": "SASL", "sasl_plain_password": "hush"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN-HUSH", "sasl_plain_password": "hush"},
        {"security_protocol": "SSL", "ssl_cafile": "/absent.pem", "ssl_password": "hush"},
    ):
        with pytest.raises((ConfigError, SourceError)) as caught:
            source(broker.bootstrap, "t", options={"bootstrap_timeout_ms": 700} | options)
        said += traceback.format_exception(caught.value)
    for wrong in ({"start": "middle"}, {"on_missing": "ignore"}):
        with pytest.raises(ConfigError, match="earliest, latest"):
            source(broker.bootstrap, "t", **wrong)
    assert "hush" not in "".join(line for line in said if "{" not in line)
    assert "hush" not in caplog.text


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONNECTION, "bootstrap_timeout_ms", 3000)
    begun = time.monotonic()
    with pytest.raises(SourceUnavailableError, match="no answer from the Kafka broker"):
        source("127.0.0.1:1", "t")
    assert time.monotonic() - begun < PATIENCE_S
