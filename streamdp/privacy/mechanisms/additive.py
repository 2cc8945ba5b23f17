"""Additive noise: Laplace and Gaussian.

Two gradients at distance s are at most reach(s) = (1 + 2^-40) s + sqrt(d) h apart after rounding to a grid of multiples
of h. The noise is calibrated to reach(S). Privacy map: if two gradients are up to s apart in place of S, the epsilon of
Laplace noise and the mu of Gaussian noise change by the factor reach(s) / reach(S). Proofs: docs/proofs/noise.md.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from streamdp.privacy.entropy import FreshRng, forks
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP, amount
from streamdp.privacy.mechanisms.base import ARITHMETIC, Mechanism, solved
from streamdp.privacy.mechanisms.response import truth


def _additive(
    mechanism: Mechanism, root: float, variance: float, d: int, shares: np.ndarray, asked: np.ndarray | None
) -> np.ndarray:
    """Rows for additive noise of scale `root` times the sensitivity over the share, rounding included.

    `shares` (n,) are epsilons or mus, `variance` is that of noise with scale 1 in one coordinate, and `asked` (n,) the
    amounts of the mechanism's kind of budget; None if no record is asked for a bit.
    """
    from streamdp.privacy.samplers import ADDITIVE, KEEP, calibrate

    sensitivity = mechanism.sensitivity or 0.0
    rows = np.empty((len(shares), ADDITIVE))
    noise = variance * d / mechanism.bound**2
    calibrate(
        np.ascontiguousarray(shares, float), root, sensitivity, sensitivity * ARITHMETIC, math.sqrt(d), noise, rows
    )
    if asked is not None:
        rows[:, KEEP] = truth(mechanism.budget, asked)
    return rows


def grid_noise(rng: FreshRng, scale: float, count: int) -> np.ndarray:
    """Return Gaussian noise (count,) of a deviation `scale` in cells of a grid; the random words are overwritten."""
    from streamdp.privacy.samplers import normals

    out = np.zeros(count, dtype=np.int64)
    if scale:
        _fill(rng, out, lambda words: normals(words, scale, out))
    return out


def grid_laplace(rng: FreshRng, scale: float, count: int) -> np.ndarray:
    """Return Laplace noise (count,) of a `scale`, above 0, in cells of a grid, as `grid_noise`."""
    from streamdp.privacy.samplers import LAPLACE, randomize

    row, out = np.array([[scale, 1.0, 0.5, 1.0]]), np.zeros(count, dtype=np.int64)

    def drawn(words: np.ndarray) -> bool:
        words[0], noise = 1, np.zeros((count, 1))  # the first word is the position of the next
        done = randomize(LAPLACE, row, noise, words)
        out[:] = noise[:, 0]
        noise[:] = 0
        return done == count

    _fill(rng, out, drawn)
    return out


def _fill(rng: FreshRng, out: np.ndarray, drawn: Callable[[np.ndarray], bool]) -> None:
    """Fill `out` by a function of random words, which says whether they were enough."""
    size = 2 * len(out) + 64
    while True:
        before = forks()
        words = rng.draw(size)
        enough = drawn(words)
        words[:] = 0
        if enough and forks() == before:  # otherwise a parent and its child would have the same noise
            return
        size *= 2


def _stretch(mechanism: Mechanism, sensitivity: float, d: int) -> float:
    """reach(s) / reach(S) of additive noise: the factor by which epsilon or mu grows if S becomes s."""
    from streamdp.privacy.samplers import GRID

    rounding = math.sqrt(d) * mechanism.rows(d)[0, GRID]
    return float((sensitivity * ARITHMETIC + rounding) / ((mechanism.sensitivity or 0.0) * ARITHMETIC + rounding))


class Laplace(Mechanism):
    """Laplace noise of scale b = sqrt(d) S / epsilon on every coordinate: epsilon-DP.

    Claim. The answers are epsilon-DP. Their total variance is 2 d b^2.

    Proof: docs/proofs/noise.md. Source: Shi et al. 2025, Example 1; Dwork et al. 2006.

    >>> round(Laplace(PureDP(1)).variance(6), 2)
    288.0
    """

    name = "laplace"
    code = 1
    serves = (PureDP,)

    def _guarantee(self, sensitivity: float, d: int) -> PureDP:
        return PureDP(amount(self.budget) * _stretch(self, sensitivity, d))

    def variance(self, d: int) -> float:
        return 2 * d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        epsilon = np.atleast_1d(amount(self.budget) if amounts is None else amounts)
        return _additive(self, math.sqrt(d), 2.0, d, epsilon, epsilon if answers else None)


class Gaussian(Mechanism):
    """Gaussian noise N(0, sigma^2) on every coordinate: mu-GDP with sigma = S / mu, or (epsilon, delta)-DP.

    Claim. The answers are mu-GDP. For an (epsilon, delta) budget, mu is the largest one whose delta_mu(epsilon) is at
    most delta, so the noise is the least that suffices, at every epsilon.

    Proof: docs/proofs/noise.md. Source: Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 1.

    >>> round(Gaussian(ApproxDP(1, 1e-5)).variance(6), 1)
    334.0
    >>> round(Gaussian(GaussianDP(1)).variance(6), 2)
    24.0
    """

    name = "gaussian"
    code = 2
    serves = (ApproxDP, GaussianDP)

    def _guarantee(self, sensitivity: float, d: int) -> ApproxDP | GaussianDP:
        stretch = _stretch(self, sensitivity, d)
        if isinstance(self.budget, ApproxDP):
            return GaussianDP(_gdp_of(self.budget).mu * stretch).to_approx(self.budget.delta)
        return GaussianDP(amount(self.budget) * stretch)

    def variance(self, d: int) -> float:
        return d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        if isinstance(self.budget, ApproxDP):
            if amounts is not None:
                return solved(self, d, amounts)
            mu, amounts = np.array([_gdp_of(self.budget).mu]), np.array([amount(self.budget)])
        else:
            mu = amounts = np.atleast_1d(amount(self.budget) if amounts is None else amounts)
        return _additive(self, 1.0, 1.0, d, mu, amounts if answers else None)


@lru_cache(maxsize=4096)
def _gdp_of(budget: ApproxDP) -> GaussianDP:
    return GaussianDP.from_approx(budget)
