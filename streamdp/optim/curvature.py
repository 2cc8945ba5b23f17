"""Gradient and curvature of one record as one bounded vector, released together by Newton's method.

A record contributes v = (g, lambda svec M, lambda s): its gradient, the upper triangle of its curvature, with
off-diagonal entries times sqrt2, and for Huber's loss the curvature of the scale. Claim: |v| is at most `bound` and
|v - v'| at most `sensitivity`, for any records at one theta with sigma > 0; a record that overflows contributes zeros.
What g, M and s are, what they estimate, which losses have no such vector, and the proof: docs/proofs/curvature.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from streamdp.scaling.units import ROOM

_SHARE = 2.0
"""K of the proofs for Huber's loss, for softmax and for a plain logistic loss."""


def has_curvature(loss: Loss) -> bool:
    """Return whether records have a bounded curvature here: without `clip`, all but quantile and hinge loss."""
    # the proof is not about others of their kind
    return type(loss) in (Huber, Squared, Poisson, Logistic, Softmax) and loss.clip is None


@dataclass(frozen=True)
class Curvature:
    """The vectors (g, lambda svec M, lambda s) of records.

    The loss is `Huber`, `Squared`, `Poisson`, `Logistic` or `Softmax` without `clip`, else a `ConfigError` is raised;
    `columns` is q >= 1, the length of x, intercept included; `outputs` is the number of linear predictors: K for the
    softmax of K classes. `apart` are sets of columns that are 0 or 1, of which at most one is 1 in a record. `plain`: M
    of the logistic loss says how the columns are spread, as that of softmax does. Other losses are never plain.
    """

    loss: Loss
    columns: int
    outputs: int = 1
    apart: tuple[tuple[int, ...], ...] = ()
    plain: bool = False

    def __post_init__(self) -> None:
        if not has_curvature(self.loss):
            raise ConfigError(
                f"{self.loss!r} has no curvature of bounded sensitivity: Huber, squared, Poisson, logistic and softmax "
                "have"
            )
        object.__setattr__(self, "plain", self.plain and isinstance(self.loss, Logistic))

    @property
    def of_columns(self) -> bool:
        """Whether M says how the columns are spread, and nothing of the loss."""
        return isinstance(self.loss, Softmax) or self.plain

    @property
    def _bent(self) -> bool:
        return isinstance(self.loss, Logistic) and not self.plain

    @property
    def bend(self) -> float:
        """What M is multiplied by for A: the largest curvature of the loss, unless M is about the columns."""
        return 1.0 if self.of_columns else self.loss.bend

    @property
    def parameters(self) -> int:
        """d, the number of parameters."""
        return self.loss.size(self.columns, self.outputs)

    @property
    def size(self) -> int:
        """The length of a vector: d + q (q + 1) / 2, and one more for Huber."""
        return self.parameters + self.columns * (self.columns + 1) // 2 + self.loss.has_scale

    @property
    def factor(self) -> float:
        """lambda."""
        if self._bent:
            return math.sqrt(1.5 / self.columns)
        return math.sqrt(_SHARE * self._square / (2 * self.columns))

    @property
    def bound(self) -> float:
        """The largest norm of a vector."""
        if self._bent:
            return math.sqrt(3.55)
        return math.sqrt(self._gradients(2.0) + self._curvatures)

    @property
    def sensitivity(self) -> float:
        """The largest distance of two vectors."""
        return math.sqrt(self._gradients(8.0) + (not self._bent) * self._curvatures)

    @property
    def gradient_sensitivity(self) -> float:
        """The largest distance of two gradients."""
        return math.sqrt(self._gradients(8.0))

    @property
    def _square(self) -> float:
        """The square of the longest derivative in the predictors."""
        return self.loss.cut**2 if self.loss.has_scale else self.loss.steepest

    def _gradients(self, times: float) -> float:
        scale = (self.loss.cut**2 - self.loss.kappa) ** 2 / 4 if self.loss.has_scale else 0.0
        return times * self._square + scale

    @property
    def _curvatures(self) -> float:
        scale = self.loss.cut**4 if self.loss.has_scale else 0.0
        return self.factor**2 * (2 * self.columns + scale)

    @property
    def squares(self) -> tuple[float, ...]:
        """The largest norms of g g', g being the gradient without the scale, and of M with Huber's; none of classes."""
        if self.outputs > 1 or self.loss.grows:
            return ()
        return (2 * self._square, *([math.sqrt(2 * self.columns)] * self.loss.has_scale))

    @property
    def variance(self) -> float:
        """V, about the largest variance of a gradient: a quarter of the squared diameter of their set."""
        return 2 * self._square

    @property
    def joint(self) -> np.ndarray:
        """(q, q) 0 for the products of two columns that are `apart`, 1 for others."""
        found = np.ones((self.columns, self.columns))
        for columns in self.apart:
            found[np.ix_(columns, columns)] = np.eye(len(columns))
        return found

    @property
    def reach(self) -> float:
        """The most that a column adds to a coordinate while its place is searched for."""
        return math.sqrt(ROOM * self._square / (2 * max(1, self.columns - 1)))

    def mark(self, spec: np.ndarray) -> None:
        """Say in a spec of `loops.gradient` that M is `plain`, if it is."""
        from streamdp.optim.loops import SHAPE

        if self.plain:
            spec[SHAPE] = 1.0

    def vectors(self, spec: np.ndarray, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the vectors (n, size) at theta (d,) of records X (n, p), y (n,); spec is that of `loops.gradient`."""
        from streamdp.optim.curvature_loops import joint_of_rows

        self.mark(spec)
        out = np.empty((len(X), self.size))
        joint_of_rows(spec, theta, X, y, self.factor, out)
        return out
