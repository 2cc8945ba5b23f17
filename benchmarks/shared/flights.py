"""The flights of the demo as benchmarks learn them: January to November as a stream, December held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from examples.flights import fitted
from streamdp import LDPASGDClassifier, LDPASGDRegressor, datasets
from streamdp.data.records import Batch, Position
from streamdp.data.schema import Schema
from streamdp.datasets import HOLDOUT_MONTHS, TRAINING_MONTHS

COLUMNS = {name: declared for name, declared in datasets.FLIGHTS_SCHEMA["features"].items() if name != "season"}
JOBS: dict[str, tuple[str, tuple[float, float], tuple[float, float] | None]] = {
    "delay": ("arr_delay", (-30, 180), (-60, 180)),
    "delay, raw bounds": ("arr_delay", (-600, 1800), (-600, 1800)),
    "late": ("late", (-30, 60), None),
}


def encoded_flights(schema: Schema) -> tuple[Batch, Batch]:
    """The stream, and December."""
    everything = datasets.flights()
    parts = []
    for months in (TRAINING_MONTHS, HOLDOUT_MONTHS):
        frame = everything.filter(pl.col("month").is_in(months))
        parts.append(schema.encode(frame, np.arange(frame.height), Position()))
    return parts[0], parts[1]


class Flights:
    """One job on the flights: the encoded stream and December."""

    def __init__(self, job: str) -> None:
        self.column, delays, self.target = JOBS[job]
        self.features = COLUMNS | {"dep_delay": delays}
        classes = None if self.target else ["False", "True"]
        schema = Schema(self.features, self.column, target_bounds=self.target, classes=classes, budget="budget")
        stream, december = encoded_flights(schema)
        assert stream.budgets is not None
        self.X, self.y, self.budgets = stream.X, stream.y, stream.budgets
        self.holdout, self.truth = december.X, december.y

    def score(self, predicted: Any) -> float:
        """Minutes of mean absolute error, or the share of right answers in percent."""
        if self.target is None:
            return 100 * float(np.mean(predicted == self.truth))
        return float(np.mean(np.abs(predicted - np.clip(self.truth, -60, 180))))

    def constant(self) -> float:
        """The score of the best constant of the stream."""
        return self.score(
            np.full(len(self.truth), np.round(np.mean(self.y)) if self.target is None else np.median(self.y))
        )

    def model(self, budget: str) -> Any:
        """An estimator that has learned nothing."""
        if self.target is None:
            return LDPASGDClassifier(features=self.features, budget=budget)
        return LDPASGDRegressor(features=self.features, target=self.target, budget=budget)

    def learned(self, budget: str, mixed: bool, records: int | None = None) -> float:
        """The score after one draw of noise."""
        model = self.model(budget)
        model.learn_encoded(self.X[:records], self.y[:records], self.budgets[:records] if mixed else None)
        return self.score(model.predict_encoded(self.holdout))

    def without_privacy(self) -> float:
        """The score of scikit-learn's model of the same loss on standardised columns."""
        return self.score(fitted(self.X, self.y, self.target is None).predict(self.holdout))
