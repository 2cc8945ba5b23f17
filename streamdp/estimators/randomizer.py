"""The local half of LDP-SGD: what a person's device needs, and what it sends.

Whatever leaves the device is a `Report`; it protects the record with its budget against everyone, the learner included
(the argument is in `ldp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamdp.entropy import Entropy, SeededEntropy
from streamdp.errors import SchemaError
from streamdp.guarantees import Budget, parse_budget
from streamdp.losses import Loss
from streamdp.mechanisms import NoNoise, calibrated, mechanism_for, randomize_rows, record_rows


@dataclass(frozen=True)
class Report:
    """What leaves a person's side: a noisy gradient (d,) and the budget that it was made with.

    `private` is False where it was made without noise or with a seed.
    """

    gradient: np.ndarray
    budget: Budget
    private: bool = True


@dataclass(frozen=True)
class Randomizer:
    """The local half: theta and how to make a noisy gradient at it. Holds nothing about anyone; a client can hold it.

    Calling it with a record gives a `Report`. A report made at an older theta may still be absorbed; it protects as
    well and only points from a staler place.
    """

    theta: np.ndarray
    loss: Loss
    features: tuple[Any, ...]
    intercept: bool
    budget: Budget
    mechanism: str
    rng: Entropy | SeededEntropy = field(default_factory=Entropy, repr=False, compare=False)

    def __call__(self, x: Mapping[Any, Any], y: float, *, budget: Budget | str | None = None) -> Report:
        """Randomise one record: x by feature name, y a number (for classifiers the index of the class).

        Raises `SchemaError` where a value is not a finite number, `BudgetError` for a budget that cannot be served.
        """
        spend = self.budget if budget is None else parse_budget(budget)
        try:
            row = np.array([x.get(name, 0.0) for name in self.features] + [1.0] * self.intercept, dtype=float)
            target = float(y)
        except (TypeError, ValueError):
            raise SchemaError("x, y: expected numbers") from None
        if not (np.isfinite(row).all() and np.isfinite(target)):
            raise SchemaError("x, y: expected finite numbers, got NaN or an infinity")
        gradient = self.loss.gradient(self.theta, row, target)[None, :]
        kind: Any = mechanism_for(self.mechanism, spend)
        mechanism = calibrated(kind, spend, self.loss.bound, self.loss.sensitivity)
        d = len(self.theta)
        randomize_rows(
            kind.code,
            mechanism.rows(d) if budget is None else record_rows(mechanism, d),
            gradient,
            self.rng,
        )
        return Report(gradient[0], spend, self.rng.private and kind is not NoNoise)
