"""A private sum of vectors by shuffled bits: users, a shuffler and an analyzer with different trust.

Source: Cheu, Joseph, Mao, Peng, "Shuffle private stochastic convex optimization", 2022, Algorithms 1 and 2 (P_1D and
P_vec). All parties agree on a `VectorSum`. Each user moves every coordinate of its vector to [0, g], rounds it at
random to an integer, adds b fair bits of noise and sends that many ones among g + b bits (`LocalRandomizer`). The
`Shuffler` mixes the bits of all users, one coordinate at a time, and forwards the whole batch or nothing. The
`Analyzer` sees a mixed row of bits for each coordinate, hence only the number of its ones, and estimates the sum
without bias.

**Trust.** The guarantee is for what the shuffler forwards, to anyone, including the analyzer. The shuffler sees each
user's own bits. It must not show them; their noise (b bits) is not meant to protect against the shuffler. Users must
follow the protocol. A user that does not can remove no more than its own noise; the rest protects the others by
`VectorSum.guarantee_for(honest)`. With a secure aggregator in the place of the shuffler users send the number of their
ones (`LocalRandomizer.counts`), log2(g + b) bits, and the aggregator must show only the sum over users. The guarantee
is the same, the trust is not.

**Neighbours.** One user's vector is replaced by another. Which users answer is public. A user that takes part in
several sums spends the budget in each. **Claim and proof.** `binomial`.

>>> params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), bound=1.0, users=1000, d=2)
>>> vectors = np.tile([0.6, -0.8], (1000, 1))
>>> shuffler = Shuffler(params)
>>> shuffler.collect(LocalRandomizer(params).messages(vectors))
>>> estimate = Analyzer(params).sum(shuffler.forward())  # near (600, -800)
>>> bool(np.all(np.abs(estimate - [600, -800]) < 10 * np.sqrt(params.variance)))
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np

from streamdp.aggregation import binomial
from streamdp.data.floats import floats
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, SchemaError
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, Budget, check_serviceable

Calibration = Literal["tight", "paper"]
Rng = Entropy | SeededEntropy


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {value!r}")


@dataclass(frozen=True)
class VectorSum:
    """The parameters on which all parties agree before a sum; public. Make one by `calibrated`.

    Parameters
    ----------
    budget
        What one vector may spend, an `ApproxDP`: the guarantee if all users are honest.
    bound
        Delta2, the largest l2 norm of a vector, from 1e-60 to 1e60.
    users
        n, the number of users that are expected to answer, from 1 to 10^9.
    d
        The number of coordinates, from 1 to 10^6.
    g, b
        The cells of the grid on [-bound, bound], and the fair bits that a user adds to each coordinate.
    calibration
        "tight" or "paper": the proof of the guarantee (`binomial`).
    sensitivity
        The largest l2 distance of two vectors, at most 2 `bound`; None for 2 `bound`. The paper's calibration does not
        use it.
    rounds
        The number of such sums in which the same users take part, one after another; the budget covers all of them.
        More than one with "tight" only.

    A `VectorSum` that does not keep its budget cannot be made, so a user that receives one may rely on it. Raises
    `BudgetError` if g and b give too little noise or if the calibration does not serve the budget, and `ConfigError`
    for other values out of range.
    """

    budget: ApproxDP
    bound: float
    users: int
    d: int
    g: int
    b: int
    calibration: Calibration = "tight"
    sensitivity: float | None = None
    rounds: int = 1

    def __post_init__(self) -> None:
        share = _check(self.budget, self.bound, self.users, self.d, self.calibration, self.sensitivity)
        _whole("g", self.g, 1, 2**40)
        _whole("b", self.b, 1, 2**40)
        for name in ("users", "d", "g", "b"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "sensitivity", share * 2 * self.bound)
        _whole("rounds", self.rounds, 1, 10**6)
        if self.calibration == "paper":
            if self.rounds > 1:
                raise ConfigError("the paper's calibration is for one round: compose several yourself")
            g, _ = binomial.paper_parameters(self.users, self.d, self.budget, self.bound)
            kept = self.g >= g and self.b >= binomial.paper_bits(self.g, self.users, self.d, self.budget)
            if self.users * (self.g + self.b) >= 2**60:
                raise BudgetError(f"{self.budget} takes more than 2^60 bits for each coordinate in all")
        else:
            if self.users * self.b > binomial.MOST_TRIALS:
                raise BudgetError("the tight calibration serves up to 2^36 bits of noise for each coordinate in all")
            N, T = self.users * self.b, binomial.shift_of(self.g, self.d, share)
            spent = binomial.spent_delta(N, T, self.d, self.budget.epsilon, self.budget.delta, self.rounds)
            kept = spent <= self.budget.delta
        if not kept:
            raise BudgetError(f"g={self.g} and b={self.b} do not keep {self.budget} for {self.users} users")

    @classmethod
    def calibrated(
        cls,
        budget: Budget,
        bound: float,
        users: int,
        d: int,
        calibration: Calibration = "tight",
        sensitivity: float | None = None,
        rounds: int = 1,
    ) -> VectorSum:
        """Parameters that keep the budget.

        Parameters
        ----------
        budget, bound, users, d, sensitivity, rounds
            As for the class.
        calibration
            "tight" takes about the fewest bits for a variance within 5 % of that of the analytic Gaussian mechanism,
            for epsilon up to 100. "paper" is Theorem A.6, for epsilon up to 15, with 2e5 to 3e5 times that variance.

        Raises `BudgetError` and `ConfigError` as the class does.
        """
        share = _check(budget, bound, users, d, calibration, sensitivity)
        assert isinstance(budget, ApproxDP)
        if calibration == "paper":
            g, b = binomial.paper_parameters(int(users), int(d), budget, float(bound))
        else:
            g, b = binomial.tight_parameters(int(users), int(d), budget, share, int(rounds))
        return cls(budget, float(bound), int(users), int(d), g, b, calibration, sensitivity, int(rounds))

    @property
    def bits_per_user(self) -> int:
        """The bits that one user sends: d (g + b)."""
        return self.d * (self.g + self.b)

    @property
    def message_bytes(self) -> int:
        """The bytes of one user's packed message, d rows of `row_bytes`."""
        return self.d * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """The bytes of one coordinate of a message: (g + b)/8, rounded up."""
        return (self.g + self.b + 7) // 8

    @property
    def cell(self) -> float:
        """The value of a single one: 2 bound / g."""
        return 2 * self.bound / self.g

    @property
    def noise_variance(self) -> float:
        """The binomial part of E||estimate - sum||^2 if all users answer: d cell^2 n b / 4."""
        return self.d * self.cell**2 * self.users * self.b / 4

    @property
    def variance(self) -> float:
        """The largest E||estimate - sum||^2 if all users answer, noise and rounding: d cell^2 n (b + 1) / 4."""
        return self.d * self.cell**2 * self.users * (self.b + 1) / 4

    def variance_for(self, vectors: np.ndarray) -> float:
        """E||estimate - sum||^2 for the sum of certain vectors; it depends on the fractions that are rounded.

        Parameters
        ----------
        vectors
            (m, d), of l2 norm at most `bound`.
        """
        places = _places(self, vectors)
        fractions = places - np.floor(places)
        noise = places.size * self.b / 4
        return float(self.cell**2 * (noise + np.sum(fractions * (1 - fractions))))

    def guarantee_for(self, honest: int) -> ApproxDP:
        """The guarantee of an honest user if only some users followed the protocol.

        The other users may not have answered, or may send anything; delta stays. With "tight", epsilon is solved for
        with the noise of the honest users. With "paper", it is epsilon n / honest (Cheu et al. 2022, Claim A.8 and
        Corollary A.9), which holds for epsilon up to 1 and at least a third honest users.

        Parameters
        ----------
        honest
            The number of users that followed the protocol, this user included, from 1 to n.

        Raises `BudgetError` if there is no guarantee, `ConfigError` for a number out of range.
        """
        _whole("honest", honest, 1, self.users)
        if self.calibration == "tight":
            shift = binomial.shift_of(self.g, self.d, (self.sensitivity or 0.0) / (2 * self.bound))
            epsilon = binomial.least_epsilon(int(honest) * self.b, shift, self.d, self.budget.delta, self.rounds)
            return ApproxDP(epsilon, self.budget.delta)
        if honest == self.users:
            return self.budget
        if self.budget.epsilon > 1 or 3 * honest < self.users:
            raise BudgetError("the paper covers fewer honest users for epsilon up to 1 and at least a third of them")
        return ApproxDP(self.budget.epsilon * self.users / honest, self.budget.delta)


