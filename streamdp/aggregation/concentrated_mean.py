"""Means of vectors that lie close together, one for each user: adaptive queries, outliers removed, (epsilon, delta)-DP.

Source: Asi and Liu, "User-level differentially private stochastic convex optimization: efficient algorithms with
optimal rates", 2023, Algorithms 1 and 2, Theorem 3.2. Each of T queries asks each of the n users for a vector. A noisy
test asks whether enough pairs of vectors are within `distance` (tau) of each other. If it fails, the run ends. If it
passes, vectors far from most others are left out, and the answer is the mean of the rest with Gaussian noise.

Neighbours: the records of one user are replaced by any others. Trust: the curator. Claim: the whole run is
(epsilon1 + epsilon2, delta2 + zeta)-DP, however far apart vectors are.

Proof, and what differs from the paper: docs/proofs/concentrated_mean.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy

from streamdp.aggregation.selection import WeightedMean, near_counts
from streamdp.errors import ConfigError, QueriesExhaustedError
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP
from streamdp.privacy.mechanisms import Gaussian, Laplace, Mechanism, calibrated, round_down

LEAST_EPSILON = 2.0**-14  # of all tests together; below it their grid would not be small against their sensitivity


@dataclass(frozen=True)
class AboveThreshold:
    """A test of adaptive scores that ends at the first score below a threshold: epsilon-DP for all tests together.

    A score has sensitivity below 2. The threshold gets noise once, with 3/8 of epsilon, each score with 5/8. Source:
    Asi and Liu 2023, Algorithm 1; Dwork and Roth 2014, Theorem 3.24. Proof: docs/proofs/concentrated_mean.md.

    `epsilon` is at least 2^-14, `threshold` in (0, users], and the number of users is the largest score. Raises
    `ConfigError` for parameters out of range.
    """

    epsilon: float
    threshold: float
    users: int

    def __post_init__(self) -> None:
        if self.epsilon < LEAST_EPSILON or not 0 < self.threshold <= self.users:
            raise ConfigError("expected an epsilon of at least 2^-14 and a threshold of at most n")

    @cached_property
    def level_noise(self) -> Laplace:
        """The noise of the threshold."""
        return Laplace(PureDP(self.epsilon * 3 / 8), 4.0 * self.users, 2.0 + self._grid)

    @cached_property
    def score_noise(self) -> Laplace:
        """The noise of every score."""
        return Laplace(PureDP(self.epsilon * 5 / 8), 4.0 * self.users, 4.0 + self._grid)

    @property
    def _grid(self) -> float:
        """More than the scores' grid, which is at most 2^-20 of A."""
        return 2.0**-17 / self.epsilon

    def level(self, rng: Rng) -> float:
        """The noisy threshold, which is drawn once."""
        return float(self.level_noise.randomize(np.array([self.threshold]), rng)[0])

    def passes(self, score: float, level: float, rng: Rng) -> bool:
        """Whether the noisy score is at least the noisy threshold `level`; the true score is from 0 to n."""
        return bool(self.score_noise.randomize(np.array([score]), rng)[0] >= level)

    def chance(self, margin: float, queries: int) -> float:
        """A bound on the probability that noise moves one of `queries` scores by a margin >= 0, in one direction."""
        scale, factor = self._tail
        return queries * factor * math.exp(-margin / scale)

    def margin(self, chance: float, queries: int) -> float:
        """The least margin that noise on `queries` scores exceeds with a probability of at most `chance`, in (0, 1)."""
        scale, factor = self._tail
        return scale * math.log(queries * factor / chance)

    @cached_property
    def _tail(self) -> tuple[float, float]:
        """A and A^2 / (2 (A^2 - B^2)), about 6.4 / epsilon and 18/11; the grid of noise and scores included."""
        score, level = (4 + 3 * self._grid) / (self.epsilon * 5 / 8), (2 + 3 * self._grid) / (self.epsilon * 3 / 8)
        return score, (1 + 2.0**-16) / (2 * (1 - (level / score) ** 2))


