"""What an error is, and the best constant: numbers and classes. The constant is learned from noisy answers only.

A record is asked about the model (`ERROR`), about what stands beside it (`OTHER`: the constant's error, or the error
rate), or about the constant. What it is asked about lies in a public range.
"""

import math

import numpy as np

from streamdp.validation.answers import PARTS, Errors

REACH = 1.5  # the largest distance of the log-odds of a prediction from those of the constant that counts
_NEAR, _SURE = 0.1, (0.02, 0.03)  # of the level of a quantile; of the constant's expected excess, or of its log loss


class Numbers:
    """Numbers: the absolute error, or the pinball loss of a quantile, beside the constant with the least of it.

    The constant is the quantile tau of the target. From bits "is the target at most c?" it is found by averaged
    stochastic approximation (Robbins, Monro 1951; Polyak, Juditsky 1992): c moves by .15 t^-.6 times the largest
    distance times (tau minus the unbiased bit), and the estimate is the average of c with weights t. From sums it is
    the quantile of noisy counts in `PARTS` intervals.

    `tau` is from 0 to 1, 1/2 for the absolute error; `low` and `high` bound the target. If `exponential`, a model
    predicts the exponential of its linear predictor.
    """

    CONSTANT, WEIGHT, AVERAGE = range(3)
    weights = (1.0, 1.0)
    groups = PARTS
    cells = 0
    _form = "pinball loss"
    reach = 2.5
    """Up to how many spreads of the target a distance counts, if none is declared."""

    def __init__(self, tau: float, low: float, high: float, exponential: bool = False) -> None:
        self._tau, self._low, self._high, self._exponential = tau, low, high, exponential
        self._unit = 2.0 if tau == 0.5 else 1.0
        self.measure = "mean absolute error" if tau == 0.5 else "mean pinball loss"

    def largest(self, reach: float) -> float:
        """The largest error that an answer is about; larger distances of target and prediction than `reach` are cut."""
        return self._unit * max(self._tau, 1 - self._tau) * reach

    def errors(self, known: np.ndarray, reach: float) -> Errors:
        """What records say while the numbers `known` of the constant are fixed; `reach` is as for `largest`."""
        known_now = self.constant(known), float(known[0]), self._exponential
        numbers = (self._tau, self._unit, self._low, self._high, reach, *known_now)
        return Errors(self._form, numbers, np.zeros(0), 0, np.zeros(7))

    def start(self, middle: float, reach: float, summed: bool = False) -> np.ndarray:
        """What is known about the constant before the first answer, as numbers: it is looked for from the middle.

        For sums (`summed`) they are the ends of the intervals, at most `reach` from it, the noise and the counts.
        """
        if not summed:
            return np.array([middle, 0.0, middle])
        low, high = max(self._low, middle - reach), min(self._high, middle + reach)
        return np.concatenate([[low, max(high, low + 1e-9 * reach), 0.0], np.zeros(PARTS)])

    def constant(self, known: np.ndarray) -> float:
        """The best constant, from the numbers known, of `start`, answers and `counted`."""
        if len(known) == 3:
            return float(known[self.AVERAGE])
        ends, below = self._intervals(known)
        return float(np.interp(self._tau, below, ends)) if below[-1] > 0 else float(known[0] + known[1]) / 2

    def unresolved(self, known: np.ndarray) -> float:
        """By how much the constant's error may exceed the least one: an interval does not say where its targets lie."""
        if len(known) == 3:
            return 0.0
        ends, below = self._intervals(known)
        apart = np.maximum(self._tau - below[:-1], 0) * np.maximum(below[1:] - self._tau, 0)
        return self._unit * float(np.max(np.diff(ends) * apart / np.maximum(np.diff(below), 1e-300)))

    @staticmethod
    def _intervals(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the intervals, and which shares of the targets are below them; 0 if none are known."""
        below = np.maximum.accumulate(np.cumsum([0.0, *known[3:]]))
        return np.linspace(known[0], known[1], len(below)), below / max(below[-1], 1e-300)

    def lacks(self, known: np.ndarray) -> float:
        """How many times the answers in `known` determine the constant: below 1, noise hardly moves its level."""
        n = known[3:].sum()
        return float((known[2] * PARTS / 2 + n / 4) / (_NEAR * n) ** 2) if n > 0 else math.inf

    def counted(self, known: np.ndarray, counts: np.ndarray, n: float, variance: float) -> np.ndarray:
        """What is `known`, as a new array, after `counts` of the groups of n records, each with this `variance`."""
        return known + np.concatenate([[0.0, 0.0, variance], counts])


class Squares(Numbers):
    """Numbers of which the mean is learned: the squared error beside that of the mean.

    The mean is learned from bits "is the target at most c?" with c evenly spread over the bounds: their mean is
    (high - y) / (high - low). From sums it is that of counts at `PARTS` values, to which targets are rounded at random,
    up or down, so that the mean stays.
    """

    _form = "squared error"
    reach = 10.0  # the squares of far targets are most of the error

    def __init__(self, low: float, high: float, exponential: bool = False) -> None:
        super().__init__(0.5, low, high, exponential)
        self.measure = "mean squared error"

    def largest(self, reach: float) -> float:
        return reach**2

    def unresolved(self, known: np.ndarray) -> float:
        return 0.0

    def constant(self, known: np.ndarray) -> float:
        if len(known) == 3:
            return float(known[self.AVERAGE])
        low, high, _, *counts = known.tolist()
        if sum(counts) <= 0:
            return float(low + high) / 2
        return float(np.clip(np.average(np.linspace(low, high, PARTS), weights=counts), low, high))


class Classes:
    """Classes without probabilities: the share of wrong predictions, beside that of the most frequent class.

    The share of a class is learned from the bits "is it class k?", with the classes in turn, or from counts. What is
    known of K classes are 3 K numbers: the answers about each, their sum and the variance of that, as -1 or 1.
    """

    measure = "error rate"
    weights: tuple[float, float] = (1.0, 1.0)
    cells = 0
    reach = 2.5

    def __init__(self, classes: int) -> None:
        self.groups = classes

    def largest(self, reach: float) -> float:
        """See `Numbers.largest`: 1."""
        return 1.0

    def errors(self, known: np.ndarray, reach: float) -> Errors:
        """See `Numbers.errors`."""
        shares, _ = self.shares(known)
        return Errors("wrong class", (REACH / 2, int(np.argmax(shares)), 0.0, 0.0, 1.0), shares, 0, np.zeros(7))

    def start(self, middle: float, reach: float, summed: bool = False) -> np.ndarray:
        """See `Numbers.start`."""
        return np.zeros(3 * self.groups)

    def estimates(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The unbiased shares (K,) of the classes by what is `known`, and their variances."""
        asked, noisy, variances = known.reshape(3, -1)
        asked = np.maximum(asked, 1)
        return (1 + noisy / asked) / 2, np.where(variances > 0, variances / (2 * asked) ** 2, 0.25)

    def shares(self, known: np.ndarray) -> tuple[np.ndarray, float]:
        """The shares (K,) of the classes by what is `known`, which sum to 1; none is below its standard error.

        And by how much their log loss is expected to exceed that of the true ones.
        """
        found, variances = self.estimates(known)
        found = np.clip(found, np.minimum(np.sqrt(variances), 0.5), 1.0)
        found = found / found.sum()
        return found, float(np.sum(variances / (2 * found)))

    def lacks(self, known: np.ndarray) -> float:
        """See `Numbers.lacks`; the constant of many classes has a large log loss, beside which more is little."""
        (q, excess), (least, part) = self.shares(known), _SURE
        return excess / max(least, -part * float(q @ np.log(q)))

    def counted(self, known: np.ndarray, counts: np.ndarray, n: float, variance: float) -> np.ndarray:
        """See `Numbers.counted`."""
        p = np.clip(counts / n, 0.0, 1.0)
        spread = 4 * n * np.maximum(p * (1 - p), 1 / n) + 4 * variance
        return known + np.concatenate([np.full(len(p), n), 2 * counts - n, spread])


class Probabilities(Classes):
    """Classes with probabilities: the log loss of the model minus that of the shares of the classes.

    With scores z (K,) and known shares q, r = z - log q, moved so that its largest and least value are opposite, and
    clipped to REACH / 2: the model that is asked about has probabilities in proportion to q e^r. So its log-odds
    between any two classes differ by at most REACH from those of the constant, and

        D = log sum of q e^r - r_y,

    its log loss minus that of q, lies in a range of at most 2 REACH. The expected excess of q (see `Classes.shares`) is
    added to D: then D is about the best constant. Beside it stands the error rate of the unclipped model. Two classes
    also have `cells`: eight intervals of scores for each class, the first eight of class 0, which give the AUC.
    """

    measure = "log loss"
    weights = 1.0, 0.5

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.cells = 16 if classes == 2 else 0

    def errors(self, known: np.ndarray, reach: float) -> Errors:
        """See `Numbers.errors`; the range is that at the least and the largest r of one class, all others opposite."""
        q, more = self.shares(known)
        ends = np.array([-REACH / 2, REACH / 2])
        alone = np.logaddexp(np.log(q)[:, None] + ends, np.log1p(-q)[:, None] - ends) - ends
        numbers = (REACH / 2, int(np.argmax(q)), more, float(alone.min()) + more, float(alone.max()) + more)
        cells = math.log(q[1] / q[0]) + np.linspace(-REACH, REACH, 7)
        return Errors("log loss", numbers, q, self.cells, cells)

    def largest(self, reach: float) -> float:
        """See `Numbers.largest`: of D."""
        return 2 * REACH


Task = Numbers | Classes
"""What a model predicts."""
