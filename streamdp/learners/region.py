"""Where theta may be, and how smooth the loss is there: what planned steps follow from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError, is_number
from streamdp.learners.linear_problem import LinearProblem
from streamdp.optim.curvature import has_curvature
from streamdp.optim.domains import Box, Domain, L2Ball, RealSpace
from streamdp.optim.losses import Loss
from streamdp.reading.doubts import ON_BORDER

USUAL = L2Ball(5.0)
PLANNED_ONLY = {"horizon": None, "smoothness": None, "strong_convexity": 0.0}
"""The parameters that only planned steps use, with their defaults."""
_LARGEST = 1e60  # the largest size of a domain; squares of larger numbers could leave the doubles


def check_unplanned(given: Mapping[str, object], planned: str) -> None:
    """Raise `ConfigError` if one of the `given` parameters is set that only planned steps, of method `planned`, use."""
    for name, default in PLANNED_ONLY.items():
        if given.get(name, default) != default:
            raise ConfigError(
                f"{name}: only planned steps use it, and the steps of this method are not planned: leave it out, "
                f'or set method="{planned}"'
            )


def check_newton(loss: Loss, planned: str) -> None:
    """Raise `ConfigError` unless Newton's steps can be made with a loss; `planned` is the method to use otherwise."""
    if not has_curvature(loss):
        raise ConfigError(
            f'method="newton" needs a bounded curvature, which {loss!r} does not have: only Huber, '
            f'squared, Poisson, logistic and softmax losses without clip have one; use method="auto" or "{planned}"'
        )
    if loss.weighting is not None:
        raise ConfigError("weighting: Newton's steps have a weight of their own: leave it out")


@dataclass(frozen=True)
class Region:
    """The domain of a problem with its projection and size, and the constants of the loss on it.

    `problem`: with its domain: an `L2Ball`, a bounded `Box`, or all of R^d for steps that are not planned.
    `smoothness`: the constant that was given, or None for that of the loss. `convexity`: lambda >= 0 of the expected
    loss.
    """

    problem: LinearProblem
    smoothness: float | None
    convexity: float

    @classmethod
    def planned(cls, problem: LinearProblem, smoothness: float | None, strong_convexity: float) -> "Region":
        """Check what steps are planned from, with smoothness and strong_convexity as for the estimators.

        Raises `ConfigError` for a loss that is weighted by norm, and for a domain or constants out of range.
        """
        domain, loss = problem.domain, problem.loss
        if loss.by_norm:
            raise ConfigError("weighting: expected mallows, because steps are planned from the smoothness of the loss")
        if not isinstance(domain, L2Ball | Box):
            raise ConfigError("domain: expected an L2Ball or a bounded Box, because steps are planned from its size")
        if not (_corner(domain) <= _LARGEST and _width(domain) >= 1 / _LARGEST):
            raise ConfigError(f"domain: expected a size from {1 / _LARGEST:g} to {_LARGEST:g}, got {domain}")
        if not (smoothness is None or (is_number(smoothness) and 0 < smoothness < math.inf)):
            raise ConfigError(f"smoothness: expected a positive finite number, got {smoothness!r}")
        # lambda/2 ||x - x*||^2 <= f(x) - f* <= bound ||x - x*|| for every x of the domain.
        most = 4 * loss.bound / _width(domain)
        if not (is_number(strong_convexity) and 0 <= strong_convexity <= most):
            raise ConfigError(
                f"strong_convexity: expected a number from 0 to {most:g}, the most that bounded gradients allow in"
                f" {domain}, got {strong_convexity!r}"
            )
        return cls(problem, None if smoothness is None else float(smoothness), float(strong_convexity))

    def beta(self, p: int) -> float:
        """The smoothness of the loss for p columns, which are expected to have a scale of 1; inf: it must be smoothed.

        Only accuracy depends on it.
        """
        given, problem = self.smoothness, self.problem
        return problem.loss.smoothness_in(p + problem.intercept) if given is None else given

    @property
    def text(self) -> dict[str, list[float]]:
        """The domain as plain text and floats, for states: 5 and 5.0 are equal."""
        domain = self.problem.domain
        return {type(domain).__name__: [float(x) for x in vars(domain).values()]}

    @property
    def highest_scale(self) -> float:
        """The largest scale of a loss that estimates one."""
        return max(_corner(self.problem.domain), 2 * (self.problem.loss.least_scale or 0.0))

    def project(self, theta: np.ndarray) -> np.ndarray:
        """The point (d,) of the domain that is nearest to a `theta`."""
        least, domain = self.problem.loss.least_scale, self.problem.domain
        if least is None:
            return domain.project(theta)
        scale = min(max(theta[-1], least), self.highest_scale)
        return np.append(domain.project(theta[:-1]), scale)

    def reach(self, start: np.ndarray) -> float:
        """The largest distance of a point of the domain from the start (d,)."""
        domain, free = self.problem.domain, self.problem.free(start)
        if isinstance(domain, RealSpace):
            return math.inf
        if isinstance(domain, L2Ball):
            square = (domain.radius + float(np.linalg.norm(free))) ** 2
        else:
            assert isinstance(domain, Box)
            square = float(np.sum(np.maximum(free - domain.low, domain.high - free) ** 2))
        if (least := self.problem.loss.least_scale) is not None:
            square += max(start[-1] - least, self.highest_scale - start[-1]) ** 2
        return math.sqrt(square)

    def on_border(self, theta: np.ndarray) -> bool:
        """Whether theta (d,) sits on the border of the domain, up to 1 % of its size."""
        domain, free = self.problem.domain, self.problem.free(theta)
        if isinstance(domain, RealSpace):
            return False
        if isinstance(domain, L2Ball):
            return float(np.linalg.norm(free)) >= 0.99 * domain.radius
        assert isinstance(domain, Box)
        margin = 0.01 * (domain.high - domain.low)
        return bool(np.any((free <= domain.low + margin) | (free >= domain.high - margin)))

    def check_theta(self, theta: np.ndarray, p: int) -> None:
        """Raise `ConfigError` for a theta (d,) of p columns outside the domain."""
        self.problem.check_theta(theta, p)
        if self.problem.loss.least_scale is not None and theta[-1] > self.highest_scale * (1 + 1e-9):
            raise ConfigError(f"state: expected a scale of at most {self.highest_scale:g}, got {theta[-1]:g}")

    def caveats(self, theta: np.ndarray, units: str = "") -> list[str]:
        """What a statement says of the domain, and theta (d,), in units that it names unless they are the features'."""
        if isinstance(self.problem.domain, RealSpace):
            return []
        border = f"; {ON_BORDER}" if self.on_border(theta) else ""
        return [f"theta{units} is kept in {self.problem.domain}{border}"]


def _width(domain: Domain) -> float:
    """The largest range of a coefficient."""
    return 2 * domain.radius if isinstance(domain, L2Ball) else domain.high - domain.low  # type: ignore[union-attr]


def _corner(domain: Domain) -> float:
    """The largest coefficient."""
    if isinstance(domain, RealSpace):
        return _LARGEST
    return domain.radius if isinstance(domain, L2Ball) else max(abs(domain.low), abs(domain.high))
