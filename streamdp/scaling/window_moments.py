"""Private centres and scales of columns and the target, from noisy moments of the users of a window.

The first windows zoom in: a round asks for the noisy means of a = clip((x - m) / s, -1, 1) and of a^2 of each column
that is scaled, which gets a new centre and a scale that is no larger. A scale is final, and costs nothing more, as soon
as it follows from a variance that stands out of its noise, or values fill half of their range in the last round of a
window. It must not be looked for again then: of a column with rare large values, such as a rare flag, the clipped
values have an ever smaller variance. There are fewer rounds if the noise of several would hide that values fill less
than half of their range.

A column whose bounds are not declared first gets a scale from noisy counts of the sizes of its values.

Claim: all rounds of a window together are mu-GDP for the given mu. Proof: docs/proofs/windowed.md.
"""

import math
from typing import Protocol

import numpy as np

from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.scaling.pooling import alike

SHARE = 0.1  # of mu^2 of a window, for scaling
ROUNDS = 4
WIDTH = 2.0
"""The deviations in a scale."""
_FULL, _KNOWN, _VAGUE = 0.5, 3.5, 0.25
LEAST, LEAST_PRIVATE = 2.0**-20, 2.0**-80
"""The least scale, in the bounds that are declared and of a column without them."""
SIZES = 0.05
"""Of mu^2 of a window, for the sizes of columns whose bounds are not declared."""
CELLS = 52
_BEYOND, _CLEAR, _TOLD = 0.01, 2.0, 0.1


class WindowColumns(Protocol):
    """The users of a window, as far as scaling asks them."""

    def moments(self, columns: np.ndarray, table: np.ndarray, grid: float) -> np.ndarray:
        """The sums (2 k,) over users of the averages of a, then of a^2, each rounded to a grid, a power of two.

        `columns` (k,) are indices, `table` (2, k) has m and s. The sums are not private: overwrite them after use.
        """

    def sizes(self, columns: np.ndarray, grid: float) -> np.ndarray:
        """The sums (k CELLS,) over users of the shares of their values x with 2^-(c + 1) <= |x| < 2^-c, for c from 0.

        The first cell has larger values, too, and the last one smaller ones. Rounding and privacy are as of `moments`.
        """


def noise_of_sizes(columns: int, users: int, items: int, mu: float) -> Gaussian:
    """The noise on the sums `WindowColumns.sizes` of k columns of n users with at most this many items, for `mu`."""
    sensitivity = math.sqrt(2 * columns) * (1 + items * 2.0**-52)
    return Gaussian(GaussianDP(mu * (1 - 1e-12)), (math.sqrt(columns) + sensitivity) * users, sensitivity)


def users_for_sizes(noise: Gaussian, columns: int) -> float:
    """Beside how many users the noise on how many values of k columns are beyond a size is small."""
    return 3 * math.sqrt(CELLS) * float(noise.rows(columns * CELLS)[0, 0]) / _TOLD


def sizes_of(users: WindowColumns, columns: np.ndarray, n: int, noise: Gaussian, rng: Rng) -> np.ndarray:
    """Return scales (k,) of columns (k,): powers of 2, beyond which are about one in a hundred of n users, or noise."""
    deviation, grid = noise.rows(len(columns) * CELLS)[0, :2].tolist()
    total = users.sizes(columns, grid)
    try:
        counts = noise.randomize(total, rng).reshape(len(columns), CELLS)
    finally:
        total[:] = 0.0
    beyond = np.cumsum(counts, axis=1)  # of column j, those of at least 2^-(c + 1)
    few = beyond <= _BEYOND * n + _CLEAR * deviation * np.sqrt(np.arange(1, CELLS + 1))
    return 2.0 ** -np.cumprod(few, axis=1).sum(axis=1)


def rounds_of(columns: int, users: int, items: int, mu: float) -> int:
    """How many rounds are worth it: so many that one finds values that fill less than half of their range, or one."""
    noises = ((rounds, noise_of(columns, users, items, mu, rounds)) for rounds in range(ROUNDS, 0, -1))
    return next((rounds for rounds, noise in noises if _factor(0.0, _deviation(noise, columns, users)) < _FULL), 1)


def noise_of(columns: int, users: int, items: int, mu: float, rounds: int = ROUNDS) -> Gaussian:
    """The noise on the sum of a round about k >= 1 columns of n users with at most this many items.

    `mu` is what all rounds together may spend.
    """
    sensitivity = 2 * math.sqrt(columns) * (1 + items * 2.0**-52)
    # The second term is more than rounding to the grid adds. The rounds add up to mu, up to rounding.
    most = (math.sqrt(2 * columns) + sensitivity) * users
    return Gaussian(GaussianDP(mu / math.sqrt(rounds) * (1 - 1e-12)), most, sensitivity)


def useful(noise: Gaussian, columns: int, users: int) -> bool:
    """Return whether a round of k columns and n users with this noise tells where columns are in their range."""
    return _deviation(noise, columns, users) < _VAGUE


def zoom(
    users: WindowColumns,
    columns: np.ndarray,
    table: np.ndarray,
    n: int,
    noise: Gaussian,
    rng: Rng,
    least: np.ndarray | None = None,
    rounds: int = ROUNDS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the new centres and scales (2, k) after all rounds, and the mask (k,) of the columns whose are final.

    `columns` (k,) are indices, `table` (2, k) has their centres and scales, unchanged, n is the number of users, and
    `least` (k,) are the least scales, by default `LEAST`.
    """
    table, k = table.copy(), len(columns)
    least = np.full(k, LEAST) if least is None else least
    final = np.zeros(k, dtype=bool)
    grid, deviation = float(noise.rows(2 * k)[0, 1]), _deviation(noise, k, n)
    for last in (False,) * (rounds - 1) + (True,):
        total = users.moments(columns, table, grid)
        try:
            means, squares = (noise.randomize(total, rng) / n).reshape(2, k)
        finally:
            total[:] = 0.0
        if final.all():
            continue
        means[~final], _ = alike(np.clip(means[~final], -1.0, 1.0), deviation**2)
        variances, left = squares - means**2, deviation**2
        variances[~final], left = alike(variances[~final], left)
        for j in np.flatnonzero(~final):
            factor = _factor(float(variances[j]), left**0.5)
            stays = factor >= _FULL or table[1, j] <= least[j]
            known = variances[j] >= _KNOWN * left**0.5 * math.sqrt(1 + 4 * float(means[j]) ** 2)
            final[j] = known or (stays and last)
            table[0, j] += table[1, j] * means[j]
            table[1, j] = max(table[1, j] * min(factor, 1.0), least[j])
    return table, final


def _deviation(noise: Gaussian, columns: int, users: int) -> float:
    """sigma of a mean."""
    return float(noise.rows(2 * columns)[0, 0]) / users


def _factor(variance: float, deviation: float) -> float:
    return WIDTH * math.sqrt(max(0.0, variance) + 2 * deviation)
