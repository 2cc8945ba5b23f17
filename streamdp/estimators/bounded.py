"""Linear models in a bounded domain, whose steps are planned from its size and from the constants of the loss.

All records of such a model get the same guarantee, because they share its noise: a record that allows more is learned
and spends the estimator's budget; one that allows less is refused and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streamdp.errors import BudgetError, ConfigError, is_number
from streamdp.estimators.linear import LinearModel
from streamdp.optim.curvature import has_curvature
from streamdp.optim.domains import Box, Domain, L2Ball, RealSpace
from streamdp.optim.losses import Huber
from streamdp.privacy.guarantees import FORMS, ApproxDP, Budget, amount

if TYPE_CHECKING:
    from streamdp.data.records import Subject

PLANNED_ONLY = {"horizon": None, "smoothness": None, "strong_convexity": 0.0}  # with their defaults
_LARGEST = 1e60  # the largest size of a domain; squares of larger numbers could leave the doubles


class BoundedModel(LinearModel):
    """The domain, its projection and size, the smoothness of the loss, and one budget for all records."""

    per_record_budgets = False
    _default_budget: ClassVar[Budget] = ApproxDP(1.0, 1e-6)
    _default_domain: ClassVar[Domain] = L2Ball(5.0)
    smoothness: float | None
    strong_convexity: float

    def _set_up(self) -> None:
        super()._set_up()
        if self._loss.by_norm:
            raise ConfigError("weighting: expected mallows, because steps are planned from the smoothness of the loss")
        if not isinstance(self._domain, L2Ball | Box):
            raise ConfigError("domain: expected an L2Ball or a bounded Box, because steps are planned from its size")
        if not (_corner(self._domain) <= _LARGEST and _width(self._domain) >= 1 / _LARGEST):
            raise ConfigError(f"domain: expected a size from {1 / _LARGEST:g} to {_LARGEST:g}, got {self._domain}")
        self._beta = self._smoothness()
        # lambda/2 ||x - x*||^2 <= f(x) - f* <= bound ||x - x*|| for every x of the domain.
        most = 4 * self._loss.bound / _width(self._domain)
        if not (is_number(self.strong_convexity) and 0 <= self.strong_convexity <= most):
            raise ConfigError(
                f"strong_convexity: expected a number from 0 to {most:g}, the most that bounded gradients allow in"
                f" {self._domain}, got {self.strong_convexity!r}"
            )

    def _check_newton(self, planned: str) -> None:
        """Check that Newton's steps can be made; `planned` is the method to use otherwise."""
        if not has_curvature(self._loss):
            raise ConfigError(
                f'method="newton" needs a bounded curvature, which {self._loss!r} does not have: only Huber and '
                f'logistic losses without clip have one; use method="auto" or "{planned}"'
            )
        if self._loss.weighting is not None:
            raise ConfigError("weighting: Newton's steps have a weight of their own: leave it out")
        self._check_unplanned(planned)

    def _check_unplanned(self, planned: str) -> None:
        """Check that no parameter is set that only planned steps use."""
        for name, default in PLANNED_ONLY.items():
            if getattr(self, name, default) != default:
                raise ConfigError(
                    f"{name}: only planned steps use it, and the steps of this method are not planned: leave it out, "
                    f'or set method="{planned}"'
                )

    def _smoothness(self) -> float:
        """The parameter, or the constant of the loss; inf: the loss must be smoothed."""
        if self.smoothness is not None:
            if not (is_number(self.smoothness) and 0 < self.smoothness < math.inf):
                raise ConfigError(f"smoothness: expected a positive finite number, got {self.smoothness!r}")
            return float(self.smoothness)
        if self._loss.clip is not None and not self._loss.has_envelope:
            raise ConfigError(f"{self._loss.name} with clip has no smoothness constant: give smoothness=...")
        return self._loss.smoothness

    @property
    def least_records(self) -> int | None:
        """With fewer records a model is about as good as a constant; None before the first, and for planned steps."""
        walk = getattr(self, "_walk", None)
        return walk.least if walk is not None and self.n_seen else None

    @property
    def _highest_scale(self) -> float:
        assert isinstance(self._loss, Huber)
        return max(_corner(self._domain), 2 * self._loss.sigma_min)

    def _project(self, theta: np.ndarray) -> np.ndarray:
        if not isinstance(self._loss, Huber):
            return self._domain.project(theta)
        scale = min(max(theta[-1], self._loss.sigma_min), self._highest_scale)
        return np.append(self._domain.project(theta[:-1]), scale)

    def _inner(self) -> np.ndarray:
        """The estimate (d,) in the units in which it is learned, as a point of the domain."""
        return self._estimate()

    @property
    def _place(self) -> dict[str, list[float]]:
        """The domain as plain text and floats, for states: 5 and 5.0 are equal."""
        return {type(self._domain).__name__: [float(x) for x in vars(self._domain).values()]}

    @property
    def on_border(self) -> bool:
        """Whether theta sits on the border of its domain, up to 1 % of its size: a larger one may hold a better theta.

        False before the features are known, and without a domain.
        """
        if self._features is None or isinstance(self._domain, RealSpace):
            return False
        theta = self._inner()
        free = theta[:-1] if isinstance(self._loss, Huber) else theta
        if isinstance(self._domain, L2Ball):
            return float(np.linalg.norm(free)) >= 0.99 * self._domain.radius
        assert isinstance(self._domain, Box)
        low, high = self._domain.low, self._domain.high
        margin = 0.01 * (high - low)
        return bool(np.any((free <= low + margin) | (free >= high - margin)))

    def _reach(self, start: np.ndarray) -> float:
        """The largest distance of a point of the domain from the start."""
        free = start[:-1] if isinstance(self._loss, Huber) else start
        if isinstance(self._domain, L2Ball):
            square = (self._domain.radius + float(np.linalg.norm(free))) ** 2
        else:
            assert isinstance(self._domain, Box)
            square = float(np.sum(np.maximum(free - self._domain.low, self._domain.high - free) ** 2))
        if isinstance(self._loss, Huber):
            square += max(start[-1] - self._loss.sigma_min, self._highest_scale - start[-1]) ** 2
        return math.sqrt(square)

    def _allowed(self, budget: Budget) -> bool:
        mine = self.record_budget
        if type(budget) is not type(mine):
            form = FORMS[type(mine)]
            raise BudgetError(f"expected {form}, the kind that all records of this estimator spend, got {budget}")
        return all(getattr(budget, name) >= getattr(mine, name) for name in budget.__dataclass_fields__)

    def _learn_batch(
        self,
        X: np.ndarray,
        y: np.ndarray,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
    ) -> np.ndarray | None:
        allowed = None if amounts is None else amounts >= amount(self.record_budget)
        if allowed is None or allowed.all():
            return self._learn_shared(X, y, subjects)
        self._check_rows(X, y)  # the refused ones, too
        mine = None if subjects is None else [s for s, a in zip(subjects, allowed, strict=True) if a]
        learned = self._learn_shared(X[allowed], y[allowed], mine)
        self.n_refused += len(X) - int(np.count_nonzero(allowed))
        if learned is not None:
            allowed[allowed] = learned
        return allowed

    def _learn_shared(
        self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        """Learn records that all spend the estimator's budget; as `_learn_batch`."""
        return super()._learn_batch(X, y, None, subjects)

    def _check_theta(self, theta: np.ndarray) -> None:
        super()._check_theta(theta)
        if isinstance(self._loss, Huber) and theta[-1] > self._highest_scale * (1 + 1e-9):
            raise ConfigError(f"state: expected a scale of at most {self._highest_scale:g}, got {theta[-1]:g}")

    def _about_domain(self, theta: str = "theta") -> list[str]:
        if isinstance(self._domain, RealSpace):
            return []
        border = "; theta sits on the border of its domain: a larger domain may hold a better theta"
        return [f"{theta} is kept in {self._domain}" + border * self.on_border]


def _width(domain: Domain) -> float:
    """The largest range of a coefficient."""
    return 2 * domain.radius if isinstance(domain, L2Ball) else domain.high - domain.low  # type: ignore[union-attr]


def _corner(domain: Domain) -> float:
    """The largest coefficient."""
    if isinstance(domain, RealSpace):
        return _LARGEST
    return domain.radius if isinstance(domain, L2Ball) else max(abs(domain.low), abs(domain.high))
