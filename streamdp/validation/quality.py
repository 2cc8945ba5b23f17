"""What private answers say about a model: its error beside that of the best constant, and a sentence.

AUC. With noisy counts c_ki of scores in the interval i of class k, the estimate is sum of c_1i (c_01 + ... + c_0,i-1 +
c_0i / 2) over the product of both sums: scores of one interval count as equal. Its variance follows from its
derivatives and that of the counts.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from streamdp.validation.sums import ANSWERS, CELLS, COLUMNS, ERRORS, FEWEST, OTHERS, Estimate, interval, mean
from streamdp.validation.tasks import Numbers, Probabilities, Task

BETTER, NO_BETTER, UNKNOWN = "better", "no better", "not known yet"
_MATTERS = 0.05
_RAREST = 3 / 8  # of the answers to a question that the difference needs
_MOST = 1e15

_SENTENCES = {
    BETTER: "the model is better than the best constant",
    NO_BETTER: "the model is no better than the best constant",
    UNKNOWN: "it is not known yet whether the model is better than the best constant",
}


@dataclass(frozen=True)
class Stretch:
    """The errors in a part of the stream, as estimates with 95 % intervals from private answers.

    They are those of the model as it was when each record came, those of the best constant known then, and the first
    minus the second, up to what the constant's error may exceed the least one. Classes whose error is the log loss have
    the shares of wrong predictions beside it, `rate` of the model and `constant_rate`, and two classes the `auc`.
    """

    answers: int
    error: Estimate
    constant: Estimate
    difference: Estimate
    rate: Estimate | None = None
    constant_rate: Estimate | None = None
    auc: Estimate | None = None


@dataclass(frozen=True)
class Quality:
    """Whether a model is worth having, from private answers only: it may be shown wherever the model may.

    `measure` says what the errors are. Errors above `largest` count as this; None: not known yet. `total` is of all
    answers, `recent` of the later half of those since the last drift. The verdict is "better" than the best constant,
    if the interval of the recent difference is below 0; "no better", if it lies above -5 % of the constant's error;
    else "not known yet": then about `missing` more answers would decide, if the difference stays; None: the difference
    has no interval, which about `first` more answers give (None: nothing is known of their noise), or it is 0. In
    batches, the verdict is about the model before the last `behind` records, else None. The error has risen `drifts`
    times (see `streamdp.validation.drift`), for the last time after `last_drift` records, None for never.
    """

    measure: str
    largest: float | None
    total: Stretch
    recent: Stretch
    verdict: str
    drifts: int
    last_drift: int | None
    missing: int | None = None
    first: int | None = None
    behind: int | None = None

    def sentence(self) -> str:
        """The verdict in words, with the figures that it rests on."""
        recent, said = self.recent, _SENTENCES[self.verdict]
        if recent.error.low is not None and recent.constant.low is not None:
            figures = f"{self.measure} {_text(recent.error)} beside {_text(recent.constant)}"
            if self.measure.startswith("mean"):  # of numbers
                figures += f", errors above {self.largest:.3g} counted as that"
            if recent.rate is not None and recent.constant_rate is not None and recent.rate.low is not None:
                figures += f"; error rate {_text(recent.rate)} beside {_text(recent.constant_rate)}"
            if recent.auc is not None and recent.auc.low is not None:
                figures += f"; AUC {_text(recent.auc)}"
            said += f" ({figures}; with 95 % intervals)"
        if self.verdict == UNKNOWN:
            said += f": {self._more()}"
        if self.behind is not None:
            said += f"; it is about the model before the last {self.behind:,} records, which were learned since"
        if self.last_drift is not None:
            said += f"; the error has risen, as found after {self.last_drift:,} records: the stream has changed"
        return said

    def _more(self) -> str:
        if self.missing is not None:
            return f"about {self.missing:,} more answers would decide"
        if self.first is not None:
            return f"about {self.first:,} more answers give a first interval, and then the number that would decide"
        if self.recent.constant.value:
            return "more answers would not decide: bounds of the target that are too wide hide the best constant"
        if self.total.answers:
            return "both errors are 0, so that no number of answers would decide"
        if self.largest is None:
            return "records answer as soon as the centre and spread of the target are known, and then give a number"
        return "no record has answered, and the number follows from the noise of the first answers"

    def scaled(self, unit: float) -> "Quality":
        """The same in another unit of the errors: 1 for classes, the target's `scale` for numbers."""

        def part(stretch: Stretch) -> Stretch:
            parts: Any = {name: _scaled(getattr(stretch, name), unit) for name in ("error", "constant", "difference")}
            return replace(stretch, **parts)

        largest = None if self.largest is None else self.largest * unit
        return replace(self, largest=largest, total=part(self.total), recent=part(self.recent))

    def document(self) -> dict[str, Any]:
        """All fields and the sentence as plain values, for JSON."""
        return asdict(self) | {"sentence": self.sentence()}


