"""The learner of windows: collects, closes, has the method release, and forgets. See `windowed`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.data.records import subject_bytes
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, TooFewUsersError
from streamdp.estimators.bounded import DEFAULT_BUDGET
from streamdp.estimators.user.records import UserRecords
from streamdp.estimators.windowed.window_buffer import Gathering
from streamdp.privacy.entropy import entropy
from streamdp.privacy.guarantees import ApproxDP, Budget, parse_budget
from streamdp.privacy.statement import WINDOW, Unit
from streamdp.windows.methods import method_for
from streamdp.windows.records import WindowRecords
from streamdp.windows.task import Method, Task

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_STATE_FORMAT = 1
_MOST_COUNT = 10**18


class WindowWarning(UserWarning):
    """A window has too few users to be released, so it goes on."""


@lru_cache(maxsize=256)
def _plan(method: Method, task: Task) -> Any:
    return method.plan(task)


class WindowLearner(UserRecords):
    """Collecting and releasing. `_gathered` holds the raw records of the window, and nothing else does."""

    trust = (
        "the operator, whose process holds the records of a window in memory until its release, and then wipes them; "
        "nobody who sees a model, a checkpoint or a prediction"
    )
    neighbours = (
        "user level: two streams that differ in all records of one user in one window, replaced by any others that fit "
        "the schema (replace-one); public and not protected are how many records there are, which of them do not fit "
        "the schema and why, whose each is, what budget it brings, and so which window it is in and which ones are "
        "refused"
    )
    commits_at_every_boundary = True
    _unit: ClassVar[Unit] = WINDOW

    method: str | Method

    def _set_up_windows(self, budget: Budget | str | None) -> None:
        self._check_users()
        spend = DEFAULT_BUDGET if budget is None else parse_budget(budget)
        if not isinstance(spend, ApproxDP):
            raise BudgetError(f"{type(self).__name__}: expected eps=E,delta=D, got {spend}")
        self._method = method_for(self.method)
        self._rng = entropy(self.seed)
        self._gathered = Gathering(self.items_per_user, self.window)
        self.n_users = 0
        """Users learned from, once for every window that they were in."""
        self.n_windows = 0
        """Windows released."""
        self.n_stopped = 0
        """Windows whose method stopped early, as its private test of the users' agreement failed."""
        self._set_up_bounded()
        self._set_up(spend)

    def _allocate(self, p: int) -> None:
        self._spec, box = self._describe(p)
        self._theta = self._project(self._loss.start(box.shape[1]))
        self._distance = self._reach(self._theta)
        try:
            self._plan(int(self.window))  # it has no more users than records, when it may first end
        except TooFewUsersError as error:
            raise TooFewUsersError(f"window: {self.window} records are too few: {error}", error.needed) from None

    def _task(self, users: int) -> Task:
        assert isinstance(self._budget, ApproxDP)
        return Task(
            users=users,
            items=int(self.items_per_user),
            d=len(self._theta),
            budget=self._budget,
            bound=self._loss.bound,
            sensitivity=self._sensitivity,
            smoothness=self._beta,
            convexity=float(self.strong_convexity),
            distance=self._distance,
            spread=self._spread(),
        )

    def _plan(self, users: int) -> Any:
        return _plan(self._method, self._task(users))

    # -- collecting --------------------------------------------------------------------------------------------------

    @property
    def at_boundary(self) -> bool:
        """Whether no record of a window is in memory, so that the state may leave it."""
        return self._gathered.held == 0

    @property
    def to_boundary(self) -> int:
        """How many records to learn until the window may end; 0 where none is open."""
        return 0 if self.at_boundary else self._gathered.room

    def boundary_within(self, records: int) -> int:
        """How many of the next `records` to learn so as not to go beyond where the window may end."""
        return min(records, self._gathered.room)

    def _gather(self, X: np.ndarray, y: np.ndarray, people: Sequence[Subject | None]) -> np.ndarray | None:
        people = [subject_bytes(subject) for subject in people]  # b"ann" and "ann" are one person
        if self.ledger is not None:
            self.ledger.prepare(people)  # what may fail comes first: after it, nothing of this was learned or spent
        done, taken = 0, np.zeros(len(X), dtype=bool)
        while done < len(X):
            part = slice(done, done + self._gathered.room)
            taken[part] = self._take(X[part], y[part], people[part])
            done = part.stop
            if not self.at_boundary and self._gathered.room == self._gathered.window:
                self._release()
        return None if taken.all() else taken

    def _take(self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None]) -> np.ndarray:
        if self.ledger is not None and (begun := self._gathered.begun(subjects)):
            admitted = self.ledger.admit_many(begun, self._budget)
            self._gathered.refuse([s for s, fits in zip(begun, admitted, strict=True) if not fits])
        taken = self._gathered.take(X, y, subjects)
        learned = int(np.count_nonzero(taken))
        self.n_seen += learned
        self.n_refused += len(X) - learned
        if learned:
            self._count(self._budget)  # long before the release
        return taken

    # -- releasing ---------------------------------------------------------------------------------------------------

    def close_batch(self) -> None:
        """End the window with the users that it has; where they are too few it stays open, with a `WindowWarning` that
        says how many are needed.
        """
        with self._rng.lock:
            if not self.at_boundary:
                self._release()

    def _release(self) -> None:
        """Have the method learn from the window, wipe it, and begin the next; too few users: it goes on."""
        try:
            plan = self._plan(self._gathered.users)
        except TooFewUsersError as error:
            warnings.warn(f"the window stays open: {error}", WindowWarning, stacklevel=5)
            return
        X, y, sizes = self._gathered.close()
        users = WindowRecords(self._loss, self._spec, self._project, X, y, sizes)
        try:
            release = self._method.run(plan, users, self._theta.copy(), self._rng)
        finally:
            users.wipe()
        self._theta = self._project(release.theta)
        self.n_windows += 1
        self.n_users += len(sizes)
        self.n_stopped += not release.complete

    def _estimate(self) -> np.ndarray:
        return self._theta

    # -- state -------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds the state of the last boundary: the open window is not in it."""
        with self._rng.lock:
            return super().__getstate__() | {"_seen": self._seen - self._gathered.held}

    def _model(self) -> dict[str, Any]:
        planned = (repr(self._method), int(self.items_per_user), int(self.window), self._spread())
        problem = (self._beta, float(self.strong_convexity), self._place)
        return super()._model() | {"budget": str(self._budget), "window": repr(planned), "problem": repr(problem)}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, text and arrays. No generator and no record is in it.

        Raises `NotAtBoundaryError` while a window is open.
        """
        self._need_features("state_dict")
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError(
                    f"{self._gathered.held} raw records of an open window are in memory: learn the {self.to_boundary} "
                    "that are missing, or call close_batch()"
                )
            return {
                "format": _STATE_FORMAT,
                **self._model(),
                "theta": self._theta.copy(),
                "n_seen": self.n_seen,
                "n_refused": self.n_refused,
                "n_users": self.n_users,
                "n_windows": self.n_windows,
                "n_stopped": self.n_stopped,
                "spent": [str(budget) for budget in self._spent],
                "private": self.private,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; an open window is forgotten.

        Raises `ConfigError`, changing nothing, where it is of another model, method or format, or outside the domain.
        """
        names = ("n_seen", "n_refused", "n_users", "n_windows", "n_stopped")
        try:
            taken = self._taker(state, _STATE_FORMAT)
            theta = np.array(state["theta"], dtype=float)
            spent = [parse_budget(text) for text in state["spent"]]
            counts = [int(state[name]) for name in names]
            private = bool(state["private"])
        except KeyError as missing:
            raise ConfigError(f"state: lacks {missing}") from None
        except (ConfigError, BudgetError):
            raise
        except (TypeError, ValueError, OverflowError):
            raise ConfigError("state: expected what state_dict returns") from None
        if theta.shape != taken._theta.shape or not np.isfinite(theta).all():
            raise ConfigError(f"state: expected finite theta of shape {taken._theta.shape}, got {theta.shape}")
        if not all(0 <= n <= _MOST_COUNT for n in counts):
            raise ConfigError(f"state: expected counts from 0 to {_MOST_COUNT}")
        taken._check_theta(theta)
        with self._rng.lock:
            if not self._names:
                self._declare(taken._names)
            self._gathered.discard()
            self._set_spent(spent)
            self._tainted = not private
            self._theta = theta
            for name, n in zip(names, counts, strict=True):
                setattr(self, name, n)

    def merged(self, *others: Self) -> Self:
        """A new estimator: the average of this and others, weighted by users, for learners of disjoint records.

        Open windows are left out. The guarantee is the widest of theirs (parallel composition), provided the records
        are disjoint; a person with records in several composes. Raises `ConfigError` where models differ.
        """
        parts = (self, *others)
        result = self._union(parts, "type, loss, domain, budget, method, window and features")
        for name in ("n_users", "n_windows", "n_stopped"):
            setattr(result, name, sum(getattr(part, name) for part in parts))
        result.n_seen = sum(part.n_seen - part._gathered.held for part in parts)
        if result.n_users:
            result._theta = sum(part._theta * (part.n_users / result.n_users) for part in parts)  # type: ignore[assignment]
        return result

    def _caveats(self) -> list[str]:
        return [
            f"{self.n_windows:,} windows of {self.n_users:,} users with up to {self.items_per_user} records each were "
            f"released by {self._method.name}; {self.n_stopped:,} stopped early",
            "a record without a subject counts as a user of its own",
            f"theta is kept in {self._domain}",
            "after a crash the open window is read again; nothing of it had left memory",
        ]