@dataclass(frozen=True)
class ConcentratedMean:
    """The parameters of a run, fixed before the first query; public. Make one by `planned`.

    All tests and answers together spend the budget. `queries` is T, `distance` is tau, and `bound` is the largest l2
    norm of a vector (d,). The selection says which users count in a mean.
    """

    budget: ApproxDP
    d: int
    queries: int
    bound: float
    distance: float
    test: AboveThreshold
    selection: WeightedMean

    @classmethod
    def planned(
        cls,
        budget: ApproxDP,
        users: int,
        d: int,
        queries: int,
        bound: float,
        distance: float,
        outliers: float,
        failure: float,
        selection: type[WeightedMean] = WeightedMean,
    ) -> "ConcentratedMean | None":
        """The parameters with the least noise for n users; None if n is too small.

        `outliers` is the probability that the vectors of two users are further than tau (`distance`) apart, `failure`
        the largest probability that such vectors fail any test. `selection` makes the selection. The search is a
        grid over the test's share of epsilon and zeta's share of delta, for the budget, d, queries and bound of the
        class.
        """
        if users < 2:
            return None
        share = far_share(outliers, users, failure / (2 * queries))
        best = None
        for part in _TEST_SHARES:
            if part * budget.epsilon < LEAST_EPSILON:
                continue
            test = AboveThreshold(part * budget.epsilon, float(users), users)
            passing = share * (users - 1) + test.margin(failure / 2, queries)
            if passing >= users / 2:  # half of all pairs far: no selection has a proof there
                continue
            test = AboveThreshold(test.epsilon, users - passing, users)
            for unsafe in _UNSAFE_SHARES:
                zeta = unsafe * budget.delta
                far = users * (passing + test.margin(zeta, queries))
                kind = selection(users, far, 0.0 if selection is WeightedMean else zeta / queries)
                if math.isfinite(kind.sensitivity):
                    mean = cls(budget, d, queries, bound, distance, test, kind)
                    best = mean if best is None or mean.noise < best.noise else best
        assert best is None or best.answer  # what cannot be calibrated is an error now
        return best

    @property
    def users(self) -> int:
        """n, the number of users."""
        return self.selection.users

    @property
    def zeta(self) -> float:
        """zeta: the probability that a test passes at a query that is not good."""
        return self.test.chance(self.test.threshold - self.users + self.selection.far / self.users, self.queries)

    @cached_property
    def mu(self) -> float:
        """mu of all answers together: the rest of the budget after tests and failures."""
        delta = self.budget.delta - self.zeta - self.queries * self.selection.failure
        return _largest_mu(self.budget.epsilon - self.test.epsilon, delta)

    @property
    def sensitivity(self) -> float:
        """The l2 sensitivity of one answer, rounding errors included.

        Nearness is rounded by a relative (d + 2) 2^-54, and a weighted mean of n vectors by about 2 n 2^-53 of the
        bound, in D and in D'. More than that is added for both.
        """
        tau = self.distance * (1 + (self.d + 8) * 2.0**-53)
        return min(tau * self.selection.sensitivity + self.users * self.bound * 2.0**-50, 2 * self.bound)

    @property
    def noise(self) -> float:
        """sigma of a coordinate of an answer, without the grid."""
        return self.sensitivity * math.sqrt(self.queries) / self.mu

    @cached_property
    def answer(self) -> Mechanism:
        """The noise of one answer."""
        return calibrated(Gaussian, GaussianDP(self.mu / math.sqrt(self.queries)), self.bound, self.sensitivity)


class QueryRun:
    """One run of at most T queries. A second run with the same users spends a second budget, so do not copy a run.

    Guarantee: (epsilon, delta)-DP for the budget of `mean`, if the vectors of one user are replaced by any others of
    norm at most `bound`. Source: Asi and Liu 2023, Algorithm 2; the proof is docs/proofs/concentrated_mean.md.
    """

    def __init__(self, mean: ConcentratedMean, rng: Rng) -> None:
        self._mean, self._rng, self._left = mean, rng, mean.queries
        self._level = mean.test.level(rng)

    def of(self, points: np.ndarray) -> np.ndarray | None:
        """The answer (d,) to a query about points (n, d); None if the test failed, and then the run has ended.

        Raises `QueriesExhaustedError` for a query after the last one, `ConfigError` for points of another shape.
        """
        mean = self._mean
        if self._left == 0:
            raise QueriesExhaustedError(f"a run of {mean.queries} queries is over, or its test has failed")
        if points.shape != (mean.users, mean.d):
            raise ConfigError(f"expected vectors of shape ({mean.users}, {mean.d}), got {points.shape}")
        self._left -= 1
        near = near_counts(points, mean.distance)
        if not mean.test.passes(float(near.mean()), self._level, self._rng):
            self._left = 0
            return None
        weights = mean.selection.weights(points, mean.distance, near, self._rng)
        centre = weights @ points / max(1e-300, float(weights.sum()))
        return mean.answer.randomize(centre, self._rng)


_TEST_SHARES = tuple(float(share) for share in np.geomspace(0.03, 0.9, 16))
_UNSAFE_SHARES = (0.01, 0.1, 0.4)


@lru_cache(maxsize=4096)
def _largest_mu(epsilon: float, delta: float) -> float:
    return GaussianDP.from_approx(ApproxDP(epsilon, float(round_down(np.array(delta))))).mu


@lru_cache(maxsize=4096)
def far_share(chance: float, users: int, risk: float) -> float:
    """The share of far pairs of n independent users that is exceeded with probability at most `risk`, in (0, 1).

    It is 1 if no smaller share q serves: P(share >= q) <= exp(-floor(n/2) KL(q, chance)), `chance` the probability that
    one pair is far, because the pairs can be divided into rounds of floor(n/2) disjoint pairs each (Hoeffding 1963,
    section 5).
    """
    target = -math.log(risk) / (users // 2)
    low, high = chance, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        divergence = scipy.special.rel_entr(middle, chance) + scipy.special.rel_entr(1 - middle, 1 - chance)
        low, high = (low, middle) if divergence >= target else (middle, high)
    return high
