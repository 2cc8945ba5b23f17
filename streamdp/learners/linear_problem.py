"""What is learned: a linear model of declared columns, with a loss and a domain. No names and no records are in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.domains import Box, Domain, L2Ball
from streamdp.optim.losses import Loss
from streamdp.optim.losses.claims import check_claims
from streamdp.scaling.units import Units


@dataclass(frozen=True)
class Columns:
    """What is declared of the columns of a row.

    `origin`, `unit`: (p,): a column is (value - origin) / unit. `numeric`: (p,): which columns are numbers with
    declared bounds, so that they lie in [-1, 1]. `typical`: the declared typical centre and spread of columns, by
    index, in units of the column. `own`: the indices of the columns of what a group has of its own, beside what all
    groups share. `private`: those of numbers whose bounds are not declared. `declared`: whether there is a public
    schema. If not, columns are numbers as they come.
    """

    origin: np.ndarray
    unit: np.ndarray
    numeric: np.ndarray
    typical: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    declared: bool = False
    own: tuple[int, ...] = ()
    private: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.origin)

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

    def free(self, theta: np.ndarray) -> np.ndarray:
        """The part of theta (d,) that the domain is about: all but the scale of the loss."""
        return theta if self.loss.least_scale is None else theta[:-1]

    def check_theta(self, theta: np.ndarray, p: int) -> None:
        """Raise `ConfigError` for a theta (d,) of p columns outside the domain."""
        self.loss.check_theta(theta, p + self.intercept)
        if not np.allclose(self.domain.project(self.free(theta)), self.free(theta), rtol=1e-9, atol=0.0):
            raise ConfigError(f"state: theta is outside {self.domain}")
