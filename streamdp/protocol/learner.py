"""The learner: absorbs mixed batches in their order, commits, and announces the next point.

See docs/shuffle_protocol.md for what must hold.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from streamdp.errors import BudgetError, ConfigError, SchemaError, SourceError, StoreMismatchError
from streamdp.protocol.agreement import Agreement, Learning
from streamdp.protocol.shuffle_wire import (
    Assembly,
    LogReader,
    LogWriter,
    Place,
    Tell,
    check_log,
    place_text,
    read_part,
    silent,
    write_announcement,
)
from streamdp.runtime.learning import check_finite
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

_POLL_S = 0.2


@dataclass(eq=False, repr=False)
class ShuffleLearner:
    """Continues at the position in its store.

    After an error, such as an unavailable broker, make a new one. The estimator is new; its state comes from `store`,
    the job's `Store`. The store counts records as learned, and messages that are no part of a batch of this job as dead
    letters. Each function of `publish` gets the committed snapshot, at the start and after every commit, before the
    next announcement. Raises `StoreMismatchError` if the store was written under another agreement, `SourceError`
    if it has read another topic of the same name.
    """

    agreement: Agreement
    estimator: Learning
    shuffled: LogReader
    points: LogWriter
    store: Store
    _: KW_ONLY
    publish: Sequence[Callable[[Snapshot], None]] = ()
    tell: Tell = silent

    def __post_init__(self) -> None:
        self.publish = tuple(self.publish)
        self._dead = 0
        self._start()

    def run(self, stopping: Callable[[], bool] = lambda: False, idle_seconds: float | None = None) -> None:
        """Learn until `stopping` returns True, a cohort's rounds are done, or no message came for `idle_seconds`."""
        heard = time.monotonic()
        while not (stopping() or self.estimator.finished):
            if self.step(_POLL_S):
                heard = time.monotonic()
            elif idle_seconds is not None and time.monotonic() - heard >= idle_seconds:
                return

    def step(self, timeout_s: float) -> bool:
        """Learn batches that come within `timeout_s` seconds; False if none came. `SourceError` if one is missing."""
        entries = self.shuffled.poll(timeout_s)
        for entry in entries:
            try:
                part = read_part(entry.value, self.agreement.digest)
                if part.place > self._place:
                    raise SourceError(
                        f"batch {place_text(part.place)} was forwarded, but {place_text(self._place)} comes next: the"
                        " topic no longer has it, or this is another job's store"
                    )
                if part.place < self._place:
                    continue  # forwarded again after a crash of the shuffler
                if self.estimator.finished:
                    raise SchemaError("a batch after the last round")
                mixed = self._assembly.add(part)
                if mixed is None:
                    continue
                self.estimator.absorb(mixed)
            except (SchemaError, BudgetError, ConfigError):
                self._dead += 1
                continue
            self._commit(part.place, mixed.users, entry.offset + 1)
        return bool(entries)

    @property
    def counts(self) -> Counts:
        """The counts so far."""
        return Counts(self.estimator.n_seen, 0, self._dead)

    @property
    def _place(self) -> Place:
        return self.estimator.batch

    def _start(self) -> None:
        snapshot = self.store.load()
        if snapshot is None and self.estimator.n_seen:
            raise ConfigError("expected a new estimator: this one has learned records that the store does not know")
        offset = 0
        if snapshot is not None:
            if snapshot.position.get("agreement") != self.agreement.digest:
                raise StoreMismatchError(
                    "the store was written under another agreement: restore source.minimum_share, or use another store"
                    " and other topics"
                )
            check_log(self.shuffled, snapshot.position)
            self.estimator.load_state_dict(snapshot.state)
            self._dead = snapshot.counts.dead_letters
            offset = snapshot.position["offset"]
            for publish in self.publish:
                publish(snapshot)
        self.shuffled.seek(offset)
        self._announce()

    def _commit(self, place: Place, answered: int, offset: int) -> None:
        state = self.estimator.state_dict()
        check_finite(state)
        position = {"offset": offset, "agreement": self.agreement.digest, "topic_id": self.shuffled.id}
        snapshot = self.store.commit(state, position, self.counts)
        for publish in self.publish:
            publish(snapshot)
        self.tell(
            "learned",
            batch=place_text(place),
            answered=answered,
            learned=self.estimator.n_seen,
            dead_letters=self._dead,
            guarantee=str(self.estimator.guarantee),
        )
        self._announce()

    def _announce(self) -> None:
        """Announce the next batch, if there is one. Its point depends only on what is committed."""
        if self.estimator.finished:
            return
        point = self.estimator.randomizer.point
        announcement = self.agreement.announcement(self._place, point)
        self.points.send(self.agreement.digest.encode(), write_announcement(announcement))
        self.points.flush()
        self._assembly = Assembly(self.agreement.params(self._place))
