"""Estimators that learn batch by batch with accelerated steps: batches, phases, epochs, and when the state may leave.

Within a batch the state holds contributions that are not released yet; between batches it holds only what was. So a
state may be saved, copied or shown at boundaries only: `state_dict` raises `NotAtBoundaryError` within a batch, and a
copy or pickle holds the state of the last boundary. A subclass brings `_open`, `_add` and `_close`, and `_noise`.

A person's records in different batches are protected by different noises, and their spends compose. k records in one
batch are not k mechanisms but one with k times the sensitivity: k mu and not sqrt(k) mu, and k epsilon only at a delta
of more than k delta. So where there is a ledger, a second record of a subject within a batch is refused and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamdp.data.records import subject_bytes
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, SchemaError
from streamdp.estimators.bounded import DEFAULT_BUDGET, BoundedModel
from streamdp.optim.ac_sa import Accelerated, Phase, Problem, plan
from streamdp.privacy.guarantees import Budget, parse_budget

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_STATE_FORMAT = 1
_MOST_RECORDS = 10**18

FIRST_EPOCH = 1024
"""Records of the first epoch of a stream of unknown length; each later epoch has twice as many."""


class BatchedModel(BoundedModel):
    """Batches, the plan and the state. See the module's text."""

    horizon: int | None
    batch_size: int | None
    _walk_kind: type[Accelerated] = Accelerated

    def _set_up_batches(self, budget: Budget | str | None) -> None:
        for name, value in (("horizon", self.horizon), ("batch_size", self.batch_size)):
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= _MOST_RECORDS):
                raise ConfigError(f"{name}: expected a whole number from 1 to {_MOST_RECORDS}, or None")
        self._set_up_bounded()
        self._members: set[bytes] = set()  # whose records are in the batch, where a ledger counts them
        self._set_up(DEFAULT_BUDGET if budget is None else budget)

    # -- what subclasses bring --------------------------------------------------------------------------------------

    def _noise(self, batch: int) -> float:
        """The variance E||.||^2 that privacy adds to the average gradient of a batch."""
        raise NotImplementedError

    def _spread(self) -> float | None:
        """The root mean square distance of what a batch averages from its mean, where it is less than the bound."""
        return None

    def _open(self) -> None:
        """A batch begins."""

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        """Take up rows of the batch that is open, at `self._middle`."""
        raise NotImplementedError

    def _close(self, records: int) -> np.ndarray:
        """The noisy gradient (d,) of the batch, from so many records, over the batch size."""
        raise NotImplementedError

    def _empty(self) -> dict[str, np.ndarray]:
        """What the attributes that hold a batch are where none is open, by name."""
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
        """The phases of an epoch; where the loss is strongly convex each epoch starts nearer than the last one."""
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
        """The batch size and the steps at present. Raises `NotAvailableError` before features are known."""
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
    def at_boundary(self) -> bool:
        """Whether no batch is open, so that the state may leave memory."""
        return not self._names or self._taken == 0

    @property
    def to_boundary(self) -> int:
        """How many records to learn to come to a boundary; 0 at one."""
        return 0 if self.at_boundary else self.phase.batch - self._taken

    def boundary_within(self, records: int) -> int:
        """How many of the next `records` to learn so as to end at a boundary; all where there is none among them."""
        if not self._names:
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
        """End the batch that is open with the records it has, so that the state may leave memory.

        Privacy is that of a full batch; the gradient is taken over the planned size, so the step is a shorter one.
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
            self._taken += taken  # before they are learned: an interruption may lose records, but count none too few
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
        """One step with the noisy gradient of a batch, and on to the next phase or epoch where it was the last."""
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
        """Learn one record. As for every estimator, but that a record whose `budget` allows less than this estimator
        spends is refused and counted, and one that allows more spends the estimator's.

        Raises `SchemaError` for a bad record that is not refused and `BudgetError` for a budget of another kind.
        """
        if not self._looked:
            self._look_upstream()  # here, where the caller is the pipeline
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
        """Learn records that all spend the estimator's budget; as `_learn_batch`."""
        if self.ledger is None or subjects is None:
            return super()._learn_shared(X, y, subjects)
        if len(subjects) != len(X):
            raise SchemaError(f"subjects: expected {len(X)}, got {len(subjects)}")
        self._check_rows(X, y)  # all, before the first is learned
        members = [subject_bytes(subject) for subject in subjects]
        self.ledger.prepare(subjects)  # what may fail comes first: after it, nothing of this was learned or spent
        done, learned = 0, np.zeros(len(X), dtype=bool)
        while done < len(X):  # part by part: what the ledger refuses does not fill a batch
            if self._taken >= self._batch:
                self._finish()
            part = slice(done, done + self._batch - self._taken)
            learned[part] = self._learn_part(X[part], y[part], members[part])
            done = part.stop
        return None if learned.all() else learned

    def _learn_part(self, X: np.ndarray, y: np.ndarray, members: list[bytes | None]) -> np.ndarray:
        """Learn rows that do not go beyond this batch, each subject once; which ones were learned."""
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
        """A copy holds the state of the last boundary: what a batch has taken up since is not in it."""
        with self._rng.lock:
            state = super().__getstate__()
            if not self.at_boundary:
                state |= self._empty() | {"_seen": self._seen - self._taken, "_taken": 0, "_members": set()}
        return state

    def _discard(self) -> None:
        """Forget the batch that is open."""
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

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, text and arrays. No generator and nothing of an unfinished batch is in it.

        Raises `NotAtBoundaryError` within a batch.
        """
        self._need_features("state_dict")
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError(
                    f"{self._taken} records of an unfinished batch are in the state: learn the "
                    f"{self.to_boundary} that are missing, or call close_batch()"
                )
            return {
                "format": _STATE_FORMAT,
                **self._model(),
                "state": self._walk.points.copy(),
                "place": [self._epoch, self._phase_number, self._walk.step],
                "n_seen": self.n_seen,
                "n_refused": self.n_refused,
                "spent": [str(budget) for budget in self._spent],
                "private": self.private,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; what a batch has taken up until now is forgotten.

        Raises `ConfigError`, changing nothing, where it is of another model, plan or format, or outside the domain.
        """
        try:
            taken = self._taker(state, _STATE_FORMAT)
            points = np.array(state["state"], dtype=float)
            spent = [parse_budget(text) for text in state["spent"]]
            counts = int(state["n_seen"]), int(state["n_refused"])
            epoch, phase, step = (int(number) for number in state["place"])
            private = bool(state["private"])
        except KeyError as missing:
            raise ConfigError(f"state: lacks {missing}") from None
        except (ConfigError, BudgetError):
            raise
        except (TypeError, ValueError, OverflowError):
            raise ConfigError("state: expected what state_dict returns") from None
        if points.shape != taken._walk.points.shape or not np.isfinite(points).all():
            raise ConfigError(f"state: expected finite numbers of shape {taken._walk.points.shape}, got {points.shape}")
        if not all(0 <= n <= _MOST_RECORDS for n in counts):
            raise ConfigError(f"state: expected counts from 0 to {_MOST_RECORDS}, got {counts}")
        planned = taken._plan_of(epoch) if 0 <= epoch < 64 else []
        if not (0 <= phase < len(planned) and 0 <= step < planned[phase].steps):
            raise ConfigError("state: its place in the plan is out of range")
        for theta in points:
            taken._check_theta(theta)
        with self._rng.lock:
            if not self._names:
                self._declare(taken._names)
            self._discard()
            self._set_spent(spent)
            self._tainted = not private
            self._walk.points[:] = points
            self._epoch, self._phase_number, self._walk.step = epoch, phase, step
            self._plan = planned
            self.n_seen, self.n_refused = counts
            self._begin_phase()

    def merged(self, *others: Self) -> Self:
        """A new estimator: the average of this and others, weighted by records, for learners of disjoint records.

        Unfinished batches are left out. The guarantee is the widest of theirs (parallel composition), provided the
        records are disjoint; a person with records in several composes. It goes on with the longest epoch of theirs.
        Raises `ConfigError` where models differ.
        """
        parts = (self, *others)
        result = self._union(parts, "type, loss, domain, budget, plan, features and classes")
        seen = [part.n_seen - part._taken for part in parts]
        result.n_seen = sum(seen)
        if result.n_seen:
            output = sum(part._walk.points[1] * (n / result.n_seen) for part, n in zip(parts, seen, strict=True))
            result._walk.points[:] = output
        result._epoch = max(part._epoch for part in parts)
        result._plan = result._plan_of(result._epoch)
        result._begin_phase()
        return result

    def _caveats(self) -> list[str]:
        several = (
            "spends of a person's records add up so over different batches only: k in one batch share its noise and "
            "spend k mu, not sqrt(k) mu, and k epsilon only at more than k delta; with a ledger the second is refused"
        )
        once = "a second record of a person within a batch is refused, for both would share its noise"
        return [
            several if self.ledger is None else once,
            f"theta is kept in {self._domain}",
            "after a crash the records of the unfinished batch are learned again: whoever saw the state before the "
            "crash and sees the model after it has seen these records spend twice",
        ]
