"""What private answers say about a model: its error beside that of the best constant, and a sentence."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from streamdp.validation.sums import ANSWERS, ERRORS, OTHERS, Estimate, interval, mean

BETTER, NO_BETTER, UNKNOWN = "better", "no better", "not known yet"
_MATTERS = 0.05

_SENTENCES = {
    BETTER: "the model is better than the best constant",
    NO_BETTER: "the model is no better than the best constant",
    UNKNOWN: "it is not known yet whether the model is better than the best constant: more records will show it",
}


@dataclass(frozen=True)
class Stretch:
    """The errors in a part of the stream, as estimates with 95 % intervals from private answers.

    They are those of the model as it was when each record came, those of the best constant known then, and the first
    minus the second.
    """

    answers: int
    error: Estimate
    constant: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Quality:
    """Whether a model is worth having, from private answers only: it may be shown wherever the model may.

    `measure` says what the errors are. Errors above `largest` count as this; None: not known yet. `total` is of all
    answers, `recent` of the later half of those since the last drift. The verdict is "better" than the best constant,
    if the interval of the recent difference is below 0; "no better", if it lies above -5 % of the constant's error;
    else "not known yet". The error has risen `drifts` times (see `streamdp.validation.drift`), for the last time after
    `last_drift` records, None for never.
    """

    measure: str
    largest: float | None
    total: Stretch
    recent: Stretch
    verdict: str
    drifts: int
    last_drift: int | None

    def sentence(self) -> str:
        """The verdict in words, with the figures that it rests on."""
        recent, said = self.recent, _SENTENCES[self.verdict]
        if recent.error.low is not None and recent.constant.low is not None:
            said += f" ({self.measure} {_text(recent.error)} beside {_text(recent.constant)}, with 95 % intervals)"
        if self.last_drift is not None:
            said += f"; the error has risen, as found after {self.last_drift:,} records: the stream has changed"
        return said

    def scaled(self, unit: float) -> Quality:
        """The same in another unit of the errors: 1 for classes, the target's `scale` for numbers."""

        def part(stretch: Stretch) -> Stretch:
            estimates = (stretch.error, stretch.constant, stretch.difference)
            return Stretch(stretch.answers, *(_scaled(estimate, unit) for estimate in estimates))

        largest = None if self.largest is None else self.largest * unit
        return replace(self, largest=largest, total=part(self.total), recent=part(self.recent))

    def document(self) -> dict[str, Any]:
        """All fields and the sentence as plain values, for JSON."""
        return asdict(self) | {"sentence": self.sentence()}


def stretch(sums: np.ndarray, largest: float) -> Stretch:
    """Return the errors of a part of the stream from the sums of its answers about errors up to `largest`."""
    (error, noise), (constant, other) = mean(sums, ERRORS), mean(sums, OTHERS)
    return Stretch(
        int(sums[ANSWERS]),
        interval(error, noise, 0.0, largest),
        interval(constant, other, 0.0, largest),
        interval(error - constant, noise + other),
    )


def verdict(recent: Stretch) -> str:
    """Return the verdict on a model, from the errors in the newest part of the stream."""
    difference, constant = recent.difference, recent.constant.value
    if difference.low is None or difference.high is None or constant is None:
        return UNKNOWN
    if difference.high < 0:
        return BETTER
    return NO_BETTER if difference.low > -_MATTERS * max(constant, 0.0) else UNKNOWN


def _scaled(estimate: Estimate, unit: float) -> Estimate:
    numbers = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(None if number is None else number * unit for number in numbers))


def _text(estimate: Estimate) -> str:
    assert estimate.value is not None
    assert estimate.low is not None
    assert estimate.high is not None
    value = min(max(estimate.value, estimate.low), estimate.high)
    digits = 3 - math.floor(math.log10(max(abs(value), 1e-12)))
    return " ".join(
        [
            f"{round(value, digits - 1):g}",
            f"[{round(estimate.low, digits - 1):g}, {round(estimate.high, digits - 1):g}]",
        ]
    )
