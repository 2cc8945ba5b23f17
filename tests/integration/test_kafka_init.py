"""`streamdp init --topic`: the draft of a job for a Kafka topic, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdp.config.yaml12 import Document
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
    job, of_file = Document(text, "-").data, Document((tmp_path / "file.yaml").read_text(), "-").data
    assert job["schema"] == of_file["schema"]
    assert job["job"] == topic
    assert job["source"] == {
        "type": "kafka",
        "topic": topic,
        "brokers": broker.bootstrap,
        "subject_from": "value",
    }
    assert job["model"] == {"trust": "process", "budget": "eps=1"}
    assert "Paris" not in text
    assert "not private" in text
    code, out, _ = quick("check", "job.yaml")
    assert code == 2
    assert [line.split(" is empty")[0].split("schema.")[1] for line in out.splitlines()] == [
        "features.age",
        "features.city",
    ]
    text = text.replace("    age:", "    age: [0, 120]").replace("    city:", "    city: [Lyon, Paris]")
    (tmp_path / "job.yaml").write_text(text)
    quick.output("run", "job.yaml", "--max-records", str(N + len(others)))
    found = counts(tmp_path / f"{topic}.db")
    assert (found.learned, found.dead) == (N, len(others))


@pytest.mark.parametrize("said", ["has no messages", "there is no topic", "is a JSON object", "no answer from"])
def test_mistakes(
    quick: Quick,
    tmp_path: Path,
    broker: Any,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    monkeypatch.setattr("connectors.kafkaclient.CONNECT_TIMEOUT_S", 3.0)
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
    assert "not both" in quick.error(2, "init", "a.csv", "--topic", "t")
