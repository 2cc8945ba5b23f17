"""What running workers say if a partition does not advance, after 30 seconds, with real brokers and both clients.

`pytest tests/campaigns/test_stalls.py -m campaign -s` prints a table. The decisions have a fast test in
tests/unit/connectors/test_topicwatch.py.
"""

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from servers.broker import Broker
from servers.cluster import Cluster
from streamdp.errors import StreamDPError
from streamdp.store.store import Store
from tests.support.commands import Command
from tests.support.proxy import Proxy
from tests.support.topics import send
from tests.support.waiting import wait_until

CLIENTS = ("kafka-python", "confluent")
LIMIT_S = 30.0
JOB = """
job: NAME
source: {type: kafka, topic: TOPIC, client: CLIENT}
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
model: {estimator: LDPASGDRegressor}
commit: {records: 20, seconds: 0.5}
store: NAME.db
"""
VALUE = b'{"a": 0.5, "y": 0.25}'

pytestmark = pytest.mark.campaign


class Reading(Command):
    """A worker with metrics. `mark` forgets the events so far."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, client: str) -> None:
        self.client, self.topic = client, topic
        self.store = folder / f"{topic}-{client}.db"
        text = JOB.replace("NAME", self.store.stem).replace("CLIENT", client).replace("TOPIC", topic)
        self.store.with_suffix(".yaml").write_text(text)
        super().__init__(folder, bootstrap, "run", f"{self.store.stem}.yaml", "--metrics-port", "0")
        self.mark()

    def mark(self) -> None:
        self._seen = len(self.events)

    @property
    def new(self) -> list[dict[str, Any]]:
        return [event for event in self.events[self._seen :] if event["event"] != "commit"]

    @property
    def learned(self) -> int:
        with contextlib.suppress(StreamDPError, OSError):
            return sum(snapshot.counts.learned for snapshot in Store.snapshots(str(self.store)))
        return 0

    def stalls(self) -> set[tuple[str, str]]:
        """The stalls that were told and have not ended."""
        now: set[tuple[str, str]] = set()
        for event in list(self.events):
            if event["event"] in ("stall", "stall_end"):
                key = (event["shard"], event["reason"])
                now = now | {key} if event["event"] == "stall" else now - {key}
        return now

    def metrics(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by its labels, without the topic."""
        text = urllib.request.urlopen(self.of("metrics")[0]["url"], timeout=10).read().decode()
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name)
        return {tuple(v for k, v in s.labels.items() if k != "topic"): s.value for s in samples}

    def show(self, case: str, seconds: float) -> None:
        said = [event.get("message", event.get("reason", event.get("shards"))) for event in self.new]
        kinds = [event["event"] for event in self.new]
        lags = {"/".join(key): value for key, value in self.metrics("streamdp_lag").items()}
        stalls = {"/".join(key): round(value) for key, value in self.metrics("streamdp_stall_seconds").items()}
        line = (case, self.client, f"told after {seconds:.0f} s", f"lag {lags}", f"stall {stalls}")
        print("", *line, f"{len(kinds)} events: {list(zip(kinds, said, strict=True))[-2:]}", sep=" | ")


Readers = Callable[[str, str, int], list[Reading]]


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    """`readers(bootstrap, topic, records)`: a worker of each client that has learned all."""
    with contextlib.ExitStack() as stack:

        def run(bootstrap: str, topic: str, records: int) -> list[Reading]:
            found = [stack.enter_context(Reading(tmp_path, bootstrap, topic, client)) for client in CLIENTS]
            wait_until(lambda: all(reader.learned == records for reader in found))
            wait_until(lambda: all(set(reader.metrics("streamdp_lag").values()) == {0.0} for reader in found))
            for reader in found:
                assert not reader.of("stall")
                reader.mark()
            return found

        yield run


def stalled(case: str, workers: list[Reading], shard: str, reasons: set[str], began: float) -> None:
    """Each worker tells it in time, the metrics show it, and its lag is not known."""
    partition = shard.rpartition("/")[2]
    for worker in workers:
        wait_until(lambda: any((shard, reason) in worker.stalls() for reason in reasons), LIMIT_S + 5)  # noqa: B023
        told = time.monotonic() - began
        assert told < LIMIT_S
    time.sleep(max(0.0, began + LIMIT_S - time.monotonic()))
    for worker in workers:
        worker.show(case, told)
        assert {key for key in worker.metrics("streamdp_stall_seconds") if key[0] == partition} <= {
            (partition, reason) for reason in reasons
        }
        assert len(worker.new) < 12


