"""Targets in units of their declared bounds: for learners that begin at 0 with steps for a target of spread 1.

With the bounds (low, high), theta is learned for (y - centre) / scale, and y is clipped to the bounds. Centre and scale
are (low + high) / 2 and (high - low) / 2, which are public, or were learned privately before (`asked_units`). So no
argument about gradients changes, because their bounds hold for every y. What is shown is in original units.

Targets stay as they are if a parameter is in the units of theta: a domain, a smoothness or a strong convexity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamdp.learners.linear_problem import LinearProblem

Bounds = tuple[float, float]

TARGET = """
    The public bounds (low, high) of the target. With an intercept, and without a domain, `smoothness`,
    `strong_convexity` and scaling="none", the target is clipped to them, and theta is learned in units {}, in which the
    numbers of the loss are, too. Otherwise, and with None, theta is learned for the target as it comes, which should
    have a spread of about 1."""
"""The text of the parameter `target`."""


class Units(NamedTuple):
    """What targets are clipped to, and in what units they are learned.

    Parameters
    ----------
    low, high
        The bounds of the target.
    centre, scale
        What is learned is (y - centre) / scale.
    """

    low: float
    high: float
    centre: float
    scale: float


def units_of(bounds: Bounds) -> Units:
    """Return the units of half the width of the bounds, around their middle."""
    low, high = bounds
    return Units(low, high, low / 2 + high / 2, high / 2 - low / 2)


def place_targets(y: np.ndarray, units: Units | None) -> None:
    """Clip targets to their bounds and write them in their units, in place.

    Parameters
    ----------
    y
        (n,) targets.
    units
        None: nothing is done.
    """
    if units is not None:
        np.clip(y, units.low, units.high, out=y)
        y -= units.centre
        y /= units.scale


def place_columns(X: np.ndarray, units: np.ndarray | None) -> None:
    """Write columns in their units, in place.

    Parameters
    ----------
    X
        (n, p) features.
    units
        (2, p) centres and slopes; None: nothing is done.
    """
    if units is not None:
        with np.errstate(over="ignore"):  # gradients at values that overflow are 0
            X -= units[0]
            X *= units[1]


def may_scale(problem: LinearProblem, plan: Any, given_domain: bool) -> bool:
    """Whether no parameter is in the units of theta.

    The `plan` of the learner has scaling, smoothness and strong convexity; `given_domain` says that a domain was given.
    """
    free = plan.scaling != "none" and plan.smoothness is None and plan.strong_convexity == 0.0
    return problem.intercept and free and not given_domain


def bounds_to_use(problem: LinearProblem, plan: Any, given_domain: bool) -> Bounds | None:
    """The bounds in whose units targets are learned; None: as they come. `plan`, `given_domain`: see `may_scale`."""
    return problem.target if may_scale(problem, plan, given_domain) else None


def outward(theta: np.ndarray, units: Units | None, p: int) -> np.ndarray:
    """Return theta (d,) of p columns for targets in original units.

    Parameters
    ----------
    theta
        (d,) for targets in these units.
    units
        None: targets are learned as they are.
    """
    if units is not None:
        theta = theta * units.scale
        theta[p] += units.centre
    return theta


def inward(theta: np.ndarray, units: Units | None, p: int) -> np.ndarray:
    """Return theta (d,) of p columns for targets in these units, as a new array: the inverse of `outward`."""
    theta = theta.copy()
    if units is not None:
        theta[p] -= units.centre
        theta /= units.scale
    return theta
