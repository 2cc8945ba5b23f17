"""The learner of windows: collects records, releases with a method, and deletes them.

`Scales` says which columns are centred and scaled, and searches for the scales by `window_moments.zoom`. The search
spends the share `window_moments.SHARE` of mu^2 of a window, and the method spends the rest.

Proof: docs/proofs/windowed.md.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import (
    BudgetError,
    ConfigError,
    NotAtBoundaryError,
    NotAvailableError,
    TooFewUsersError,
    check_choice,
)
from streamdp.learners.learner import WITH_DELTA, Collector
from streamdp.learners.linear_problem import USUAL, Columns, LinearProblem, Region, check_newton, check_unplanned
from streamdp.learners.user_answers import sensitivity_of_average
from streamdp.learners.user_reports import UserWindow
from streamdp.learners.window_buffer import Gathering
from streamdp.optim.curvature import has_curvature
from streamdp.optim.domains import RealSpace
from streamdp.optim.newton import Newton
from streamdp.optim.record_kernel import RowStore
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.privacy.release import Release
from streamdp.privacy.statement import WINDOW, Unit
from streamdp.reading.batch_intervals import WINDOWS, StepEstimates
from streamdp.reading.change import follows
from streamdp.scaling.units import Bounds, Units, declared, free_units, level_of, ranges_of, scaling_of
from streamdp.scaling.window_moments import (
    LEAST,
    LEAST_PRIVATE,
    SHARE,
    SIZES,
    WIDTH,
    noise_of,
    noise_of_sizes,
    rounds_of,
    sizes_of,
    useful,
    users_for_sizes,
    zoom,
)
from streamdp.windows.methods import NEWTON, method_for
from streamdp.windows.newton import NewtonSteps
from streamdp.windows.records import WindowRecords, WindowUsers, records_from
from streamdp.windows.task import Method, Task


class Scales:
    """The columns that are centred and scaled. Their centres and scales, a table (2, k), are in the learner's state.

    `columns`: (k,) ascending indices; p is the target. `p`: the number of features. `private`: the indices of columns
    whose bounds are not declared. `public`: the scales of columns that have public ones, and the centre 0.
    """

    def __init__(
        self,
        columns: np.ndarray,
        p: int,
        private: Sequence[int] = (),
        public: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self.columns = columns
        self._private = np.isin(columns, list(private))
        self._public = np.array([public.get(j, 0.0) for j in columns.tolist()])
        self._inputs = int(np.count_nonzero(columns < p))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """The table, with centres 0 and scales 1 or public ones, and 1 (k,) for these: they are final."""
        public = self._public > 0
        return np.array([np.zeros(len(self)), np.where(public, self._public, 1.0)]), public.astype(float)

    def read(self, state: Mapping[str, object]) -> tuple[np.ndarray, np.ndarray]:
        """Return what `start` returns, of a stored state. Raises `ConfigError` for numbers out of range."""
        table, final = finite_array(state, "scales", (2, len(self))), finite_array(state, "final", (len(self),))
        if np.abs(table[0]).max(initial=0.0) > 2 or table[1].min(initial=1.0) <= 0 or table[1].max(initial=1.0) > 1:
            raise ConfigError("state: scales out of range")
        if np.any((table[1] != self._public) & (self._public > 0)):
            raise ConfigError("state: its public scales are others")
        return table, (final != 0).astype(float)

    def units(self, plain: Units, table: np.ndarray) -> Units:
        """The units of columns with centres and scales `table` (2, k); `plain`: those with declared bounds alone."""
        columns, (centre, scale), inputs = plain.columns.copy(), table, self._inputs
        columns[:, self.columns[:inputs]] = centre[:inputs], 1 / scale[:inputs]
        if inputs == len(self):
            return plain._replace(columns=columns)
        target = plain.centre + plain.scale * float(centre[-1]), plain.scale * float(scale[-1])
        return plain._replace(columns=columns, centre=target[0], scale=target[1])

    def caveats(self, final: np.ndarray) -> list[str]:
        """What the statement says of them; `final` (k,) are some of them."""
        found = len(self) - np.count_nonzero(self._public)
        if not found:
            return []
        state = "are final" if final.all() else "may still change"
        private = int(np.count_nonzero(self._private))
        return [
            f"the centres and scales of {found} columns {state}; a window that looks for them spends "
            f"{SHARE:.0%} of its mu^2 on them",
            *(
                [f"{private} columns have no declared bounds; a window that looks for them spends {SIZES:.0%} more"]
                if private
                else []
            ),
        ]

    def bounds_from(self, task: Task) -> int | None:
        """From about how many users of a window on the bounds of all columns without any are found; None: all have."""
        private = int(np.count_nonzero(self._private))
        return math.ceil(users_for_sizes(self._noise_of_sizes(private, task), private)) if private else None

    def _noise_of_sizes(self, columns: int, task: Task) -> Gaussian:
        mu = GaussianDP.from_approx(task.budget).mu * (1 - 1e-9)
        return noise_of_sizes(columns, task.users, task.items, mu * math.sqrt(SIZES))

    def search(
        self,
        users: WindowUsers,
        table: np.ndarray,
        final: np.ndarray,
        task: Task,
        plan: Callable[[Task], object],
        rng: Rng,
    ) -> tuple[object, np.ndarray, np.ndarray] | None:
        """Find new centres and scales with a share of the window's budget, from the last `table` (2, k).

        Not all columns are `final` (k,). `plan` plans the method for a task. Returns the plan for the rest of the
        budget, the new table, and which are final. None, and nothing is asked of the users, if the noise would be too
        large or the rest of the budget too small for the method.
        """
        mu = GaussianDP.from_approx(task.budget).mu * (1 - 1e-9)  # what is left is converted and back
        asked = np.flatnonzero(final == 0)
        unknown = asked[self._private[asked] & (table[1, asked] == 1)]
        sizes = None
        if unknown.size:
            sizes = self._noise_of_sizes(len(unknown), task)
            if users_for_sizes(sizes, len(unknown)) >= task.users:  # these wait for a larger window
                asked, unknown, sizes = np.setdiff1d(asked, unknown), unknown[:0], None
        share = max(len(asked), 1), task.users, task.items, mu * math.sqrt(SHARE)
        rounds = rounds_of(*share)
        noise = noise_of(*share, rounds)
        if not (asked.size and useful(noise, len(asked), task.users)):
            return None
        rest = GaussianDP(mu * math.sqrt(1 - SHARE - SIZES * (sizes is not None))).to_approx(task.budget.delta)
        try:
            planned = plan(replace(task, budget=rest))
        except TooFewUsersError:
            return None
        table, final = table.copy(), final.copy()
        if sizes is not None:
            table[1, unknown] = sizes_of(users, self.columns[unknown], task.users, sizes, rng)
        least = np.where(self._private[asked], LEAST_PRIVATE, LEAST)
        table[:, asked], final[asked] = zoom(
            users, self.columns[asked], table[:, asked], task.users, noise, rng, least, rounds
        )
        return planned, table, final


_VAGUE = 30  # times the least users of a planned method: a proof bounds the excess loss on a domain, of radius 5
_PLANNED = "private-range"  # where Newton's steps are not possible


class WindowWarning(UserWarning):
    """A window has too few users for a release, so it stays open."""


@lru_cache(maxsize=256)
def _plan(method: Method, task: Task) -> object:
    return method.plan(task)


@dataclass(frozen=True)
class WindowPlan(UserWindow):
    """The parameters of windows; see the estimators."""

    method: str | Method

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaling is not None:
            check_choice("scaling", self.scaling, ("private", "none"), " or None")


class Released(NamedTuple):
    """What windows have released. It is replaced as a whole, so that no exception can part it."""

    numbers: np.ndarray
    """Theta (d,) for the scaled columns, and what the method keeps from window to window."""
    table: np.ndarray
    """(2, k) the centres and the scales of the columns that are scaled."""
    final: np.ndarray
    """(k,) 1 for those that are final."""


class Windows(Collector):
    """Collecting and releasing. The raw records of the window are in `gathered` and nowhere else."""

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
    unit: ClassVar[Unit] = WINDOW
    default_budget: ClassVar[Budget] = WITH_DELTA
    needs_delta: ClassVar[bool] = True
    default_domain = USUAL
    private = commits_at_every_boundary = any_budget = True
    needs_subject = False
    scales_columns = True
    rng: Rng
    budget: ApproxDP
    _slopes: tuple[float, ...] = ()

    def __init__(self, problem: LinearProblem, budget: Budget, rng: Rng, plan: WindowPlan) -> None:
        if not isinstance(budget, ApproxDP):
            raise BudgetError(f"windows of users: expected eps=E,delta=D, got {budget}")
        region = Region.planned(problem, plan.smoothness, plan.strong_convexity)
        plain = plan.smoothness is None and not plan.strong_convexity and problem.loss.weighting is None
        usual = NEWTON if has_curvature(problem.loss) and plain else _PLANNED
        self.plan = plan
        self.method = method_for(usual if isinstance(plan.method, str) and plan.method == "auto" else plan.method)
        newton = isinstance(self.method, NewtonSteps)
        self.log_links = newton and plan.scaling != "none"
        follow = follows(plan.change, None if newton else f'with method="{self.method.name}"')
        if isinstance(self.method, NewtonSteps) and not follow:
            self.method = replace(self.method, follow=False)
        if self.method.name == NEWTON:
            check_newton(problem.loss, _PLANNED)
        if self.method.free:
            check_unplanned(vars(plan), _PLANNED)
            problem = replace(problem, domain=problem.domain if problem.given_domain else RealSpace())
        super().__init__(problem, budget, rng)
        self.region = replace(region, problem=problem)
        self.open = Release(budget, int(plan.items_per_user))
        self.gathered = Gathering(self.open, plan.window)
        self.counts = {"n_users": 0, "n_windows": 0, "n_stopped": 0}

    def begin(self, columns: Columns) -> None:
        problem, p = self.problem, len(columns)
        self.columns = columns
        self.spec, box = problem.described(p)
        start = self.region.project(problem.loss.start(box.shape[1]))
        self._distance = self.region.reach(start)
        self._curvature = problem.vectors_of(columns) if has_curvature(problem.loss) else None
        self._d = len(start)
        self.bounds, self.scales = self._scaling_of(columns)
        self._slopes = tuple(self.scales.units(self._declared, self.scales.start[0]).columns[1].tolist())
        kept = np.zeros(self.method.memory(self._task(1)))
        self._released = Released(np.append(start, kept), *self.scales.start)
        try:
            self._planned(int(self.plan.window))  # when the window may first end, it has at most this many users
        except TooFewUsersError as error:
            said = f"window: {self.plan.window} records are too few: {error}, or trust: process, which needs no window"
            raise TooFewUsersError(said, error.needed) from None

    def _task(self, users: int) -> Task:
        loss = self.problem.loss
        return Task(
            users=users,
            items=int(self.plan.items_per_user),
            d=self._d,
            budget=self.budget,
            bound=loss.bound,
            sensitivity=sensitivity_of_average(loss, int(self.plan.items_per_user)),
            smoothness=self.region.beta(self.p),
            convexity=self.region.convexity,
            distance=self._distance,
            spread=self.plan.spread_for(loss.bound),
            curvature=self._curvature,
            own=() if self.columns is None else self.columns.own,
            slopes=self._slopes,
        )

    def _planned(self, users: int) -> object:
        return _plan(self.method, self._task(users))

    # -- units -------------------------------------------------------------------------------------------------------

    def _scaling_of(self, columns: Columns) -> tuple[Bounds | None, Scales]:
        """The bounds in whose units targets are learned, and the columns that are centred and scaled; p: the target."""
        plan, problem, free = self.plan, self.problem, self.method.free
        needs = free_units(problem.intercept, problem.given_domain, plan.smoothness, plan.strong_convexity)
        bounded = np.append(columns.numeric, problem.target is not None)
        levels = {j: columns.typical[j][1] for each in columns.apart for j in each if j not in columns.own}
        bounded[list(levels)] = True
        usual, steps = "private" if free else "declared", {'method="newton"': free}
        found = scaling_of(plan.scaling, usual, bool(bounded.any()), {"declared": needs, "private": needs | steps})
        scales = Scales(np.flatnonzero(bounded & (found == "private")), len(columns), columns.private, levels)
        return None if found == "none" else problem.target, scales

    def finds_bounds(self) -> bool:
        """See `Learner.finds_bounds`: of all columns that are scaled."""
        return self.columns is not None and set(self.columns.private) <= set(self.scales.columns.tolist())

    @property
    def bounds_from(self) -> int | None:
        """From about how many users on a window finds all bounds that are not declared; None: all are."""
        return self.scales.bounds_from(self._task(int(self.plan.window)))

    @property
    def units(self) -> Units:
        """The units in which theta is learned."""
        return self._units_at(self._released.table)

    def _units_at(self, table: np.ndarray) -> Units:
        units = self.scales.units(self._declared, table)
        log_link = self.problem.loss.log_link
        return units._replace(level=level_of(units.centre, units.scale / WIDTH)) if log_link else units

    @property
    def _declared(self) -> Units:
        return declared(self.p, self.bounds, self.problem.outputs, self.problem.intercept)

    @property
    def _inner(self) -> np.ndarray:
        """Theta (d,) as it is learned: a view."""
        return self._released.numbers[: self._d]

    def _scale(self, users: WindowUsers, n: int, plan: object) -> tuple[object, Released]:
        """Find new scales with a share of the window's budget, if they are not final.

        Returns the plan for the rest of the budget, and from what to go on.
        """
        (numbers, before, final), found = self._released, None
        if not final.all():
            found = self.scales.search(users, before, final, self._task(n), partial(_plan, self.method), self.rng)
        if found is None:
            return plan, self._released
        plan, table, final = found
        if not np.array_equal(table, before):  # sums of columns with other scales do not add up
            # A first theta is one for any units. It has a spread of 1, which would be far too much in the old ones.
            theta = self._units_at(table).inward(self.point[0]) if self.counts["n_windows"] else self._inner
            numbers = self.method.in_other_units(self._task(1), numbers, theta)
        return plan, Released(numbers, table, final)

    # -- collecting --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self.gathered.held

    @property
    def to_boundary(self) -> int:
        return self.gathered.room

    def boundary_within(self, records: int) -> int:
        return min(records, self.gathered.room)

    def come_to(self, y: np.ndarray) -> int:
        return min(len(y), self.gathered.room)

    def take(self, X: np.ndarray, y: np.ndarray, people: Sequence[bytes | None], joined: np.ndarray) -> None:
        self.seen[0] += np.count_nonzero(joined)
        rows = self.gathered.rows
        self.gathered.take(X, y, people, joined)
        if self.gathered.rows is not rows:
            self.fast = None
        if self.gathered.ended:
            self.close()

    def record_kernel(self) -> RowStore | None:
        return self.gathered.store() if self.pending else None

    def room_of_kernel(self) -> tuple[np.ndarray, int]:
        return self.gathered.read, self.gathered.window

    # -- releasing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Learn from the window with the method, overwrite it and begin the next one; with too few users, go on.

        Its spend was counted with its first record.
        """
        if not self.pending:
            return
        n, held = self.gathered.users, None
        if self.held_out is not None:
            held = self.held_out.users(self.counts["n_users"], n)
            n -= int(np.count_nonzero(held))
        try:
            plan = self._planned(n)
        except TooFewUsersError as error:
            warnings.warn(f"the window stays open: {error}", WindowWarning, stacklevel=5)
            return
        self.fast = None
        users, out = self.gathered.close(held)
        try:
            out = records_from(self._learn_from(self.users_of(*users), n, plan), *out)
            if self.held_out is not None and len(out[2]):
                self.held_out.say(*out[:3])
        finally:
            out[0][:] = out[1][:] = 0

    def _learn_from(self, users: WindowUsers, n: int, plan: object) -> float:
        """Learn from a window; return the place in it from which on its records count, as `WindowResult.since`."""
        try:
            plan, before = self._scale(users, n, plan)
            users.rescale(self.scales.columns, before.table, self._units_at(before.table).link)
            release = self.method.run(plan, users, before.numbers.copy(), self.rng)
        finally:
            users.wipe()
        release.theta[: self._d] = self.region.project(release.theta[: self._d])
        self._released = before._replace(numbers=release.theta)
        self.counts["n_windows"] += 1
        self.counts["n_users"] += n
        self.counts["n_stopped"] += not release.complete
        return release.since

    # -- users on several machines -----------------------------------------------------------------------------------

    @property
    def sums_only(self) -> bool:
        """Whether the method asks for sums over all users only: then `learn_users` may be called."""
        return self.method.sums_only

    @property
    def least_users(self) -> int:
        """With how many users a window can be released."""
        return self.method.least_users(self._task(1))

    def users_of(
        self, X: np.ndarray, y: np.ndarray, sizes: np.ndarray, places: np.ndarray | None = None
    ) -> WindowRecords:
        """Return users by their records: `X`, `y`, `sizes` and `places` are as for `WindowRecords`."""
        users = WindowRecords(self.problem.loss, self.spec, self.region.project, X, y, sizes, places)
        try:
            self._declared.place_targets(y)
        except BaseException:  # such as Ctrl-C
            users.wipe()
            raise
        return users

    def learn_users(self, users: WindowUsers, n: int, records: int, count: Callable[[], None]) -> None:
        """See the estimators' `learn_users`: a window of n users with so many `records`; `count` counts their spend."""
        if self.pending:
            raise NotAtBoundaryError("a window is open: call close_batch() first")
        if not self.sums_only:
            raise ConfigError("users on several machines need method newton, which asks for sums over all users")
        plan = self._planned(n)
        count()
        self.seen[0] += records
        self._learn_from(users, n, plan)

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        if self._shown[0] is not self._released:
            self._shown = self._released, self.units.outward(self._inner)
        return self._shown[1], False

    @property
    def ranges(self) -> np.ndarray | None:
        """See `Learner.ranges`: of columns that are scaled."""
        return ranges_of(self.units.columns, 1.0 if self.problem.loss.keeps_tails else WIDTH)

    @property
    def range_of_scale(self) -> tuple[float, float]:
        low, high = super().range_of_scale
        if self.problem.loss.least_scale is not None:
            high = self.region.highest_scale
        return low * self.units.scale, high * self.units.scale

    @property
    def pools(self) -> bool:
        return self.method.name == NEWTON

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        """See `Learner.place_of_target`; a scaled target fills about four deviations of its unit."""
        middle, spread, half = super().place_of_target
        if len(self.scales) and self.scales.columns[-1] == self.p:
            middle, spread = self.units.centre, self.units.scale / 2
        return middle, spread, half

    @property
    def tolerated(self) -> float | None:
        """How many times as wide as its spread a target's bounds may be, if nothing released shows it; else None.

        So it is with a planned method, whose loss exceeds the least by a public part of the bounds.
        """
        if not self.n_informing or self.bounds is None or len(self.scales):
            return None
        excess = getattr(self._planned(max(self.n_informing, self.least_users)), "excess", None)
        return None if excess is None else self.problem.loss.bound / float(excess)

    def answer(self) -> StepEstimates | None:
        """As `Batches.answer`, from one window on."""
        if (steps := self.batch_steps) is None:
            raise NotAvailableError(f'interval: method="{self.method.name}" has none')
        found = steps.answer(WINDOWS, self.method.spread(self._task(1), self._released.numbers))
        return None if found is None else found.through(self.units.outward)

    @property
    def batch_steps(self) -> Newton | None:  # type: ignore[override]
        """See `Method.steps`: a copy, for reading."""
        if self.columns is None:
            return None
        return self.method.steps(self._task(self.counts["n_users"]), self._released.numbers)

    def keep_latest(self, share: float) -> None:
        if (steps := self.batch_steps) is not None:
            steps.keep_latest(share)
            numbers = steps.state.numbers()
            rest = self._released.numbers[len(numbers) :]
            self._released = self._released._replace(numbers=np.append(numbers, rest))

    @property
    def least_records(self) -> int | None:
        if self.columns is None:
            return None
        steps = self.batch_steps
        return _VAGUE * self.least_users if steps is None else math.ceil(steps.least * steps.flatness)

    def informing(self, users: int, windows: int) -> int:
        """From how many of so many `users` in so many `windows` the model follows: of one window, or of all."""
        return users if self.method.memory(self._task(1)) else users // max(windows, 1)

    @property
    def n_informing(self) -> int:
        return 0 if self.columns is None else self.informing(self.counts["n_users"], self.counts["n_windows"])

    @property
    def method_name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def on_border(self) -> bool:
        return self.columns is not None and self.region.on_border(self._inner)

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        domain: list[str] = []
        if begun := self.columns is not None:
            named = ", in units of the target's bounds," * (self.bounds is not None)
            domain = self.region.caveats(self._inner, named)
        n_users, n_windows, n_stopped = self.counts.values()
        return [
            f"{n_windows:,} windows were released by {self.method.name}, of {n_users:,} users in all with up to "
            f"{self.plan.items_per_user} records each; {n_stopped:,} stopped early",
            "a record without a subject counts as a user of its own, and further records of a user are left out",
            *(self.scales.caveats(self._released.final) if begun else []),
            *domain,
            "after a crash the open window is read again; nothing of it has left memory",
        ]

    # -- state -------------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        self.gathered.discard()

    def model(self) -> dict[str, object]:
        spread = self.plan.spread_for(self.problem.loss.bound)
        planned = (repr(self.method), int(self.plan.items_per_user), int(self.plan.window), spread)
        problem = (self.region.beta(self.p), self.region.convexity, self.region.text)
        return {
            "window": repr(planned),
            "problem": repr(problem),
            "scaling": repr((self.bounds, self.scales.columns.tolist())),
        }

    def learned(self) -> dict[str, object]:
        numbers, table, final = self._released
        theta, memory = np.split(numbers.copy(), [self._d])
        return {"theta": theta, "memory": memory, "scales": table.copy(), "final": final.copy()}

    def read(self, state: Mapping[str, object]) -> None:
        theta = finite_array(state, "theta", (self._d,))
        numbers = np.append(theta, finite_array(state, "memory", (len(self._released.numbers) - self._d,)))
        self.method.check(self._task(1), numbers, lambda theta: self.region.check_theta(theta, self.p))
        self._released = Released(numbers, *self.scales.read(state))

    @property
    def weight(self) -> float:
        return self.counts["n_users"] * self.latest

    def merge(self, parts: "Sequence[Windows]", average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        original = average([part.point[0] for part in parts]) if any(part.weight for part in parts) else self.point[0]
        found = [part._released for part in parts]  # noqa: SLF001 - the same class
        best, task = found[int(np.argmax([part.weight for part in parts]))], self._task(1)
        theta = self.region.project(self._units_at(best.table).inward(original))
        several = [one.numbers for one in found]
        if not all(np.array_equal(one.table, best.table) for one in found):
            several = [self.method.in_other_units(task, numbers, theta) for numbers in several]
        self._released = best._replace(numbers=self.method.merge(task, several, theta, self.region.project))