def _check(budget: Budget, bound: float, users: int, d: int, calibration: str, sensitivity: float | None) -> float:
    """The sensitivity over 2 bound. Raises for what cannot be served."""
    if not isinstance(budget, ApproxDP):
        raise BudgetError(f"a shuffled sum serves ApproxDP, got {type(budget).__name__}")
    check_serviceable(budget)
    if calibration not in ("tight", "paper"):
        raise ConfigError(f"calibration must be tight or paper, got {calibration!r}")
    if calibration == "tight":
        binomial.check_epsilon(budget)
    if not 1e-60 <= bound <= 1e60:
        raise ConfigError(f"bound must be from 1e-60 to 1e60, got {bound}")
    if sensitivity is not None and not 0 < sensitivity <= 2 * bound * (1 + 1e-12):
        raise ConfigError(f"sensitivity must be in (0, 2 bound], got {sensitivity}")
    _whole("users", users, 1, 10**9)
    _whole("d", d, 1, 10**6)
    return 1.0 if sensitivity is None else min(1.0, sensitivity / (2 * bound))


def _places(params: VectorSum, vectors: np.ndarray) -> np.ndarray:
    """Vectors (d,) or (m, d) as places (m, d) on the grid, from 0 to g."""
    V = np.array(floats(f"vectors of {params.d} numbers", vectors), ndmin=2)
    if V.ndim != 2 or V.shape[1] != params.d:
        raise SchemaError(f"expected vectors of {params.d} numbers, got an array of shape {V.shape}")
    with np.errstate(over="ignore"):
        V /= params.bound
        short = np.linalg.norm(V, axis=1) <= 1 + 1e-9
    if not np.all(short):
        raise ConfigError(f"vectors to sum must be finite and of l2 norm at most {params.bound:g}")
    return np.clip((V + 1) * (params.g / 2), 0, params.g)


