"""The centre m and the spread s of a target within declared bounds, from noisy sums of batches with all slopes 0.

Kept are a normal law of m and independent probabilities of the spreads h 2^(-k/2), h being half the width of the
bounds. A batch gives noisy means of a and a^2, a = clip((y - b) / sigma, -c, c), and multiplies both by its likelihood.
Newton's steps begin at the b and sigma where the search ends; no target has to be normal.

Claim: the search spends nothing beyond its batches. Model, proof and source: docs/proofs/curvature.md.
"""

import math

import numpy as np

from streamdp.errors import ConfigError

SPREADS = 44
LEAST_SPREAD = 2 ** ((1 - SPREADS) / 2)
"""The least of them, in units of half the width of the bounds: about 3e-7."""
_CLEAR = 0.35
_NODES = np.linspace(-4, 4, 97)
_LARGEST = 1e6
_LEAST_VARIANCE = (_NODES[1] - _NODES[0]) ** 2 / 4  # of m in units of its last variance: the nodes see no less
_EDGE = 0.9  # the share of c from which on the mean of a says that nearly all targets lie on one side
_ANY = 1e-5  # the probability that a spread is any of them, so that each may come back


class BatchSearch:
    """What is known of the centre and the spread; the target's bounds are `middle` plus and minus `half` > 0."""

    def __init__(self, middle: float, half: float) -> None:
        self._log_spreads = math.log(half) - math.log(2) / 2 * np.arange(SPREADS)
        self._widest = half / math.sqrt(3)
        self.numbers = np.concatenate([[middle, self._widest], np.full(SPREADS, 1 / SPREADS)])
        """The mean and the deviation of m, and the probabilities of the spreads (SPREADS,)."""

    @property
    def place(self) -> tuple[float, float]:
        """b and sigma of the next batch."""
        centre, error = self.numbers[:2].tolist()
        return centre, math.hypot(error, math.exp(self._log_spreads @ self.numbers[2:]))

    @property
    def clear(self) -> bool:
        """Whether the search ends."""
        weights = self.numbers[2:]
        unclear = weights @ (self._log_spreads - weights @ self._log_spreads) ** 2
        return bool(self.numbers[1] < _CLEAR * self.place[1] and unclear < _CLEAR**2)

    def take(
        self, place: tuple[float, float], c: float, found: tuple[float, float], errors: tuple[float, float]
    ) -> None:
        """Take in the noisy means of a and a^2 that a batch found at `place`, b and sigma, and their errors.

        c is that of Huber's loss.
        """
        centre, error = self.numbers[:2].tolist()
        (b, sigma), spreads = place, np.exp(self._log_spreads)
        expected = moments((centre + error * _NODES[:, None] - b) / sigma, spreads / sigma, c)
        with np.errstate(divide="ignore"):
            logarithms = np.log(self.numbers[2:]) - _NODES[:, None] ** 2 / 2
        for value, mean, deviation in zip(found, expected, errors, strict=True):
            logarithms -= ((min(max(value, -_LARGEST), _LARGEST) - mean) / deviation) ** 2 / 2
        joint = np.exp(logarithms - logarithms.max())
        joint /= joint.sum()
        along = joint.sum(axis=1)
        shift = float(along @ _NODES)
        centre += error * shift
        error *= max(
            math.sqrt(max(float(along @ (_NODES - shift) ** 2), _LEAST_VARIANCE)), 2 * (abs(found[0]) > _EDGE * c)
        )
        weights = (1 - _ANY) * joint.sum(axis=0) + _ANY / SPREADS
        self.numbers = np.concatenate([[centre, min(error, self._widest)], weights])

    def read(self, numbers: np.ndarray) -> None:
        """Take over what `numbers` was, (SPREADS + 2,). Raises `ConfigError` for numbers out of range."""
        sound = numbers[1] > 0 and numbers[2:].min() >= 0 and abs(numbers[2:].sum() - 1) < 1e-6
        if not (sound and np.isfinite(numbers).all()):
            raise ConfigError("state: its search for the centre of the target is out of range")
        self.numbers = numbers.copy()


def moments(centre: np.ndarray, spread: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of a = clip(Z, -c, c) and of a^2 for a normal Z; its centre and spread are broadcast."""
    from scipy.special import ndtr  # here, because scipy takes long to load, and reading a model needs none of it

    low, high = (-c - centre) / spread, (c - centre) / spread
    below, above = ndtr(low), ndtr(-high)
    inside = ndtr(high) - below
    at_low, at_high = (np.exp(-(np.minimum(edge**2, 1400.0)) / 2) / math.sqrt(2 * math.pi) for edge in (low, high))
    rest = spread * (at_low - at_high)
    mean = c * (above - below) + centre * inside + rest
    # low = -(c + centre) / spread and high = (c - centre) / spread in the mean of Z^2 inside
    square = c**2 * (above + below) + (centre**2 + spread**2) * inside
    square += centre * rest - c * spread * (at_low + at_high)
    return mean, square
