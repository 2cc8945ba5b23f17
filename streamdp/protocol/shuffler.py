"""The shuffler: collects messages, decides which messages a batch has, mixes and forwards them.

See docs/shuffle_protocol.md for what must hold.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn

import numpy as np

from streamdp.aggregation.shuffled_sum import Shuffler
from streamdp.errors import SchemaError, SourceError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.shuffle_wire import (
    NONCE_BYTES,
    PART_BYTES,
    Entry,
    LogReader,
    LogWriter,
    Place,
    Tell,
    check_log,
    cut,
    place_text,
    read_key,
    read_message,
    silent,
)
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

_POLL_S = 0.2
_ANOTHER = "the topic of messages is not the one that this shuffler has read: it was recreated"


@dataclass(eq=False, repr=False)
class Mixer:
    """Continues at the position in its store.

    After an error, such as an unavailable broker, make a new one. `store` is a `Store` for the shuffler alone, with the
    fingerprint `agreement.digest`. It counts as learned the messages in batches that were decided on; as refused,
    messages that came too late for their batch; as dead letters malformed ones, those of other jobs, and repetitions.
    After `wait_seconds` from the first message of a batch, the agreement's minimum of people suffices. A message has at
    most `part_bytes` of a mixed batch; `clock` returns seconds. Raises `SourceError` if the store is empty but batches
    were forwarded to `shuffled` before, if the store has read another topic of the same name, and if the messages of a
    cohort's round are gone after it was decided on.
    """

    agreement: Agreement
    messages: LogReader
    shuffled: LogWriter
    store: Store
    _: KW_ONLY
    wait_seconds: float = math.inf
    tell: Tell = silent
    clock: Callable[[], float] = time.monotonic
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        self._place: Place = self.agreement.first
        self._batch: dict[bytes, bytes] = {}
        self._opened_at = 0.0
        self._offset = self._next = 0
        self._counts = [0, 0, 0]
        self._start()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a shuffler holds people's messages: it is neither copied nor stored")

    def run(self, stopping: Callable[[], bool] = lambda: False, idle_seconds: float | None = None) -> None:
        """Shuffle until `stopping` returns True, or until a cohort's rounds are done.

        Also stop after `idle_seconds` without a message, unless a batch has enough messages and waits for more; None:
        never.
        """
        heard = self.clock()
        while not (stopping() or self._place[2] == self.agreement.rounds):
            if self.step(_POLL_S):
                heard = self.clock()
            elif idle_seconds is not None and self.clock() - heard >= idle_seconds and not self._may_close_later:
                return

    def step(self, timeout_s: float) -> bool:
        """Take messages that come within `timeout_s` seconds, and forward complete batches; False if none came."""
        entries = self.messages.poll(timeout_s)
        for entry in entries:
            if self._take(entry) and len(self._batch) == self.agreement.params(self._place).users:
                self._close()
        if self._may_close_later and self.clock() - self._opened_at >= self.wait_seconds:
            self._close()
        return bool(entries)

    @property
    def waiting(self) -> int:
        """The number of messages in the open batch."""
        return len(self._batch)

    @property
    def counts(self) -> Counts:
        """The counts so far. After a crash, messages since the last commit are counted again."""
        return Counts(*self._counts)

    @property
    def _may_close_later(self) -> bool:
        return (
            bool(self._batch)
            and len(self._batch) >= self.agreement.needed(self._place)
            and self.wait_seconds < math.inf
        )

    def _start(self) -> None:
        snapshot = self.store.load()
        if snapshot is None:
            if self.shuffled.end():
                raise SourceError(
                    "batches were forwarded to this topic before, and this store knows nothing of it: give the store"
                    " of that time, or use other topics"
                )
            self._offset = self._next = self.messages.seek(0)
            return
        counts, position = snapshot.counts, snapshot.position
        check_log(self.messages, position)
        self._counts = [counts.learned, counts.refused, counts.dead_letters]
        epoch, phase, step = position["batch"]
        self._place, self._offset, decided = (epoch, phase, step), position["offset"], position["decided"]
        if decided is not None:
            self._forward_again(decided, position["answered"])
        else:
            self._offset = self._next = self.messages.seek(self._offset)
            self.messages.forget(self._offset)  # a crash or a fault may have come before the deletion

    def _forward_again(self, decided: int, answered: int) -> None:
        """Forward the batch that was decided on: a crash came before or after it was forwarded."""
        first = self.messages.seek(self._offset)
        counts = list(self._counts)  # these messages are counted already
        if first > self._offset:
            if self.agreement.rounds is not None:
                raise SourceError(
                    f"the messages of round {place_text(self._place)}, which was decided on, are gone: no others of "
                    "these people may be forwarded for it; begin another cohort, with a budget of its own"
                )
            self.tell("gone", batch=place_text(self._place), answered=answered)
            self._offset = self._next = self.messages.seek(max(first, decided))
            self._commit(None)
            return
        if self.messages.end() < decided:
            raise SourceError(_ANOTHER)
        self._next = self._offset
        while self._next < decided:
            for entry in self.messages.poll(_POLL_S):
                if entry.offset < decided:
                    self._take(entry)
                self._next = entry.offset + 1
        self._counts, self._next = counts, decided
        if len(self._batch) != answered:
            raise SourceError(_ANOTHER)
        self._forward()
        self.messages.seek(decided)

    def _take(self, entry: Entry) -> bool:
        """Add a message to the open batch. If it does not belong there, count it and return False."""
        self._next = entry.offset + 1
        try:
            place = read_key(entry.key, self.agreement.digest)
            if place < self._place:
                self._counts[1] += 1
                return False
            if place > self._place:
                raise SchemaError("a message for a batch that has not been announced")
            nonce, bits = read_message(entry.value, self.agreement.params(place))
            if nonce in self._batch:
                raise SchemaError("a message came twice")
        except SchemaError:
            self._counts[2] += 1
            return False
        if not self._batch:
            self._opened_at = self.clock()
        self._batch[nonce] = bits
        return True

    def _close(self) -> None:
        """Commit which messages the batch has. Only then forward them."""
        self._counts[0] += len(self._batch)
        self._commit(self._next)
        self._forward()

    def _forward(self) -> None:
        place, params = self._place, self.agreement.params(self._place)
        shuffler = Shuffler(params, self.agreement.needed(place))
        answered = len(self._batch)
        bits = np.frombuffer(b"".join(self._batch.values()), np.uint8)
        shuffler.collect(bits.reshape(answered, params.d, -1))
        key = place_text(place).encode()
        for part in cut(shuffler.forward(), self.agreement.digest, place, os.urandom(NONCE_BYTES), self.part_bytes):
            self.shuffled.send(key, part)
        self.shuffled.flush()
        self._batch.clear()
        self._place, self._offset = self.agreement.after(place), self._next
        self._commit(None)
        self.messages.forget(self._offset)
        late, dead = self._counts[1:]
        self.tell("forwarded", batch=place_text(place), answered=answered, late=late, dead_letters=dead)

    def _commit(self, decided: int | None) -> None:
        """Commit; `decided` is the offset after the batch's last message, None if no batch is decided on.

        The batch's first message is at or after `offset`.
        """
        position: dict[str, object] = {"batch": list(self._place), "offset": self._offset, "decided": decided}
        position |= {"answered": len(self._batch), "topic_id": self.messages.id}
        self.store.commit({}, position, self.counts)
