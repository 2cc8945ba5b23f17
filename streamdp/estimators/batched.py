"""Estimators that learn batch by batch: the open batch, its boundaries, and the walk that its sum moves.

A walk says which batch comes next, where its vectors are taken, and what it makes of their noisy sum: `Newton`, which
learns from gradients and curvature without a plan, `Asgd`, which learns from gradients without a plan, or `Planned`,
the papers' AC-SA and averaged SGD.

Within a batch the state holds contributions that are not released yet; between batches it holds only what was released.
So a state may be saved, copied or shown at boundaries only: `state_dict` raises `NotAtBoundaryError` within a batch,
and a copy or pickle holds the state of the last boundary. A subclass defines `_open`, `_add`, `_close`, `_empty` and
`_noise`.

A person's records in different batches are protected by different noises, and their spends compose. k records in one
batch are not k mechanisms but one with k times the sensitivity: k mu and not sqrt(k) mu, and k epsilon only at a delta
of more than k delta. So with a ledger, a second record of a subject within a batch is refused and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.data.subjects import subject_bytes, subjects_bytes
from streamdp.errors import NotAvailableError, check_choice, check_whole
from streamdp.estimators.bounded import BoundedModel
from streamdp.estimators.validated import ValidatedModel
from streamdp.optim import change
from streamdp.optim.ac_sa import Phase, Problem
from streamdp.optim.batch_search import LEAST_SPREAD
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.domains import RealSpace
from streamdp.optim.losses import Huber
from streamdp.optim.newton import Newton
from streamdp.optim.planned import Planned
from streamdp.optim.walk import Walk
from streamdp.privacy.guarantees import Budget, parse_budget

if TYPE_CHECKING:
    from streamdp.data.records import Subject
    from streamdp.estimators.packing import RecordLearner

_NOBODY: Set[bytes] = frozenset()


class Vectors(NamedTuple):
    """What a batch sums: the length of the vectors, their largest norm and their largest distance."""

    size: int
    bound: float
    sensitivity: float


class BatchedModel(BoundedModel, ValidatedModel):
    """The open batch and the state: see the text of the module."""

    horizon: int | None
    batch_size: int | None
    method: str = "ac-sa"
    change: str = "follow"
    _methods: ClassVar[tuple[str, ...]] = ("ac-sa",)
    """The walks of the estimator; where there are several, "auto" is allowed, too."""
    _curvature: Curvature | None = None
    _walk: Walk
    _stays = True

    def _set_up(self) -> None:
        for name, value in (("horizon", self.horizon), ("batch_size", self.batch_size)):
            if value is not None:
                check_whole(name, value, 1, MOST_RECORDS)
        check_choice("change", self.change, change.CHANGE)
        check_choice("method", self.method, ("auto", *self._methods) if len(self._methods) > 1 else self._methods)
        super()._set_up()
        self._use(self._usual() if self.method == "auto" else self.method)
        # With a ledger: the subjects with a record in the open batch, and those whose records come next.
        self._members: set[bytes] = set()
        self._joining: Set[bytes] = _NOBODY
        self._open_records = np.zeros(1, dtype=np.int64)

    @property
    def _taken(self) -> int:
        """Records of the open batch."""
        return int(self._open_records.item())

    @_taken.setter
    def _taken(self, records: int) -> None:
        self._open_records[0] = records

    def _usual(self) -> str:
        """What "auto" means."""
        return "newton" if has_curvature(self._loss) else "ac-sa"

    def _use(self, method: str) -> None:
        """Learn by this method."""
        self._method = method
        if method == "newton":
            self._check_newton("ac-sa")
            if self.domain is None:
                self._domain = RealSpace()
            if self._free and (bounds := self._target_bounds()) is not None and isinstance(self._loss, Huber):
                least = LEAST_SPREAD * (bounds[1] / 2 - bounds[0] / 2)  # small targets need a smaller scale
                self._loss = replace(self._loss, sigma_min=min(self._loss.sigma_min, least))

    # -- what subclasses define -------------------------------------------------------------------------------------

    def _noise(self, batch: int) -> float:
        """The variance E||.||^2 that privacy adds to the average vector of a batch."""
        raise NotImplementedError

    def _spread(self) -> float | None:
        """The root mean square distance of what a batch averages from its mean; None: only the bound is known."""
        return None

    def _open(self) -> None:
        """Begin a batch."""

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        """Add rows to the open batch, with vectors at `self._middle`."""
        raise NotImplementedError

    def _close(self, records: int) -> np.ndarray:
        """The noisy sum of the vectors of a batch with so many records."""
        raise NotImplementedError

    def _empty(self) -> dict[str, np.ndarray]:
        """Initial values of the attributes that hold an open batch, by name."""
        raise NotImplementedError

    # -- set-up -----------------------------------------------------------------------------------------------------

    def _vectors(self, p: int) -> Vectors:
        """Decide what a batch sums, for p features."""
        if self._method != "newton":
            return Vectors(self._size(p), self._loss.bound, self._loss.sensitivity)
        self._curvature = curvature = Curvature(self._loss, p + bool(self.intercept))
        return Vectors(curvature.size, curvature.bound, curvature.sensitivity)

    def _allocate(self, p: int) -> None:
        self._spec, box = self._describe(p)
        d = box.shape[1]
        self._walk, self._predictor = self._walk_from(self._project(self._first(d))), None
        self._taken = 0
        self._begin_phase()

    def _first(self, d: int) -> np.ndarray:
        """The first theta (d,). With bounds of the target it begins in their middle, with half their width as scale."""
        first = self._loss.start(d)
        if self._free and (bounds := self._target_bounds()) is not None:
            first[-2:] = bounds[0] / 2 + bounds[1] / 2, bounds[1] / 2 - bounds[0] / 2
        return first

    @property
    def _free(self) -> bool:
        """Whether theta is learned in units that follow from what was released."""
        return self._method == "newton" and bool(self.intercept) and self.domain is None

    def _walk_from(self, start: np.ndarray) -> Walk:
        """The walk of the method, which begins at a vector (d,)."""
        if self._curvature is not None:
            deviation = math.sqrt(self._noise(1) / self._curvature.size)
            assert self._features is not None
            wide, scaled = self._free and self._target_bounds() is not None, self._features.numeric & self._free
            return Newton(
                self._curvature,
                start,
                self._project,
                deviation,
                self.batch_size,
                wide,
                scaled,
                follow=self.change == "follow",
                replans=not self.shuffled,
            )
        return Planned(self._problem(start), start, self._project, self.horizon, self.batch_size)

    def _problem(self, start: np.ndarray) -> Problem:
        """The bounds that a plan follows from."""
        bound, reach, accelerated = self._loss.bound, self._reach(start), self._method != "sgd"
        return Problem(bound, self._beta, self.strong_convexity, reach, self._noise, accelerated, self._spread())

    @property
    def n_changes(self) -> int:
        """How many changes of the stream were noticed in what was released (see `optim.change`)."""
        return self._walk.changes if self._features is not None else 0

    @property
    def phase(self) -> Phase:
        """The present phase of a planned walk: its batch size and steps.

        Raises `NotAvailableError` before the features are known, and for a method without a plan.
        """
        self._need_features("phase")
        if not isinstance(self._walk, Planned):
            raise NotAvailableError(f'phase: method="{self._method}" has no plan')
        return self._walk.phase

    @property
    def _next_size(self) -> int:
        """The records of the next batch that come to this process."""
        return self._walk.batch

    def _begin_phase(self) -> None:
        """Prepare for the walk's next batches. It is called when their size changes, and when the walk was moved."""
        from streamdp.optim.loops import ENVELOPE

        self._batch = self._next_size
        if isinstance(self._walk, Planned) and math.isinf(self._beta) and self._walk.problem.accelerated:
            self._spec[ENVELOPE] = 1 / self.phase.beta
        self._middle = self._walk.middle

    # -- learning ---------------------------------------------------------------------------------------------------

    @property
    def _pending(self) -> int:
        return self._taken

    @property
    def to_boundary(self) -> int:
        """How many records are missing from the open batch; 0 if none is open."""
        return 0 if self.at_boundary else self._batch - self._taken

    def _boundary_within(self, records: int) -> int:
        if self._features is None:
            return records
        left = self._walk.batch - self._taken
        if left > records:
            return records
        for batch, batches in self._walk.runs():
            fit = min(batches, (records - left) // batch)
            left += fit * batch
            if fit < batches:
                break
        return left

    def close_batch(self) -> None:
        """End the open batch with the records that it has, so that the state may leave memory.

        Privacy is that of a full batch. The batch has all the noise and fewer records, so it moves the estimate less.
        """
        with self._rng.lock:
            if not self.at_boundary:
                self._finish()

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        left = len(X)
        while True:
            while self._taken >= self._batch:
                self._finish()
            if not left:
                return
            if self._taken == 0:
                if self._batch != self._next_size:  # an exception, such as Ctrl-C, interrupted the end of a batch
                    self._begin_phase()
                self._middle = self._walk.middle
                self._discard()  # it may have been interrupted before
                self._begin()
            taken = min(left, self._batch - self._taken)
            self._seen[0] += taken  # before they are learned: an interruption may lose records, but never a count
            self._taken += taken
            if self._joining:
                self._members |= self._joining
            self._include(X[:taken], y[:taken])
            X, y = X[taken:], y[taken:]
            left -= taken

    def _begin(self) -> None:
        """Begin a batch in this process."""
        self._open()

    def _include(self, X: np.ndarray, y: np.ndarray) -> None:
        """Take rows into the open batch."""
        self._add(X, y)

    def _finish(self) -> None:
        """End the open batch."""
        records = self._taken
        total = self._close(records)
        self._discard()
        self._move(total, self._walk.closed(records), records)

    def _move(self, total: np.ndarray, size: int, advance: int) -> None:
        """Make one step with the noisy sum of a batch; see `Walk.move`."""
        before = self._walk.place[:2], self._walk.batch
        self._walk.move(total, size, advance)
        if (self._walk.place[:2], self._walk.batch) != before:
            self._begin_phase()
        self._middle = self._walk.middle

    def _learn_record(self, x: Mapping[Any, Any], y: Any, budget: Budget | str | None, subject: Subject | None) -> None:
        joining = _NOBODY if self.ledger is None or subject is None else {subject_bytes(subject) or b""}
        if (budget is not None and not self._allowed(parse_budget(budget))) or joining & self._members:
            self.n_refused += 1
            return
        self._joining = joining
        super()._learn_record(x, y, None, subject)

    def _quickly(self) -> RecordLearner | None:
        learner = super()._quickly() if self._taken else None  # otherwise a batch must be opened first
        if learner is not None:
            learner.count(self._seen, self._open_records, self._batch)
        return learner

    def _learn_shared(
        self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        if self.ledger is None or subjects is None:
            self._joining = _NOBODY
            return super()._learn_shared(X, y, subjects)
        self._check_rows(X, y)  # all of them, before the first one is learned
        members = subjects_bytes(subjects)
        self.ledger.prepare(subjects)  # what may fail comes first, when nothing of this is learned or spent
        done, learned = 0, np.zeros(len(X), dtype=bool)
        while done < len(X):  # part by part, because refused records do not fill a batch
            while self._taken >= self._batch:
                self._finish()
            part = slice(done, done + self._batch - self._taken)
            learned[part] = self._learn_part(X[part], y[part], members[part])
            done = part.stop
        return None if learned.all() else learned

    def _learn_part(self, X: np.ndarray, y: np.ndarray, members: list[bytes | None]) -> np.ndarray:
        """Learn rows that do not go beyond this batch, each subject once; return the mask of those learned."""
        assert self.ledger is not None
        learned = np.ones(len(X), dtype=bool)
        met = set(self._members)
        for i, member in enumerate(members):
            if member is not None:
                learned[i] = member not in met
                met.add(member)
        mine = [member for member, new in zip(members, learned, strict=True) if new]
        learned[learned] = self.ledger.admit_many(mine, self.record_budget)
        self.n_refused += int(np.count_nonzero(~learned))
        if learned.any():
            self._joining = {m for m, new in zip(members, learned, strict=True) if new and m is not None}
            self._count(self.record_budget)
            self._meet(X[learned], y[learned], None, None)
        return learned

    # -- state ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds the state of the last boundary: the contributions of an open batch are not in it."""
        with self._rng.lock:
            state = super().__getstate__()
            if self._features is not None:
                state |= self._empty() | {
                    "_seen": self._seen - self._pending,
                    "_open_records": np.zeros_like(self._open_records),
                    "_members": set(),
                }
        return state

    def _discard(self) -> None:
        """Discard the open batch. What an exception leaves of it is discarded when the next batch begins."""
        self._quick, self._taken = None, 0
        for name, value in self._empty().items():
            getattr(self, name)[:] = value
        self._members = set()

    def _estimate(self) -> np.ndarray:
        return self._walk.estimate

    def _model(self) -> dict[str, Any]:
        horizon, size = (None if n is None else int(n) for n in (self.horizon, self.batch_size))
        planned: tuple[Any, ...] = (horizon, size, self._beta, float(self.strong_convexity), self._place)
        if self._method == "newton":
            planned = ("newton", size, self._place)
        elif self._method == "asgd":
            planned = ("asgd", size, self._place, self._loss.weighting)
        mine = {"loss": repr(self._resolve_loss()), "budget": str(self._budget), "plan": repr(planned)}
        return super()._model() | mine

    def _learned(self) -> dict[str, Any]:
        return self._walk.learned()

    def _read(self, state: Mapping[str, Any]) -> None:
        self._walk.read(state, self._check_theta)
        self._begin_phase()

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        walks: Any = [self._walk_of(part) for part in parts]
        self._walk.merge(walks, self._walk.estimate.copy())
        self._begin_phase()

    def _walk_of(self, part: Self) -> Walk:
        """The walk of another learner, in the units of this one."""
        return part._walk

    def _start_from(self, numbers: np.ndarray) -> None:
        self._walk.estimate[:] = numbers

    def _caveats(self, capped: bool) -> list[str]:
        several = (
            "spends of a person's records add up so over different batches only: k in one batch share its noise and "
            "spend k mu, not sqrt(k) mu, and k epsilon only at more than k delta; with a ledger the second is refused"
        )
        scaled = "columns with bounds are centred and scaled by what earlier batches released, which spends nothing"
        once = "a second record of a person within a batch is refused, because both would share its noise"
        return [
            once if capped else several,
            *([scaled] if self._free and self._features is not None and self._features.numeric.any() else []),
            *change.about(self.n_changes),
            *self._about_domain(),
            "after a crash the records of the unfinished batch are learned again: for an observer who saw the state "
            "before the crash and sees the model after it, these records spend twice",
        ]
