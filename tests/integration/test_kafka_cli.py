"""The commands for Kafka as a user types them, against a real broker: produce, run, status, and what they say."""

import base64
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import make_url

from connectors.kafkaclient import CONNECTION, connect
from connectors.kafkasink import SnapshotTopic, read_topic
from servers.broker import Broker
from servers.process import free_ports
from streamdp import load_snapshot
from streamdp.cli.kafka_job import lags, produce
from streamdp.data.records import Batch, DeadLetter, Shard
from streamdp.errors import NotAvailableError
from streamdp.runtime.prometheus import Metrics
from streamdp.serving.publish import committed, weights
from streamdp.serving.snapshots import newest, snapshot_from_json, snapshot_to_json
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store
from tests.support import topics
from tests.support.commands import Command, Quick, environment, streamdp
from tests.support.kafka_job import DEAD, JOB, PEOPLE, SECRET, TOTAL, counts, rows
from tests.support.proxy import Proxy
from tests.support.schemas import in_schema

KEY = "5a" * 32
DOUBTS = ("worse than the best constant", "do not fit the schema")
"""Of models of few records, some of which are bad."""


def met(shown: Mapping[str, int]) -> int:
    """How many records were counted."""
    return sum(shown[name] for name in ("learned", "refused", "left_out", "dead_letters"))


def messages(bootstrap: str, topic: str) -> list[Any]:
    return [json.loads(value) for value in read_topic(bootstrap, topic, {})]


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    topics.send(bootstrap, topic, ((b"t1", value) for value in values))


class Trained:
    """Topics with data, and a job of which two workers have learned all of it."""

    def __init__(self, folder: Path, bootstrap: str, make_topic: Callable[..., str]) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.topic = f"flights-{folder.name}-{os.getpid()}"
        self.dead = make_topic()
        self.models = make_topic(1, {"cleanup.policy": "compact"})
        self.store = folder / "kj.db"
        (folder / "data.csv").write_text(rows(2000))
        self.write("job.yaml", "kj", "kj.db")
        assert produce(str(folder / "data.csv"), self.topic, bootstrap, "tail", partitions=2) == TOTAL
        self.workers = self.run_two("job.yaml", self.store, "kj", TOTAL)

    def write(self, name: str, job: str, store: str, text: str = JOB) -> None:
        words = {"JOBNAME": job, "DEADTOPIC": self.dead, "TOPIC": self.topic, "MODELS": self.models, "STORE": store}
        for word, value in words.items():
            text = text.replace(word, value)
        (self.folder / name).write_text(text)

    def run_two(self, job: str, place: str | Path, name: str, expected: int, **more: str) -> list[Command]:
        """Until each has had a partition and all messages are counted."""
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(Command(self.folder, self.bootstrap, "run", job, **more)) for _ in range(2)]
            for command in found:
                command.until(lambda command=command: any(event["shards"] for event in command.of("assigned")), 180)
            found[0].until(lambda: _learned(place, name) == expected, 180)
            for command in found:
                command.process.terminate()
            for command in found:
                command.end()
        return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, broker: Any, make_topic: Callable[..., str]) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"), broker.bootstrap, make_topic)


@pytest.fixture(scope="module")
def scratch(make_topic: Callable[..., str]) -> str:
    return make_topic()


# -- produce ---------------------------------------------------------------------------------------------------------


def test_produce_makes_the_topic_and_reads_what_csv_may_hold(quick: Quick, tmp_path: Path, broker: Any) -> None:
    topic = f"odd-{os.getpid()}-{time.time_ns()}"
    text = '\ufeffid, note;x\t\r\n1,"a ""b"", c\nd"\r\n\r\n2,é\r\n3,' + "x" * 200_000 + "\r\n"
    (tmp_path / "odd.csv").write_bytes(text.encode())
    arguments = ("odd.csv", "--topic", topic, "--key", "note;x", "--partitions", "1")
    code, out, err = quick("produce", *arguments, bootstrap=broker.bootstrap)
    assert (code, out, err) == (0, f"3 records sent to {topic}\n", "")
    found = messages(broker.bootstrap, topic)
    assert found[:2] == [{"id": "1", "note;x": 'a "b", c\nd'}, {"id": "2", "note;x": "é"}]
    assert len(found[2]["note;x"]) == 200_000
    assert quick("produce", *arguments, bootstrap=broker.bootstrap)[0] == 0  # it is there already
    assert len(messages(broker.bootstrap, topic)) == 6


