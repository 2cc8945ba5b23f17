"""Asks the brokers of a topic at intervals why a partition that a worker reads does not advance, and how far it may.

A thread asks, over connections of its own: a broker that does not answer never delays the reader, and never hides
that. `unread` asks once how many records of topics lie after given positions. Needs the extra `kafka`.
"""

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code

from connectors.kafkaclient import (
    METADATA_MS,
    NO_TOPIC,
    OFFSETS_TIMEOUT_S,
    connect_admin,
    discard,
    explain_refusal,
    kafka_errors,
)
from streamdp.data.records import Position, Shard, Stall
from streamdp.errors import SourceError, SourceUnavailableError


class Bounds(NamedTuple):
    """Where a partition begins and ends."""

    first: int
    stable: int  # the offset before which all transactions have ended: a reader of committed records reads up to here
    end: int  # the offset after the last message

    def after(self, offset: int) -> int:
        """The number of messages at an offset and after it that were not deleted."""
        return max(0, self.end - max(self.first, offset))


def connect_asking(
    bootstrap_servers: str | list[str], options: Mapping[str, object], timeout_s: float
) -> KafkaAdminClient:
    """A client for `survey`, with the arguments of `kafkaclient.connect`; a broker may take `timeout_s` for an answer.

    Of the `options`, those that are not about connections are not used. For `bootstrap_servers` and the errors see
    `kafkaclient.connect`.
    """
    ours = {"request_timeout_ms": int(1000 * timeout_s), "metadata_max_age_ms": METADATA_MS}
    given = {name: value for name, value in options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
    try:
        with kafka_errors():
            return connect_admin(bootstrap_servers, given | ours)
    except SourceUnavailableError:
        explain_refusal(bootstrap_servers, options)
        raise


def survey(admin: KafkaAdminClient, topic: str, stable: bool = True) -> tuple[str | None, dict[int, Bounds | str]]:
    """Ask where the partitions of a topic begin and end; without `stable`, `Bounds.stable` is the end.

    Returns the topic's id, None of brokers before Kafka 2.8; and of each partition its bounds, or which broker has not
    answered, or an empty text if no broker leads it. Raises `UnknownTopicOrPartitionError` if there is no such topic,
    and other errors of `kafka.errors` if no broker answers.
    """
    (found,) = admin.describe_topics([topic])
    if found["error_code"]:
        raise for_code(found["error_code"])(topic)
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for one in found["partitions"]:
        led[one["leader_id"]].append(TopicPartition(topic, one["partition_index"]))
    answers: dict[int, Bounds | str] = {}
    for leader, keys in led.items():
        answers |= dict.fromkeys((key.partition for key in keys), f"broker {leader}" if leader >= 0 else "")
        if leader >= 0:
            with contextlib.suppress(KafkaError):
                answers |= _bounds(admin, keys, stable)
    return str(found["topic_id"]) if found.get("topic_id") else None, answers


def _bounds(admin: KafkaAdminClient, keys: Collection[TopicPartition], stable: bool) -> dict[int, Bounds]:
    """The bounds of partitions that one broker leads. The end is asked first, so that no transaction seems open."""
    latest = dict.fromkeys(keys, OffsetSpec.LATEST)
    ends = admin.list_partition_offsets(latest)
    stables = admin.list_partition_offsets(latest, IsolationLevel.READ_COMMITTED) if stable else ends
    firsts = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    return {key.partition: Bounds(firsts[key].offset, stables[key].offset, ends[key].offset) for key in keys}


def unread(
    bootstrap_servers: str,
    options: Mapping[str, object],
    positions: Mapping[Shard, Position],
    topics: Collection[str] = (),
) -> dict[Shard, int | None]:
    """Count the messages after positions that were not deleted: also those of open transactions.

    `bootstrap_servers` and `options` are as for `connect_asking`, positions as for `TopicWatch.lag`. Partitions of
    `topics` without a position count from their beginning.

    Returns the number of messages of each partition; None where it is not known: no broker leads the partition, its
    broker does not answer, or the position is of another topic of the same name, which was deleted. Raises the errors
    of `kafkaclient.connect`, and `SourceError` if there is no such topic.
    """
    named = sorted({shard.topic for shard in positions} | set(topics))
    surveys: dict[str, tuple[str | None, dict[int, Bounds | str]]] = {}
    with contextlib.closing(connect_asking(bootstrap_servers, options, OFFSETS_TIMEOUT_S)) as admin:
        for topic in named:
            with kafka_errors(topic):
                try:
                    surveys[topic] = survey(admin, topic)
                except UnknownTopicOrPartitionError:
                    raise SourceError(NO_TOPIC.format(topic)) from None

    def count(shard: Shard, id_: str | None, answer: Bounds | str) -> int | None:
        position = positions.get(shard, {})
        if isinstance(answer, str) or position.get("topic_id") not in (None, id_):
            return None
        return answer.after(position.get("offset", 0))

    return {
        shard: count(shard, id_, answer)
        for topic, (id_, answers) in surveys.items()
        for partition, answer in sorted(answers.items())
        for shard in (Shard(topic, partition),)
    }


ASK_S = 4.0
"""The pause between two surveys, in seconds."""
ANSWER_S = 3.0
"""How long a broker may take for an answer, in seconds."""
STALL_S = 10.0
"""A partition stalls if it could not be read for so long, in seconds. Elections and short transactions take less."""
STALL_POLLS = 20
"""Nor has it come in so many polls, for each of the others that have messages: a learner that is slow polls rarely, and
the messages of the others come first, as many as a poll takes from one or a few of them."""
CLOSE_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """What is known of a partition, or of the topic."""

    well_at: float  # when it was last asked with success
    bounds: Bounds | None = None  # what it answered then; None if it never did
    fault: str = ""  # of the last survey: `no_answer`, `no_leader`, `no_topic`, or empty
    message: str = ""  # the fault in words that end a sentence


@dataclass(frozen=True)
class _Waits:
    """A partition that answers and is not read on; it ends as soon as `at` is another offset."""

    reason: str
    at: int
    since: float
    polls: int


class TopicWatch:
    """What keeps the partitions of a topic from being read; `start` begins to ask.

    For `servers` and `options` see `kafkaclient.connect`. `clock` returns the time in seconds and never goes backward.
    `topic_id` is the id of the topic that is read, to be set before `start`: another one of the same name is not that
    topic.
    """

    def __init__(
        self,
        topic: str,
        servers: str | list[str],
        options: Mapping[str, object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._servers = servers
        self._options = options
        self._committed_only = options.get("isolation_level", "read_committed") == "read_committed"
        self._clock = clock
        self.topic_id: str | None = None
        self._seen: dict[int | None, Seen] = {None: Seen(clock())}  # replaced whole: other threads read it
        self._waits: dict[int, _Waits] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamdp-topic-watch", daemon=True)

    def start(self) -> None:
        """Begin, unless it has begun."""
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """End the thread, without a wait for a request that is under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        admin: KafkaAdminClient | None = None
        while not self._stop.is_set():
            try:
                admin = admin or connect_asking(self._servers, self._options, ANSWER_S)
                self.note(survey(admin, self._topic, self._committed_only))
            except UnknownTopicOrPartitionError:
                self.note(None)
            except Exception as error:  # noqa: BLE001 - whatever it was, the brokers gave no answer
                log.debug("no answer about the topic: %s", type(error).__name__)
                self.fail()
                discard(admin)
                admin = None
            self._stop.wait(ASK_S)
        discard(admin)

    def note(self, answers: tuple[str | None, Mapping[int, Bounds | str]] | None) -> None:
        """Note what `survey` answered; `answers` is None if the brokers have no such topic."""
        now = self._clock()
        if answers is None or (self.topic_id is not None and answers[0] != self.topic_id):
            what = "was deleted" if answers is None else "was deleted and created again"
            self._fault("no_topic", f"the topic {self._topic!r}, which {what}")
            return
        seen: dict[int | None, Seen] = {None: Seen(now)}
        for partition, answer in answers[1].items():
            if isinstance(answer, Bounds):
                seen[partition] = Seen(now, answer)
            else:
                fault = "no_answer" if answer else "no_leader"
                message = f"an answer of {answer}, which leads it" if answer else "a leader: no broker leads it"
                seen[partition] = replace(self._seen.get(partition, Seen(now)), fault=fault, message=message)
        self._seen = seen

    def fail(self) -> None:
        """Note that no broker has answered."""
        self._fault("no_answer", "an answer of the brokers")

    def _fault(self, fault: str, message: str) -> None:
        self._seen = {key: replace(seen, fault=fault, message=message) for key, seen in self._seen.items()}

    def lag(self, positions: Mapping[Shard, Position]) -> dict[Shard, int]:
        """The number of offsets after these positions, as of a few seconds ago: also those of open transactions.

        Returns no entry for a shard of which it is not known. Any thread may call it. A position has the next offset
        under `offset`, and the topic's id under `topic_id`.
        """
        found = {}
        for shard, position in positions.items():
            seen = self._seen.get(shard.partition)
            ours = position.get("topic_id") in (None, self.topic_id) and "offset" in position
            if ours and seen is not None and seen.bounds is not None and not seen.fault:
                found[shard] = seen.bounds.after(position["offset"])
        return found

    def away(self) -> str:
        """What keeps the whole topic from being read, in words that end a sentence; empty if nothing does."""
        return self._seen[None].message

    def stalls(self, positions: Mapping[int, int | None], polls: int) -> list[Stall]:
        """What is not read, and why.

        `positions` says where each assigned partition is read on, None if that is not known; `polls` is the number of
        polls that may have returned records.
        """
        now, seen = self._clock(), self._seen
        self._waits = {partition: waits for partition, waits in self._waits.items() if partition in positions}
        found = []
        behind = sum(
            at is not None and p in seen and (bounds := seen[p].bounds) is not None and at < bounds.stable
            for p, at in positions.items()
        )
        least = STALL_POLLS * max(1, behind - 1)
        for partition, position in positions.items() or [(None, None)]:
            known = seen.get(partition, seen[None])
            if known.fault:
                reason, message, since = known.fault, known.message, known.well_at
            elif partition is None or position is None or known.bounds is None:
                continue
            else:
                reason, message, since = self._waiting(partition, position, known.bounds, now, (polls, least))
            if reason and now - since >= STALL_S:
                found.append(Stall(self._topic, partition, reason, f"waits for {message}", now - since))
        return found

    def _waiting(
        self, partition: int, position: int, bounds: Bounds, now: float, turns: tuple[int, int]
    ) -> tuple[str, str, float]:
        """Reason, message and time of a partition that can be read; no reason if nothing is amiss.

        `turns` are the number of polls so far, and how many of them may pass without this partition.
        """
        polls, least = turns
        if position < bounds.stable:
            reason, at = "not_fetched", position
        elif position < bounds.end and bounds.stable < bounds.end:
            reason, at = "open_transaction", bounds.stable
        else:
            self._waits.pop(partition, None)
            return "", "", now
        waits = self._waits.get(partition)
        if waits is None or (waits.reason, waits.at) != (reason, at):
            waits = self._waits[partition] = _Waits(reason, at, now, polls)
        if reason == "open_transaction":
            held = bounds.end - position
            return reason, f"the end of a transaction: {held} messages follow its start", waits.since
        if polls - waits.polls < least:
            return "", "", now
        return reason, f"{bounds.stable - position} messages, which the client does not fetch", waits.since
