"""The mean of vectors that lie close together, one vector for each user, under local differential privacy.

Source: Bassily and Sun, "User-level private stochastic convex optimization with optimal rates", 2023, Algorithms 1 to 3
and Theorem 4.3. Each user answers one of two questions: *coarse* users name, by randomised response, the interval of
one coordinate of the rotated vector; the centre follows. *Fine* users add noise to the offset from the centre, which
is cut to the radius C.

Neighbours: one user's vector is replaced by any other of norm at most `bound`. Trust: nobody. Claim: every report keeps
the whole budget. How close vectors are concerns accuracy only.

Proof, and what differs from the paper: docs/proofs/local_mean.md.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import shake_256
from typing import Any

import numpy as np
import scipy

from streamdp.errors import ConfigError, SchemaError
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, check_serviceable
from streamdp.privacy.mechanisms import Mechanism, PrivUnit, calibrated, mechanism_for, randomize_rows
from streamdp.privacy.mechanisms.privunit import arithmetic_delta

FAILURE = 0.01
"""The probability that the centre of a batch is wrong, for the votes and for the signs each. Only the accuracy of that
step depends on it."""

_MOST_INTERVALS = 4096
_HALF_WIDTH = 3.0  # in root mean squares of a coordinate
_GAP = 1 / 3  # 4/9 - 1/9, see docs/proofs/local_mean.md


def pure_epsilon(budget: Budget) -> float:
    """The largest epsilon such that epsilon-DP implies the budget.

    For mu-GDP it inverts `GaussianDP.from_pure`: epsilon = ln(Phi(mu/2) / Phi(-mu/2)).

    >>> from streamdp import PureDP
    >>> round(pure_epsilon(GaussianDP.from_pure(PureDP(1.5))), 6)
    1.5
    """
    if isinstance(budget, GaussianDP):
        return float(scipy.special.log_ndtr(budget.mu / 2) - scipy.special.log_ndtr(-budget.mu / 2))
    return budget.epsilon


def pure_allowed(budget: ApproxDP, d: int) -> bool:
    """Return whether PrivUnit in R^d at the epsilon of a budget keeps the budget, with its arithmetic counted."""
    return arithmetic_delta(budget, d) <= budget.delta


def check_vectors(mean: Any, most: int) -> None:
    """Raise `ConfigError` if what a `mean` says of its vectors is out of range; `most`: the most users."""
    if not (1e-60 <= mean.bound <= 1e60 and 0 < mean.sensitivity <= 2 * mean.bound * (1 + 1e-9)):
        raise ConfigError("bound: expected from 1e-60 to 1e60, and a sensitivity of at most twice that")
    if not 1 <= mean.d <= 10**6 or not 1 <= mean.users <= most:
        raise ConfigError(f"expected d from 1 to 10^6 and users from 1 to {most}")
    if not 1e-60 <= mean.spread <= mean.bound * (1 + 1e-9):
        raise ConfigError(f"spread: expected from 1e-60 to the bound {mean.bound:g}, got {mean.spread}")


def rotated(vectors: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return vectors (n, d), rotated with the signs (D,): (n, D)."""
    from streamdp.aggregation.user_kernels import transform

    out, d = np.zeros((len(vectors), len(signs))), vectors.shape[1]
    out[:, :d] = vectors * signs[:d]
    transform(out)
    return out


def centre_of(mean: Any, chosen: np.ndarray, intervals: int, signs: np.ndarray) -> np.ndarray:
    """Return a vector (d,): the middles of the chosen (D,) of so many intervals, rotated back by the signs (D,).

    It is projected onto the ball of radius `bound`; the intervals cover [-reach, reach] of the `mean`.
    """
    from streamdp.aggregation.user_kernels import transform

    middles = ((2 * chosen[None, :] + 1) / intervals - 1) * mean.reach
    transform(middles)
    centre = (middles[0] * signs)[: mean.d]
    return np.asarray(centre * min(1.0, mean.bound / max(float(np.linalg.norm(centre)), 1e-300)))


