"""A topic of reports is read from the positions of the store, also if a broker fails while a partition is new."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from connectors import kafkaclient, reporttopic
from connectors.reporttopic import ReportTopic
from streamdp.errors import SourceError, SourceUnavailableError


class Consumer:
    """One message in each partition, at offset 7; the first question for the begin of partition 1 has no answer."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int | None] = {}
        self.failures = 1

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.at = {key: self.at.get(key) for key in partitions}

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if partitions[0].partition == 1 and self.failures:
            self.failures -= 1
            raise KafkaTimeoutError
        return dict.fromkeys(partitions, 7)

    def seek(self, key: TopicPartition, offset: int) -> None:
        self.at[key] = offset

    def position(self, key: TopicPartition) -> int | None:
        return self.at[key]

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        assert None not in self.at.values(), "a partition without a position"
        polled = [key for key, offset in self.at.items() if offset == 7]
        self.at |= dict.fromkeys(polled, 8)
        return {key: [SimpleNamespace(value=b"%d" % key.partition)] for key in polled}

    def close(self) -> None:
        self.at.clear()


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The partitions of a topic with the id "id"."""
    found = {0}
    monkeypatch.setattr(reporttopic, "connect", lambda *_: Consumer())
    for module in (reporttopic, kafkaclient):
        monkeypatch.setattr(module, "topic_id", lambda *_: "id")
    monkeypatch.setattr(reporttopic, "partitions_of", lambda *_: set(found))
    return found


def test_a_topic_that_is_made_again_while_it_is_read_is_refused(
    partitions: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages before the offset that the client stood at were passed over, and nobody was told."""
    topic = ReportTopic("reports", "", {}, {})
    monkeypatch.setattr(kafkaclient, "topic_id", lambda *_: "another")
    with pytest.raises(SourceError, match="created again while it was read; use another store"):
        topic.poll(9, 0.0)


def test_a_partition_that_could_not_begin_begins_with_the_next_poll(partitions: set[int]) -> None:
    topic = ReportTopic("reports", "", {}, {})
    assert topic.poll(9, 0.0) == ([b"0"], {"topic": "id", "0": 8})
    partitions.add(1)
    with pytest.raises(SourceUnavailableError):
        topic.poll(9, 0.0)
    assert topic.poll(9, 0.0) == ([b"1"], {"topic": "id", "0": 8, "1": 8})
    topic.close()
