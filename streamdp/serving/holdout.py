"""Measures of a committed model on a public holdout file. They spend no budget."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from streamdp.config.file import FileSourceConfig, file_type
from streamdp.config.job import JobConfig
from streamdp.errors import SourceError
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.targets import Classifier
from streamdp.optim.losses import loss_for

HOLDOUT_NOTE = "measured on a holdout file that was declared public; it spends nothing and is not protected"

WORSE = "on the public holdout, the model is worse than the best constant"


class Holdout:
    """A public file, the `holdout` of a job, with records to measure committed models on.

    It needs the job's columns, except those of the subject and the budget. Raises `SourceError` if the file cannot be
    read or has no records, and `SchemaError` if it does not fit the schema.
    """

    def __init__(self, config: JobConfig) -> None:
        path = config.holdout
        assert path is not None
        target = config.schema_.target.model_copy(update={"bounds": None})  # errors beyond the bounds count in full
        public = config.schema_.model_copy(update={"subject": None, "budget": None, "target": target})
        if isinstance(config.source, FileSourceConfig):
            file = config.source.for_file(path)
        else:
            file = FileSourceConfig(type=file_type(path), path=path)
        with closing(file.build(public.build())) as source:
            batches = [source.poll(1 << 20, 1.0)]
            while not source.finished:
                batches.append(source.poll(1 << 20, 1.0))
        self._X = np.concatenate([batch.X for batch in batches])
        self._y = np.concatenate([batch.y for batch in batches])
        self._scale = config.schema_.target.scale or 1.0
        self._classes = config.schema_.target.classes
        if not len(self._y):
            raise SourceError(f"{path}: the holdout has no records")

    def measure(self, estimator: Estimator) -> dict[str, object] | None:
        """Measure an `estimator` of the job; None while nothing is learned.

        Returns the accuracy and, if the loss gives probabilities, the log loss of a classifier; or the mean absolute
        and the root mean squared error of a regressor, in the unit of the target column. If all of them are worse than
        those of the best constant, `warning` says so; not for a quantile other than the median, which they do not
        measure.
        """
        if not estimator.learner.n_released:
            return None
        found = self._measures(estimator)
        if loss_for(estimator.loss).level == 0.5 and (worse := _worse(found, self.constant())):
            found["warning"] = f"{WORSE}: {worse}"
        return found

    def _measures(self, estimator: Estimator) -> dict[str, object]:
        out: dict[str, object] = {"records": len(self._y)}
        predicted = estimator.predict_encoded(self._X)
        if self._classes is None:
            error = (predicted - self._y) * self._scale
            out["mean_absolute_error"] = float(np.mean(np.abs(error)))
            out["root_mean_squared_error"] = float(np.sqrt(np.mean(error**2)))
            return out | {"note": HOLDOUT_NOTE}
        out["accuracy"] = float(np.mean(predicted == self._y))
        if isinstance(estimator, Classifier) and estimator.probabilistic:
            likelihood = estimator.predict_proba_encoded(self._X)[np.arange(len(self._y)), self._y.astype(int)]
            out["log_loss"] = float(-np.mean(np.log(np.maximum(likelihood, 1e-300))))
        return out | {"note": HOLDOUT_NOTE}

    def constant(self) -> dict[str, float]:
        """Return the same measures, each of the best constant for it: mean, median, or shares of the classes."""
        if self._classes is None:
            y = self._y * self._scale
            absolute = float(np.mean(np.abs(y - np.median(y))))
            return {"mean_absolute_error": absolute, "root_mean_squared_error": float(np.std(y))}
        shares = np.bincount(self._y.astype(int)) / len(self._y)
        shares = shares[shares > 0]
        return {"accuracy": float(shares.max()), "log_loss": float(-(shares * np.log(shares)).sum())}


def _worse(found: Mapping[str, Any], constant: Mapping[str, float]) -> str:
    """The measures beside those of the constant if all are worse; otherwise ""."""
    both = {name: (found[name], constant[name]) for name in constant if name in found}
    if any(model >= best if name == "accuracy" else model <= best for name, (model, best) in both.items()):
        return ""
    texts = (f"{name.replace('_', ' ')} {model:.4g} beside {best:.4g}" for name, (model, best) in both.items())
    return ", ".join(texts)
