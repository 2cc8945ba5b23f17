"""`streamdp init --topic` and `check`: a job for a Kafka topic before it runs, against a real broker."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from connectors.kafkaclient import CONNECTION
from streamdp.config.yaml12 import YamlText
from tests.support import topics
from tests.support.commands import Quick
from tests.support.kafka_job import counts

SECRET = "4711.25"
N = 400


def objects() -> list[bytes]:
    return [
        json.dumps({"age": 20 + i % 60, "city": ("Lyon", "Paris")[i % 2], "id": f"p{i}", "late": i % 3 == 0}).encode()
        for i in range(N)
    ]


def test_a_topic_is_drafted_as_a_file_of_its_records_is_and_learned(
    quick: Quick, tmp_path: Path, broker: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    others = [SECRET.encode() + b"{", b"[1]", None]
    topics.send(broker.bootstrap, topic, ((b"%d" % i, value) for i, value in enumerate([*others, *objects()])))
    (tmp_path / "data.jsonl").write_bytes(b"\n".join([*objects(), b""]))
    columns = ("--target", "late", "--subject", "id")
    said = quick.error(0, "init", "--topic", topic, *columns, bootstrap=broker.bootstrap)
    assert f"3 of the latest messages of {topic} are no JSON objects" in said
    assert SECRET not in said
    quick.error(0, "init", "data.jsonl", *columns, "-o", "file.yaml")
    text = (tmp_path / "job.yaml").read_text()
    job, of_file = YamlText(text, "-").data, YamlText((tmp_path / "file.yaml").read_text(), "-").data
    assert job["schema"] == of_file["schema"]
    assert job["job"] == topic
    assert job["source"] == {"type": "kafka", "topic": topic, "brokers": broker.bootstrap, "subject_from": "value"}
    assert job["model"] == {"trust": "process", "budget": "eps=1"}
    assert job["schema"]["features"]["city"] == ["Lyon", "Paris"]  # of 200 people each
    assert "NOT PRIVATE" in text
    code, out, _ = quick("check", "job.yaml")
    assert code == 2
    assert [line.split(" is empty")[0].split("schema.")[1] for line in out.splitlines()] == ["features.age"]
    text = text.replace("    age:", "    age: [0, 120]")
    (tmp_path / "job.yaml").write_text(text)
    quick.output("run", "job.yaml", "--max-records", str(N + len(others)))
    found = counts(tmp_path / f"{topic}.db")
    assert (found.learned, found.dead_letters) == (N, len(others))


JOB = """job: clicks
source: {type: kafka, topic: TOPIC, subject_from: KEY}
schema:
  features: {age: [0, 50], city: [Lyon, Rome]}
  target: {column: late, classes: [false, true]}
  subject: SUBJECT
model: {trust: process, budget: eps=1}
"""


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_check_says_of_a_topic_what_it_says_of_a_file(
    client: str, quick: Quick, tmp_path: Path, broker: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    topics.send(broker.bootstrap, topic, ((None, value) for value in objects()))
    (tmp_path / "data.jsonl").write_bytes(b"\n".join([*objects(), b""]))
    text = JOB.replace("KEY", "value").replace("SUBJECT", "id")
    (tmp_path / "file.yaml").write_text(
        text.replace("kafka, topic: TOPIC, subject_from: value", "jsonl, path: data.jsonl")
    )
    (tmp_path / "job.yaml").write_text(text.replace("TOPIC", f"{topic}, client: {client}"))
    found = [quick("check", name, "--json", bootstrap=broker.bootstrap) for name in ("file.yaml", "job.yaml")]
    of_file, of_topic = (json.loads(out) for _, out, _ in found)
    assert [code for code, *_ in found] == [3, 3]  # half of the cities are not declared
    data = str(tmp_path / "data.jsonl")
    assert of_topic.pop("problems") == [one.replace(data, topic) for one in of_file.pop("problems")]
    assert of_topic["warnings"].pop(0).startswith("each worker learns a model of its own records")
    assert of_topic == of_file | {"of": N}
    assert of_topic["columns"]["city"]["seen"] == {"Lyon": N // 2, "Rome": 0}
    assert not (tmp_path / "clicks.db").exists()
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        assert "streamdp-clicks" not in str(admin.list_groups())


def test_check_reads_some_messages_of_each_partition(
    quick: Quick, tmp_path: Path, broker: Any, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamdp.config.checking.BLOCK", 100)
    topic = make_topic(2)
    numbers = ({"n": i, "age": 7 * i % 50, "city": SECRET if i < 60 else "Lyon", "late": i % 3 == 0} for i in range(N))
    values = [json.dumps(one).encode() for one in numbers]
    topics.send(broker.bootstrap, topic, [(None, b"[1]"), *((b"p1", value) for value in values[: N // 2])], 0)
    topics.send(broker.bootstrap, topic, ((b"p2", value) for value in values[N // 2 :]), 1)
    text = (
        JOB.replace("KEY", "key").replace("SUBJECT", "id").replace("TOPIC", topic).replace("age:", "n: [0, 400], age:")
    )
    text = text.replace("TOPIC", topic)
    (tmp_path / "job.yaml").write_text(text)
    code, out, err = quick("check", "job.yaml", bootstrap=broker.bootstrap)
    assert (code, err) == (3, "")
    assert "50 of 100 records fit the schema (50.0 %)." in out
    assert f"The topic has about {N + 1}." in " ".join(out.split())
    assert "'n': whole numbers that rise from record to record look like an id" in out
    assert "'age': whole" not in out
    assert "city: Lyon 50, Rome 0" in out
    assert f"are not declared ({SECRET!r} 49); declare" in " ".join(out.split())  # ten records or more have it
    (tmp_path / "job.yaml").write_text(text.replace("subject_from", "start: latest, subject_from"))
    found = json.loads(quick("check", "job.yaml", "--json", bootstrap=broker.bootstrap)[1])
    assert (found["records"], found["fit"], found["unfit"], found["warnings"][1][:3]) == (100, 100, [], "'n'")


@pytest.mark.parametrize("said", ["has no messages", "there is no topic", "is a JSON object", "no answer from"])
def test_mistakes(
    quick: Quick,
    tmp_path: Path,
    broker: Any,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    if said == "no answer from":
        monkeypatch.setitem(CONNECTION, "bootstrap_timeout_ms", 3000)
    topic = "there-is-none" if said == "there is no topic" else make_topic(2)
    if said == "is a JSON object":
        topics.send(broker.bootstrap, topic, [(None, SECRET.encode())])
    brokers = "127.0.0.1:9" if said == "no answer from" else broker.bootstrap
    err = quick.error(3, "init", "--topic", topic, "--brokers", brokers)
    assert said in err
    assert SECRET not in err
    assert err.count("\n") == 1
    assert not (tmp_path / "job.yaml").exists()


def test_a_topic_needs_brokers_and_no_file(quick: Quick) -> None:
    assert "--brokers" in quick.error(2, "init", "--topic", "t")
    assert "got both" in quick.error(2, "init", "a.csv", "--topic", "t")
