"""Confidence intervals from one pass, from the path of theta.

The iterates are summed in at most `SEGMENTS` segments (`path`). Near theta* a parameter is an Ornstein-Uhlenbeck
process in the clock of `steps`, whose relaxation rate k is unknown. For each k in a grid the averages of the segments
are jointly normal with a known covariance (`covariance`), and their restricted likelihood is known. The k of all
parameters are drawn from one law; slow directions of two correlated columns show in the paths of sums and differences,
and in a few bits about pairs (`pair_bits`). The limits are quantiles of the mixture over k; NaN if a parameter moved
too little. They are post-processing and spend nothing.

The model, its sources and its limits: docs/proofs/intervals.md. `benchmarks/learning.md` has the coverage.
"""

import math

import numpy as np

from streamdp.errors import check_level
from streamdp.scaling.unit_table import SHORTEST

SEGMENTS = 32
LEAST_TIMES = 1.0
UNPAIRED = 1000.0
IN_PAIR = 0.5
SLOW = 0.36, 3.5
_FEWEST = 12
TIMES = np.geomspace(0.3, 300, 40)
_SPREADS = (0.1, 0.3, 0.6)
_FACTORS = 2.0 ** np.arange(-8, 7)
_ELSEWHERE = 0.1
_LEAST_NOISE = 0.05
_SMALL = np.linspace(-0.3, 0.3, 21)
_LEAST_PART = 1e-5  # of a segment in all of a path; covariances are positive definite
_MOST = 300.0  # of the logarithm of odds


