"""Predictions of a committed model for raw records."""

import numpy as np
import polars as pl

from streamdp.config.schema import TargetConfig
from streamdp.data.notation import Notation
from streamdp.data.records import Batch
from streamdp.estimators.targets import Classifier
from streamdp.serving.publish import need_model
from streamdp.serving.snapshots import Model


class Predicting:
    """Encodes the feature columns of raw records, with numbers in a `notation` (None: the usual one), and predicts."""

    def __init__(self, model: Model, notation: Notation | None = None) -> None:
        need_model(model.estimator)
        model.estimator.need_learned("predict")
        declared = model.definition.schema_
        features = {"target": TargetConfig(column=""), "subject": None, "budget": None, "time": None}
        schema = declared.model_copy(update=features).build()
        self.encoder = schema if notation is None else schema.reading(notation)  # of raw records without targets
        self._model = model
        estimator = model.estimator
        self.classes = declared.target.classes  # of a classifier; None for a regression
        self.columns = self.encoder.feature_columns  # the raw columns that it reads
        # the classes that it has probabilities for; empty if it has none
        self.labels = (self.classes or []) if isinstance(estimator, Classifier) and estimator.probabilistic else []

    def encode(self, frame: pl.DataFrame) -> Batch:
        """Encode a `frame` of `columns`, by rows from 0."""
        return self.encoder.encode(frame, np.arange(frame.height), {})

    def of(self, batch: Batch) -> tuple[np.ndarray, list[object], np.ndarray | None]:
        """For a batch: rows (m,) that fit the schema, predictions, and probabilities (m, K) or None."""
        if not len(batch):
            return batch.positions, [], np.empty((0, len(self.labels))) if self.labels else None
        return batch.positions, *predictions(self._model, batch.X)

    def every(self, batch: Batch, count: int) -> list[list[object]]:
        """For a batch of `count` records: predictions, and probabilities by class; None where one does not fit."""
        places, predicted, shares = self.of(batch)
        columns = [predicted, *([] if shares is None else shares.T.tolist())]
        if len(places) == count:
            return columns
        out: list[list[object]] = [[None] * count for _ in columns]
        for filled, column in zip(out, columns, strict=True):
            for place, value in zip(places.tolist(), column, strict=True):
                filled[place] = value
        return out


def predictions(model: Model, X: np.ndarray) -> tuple[list[object], np.ndarray | None]:
    """From encoded features X (n, p): predictions, and probabilities (n, K) of the classes or None.

    While nothing is learned, each prediction is None.
    """
    estimator = model.estimator
    if not estimator.learner.n_released:
        return [None] * len(X), None
    target = model.definition.schema_.target
    if target.classes is None:
        return (estimator.predict_encoded(X) * (target.scale or 1.0)).tolist(), None
    shares = None
    if isinstance(estimator, Classifier) and estimator.probabilistic:
        shares = estimator.predict_proba_encoded(X)
    found = estimator.predict_encoded(X) if shares is None else np.argmax(shares, axis=1)
    return np.array(target.classes, dtype=object)[found.astype(int)].tolist(), shares
