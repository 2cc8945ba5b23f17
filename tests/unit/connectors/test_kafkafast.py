"""The settings of librdkafka, which users give by the names of kafka-python."""

import traceback

import kafka
import numpy as np
import polars as pl
import pytest

from connectors import kafkaclient
from connectors.kafka import _with_subjects
from connectors.kafkaclient import SESSION_MS
from connectors.kafkafast import NAMES, SAME, FastGroup, fast_settings
from streamdp.data.schema import Schema
from streamdp.data.times import TimeColumn
from streamdp.errors import ConfigError


def test_every_option_that_is_accepted_exists_in_both_clients() -> None:
    """librdkafka refuses unknown names when a consumer is made, and unusable values of known ones."""
    assert (SAME | set(NAMES)) <= set(kafka.KafkaConsumer.DEFAULT_CONFIG)
    files = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile", "ssl_password", "ssl_ciphers"}
    usual = {name: kafka.KafkaConsumer.DEFAULT_CONFIG[name] for name in (SAME | set(NAMES)) - files}
    given = {name: value for name, value in usual.items() if value is not None}
    assert len(given) > 15
    FastGroup("127.0.0.1:1", "g", given).close()


def test_security_has_the_names_of_librdkafka() -> None:
    given = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
        "bootstrap_timeout_ms": 5,
    }
    found = fast_settings(["a:1", "b:2"], "g", given)
    assert {name: value for name, value in found.items() if name.startswith(("s", "boot", "group"))} == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "bootstrap.servers": "a:1,b:2",
        "group.id": "g",
        "session.timeout.ms": SESSION_MS,
    }
    assert "ssl.endpoint.identification.algorithm" not in fast_settings("a:1", "g", {"ssl_check_hostname": True})


def test_a_killed_worker_is_noticed_as_fast_by_both_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their own default its partitions were read by nobody for 45 seconds."""
    asked: list[int] = []
    monkeypatch.setattr(kafkaclient, "KafkaConsumer", lambda **given: asked.append(given["session_timeout_ms"]))
    for options in ({}, {"session_timeout_ms": 40_000}):
        kafkaclient.connect("a:1", "g", options)
        asked.append(fast_settings("a:1", "g", options)["session.timeout.ms"])
    assert asked == [15_000, 15_000, 40_000, 40_000]


def test_no_option_changes_what_exactly_once_counting_decides() -> None:
    found = fast_settings("a:1", "g", {})
    assert (found["enable.auto.commit"], found["auto.offset.reset"]) == (False, "error")
    assert found["isolation.level"] == "read_committed"
    for ours in ("enable_auto_commit", "auto_offset_reset", "group_id", "partition_assignment_strategy"):
        with pytest.raises(ConfigError, match=f"no option '{ours}'"):
            fast_settings("a:1", "g", {ours: "x"})


def test_a_fetch_may_be_shorter_than_the_longest_message_of_a_producer() -> None:
    FastGroup("127.0.0.1:1", "g", {"fetch_max_bytes": 3000, "max_partition_fetch_bytes": 1500}).close()
    with pytest.raises(ConfigError, match=r"one of fetch_max_bytes, fetch_min_bytes$"):
        FastGroup("127.0.0.1:1", "g", {"fetch_max_bytes": "many", "fetch_min_bytes": 1})


def test_an_unusable_value_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="does not accept") as caught:
        FastGroup("127.0.0.1:1", "g", {"isolation_level": "hush"})
    assert "hush" not in "".join(
        line for line in traceback.format_exception(caught.value) if "isolation_level" not in line
    )


def test_a_record_without_a_key_takes_its_time_along() -> None:
    schema = Schema({"a": (0, 1)}, "y", time=TimeColumn("at", "seconds"))
    frame = pl.DataFrame({"a": [0.5] * 3, "y": [1.0] * 3, "at": ["10", "20", "30"]})
    batch = _with_subjects(schema.encode(frame, np.arange(3), {}), [b"ann", None, b"bob"])
    assert (batch.subjects, batch.times.tolist()) == ([b"ann", b"bob"], [10.0, 30.0])