def stretch(sums: np.ndarray, task: Task, known: np.ndarray, reach: float) -> Stretch:
    """Return the errors of a part of the stream from the sums of its answers.

    `known` is what is known of the constant, and `reach` the largest distance, as for `tasks.Numbers`.
    """
    (error, noise), (constant, other) = mean(sums, ERRORS), mean(sums, OTHERS)
    if isinstance(task, Probabilities):
        p, variances = task.shares(known)[0], task.estimates(known)[1]
        least, likeliest = float(-p @ np.log(p)), int(np.argmax(p))
        spread = float(variances @ (np.log(p) + least) ** 2)
        known_well = task.lacks(known) < 1
        return Stretch(
            int(sums[ANSWERS]),
            interval(least + error, spread + noise, 0.0),
            interval(least, spread if known_well else math.nan, 0.0, math.log(len(p))),
            interval(error, noise),
            interval(constant, other, 0.0, 1.0),
            interval(1 - float(p[likeliest]), float(variances[likeliest]) if known_well else math.nan, 0.0, 1.0),
            _auc(sums) if task.cells else None,
        )
    largest, difference = task.largest(reach), interval(error - constant, noise + other)
    if isinstance(task, Numbers) and difference.high is not None:
        difference = replace(difference, high=difference.high + task.unresolved(known))
    return Stretch(
        int(sums[ANSWERS]),
        interval(error, noise, 0.0, largest),
        interval(constant, other, 0.0, largest),
        difference,
    )


def verdict(recent: Stretch) -> str:
    """Return the verdict on a model, from the errors in the newest part of the stream."""
    difference, constant = recent.difference, recent.constant.value
    if difference.low is None or difference.high is None or constant is None:
        return UNKNOWN
    if difference.high < 0:
        return BETTER
    return NO_BETTER if difference.low > -_MATTERS * max(constant, 0.0) else UNKNOWN


def missing(total: Stretch, recent: Stretch) -> int | None:
    """Return about how many more answers would end "not known yet" if the difference stays, in one digit.

    None if it has no interval, and if none would: what the constant lacks for its intervals stays.
    """
    difference, constant = recent.difference, recent.constant.value
    if difference.high is None or difference.low is None or difference.value is None or constant is None:
        return None
    half = difference.value - difference.low
    margin = max(half - difference.high, difference.value + _MATTERS * max(constant, 0.0))
    if margin <= 0:
        return None
    more = total.answers * ((half / margin) ** 2 - 1)
    return _digit(more)


def first(total: Stretch, recent: Stretch, lacks: float, least: float) -> int | None:
    """Return about how many more answers give the difference an interval, in one digit; None if it has one.

    The answers determine the constant `lacks` times, and the first sum of answers has the `least` number; with 0, and
    without answers, None: nothing is known of their noise.
    """
    if recent.difference.low is not None and recent.constant.value is not None:
        return None
    if not total.answers:
        return _digit(least) if least else None
    return _digit(total.answers * max(lacks - 1, 0.0) + FEWEST / _RAREST)


def _digit(more: float) -> int:
    return int(float(f"{min(max(more, 1.0), _MOST):.0e}"))


def _auc(sums: np.ndarray) -> Estimate:
    n, noise = sums[CELLS : CELLS + 2]
    if n < 1:
        return Estimate(None, None, None)
    counts = sums[COLUMNS:].reshape(2, -1)
    none, some = counts.sum(axis=1)
    if min(none, some) < 2 * math.sqrt(noise * counts.shape[1] + n / 4):
        return Estimate(None, None, None)
    below, above = (np.cumsum(row) - row / 2 for row in (counts[0], counts[1][::-1]))
    found = float(counts[1] @ below) / (none * some)
    slopes = np.concatenate([above[::-1] / (none * some) - found / none, below / (none * some) - found / some])
    variance = float(noise * (slopes @ slopes) + np.maximum(sums[COLUMNS:], 0) @ slopes**2)
    return interval(found, variance, 0.0, 1.0)


def _scaled(estimate: Estimate, unit: float) -> Estimate:
    numbers = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(None if number is None else number * unit for number in numbers))


def _text(estimate: Estimate) -> str:
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    digits = 2 - math.floor(math.log10(max(abs(estimate.value), (estimate.high - estimate.low) / 10, 1e-12)))
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = (round(number, digits) + 0.0 for number in numbers)  # no -0
    return f"{value:g} [{low:g}, {high:g}]"
