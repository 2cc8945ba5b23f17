"""The squared loss, with residuals that are cut far out."""

from dataclasses import dataclass

import numpy as np

from streamdp.optim.losses.huber import Huber


@dataclass(frozen=True, kw_only=True)
class Squared(Huber):
    """Huber's loss whose scale is a few times the root mean square T of the residuals y - x'b, so it learns the mean.

    Huber's loss with c = 1.345 is linear from about one T on. If most targets are 0, or amounts are skewed, it learns a
    number between the median and the mean, which is neither. Here kappa = k c^2 with a small k: sigma solves
    E min(r^2, c^2) = kappa, so residuals are cut at c sigma >= T / sqrt(k). Newton's steps move sigma further out, to
    where the bias of the cut is as small as the noise (docs/proofs/curvature.md, the steps).

    Bias. A mean of residuals that are cut at t is at most E max(|e| - t, 0) <= T^2 / (4 t) off, as |e| - t <=
    e^2 / (4 t).

    Bounds. Those of `Huber` hold, whose proofs use of kappa only 0 <= kappa <= c^2 and kappa <= 1. Source: the equation
    of sigma is that of Wang, Zheng, Zhou, Zhu 2021, "A new principle for tuning-free Huber regression".

    Parameters
    ----------
    clip, weighting, c, sigma_min
        As for `Huber`.
    """

    name = "squared"
    expected_curvature = 0.33
    effort = (Huber.expected_curvature / expected_curvature) ** 2  # the same noise in flatter coefficients
    grows = True

    @property
    def kappa(self) -> float:
        """c^2 / 9 for the noise of single reports, whose weight is "norm"; else c^2 / 400."""
        return self.c**2 / (9 if self.by_norm else 400)

    def expected_inverses(self, theta: np.ndarray, columns: int) -> np.ndarray:
        """See `Loss.expected_inverses`: the curvatures of intercept and scale are 1 and E r^2 = kappa, over sigma."""
        inverses = super().expected_inverses(theta, columns)
        inverses[:, -1] = 1 / self.kappa, 1 / self.kappa**2
        return inverses

    def start(self, d: int) -> np.ndarray:
        theta = super().start(d)
        theta[-1] *= 4  # from above: a scale that is too small would make most of the residuals look alike
        return theta
