"""The learner of windows: collects records, releases with a method, and deletes them. See `windowed.estimators`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.data.subjects import subjects_bytes
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, TooFewUsersError, check_choice
from streamdp.estimators.user.records import UserRecords
from streamdp.estimators.user.target_units import place_targets
from streamdp.estimators.windowed.scales import Scales
from streamdp.estimators.windowed.window_buffer import Gathering
from streamdp.optim import change
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.domains import RealSpace
from streamdp.optim.states import finite_array
from streamdp.privacy.guarantees import ApproxDP
from streamdp.privacy.statement import WINDOW, Unit
from streamdp.windows.methods import NEWTON, method_for
from streamdp.windows.newton import NewtonSteps
from streamdp.windows.records import WindowRecords, WindowUsers
from streamdp.windows.task import Method, Task

if TYPE_CHECKING:
    from streamdp.data.records import Subject


_PLANNED = "private-range"  # where Newton's steps are not possible


class WindowWarning(UserWarning):
    """A window has too few users for a release, so it stays open."""


@lru_cache(maxsize=256)
def _plan(method: Method, task: Task) -> Any:
    return method.plan(task)


class WindowLearner(UserRecords):
    """Collecting and releasing. The raw records of the window are in `_gathered` and nowhere else."""

    trust = (
        "the operator, whose process holds the records of a window in memory until its release, and then overwrites "
        "them; nobody who sees a model, a checkpoint or a prediction"
    )
    neighbours = (
        "user level: two streams that differ in all records of one user in one window, replaced by any others that fit "
        "the schema (replace-one); not protected, because public: how many records there are, which of them do not fit "
        "the schema and why, the subject and the budget of each, and so which window it is in and which ones are "
        "refused"
    )
    commits_at_every_boundary = True
    _unit: ClassVar[Unit] = WINDOW
    _counts = ("n_seen", "n_refused", "n_users", "n_windows", "n_stopped")
    _weighed_by = "n_users"

    method: str | Method
    change: str
    scales_columns = True

    def _set_up(self) -> None:
        super()._set_up()
        if not isinstance(self._budget, ApproxDP):
            raise BudgetError(f"{type(self).__name__}: expected eps=E,delta=D, got {self._budget}")
        check_choice("change", self.change, change.CHANGE)
        plain = self.smoothness is None and not self.strong_convexity and self._loss.weighting is None
        if self.scaling is not None:
            check_choice("scaling", self.scaling, ("private", "none"), " or None")
        usual = NEWTON if has_curvature(self._loss) and plain else _PLANNED
        self._use(usual if isinstance(self.method, str) and self.method == "auto" else self.method)
        self._gathered = Gathering(self.items_per_user, self.window)
        self.n_users = 0
        """Users that were learned from; a user counts once for each window."""
        self.n_windows = 0
        """Windows released."""
        self.n_stopped = 0
        """Windows whose method stopped early because its private test of the users' agreement failed."""

    def _use(self, method: str | Method) -> None:
        self._method = method_for(method)
        if self.change == "ignore" and isinstance(self._method, NewtonSteps):
            self._method = replace(self._method, follow=False)
        self._domain = self._default_domain if self.domain is None else self.domain
        if self._method.name == NEWTON:
            self._check_newton(_PLANNED)
            self._domain = self.domain or RealSpace()

    def _allocate(self, p: int) -> None:
        self._spec, box = self._describe(p)
        start = self._project(self._loss.start(box.shape[1]))
        self._distance = math.inf if isinstance(self._domain, RealSpace) else self._reach(start)
        columns = p + bool(self.intercept)
        self._curvature = Curvature(self._loss, columns) if has_curvature(self._loss) else None
        self._d = len(start)
        self._kept = self._d + self._method.memory(self._task(1))
        self._state = np.append(start, np.zeros(self._kept - self._d))
        """Theta (d,) for the scaled columns, what the method keeps from window to window, the centres and the scales of
        the columns that are scaled, and 1 if these are final. One array, so that no exception can part them."""
        self._begin_in(self._usual_bounds())
        try:
            self._plan(int(self.window))  # when the window may first end, it has at most this many users
        except TooFewUsersError as error:
            if self.method == "auto" and self._method.name == NEWTON:
                self._use(_PLANNED)
                self._allocate(p)
                return
            raise TooFewUsersError(f"window: {self.window} records are too few: {error}", error.needed) from None

    def _task(self, users: int) -> Task:
        assert isinstance(self._budget, ApproxDP)
        return Task(
            users=users,
            items=int(self.items_per_user),
            d=self._d,
            budget=self._budget,
            bound=self._loss.bound,
            sensitivity=self._sensitivity,
            smoothness=self._beta,
            convexity=float(self.strong_convexity),
            distance=self._distance,
            spread=self._spread(),
            curvature=self._curvature,
        )

    def _plan(self, users: int) -> Any:
        return _plan(self._method, self._task(users))

    # -- scales ------------------------------------------------------------------------------------------------------

    def _begin_in(self, bounds: tuple[float, float] | None) -> None:
        scales = self._scales_for(bounds)
        state = np.append(self._state[: self._kept], scales.start)
        self._bounds, self._scales, self._state = bounds, scales, state

    def _scales_for(self, bounds: tuple[float, float] | None) -> Scales:
        """Which columns are centred and scaled, p being the target: see `windows.scaling`."""
        assert self._features is not None
        bounded = np.append(self._features.numeric, self._usual_bounds() is not None)
        reasons = {
            "declared bounds, in `features` or `target`": bool(bounded.any()),
            "intercept=True": self.intercept,
            "no domain, because the units of theta change": self.domain is None,
            'method="newton"': self._method.name == NEWTON,
        }
        missing = [reason for reason, held in reasons.items() if not held]
        if self.scaling == "private" and missing:
            raise ConfigError(f"scaling: private scaling needs {missing[0]}")
        bounded[-1] &= bounds is not None  # a state from before targets had units goes on without
        return Scales(np.flatnonzero(bounded & (self.scaling != "none") & (not missing)), len(self._names))

    @property
    def _frame(self) -> np.ndarray:
        """The centres and scales (2, k): a view."""
        return self._state[self._kept : -1].reshape(2, -1)

    def _scale(self, users: WindowUsers, n: int, plan: Any) -> tuple[Any, np.ndarray]:
        """Find new scales with a share of the window's budget, if they are not final.

        Returns the plan for the rest of the budget, and the state from which to go on.
        """
        state, found = self._state.copy(), None
        if len(self._scales) and not state[-1]:
            found = self._scales.search(users, self._frame, self._task(n), partial(_plan, self._method), self._rng)
        if found is None:
            return plan, state
        plan, frame, settled = found
        if not np.array_equal(frame, self._frame):  # sums of columns with other scales do not add up
            # A first theta is one for any units. It has a spread of 1, which would be far too much in the old ones.
            theta = self._scaled(self._estimate(), frame) if self.n_windows else self._inner()
            memory = np.zeros(self._kept - self._d)
            state[:-1] = np.concatenate([theta, memory, frame.ravel()])
        state[-1] = settled
        return plan, state

    def _scaled(self, original: np.ndarray, frame: np.ndarray) -> np.ndarray:
        """Theta (d,) in original units as theta for columns with these centres and scales (2, k), as a new array."""
        return self._scales.inward(self._inward(original), frame)

    def _estimate(self) -> np.ndarray:
        return self._outward(self._scales.outward(self._inner(), self._frame))

    def _inner(self) -> np.ndarray:
        theta: np.ndarray = self._state[: self._d]
        return theta

    @property
    def n_changes(self) -> int:
        """How many changes of the stream between windows were noticed in what was released (see `optim.change`)."""
        return 0 if self._features is None else self._method.changes(self._task(1), self._state[: self._kept])

    # -- collecting --------------------------------------------------------------------------------------------------

    @property
    def _pending(self) -> int:
        return self._gathered.held

    @property
    def to_boundary(self) -> int:
        """How many records to learn until the window may end; 0 if no window is open."""
        return 0 if self.at_boundary else self._gathered.room

    def _boundary_within(self, records: int) -> int:
        """Here at most the records until the window may end."""
        return min(records, self._gathered.room)

    def _gather(self, X: np.ndarray, y: np.ndarray, people: Sequence[Subject | None]) -> np.ndarray | None:
        people = subjects_bytes(people)  # b"ann" and "ann" are one person
        if self.ledger is not None:
            self.ledger.prepare(people)  # what may fail comes first, when nothing of this is learned or spent
        done, taken = 0, np.zeros(len(X), dtype=bool)
        while done < len(X):
            part = slice(done, done + self._gathered.room)
            taken[part] = self._take(X[part], y[part], people[part])
            done = part.stop
            if not self.at_boundary and self._gathered.room == self._gathered.window:
                self._release()
        return None if taken.all() else taken

    def _take(self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None]) -> np.ndarray:
        n = len(X)
        timely = np.ones(n, dtype=bool) if self.ledger is None else self.ledger.timely(subjects)
        people = [subjects[i] for i in np.flatnonzero(timely).tolist()]
        if self.ledger is not None and (begun := self._gathered.begun(people)):
            admitted = self.ledger.admit_many(begun, self._budget)
            self._gathered.refuse([s for s, fits in zip(begun, admitted, strict=True) if not fits])
        users, taken = np.full(n, -1), np.zeros(n, dtype=bool)
        users[timely], taken[timely] = self._gathered.choose(people)
        learned = int(np.count_nonzero(taken))
        if learned:
            self._count(self._budget)
        self.n_seen += learned
        self.n_refused += len(X) - learned
        self._gathered.take(X, y, users, taken)
        return taken

    # -- releasing ---------------------------------------------------------------------------------------------------

    def close_batch(self) -> None:
        """End the window with the users that it has.

        If they are too few, the window stays open, and a `WindowWarning` says how many are needed.
        """
        with self._rng.lock:
            if not self.at_boundary:
                self._release()

    def _release(self) -> None:
        """Learn from the window with the method, overwrite it and begin the next one; with too few users, go on."""
        try:
            plan = self._plan(self._gathered.users)
        except TooFewUsersError as error:
            warnings.warn(f"the window stays open: {error}", WindowWarning, stacklevel=5)
            return
        self._count(self._budget)
        n = self._gathered.users
        self._learn_from(self.users_of(*self._gathered.close()), n, plan)

    def _learn_from(self, users: WindowUsers, n: int, plan: Any) -> None:
        try:
            plan, state = self._scale(users, n, plan)
            users.rescale(self._scales.columns, state[self._kept : -1].reshape(2, -1))
            release = self._method.run(plan, users, state[: self._kept], self._rng)
        finally:
            users.wipe()
        release.theta[: self._d] = self._project(release.theta[: self._d])
        self._state = np.append(release.theta, state[self._kept :])
        self.n_windows += 1
        self.n_users += n
        self.n_stopped += not release.complete

    # -- users on several machines -----------------------------------------------------------------------------------

    @property
    def sums_only(self) -> bool:
        """Whether the method asks for sums over all users only: then `learn_users` may be called."""
        return self._method.sums_only

    @property
    def least_users(self) -> int:
        """With how many users a window can be released."""
        self._need_features("least_users")
        return self._method.least_users(self._task(1))

    @property
    def project(self) -> Callable[[np.ndarray], np.ndarray]:
        """Projects theta (d,) onto the domain, as `WindowUsers` must."""
        self._need_features("project")
        return self._project

    def surrender(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """End the open window without a release and hand over its raw records, for `users_of`.

        It is for a process that holds a part of the users of a window, while another one calls `learn_users`. The
        records are counted in `n_seen`. Of them, only sums that the other process alone can read may be passed on.
        """
        with self._rng.lock:
            return self._gathered.close()

    def users_of(self, X: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> WindowRecords:
        """Return users by their records.

        Parameters
        ----------
        X, y, sizes
            Records (N, p) and (N,), sorted by user, and how many each user has (n,).
        """
        users = WindowRecords(self._loss, self._spec, self._project, X, y, sizes)
        try:
            place_targets(y, self._units)
        except BaseException:  # such as Ctrl-C
            users.wipe()
            raise
        return users

    def learn_users(self, users: WindowUsers, n: int, records: int, refused: int) -> None:
        """Release a window whose records are in other processes: its proof does not ask where the users are.

        Parameters
        ----------
        users
            All users of the window, with at most `items_per_user` records each. Their sums are exact.
        n, records, refused
            How many users there are, how many records they have, and how many were refused.

        Raises `TooFewUsersError`, before anything is counted; `NotAtBoundaryError` if a window is open here, and
        `ConfigError` without `sums_only`.
        """
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError("a window is open: call close_batch() first")
            if not self.sums_only:
                raise ConfigError("users on several machines need method newton, which asks for sums over all users")
            plan = self._plan(n)
            self._count(self._budget)
            self.n_seen += records
            self.n_refused += refused
            self._learn_from(users, n, plan)

    # -- state -------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds the state of the last boundary: the open window is not in it."""
        with self._rng.lock:
            return super().__getstate__() | {"_seen": self._seen - self._gathered.held}

    def _model(self) -> dict[str, Any]:
        planned = (repr(self._method), int(self.items_per_user), int(self.window), self._spread())
        problem = (self._beta, float(self.strong_convexity), self._place)
        return super()._model() | {"budget": str(self._budget), "window": repr(planned), "problem": repr(problem)}

    def _learned(self) -> dict[str, Any]:
        learned: dict[str, Any] = {
            "theta": self._state[: self._d].copy(),
            "memory": self._state[self._d : self._kept].copy(),
        }
        learned |= self._learned_bounds()
        if len(self._scales):
            learned |= {"scales": self._frame.copy(), "settled": bool(self._state[-1])}
        return learned

    def _read(self, state: Mapping[str, Any]) -> None:
        theta = finite_array(state, "theta", (self._d,))
        kept = finite_array(state, "memory", (self._kept - self._d,))
        released = np.append(theta, kept)
        self._method.check(self._task(1), released, self._check_theta)
        self._bounds = self._read_bounds(state)
        self._scales = self._scales_for(self._bounds)
        self._state = np.append(released, self._scales.read(state))

    def _discard(self) -> None:
        self._gathered.discard()

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        states = [part._state for part in parts]  # noqa: SLF001 - the same class
        scales = states[int(np.argmax([part.n_users for part in parts]))][self._kept :]
        average = self._scaled(self._estimate(), scales[:-1].reshape(2, -1))
        memory = np.zeros(self._kept - self._d)
        if all(np.array_equal(state[self._kept : -1], scales[:-1]) for state in states):  # else sums do not add up
            whole = self._method.merge(self._task(1), [state[: self._kept] for state in states], average, self._project)
            average, memory = whole[: self._d], whole[self._d :]
        self._state = np.concatenate([average, memory, scales])

    def _start_from(self, numbers: np.ndarray) -> None:
        self._state[: self._d] = self._scaled(numbers, self._frame)

    def _caveats(self, capped: bool) -> list[str]:
        return [
            f"{self.n_windows:,} windows of {self.n_users:,} users with up to {self.items_per_user} records each were "
            f"released by {self._method.name}; {self.n_stopped:,} stopped early",
            "a record without a subject counts as a user of its own",
            *self._scales.caveats(bool(self._state[-1])),
            *change.about(self.n_changes),
            *self._about_domain(),
            "after a crash the open window is read again; nothing of it has left memory",
        ]
