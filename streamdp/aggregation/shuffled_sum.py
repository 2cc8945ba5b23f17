"""A private sum of vectors by shuffled bits: users, a shuffler and an analyzer with different trust.

Source: Cheu, Joseph, Mao, Peng, "Shuffle private stochastic convex optimization", 2022, Algorithms 1 and 2 (P_1D and
P_vec). All parties agree on a `VectorSum`. Each user moves every coordinate of its vector to [0, g], rounds it at
random to an integer, adds b fair bits of noise and sends that many ones among g + b bits (`LocalRandomizer`). The
`Shuffler` sorts the bits of all users, one coordinate at a time, and forwards the whole batch or nothing. The
`Analyzer` sees a sorted row of bits for each coordinate, hence only the number of its ones, and estimates the sum
without bias. (In the paper the shuffler permutes. A uniform permutation shows the same, as `Shuffler` argues.)

Neighbours: one user's vector is replaced by another. Trust: the shuffler, who sees each user's own bits, and enough
users who follow the protocol. Claim: what the shuffler forwards keeps the budget, against anyone. A user that takes
part in several sums spends the budget in each. Proof: docs/proofs/shuffled_sum.md.

>>> from streamdp import ApproxDP
>>> params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), bound=1.0, users=1000, d=2)
>>> vectors = np.tile([0.6, -0.8], (1000, 1))
>>> shuffler = Shuffler(params)
>>> shuffler.collect(LocalRandomizer(params).messages(vectors))
>>> estimate = Analyzer(params).sum(shuffler.forward())  # near (600, -800)
>>> bool(np.all(np.abs(estimate - [600, -800]) < 10 * np.sqrt(params.variance)))
True
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import ConfigError, NotAtBoundaryError, SchemaError, check_whole
from streamdp.privacy.entropy import Entropy, Rng

_AT_ONCE = 1 << 24
"""The most counts in memory at a time."""


class LocalRandomizer:
    """The user's part: randomises vectors on the user's side, by the agreed `params`.

    An `rng` of None is cryptographic. A `SeededEntropy` is for tests: its messages are not private.

    Sampling is exact: b fair bits are counted, and a place is rounded up with the probability of its fraction to 2^-63.
    The rounding error of the place itself (a relative 2^-51) is in the calibration.

    Guarantee: see the head of this module. Source: Cheu et al. 2022, Algorithms 1 and 2.
    """

    def __init__(self, params: VectorSum, rng: Rng | None = None) -> None:
        self.params = params
        self.rng = Entropy() if rng is None else rng

    def counts(self, vectors: np.ndarray) -> np.ndarray:
        """For a secure aggregator: the number of ones that each user would send, from 0 to g + b.

        The aggregator must show only the sum over users. `vectors` are (d,) for one user, or (m, d), like the result.

        Raises `ConfigError` if a row is longer than the bound or not finite, `SchemaError` for a wrong shape.
        """
        from streamdp.aggregation.kernels import noisy_counts

        places = self.params.places(vectors).ravel()
        out = np.empty(places.size, dtype=np.int64)
        with self.rng.lock:
            self.rng.serve(lambda left, rest, words: noisy_counts(left, self.params.b, rest, words), places, out)
        return out.reshape(np.shape(vectors))

    def messages(self, vectors: np.ndarray) -> np.ndarray:
        """What users send: packed bits (uint8) of shape (d, w) or (m, d, w), w = `row_bytes`.

        A row holds the g + b one-bit messages of a coordinate, ones first. Their order has no more information than
        their number, because the shuffler removes it. `vectors` and errors as in `counts`.
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
        (d, ceil(users (g + b) / 8)) packed bits of all users in an order that is not theirs, uint8.
    users
        The number of users that answered.
    """

    bits: np.ndarray
    users: int


class Shuffler:
    """The shuffler's part: counts the ones of each coordinate until there are enough users, and forwards them sorted.

    Parameters
    ----------
    params
        The agreed parameters.
    minimum
        The least number of answers before anything is forwarded; None for all users. With fewer than all, the guarantee
        is `params.guarantee_for(minimum)`.

    The bits of all users for one coordinate are one batch of n' (g + b) bits (below 2^32). It is forwarded with the
    ones first. That shows exactly what a uniform permutation shows: each can be made from the other without the
    messages, so each has the guarantee of the other. A message is not kept.

    Raises `ConfigError` for a minimum out of range and for larger batches.
    """

    def __init__(self, params: VectorSum, minimum: int | None = None) -> None:
        self.params = params
        self.minimum = params.users if minimum is None else minimum
        check_whole("minimum", self.minimum, 1, params.users)
        if params.users * (params.g + params.b) >= 2**32:
            raise ConfigError(
                "a batch of 2^32 bits or more for each coordinate cannot be forwarded: send counts, or use fewer users"
            )
        self._ones = np.zeros(params.d + 1, dtype=np.int64)  # the last is the number of users that answered

    @property
    def answered(self) -> int:
        """The number of users that answered."""
        return int(self._ones[-1])

    def collect(self, messages: np.ndarray) -> None:
        """Take the `messages` of one or several users, (d, w) or (m, d, w) uint8, w = `row_bytes`.

        Raises `SchemaError` for another shape or type or for ones after the g + b bits, `ConfigError` if more users
        answer than were agreed on.
        """
        from streamdp.aggregation.kernels import add_ones

        width, d = self.params.row_bytes, self.params.d
        batch = messages if isinstance(messages, np.ndarray) else np.zeros(0)
        batch = batch[None] if batch.ndim == 2 else batch
        if batch.dtype != np.uint8 or batch.ndim != 3 or batch.shape[1:] != (d, width):
            raise SchemaError(f"expected packed bits (uint8) of shape ({d}, {width}), got {batch.dtype} {batch.shape}")
        spare = 8 * width - self.params.g - self.params.b
        if np.any(batch[:, :, -1] & ((1 << spare) - 1)):
            raise SchemaError(f"a message has ones after its {self.params.g + self.params.b} bits for each coordinate")
        if self.answered + len(batch) > self.params.users:
            raise ConfigError(f"more than the {self.params.users} users agreed on have answered")
        add_ones(np.ascontiguousarray(batch).reshape(-1, width), self._ones)

    def forward(self) -> Shuffled:
        """All bits of all users, ones first in each coordinate. The shuffler is empty then.

        Raises `NotAtBoundaryError`, and keeps the counts, if fewer than `minimum` users answered.
        """
        from streamdp.aggregation.kernels import write_ones

        users = self.answered
        if users < self.minimum:
            raise NotAtBoundaryError(f"{users} users answered, {self.minimum} must before the batch is forwarded")
        bits = np.zeros((self.params.d, (users * (self.params.g + self.params.b) + 7) // 8), dtype=np.uint8)
        write_ones(self._ones[:-1], bits)
        self._ones[:] = 0
        return Shuffled(bits, users)

    def __reduce__(self) -> NoReturn:
        raise NotAtBoundaryError("a shuffler holds what users sent: it is neither copied nor stored")


class Analyzer:
    """The analyzer's part: an unbiased estimate of the sum of the vectors of the users that answered.

    `params` are the agreed parameters.
    """

    def __init__(self, params: VectorSum) -> None:
        self.params = params

    def sum(self, shuffled: Shuffled) -> np.ndarray:
        """The estimate (d,) from `shuffled` bits. Raises `SchemaError` if they do not fit the agreed parameters."""
        from streamdp.aggregation.kernels import add_ones

        d, each = self.params.d, self.params.g + self.params.b
        if not isinstance(shuffled, Shuffled):
            raise SchemaError(f"expected what a shuffler forwards, got {type(shuffled).__name__}")
        width = (shuffled.users * each + 7) // 8
        if not isinstance(shuffled.bits, np.ndarray):
            raise SchemaError(f"expected packed bits as an array, got {type(shuffled.bits).__name__}")
        if shuffled.bits.dtype != np.uint8 or shuffled.bits.shape != (d, width):
            raise SchemaError(f"expected packed bits of shape ({d}, {width}), got {shuffled.bits.shape}")
        if np.any(shuffled.bits[:, -1:] & ((1 << (8 * width - shuffled.users * each)) - 1)):
            raise SchemaError(f"there are ones after the {shuffled.users * each} bits of a coordinate")
        ones = np.zeros(d + 1, dtype=np.int64)
        add_ones(np.ascontiguousarray(shuffled.bits), ones)
        return self.sum_of_counts(ones[:-1], shuffled.users)

    def closed(self, ones: np.ndarray, rng: Rng) -> np.ndarray:
        """The estimate (d,) of a batch in one process, from the `ones` (d + 1,), by words of `rng`.

        The last one is the number of people whose noise is in the others. That of absent people is added to a copy,
        also of those who were counted and not learned: an exception does not leave half of it.
        """
        ones, local, users, d = ones.copy(), LocalRandomizer(self.params, rng), self.params.users, self.params.d
        while absent := max(0, users - int(ones[-1])):
            people = min(absent, max(1, _AT_ONCE // d))
            ones += np.append(local.counts(np.zeros((people, d))).sum(axis=0), people)
        return self.sum_of_counts(ones[:-1], users)

    def sum_of_counts(self, ones: np.ndarray | list[int], users: int) -> np.ndarray:
        """The estimate (d,) from the number of ones: cell (ones - users b / 2) - users bound.

        `ones` (d,) are summed over the `users` that answered, from 1 to n.

        Raises `SchemaError` if the counts are not whole numbers from 0 to users (g + b), `ConfigError` for a number of
        users out of range.
        """
        check_whole("users", users, 1, self.params.users)
        total = np.asarray(ones)
        most = users * (self.params.g + self.params.b)
        if total.shape != (self.params.d,) or total.dtype.kind not in "iu" or total.min() < 0 or total.max() > most:
            raise SchemaError(f"expected {self.params.d} whole numbers from 0 to {most}")
        # whole numbers up to the last step: 2 ones - users (b + g), in half cells
        return (2 * total.astype(np.int64) - users * (self.params.b + self.params.g)) * (self.params.cell / 2)
