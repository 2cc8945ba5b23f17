"""Asks the brokers of a topic at intervals why a partition that a worker reads does not advance, and how far it may.

A thread asks, over connections of its own: a broker that does not answer never delays the reader, and never hides that.
Needs the extra `kafka`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kafka import KafkaAdminClient
from kafka.errors import UnknownTopicOrPartitionError

from connectors.kafkaclient import discard
from connectors.topiclag import Bounds, connect_asking, survey
from streamdp.data.records import Position, Shard, Stall

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
