"""What is learned: a linear model of declared columns, with a loss and a domain. No names and no records are in it.

`Region` says where theta may be, and how smooth the loss is there: what planned steps follow from.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from streamdp.errors import ConfigError, is_number
from streamdp.optim.ac_sa import Problem
from streamdp.optim.curvature import Curvature, has_curvature
from streamdp.optim.domains import Box, Domain, L2Ball, RealSpace
from streamdp.optim.losses import Loss
from streamdp.optim.losses.claims import check_claims
from streamdp.reading.doubts import ON_BORDER
from streamdp.scaling.units import Units


@dataclass(frozen=True)
class Columns:
    """What is declared of the columns of a row.

    `origin`, `unit`: (p,): a column is (value - origin) / unit. `numeric`: (p,): which columns are numbers with
    declared bounds, so that they lie in [-1, 1]. `typical`: the typical centre and spread of columns, by index, in
    units of the column: declared ones, and those of levels. `own`: the indices of the columns of what a group has of
    its own, beside what all groups share. `private`: those of numbers whose bounds are not declared. `apart`: sets of
    columns that are 0 or 1, of which at most one is 1 in a record, such as the levels of a category. `declared`:
    whether there is a public schema. If not, columns are numbers as they come.
    """

    origin: np.ndarray
    unit: np.ndarray
    numeric: np.ndarray
    typical: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    declared: bool = False
    own: tuple[int, ...] = ()
    private: tuple[int, ...] = ()
    apart: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def placed(self) -> np.ndarray:
        """(p,) which columns get units: numbers with declared bounds, and those `apart`; but none of the `own`."""
        found = self.numeric.copy()
        found[[j for columns in self.apart for j in columns]] = True
        found[list(self.own)] = False
        return found

    def units(self, outputs: int) -> Units:
        """How columns follow from values as they come, for a model with an intercept and so many `outputs`."""
        return Units(np.stack([self.origin, 1 / self.unit]), outputs=outputs)


@dataclass(frozen=True)
class LinearProblem:
    """A linear model of p columns.

    `intercept`: whether a constant 1 follows the columns. `classes`: 0 if targets are numbers. `target`: the declared
    bounds (low, high). `given_domain`: whether the domain is a parameter, and not the learner's usual one.

    Raises `ConfigError` for a domain that the loss or the compiled loops do not allow.
    """

    loss: Loss
    domain: Domain
    intercept: bool = True
    classes: int = 0
    target: tuple[float, float] | None = None
    given_domain: bool = False

    def __post_init__(self) -> None:
        check_claims(self.loss)
        if type(self.domain) not in get_args(Domain):  # compiled code would ignore the projection of another one
            raise ConfigError(f"domain: expected an L2Ball, a Box or None, got {type(self.domain).__name__}")
        if isinstance(self.domain, Box) and not (self.domain.low < 1e60 and self.domain.high > -1e60):
            raise ConfigError(f"domain: expected a box that reaches within 1e60 of zero, got {self.domain}")
        if self.loss.log_link:
            if self.target is None or self.target[0] < 0:
                raise ConfigError(f"target: loss {self.loss.name} needs bounds (low, high) with low of at least 0")
            if not self.intercept or self.given_domain:
                raise ConfigError(f"loss: {self.loss.name} needs an intercept, and no domain")

    @property
    def outputs(self) -> int:
        """The number of linear predictors: K for the softmax of K classes, else 1."""
        return self.classes if self.loss.several else 1

    def size(self, p: int) -> int:
        """The number d of parameters for p columns."""
        return self.loss.size(p + self.intercept, self.outputs)

    def blocks(self, theta: np.ndarray, p: int) -> np.ndarray:
        """The part of theta (d,) that predicts, by class: a view (K, p + 1), or (K, p) without an intercept."""
        q = p + self.intercept
        return theta[: q * self.outputs].reshape(-1, q)

    def described(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """(spec, box) of the model for p columns, as the compiled loops take it: see `loops`."""
        from streamdp.optim import loops as k

        spec = self.loss.spec()
        spec[k.INTERCEPT] = self.intercept
        box = np.repeat([[-np.inf], [np.inf]], self.size(p), axis=1)
        if isinstance(self.domain, L2Ball):
            spec[k.DOMAIN], spec[k.RADIUS] = k.BALL, self.domain.radius
        elif isinstance(self.domain, Box):
            box[0], box[1] = self.domain.low, self.domain.high
        if (least := self.loss.least_scale) is not None:
            box[:, -1] = least, np.inf
        return spec, box

    def curvature(self, p: int) -> float:
        """The expected mean curvature of the loss for p columns and residuals of spread 1 (docs/proofs/change.md)."""
        weight = 1.0 if self.loss.clip is not None else math.sqrt(2 / max(p + self.intercept, 2))
        return self.loss.expected_curvature * weight

    def vectors_of(self, columns: Columns, plain: bool = False) -> Curvature:
        """What rows with these columns add to a sum of gradients and curvatures; for `plain` see `Curvature`.

        Raises `ConfigError` for a loss without a bounded curvature.
        """
        apart = columns.apart if self.intercept else ()
        return Curvature(self.loss, len(columns) + self.intercept, self.outputs, apart, plain)

    def free(self, theta: np.ndarray) -> np.ndarray:
        """The part of theta (d,) that the domain is about: all but the scale of the loss."""
        return theta if self.loss.least_scale is None else theta[:-1]

    def check_theta(self, theta: np.ndarray, p: int) -> None:
        """Raise `ConfigError` for a theta (d,) of p columns outside the domain."""
        self.loss.check_theta(theta, p + self.intercept)
        if not np.allclose(self.domain.project(self.free(theta)), self.free(theta), rtol=1e-9, atol=0.0):
            raise ConfigError(f"state: theta is outside {self.domain}")


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

    def planning(
        self, start: np.ndarray, p: int, noise: Callable[[int], float], spread: float, accelerated: bool = True
    ) -> Problem:
        """The bounds that a plan of steps from the start (d,) follows from, for p columns; the others as there."""
        bound, reach = self.problem.loss.bound, self.reach(start)
        return Problem(bound, self.beta(p), self.convexity, reach, noise, accelerated, spread)

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
