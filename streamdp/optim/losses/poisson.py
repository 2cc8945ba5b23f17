"""The Poisson loss, with residuals that are cut far out."""

import math
from dataclasses import dataclass

import numpy as np

from streamdp.errors import NotAvailableError
from streamdp.optim.losses.squared import Squared

_LEVEL = 1.0


@dataclass(frozen=True, kw_only=True)
class Poisson(Squared):
    """Poisson regression: the logarithm of the mean of y >= 0 is linear. For counts, and for other amounts.

    As in the Poisson deviance, the derivative in the logarithm ln m is m - y; residuals are cut as by `Squared`, so it
    learns the mean also of counts that vary more than a Poisson law. Only Newton's steps learn it.

    Predictor. With a public level L > 0, which the steps choose near the mean of y, the linear predictor is

        u = L (1 + ln(m / L)),   m(u) = L exp(u / L - 1),   m(L) = L,  m'(L) = 1.

    So theta is an affine map of that of the logarithm, and near the level it is in the units of the target, in which
    scale, priors and steps are those of `Squared`. Outside the steps theta is that of the logarithm (`Units.level`).

    Gradient. With a = clip(r, -c, c), r = (y - m(u)) v / sigma and v = min(1, 3 / m'(u)) it is that of `Squared`:
    (-a x w, (kappa - a^2) w / 2). Where m is above 3 L, r = 3 L (y / m - 1) / sigma: such records count less, because
    a step by the curvature would be too long (docs/proofs/curvature.md). v depends on x alone, so it makes no bias if
    the model is right. -a grows with u, because r falls for y >= 0, so for each sigma the gradient in the coefficients
    is that of a convex loss. What sigma solves is the equation of `Squared`; no loss has both.

    Bounds. Those of `Squared`, whose proofs use of a only |a| <= c, of both records.

    Source: the quasi-likelihood of Cantoni, Ronchetti 2001, "Robust inference for generalized linear models"; the level
    is streamdp's.

    Parameters
    ----------
    clip, weighting, c, sigma_min
        As for `Huber`.
    """

    name = "poisson"
    log_link = True
    bend = 2.0

    def _smoothness(self) -> float:
        return math.inf  # its second derivative is m(u) / (L sigma)

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        spec[k.LINK] = _LEVEL
        return spec

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        """Raise `NotAvailableError`: its gradient is that of no function of coefficients and scale together."""
        raise NotAvailableError("value: the Poisson loss is known by its gradient")
