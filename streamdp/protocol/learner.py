"""The learner: absorbs mixed batches in their order, commits, and announces the next point. See the package's text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from streamdp.errors import BudgetError, ConfigError, SchemaError, SourceError, StoreMismatchError
from streamdp.protocol.agreement import Agreement, Learning
from streamdp.protocol.logs import Log, Outlet, Tell, silent
from streamdp.protocol.shuffle_wire import Assembly, Place, place_text, read_part, write_announcement
from streamdp.runtime.learning import check_finite
from streamdp.store.snapshot import Counts, Snapshot

_POLL_S = 0.2


class Learner:
    """Goes on where its store says; an error on the way (a broker or a database that is away) needs a new one.

    Parameters
    ----------
    agreement, estimator, shuffled, points, store
        `estimator` is a new one; the state comes from the store. The store's counts are: learned, records; dead,
        messages on `shuffled` that are no part of a batch of ours.
    publish
        Each is called with the committed snapshot after every commit and at the start, before the next point is shown.

    Raises `StoreMismatchError` for a store of another agreement.
    """

    def __init__(
        self,
        agreement: Agreement,
        estimator: Learning,
        shuffled: Log,
        points: Outlet,
        store: Any,
        *,
        publish: Sequence[Callable[[Snapshot], None]] = (),
        tell: Tell = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agreement = agreement
        self._estimator = estimator
        self._shuffled = shuffled
        self._points = points
        self._store = store
        self._publish = tuple(publish)
        self._tell = tell
        self._clock = clock
        self._dead = 0
        self._start()

    def run(self, stopping: Callable[[], bool] = lambda: False, idle_seconds: float | None = None) -> None:
        """Until told to stop, or until nothing came for so long."""
        heard = self._clock()
        while not stopping():
            if self.step(_POLL_S):
                heard = self._clock()
            elif idle_seconds is not None and self._clock() - heard >= idle_seconds:
                return

    def step(self, timeout_s: float) -> bool:
        """Learn what has come; False where nothing came. Raises `SourceError` where a batch is missing."""
        entries = self._shuffled.poll(timeout_s)
        for entry in entries:
            try:
                part = read_part(entry.value, self._agreement.digest)
                if part.place > self._place:
                    raise SourceError(
                        f"batch {place_text(part.place)} was forwarded, but {place_text(self._place)} comes next: the"
                        " topic no longer has it, or this is another job's store"
                    )
                if part.place < self._place:
                    continue  # forwarded again after a crash of the shuffler
                mixed = self._assembly.add(part)
                if mixed is None:
                    continue
                self._estimator.absorb(mixed)
            except (SchemaError, BudgetError, ConfigError):
                self._dead += 1
                continue
            self._commit(part.place, mixed.users, entry.offset + 1)
        return bool(entries)

    @property
    def counts(self) -> Counts:
        return Counts(self._estimator.n_seen, 0, self._dead)

    @property
    def _place(self) -> Place:
        return self._estimator.batch

    def _start(self) -> None:
        snapshot = self._store.load()
        if snapshot is None and self._estimator.n_seen:
            raise ConfigError("this estimator has learned records that the store does not know: begin with a new one")
        offset = 0
        if snapshot is not None:
            if snapshot.position.get("agreement") != self._agreement.digest:
                raise StoreMismatchError(
                    "the store was made under another agreement: restore source.minimum_share, or start anew with"
                    " another store and other topics"
                )
            self._estimator.load_state_dict(snapshot.state)
            self._dead = snapshot.counts.dead
            offset = snapshot.position["offset"]
            for publish in self._publish:
                publish(snapshot)
        self._shuffled.seek(offset)
        self._announce()

    def _commit(self, place: Place, answered: int, offset: int) -> None:
        state = self._estimator.state_dict()
        check_finite(state)
        self._store.commit(state, {"offset": offset, "agreement": self._agreement.digest}, self.counts)
        if self._publish:
            snapshot = self._store.load()
            for publish in self._publish:
                publish(snapshot)
        self._tell(
            "learned",
            batch=place_text(place),
            answered=answered,
            learned=self._estimator.n_seen,
            dead=self._dead,
            guarantee=str(self._estimator.guarantee),
        )
        self._announce()

    def _announce(self) -> None:
        """Show the point of the batch that comes next; what it is made of is committed."""
        point = self._estimator.randomizer.point
        said = self._agreement.announcement(self._place, point)
        self._points.send(self._agreement.digest.encode(), write_announcement(said))
        self._points.flush()
        self._assembly = Assembly(said.params)
