"""The local half of LDP-SGD: what a person's device needs, and what it sends.

Only a `Report` leaves the device; it protects the record with its budget against everyone, the learner included (the
argument is in `ldp.estimators`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamdp.errors import SchemaError
from streamdp.optim.losses import Loss
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import Mechanism, NoNoise, calibrated, mechanism_for, randomize_rows, record_rows


@dataclass(frozen=True)
class Report:
    """What leaves a person's side: a noisy gradient and its budget.

    Parameters
    ----------
    gradient
        (d,), finite.
    budget
        The budget that the noise was calibrated to.
    private
        False if the report was made without noise or with a seed.
    """

    gradient: np.ndarray
    budget: Budget
    private: bool = True


@dataclass(frozen=True)
class Randomizer:
    """The local half: theta, and how to make a noisy gradient at it. It holds no data of anyone; a client can hold it.

    A call with a record gives a `Report`. A report that was made at an older theta may still be absorbed: it protects
    as well, and only its direction is out of date. Threads may share a randomizer.

    Parameters
    ----------
    theta
        (d,), where the gradient is taken; a copy is kept. It may come from an untrusted source.
    loss, budget, mechanism
        What the client agrees to: a `Loss`, the budget of a record without one, and the name or class of a mechanism.
    features, intercept
        The names of the features, and whether a constant 1 follows them.
    rng
        The source of the noise; cryptographic by default.

    Raises `ConfigError` for a theta of the wrong shape, not finite, or outside the domain that the loss's sensitivity
    assumes, and for a mechanism that cannot be calibrated; `BudgetError` for a budget that cannot be served.
    """

    theta: np.ndarray
    loss: Loss
    features: tuple[Any, ...]
    intercept: bool
    budget: Budget
    mechanism: str | type[Mechanism]
    rng: Entropy | SeededEntropy = field(default_factory=Entropy, repr=False, compare=False)

    def __post_init__(self) -> None:
        theta = np.array(self.theta, dtype=float)
        self.loss.check_theta(theta, self._columns)
        theta.flags.writeable = False
        object.__setattr__(self, "theta", theta)
        self._calibrated(self.budget)

    @property
    def _columns(self) -> int:
        return len(self.features) + bool(self.intercept)

    def _calibrated(self, budget: Budget) -> Mechanism:
        kind: Any = mechanism_for(self.mechanism, budget)
        mechanism: Mechanism = calibrated(kind, budget, self.loss.bound, self.loss.sensitivity)
        return mechanism

    def __call__(self, x: Mapping[Any, Any], y: float, *, budget: Budget | str | None = None) -> Report:
        """Randomise one record.

        Parameters
        ----------
        x
            Features by name; missing ones count as 0.
        y
            The target; for classifiers the index of the class.
        budget
            What the report spends; the agreed budget if None.

        Raises `SchemaError` if a value is not a finite number or y is no class, `BudgetError` for a budget that cannot
        be served.
        """
        spend = self.budget if budget is None else parse_budget(budget)
        try:
            row = np.array([x.get(name, 0.0) for name in self.features] + [1.0] * bool(self.intercept), dtype=float)
            target = float(y)
        except (TypeError, ValueError):
            raise SchemaError("x, y: expected numbers") from None
        if not (np.isfinite(row).all() and np.isfinite(target)):
            raise SchemaError("x, y: expected finite numbers, got NaN or an infinity")
        gradient = self.loss.gradient(self.theta, row, target)[None, :]
        mechanism, d = self._calibrated(spend), len(self.theta)
        rows = mechanism.rows(d) if budget is None else record_rows(mechanism, d)
        randomize_rows(mechanism.code, rows, gradient, self.rng)
        return Report(gradient[0], spend, self.rng.private and mechanism.code != NoNoise.code)
