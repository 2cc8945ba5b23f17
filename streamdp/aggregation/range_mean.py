"""The mean of vectors that lie close together, one vector for each user, for a curator that sees all vectors.

Source: Bassily and Sun, "User-level private stochastic convex optimization with optimal rates", 2023, Algorithms 1 and
6 and Theorem 4.1, after Levy et al., "Learning with user-level privacy", 2021. The exponential mechanism chooses a bin
near the median of each rotated coordinate; offsets from that centre are clipped to C, and their sum gets noise.

All users take part (rate 1), or each is drawn independently with a public probability, the rate. Neighbours: one user's
vector is replaced (rate 1), or left out (rate below 1). Trust: the curator. Claim: one mean is mu-GDP.

Proof, and what differs from the paper: docs/proofs/range_mean.md.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streamdp.aggregation.local_mean import centre_of, check_vectors, pure_epsilon, rotated
from streamdp.errors import ConfigError
from streamdp.privacy.entropy import Rng, draw, uniform
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms import Gaussian

MOST_USERS = 2**31
_MOST_BINS = 4096
_TABLE = 2**24  # bins of all coordinates together
_HALF_BIN = 0.5  # in root mean squares of a coordinate: costs a twentieth of C; bins count by their logarithm only
_GRID_BITS = 20  # with MOST_USERS, whole-number sums stay below 2^53
_CELLS = 2**22  # of the arrays with a row for each user
_SHARES = np.geomspace(0.02, 0.9, 20)


@dataclass(frozen=True)
class RangeMean:
    """The parameters of a mean; public. Make one by `planned`.

    One mean spends `mu`: mu-GDP for a user that is replaced (rate 1) or left out (rate below 1). `bound` is L, the
    largest l2 norm of a vector (d,), from 1e-60 to 1e60, and `sensitivity` S, the largest l2 distance of two, at most 2
    L; d is at most 10^6. n is the number of users, at most 2^31, and `rate` in (0, 1] the probability that one is
    drawn. `share` in [0, 1) is that of mu^2 which the choices of bins spend; if it is 0, no bin is chosen and the
    centre is zero. Only accuracy depends on `spread`, s in (0, L], the root mean square distance of a user's vector
    from the mean, and on `failure` in (0, 1), the probability that the centre is further away than `offset`.

    Raises `ConfigError` for parameters out of range, and for a share that is too small for n users.
    """

    mu: float
    bound: float
    sensitivity: float
    d: int
    users: int
    rate: float
    spread: float
    share: float = 0.0
    failure: float = 0.01

    def __post_init__(self) -> None:
        check_vectors(self, MOST_USERS)
        if not (0 < self.rate <= 1 and 0 < self.failure < 1 and self.mu > 0):
            raise ConfigError("expected a rate in (0, 1], a failure in (0, 1) and a positive mu")
        if not 0 <= self.share < 1 or (self.share and not self.slack < 0.5):
            raise ConfigError("share: expected from 0 to 1, and enough users to choose bins by it")

    @classmethod
    def planned(
        cls,
        mu: float,
        bound: float,
        sensitivity: float,
        d: int,
        users: int,
        rate: float,
        spread: float,
        failure: float = 0.01,
    ) -> "RangeMean":
        """The share with the least variance, 0 if none lowers it.

        The mu, bound, sensitivity, d, users, rate, spread and failure are those of the class.
        """
        plain = cls(mu, bound, sensitivity, d, users, rate, min(spread, bound), 0.0, failure)
        usable = [replace(plain, share=float(share)) for share in _SHARES if plain._slack_of(float(share)) < 0.5]
        return min([plain, *usable], key=lambda mean: mean.variance)

    # -- what follows ------------------------------------------------------------------------------------------------

    @cached_property
    def padded(self) -> int:
        """D, the least power of two that is at least d."""
        return 1 << (self.d - 1).bit_length()

    @property
    def batch(self) -> float:
        """rate n, the expected number of users."""
        return self.rate * self.users

    @cached_property
    def reach(self) -> float:
        """The bins of every coordinate cover [-reach, reach]; values outside count in the outer bins."""
        return self.bound * min(1.0, math.sqrt(2 * math.log(6 * self.padded / self.failure) / self.padded))

    @cached_property
    def bins(self) -> int:
        """t, from 2 to 4096; fewer and wider bins if their table would be too large."""
        most = min(_MOST_BINS, max(2, _TABLE // self.padded))
        return max(2, min(most, math.ceil(self.reach * math.sqrt(self.padded) / (_HALF_BIN * self.spread))))

    @property
    def steepness(self) -> float:
        """b of the weights e^(-b c)."""
        return self._steepness_of(self.share)

    def _steepness_of(self, share: float) -> float:
        choice = GaussianDP(self.mu * math.sqrt(share / self.padded))
        length = 2 * pure_epsilon(choice) * (1 - 2.0**-30)  # of the range; below any rounding error
        return length / 2 if self.rate == 1 else length

    @property
    def slack(self) -> float:
        """u: with probability 1 - `failure` every chosen bin has c(x) <= (1/2 + u) k."""
        return self._slack_of(self.share)

    def _slack_of(self, share: float) -> float:
        least = self.batch
        if self.rate < 1:
            least -= math.sqrt(2 * self.batch * math.log(3 / self.failure))
        if least <= 0:
            return math.inf
        return math.log(3 * self.padded * self.bins / self.failure) / (self._steepness_of(share) * least)

    @property
    def offset(self) -> float:
        """The distance of the centre from the mean of the drawn users, with probability 1 - `failure`."""
        if not self.share:
            return self.bound
        half_bin = self.reach / self.bins
        tail = math.sqrt((0.5 + self.slack) / (0.5 - self.slack))
        return half_bin * math.sqrt(self.padded) + tail * self.spread

    @property
    def _deviation(self) -> float:
        return math.sqrt(2 * math.log(max(2.0, self.batch)))  # v

    @cached_property
    def radius(self) -> float:
        """C: offsets are clipped to this norm."""
        if not self.share:
            return self.bound
        return min(self.offset + self.spread * (1 + self._deviation), 2 * self.bound)

    @property
    def grid(self) -> float:
        """h: offsets are rounded to multiples of h."""
        return 2.0 ** (math.floor(math.log2(self.radius)) - _GRID_BITS)

    @cached_property
    def noise(self) -> Gaussian:
        """The noise on the sum of offsets."""
        rounding = math.sqrt(self.d) * self.grid
        moved = min(2 * self.radius, self.sensitivity) if self.rate == 1 else self.radius
        most = (self.radius + rounding) * self.users
        return Gaussian(GaussianDP(self.mu * math.sqrt(1 - self.share)), most, min(moved + rounding, 2 * most))

    @property
    def variance(self) -> float:
        """The largest E||error||^2 without the `bias`, as an estimate of the mean of all n vectors.

        It has two parts: the noise, and the sampling of users, which changes the sum by the length of an offset.
        """
        length = self.offset + self.spread if self.share else self.bound
        return self.noise.variance(self.d) / self.batch**2 + (1 - self.rate) / self.batch * length**2

    @property
    def bias(self) -> float:
        """The largest change of the mean by clipping offsets to C."""
        return self.spread * math.exp(-(self._deviation**2) / 2) / self._deviation if self.share else 0.0

    # -- the curator's side ------------------------------------------------------------------------------------------

    def counts(self, vectors: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """The number of vectors (k, d), rotated with the signs (D,), in each bin: (D, t)."""
        counts = np.zeros(self.padded * self.bins, dtype=np.int64)
        first = np.arange(self.padded) * self.bins
        rows = max(1, _CELLS // self.padded)
        for begin in range(0, len(vectors), rows):
            values = rotated(vectors[begin : begin + rows], signs)
            values += self.reach
            values *= self.bins / (2 * self.reach)
            np.clip(values, 0, self.bins - 1, out=values)
            places = values.astype(np.int64)
            places += first
            counts += np.bincount(places.ravel(), minlength=len(counts))
            values[...] = 0
            places[...] = 0
        return counts.reshape(self.padded, self.bins)

    @staticmethod
    def costs(counts: np.ndarray) -> np.ndarray:
        """c (D, t), from the counts (D, t) of users in each bin."""
        up_to = np.cumsum(counts, axis=1)
        return np.maximum(up_to - counts, up_to[:, -1:] - up_to)

    def choose(self, costs: np.ndarray, rng: Rng) -> np.ndarray:
        """A bin (D,) for every row of costs (D, t), by the exponential mechanism."""
        least = costs.min(axis=1, keepdims=True)
        cumulative = np.cumsum(np.exp(-self.steepness * (costs - least)), axis=1)
        with rng.lock:
            words = draw(rng, len(costs))
        points = uniform(words)
        chosen = np.count_nonzero(cumulative <= points[:, None] * cumulative[:, -1:], axis=1)
        words[:] = points[:] = cumulative[:] = 0
        return np.minimum(chosen, costs.shape[1] - 1)

    def centre(self, vectors: np.ndarray, rng: Rng) -> np.ndarray:
        """The centre (d,) of vectors (k, d): the middles of the chosen bins, rotated back, projected onto the ball."""
        with rng.lock:
            words = draw(rng, (self.padded + 63) // 64)
        signs = 1.0 - 2.0 * np.unpackbits(words.view(np.uint8))[: self.padded]
        counts = self.counts(vectors, signs)
        costs = self.costs(counts)
        bins = self.choose(costs, rng)
        words[:] = counts[:] = costs[:] = 0
        return centre_of(self, bins, self.bins, signs)

    def estimate(self, vectors: np.ndarray, rng: Rng) -> np.ndarray:
        """The private mean (d,) of the vectors (k, d) of the drawn users, which are overwritten with zeros.

        Raises `ConfigError` if a vector is longer than the bound or not finite.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.d or len(vectors) > self.users:
            raise ConfigError(f"expected at most {self.users} vectors of {self.d} numbers")
        norms, centre = np.zeros(len(vectors)), np.zeros(self.d)
        try:
            _measure(vectors, norms)
            if not np.all(norms <= self.bound * (1 + 1e-9)):
                raise ConfigError(f"vectors must be finite and of l2 norm at most {self.bound:g}")
            if self.share:
                centre = self.centre(vectors, rng)
                vectors -= centre
                _measure(vectors, norms)
            vectors *= (np.minimum(1.0, self.radius / np.maximum(norms, 1e-300)) / self.grid)[:, None]
            total = np.rint(vectors, out=vectors).sum(axis=0) * self.grid
        finally:
            vectors[...] = 0
            norms[...] = 0
        noisy = self.noise.randomize(total, rng)
        total[...] = 0
        return centre + noisy / self.batch


def _measure(vectors: np.ndarray, out: np.ndarray) -> None:
    """Write the l2 norms of vectors (k, d) into out (k,)."""
    np.sqrt(np.einsum("ij,ij->i", vectors, vectors, out=out), out=out)
