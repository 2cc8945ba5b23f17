"""Estimators that learn batch by batch with accelerated steps: batches, phases, epochs, and boundaries.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamdp.data.records import subject_bytes
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators.bounded import BoundedModel
from streamdp.estimators.linear import MOST_RECORDS, finite_array
from streamdp.optim.ac_sa import Accelerated, Phase, Problem, plan
from streamdp.privacy.guarantees import Budget, parse_budget

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_MOST_EPOCHS = 64

FIRST_EPOCH = 1024
"""Records of the first epoch of a stream of unknown length; each later epoch has twice as many."""


class BatchedModel(BoundedModel):
    """Batches, the plan and the state: see the text of the module."""

    horizon: int | None
    batch_size: int | None
    _walk_kind: type[Accelerated] = Accelerated
    _taken = 0
    """Records of the open batch."""

    def _set_up(self) -> None:
        for name, value in (("horizon", self.horizon), ("batch_size", self.batch_size)):
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= MOST_RECORDS):
                raise ConfigError(f"{name}: expected a whole number from 1 to {MOST_RECORDS}, or None")
        super()._set_up()
        self._members: set[bytes] = set()  # with a ledger: the subjects with a record in the open batch

    # -- what subclasses define -------------------------------------------------------------------------------------

    def _noise(self, batch: int) -> float:
        """The variance E||.||^2 that privacy adds to the average gradient of a batch."""
        raise NotImplementedError

    def _spread(self) -> float | None:
        """The root mean square distance of what a batch averages from its mean; None: only the bound is known."""
        return None

    def _open(self) -> None:
        """Begin a batch."""

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        """Add rows to the open batch, with gradients at `self._middle`."""
        raise NotImplementedError

    def _close(self, records: int) -> np.ndarray:
        """The noisy sum of the gradients of a batch with so many records, divided by the planned batch size (d,)."""
        raise NotImplementedError

    def _empty(self) -> dict[str, np.ndarray]:
        """Initial values of the attributes that hold an open batch, by name."""
        raise NotImplementedError

    # -- set-up -----------------------------------------------------------------------------------------------------

    def _allocate(self, p: int) -> None:
        self._spec, box = self._describe(p)
        d = box.shape[1]
        start = self._project(self._loss.start(d))
        reach, accelerated = self._reach(start), self._walk_kind is Accelerated
        self._problem = Problem(
            self._loss.bound, self._beta, self.strong_convexity, reach, self._noise, accelerated, self._spread()
        )
        self._walk = self._walk_kind(start, self._project)
        self._epoch = self._phase_number = self._taken = 0
        self._plan = self._plan_of(0)
        self._begin_phase()

    def _plan_of(self, epoch: int) -> list[Phase]:
        """The phases of an epoch; if the loss is strongly convex, each epoch starts nearer to the optimum."""
        records = self.horizon or FIRST_EPOCH
        if self.strong_convexity == 0:
            return plan(self._problem, records * 2**epoch, self.batch_size)
        distance = self._problem.distance
        for number in count_from():
            phases = plan(self._problem, records * 2**number, self.batch_size, distance)
            if number == epoch:
                return phases
            distance = min(distance, math.sqrt(2 * phases[-1].excess / self.strong_convexity))
        raise AssertionError

    @property
    def phase(self) -> Phase:
        """The present phase: its batch size and steps. Raises `NotAvailableError` before the features are known."""
        self._need_features("phase")
        return self._plan[self._phase_number]

    def _begin_phase(self) -> None:
        from streamdp.optim.loops import ENVELOPE

        self._batch = self.phase.batch
        if math.isinf(self._beta) and self._problem.accelerated:
            self._spec[ENVELOPE] = 1 / self.phase.beta
        self._middle = self._walk.middle

    # -- learning ---------------------------------------------------------------------------------------------------

    @property
    def _pending(self) -> int:
        return self._taken

    @property
    def to_boundary(self) -> int:
        """How many records are missing from the open batch; 0 if none is open."""
        return 0 if self.at_boundary else self.phase.batch - self._taken

    def boundary_within(self, records: int) -> int:
        """See `StreamEstimator.boundary_within`."""
        if self._features is None:
            return records
        left = self.phase.batch - self._taken
        if left > records:
            return records
        runs = ((self.phase, self.phase.steps - self._walk.step - 1), *((p, p.steps) for p in self._later()))
        for phase, batches in runs:
            fit = min(batches, (records - left) // phase.batch)
            left += fit * phase.batch
            if fit < batches:
                break
        return left

    def _later(self) -> Sequence[Phase]:
        return self._plan[self._phase_number + 1 :]

    def close_batch(self) -> None:
        """End the open batch with the records that it has, so that the state may leave memory.

        Privacy is that of a full batch; the sum is divided by the planned size, so the step is shorter.
        """
        with self._rng.lock:
            if not self.at_boundary:
                self._finish()

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        left = len(X)
        while True:
            if self._taken >= self._batch:
                self._finish()
            if not left:
                return
            if self._taken == 0:
                self._open()
            taken = min(left, self._batch - self._taken)
            self._taken += taken  # before they are learned: an interruption may lose records, but never a count
            self._seen[0] += taken
            if taken == left:
                self._add(X, y)
            else:
                self._add(X[:taken], y[:taken])
                X, y = X[taken:], y[taken:]
            left -= taken

    def _finish(self) -> None:
        gradient = self._close(self._taken)
        self._discard()
        self._move(gradient)

    def _move(self, gradient: np.ndarray) -> None:
        """Make one step with the noisy gradient of a batch; after the last step of a phase begin the next one."""
        self._walk.move(gradient, self.phase.modulus)
        if self._walk.step >= self.phase.steps:
            self._walk.restart()
            self._phase_number += 1
            if self._phase_number == len(self._plan):
                self._epoch, self._phase_number = self._epoch + 1, 0
                self._plan = self._plan_of(self._epoch)
            self._begin_phase()
        self._middle = self._walk.middle

    def learn_one(
        self,
        x: Mapping[Any, Any],
        y: Any,
        *,
        budget: Budget | str | None = None,
        subject: Subject | None = None,
    ) -> None:
        """As `StreamEstimator.learn_one`, except that all records spend the estimator's budget.

        A record whose `budget` allows less is refused and counted. With a ledger, so is the second record of a subject
        within a batch. Raises `SchemaError` for a bad record that is not refused, and `BudgetError` for a budget of
        another kind.
        """
        if not self._looked:
            self._look_upstream()  # in this method, because its caller is the pipeline
        member = None if self.ledger is None else subject_bytes(subject)
        with self._rng.lock:
            if (budget is not None and not self._allowed(parse_budget(budget))) or member in self._members:
                self.n_refused += 1
                return
            learned = self.n_seen
            super().learn_one(x, y, subject=subject)
            if member is not None and self._taken and self.n_seen > learned:
                self._members.add(member)

    def _learn_shared(
        self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        if self.ledger is None or subjects is None:
            return super()._learn_shared(X, y, subjects)
        if len(subjects) != len(X):
            raise SchemaError(f"subjects: expected {len(X)}, got {len(subjects)}")
        self._check_rows(X, y)  # all of them, before the first one is learned
        members = [subject_bytes(subject) for subject in subjects]
        self.ledger.prepare(subjects)  # what may fail comes first, when nothing of this is learned or spent
        done, learned = 0, np.zeros(len(X), dtype=bool)
        while done < len(X):  # part by part, because refused records do not fill a batch
            if self._taken >= self._batch:
                self._finish()
            part = slice(done, done + self._batch - self._taken)
            learned[part] = self._learn_part(X[part], y[part], members[part])
            done = part.stop
        return None if learned.all() else learned

    def _learn_part(self, X: np.ndarray, y: np.ndarray, members: list[bytes | None]) -> np.ndarray:
        """Learn rows that do not go beyond this batch, each subject once; return the mask of those learned."""
        once = np.ones(len(X), dtype=bool)
        met = set(self._members)
        for i, member in enumerate(members):
            if member is not None:
                once[i] = member not in met
                met.add(member)
        mine = [member for member, new in zip(members, once, strict=True) if new]
        learned = super()._learn_shared(X[once], y[once], mine)
        self.n_refused += int(np.count_nonzero(~once))
        if learned is not None:
            once[once] = learned
        if self._taken:
            self._members.update(m for m, new in zip(members, once, strict=True) if new and m is not None)
        return once

    # -- state ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds the state of the last boundary: the contributions of an open batch are not in it."""
        with self._rng.lock:
            state = super().__getstate__()
            if not self.at_boundary:
                state |= self._empty() | {"_seen": self._seen - self._taken, "_taken": 0, "_members": set()}
        return state

    def _discard(self) -> None:
        """Discard the open batch."""
        for name, value in self._empty().items():
            getattr(self, name)[:] = value
        self._taken = 0
        self._members = set()

    def _estimate(self) -> np.ndarray:
        output: np.ndarray = self._walk.points[1]
        return output

    def _model(self) -> dict[str, Any]:
        horizon, size = (None if n is None else int(n) for n in (self.horizon, self.batch_size))
        planned = (horizon, size, self._beta, float(self.strong_convexity), self._place)
        return super()._model() | {"budget": str(self._budget), "plan": repr(planned)}

    def _learned(self) -> dict[str, Any]:
        return {"state": self._walk.points.copy(), "place": [self._epoch, self._phase_number, self._walk.step]}

    def _read(self, state: Mapping[str, Any]) -> Callable[[], None]:
        points = finite_array(state, "state", self._walk.points.shape)
        plan, (epoch, phase, step) = self._planned(state["place"])
        for theta in points:
            self._check_theta(theta)

        def take_over() -> None:
            self._discard()
            self._walk.points[:] = points
            self._epoch, self._phase_number, self._walk.step = epoch, phase, step
            self._plan = plan
            self._begin_phase()

        return take_over

    def _planned(self, place: Iterable[Any]) -> tuple[list[Phase], tuple[int, int, int]]:
        """The plan of the epoch of a place (epoch, phase, step). Raises `ConfigError` if the plan has no such place."""
        epoch, phase, step = (int(number) for number in place)
        plan = self._plan_of(epoch) if 0 <= epoch < _MOST_EPOCHS else []
        if not (0 <= phase < len(plan) and 0 <= step < plan[phase].steps):
            raise ConfigError("state: its place in the plan is out of range")
        return plan, (epoch, phase, step)

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        self._epoch = max(part._epoch for part in parts)  # noqa: SLF001 - the same class
        self._plan = self._plan_of(self._epoch)
        self._begin_phase()

    def _start_from(self, numbers: np.ndarray) -> None:
        self._walk.points[:] = numbers

    def _caveats(self) -> list[str]:
        several = (
            "spends of a person's records add up so over different batches only: k in one batch share its noise and "
            "spend k mu, not sqrt(k) mu, and k epsilon only at more than k delta; with a ledger the second is refused"
        )
        once = "a second record of a person within a batch is refused, because both would share its noise"
        return [
            several if self.ledger is None else once,
            f"theta is kept in {self._domain}",
            "after a crash the records of the unfinished batch are learned again: for an observer who saw the state "
            "before the crash and sees the model after it, these records spend twice",
        ]
