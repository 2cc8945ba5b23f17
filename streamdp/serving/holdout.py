"""A public holdout file, on which committed models are measured; it spends nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from streamdp.config.job import JobConfig
from streamdp.errors import SourceError
from streamdp.estimators.base import StreamEstimator
from streamdp.estimators.targets import LinearClassifier, LinearRegressor

HOLDOUT_NOTE = "measured on a holdout file that was declared public; it spends nothing and is not protected"


class Holdout:
    """A public file of the job's columns (subject and budget may be missing), to measure committed models on.

    Raises `SourceError` and `SchemaError` where the file cannot be read or does not fit.
    """

    def __init__(self, config: JobConfig) -> None:
        path = config.holdout
        assert path is not None
        public = config.schema_.model_copy(update={"subject": None, "budget": None})
        source = config.source.for_file(path).build(public.build())
        batches = []
        while not source.finished:
            batches.append(source.poll(1 << 20, 1.0))
        source.close()
        self._X = np.concatenate([batch.X for batch in batches]) if batches else np.zeros((0, 0))
        self._y = np.concatenate([batch.y for batch in batches]) if batches else np.zeros(0)
        self._scale = config.schema_.target.scale or 1.0
        if not len(self._y):
            raise SourceError(f"{path}: the holdout has no records")

    def measure(self, estimator: StreamEstimator) -> dict[str, Any]:
        """Accuracy and log loss, or mean absolute and root mean squared error in the target's own unit."""
        out: dict[str, Any] = {"records": len(self._y)}
        if isinstance(estimator, LinearClassifier):
            out["accuracy"] = float(np.mean(estimator.predict_arrays(self._X) == self._y))
            with contextlib.suppress(NotImplementedError):  # the hinge loss has no probabilities
                likelihood = probabilities(estimator, self._X)[np.arange(len(self._y)), self._y.astype(int)]
                out["log_loss"] = float(-np.mean(np.log(np.maximum(likelihood, 1e-300))))
        elif isinstance(estimator, LinearRegressor):
            error = (estimator.predict_arrays(self._X) - self._y) * self._scale
            out["mean_absolute_error"] = float(np.mean(np.abs(error)))
            out["root_mean_squared_error"] = float(np.sqrt(np.mean(error**2)))
        return out | {"note": HOLDOUT_NOTE}


def probabilities(estimator: LinearClassifier, X: np.ndarray) -> np.ndarray:
    """The (n, K) class probabilities. Raises `NotImplementedError` where the loss gives none."""
    if not estimator.probabilistic:
        raise NotImplementedError("the hinge loss gives no probabilities")
    return estimator.predict_proba_arrays(X)
