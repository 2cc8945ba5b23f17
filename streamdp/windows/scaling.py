"""Private centres and scales of columns and the target, from noisy moments of the users of a window.

Columns have declared bounds and lie in [-1, 1]; so does a target with declared bounds, which is one of the columns
here. If the bounds are far wider than the values, a column has a tiny variance, and the noise of the curvature hides
it; a target is far from the start, and smaller than the least scale of Huber's loss. So the first windows zoom in: a
round asks for the means of

    a = clip((x - m) / s, -1, 1)    and    a^2

of each column that is scaled, beginning with m = 0 and s = 1. With the noise's standard deviation sigma of a mean, a
column whose values fill less than half of its range,

    f = 2 sqrt(max(0, mean a^2 - (mean a)^2) + 2 sigma) < 1/2,

gets the centre m + s mean a and the scale s f; others stay. The method then learns from (x - m) / s, which is not
clipped. Scales only fall, and 2 sigma keeps a column from being scaled by noise. As soon as the last round of a window
changes nothing, the scales are final and cost nothing more.

**Neighbours.** All records of one user are replaced by any others. **Trust.** The process that holds the window.
**Claim.** All rounds of a window together are mu-GDP for the given mu.

**Proof.** For one column and two records with a and a', let u = |a - a'| and v = |a + a'|, u + v <= 2. The pairs (a,
a^2) are u sqrt(1 + v^2) apart, and u^2 (1 + v^2) <= u^2 (1 + (2 - u)^2), whose derivative 2 u (2 u^2 - 6 u + 5) is
positive for u > 0, so its maximum is 4, at u = 2. So k columns have the diameter S = 2 sqrt(k). The average of a user's
records is in their convex hull, which has the same diameter, up to the factor 1 + m 2^-52 of rounding. A replaced user
changes the sum over users by at most S, at every m and s. A round adds Gaussian noise for S that is mu / sqrt(R)-GDP,
and asks at centres and scales that follow from earlier releases; R rounds are mu-GDP together (Dong, Roth, Su 2022,
Corollary 2). Centres and scales are functions of the noisy sums.

In a window that is scaled, `SHARE` of mu^2 goes to the rounds and the rest to the method, whose release is mu'-GDP
with mu'^2 = (1 - SHARE) mu^2, at scales that were released before. So both are mu-GDP together.

**Source.** streamdp; of the composition, Dong, Roth, Su 2022.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.windows.task import Rng

SHARE = 0.1
"""Of mu^2 of a window, for scaling."""
ROUNDS = 4
_WIDTH, _FULL, _LEAST = 2.0, 0.5, 2.0**-20


class Columns(Protocol):
    """The users of a window, as far as scaling asks them."""

    def moments(self, columns: np.ndarray, frame: np.ndarray, grid: float) -> np.ndarray:
        """The sums over users of the averages of a (k,), then of a^2 (k,), each user's rounded to a grid; shape (2 k,).

        `columns` (k,) are indices, `frame` (2, k) has centres m and scales s, and the grid is a power of two. The sums
        are not private: overwrite them after use.
        """


def noise_of(columns: int, users: int, items: int, mu: float) -> Gaussian:
    """The noise on the sum of a round about k >= 1 columns of n users with at most this many items.

    `mu` is what all rounds together may spend.
    """
    sensitivity = 2 * math.sqrt(columns) * (1 + items * 2.0**-52)
    # The second term is more than rounding to the grid adds. ROUNDS rounds add up to mu, up to rounding.
    most = (math.sqrt(2 * columns) + sensitivity) * users
    return Gaussian(GaussianDP(mu / math.sqrt(ROUNDS) * (1 - 1e-12)), most, sensitivity)


def useful(noise: Gaussian, columns: int, users: int) -> bool:
    """Return whether a round of k columns and n users with this noise can find a scale: whether f < 1/2 is possible."""
    return _factor(0.0, _deviation(noise, columns, users)) < _FULL


def zoom(
    users: Columns, columns: np.ndarray, frame: np.ndarray, n: int, noise: Gaussian, rng: Rng
) -> tuple[np.ndarray, bool]:
    """Return the new centres and scales (2, k) after all rounds, and whether the last round changed none of them.

    `columns` (k,) are indices, `frame` (2, k) has their centres and scales, unchanged, and n is the number of users.
    """
    frame, k = frame.copy(), len(columns)
    grid, deviation = float(noise.rows(2 * k)[0, 1]), _deviation(noise, k, n)
    for _ in range(ROUNDS):
        settled = True
        total = users.moments(columns, frame, grid)
        try:
            means, squares = (noise.randomize(total, rng) / n).reshape(2, k)
        finally:
            total[:] = 0.0
        means = np.clip(means, -1.0, 1.0)
        for j in range(k):
            factor = _factor(float(squares[j] - means[j] ** 2), deviation)
            if factor < _FULL and frame[1, j] > _LEAST:
                settled = False
                frame[:, j] = frame[0, j] + frame[1, j] * means[j], frame[1, j] * factor
    return frame, settled


def _deviation(noise: Gaussian, columns: int, users: int) -> float:
    """sigma of a mean."""
    return float(noise.rows(2 * columns)[0, 0]) / users


def _factor(variance: float, deviation: float) -> float:
    return _WIDTH * math.sqrt(max(0.0, variance) + 2 * deviation)
