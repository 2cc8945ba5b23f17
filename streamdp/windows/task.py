"""What a method is given before it sees data, what it may ask of the data, and what it returns.

A method plans from public numbers only (`Task`), so that too few users are an error before anything is spent. Then it
runs on the users of one window (`Users`) and releases one theta.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from streamdp.errors import TooFewUsersError
from streamdp.optim.curvature import Curvature
from streamdp.optim.newton import Newton
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP
from streamdp.reading.batch_intervals import Spread
from streamdp.scaling.units import Link


@dataclass(frozen=True)
class Task:
    """Public numbers of a window. Neighbours replace all records of one user, so n, m and d are public.

    There are n users with at most m records (`items`) each, and theta is (d,). The release of the window spends the
    budget, for every user. `bound` and `sensitivity` <= 2 bound are the largest l2 norm of a user's average gradient
    and the largest l2 distance of two; `spread` is the root mean square distance of one from the mean, and only
    accuracy depends on it. `smoothness` is beta of the loss; if it is inf, the method smooths the loss by the `radius`
    of `Users.gradients`. `convexity` is lambda >= 0 of the expected loss, `distance` the largest l2 distance of the
    optimum from the start. `curvature` is what a record adds to a sum of gradients and curvatures; None if the loss has
    no bounded curvature. `own` are the columns of what a group has of its own, and `slopes` (p,) the public factors
    of columns, by which levels are multiplied.
    """

    users: int
    items: int
    d: int
    budget: ApproxDP
    bound: float
    sensitivity: float
    smoothness: float
    convexity: float
    distance: float
    spread: float
    curvature: Curvature | None = None
    own: tuple[int, ...] = ()
    slopes: tuple[float, ...] = ()


CHUNK = 1 << 16  # gradients in memory at once


def too_few(name: str, task: Task, needed: int) -> TooFewUsersError:
    """Return the error for a window of fewer users than the method of this `name` has `needed`."""
    few = f"{task.users} users are too few to learn {task.d} parameters by {name} with {task.budget}"
    return TooFewUsersError(f"{few}: expected at least {needed}", needed)


def least(accepted: Callable[[int], bool], most: int = 10**12) -> int | None:
    """The least number that is accepted, if all larger ones are, too; None if no power of 2 up to `most` is."""
    low, high = 0, 1
    while not accepted(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return high


class Users(Protocol):
    """The users of one window, in memory only; `link` is that of the units of their target."""

    link: Link

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """Average gradients (k, d) at theta (d,) of users (k,), of all if None, of norm at most the task's bound.

        If the radius is positive, the loss is convolved with the uniform ball of this radius. The convolved loss
        differs from the loss by at most radius * bound, and it is (bound sqrt(d) / radius)-smooth.
        """

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """The sum over all users of the average vectors at theta (d,) of their records; shape (size,).

        Each average is rounded to multiples of the grid, a power of two. The sum is not private: overwrite it after
        use.
        """

    def squares(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """The sum over all users of svec g g', and for Huber's loss of svec H, at theta (d,), over `curvature.squares`.

        g (q,) is a user's average gradient without the scale, and H (q, q) the average Hessian times the scale. Each
        number of a user is rounded to multiples of the grid, a power of two. The sum is not private: overwrite it after
        use.
        """

    def parts(self, theta: np.ndarray, count: int, grid: float) -> tuple[np.ndarray, np.ndarray] | None:
        """The sums (count, d) at theta (d,) of so many parts of the window; None if its records are in no order.

        A user's average gradient is divided among the parts in which its records are: what it adds to one is the sum of
        their gradients there over the number of all of them, rounded to multiples of the grid, a power of two. The
        second array (count,) has how many users are in each part, in fractions. The sums are not private: overwrite
        them after use.
        """

    def keep_from(self, place: float) -> int:
        """Drop all records before this place in the window, from 0 to 1; return how many users have others."""

    def project(self, theta: np.ndarray) -> np.ndarray:
        """Project theta (d,) onto the domain."""


@dataclass(frozen=True)
class WindowResult:
    """What a method returns. All of it is private.

    `theta` (d + k,) is the learned point and what the method keeps for the next window. `queries` is the number of
    gradients of single users that were asked for, expected if users were sampled. `complete` is False if the method
    stopped early because its private test of the users' agreement failed. Then theta has moved less far. The budget is
    spent in both cases. `since` is the place in the window, from 0 to 1, from which on its records were learned.
    """

    theta: np.ndarray
    queries: int
    complete: bool = True
    since: float = 0.0


class Method(Protocol):
    """A way to learn from one window: a frozen dataclass of public parameters, identified by its `repr`.

    A subclass has defaults for `memory` and `merge`.
    """

    name: ClassVar[str]
    sums_only: ClassVar[bool] = False
    """Whether a run asks for sums over all users only, so that users may be on several machines."""

    free: ClassVar[bool] = False
    """Whether theta may be any vector, in any units of the columns: without a domain it needs none."""

    def __hash__(self) -> int: ...

    def plan(self, task: Task) -> object:
        """Steps, noise and everything else that follows from public numbers.

        Raises `TooFewUsersError`, which says how many users are needed, and `ConfigError` for a task that the method
        cannot serve.
        """

    def memory(self, task: Task) -> int:
        """k, how many private numbers the method keeps from window to window, whatever its users."""
        return 0

    def steps(self, task: Task, state: np.ndarray) -> Newton | None:
        """The steps by the state of the last run, after windows with `task.users` users; None: there are none."""
        return None

    def spread(self, task: Task, state: np.ndarray) -> Spread | None:
        """What the state of the last run says of the spread of users' gradients; None: nothing."""
        return None

    def in_other_units(self, task: Task, state: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return a state (d + k,) that goes on at `theta` (d,), in other units than those of `state`.

        Sums in several units do not add up, so they begin anew; zeros by default.
        """
        return np.append(theta, np.zeros(len(state) - task.d))

    def check(self, task: Task, state: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        """Check a stored state (d + k,), finite, that a run released; the number of users of the task is ignored.

        Raises `ConfigError` for numbers that no run releases; so does `check`, for a vector (d,) that is no parameter.
        """
        check(state[: task.d])

    def merge(
        self, task: Task, states: Sequence[np.ndarray], average: np.ndarray, project: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """The state (d + k,) from which to go on after several learners of disjoint windows.

        `states` (d + k,) are what the last runs released, or zeros after theta; `average` (d,) is that of their thetas,
        weighted by users, in the domain, onto which `project` projects a theta.
        """
        return average

    def least_users(self, task: Task) -> int:
        """The least number of users that `plan` accepts; the task's own number is ignored."""

    def run(self, plan: Any, users: Users, start: np.ndarray, rng: Rng) -> WindowResult:
        """Learn from the users by a plan. What was computed from their records is released, overwritten or deleted.

        `start` (d + k,) is a point of the domain and what the method kept: what the last run released; zeros if none.
        """
