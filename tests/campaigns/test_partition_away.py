"""A partition without a leader: the others are learned, the command names it, and its lag is not known."""

import json
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from connectors.topicwatch import unread
from servers.cluster import Cluster
from streamdp.cli.kafka_job import produce
from streamdp.errors import SourceUnavailableError
from streamdp.store.store import Store
from tests.support.commands import Command, Quick

pytestmark = pytest.mark.campaign

JOB = """
job: away
source: {type: kafka, topic: flights, client: CLIENT}
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
model: {estimator: LDPASGDRegressor}
commit: {records: 20, seconds: 0.5}
store: away.db
"""


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_the_other_partitions_are_learned(tmp_path: Path, quick: Quick, client: str) -> None:
    (tmp_path / "data.csv").write_text("a,y,k\n" + "".join(f"0.5,0.25,{i}\n" for i in range(600)))
    (tmp_path / "job.yaml").write_text(JOB.replace("CLIENT", client))
    with Cluster(tmp_path / "kafka") as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        spread = {0: [1], 1: [2], 2: [3]}
        admin.create_topics({"flights": {"assignments": spread}}, wait_for_metadata=True)
        admin.close()
        produce(str(tmp_path / "data.csv"), "flights", cluster.bootstrap, "k")
        cluster.brokers[2].kill()
        rest = ",".join(broker.bootstrap for broker in cluster.brokers[:2])
        with Command(tmp_path, rest, "run", "job.yaml") as worker:

            def learned() -> int:
                try:
                    return sum(s.counts.learned for s in Store.snapshots(str(tmp_path / "away.db")))
                except Exception:  # noqa: BLE001 - not created yet
                    return 0

            def known() -> dict[int, int]:
                try:
                    found = unread(rest, {}, {}, ("flights",))
                except SourceUnavailableError:  # the cluster does not know yet that the broker is away
                    return {}
                return {shard.partition: lag for shard, lag in found.items() if lag is not None}

            worker.until(lambda: set(known()) == {0, 1}, 60)
            ends = known()
            worker.until(lambda: learned() == sum(ends.values()), 60)
            worker.until(lambda: any("flights/2" in str(event.get("message")) for event in worker.events), 60)
            code, out, _ = quick("status", "away.db", "--kafka", rest, "--json", folder=tmp_path)
            assert code == 0
            assert json.loads(out)["lag"]["flights/2"] is None
            cluster.brokers[2].start()
            worker.until(lambda: learned() == 600, 90)
            worker.process.terminate()
            assert worker.end() == 0