def path_intervals(
    segments: np.ndarray,
    rates: np.ndarray,
    noises: np.ndarray,
    distances: np.ndarray,
    correlations: np.ndarray,
    inverses: np.ndarray,
    signs: np.ndarray,
    level: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The confidence limits of theta*, NaN where not settled, and for how many relaxation times each parameter moved.

    Of K segments, `segments` (K, d + 1) are the sums of the iterates with their weights and the sum of the weights,
    `rates` (K, d) > 0 the integrals of a, and `noises` (K, d) > 0 those of b^2, the variance that noise alone would
    add. `distances` (d,) > 0 are expected from the first theta to theta*, and `correlations` (d, d) those of the noise.
    `inverses` (2, d) > 0 are the expected diagonals of H^-1 and H^-2, H the Hessian up to a factor, in units in which
    the a of all parameters are alike. `signs` (2, d, d) are the sum t of the bits about two parameters' columns, and
    their information n >= 0; `UNPAIRED` for two that share no slow direction.

    Returns (d, 2) and (d,); the second is NaN too if there are too few segments, or if theta did not move. Raises
    `ConfigError` for a confidence level outside (0, 1).
    """
    check_level(level)
    d, left = segments.shape[1] - 1, _first(segments)
    limits, times = np.full((d, 2), np.nan), np.full(d, np.nan)
    paths, lengths, noises = segments[left:, :-1], segments[left:, -1], noises[left:]
    if len(lengths) < _FEWEST:
        return limits, times
    paths = paths / lengths[:, None]
    moving = np.ptp(paths, axis=0) > 0
    if not moving.any():
        return limits, times
    rates, noises = rates[:, moving], noises[:, moving]
    totals, units = rates[left:].sum(axis=0), np.sqrt(noises.sum(axis=0))
    public = np.concatenate(
        [
            [rates[:left].sum(axis=0) / totals, (distances[moving] / units) ** 2],
            np.maximum(rates[left:] / totals, _LEAST_PART),
            np.maximum(noises / units**2, _LEAST_PART),
        ]
    )
    paths = paths[:, moving] / units
    alike, which = np.unique(public.astype(np.float32), axis=1, return_inverse=True)
    fits = [_Fit(paths, one.astype(float)) for one in alike.T]
    columns = np.arange(len(which))
    centres = np.stack([fit.centres for fit in fits])[which, :, columns].T
    squares = np.stack([fit.squares for fit in fits])[which, :, columns].T
    constants = np.stack([fit.constants for fit in fits])[which].T
    first, second = inverses[:, moving]
    weights, law, factor = _posterior(squares, constants, len(lengths), np.log(totals / np.median(totals) / first))
    times[moving] = np.exp(np.log(TIMES) @ weights)
    centre, slow = np.sum(weights * centres, axis=0), np.sqrt(second) / first
    errors = slow * math.sqrt(factor) * np.stack([fit.errors for fit in fits])[which].T
    own = np.sum(weights * errors**2, axis=0)
    middle = _Fit(paths, public.mean(axis=1)) if len(fits) > 1 else fits[0]
    odds, moves, parts = _slow_pairs(
        middle, centre, law, factor, correlations[np.ix_(moving, moving)], signs[:, moving][:, :, moving]
    )
    both = np.concatenate([weights, odds]) / (1 + odds.sum(axis=0))
    centres = centre + np.concatenate([slow * (centres - centre), moves])
    paired = np.sqrt(parts * factor * middle.errors[:, None] ** 2 + np.minimum(own, np.median(own)) / 2)
    errors = np.concatenate([errors, paired])
    found = np.column_stack([quantile(both, centres, errors, p) for p in ((1 - level) / 2, (1 + level) / 2)])
    found[times[moving] < LEAST_TIMES] = np.nan
    if lengths.sum() >= SHORTEST:
        limits[moving] = found * units[:, None]
    return limits, times


def records_to_settle(times: np.ndarray, seen: int, lengths: np.ndarray, alpha: float) -> np.ndarray:
    """Return (d,) about how many records settle each parameter, NaN if not known, from the `times` that they moved.

    So far `seen` records were learned, and the clock moved by `lengths` (K,) in the segments; the steps are T^-alpha.
    It is an extrapolation: the number of relaxation times grows as n^(1 - alpha).
    """
    more = np.maximum(LEAST_TIMES / times, 1.0) ** (1 / max(1 - alpha, 0.1))
    return np.asarray(seen * np.maximum(more, SHORTEST / max(lengths[_first(lengths) :].sum(), 1e-9)))


def _first(segments: np.ndarray) -> int:
    """The first of the segments that are used: an eighth is left out."""
    return -(-len(segments) // 8)


class _Fit:
    """Restricted likelihoods of paths for each k, given what is public: (2 + 2 K,) numbers.

    These are k before the path in units of k, the expected square of the distance from the first theta, and the shares
    of the K segments in a and in the noise.

    `centres` (grid, d) are the estimates of theta* and, for noise 1, `errors` (grid,) their standard errors. `rest`
    (grid, K, d) is what remains of the paths, as independent numbers with the variance of the noise. `squares` (grid,
    d) are its sums of squares, and `constants` (grid,) the rest of the logarithm of the likelihood.
    """

    def __init__(self, paths: np.ndarray, public: np.ndarray) -> None:
        factor = np.linalg.cholesky(covariance(*public[:2], *np.split(public[2:], 2)))
        both = np.column_stack([np.ones(len(paths)), paths])
        white = np.linalg.solve(factor, np.broadcast_to(both, (len(factor), *both.shape)))
        one, rest = white[:, :, :1], white[:, :, 1:]
        information = np.sum(one**2, axis=1)
        self.centres = np.sum(one * rest, axis=1) / information
        self.errors = 1 / np.sqrt(information[:, 0])
        self.rest = rest - one * self.centres[:, None]
        self.squares = np.sum(self.rest**2, axis=1)
        self.constants = -np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1) - np.log(information[:, 0]) / 2


def covariance(before: float, square: float, passed: np.ndarray, added: np.ndarray) -> np.ndarray:
    """The covariances (grid, K, K) of the averages over K segments, for noise 1.

    `before`, `square`, `passed` and `added` are those of `_Fit`: `passed` and `added` (K,) are the shares of the
    segments in a and in the noise. At the start the variance is the stationary one, and what is left of the expected
    `square`, e^(-2 k before) of it.

    Within a segment the rate is constant: with r its number of relaxation times, x at its start and v the variance that
    noise alone would add, x becomes e^-r x plus a variance v (1 - e^-2r)/2r, and the average is f x, f = (1 - e^-r)/r,
    plus a variance v (2r - 3 + 4 e^-r - e^-2r)/2r^3, with a covariance v f^2/2 between the two.
    """
    r = np.outer(TIMES, passed)
    keep, f = np.exp(-r), -np.expm1(-r) / r
    total = np.cumsum(r, axis=1) - r
    series = 1 / 3 - r / 4 + 7 * r**2 / 60
    own = added * np.where(r < 0.03, series, (2 * r - 3 + 4 * keep - keep**2) / (2 * np.maximum(r, 0.01) ** 3))
    out = np.empty((*r.shape, r.shape[1]))
    variance = added[0] / (2 * r[:, 0]) + square * np.exp(-2 * before * TIMES)
    for j in range(r.shape[1]):
        out[:, j, j] = f[:, j] ** 2 * variance + own[:, j]
        after = keep[:, j] * f[:, j] * variance + added[j] * f[:, j] ** 2 / 2
        later = f[:, j + 1 :] * np.exp(total[:, j : j + 1] + r[:, j : j + 1] - total[:, j + 1 :]) * after[:, None]
        out[:, j, j + 1 :] = out[:, j + 1 :, j] = later
        variance = keep[:, j] ** 2 * variance - added[j] * np.expm1(-2 * r[:, j]) / (2 * r[:, j])
    return out


def _posterior(
    squares: np.ndarray, constants: np.ndarray, count: int, expected: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The posterior (grid, d) of k of each parameter, the law (grid, d) it is from, and the noise's likeliest factor.

    `expected` (d,) are the expected differences of ln k, which are rounded to steps of the grid.
    """
    grid = np.log(TIMES)
    steps, kind = np.unique(np.rint(expected / (grid[1] - grid[0])), return_inverse=True)
    laws = np.stack([_laws(grid - step * (grid[1] - grid[0])) for step in steps])
    evidences, likelihoods = [], []
    for factor in _FACTORS:
        logs = constants - squares / (2 * factor) - (count - 1) / 2 * math.log(factor)
        top = logs.max(axis=0)
        likelihood = np.exp(logs - top)
        evidence = np.einsum("dlg,gd->ld", laws[kind], likelihood)
        believed = 0.5 if factor == 1 else 0.5 / (len(_FACTORS) - 1)
        evidences.append(np.log(evidence).sum(axis=1) + top.sum() + math.log(believed))
        likelihoods.append((likelihood, evidence))
    best = int(np.argmax([np.logaddexp.reduce(e) for e in evidences]))
    (likelihood, evidence), shared = likelihoods[best], evidences[best]
    shared = np.exp(shared - np.logaddexp.reduce(shared))
    weights = likelihood * np.einsum("dlg,ld->gd", laws[kind], shared[:, None] / evidence)
    return weights / weights.sum(axis=0), np.einsum("dlg,l->gd", laws[kind], shared), float(_FACTORS[best])


def _laws(place: np.ndarray) -> np.ndarray:
    """The laws of ln k (laws, grid): each has a mean on the grid and a spread. `place` is where the points now are."""
    grid = np.log(TIMES)
    laws = np.concatenate([np.exp(-(((place - grid[:, None]) / spread) ** 2) / 2) for spread in _SPREADS])
    laws /= np.maximum(laws.sum(axis=1, keepdims=True), 1e-9)
    return (1 - _ELSEWHERE) * laws + _ELSEWHERE / len(grid)


def _slow_pairs(
    fit: _Fit, centre: np.ndarray, law: np.ndarray, factor: float, correlations: np.ndarray, signs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The odds (grid, d) that a parameter is in a slow pair with this k, against none, and what follows for it.

    It is how far the parameter's centre moves then, and its share of the direction's variance: (grid, d) each, on
    average over the pairs. `correlations` (d, d) are those of the noise, and `signs` are as for `path_intervals`.
    """
    d, grid = len(centre), np.log(TIMES)[:, None]
    odds, moves, shares = np.zeros((3, len(grid), d))
    for i in range(d):
        j = np.flatnonzero(np.arange(d) != i)
        usual = (law[:, [i]] + law[:, j]) / 2
        below = np.sum(grid * usual, axis=0) - grid
        slow = ((below >= SLOW[0]) & (below <= SLOW[1])).astype(float)
        slow /= np.maximum(slow.sum(axis=0), 1.0)
        products = (fit.rest[:, None, :, i] @ fit.rest)[:, 0, j]
        off = fit.centres - centre
        for sign in (1, -1):
            noise = np.maximum(1 + sign * correlations[i, j], _LEAST_NOISE)
            squares = ((fit.squares[:, [i]] + fit.squares[:, j]) / 2 + sign * products) / noise
            logs = fit.constants[:, None] - squares / (2 * factor)
            likelihood = np.exp(logs - logs.max(axis=0))
            odd = slow * likelihood / np.sum(usual * likelihood, axis=0)
            odd *= _odds_of_signs(signs[:, i, j], sign * np.expm1(-np.maximum(below, 0.0)))
            odds[:, i] += odd.sum(axis=1)
            moves[:, i] += np.sum(odd * (off[:, [i]] + sign * off[:, j]), axis=1) / 2
            shares[:, i] += np.sum(odd * noise, axis=1) / 2
    least = np.maximum(odds, np.finfo(float).tiny)
    return odds * IN_PAIR / (1 - IN_PAIR) / max(2 * (d - 1), 1), moves / least, shares / least


def _odds_of_signs(signs: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """How much likelier the bits about m pairs are if the correlations are rho (grid, m) than if they are small."""
    total, information = signs

    def logarithm(at: np.ndarray) -> np.ndarray:
        expected = 2 / math.pi * np.arcsin(at)
        return np.asarray(expected * (total - information * expected / 2))

    small = np.logaddexp.reduce(logarithm(_SMALL[:, None]), axis=0) - math.log(len(_SMALL))
    return np.exp(np.minimum(logarithm(rho) - small, _MOST))


def quantile(weights: np.ndarray, centres: np.ndarray, errors: np.ndarray, p: float) -> np.ndarray:
    """The quantiles (d,) at p of mixtures of normal laws, whose `weights`, `centres` and `errors` are (grid, d)."""
    points = np.linspace(-8, 8, 1601)
    normal = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in points])
    low, high = (centres - 8 * errors).min(axis=0), (centres + 8 * errors).max(axis=0)
    for _ in range(50):
        middle = (low + high) / 2
        below = np.sum(weights * np.interp((middle - centres) / errors, points, normal), axis=0) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