class LocalRandomizer:
    """The user's part: randomises vectors on the user's side.

    Parameters
    ----------
    params
        The agreed parameters.
    rng
        None for cryptographic randomness. A `SeededEntropy` is for tests: its messages are not private.

    Sampling is exact: b fair bits are counted, and a place is rounded up with the probability of its fraction to 2^-64.
    The rounding error of the place itself (a relative 2^-51) is in the calibration.

    Guarantee: see the head of this module. Source: Cheu et al. 2022, Algorithms 1 and 2.
    """

    def __init__(self, params: VectorSum, rng: Rng | None = None) -> None:
        self.params = params
        self.rng = Entropy() if rng is None else rng

    def counts(self, vectors: np.ndarray) -> np.ndarray:
        """For a secure aggregator: the number of ones that each user would send, from 0 to g + b.

        The aggregator must show only the sum over users.

        Parameters
        ----------
        vectors
            (d,) for one user, or (m, d); the result has the same shape.

        Raises `ConfigError` if a row is longer than the bound or not finite, `SchemaError` for a wrong shape.
        """
        from streamdp.aggregation.kernels import noisy_counts

        places = _places(self.params, vectors).ravel()
        out = np.empty(places.size, dtype=np.int64)
        done = 0
        with self.rng.lock:
            while True:
                more = noisy_counts(places[done:], self.params.b, out[done:], self.rng.words)
                done += more
                if done == places.size:
                    break
                self.rng.refill_for(more)
        return out.reshape(np.shape(vectors))

    def messages(self, vectors: np.ndarray) -> np.ndarray:
        """What users send: packed bits (uint8) of shape (d, w) or (m, d, w), w = `row_bytes`.

        A row holds the g + b one-bit messages of a coordinate, ones first. Their order tells no more than their number,
        because the shuffler removes it. Errors as in `counts`.

        Parameters
        ----------
        vectors
            As for `counts`.
        """
        from streamdp.aggregation.kernels import write_ones

        counts = self.counts(vectors)
        out = np.zeros((counts.size, self.params.row_bytes), dtype=np.uint8)
        write_ones(counts.ravel(), out)
        return out.reshape(*counts.shape, -1)


@dataclass(frozen=True)
class Shuffled:
    """What a shuffler forwards.

    Parameters
    ----------
    bits
        (d, ceil(users (g + b) / 8)) packed and mixed bits, uint8.
    users
        The number of users that answered.
    """

    bits: np.ndarray
    users: int


