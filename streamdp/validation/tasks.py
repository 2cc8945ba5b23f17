"""What an error is, and the best constant: numbers and classes. The constant is learned from noisy bits only."""

from __future__ import annotations

import numpy as np

_GAIN, _DECAY = 0.15, 0.6


class Numbers:
    """Numbers: the absolute error, or the pinball loss of a quantile, beside the constant with the least of it.

    The constant is the quantile tau of the target, by averaged stochastic approximation (Robbins, Monro 1951; Polyak,
    Juditsky 1992) on the bits "is the target at most c?": c moves by .15 t^-.6 times the largest distance times (tau
    minus the unbiased bit), and the estimate is the average of c with weights t.

    `tau` is from 0 to 1, 1/2 for the absolute error; `low` and `high` bound the target.
    """

    CONSTANT, WEIGHT, AVERAGE = range(3)

    def __init__(self, tau: float, low: float, high: float) -> None:
        self._tau, self._low, self._high = tau, low, high
        self._unit = 2.0 if tau == 0.5 else 1.0
        self.measure = "mean absolute error" if tau == 0.5 else "mean pinball loss"

    def largest(self, reach: float) -> float:
        """The largest error that an answer is about; distances of target and prediction above `reach` count as this."""
        return self._unit * max(self._tau, 1 - self._tau) * reach

    def clipped(self, y: np.ndarray) -> np.ndarray:
        """Targets y (n,) within the bounds, as a new array."""
        found: np.ndarray = np.clip(y, self._low, self._high)
        return found

    def errors(self, predicted: np.ndarray, y: np.ndarray, largest: float) -> np.ndarray:
        """The errors (n,) of predicted (n,) against y (n,), at most the largest."""
        off = y - predicted
        found: np.ndarray = np.minimum(self._unit * np.maximum(self._tau * off, (self._tau - 1) * off), largest)
        off[:] = 0
        return found

    def start(self, middle: float) -> np.ndarray:
        """What is known about the constant before the first answer, as numbers: it is looked for from the middle."""
        return np.array([middle, 0.0, middle])

    def constant(self, known: np.ndarray) -> float:
        """The best constant, from the numbers known, of `start` and `learned`."""
        return float(known[self.AVERAGE])

    def bits(self, y: np.ndarray, known: np.ndarray, first: int) -> np.ndarray:
        """The true answers (n,) about y (n,) as -1 or 1, by what is known; `first` counts the answers before."""
        return np.where(y <= known[self.CONSTANT], 1.0, -1.0)

    def learned(self, noisy: np.ndarray, known: np.ndarray, first: int, reach: float) -> np.ndarray:
        """What is known, as a new array, after unbiased noisy answers `noisy` (n,); `first` counts those before.

        `reach` is that of `largest`.
        """
        c, weight, average = known.tolist()
        for t, bit in enumerate(noisy.tolist(), first + 20):
            c += _GAIN * reach * t**-_DECAY * (2 * self._tau - 1 - bit)
            c = min(max(c, self._low), self._high)
            weight += t
            average += (t / weight) * (c - average)
        return np.array([c, weight, average])


class Classes:
    """Classes: the share of wrong predictions, beside that of the most frequent class.

    The share of a class is learned from the bits "is it class k?", with the classes in turn.
    """

    measure = "error rate"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def largest(self, reach: float) -> float:
        """See `Numbers.largest`: 1."""
        return 1.0

    def clipped(self, y: np.ndarray) -> np.ndarray:
        """See `Numbers.clipped`: the indices of classes as they are."""
        return y.copy()

    def errors(self, predicted: np.ndarray, y: np.ndarray, largest: float) -> np.ndarray:
        """See `Numbers.errors`: 1 for a wrong prediction, else 0."""
        found: np.ndarray = (predicted != y).astype(float)
        return found

    def start(self, middle: float) -> np.ndarray:
        """See `Numbers.start`: the number and the sum of the answers about each class."""
        return np.zeros(2 * self._classes)

    def constant(self, known: np.ndarray) -> float:
        """See `Numbers.constant`: the most frequent class."""
        asked, noisy = known.reshape(2, -1)
        return float(np.argmax(noisy / np.maximum(asked, 1) - (asked == 0)))

    def bits(self, y: np.ndarray, known: np.ndarray, first: int) -> np.ndarray:
        """See `Numbers.bits`: "is it class k?", for one class after the other."""
        return np.where(y == (first + np.arange(len(y))) % self._classes, 1.0, -1.0)

    def learned(self, noisy: np.ndarray, known: np.ndarray, first: int, reach: float) -> np.ndarray:
        """See `Numbers.learned`."""
        asked = (first + np.arange(len(noisy))) % self._classes
        more = [np.bincount(asked, weights, self._classes) for weights in (None, noisy)]
        found: np.ndarray = known + np.concatenate(more)
        return found


Task = Numbers | Classes
"""What a model predicts."""
