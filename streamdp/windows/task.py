"""What a method is told before it touches data, what it may ask of the data, and what it gives back.

A method plans from public numbers alone (`Task`), so that too few users are an error before anything was spent; then it
runs on the users of one window (`Users`) and releases one theta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import ApproxDP

Rng = Entropy | SeededEntropy


@dataclass(frozen=True)
class Task:
    """Public numbers of a window. Neighbours replace all records of one user, so n, m and d are public.

    Parameters
    ----------
    users
        n, the users of the window.
    items
        m, the most records of a user.
    d
        The length of theta.
    budget
        What the release of the window spends, for every user in it.
    bound, sensitivity
        The largest norm of a user's average gradient, and the largest distance of two; sensitivity <= 2 bound.
    smoothness
        beta of the loss; inf: to be smoothed by `radius` of `Users.gradients`.
    convexity
        lambda >= 0 of the expected loss.
    distance
        How far the optimum can be from the start.
    spread
        The root mean square distance of a user's average gradient from the mean; for accuracy only.
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


class Users(Protocol):
    """The users of one window, in memory only."""

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """The average gradients (k, d) at theta (d,) of the users (k,) named by index, of all n when None; of norm at
        most the task's bound. With a `radius` > 0 they are those of the loss convolved with the uniform ball of that
        radius: within radius * bound of the loss, and (bound sqrt(d) / radius)-smooth.
        """

    def project(self, theta: np.ndarray) -> np.ndarray:
        """theta (d,) in the domain."""


@dataclass(frozen=True)
class Release:
    """What a method gives back. `theta` (d,) is private, and so is whatever else is here.

    `queries` counts gradients of single users; `complete` is False where the method stopped early, as its private test
    of the users' agreement failed: then theta has come less far, and the budget is spent all the same.
    """

    theta: np.ndarray
    queries: int
    complete: bool = True


class Method(Protocol):
    """A way to learn from one window. Frozen dataclasses of public parameters; `repr` tells two of them apart."""

    name: ClassVar[str]

    def __hash__(self) -> int: ...

    def plan(self, task: Task) -> Any:
        """Steps, noise and whatever else follows from the task. Raises `TooFewUsersError` that says how many users are
        needed, and `ConfigError` for a task that it cannot serve.
        """

    def least_users(self, task: Task) -> int:
        """The least n that `plan` accepts for a task like this one."""

    def run(self, plan: Any, users: Users, start: np.ndarray, rng: Rng) -> Release:
        """Learn from the users, beginning at start (d,) in the domain. Whatever is computed from the users' records and
        not released is wiped or dropped when it returns.
        """