class Shuffler:
    """The shuffler's part: keeps messages in memory until there are enough, mixes and forwards all, and wipes them.

    Parameters
    ----------
    params
        The agreed parameters.
    minimum
        The least number of answers before anything is forwarded; None for all users. With fewer than all, the guarantee
        is `params.guarantee_for(minimum)`.
    rng
        As for `LocalRandomizer`.

    The bits of all users for one coordinate are one batch of n' (g + b) bits (below 2^32), permuted uniformly.

    Raises `ConfigError` for a minimum out of range and for larger batches.
    """

    def __init__(self, params: VectorSum, minimum: int | None = None, rng: Rng | None = None) -> None:
        self.params = params
        self.minimum = params.users if minimum is None else minimum
        _whole("minimum", self.minimum, 1, params.users)
        if params.users * (params.g + params.b) >= 2**32:
            raise ConfigError(
                "a batch of 2^32 bits or more for each coordinate cannot be shuffled: send counts, or use fewer users"
            )
        self.rng = Entropy() if rng is None else rng
        self._batch: list[np.ndarray] = []
        self.answered = 0

    def collect(self, messages: np.ndarray) -> None:
        """Take the messages of one or several users; they are copied.

        Parameters
        ----------
        messages
            (d, w) or (m, d, w) uint8, w = `row_bytes`.

        Raises `SchemaError` for another shape or type or for ones after the g + b bits, `ConfigError` if more users
        answer than were agreed on.
        """
        width, d = self.params.row_bytes, self.params.d
        batch = np.array(messages if isinstance(messages, np.ndarray) else 0, ndmin=3)
        if batch.dtype != np.uint8 or batch.ndim != 3 or batch.shape[1:] != (d, width):
            raise SchemaError(f"expected packed bits (uint8) of shape ({d}, {width}), got {batch.dtype} {batch.shape}")
        spare = 8 * width - self.params.g - self.params.b
        if np.any(batch[:, :, -1] & ((1 << spare) - 1)):
            raise SchemaError(f"a message has ones after its {self.params.g + self.params.b} bits for each coordinate")
        if self.answered + len(batch) > self.params.users:
            raise ConfigError(f"more than the {self.params.users} users agreed on have answered")
        self._batch.append(batch)
        self.answered += len(batch)

    def forward(self) -> Shuffled:
        """All bits of all users, mixed within each coordinate; the messages are wiped.

        Raises `NotAtBoundaryError`, and keeps the messages, if fewer than `minimum` users answered.
        """
        if self.answered < self.minimum:
            raise NotAtBoundaryError(
                f"{self.answered} users answered, {self.minimum} must before the batch is forwarded"
            )
        each = self.params.g + self.params.b
        bits = np.empty((self.params.d, (self.answered * each + 7) // 8), dtype=np.uint8)
        for j in range(self.params.d):
            row = np.concatenate([np.unpackbits(batch[:, j], axis=1, count=each).ravel() for batch in self._batch])
            self._permute(row)
            bits[j] = np.packbits(row)
        shuffled = Shuffled(bits, self.answered)
        for batch in self._batch:
            batch.fill(0)
        self._batch, self.answered = [], 0
        return shuffled

    def _permute(self, items: np.ndarray) -> None:
        """Permute in place, all orders equally likely."""
        from streamdp.aggregation.kernels import permute

        last = len(items) - 1
        with self.rng.lock:
            while (left := permute(items, last, self.rng.words)) > 0:
                self.rng.refill_for(last - left)
                last = left

    def __reduce__(self) -> NoReturn:
        raise NotAtBoundaryError("a shuffler holds users' messages: it is neither copied nor stored")


class Analyzer:
    """The analyzer's part: an unbiased estimate of the sum of the vectors of the users that answered.

    Parameters
    ----------
    params
        The agreed parameters.
    """

    def __init__(self, params: VectorSum) -> None:
        self.params = params

    def sum(self, shuffled: Shuffled) -> np.ndarray:
        """The estimate (d,) from shuffled bits.

        Parameters
        ----------
        shuffled
            What the shuffler forwarded.

        Raises `SchemaError` if the bits do not fit the agreed parameters.
        """
        d, each = self.params.d, self.params.g + self.params.b
        width = (shuffled.users * each + 7) // 8
        if not isinstance(shuffled.bits, np.ndarray):
            raise SchemaError(f"expected packed bits as an array, got {type(shuffled.bits).__name__}")
        if shuffled.bits.dtype != np.uint8 or shuffled.bits.shape != (d, width):
            raise SchemaError(f"expected packed bits of shape ({d}, {width}), got {shuffled.bits.shape}")
        if np.any(shuffled.bits[:, -1:] & ((1 << (8 * width - shuffled.users * each)) - 1)):
            raise SchemaError(f"there are ones after the {shuffled.users * each} bits of a coordinate")
        return self.sum_of_counts([int(np.count_nonzero(np.unpackbits(row))) for row in shuffled.bits], shuffled.users)

    def sum_of_counts(self, ones: np.ndarray | list[int], users: int) -> np.ndarray:
        """The estimate (d,) from the number of ones: cell (ones - users b / 2) - users bound.

        Parameters
        ----------
        ones
            (d,) the number of ones of each coordinate, summed over the users that answered.
        users
            The number of users that answered, from 1 to n.

        Raises `SchemaError` if the counts are not whole numbers from 0 to users (g + b), `ConfigError` for a number of
        users out of range.
        """
        _whole("users", users, 1, self.params.users)
        total = np.asarray(ones)
        most = users * (self.params.g + self.params.b)
        if total.shape != (self.params.d,) or total.dtype.kind not in "iu" or total.min() < 0 or total.max() > most:
            raise SchemaError(f"expected {self.params.d} whole numbers from 0 to {most}")
        # whole numbers up to the last step: 2 ones - users (b + g), in half cells
        return (2 * total.astype(np.int64) - users * (self.params.b + self.params.g)) * (self.params.cell / 2)
