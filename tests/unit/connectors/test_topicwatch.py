"""Why a partition is not read, and how far it may be read: decided from what brokers answer, on a clock of the test."""

from typing import Any

import pytest
from kafka import IsolationLevel, OffsetSpec, TopicPartition
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndTimestamp

from connectors.topicwatch import ANSWER_S, ASK_S, STALL_POLLS, STALL_S, Bounds, TopicWatch, survey
from streamdp.data.records import Shard
from tests.support.clock import FakeClock


class Reader:
    """A reader of partitions, and the watch that it asks once a second for so many seconds."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.watch = TopicWatch("t", "", {}, self.clock)
        self.watch.topic_id = "id"
        self.polls = 0
        self.positions: dict[int, int | None] = {}

    def told(self, answers: Any, seconds: float, polls: int = 5) -> list[tuple[str, str]]:
        """The stalls after some seconds in which a survey every 4 seconds has these answers."""
        found = []
        for second in range(int(seconds)):
            if second % int(ASK_S) == 0:
                self.watch.fail() if answers is KafkaTimeoutError else self.watch.note(answers)
            found = self.watch.stalls(self.positions, self.polls)
            self.polls += polls
            self.clock.sleep(1.0)
        assert all(stall.seconds >= STALL_S and stall.message.startswith("waits for ") for stall in found)
        return [(stall.where, stall.reason) for stall in found]

    def lag(self, partition: int, offset: int, **more: Any) -> int | None:
        shard = Shard("t", partition)
        return self.watch.lag({shard: {"offset": offset} | more}).get(shard)


LONG = STALL_S + ASK_S


def test_what_is_read_does_not_stall() -> None:
    reader = Reader()
    reader.positions = {0: 10, 1: 20, 2: None}
    for end in range(10, 100, 10):  # one partition is idle, and the other one grows
        reader.positions[0] = end
        assert reader.told(("id", {0: Bounds(0, end + 10, end + 10), 1: Bounds(5, 20, 20)}), ASK_S) == []
    assert (reader.lag(0, 60), reader.lag(1, 20), reader.lag(1, 0)) == (40, 0, 15)  # five were deleted


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (KafkaTimeoutError, "no_answer"),
        (("id", {0: "broker 3", 1: Bounds(0, 20, 20)}), "no_answer"),
        (("id", {0: "", 1: Bounds(0, 20, 20)}), "no_leader"),
        (None, "no_topic"),
        (("another", {0: Bounds(0, 5, 5)}), "no_topic"),
    ],
)
def test_a_partition_that_cannot_be_asked(answers: Any, reason: str) -> None:
    reader = Reader()
    reader.positions = {0: 10, 1: 20}
    good = ("id", {0: Bounds(0, 10, 10), 1: Bounds(0, 20, 20)})
    assert reader.told(good, LONG) == []
    alone = isinstance(answers, tuple) and answers[0] == "id"
    assert reader.told(answers, STALL_S - ASK_S) == []
    assert reader.lag(0, 10) is None  # it is not 0
    assert reader.lag(1, 10) == (10 if alone else None)
    assert reader.told(answers, LONG) == [("t/0", reason)] + ([] if alone else [("t/1", reason)])
    assert bool(reader.watch.away()) != alone
    reader.positions = {}
    assert reader.told(answers, 1) == ([] if alone else [("t", reason)])
    reader.positions = {0: 10, 1: 20}
    assert reader.told(good, 1) == []
    assert reader.lag(0, 10) == 0


def test_an_open_transaction_is_told_and_its_messages_are_lag() -> None:
    reader = Reader()
    reader.positions = {0: 50}
    held = ("id", {0: Bounds(0, 50, 3050)})
    assert reader.told(held, STALL_S) == []
    assert reader.told(held, ASK_S) == [("t/0", "open_transaction")]
    assert reader.lag(0, 50) == 3000
    assert reader.told(("id", {0: Bounds(0, 60, 3060)}), 1) == []  # another one is open now
    reader.positions = {0: 60}
    assert reader.told(("id", {0: Bounds(0, 60, 3060)}), STALL_S) == []


def test_short_transactions_are_no_stall() -> None:
    reader = Reader()
    for start in range(0, 500, 50):
        reader.positions = {0: start}
        assert reader.told(("id", {0: Bounds(0, start, start + 50)}), ASK_S) == []


def test_a_reader_of_uncommitted_messages_waits_for_no_transaction() -> None:
    reader = Reader()
    reader.positions = {0: 95}
    assert reader.told(survey(Admin(), "t", stable=False), LONG) == []
    reader.positions = {0: 92}
    assert reader.told(survey(Admin(), "t", stable=False), LONG) == [("t/0", "not_fetched")]


def test_messages_that_the_client_does_not_fetch() -> None:
    """Its own connection may hang while others are answered. A learner that is slow to poll is no stall."""
    reader = Reader()
    reader.positions = {0: 10, 1: 10}
    idle = ("id", {0: Bounds(0, 10, 10), 1: Bounds(0, 10, 10)})
    assert reader.told(idle, 100) == []
    more = ("id", {0: Bounds(0, 30, 30), 1: Bounds(0, 10, 10)})
    assert reader.told(more, STALL_S) == []  # it counts from when there was something to fetch
    assert reader.told(more, ASK_S) == [("t/0", "not_fetched")]
    reader.positions = {0: 30, 1: 10}
    assert reader.told(more, LONG) == []
    reader.positions = {0: 30, 1: 10}
    assert reader.told(("id", {0: Bounds(0, 90, 90), 1: Bounds(0, 10, 10)}), STALL_POLLS - 1, polls=1) == []


def test_a_stall_is_told_within_thirty_seconds() -> None:
    """A survey may just have succeeded, and the next one may wait for the answers to its three questions."""
    assert ASK_S + 4 * ANSWER_S + STALL_S < 30.0


def test_a_backlog_on_many_partitions_is_no_stall() -> None:
    """A poll returns the messages of one partition at a time, so that each of 60 waits for 59 polls, or for 30 s."""
    reader = Reader()
    reader.positions = dict.fromkeys(range(60), 0)
    answers = ("id", {n: Bounds(0, 10**6, 10**6) for n in range(60)})
    for _second in range(180):
        for _ in range(2):
            reader.positions[reader.polls % 59] = reader.polls + 1  # the last one never comes
            reader.polls += 1
        assert reader.told(answers, 1, polls=0) == []
    assert reader.told(answers, 60, polls=20) == [(f"t/{n}", "not_fetched") for n in range(60)]
    reader.positions = dict.fromkeys(range(59), 10**6) | {59: 0}  # the others have none left
    assert reader.told(answers, 1) == [("t/59", "not_fetched")]


class Admin:
    """As `KafkaAdminClient`, for a topic with three partitions: a leader each, and one has none."""

    silent: tuple[int, ...] = ()

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        if topics != ["t"]:
            return [{"error_code": UnknownTopicOrPartitionError.errno, "partitions": []}]
        partitions = [{"partition_index": n, "leader_id": leader} for n, leader in ((0, 1), (1, 2), (2, -1))]
        return [{"error_code": 0, "topic_id": "id", "partitions": partitions}]

    def list_partition_offsets(
        self, specs: dict[TopicPartition, Any], level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        (key,) = specs
        if key.partition in self.silent:
            raise KafkaTimeoutError
        last = 100 * key.partition + (90 if level else 95)
        return {key: OffsetAndTimestamp(7 if specs[key] == OffsetSpec.EARLIEST else last, 0, None)}


def test_a_survey_tells_of_each_partition_what_its_leader_says() -> None:
    admin = Admin()
    assert survey(admin, "t") == ("id", {0: Bounds(7, 90, 95), 1: Bounds(7, 190, 195), 2: ""})
    assert survey(admin, "t", stable=False)[1][0] == Bounds(7, 95, 95)
    admin.silent = (0,)
    assert survey(admin, "t") == ("id", {0: "broker 1", 1: Bounds(7, 190, 195), 2: ""})
    with pytest.raises(UnknownTopicOrPartitionError):
        survey(admin, "other")