@dataclass(frozen=True)
class IntervalResponse:
    """Randomized response over t intervals: a report names k of them, and epsilon-DP holds exactly.

    Source: Ye and Barg 2018; k = 1 is Warner's response for t intervals. Proof: docs/proofs/local_mean.md.

    `intervals` is t, from 2 to 4096; an epsilon above 30 is served as 30. Raises `ConfigError` for a t out of range.
    """

    epsilon: float
    intervals: int

    def __post_init__(self) -> None:
        if not 2 <= self.intervals <= _MOST_INTERVALS:
            raise ConfigError(f"intervals: expected from 2 to {_MOST_INTERVALS}, got {self.intervals}")

    @property
    def picks(self) -> int:
        """k, the number of intervals in a report."""
        return min(max(1, round(self.intervals / (math.exp(min(self.epsilon, 30.0)) + 1))), self.intervals - 1)

    @property
    def keep(self) -> int:
        """2^64 p, a whole number."""
        odds = self.picks * math.exp(min(self.epsilon, 30.0))
        return int(odds / (odds + self.intervals - self.picks) * (1 - 2.0**-50) * 2.0**64)

    @property
    def chances(self) -> tuple[float, float]:
        """The probabilities that a report names the true interval, and that it names a certain other one."""
        p, k, others = self.keep / 2.0**64, self.picks, self.intervals - 1
        return p, (p * (k - 1) + (1 - p) * k) / others

    def users_for(self, coordinates: int) -> int:
        """The users for each of D coordinates that find a right interval on all of them with probability 1 - `FAILURE`.

        For each user the difference of the votes for two intervals has a mean of at least (1/3)(p - q) and a variance
        of at most p + q; a normal bound and a union bound over all intervals.
        """
        p, q = self.chances
        return math.ceil(2 * math.log(self.intervals * coordinates / FAILURE) * (p + q) / (_GAP * (p - q)) ** 2)

    def randomize(self, truth: np.ndarray, rng: Rng) -> np.ndarray:
        """Reports (n, t) uint8 about the true intervals, `truth` (n,): 1 for each named interval.

        Raises `SchemaError` for intervals outside 0 to t - 1.
        """
        from streamdp.aggregation.user_kernels import name_intervals

        truth = np.ascontiguousarray(truth, dtype=np.int64)
        if truth.ndim != 1 or (len(truth) and not 0 <= truth.min() <= truth.max() < self.intervals):
            raise SchemaError(f"expected intervals from 0 to {self.intervals - 1}")
        out = np.zeros((len(truth), self.intervals), dtype=np.uint8)
        with rng.lock:
            rng.serve(lambda told, rest, words: name_intervals(told, self.picks, self.keep, rest, words), truth, out)
        return out


