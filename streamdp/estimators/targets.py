"""Targets and predictions: numbers for regressors, declared classes for classifiers."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from river import base as river_base

from streamdp.data.floats import floats, number
from streamdp.data.records import RawRecord
from streamdp.errors import ConfigError, NotAvailableError, SchemaError
from streamdp.estimators.estimator import AnyLearner, Estimator
from streamdp.estimators.frames import as_frame, frame_like, names_of, series_like
from streamdp.estimators.labels import TRUTH_VALUES, number_of, numbers_of, numbers_of_array
from streamdp.estimators.prediction import Prediction
from streamdp.optim.losses import Logistic, Loss, LossName, Softmax, Squared, check_classes
from streamdp.validation.tasks import Classes, Numbers, Probabilities, Squares, Task

_LEAST = -700.0  # exp(-x) of it is within the doubles


@dataclass(eq=False, repr=False)
class Regressor(Estimator, river_base.MiniBatchRegressor):
    """Numbers as targets."""

    target: tuple[float, float] | Mapping[str, object] | None = field(default=None, kw_only=True)

    @cached_property
    def _of_log(self) -> bool:
        """Whether the log of the target is learned."""
        return not self._plain_targets

    @cached_property
    def _exponential(self) -> bool:
        """Whether the exponential of the linear predictor is predicted."""
        return self.link == "log"

    @property
    def cut(self) -> tuple[float, float] | None:
        bounds = super().cut
        if bounds is None or self._of_log or not self._exponential:
            return bounds
        low, high = (math.log(bound) if bound else _LEAST for bound in bounds)
        return max(low, _LEAST), high

    @cached_property
    def _cut(self) -> tuple[float, float] | None:
        return self.cut

    @property
    def _has_open_target(self) -> bool:
        return self.target is None

    def _resolve_loss(self) -> Loss:
        loss = super()._resolve_loss()
        if loss.log_link and self._of_log:
            raise ConfigError(f"target: loss {loss.name} learns the target as it comes: declare it without transform")
        return loss

    def _target_bounds(self) -> tuple[float, float] | None:
        if self.target is None:
            return None
        from streamdp.data.declaration import declared_bounds  # it needs polars, which takes half a second to import

        declared: Any = self.target
        if self._of_log:
            if declared.keys() != {"bounds", "transform"} or declared["transform"] != "log":
                raise SchemaError('target: expected (low, high), or {"bounds": (low, high), "transform": "log"}')
            declared = declared["bounds"]
        low, high = declared_bounds("target", declared)
        if not 2e-60 <= high - low <= 2e60:  # beyond, squares leave the doubles
            raise SchemaError("target: expected bounds at a distance from 2e-60 to 2e60")
        if not self._of_log:
            return low, high
        if not low > 0:
            raise SchemaError("target: log needs bounds above 0")
        return float(np.log(low)), float(np.log(high))

    def _of_target(self, value: float) -> float:
        return math.exp(value) if self._of_log else value

    def _encode_targets(self, y: object) -> np.ndarray:
        if isinstance(y, np.ndarray) and y.dtype.kind in "iuf":
            return self._learned_targets(floats("y", y))
        return super()._encode_targets(y)

    def _encode_target(self, y: object) -> float:
        value = y if type(y) is float else number("target", y)
        if not math.isfinite(value):
            raise SchemaError("target: expected a finite number, got NaN or an infinity")
        if self._of_log:
            return float(self._learned_targets(np.array([value]))[0])
        low, high = self.learner.problem.target or (-math.inf, math.inf)
        return min(max(value, low), high)

    def _learned_targets(self, y: np.ndarray) -> np.ndarray:
        declared: Any = self.target
        bounds = declared["bounds"] if self._of_log else self.learner.problem.target
        if bounds is None:
            return y
        clipped = np.clip(y, *bounds)
        return np.where(np.isfinite(y), np.log(clipped) if self._of_log else clipped, y)  # others are refused

    def _learner(self, kind: type[AnyLearner], what: str) -> AnyLearner:
        if what == "randomizer" and self._exponential:
            raise NotAvailableError("randomizer: a device takes no log; declare target=(low, high), with another loss")
        return super()._learner(kind, what)

    def model_dict(self) -> dict[str, object]:
        return super().model_dict() | {"link": self.link}

    def predict_one(self, x: RawRecord, **kwargs: object) -> float:
        """Return the prediction for one record, as River expects also with nothing learned; 0 without known features.

        With a log target it is the exponential of the prediction of the log, which is a median, and not a mean; with
        loss "poisson" it is the mean.

        Parameters
        ----------
        x
            Features by name, as for `learn_one`.
        kwargs
            Ignored: River passes the keyword arguments of `learn_one`.
        """
        if (prediction := self.prediction) is None:
            return 0.0
        predictor = prediction.predictor
        scores = None if predictor is None else predictor.scores_of(x)
        (score,) = scores or prediction.of_record(x)
        if self._cut is not None:
            score = min(max(score, self._cut[0]), self._cut[1])
        return float(np.exp(score)) if self._exponential else score

    def predict_many(self, X: Any) -> Any:
        """Return the predictions for the rows of a frame, in its form.

        Parameters
        ----------
        X
            One record a row, as for `learn_many`.

        Raises `SchemaError` for values that `predict_one` refuses.
        """
        X = as_frame(X)
        values = np.zeros(len(X)) if self._features is None else self._predicted(self._features.frame(X))
        return series_like(X, values)

    def _decided(self, scores: np.ndarray) -> np.ndarray:
        found = scores[:, 0] if self._cut is None else np.clip(scores[:, 0], *self._cut)
        return np.exp(found) if self._exponential else found

    def _target_task(self, loss: Loss) -> Task:
        if self._of_log:
            raise ConfigError("validation: answers are about the target as it comes: leave it out, or the transform")
        bounds = self._target_bounds()
        if isinstance(loss, Squared) and bounds is not None:
            return Squares(*bounds, exponential=loss.log_link)
        return Numbers(loss.level, *(bounds or (-math.inf, math.inf)))


@dataclass(eq=False, repr=False)
class Classifier(Estimator, river_base.MiniBatchClassifier):
    """Declared classes as targets, (False, True) by default: labels that come from the data would leak."""

    loss: LossName | Loss = "logistic"
    classes: Sequence[Hashable] | None = field(default=None, kw_only=True)
    _index: dict[Hashable, float] = field(init=False)
    predicts_classes = True
    probabilistic = True
    """Whether the loss gives probabilities of the classes."""

    def _set_up(self) -> None:
        try:
            self.labels: tuple[Hashable, ...] = TRUTH_VALUES if self.classes is None else tuple(self.classes)
            several = len(set(self.labels)) == len(self.labels) > 1
        except TypeError:  # no list, or a label without a hash
            several = False
        # Each process has its own order of a set, and states and reports number the labels.
        if isinstance(self.classes, str | bytes | set | frozenset) or not several:
            raise ConfigError("classes: expected a list of at least two labels and no label twice")
        self._index = numbers_of(self.labels)
        super()._set_up()

    @property
    def _multiclass(self) -> bool:
        return len(self.labels) > 2  # River's checks read it

    def _resolve_loss(self) -> Loss:
        loss = super()._resolve_loss()
        self.probabilistic = loss.probabilistic
        if self._multiclass and isinstance(loss, Logistic):
            return Softmax(clip=loss.clip)  # multinomial logistic is the logistic loss of many classes
        if self._multiclass and not loss.several:
            raise ConfigError(f"loss {loss.name} is for two classes; use softmax")
        return loss

    def model_dict(self) -> dict[str, object]:
        # Labels of numpy as those of Python: they are equal, and each version of numpy shows them in its own way.
        labels = [label.item() if isinstance(label, np.generic) else label for label in self.labels]
        return super().model_dict() | {"classes": [repr(label) for label in labels]}

    def _named(self, theta: np.ndarray, names: list[object]) -> dict[object, object]:
        if self.learner.problem.outputs == 1:
            return super()._named(theta, names)
        blocks = theta.reshape(self.learner.problem.outputs, -1)
        return {
            label: dict(zip(names, block.tolist(), strict=True))
            for label, block in zip(self.labels, blocks, strict=True)
        }

    def _encode_target(self, y: object) -> float:
        return number_of(y, self._index)

    def _encode_targets(self, y: object) -> np.ndarray:
        found = numbers_of_array(y, self._index) if isinstance(y, np.ndarray) else None
        return super()._encode_targets(y) if found is None else found

    def _check_targets(self, y: np.ndarray) -> None:
        check_classes(y, len(self.labels))

    def predict_one(self, x: RawRecord, **kwargs: object) -> Any:
        """Return the most probable declared class.

        Parameters
        ----------
        x
            Features by name, as for `learn_one`.
        kwargs
            Ignored: River passes the keyword arguments of `learn_one`.
        """
        if (prediction := self.prediction) is None:
            return self.labels[0]
        if (score := self._score_of(prediction, x)) is None:
            scores = prediction.of_record(x)
            return self.labels[scores.index(max(scores))]
        return self.labels[score > 0]

    def predict_proba_one(self, x: RawRecord, **kwargs: object) -> dict[Any, float]:
        """Return the probability of each declared class; see `moderation` for LDP learners of two classes.

        Parameters
        ----------
        x
            Features by name, as for `learn_one`.
        kwargs
            Ignored: River passes the keyword arguments of `learn_one`.

        Raises `NotImplementedError` for the hinge loss, which has no probabilities.
        """
        if (prediction := self.prediction) is None or not self.probabilistic:
            self._need_probabilities()
            return dict.fromkeys(self.labels, 1 / len(self.labels))
        if (score := self._score_of(prediction, x)) is None:
            shares = scipy.special.softmax(prediction.of_record(x)).tolist()
            return dict(zip(self.labels, shares, strict=True))
        no, yes = self.labels
        p = 1 / (1 + math.exp(-score if score > _LEAST else -_LEAST))
        return {no: 1 - p, yes: p}

    def predict_many(self, X: Any) -> Any:
        """Return the most probable classes for the rows of a frame, in its form.

        Parameters
        ----------
        X
            One record a row, as for `learn_many`.

        Raises `SchemaError` for values that `predict_one` refuses.
        """
        X = as_frame(X)
        k = np.zeros(len(X), dtype=int) if self._features is None else self._predicted(self._features.frame(X))
        return series_like(X, self._shown(k)) if names_of(X) is None else series_like(X, k, self.labels)

    def _shown(self, predicted: np.ndarray) -> np.ndarray:
        known: np.ndarray = np.array([*self.labels, None], dtype=object)  # None: a label that is a tuple stays one
        kinds = {type(label) for label in self.labels}
        if len(kinds) == 1 and kinds <= {bool, int, float, str}:
            simple = np.array(self.labels)
            if simple.tolist() == list(self.labels):  # texts of numpy have no NUL at their end
                known = simple
        return known[predicted]

    def decision_many(self, X: object) -> np.ndarray:
        """Return the linear predictors of the rows of a frame: (n,) of two classes, above 0 for the second, or (n, K).

        Parameters
        ----------
        X
            One record a row, as for `learn_many`.

        Raises `SchemaError` for values that `predict_one` refuses, and `NotAvailableError` while nothing is learned.
        """
        self.need_learned("decision_many")
        assert self._features is not None
        scores = self._scores(self._predicting("decision_many"), self._features.frame(as_frame(X)))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba_many(self, X: Any) -> Any:
        """Return the probabilities for the rows of a frame, in its form, one column for each class.

        Parameters
        ----------
        X
            One record a row, as for `learn_many`.

        Raises `SchemaError` for values that `predict_one` refuses, and `NotImplementedError` for the hinge loss, which
        has no probabilities.
        """
        self._need_probabilities()
        X = as_frame(X)
        if self._features is None:
            values = np.full((len(X), len(self.labels)), 1 / len(self.labels))
        else:
            values = self.predict_proba_encoded(self._features.frame(X))
        return frame_like(X, values, self.labels)

    def _decided(self, scores: np.ndarray) -> np.ndarray:
        return np.argmax(scores, axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)

    def _target_task(self, loss: Loss) -> Task:
        return (Probabilities if loss.probabilistic else Classes)(len(self.labels))

    def predict_proba_arrays(self, X: np.ndarray) -> np.ndarray:
        """Return the (n, K) probabilities of the classes, in their order, if the loss has probabilities: not of hinge.

        Parameters
        ----------
        X
            As for `learn_arrays`.

        Raises `SchemaError` for what `learn_arrays` refuses, and `NotAvailableError` while nothing is learned.
        """
        self._need_features("predict_proba_arrays")
        rows = self._raw_rows(X)
        self.need_learned("predict_proba_arrays")
        return self.predict_proba_encoded(rows)

    def predict_proba_encoded(self, X: np.ndarray) -> np.ndarray:
        """As `predict_proba_arrays`, of encoded columns.

        Parameters
        ----------
        X
            As for `learn_encoded`.

        Raises `SchemaError` for another shape, and for NaN and infinities.
        """
        return self._shares(self._predicting("predict_proba_encoded"), self._finite_rows(self._encoded_rows(X)))

    def _shares(self, prediction: Prediction, X: np.ndarray) -> np.ndarray:
        """The probabilities (n, K) of the classes for clean encoded columns."""
        scores = self._scores(prediction, X)
        if self.learner.problem.outputs > 1:
            return scipy.special.softmax(scores, axis=1)
        p = scipy.special.expit(scores)
        return np.hstack([1 - p, p])

    def _scores(self, prediction: Prediction, X: np.ndarray) -> np.ndarray:
        return prediction.reader().moderate(X, self.learner.noise)

    def _score_of(self, prediction: Prediction, x: RawRecord) -> float | None:
        """The linear predictor of one record, see `moderation`; None for several outputs."""
        reader = prediction.predictor or prediction.reader()
        score = reader.moderated(x)
        if score is None and self.learner.problem.outputs == 1:
            reader.know(self.learner.noise)
            if (score := reader.moderated(x)) is None:  # the record is not for the fast way
                score = float(self._scores(prediction, self._need_features("predict_one").row_of(x))[0, 0])
        return score

    def _need_probabilities(self) -> None:
        if not self.probabilistic:
            raise NotImplementedError("the hinge loss gives no probabilities")