def test_produce_from_standard_input(tmp_path: Path, broker: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    done = subprocess.run(
        [sys.executable, "-m", "streamdp", "produce", "-", "--topic", topic, "--set", r"source.delimiter=\t"],
        cwd=tmp_path,
        env=environment(broker.bootstrap, LC_ALL="C", PYTHONUTF8="0"),
        input='\ufeffa\tb\n1\t"é\r\n"\n'.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert messages(broker.bootstrap, topic) == [{"a": "1", "b": "é\r\n"}]


@pytest.mark.parametrize(
    ("content", "arguments", "code", "said"),
    [
        (f"a,b\n{SECRET},2\n", ["--key", "c"], 3, "the header lacks the column 'c'"),
        (f"{SECRET},2\n", ["--key", "a"], 3, "the header lacks the column 'a'"),  # no header at all
        (f"a,b\n1,{SECRET}\n\n{SECRET}\n", [], 3, "row 4: expected 2 fields, got 1; the 1 records before it were sent"),
        (f"a,b\n1,{SECRET}\xff\n", [], 3, "not UTF-8"),
        ("", [], 3, "expected a header line"),
        ("a,a\n1,2\n", [], 3, "the header has a column twice"),
        ("a,b\n1,2\n", ["--topic", "there-is-none"], 3, "there is no topic 'there-is-none'"),
        ("a,b\n1,2\n", ["--topic", "no such name", "--partitions", "1"], 3, "name"),
        ("a,b\n1,2\n", ["--set", "source.delimiter=ab"], 2, "source.delimiter"),
        ("a,b\n1,2\n", ["--partitions", "0"], 2, "--partitions"),
        (None, [], 3, "data.csv: no such file"),
    ],
)
def test_mistakes_of_produce(
    quick: Quick,
    tmp_path: Path,
    broker: Any,
    scratch: str,
    content: str | None,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    if content is not None:
        (tmp_path / "data.csv").write_bytes(content.encode("latin-1"))
    topic = ["--topic", scratch] * ("--topic" not in arguments)
    got, out, err = quick("produce", "data.csv", *topic, *arguments, bootstrap=broker.bootstrap)
    assert got == code, err
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert SECRET not in err


def test_produce_without_brokers(quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONNECTION, "bootstrap_timeout_ms", 300)
    (tmp_path / "data.csv").write_text("a\n1\n")
    assert "--brokers" in quick.error(2, "produce", "data.csv", "--topic", "t")
    err = quick.error(3, "produce", "data.csv", "--topic", "t", "--brokers", "127.0.0.1:9")
    assert "no answer from" in err
    assert "127.0.0.1:9" in err
    assert err.count("\n") == 1


# -- run -------------------------------------------------------------------------------------------------------------


def test_two_workers_share_one_store(trained: Trained) -> None:
    for worker in trained.workers:
        assert worker.process.returncode == 0, worker.errors
        assert all(any(doubt in line for doubt in DOUBTS) for line in worker.errors)
        assert worker.events[-1]["event"] == "end"
        assert worker.events[-1]["reason"] == "stopped"
    assert sum(worker.events[-1]["records"] for worker in trained.workers) == TOTAL
    assert {shard for w in trained.workers for event in w.of("assigned") for shard in event["shards"]} == {
        f"{trained.topic}/0",
        f"{trained.topic}/1",
    }
    last: dict[str, Any] = {}
    for worker in trained.workers:
        for event in worker.of("commit"):  # either worker may have had a shard first
            last |= {
                shard: now
                for shard, now in event["shards"].items()
                if shard not in last or now["position"]["offset"] >= last[shard]["position"]["offset"]
            }
    # a busy machine may commit before the broker has told where a partition ends
    assert {shard["lag"] for shard in last.values()} <= {0, None}
    assert sum(shard["dead_letters"] for shard in last.values()) == DEAD
    assert (
        sum(shard["learned"] + shard["refused"] + shard["left_out"] + shard["dead_letters"] for shard in last.values())
        == TOTAL
    )
    measured = [event for worker in trained.workers for event in worker.of("holdout")]
    assert max(map(met, measured)) == TOTAL
    assert "accuracy" in measured[0]["holdout"]
    assert counts(trained.store).refused == sum(shard["refused"] for shard in last.values()) > 0


def test_readers_of_a_sharded_store(trained: Trained, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    at: dict[str, Any] = {"folder": trained.folder}
    out = quick.output("status", "kj.db", "--kafka", trained.bootstrap, "--json", **at)
    status = json.loads(out)
    assert status["lag"] == {f"{trained.topic}/0": 0, f"{trained.topic}/1": 0}
    assert met(status) == TOTAL
    assert "lag:" in quick("status", "kj.db", "--kafka", trained.bootstrap, **at)[1]
    assert "eps=3" in quick("statement", "kj.db", **at)[1]
    assert "origin=JFK" in quick("weights", "kj.db", **at)[1]
    monkeypatch.setitem(CONNECTION, "bootstrap_timeout_ms", 300)
    err = quick.error(3, "status", "kj.db", "--kafka", "127.0.0.1:9", **at)
    assert "no answer" in err
    assert "127.0.0.1:9" in err
    _, out, _ = streamdp(trained.folder, "predict", "kj.db", stdin="delay,origin\n-30,EWR\n60,EWR\n")
    predicted = [float(line.split(",")[-1]) for line in out.splitlines()[1:]]
    estimator: Any = committed(str(trained.store)).estimator
    expected = estimator.predict_proba_encoded(np.array([[-1.0, 0.0], [1.0, 0.0]]))[:, 1]
    assert predicted == pytest.approx(expected, rel=1e-5)


def test_lag_of_what_nobody_has_read(trained: Trained, quick: Quick, tmp_path: Path) -> None:
    """A partition without a commit, and a store of another kind of job."""
    offsets = {snapshot.shard: snapshot.position["offset"] for snapshot in Store.snapshots(trained.store)}
    one, other = sorted(offsets)
    found = lags(trained.bootstrap, {}, {one: {"offset": 1}})
    assert found[one] >= offsets[one] - 1
    assert found[other] >= offsets[other]
    (tmp_path / "d.csv").write_text(rows(100))
    flags = ["--target", "late", "--classes", "False,True", "--feature", "delay=-30:60"]
    assert quick("run", "d.csv", *flags)[0] == 0
    code, _, err = quick("status", "d.db", "--kafka", trained.bootstrap)
    assert (code, err) == (3, "streamdp: this job does not read Kafka\n")


def test_a_published_model_is_the_stores(trained: Trained) -> None:
    model, ours = load_snapshot(trained.bootstrap, trained.models, "kj"), committed(str(trained.store))
    assert weights(model.estimator) == weights(ours.estimator)
    assert model.statement() == ours.statement()
    assert model.snapshot.counts == ours.snapshot.counts
    published = json.loads((trained.folder / "model.json").read_text())
    assert published["statement"] == ours.statement()
    assert published["counts"]["dead_letters"] <= DEAD
    assert "accuracy" in published["holdout"]
    with pytest.raises(NotAvailableError):
        load_snapshot(trained.bootstrap, trained.models, "another")


def test_a_late_snapshot_of_an_earlier_owner_does_not_survive_the_newer_model(
    broker: Any, make_topic: Callable[..., str]
) -> None:
    """The topic is compacted: of all messages with one key, the last one stays."""
    name, shard = make_topic(), Shard("t", 0)
    old, new = (SnapshotTopic(name, broker.bootstrap) for _ in range(2))
    for topic, epoch, seq, at in ((old, 1, 1, 10.0), (new, 2, 1, 11.0), (new, 2, 2, 12.0), (old, 1, 1, 10.0)):
        topic.publish("j", {(shard, epoch): snapshot_to_json(snapshot(epoch, seq, at))})
    old.close()
    new.close()
    consumer = connect(broker.bootstrap, None, {})
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    kept: dict[bytes, bytes | None] = {}
    deleted = []
    while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
        for message in consumer.poll(timeout_ms=1000).get(partition, []):
            kept[message.key] = message.value
            deleted += [message.key] * (message.value is None)
    consumer.close()
    assert b"j/t/0/1" in deleted
    (left,) = newest([snapshot_from_json(value) for value in kept.values() if value], "j")
    assert (left.epoch, left.seq) == (2, 2)


def test_dead_letters_say_where_and_why_and_never_what(trained: Trained) -> None:
    letters = messages(trained.bootstrap, trained.dead)
    mine = [letter for letter in letters if letter["topic"] == trained.topic]
    assert {frozenset(letter) for letter in mine} == {frozenset(["topic", "partition", "offset", "reason", "column"])}
    assert {(letter["reason"], letter["column"]) for letter in mine} == {("unknown_category", "origin")}
    assert len({(letter["partition"], letter["offset"]) for letter in mine}) >= DEAD
    assert SECRET not in json.dumps(mine)


def test_no_output_of_a_worker_shows_a_value(trained: Trained) -> None:
    for worker in trained.workers:
        said = json.dumps(worker.events) + "".join(worker.errors)
        assert SECRET not in said
        assert f"t{PEOPLE - 1}" not in said
    for path in trained.folder.iterdir():
        if path.suffix != ".csv":
            assert SECRET.encode() not in path.read_bytes(), path.name


def test_sigterm_resumes_metrics(trained: Trained, quick: Quick) -> None:
    """A worker goes on where others have ended; its metrics are its counts; SIGTERM ends it in order."""
    before = counts(trained.store)
    (trained.folder / "more.csv").write_text(rows(300))
    produced = ["produce", "more.csv", "--topic", trained.topic, "--key", "tail"]
    quick.output(*produced, folder=trained.folder, bootstrap=trained.bootstrap)
    with Command(trained.folder, trained.bootstrap, "run", "job.yaml", "--metrics-port", "0") as command:
        command.until(lambda: _learned(trained.store) - _sum(before) == 306)
        url = command.of("metrics")[0]["url"]
        texts: list[str] = []

        def shown() -> bool:  # the metrics follow the commit at once, but not in the same instant
            texts.append(urllib.request.urlopen(url, timeout=60).read().decode())
            values = [(name, value) for name, _, value in samples(texts[-1])]
            records = sum(value for name, value in values if name == "streamdp_records_total")
            # nor has the broker told at once where a partition ends
            return records == 306 and ("streamdp_spend_count", 300) in values and ("streamdp_lag", 0) in values

        command.until(shown)
        text = texts[-1]
        command.process.send_signal(signal.SIGTERM)
        assert command.end() == 0
    assert all(any(doubt in line for doubt in DOUBTS) for line in command.errors)
    assert (command.events[-1]["event"], command.events[-1]["reason"]) == ("end", "stopped")
    assert command.events[-1]["records"] == 306
    assert SECRET not in text
    after = counts(trained.store)
    found = samples(text)
    by_outcome: Counter[str] = Counter()
    for name, labels, value in found:
        if name == "streamdp_records_total":
            by_outcome[labels["outcome"]] += int(value)
    for outcome in ("learned", "refused", "dead_letters"):
        assert by_outcome[outcome] == getattr(after, outcome) - getattr(before, outcome)
    one = {name: value for name, labels, value in found if not labels}
    assert one["streamdp_commits_total"] == one["streamdp_commit_seconds_count"] == len(command.of("commit"))
    assert one["streamdp_commit_seconds_sum"] > 0
    many = {(name, *labels.values()): value for name, labels, value in found}
    assert many["streamdp_dead_letters_total", "unknown_category"] == 6
    assert {value for name, _, value in found if name == "streamdp_lag"} == {0.0}
    assert many["streamdp_spend_bucket", "0.3"] == 0
    assert many["streamdp_spend_bucket", "1.0"] == many["streamdp_spend_bucket", "+Inf"] == 300
    assert one["streamdp_spend_sum"] == pytest.approx(150 * 0.5 + 150 * 1)
    assert _members(trained.bootstrap, "streamdp-kj") == 0  # at once: nobody waits for its session to end


def _sum(found: Counts) -> int:
    return found.learned + found.refused + found.left_out + found.dead_letters


def _learned(store: str | Path, job: str | None = None) -> int:
    return _sum(counts(store, job))


def _members(bootstrap: str, group: str) -> int:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found: Any = admin.describe_groups([group])
    finally:
        admin.close()
    return len((found[group] if isinstance(found, dict) else found[0])["members"])


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]


@pytest.mark.campaign
def test_workers_on_postgres(trained: Trained, postgres: Any, quick: Quick) -> None:
    job = f"pg-{os.getpid()}-{time.time_ns()}"
    place = in_schema(postgres.url, job)
    text = JOB.replace("publish: model.json\nholdout: data.csv\n", "").replace("  publish_topic: MODELS\n", "")
    trained.write("pg.yaml", job, place, text)
    at: dict[str, Any] = {"folder": trained.folder}
    err = quick.error(2, "run", "pg.yaml", bootstrap=trained.bootstrap, **at)
    assert "STREAMDP_SUBJECT_KEY" in err
    assert err.count("\n") == 1
    expected = len(messages(trained.bootstrap, trained.topic))
    workers = trained.run_two("pg.yaml", place, job, expected, STREAMDP_SUBJECT_KEY=KEY)
    assert [worker.process.returncode for worker in workers] == [0, 0], [worker.errors for worker in workers]
    assert sum(worker.events[-1]["records"] for worker in workers) == expected == _sum(counts(place, job))
    for command in ("status", "statement", "weights"):
        assert quick(command, place, **at) == quick(command, place, "--job", job, **at)
    assert f"holds {job!r}, and not 'nobody'" in quick.error(4, "status", place, "--job", "nobody", **at)
    err = quick.error(4, "run", "pg.yaml", bootstrap=trained.bootstrap, STREAMDP_SUBJECT_KEY="a5" * 32, **at)
    assert "not the subject key" in err


@pytest.mark.campaign
def test_two_workers_learn_groups_with_effects_of_their_own(trained: Trained, quick: Quick) -> None:
    """Each has a model of its partition, with all groups; the answer is their average."""
    text = JOB.replace("  publish_topic: MODELS\n", "").replace("publish: model.json\nholdout: data.csv\n", "")
    text = text.replace("[EWR, JFK]", "{categories: [EWR, JFK], per: true}").replace("  budget: eps\n", "", 1)
    text = text.replace("estimator: LDPASGDClassifier", "trust: process").replace("eps=3", "eps=160")
    text = text.replace("eps=1\n", "eps=8\n  batch_size: 20\n")  # a partition has some 50 people
    trained.write("groups.yaml", "groups", "groups.db", text)
    store, at = trained.folder / "groups.db", {"folder": trained.folder}
    expected = len(messages(trained.bootstrap, trained.topic))
    workers = trained.run_two("groups.yaml", store, "groups", expected)
    assert [worker.process.returncode for worker in workers] == [0, 0], [worker.errors for worker in workers]
    assert len(Store.snapshots(store)) == 2
    found = {row["name"]: row["value"] for row in json.loads(quick.output("weights", str(store), "--json", **at))}
    assert {"origin=EWR", "origin=JFK", "origin=EWR x delay", "origin=JFK x delay"} <= found.keys()
    chances = committed(str(store)).estimator.predict_proba_one({"delay": 60, "origin": "JFK"})
    assert 0 < chances["True"] < 1


def test_a_broker_that_is_down_at_the_start_and_goes_away_later(
    tmp_path: Path, broker_behind_proxy: tuple[Broker, Proxy], make_topic: Callable[..., str]
) -> None:
    """At the start, nobody listens on the address; later, connections are cut. The campaign kills brokers."""
    port, topic = free_ports(tmp_path, ["first"])["first"], make_topic()
    broker, proxy = broker_behind_proxy
    good = b'{"delay": "1", "origin": "EWR", "late": "True", "eps": ""}'
    send(broker.bootstrap, topic, good)
    text = small_job(topic, "b", "b.db").replace("  options:\n", "  options:\n    bootstrap_timeout_ms: 500\n")
    (tmp_path / "job.yaml").write_text(text)
    with Command(tmp_path, f"127.0.0.1:{port}", "run", "job.yaml") as command:
        command.until(lambda: command.errors)
        assert "no answer from" in command.errors[0]
        assert f"127.0.0.1:{port}" in command.errors[0]
        with Proxy(proxy.port, listen=port):
            command.until(lambda: (tmp_path / "b.db").exists() and _learned(tmp_path / "b.db") == 1)
            told = len(command.of("source"))
            with proxy.away():
                send(broker.bootstrap, topic, good)
                command.until(lambda: len(command.of("source")) > told)
            command.until(lambda: _learned(tmp_path / "b.db") == 2)
            command.process.send_signal(signal.SIGTERM)
            assert command.end() == 0, command.errors
    assert command.events[-1]["records"] == 2
    assert _learned(tmp_path / "b.db") == 2
    assert all(line.startswith("streamdp: ") and "trying again" in line for line in command.errors), command.errors


def small_job(topic: str, job: str, store: str) -> str:
    """A job without topics for dead letters and snapshots, and without files."""
    text = JOB.replace("TOPIC\n  dead_letter_topic: DEADTOPIC\n  publish_topic: MODELS", topic)
    text = text.replace("publish: model.json\nholdout: data.csv\n", "")
    return text.replace("JOBNAME", job).replace("STORE", store)


def test_a_database_that_is_down_at_the_start_is_waited_for(
    tmp_path: Path, broker: Any, postgres: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    send(broker.bootstrap, topic, b'{"delay": "1", "origin": "EWR", "late": "True", "eps": ""}')
    port = free_ports(tmp_path, ["database"])["database"]
    url = make_url(postgres.url)
    job = f"away-{topic}"
    there = in_schema(url.set(port=port).render_as_string(hide_password=False), job)
    (tmp_path / "job.yaml").write_text(small_job(topic, job, there))
    with Command(tmp_path, broker.bootstrap, "run", "job.yaml", STREAMDP_SUBJECT_KEY=KEY) as command:
        command.until(lambda: command.errors)
        with Proxy(url.port or 5432, listen=port):
            command.until(lambda: any(e["shards"][f"{topic}/0"]["learned"] for e in command.of("commit")))
            command.process.send_signal(signal.SIGTERM)
            assert command.end() == 0, command.errors
    assert all("does not answer" in line and "trying again" in line for line in command.errors), command.errors
    assert _learned(in_schema(postgres.url, job), job) == 1


HANGS = """CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION hang()"""
"""From now on, COMMIT waits."""


@pytest.mark.campaign
def test_sigterm_leaves_a_commit_that_does_not_return(
    tmp_path: Path, broker: Any, server_database: str, make_topic: Callable[..., str]
) -> None:
    topic, record = make_topic(), b'{"delay": "1", "origin": "EWR", "late": "True", "eps": ""}'
    send(broker.bootstrap, topic, record)
    (tmp_path / "job.yaml").write_text(small_job(topic, topic, server_database))
    with Command(tmp_path, broker.bootstrap, "run", "job.yaml", STREAMDP_SUBJECT_KEY=KEY) as command:
        command.until(lambda: any(e["shards"][f"{topic}/0"]["learned"] for e in command.of("commit")))
        with psycopg.connect(server_database, autocommit=True) as admin:
            admin.execute("SET search_path TO streamdp, public")
            admin.execute(HANGS.encode())
            send(broker.bootstrap, topic, record)
            command.until(lambda: command.of("waiting"))  # says so after 30 s
            command.process.send_signal(signal.SIGTERM)
            assert command.end() == 4, command.errors
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            admin.execute("DROP TRIGGER hang ON commits")
    assert "did not end within 20 s after the stop" in command.errors[-1]
    with Command(tmp_path, broker.bootstrap, "run", "job.yaml", STREAMDP_SUBJECT_KEY=KEY) as command:
        command.until(lambda: _learned(server_database, topic) == 2)


def test_sigterm_before_the_work_begins_ends_the_command_in_order(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(small_job("t", "s", "s.db"))
    with Command(tmp_path, "127.0.0.1:1", "run", "job.yaml") as command:
        command.until(lambda: command.errors)
        command.process.send_signal(signal.SIGTERM)
        assert command.end() == 0
    assert all("trying again" in line for line in command.errors), command.errors
    assert not (tmp_path / "s.db").exists()


def test_payloads_are_kept_only_where_the_user_wants_it(
    trained: Trained, tmp_path: Path, make_topic: Callable[..., str]
) -> None:
    """One that is too long for a message would stop the worker for ever."""
    topic, dead = make_topic(), make_topic()
    bad = b'{"delay": ' + SECRET.encode() + b"}"
    send(trained.bootstrap, topic, bad, b"\xff" * 1_500_000)
    text = JOB.replace("DEADTOPIC", f"{dead}\n  keep_payload: true").replace("  publish_topic: MODELS\n", "")
    text = text.replace("publish: model.json\nholdout: data.csv\n", "").replace("TOPIC", topic)
    (tmp_path / "job.yaml").write_text(text.replace("JOBNAME", f"j{topic}").replace("STORE", "s.db"))
    with Command(tmp_path, trained.bootstrap, "run", "job.yaml") as command:
        command.until(
            lambda: (tmp_path / "s.db").exists() and command.of("commit") and _learned(tmp_path / "s.db") == 2
        )
        command.process.terminate()
        assert command.end() == 3  # nothing was learned
    assert command.events[-1]["records"] == 2
    assert "2 of 2 rows (100 %) were dropped" in command.errors[0]
    assert "2 records do not fit the schema: missing in column 'origin' (1), too long (1)" in command.errors[1]
    first, second = messages(trained.bootstrap, dead)
    assert base64.b64decode(first["payload"]) == bad
    assert (first["offset"], first["reason"]) == (0, "missing")
    assert "payload" not in second
    assert second["payload_bytes"] == 1_500_000


def test_a_column_that_no_message_has_is_told_at_once_and_is_no_success(trained: Trained, tmp_path: Path) -> None:
    text = (trained.folder / "job.yaml").read_text().replace("delay:", "dealy:").replace("holdout: data.csv\n", "")
    (tmp_path / "job.yaml").write_text(text.replace("job: kj", "job: misspelt"))
    with Command(tmp_path, trained.bootstrap, "run", "job.yaml") as command:
        assert command.end() == 3
    assert "(100 %) do not fit the schema: missing in column 'dealy'" in command.errors[-1]
    assert "nothing was learned or spent" in command.errors[-1]
    assert counts(tmp_path / "kj.db", "misspelt") == Counts()
    assert SECRET not in " ".join(command.errors)


def test_a_port_that_is_taken(trained: Trained, quick: Quick) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        err = quick.error(
            2, "run", "job.yaml", "--metrics-port", port, folder=trained.folder, bootstrap=trained.bootstrap
        )
    assert err == f"streamdp: --metrics-port {port}: address already in use\n"


def test_a_topic_that_is_not_there_leaves_no_store(quick: Quick, tmp_path: Path, broker: Any) -> None:
    for more in ("", "\n  client: confluent"):
        (tmp_path / "job.yaml").write_text(small_job("there-is-none" + more, "j", "s.db"))
        err = quick.error(3, "run", "job.yaml", bootstrap=broker.bootstrap)
        assert "there is no topic 'there-is-none'" in err
        assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


# -- configuration ---------------------------------------------------------------------------------------------------

PLAIN = (
    JOB.replace("JOBNAME", "j")
    .replace("DEADTOPIC", "dead")
    .replace("TOPIC", "t")
    .replace("  publish_topic: MODELS\n", "")
    .replace("STORE", "s.db")
    .replace("holdout: data.csv\n", "")
)
HIDDEN = "hunter2"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("  topic: t\n", f"  topic: t\n  tpoic: {HIDDEN}\n", 5, "source.tpoic: unknown setting"),
        ("  topic: t\n", "", 2, "source.topic: missing setting"),
        ("  topic: t\n", f"  topic: t\n  start: {HIDDEN}\n", 5, "source.start: "),
        ("  dead_letter_topic: dead", f"  dead_letters: {HIDDEN}\n  dead_letter_topic: dead", 6, "not both"),
        ("  options:\n", f"  options:\n    sasl_plain_password: {HIDDEN}\n", 7,
            "options.sasl_plain_password: a secret"),
        ("  options:\n", f"  options:\n    SSL_Password: {HIDDEN}\n", 7, "options.SSL_Password: a secret"),
        ("  options:\n", f"  options:\n    ssl_cafile: {{vault: {HIDDEN}}}\n", 7,
            "options.ssl_cafile: expected a value"),
        ("  subject: tail\n", "", 18, "cap: needs schema.subject"),
        ("  options:\n", "  options:\n    sasl_plain_password: {env: NO_SUCH}\n", None, "sasl_plain_password: the env"),
        ("  options:\n", "  options:\n    sasl_plain_password: {file: none}\n", None, "password: cannot read the file"),
        ("  options:\n", f"  options:\n    group_id: {HIDDEN}\n", None, "'group_id' is set by streamdp"),
        ("  options:\n", f"  options:\n    no_such_option: {HIDDEN}\n", None, "no_such_option"),
        ("x", "x", None, "source.brokers: missing setting; add it, or set STREAMDP_KAFKA"),
    ],
)  # fmt: skip
def test_mistakes_in_a_job(quick: Quick, tmp_path: Path, old: str, new: str, line: int | None, said: str) -> None:
    (tmp_path / "job.yaml").write_text(PLAIN.replace(old, new, 1))
    code, out, err = quick("run", "job.yaml", bootstrap=None if "brokers" in said else "127.0.0.1:9")
    assert (code, out) == (2, ""), err
    assert said in err
    assert line is None or f"job.yaml, line {line}: " in err
    assert err.startswith("streamdp: ")
    assert err.count("\n") == 1
    assert HIDDEN not in err


def test_options_of_kafka_jobs_and_of_files(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(rows(10))
    flags = ["--target", "late", "--classes", "False,True", "--feature", "delay=-30:60"]
    for option in (["--idle-seconds", "1"], ["--metrics-port", "0"], ["--on-missing", "latest"]):
        err = quick.error(2, "run", "data.csv", *flags, *option)
        assert option[0] in err
        assert "read Kafka" in err
    (tmp_path / "job.yaml").write_text(PLAIN)
    assert "--stdin" in quick.error(2, "run", "job.yaml", "--stdin", "new", bootstrap="127.0.0.1:9")


# -- what needs no broker --------------------------------------------------------------------------------------------


def snapshot(epoch: int, seq: int, at: float) -> Snapshot:
    return Snapshot("j", "f", "", seq, at, Counts(), {"offset": 0}, {}, Shard("t", 0), epoch)


def test_the_newest_snapshot_is_that_of_the_last_owner_and_of_the_last_store() -> None:
    owners = [snapshot(1, 1, 10.0), snapshot(1, 2, 11.0), snapshot(2, 3, 12.0)]
    for order in itertools.permutations(owners):
        assert newest(order, "j") == [owners[2]]
    assert newest([*owners, anew := snapshot(1, 1, 20.0)], "j") == [anew]  # the store was removed
    ahead = replace(owners[2], committed_at=10.5)  # the new owner's clock is behind
    assert newest([*owners[:2], ahead], "j") == [ahead]
    assert newest(owners, "k") == []


def batch(first: int, n: int, dead: int) -> Batch:
    places = np.arange(first, first + n)
    letters = [DeadLetter(first + n + i, "missing") for i in range(dead)]
    return Batch(("a",), np.zeros((n, 1)), np.zeros(n), places, {"offset": first + n + dead}, dead=letters)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(1.0, lambda positions: dict.fromkeys(positions, 0))


def shown(metrics: Metrics) -> tuple[float, float, float]:
    """Records, dead letters by reason, spends."""
    found = samples(_text(metrics))
    return (
        sum(value for name, _, value in found if name == "streamdp_records_total"),
        sum(value for name, _, value in found if name == "streamdp_dead_letters_total"),
        sum(value for name, _, value in found if name == "streamdp_spend_count"),
    )


def _text(metrics: Metrics) -> str:
    from prometheus_client import generate_latest

    return generate_latest(metrics.registry).decode()


def part(n: int, dead: int) -> Part:
    return Part({}, {"offset": n + dead}, Counts(n, 0, dead))


def test_metrics_forget_what_the_worker_forgot(metrics: Metrics) -> None:
    mine, other = Shard("t", 0), Shard("t", 1)
    metrics.assigned({mine: Counts()})
    metrics.learned(mine, batch(0, 8, 2), Counts(8, 0, 2))
    assert shown(metrics) == (0, 0, 0)
    metrics.rolled_back()
    metrics.learned(mine, batch(0, 3, 2), Counts(3, 0, 2))
    metrics.learned(mine, batch(5, 5, 0), Counts(8, 0, 2))
    metrics.assigned({mine: Counts(), other: Counts(100, 0, 0)})  # another comes before the commit
    metrics.learned(other, batch(100, 1, 1), Counts(101, 0, 1))
    metrics.committed({mine: part(8, 2)}, 0.01)
    assert shown(metrics) == (10, 2, 8)
    metrics.assigned({mine: Counts(8, 0, 2)})  # the other is taken away, and what was learned of it with it
    metrics.assigned({mine: Counts(8, 0, 2), other: Counts(200, 0, 5)})
    metrics.learned(other, batch(205, 1, 0), Counts(201, 0, 5))
    metrics.committed({other: part(201, 5)}, 0.01)
    assert shown(metrics) == (11, 2, 9)


STATISTICS = """
job: waits
source: {type: kafka, topic: TOPIC, format: json}
schema: {features: {wait: [0, 100], day: [work, free]}}
statistics: {mean wait: {mean: wait, by: day}, days: {count: day}}
model: {budget: eps=1}
"""


def test_statistics_of_a_topic_add_up_over_its_partitions(quick: Quick, tmp_path: Path, broker: Any) -> None:
    topic, n = f"waits-{os.getpid()}-{time.time_ns()}", 6000
    rng = np.random.default_rng(3)
    lines = [
        f"{wait:.1f},{day}" for wait, day in zip(rng.uniform(0, 60, n), rng.choice(["work", "free"], n), strict=True)
    ]
    (tmp_path / "waits.csv").write_text("\n".join(["wait,day", *lines]) + "\n")
    (tmp_path / "job.yaml").write_text(STATISTICS.replace("TOPIC", topic))
    assert produce(str(tmp_path / "waits.csv"), topic, broker.bootstrap, None, partitions=2) == n
    quick.output("run", "job.yaml", "--max-records", str(n), bootstrap=broker.bootstrap)
    rows = json.loads(quick.output("stats", "waits.db", "--json"))
    assert [row["group"] or row["item"] for row in rows] == ["work", "free"] * 2
    assert all(row["low"] < row["value"] < row["high"] for row in rows)
    assert rows[0]["value"] == pytest.approx(30, abs=5)
    assert rows[2]["value"] + rows[3]["value"] == pytest.approx(n, abs=500)
    assert json.loads(quick.output("status", "waits.db", "--json"))["learned"] == n
