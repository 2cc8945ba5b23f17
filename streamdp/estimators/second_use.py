"""What records are used for beside what is learned: nothing, answers about the model's error, or statistics.

An estimator has one second use. It says what a record spends in all, and passes records on to the learner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.estimators.prediction import Prediction
from streamdp.learners.learner import Collector, Learner, People
from streamdp.privacy.guarantees import Budget
from streamdp.validation.quality import Quality


class SecondUse:
    """No second use: each record is learned. `spend` is all that a record spends."""

    learns_only = True
    """Whether each record is learned and nothing else, so that the compiled fast path may learn it."""
    takes_records = False
    """Whether some records are not learned, but used here."""
    private = True
    """Whether its noise is that of the operating system."""
    statistics: Any = None
    """Statistics of the records, as an estimator to be read; None: there are none."""
    quality: Quality | None = None
    """What private answers say about the model; None: there are none."""

    def __init__(self, spend: Budget) -> None:
        self.spend = spend

    def begin(self, learner: Learner, prediction: Prediction, seed: int | None) -> None:
        """Begin without records, with the seed of the noise, if there is one."""

    def check(self, X: np.ndarray, y: np.ndarray) -> None:
        """Raise `SchemaError` unless rows X, y may be used here."""

    def learn(
        self, learner: Learner, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None
    ) -> None:
        """As `Learner.learn` of the `learner`, and use the rows."""
        learner.learn(X, y, budget, amounts)

    def gather(
        self, collector: Collector, X: np.ndarray, y: np.ndarray, people: Sequence[bytes | None], admission: People
    ) -> np.ndarray | None:
        """As `Collector.gather` of the `collector`, and use the rows."""
        return collector.gather(X, y, people, admission)

    def close(self, learner: Learner) -> None:
        """Come to a boundary, after the learner did."""

    def discard(self) -> None:
        """Discard an open batch."""

    def caveats(self, learner: Learner) -> list[str]:
        """Notes for the statement."""
        return []

    def model(self) -> dict[str, Any]:
        """What two estimators must share for their states to mean the same, under a name."""
        return {}

    def state(self) -> dict[str, Any]:
        """What was found, as plain values and new arrays, under a name."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises `ConfigError` for numbers out of range."""

    def take_sum(self, parts: Sequence[Self]) -> None:
        """Take over what others have found, of disjoint records."""
