"""One-pass averaged Newton steps from noisy sums of gradients and curvature.

Everything here is about accuracy. Privacy depends only on the batches being disjoint, not on any number chosen here.

A batch gives a noisy sum of the vectors of `curvature` at a query point theta_t. With z the standard deviation of the
sum's noise on each coordinate, d parameters and V about the variance of a gradient, the mean gradient of b records has
the variance V/b + z^2 d/b^2. Both noises are equal at b = N_0 = z^2 d/V.

Batches. With n records so far, b = max(b_0, min(n/3, 16 N_0), min(n/16, 2^20)), b_0 = max(32, 10 d, 4 sqrt N_0): small
at first so that the query point moves early, then so large that noise does not matter. No horizon is needed.

Step. Each batch counts as tau = 1 / (V/b + z^2 d/b^2), T += tau, and has the weight omega = tau T / (T + 300 d/V),
which forgets the first query points. Kept are the omega-weighted means of the query points, of the mean gradients and
of the Hessians A: M / (b sigma) (Huber) or M / (4 b) (logistic); and s / (b sigma). An entry of A has noise of variance

    v = sum (omega / W)^2 (f z / (lambda b))^2,   W = sum of omega, f = 1 / sigma or 1 / 4.

Symmetric noise of this size has eigenvalues up to about nu = sqrt(2 q v), so those of A below nu are replaced by nu.
The next query point, which is also the answer, is thetabar - A^-1 gbar: a Newton step of the averages. If gbar' A^-1
gbar exceeds sigma (logistic: 1), the step is shortened to that. sigma makes its own step with the curvature max(sbar,
.05 / sigma, 2 sqrt v), to at most twice and at least half of its last value.

Wide bounds. With bounds of the target, Huber's sigma begins at half their width. While it is far too large, all
residuals are small beside it: the gradients tell sigma that it is too large, and of the coefficients little more than
the intercept. So as long as each batch from the first one on would move sigma to less than 3/4 (its step without the
term 2 sqrt v, at least to half), it is moved there, the other coefficients go back to 0, and the averages begin anew.

A batch that is closed early, or of which fewer people answered, has a smaller b and so a smaller weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.curvature import Curvature
from streamdp.optim.growing import MOST, Growing
from streamdp.optim.losses import Huber

# The numbers of the batches and of the weights were found on simulations. They matter for accuracy only.
_GROWTH, _CALM, _LARGE, _LARGEST = 3, 16, 16, 2**20
_FORGOTTEN = 300.0
_NARROWED = 0.75
_LARGEST_SUM = 1e150  # its square stays within the doubles


class Newton(Growing):
    """The sums, the query point and the sequence of batches.

    Parameters
    ----------
    curvature
        The vectors that are summed.
    start
        (d,) the first query point.
    project
        Maps a vector (d,) to the nearest point of the domain.
    deviation
        z >= 0, the standard deviation of the noise of a sum, on each coordinate.
    batch
        Records of each batch; None: they grow.
    wide
        Whether Huber's sigma may begin far too large, because it begins at half the width of the target's bounds.
    """

    def __init__(
        self,
        curvature: Curvature,
        start: np.ndarray,
        project: Callable[[np.ndarray], np.ndarray],
        deviation: float,
        batch: int | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__(np.zeros(self.size(curvature)), batch)
        """The query point (d,), the weighted means of query points (d,) and of vectors (size,), T, W and v W^2."""
        self.curvature = curvature
        self._wide = wide
        self._project = project
        self._deviation = deviation
        d, q = curvature.parameters, curvature.columns
        self._noise = deviation**2 * d
        self._upper = np.triu_indices(q)
        self.state[:d] = start

    @staticmethod
    def size(curvature: Curvature) -> int:
        """The length of `state`.

        Parameters
        ----------
        curvature
            The vectors that are summed.
        """
        return 2 * curvature.parameters + curvature.size + 3

    @staticmethod
    def check(curvature: Curvature, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        """Check what is to become `state`.

        Parameters
        ----------
        curvature
            The vectors that are summed.
        numbers
            (size,), finite.
        check
            Raises `ConfigError` for a vector (d,) that is no parameter.

        Raises `ConfigError` for numbers out of range.
        """
        d, (information, weight, noise) = curvature.parameters, numbers[-3:]
        fits = 0 <= weight <= information and noise >= 0 and np.max(np.abs(numbers)) <= _LARGEST_SUM
        if not (fits and (weight > 0 or not numbers[d:].any())):
            raise ConfigError("state: its sums are out of range")
        check(numbers[:d])
        if weight > 0:
            check(numbers[d : 2 * d])

    @property
    def middle(self) -> np.ndarray:
        """See `Walk.middle`: a copy of the query point."""
        return self.estimate.copy()

    @property
    def estimate(self) -> np.ndarray:
        """See `Walk.estimate`: the query point."""
        point: np.ndarray = self.state[: self.curvature.parameters]
        return point

    def _size_after(self, records: int) -> int:
        balance = self._noise / self.curvature.variance
        first = max(32.0, 10.0 * self.curvature.parameters, 4 * math.sqrt(balance))
        grown = max(min(records / _GROWTH, _CALM * balance), min(records / _LARGE, _LARGEST))
        return int(max(first, grown))

    # -- steps -------------------------------------------------------------------------------------------------------

    def move(self, total: np.ndarray, size: int, advance: int) -> None:
        """See `Walk.move`."""
        curvature = self.curvature
        tau = 1 / (curvature.variance / size + self._noise / size**2)
        known = self.state[-3] + tau
        omega = tau * known / (known + _FORGOTTEN * curvature.parameters / curvature.variance)
        self.records += advance
        first, sigma = self.state[-2] == 0, float(self.estimate[-1])
        self.learn(total, size, tau, omega, self._deviation)
        if first and self._wide:
            self._narrow(sigma)

    def _narrow(self, sigma: float) -> None:
        """After a first batch at a sigma that was far too large: see the text of the module."""
        d = self.curvature.parameters
        downhill, bend = float(self.state[3 * d - 1]), max(float(self.state[-4]), 0.05 / sigma)
        less = max(sigma / 2, sigma - downhill / bend)
        if less < _NARROWED * sigma:
            state = np.zeros_like(self.state)
            state[d - 2 : d] = self.estimate[d - 2], less
            state[:d] = self._project(state[:d])
            self.state[:] = state

    def learn(self, total: np.ndarray, size: int, information: float, weight: float, deviation: float) -> None:
        """Add a sum to the averages, and move the query point.

        Parameters
        ----------
        total
            (size,) the noisy sum of vectors at `middle`.
        size
            The number of vectors in the sum.
        information
            tau, what it adds to T.
        weight
            omega > 0, with which it enters the averages.
        deviation
            The standard deviation of its noise, on each coordinate.
        """
        curvature, d = self.curvature, self.curvature.parameters
        state = self.state.copy()
        point, means, (known, weights, noise) = state[:d], state[d:-3], state[-3:]
        sigma = float(point[-1]) if isinstance(curvature.loss, Huber) else 4.0
        unit = 1 / (curvature.factor * sigma)
        weights += weight
        mean = total / size
        mean[d:] *= unit
        means += weight / weights * (np.concatenate([point, mean]) - means)
        noise += (weight * unit * deviation / size) ** 2
        state[-3:] = known + information, weights, noise
        point[:] = self._next(point, means, noise / weights**2)
        self.state[:] = state

    def _next(self, point: np.ndarray, means: np.ndarray, variance: float) -> np.ndarray:
        """The query point after `point`, from the weighted means; `variance` is v."""
        d, q = self.curvature.parameters, self.curvature.columns
        huber = isinstance(self.curvature.loss, Huber)
        sigma = float(point[-1]) if huber else 1.0
        found, gradient = means[:d].copy(), means[d : 2 * d]
        hessian = np.zeros((q, q))
        hessian[self._upper] = means[2 * d : 2 * d + q * (q + 1) // 2]
        hessian = (hessian + hessian.T) / math.sqrt(2)
        hessian[np.diag_indices(q)] /= math.sqrt(2)
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(values, max(math.sqrt(2 * q * variance), 1e-9 * abs(values[-1]), 1e-12 / sigma))
        along = vectors.T @ gradient[:q]
        decrement = float(np.sum(along**2 / values))
        found[:q] -= min(1.0, math.sqrt(sigma / max(decrement, 1e-300))) * (vectors @ (along / values))
        if huber:
            bend = max(float(means[-1]), 0.05 / sigma, 2 * math.sqrt(variance))
            found[-1] = min(max(found[-1] - gradient[-1] / bend, sigma / 2), 2 * sigma)
        return self._project(found)

    # -- state -------------------------------------------------------------------------------------------------------

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        self.check(self.curvature, numbers, check)

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `Walk.merge`: their numbers are weighted by information."""
        d = self.curvature.parameters
        sums = np.sum([part.state[-3:] for part in parts], axis=0)
        state = np.zeros_like(self.state)
        state[:d], state[-3:] = average, sums
        if sums[1] > 0:
            state[d:-3] = sum(part.state[d:-3] * (part.state[-2] / sums[1]) for part in parts)
            state[:d] = self._next(average, state[d:-3], sums[2] / sums[1] ** 2)
        self.records = min(MOST, sum(part.records for part in parts))
        self.state[:] = state