def ended(workers: list[Reading], records: int) -> None:
    for worker in workers:
        wait_until(lambda: worker.learned == records)  # noqa: B023
        wait_until(lambda: not worker.stalls())  # noqa: B023
        assert worker.metrics("streamdp_stall_seconds") == {}
        worker.process.terminate()
        assert worker.end() == 0


def values(bootstrap: str, topic: str, records: int, partition: int = 0) -> None:
    send(bootstrap, topic, [(None, VALUE)] * records, partition)


def test_a_broker_that_does_not_answer(
    readers: Readers, broker_behind_proxy: tuple[Broker, Proxy], make_topic: Callable[..., str]
) -> None:
    (broker, proxy), topic = broker_behind_proxy, make_topic()
    values(broker.bootstrap, topic, 50)
    workers = readers(f"127.0.0.1:{proxy.port}", topic, 50)
    proxy.flows.clear()
    try:
        values(broker.bootstrap, topic, 10)
        stalled("broker does not answer", workers, f"{topic}/0", {"no_answer"}, time.monotonic())
        for worker in workers:
            assert worker.metrics("streamdp_lag") == {}
    finally:
        proxy.flows.set()
    ended(workers, 60)


def test_a_transaction_that_stays_open(readers: Readers, broker: Broker, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    values(broker.bootstrap, topic, 50)
    workers = readers(broker.bootstrap, topic, 50)
    writer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"tx-{topic}"})
    writer.init_transactions(30)
    writer.begin_transaction()
    for _ in range(100):
        writer.produce(topic, VALUE, partition=0)
    assert writer.flush(30) == 0
    values(broker.bootstrap, topic, 3000)
    stalled("open transaction", workers, f"{topic}/0", {"open_transaction"}, time.monotonic())
    for worker in workers:
        assert worker.metrics("streamdp_lag") == {("0",): 3100.0}
    writer.commit_transaction(30)
    ended(workers, 3150)


def test_a_topic_that_was_deleted(readers: Readers, broker: Broker, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    values(broker.bootstrap, topic, 50)
    workers = readers(broker.bootstrap, topic, 50)
    began = time.monotonic()
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.delete_topics([topic])
    for worker in workers:
        worker.until(lambda: {reason for _, reason in worker.stalls()} == {"no_topic"}, LIMIT_S + 5)  # noqa: B023
        told = time.monotonic() - began
        assert told < LIMIT_S
    time.sleep(max(0.0, began + LIMIT_S - time.monotonic()))
    for worker in workers:
        worker.show("topic deleted", told)
        assert worker.metrics("streamdp_lag") == {}
        assert {key[1] for key in worker.metrics("streamdp_stall_seconds")} == {"no_topic"}
        assert "other members" not in str(worker.new)
        worker.process.terminate()
        assert worker.end() == 0


def test_partitions_that_are_added(readers: Readers, broker: Broker, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    values(broker.bootstrap, topic, 50)
    workers = readers(broker.bootstrap, topic, 50)
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_partitions({topic: 2})
    began = time.monotonic()
    wait_until(lambda: len(admin_partitions(broker, topic)) == 2)
    values(broker.bootstrap, topic, 30, partition=1)
    for worker in workers:
        worker.until(lambda: worker.learned == 80, LIMIT_S)  # noqa: B023
        worker.show(f"partition added, learned after {time.monotonic() - began:.0f} s", 0)
    ended(workers, 80)


def admin_partitions(broker: Broker, topic: str) -> list[Any]:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        return list(admin.describe_topics([topic])[0]["partitions"])


def test_a_partition_that_loses_its_leader(tmp_path: Path, readers: Readers) -> None:
    with Cluster(tmp_path / "kafka") as cluster:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            admin.create_topics({"led": {"assignments": {0: [1], 1: [2], 2: [3]}}}, wait_for_metadata=True)
        for partition in range(3):
            values(cluster.bootstrap, "led", 50, partition)
        workers = readers(cluster.bootstrap, "led", 150)
        cluster.brokers[2].kill()
        began = time.monotonic()
        stalled("leader lost", workers, "led/2", {"no_leader", "no_answer"}, began)
        for worker in workers:
            assert set(worker.metrics("streamdp_lag")) == {("0",), ("1",)}
            assert worker.stalls() == {("led/2", "no_leader")}
        values(cluster.bootstrap, "led", 20, 0)
        wait_until(lambda: all(worker.learned == 170 for worker in workers))
        cluster.brokers[2].start()
        values(cluster.bootstrap, "led", 10, 2)
        ended(workers, 180)
