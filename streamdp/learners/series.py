"""A learner for each window of time: what statistics of each day, or of another length, are read from.

A record belongs to the window of its time, which is public as its position in the stream is. So the learners of two
windows have disjoint records, and each record spends its budget once. If the learners have batches, all batches end
together: when the open ones have as many records as a batch of the latest window, and before the first record of a
later window that has begun by the clock. A record of another window joins the batch of its own, and ends none.

Proof: docs/proofs/statistics.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.data.times import ZONE, Calendar, present
from streamdp.errors import ConfigError
from streamdp.learners.drawn import Drawn
from streamdp.learners.learner import NEIGHBOURS, Learner
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.learners.sums import Sums
from streamdp.privacy.entropy import AnyRng
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.release import Release

KEPT = 400
"""How many windows are kept: the latest ones."""
_AHEAD, _DAY = 40, 86_400


def furthest(length: int) -> float:
    """How far a record's time may be after the present, in seconds: a day, and at most a tenth of the kept windows.

    So no sender of times moves the window of the present out of those that are kept. `length`: that of a window.
    """
    return float(min(_DAY, _AHEAD * length))


class Series(Learner):
    """Learners of one kind by window, with words of an `rng`.

    `make`: makes the learner of a window. `calendar`: which window a time is in.
    """

    dated = True
    neighbours = NEIGHBOURS.replace("the subject and the budget", "the subject, the budget and the window of time")

    def __init__(
        self, problem: LinearProblem, budget: Budget, rng: AnyRng, make: Callable[[], Sums | Drawn], calendar: Calendar
    ) -> None:
        super().__init__(problem, budget, rng)
        self._make, self._calendar = make, calendar
        self.pattern = make()
        """A learner of no window, which has learned nothing."""
        self.windows: dict[int, Sums | Drawn] = {}
        """The learners, by the number of the window."""
        self.open = None if self.pattern.open is None else Release(budget)
        self._begun = self._present()
        """The window of the present when the last rows came: they join and are learned by one clock.

        By a later one, a batch could end in between that people have joined for rows which are then in the next one.
        """

    @property
    def trust(self) -> str:  # type: ignore[override]
        """See `Learner.trust`."""
        return self.pattern.trust

    @property
    def private(self) -> bool:
        return self.pattern.private

    def begin(self, columns: Columns) -> None:
        self.columns = columns
        self.pattern.begin(columns)
        self.windows = {}
        self.discard()

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> int:
        latest = self.pattern if (window := self._latest(self._begun)) is None else self.windows[window]
        return latest.full

    def _present(self) -> int:
        """The window of the present."""
        return int(self._calendar.numbers(np.array([present()]))[0])

    def _latest(self, begun: int) -> int | None:
        """The latest window up to one that has `begun`: the times of those after it are somebody's word."""
        return next((window for window in reversed(self.windows) if window <= begun), None)

    @property
    def to_boundary(self) -> int:
        return 0 if self.open is None else max(1, self.left(self.full))

    def boundary_within(self, records: int) -> int:
        return records if self.open is None else min(records, max(1, self.left(self.full)))

    def keeps(self, y: np.ndarray) -> np.ndarray | None:
        """See `Learner.keeps`: those of the latest `KEPT` windows, with theirs."""
        self._begun = self._present()
        windows = self._calendar.numbers(y)
        latest = sorted({*self.windows, *windows.tolist()})[-KEPT:]
        kept: np.ndarray = windows >= latest[0]
        return None if kept.all() else kept

    def come_to(self, y: np.ndarray) -> int:
        """See `Learner.come_to`: a later window ends all batches, and the rows before the next one are taken.

        The first row of a window comes alone: its batch has another size than that of the window before.
        """
        first, begun = int(self._calendar.numbers(y[:1])[0]), self._begun
        latest = self._latest(begun)
        if latest is None:
            latest = first
        elif latest < first <= begun:
            if self.pending:  # else nothing is to end, and who has joined for the next rows stays
                self.close()
            latest = first
        room = super().come_to(y if latest in self.windows else y[:1])
        windows = self._calendar.numbers(y[:room])
        later = np.flatnonzero((windows > latest) & (windows <= begun))
        return int(later[0]) if len(later) else room

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """See `Learner.learn`: y has the times of the rows, in seconds since 1970 (UTC)."""
        while len(X):
            taken = self.come_to(y)
            self.seen[0] += taken  # before they are learned: an interruption may lose records, but never a count
            if self.open is not None:
                self.open.taken += taken
            windows = self._calendar.numbers(y[:taken])
            for window in np.unique(windows).tolist():
                rows = windows == window
                self.at(window).learn(X[:taken][rows], y[:taken][rows], budget, None)
            X, y = X[taken:], y[taken:]
            if self.open is not None:
                self.end_full()

    def taken(self, report: Any) -> Callable[[], None]:
        """See `Drawn.taken`: a report is of the window in which it arrives."""
        pattern: Any = self.pattern
        pattern.taken(report)  # raises, before a window is begun

        def take() -> None:
            learner: Any = self.at(self._present())
            learner.taken(report)()
            self.seen[0] += 1

        return take

    def remake(self, kind: Callable[[Any], Any]) -> None:
        """Let all learners of windows, present and future ones, be what `kind` makes of them."""
        make = self._make
        self._make, self.pattern = (lambda: kind(make())), kind(self.pattern)
        self.windows = {window: kind(learner) for window, learner in self.windows.items()}

    def at(self, window: int) -> Sums | Drawn:
        """The learner of a window, which is begun if there is none."""
        if window not in self.windows:
            assert self.columns is not None, "begun before"
            learner = self._make()
            learner.begin(self.columns)
            windows = sorted({**self.windows, window: learner}.items())
            for _, gone in windows[:-KEPT]:
                gone.discard()
            self.windows = dict(windows[-KEPT:])
            return learner
        return self.windows[window]

    def close(self) -> None:
        for learner in self.windows.values():
            learner.close()
        if self.open is not None:
            self.open.close()

    def discard(self) -> None:
        for learner in self.windows.values():
            learner.discard()
        if self.open is not None:
            self.open.close()

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        """See `Learner.point`: the released records of each window."""
        return np.array([float(learner.weight) for learner in self.windows.values()]), False

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        return self.pattern.caveats(spent, capped, answers)

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        zone = {} if self._calendar.zone == ZONE else {"zone": self._calendar.zone}
        return self.pattern.model() | {"window": self._calendar.length} | zone

    def learned(self) -> dict[str, object]:
        state: dict[str, object] = {
            "windows": np.array(list(self.windows), dtype=np.int64),
            "records": np.array([learner.weight for learner in self.windows.values()]),
        }
        for window, learner in self.windows.items():
            state |= {f"{window} {name}": value for name, value in learner.learned().items()}
        return state

    def read(self, state: Mapping[str, object]) -> None:
        windows = np.asarray(state["windows"], dtype=np.int64)
        records = finite_array(state, "records", windows.shape)
        if windows.ndim != 1 or np.any(np.diff(windows) <= 0) or np.any(records < 0):
            raise ConfigError("state: expected ascending windows, each with a number of records")
        self.windows = {}
        for window, n in zip(windows.tolist(), records.tolist(), strict=True):
            learner = self.at(window)
            learner.read({name: state[f"{window} {name}"] for name in learner.learned()})
            learner.seen[0] = int(n)

    def merge(self, parts: Sequence[Self], average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        for window in sorted({window for part in parts for window in part.windows})[-KEPT:]:
            several: list[Any] = [part.windows[window] for part in parts if window in part.windows]
            learner = self.at(window)
            learner.merge(several, average)
            learner.seen[0] = sum(int(one.weight) for one in several)