@dataclass(frozen=True)
class UserMean:
    """The parameters on which learner and users agree before a mean; public. Make one by `planned`.

    One report may spend the budget: ApproxDP or GaussianDP (Gaussian noise), or PureDP (PrivUnit; also at the epsilon
    of an ApproxDP budget if `pure`: see `pure_allowed`). `bound` is L, the largest l2 norm of a vector (d,), from 1e-60
    to 1e60, and `sensitivity` S, the largest l2 distance of two, at most 2 L; d is at most 10^6. `coarse` users, at
    most half, answer the coarse question; if it is 0, the fine question is around zero, with `cut` as its C, from 1e-60
    to L; None for L. `spread` is s in (0, L], the root mean square distance of a user's vector from the mean. Only
    accuracy depends on spread and cut: see `estimators.user`.

    Raises `ConfigError` for parameters out of range, `BudgetError` for a budget that cannot be served. Noise follows
    from these numbers alone, so a user that checks `bound`, `sensitivity` and `budget` may rely on it.
    """

    budget: Budget
    bound: float
    sensitivity: float
    d: int
    users: int
    spread: float
    coarse: int = 0
    cut: float | None = None
    pure: bool = False

    def __post_init__(self) -> None:
        check_serviceable(self.budget)
        if self.pure and not (isinstance(self.budget, ApproxDP) and pure_allowed(self.budget, self.d)):
            raise ConfigError("pure: expected an ApproxDP budget whose delta covers the arithmetic of PrivUnit")
        check_vectors(self, 10**12)
        if not 0 <= self.coarse <= self.users // 2 or (self.coarse and self.intervals < 2):
            raise ConfigError("coarse: expected at most half of the users, and two different intervals")
        if self.cut is not None and (self.coarse or not 1e-60 <= self.cut <= self.bound):
            raise ConfigError(f"cut: expected from 1e-60 to the bound {self.bound:g}, and no coarse question")
        assert self.fine is not None  # what cannot be calibrated is an error now

    @classmethod
    def planned(
        cls, budget: Budget, bound: float, sensitivity: float, d: int, users: int, spread: float | None = None
    ) -> "UserMean":
        """The split with the least variance: the coarse question is asked only if it lowers the variance.

        The budget, bound, sensitivity, d, users and spread are those of the class; a spread of None is the bound.
        """
        spread = bound if spread is None else min(spread, bound)
        plain = cls(budget, bound, sensitivity, d, users, spread)
        if plain.intervals < 2:
            return plain
        coarse = plain.padded * plain.response.users_for(plain.padded)
        if 2 * coarse > users:
            return plain
        split = cls(budget, bound, sensitivity, d, users, spread, coarse)
        return split if split.variance < plain.variance else plain

    # -- what follows ------------------------------------------------------------------------------------------------

    @property
    def padded(self) -> int:
        """D, the least power of two that is at least d."""
        return 1 << (self.d - 1).bit_length()

    @property
    def reach(self) -> float:
        """Coordinates of the rotated mean are within this with probability 1 - `FAILURE` (Hoeffding, for the signs)."""
        return self.bound * min(1.0, math.sqrt(2 * math.log(2 * self.padded / FAILURE) / self.padded))

    @cached_property
    def intervals(self) -> int:
        """t, the number of intervals of [-reach, reach]; 1 if intervals have no use."""
        half = _HALF_WIDTH * self.spread / math.sqrt(self.padded)
        return min(_MOST_INTERVALS, math.ceil(self.reach / half))

    @cached_property
    def response(self) -> IntervalResponse:
        """The randomized response of the coarse question."""
        return IntervalResponse(pure_epsilon(self.budget), self.intervals)

    @cached_property
    def radius(self) -> float:
        """C: offsets are clipped to this norm."""
        if not self.coarse:
            return self.bound if self.cut is None else self.cut
        half = self.reach / self.intervals
        return min(
            self.spread * (1 + math.sqrt(2 * math.log(self.users))) + half * math.sqrt(self.padded), 2 * self.bound
        )

    @cached_property
    def fine(self) -> Mechanism:
        """The noise of the fine question."""
        budget = PureDP(pure_epsilon(self.budget)) if self.pure else self.budget
        kind: object = mechanism_for("auto", budget)
        return calibrated(kind, budget, self.radius, min(self.sensitivity, 2 * self.radius))

    def quietest(self) -> "UserMean":
        """The same mean with that answer to the fine question which has the least noise."""
        if not (isinstance(self.budget, ApproxDP) and pure_allowed(self.budget, self.d)):
            return self
        other = replace(self, pure=True)
        return other if other.variance < self.variance else self

    @property
    def variance(self) -> float:
        """The largest E||noise||^2 of the mean, without the differences between users."""
        fine = self.fine
        noise = fine.variance(self.d, 0.0) if isinstance(fine, PrivUnit) else fine.variance(self.d)
        return noise / (self.users - self.coarse)

    # -- the user's side ---------------------------------------------------------------------------------------------

    def signs(self, place: tuple[int, ...]) -> np.ndarray:
        """The signs (D,) of the rotation: public, fixed by the `place` of the mean in a sequence.

        Privacy does not depend on them.
        """
        bits = shake_256(repr(place).encode()).digest((self.padded + 7) // 8)
        return 1.0 - 2.0 * np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[: self.padded]

    def intervals_of(self, vectors: np.ndarray, coordinates: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """The interval (n,) of each of the vectors (n, d) on one of D rotated coordinates.

        The outer intervals are unbounded. `coordinates` (n,) are the indices from 0, `signs` (D,) those of the
        rotation.
        """
        values = rotated(vectors, signs)[np.arange(len(vectors)), coordinates]
        places = (values / self.reach + 1) * (self.intervals / 2)
        return np.clip(np.floor(places), 0, self.intervals - 1).astype(np.int64)

    def answer_coarse(self, vectors: np.ndarray, coordinates: np.ndarray, signs: np.ndarray, rng: Rng) -> np.ndarray:
        """Reports (n, t) on vectors, coordinates and signs as for `intervals_of`. Raises as `answer_fine` does."""
        self._check(vectors)
        return self.response.randomize(self.intervals_of(vectors, coordinates, signs), rng)

    def answer_fine(self, vectors: np.ndarray, centre: np.ndarray, rng: Rng) -> np.ndarray:
        """Reports (n, d): noisy offsets of vectors (n, d) from the centre (d,), clipped to the radius.

        Raises `ConfigError` if a vector is longer than the bound or not finite.
        """
        self._check(vectors)
        offsets = np.ascontiguousarray(vectors - centre)
        norms = np.linalg.norm(offsets, axis=1, keepdims=True)
        offsets *= self.radius / np.maximum(norms, self.radius)
        randomize_rows(self.fine.code, self.fine.rows(self.d), offsets, rng)
        return offsets

    def _check(self, vectors: np.ndarray) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.d:
            raise ConfigError(f"expected vectors of {self.d} numbers")
        if not np.all(np.linalg.norm(vectors, axis=1) <= self.bound * (1 + 1e-9)):
            raise ConfigError(f"vectors must be finite and of l2 norm at most {self.bound:g}")

    # -- the learner's side ------------------------------------------------------------------------------------------

    def centre(self, votes: np.ndarray, signs: np.ndarray) -> np.ndarray:
        """The centre (d,), by the `votes` (D, t): how often each interval was named; `signs` (D,) of the rotation."""
        return centre_of(self, np.argmax(votes, axis=1), self.intervals, signs)
