"""scikit-learn's interface: `fit`, `partial_fit` and `predict` on arrays and frames. Needs the extra `sklearn`.

The caller holds the rows anyway, so by default a fit is one window of people, a row each: the model is released once,
and the copies of the rows are overwritten. Other trust models are a parameter. A fit spends the budget of each row
once. Bounds, categories and classes are public facts, to be declared. Statistics of the rows, such as those of a scaler
in front, are not protected; a fit warns if its rows look like the output of one.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, Self

import numpy as np

from streamdp import estimators
from streamdp.config.trust import ANSWERS, NEED_DELTA, WHOLE_FILE, usual_delta
from streamdp.data.floats import floats
from streamdp.data.late import pl
from streamdp.errors import (
    ConfigError,
    DoubtWarning,
    PrivacyWarning,
    SchemaError,
    TooFewUsersError,
    check_choice,
    is_number,
    needing,
)
from streamdp.estimators.door import Trust, chosen
from streamdp.estimators.frames import as_frame
from streamdp.estimators.hints import NO_WEIGHTS, check_parameters
from streamdp.estimators.parameters import documented
from streamdp.estimators.traps import say_nothing, warn_if_many, warn_if_repeated, warn_if_scaled
from streamdp.optim.losses import Hinge, Loss, LossName
from streamdp.privacy.guarantees import parse_budget, with_delta
from streamdp.privacy.statement import with_notes

with needing("streamdp.sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

_NUMBERS = "expected numbers; a frame with text needs features={...}, with the categories of its columns"
__all__ = ["PrivateClassifier", "PrivateRegressor"]


@dataclass(eq=False, repr=False, kw_only=True)
class _Private(BaseEstimator):  # type: ignore[misc]
    """What both estimators share.

    Guarantee, source: those of the estimator that `trust` chooses, for each row.

    Parameters
    ----------
    features
        The public schema of a frame with raw values, as `WindowedRegressor` and `WindowedClassifier` take it. None: X
        has numbers.
    bounds
        Public bounds (low, high) of all columns of numbers, or a list of such pairs, one a column. None: the columns
        have a scale of about 1.
    target
        Public bounds (low, high) of the target. None: it has a scale of about 1.
    classes
        The public labels. None: those of the first rows, with a `PrivacyWarning`, because they come from the data.
    trust
        Who may see the raw rows while they are processed: `window` (this process, which holds them until the model is
        released), `process` (this process, and nothing stays), `shuffler` or `nobody` (LDP).
    budget
        What a row spends, such as `eps=1`. A delta that is needed and not given is below a tenth of 1 / n after `fit`,
        and 1e-8 after `partial_fit` alone.
    fit_intercept
        Whether there is an intercept.
    random_state
        For tests only: a model with a seed is not private.
    loss
        {losses}, or a loss.
    """

    features: Mapping[str, Any] | None = None
    bounds: tuple[float, float] | Sequence[tuple[float, float]] | None = None
    trust: Trust = "window"
    budget: str = "eps=1"
    loss: LossName | Loss = "huber"
    fit_intercept: bool = True
    random_state: object = None

    def __new__(cls, *_: object, **given: object) -> Self:
        """Make an estimator. Raises `ConfigError` for a parameter that it does not have."""
        check_parameters(cls, given)
        return super().__new__(cls)

    def fit(self, X: Any, y: Any, **unknown: Any) -> Self:
        """Learn rows in order, once, from the beginning.

        `X` has (n, p) numbers, or is a frame with raw values if `features` declares them; `y` has n targets. Raises
        `ConfigError` for what is `unknown`, such as `sample_weight`, because records have no weights; `ValueError` for
        rows that are no finite numbers, and `SchemaError`, which is one, for raw values that do not fit.

        Fewer rows than a window can be released with are learned as by trust="process", with the same budget, and need
        declared bounds: otherwise there is a `TooFewUsersError`. A `streamdp.errors.DoubtWarning` says so, and why a
        model may be no better than a constant.
        """
        if unknown:
            raise ConfigError(
                NO_WEIGHTS if "sample_weight" in unknown else f"fit: takes X and y, and no {next(iter(unknown))}"
            )
        self._learn(X, y, first=True, whole=True)
        for doubt in self.model_.doubts:
            warnings.warn(f"{type(self).__name__}: {doubt}", DoubtWarning, stacklevel=2)
        return self

    def __sklearn_clone__(self) -> Self:
        self._n_clones = getattr(self, "_n_clones", 0) + 1
        if self._n_clones == 2:
            message = (
                f"{type(self).__name__} is cloned again, as GridSearchCV and cross_val_score do: each fit spends the"
                " budget of its rows again, and no statement adds the fits up. Choose parameters on public data, or"
                " divide the budget by the number of fits"
            )
            warnings.warn(message, PrivacyWarning, stacklevel=3)
        return super().__sklearn_clone__()

    @property
    def coef_(self) -> np.ndarray:
        """The weights in original units, after a fit: (p,) of a regressor, (1, p) for two classes, (K, p) for K.

        With `features`, a category has a column for each level but the first, as `model_.weights` names them.
        """
        return self._blocks()[0]

    @property
    def intercept_(self) -> Any:
        """The intercept, after a fit: a number of a regressor, (1,) for two classes, (K,) for K."""
        return self._blocks()[1]

    def _blocks(self) -> tuple[np.ndarray, object]:
        check_is_fitted(self, "model_")
        weights = self.model_.weights
        several = any(isinstance(block, dict) for block in weights.values())
        rows = [
            [number for name, number in block.items() if name != "(error spread)"]
            for block in (weights.values() if several else [weights])
        ]
        rows = [[second - first for first, second in zip(*rows, strict=True)]] if len(rows) == 2 else rows
        found = np.array(rows if isinstance(self, PrivateClassifier) else rows[0])
        if not self.model_.intercept:
            return found, np.zeros(len(rows)) if isinstance(self, PrivateClassifier) else 0.0
        return found[..., :-1], found[..., -1]

    def statement(self) -> str:
        """Return the guarantee in words, after a fit."""
        check_is_fitted(self, "model_")
        return self.model_.statement()

    def _tagged(self, tags: Any, of_kind: Any) -> object:
        """What scikit-learn may expect: with some hundred rows and a budget, no good score."""
        tags.non_deterministic = self.random_state is None
        tags.input_tags.string = tags.input_tags.categorical = self.features is not None
        of_kind.poor_score = True
        return tags

    def _learn(self, X: object, y: object, *, first: bool, whole: bool = False) -> Self:
        raise NotImplementedError

    def _rows(self, X: Any, first: bool) -> Any:
        """The rows of a prediction or of a step: checked numbers, or a frame with raw values."""
        if self.features is None:
            return _checked(validate_data, self, X, reset=first, dtype=float)
        if not hasattr(X, "columns"):
            raise SchemaError("X: expected a frame with the declared features as columns")
        if first:
            self.feature_names_in_ = np.array([*X.columns], dtype=object)
            self.n_features_in_ = len(self.feature_names_in_)
        return X

    def _public(self, p: int) -> Mapping[str, object] | list[str]:
        """The declared features, or columns with common bounds."""
        if self.features is not None:
            return self.features
        names = [f"x{j}" for j in range(p)]
        if self.bounds is None:
            return names
        if not isinstance(self.bounds, tuple | list | np.ndarray):
            raise ConfigError(f"bounds: expected two numbers (low, high), got {type(self.bounds).__name__}")
        bounds = tuple(self.bounds)
        if len(bounds) == 2 and all(map(is_number, bounds)):
            return dict.fromkeys(names, bounds)
        pairs = [tuple(pair) if isinstance(pair, tuple | list | np.ndarray) else () for pair in bounds]
        if len(pairs) != p or not all(len(pair) == 2 and all(map(is_number, pair)) for pair in pairs):
            need = f"two numbers (low, high) for all columns, or a list of {p} such pairs; or `features`"
            raise ConfigError(f"bounds: expected {need}")
        return dict(zip(names, pairs, strict=True))

    def _seed(self) -> int | None:
        return None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))

    def _begins(self) -> bool:
        """Whether there is no model yet. Raises `ConfigError` if there is one with other parameters."""
        if not hasattr(self, "model_"):
            return True
        begun = self._begun.items()
        if changed := [
            name for name, one in begun if (now := getattr(self, name)) is not one and repr(now) != repr(one)
        ]:
            said = f"the model goes on with {' and '.join(changed)} as before"
            raise ConfigError(f"partial_fit: {said}: set what was changed back, or call fit, which begins anew")
        return False

    def _begin(self, labelled: bool, X: Any, rows: int | None, **given: Any) -> None:
        """Make the model. `rows` is how many there are in all, which is public; None if it is not known."""
        check_choice("trust", self.trust, tuple(ANSWERS))
        budget = with_delta(self.budget, usual_delta(rows)) if self.trust in NEED_DELTA else parse_budget(self.budget)
        given |= {"loss": self.loss, "budget": budget, "intercept": self.fit_intercept, "seed": self._seed()}
        given |= {"features": self._public(X.shape[1])}
        window = {"window": WHOLE_FILE, "items_per_user": 1} if self.trust == "window" else {}
        model = getattr(estimators, chosen(self.trust, classes=labelled))(**given, **window)
        if window and rows is not None and rows < (needed := model.learner.least_users):
            said = f"{rows} rows are too few for a window with {budget}, which needs {needed:,}"
            if model.learner.bounds_from is not None:
                raise TooFewUsersError(f"fit: n_samples = {rows}: {said}: bounds: private needs a window", needed)
            said = f'{type(self).__name__}: {said}: they are learned as by trust="process"'
            warnings.warn(said, DoubtWarning, stacklevel=4)
            model = getattr(estimators, chosen("process", classes=labelled))(**given)
        say_nothing(model, "repeats")
        if rows is not None:
            warn_if_many(model, rows)
        self._begun, self.model_ = self.get_params(), model

    def _step(self, X: Any, y: Any) -> None:
        if self.features is None:
            warn_if_scaled(self, X, self.bounds)
            X = self._frame(X)
        self.model_.learn_many(X, y)
        self.model_.close_batch()

    def _frame(self, X: np.ndarray) -> Any:
        if self.bounds is None:
            return X
        return pl.DataFrame(X, schema=[f"x{j}" for j in range(X.shape[1])])

    def _predicted(self, X: object, method: str = "predict_many") -> Any:
        check_is_fitted(self, "model_")
        rows = self._rows(as_frame(X), False)
        self.model_.need_learned("predict")
        return getattr(self.model_, method)(rows if self.features is not None else self._frame(rows))


@documented(losses="`huber`, `squared`, `poisson` or `quantile`")
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A private linear model of numbers, as a regressor of scikit-learn.

    >>> import numpy as np
    >>> X = np.random.default_rng(1).uniform(-1, 1, (1000, 3))
    >>> model = PrivateRegressor(bounds=(-1, 1), target=(-2, 2)).fit(X, X.sum(axis=1) / 2)
    >>> model.predict(X).shape
    (1000,)
    """

    target: tuple[float, float] | None = None

    def __sklearn_tags__(self) -> object:
        tags = super().__sklearn_tags__()
        return self._tagged(tags, tags.regressor_tags)

    def partial_fit(self, X: object, y: object) -> Self:
        """Learn further rows, a window of their own; as `fit`, also for `X` and `y`, if there is no model yet."""
        return self._learn(X, y, first=self._begins())

    def predict(self, X: object) -> np.ndarray:
        """Return the (n,) predictions of `X`, which is as for `fit`."""
        return np.asarray(self._predicted(X), dtype=float)

    def _learn(self, X: object, y: Any, *, first: bool, whole: bool = False) -> Self:
        warn_if_repeated(self, X, y)
        X, y = self._rows(as_frame(X), first), floats("y", _checked(column_or_1d, as_frame(y), warn=True))
        _checked(check_consistent_length, X, y)
        rows = len(y) if whole else None
        if first:
            self._begin(False, X, rows, target=self.target)
        self._step(X, y)
        return self


def _is_hinge(loss: object) -> bool:
    return loss == "hinge" or isinstance(loss, Hinge)


def _has_probabilities(estimator: Any) -> bool:
    if _is_hinge(estimator.loss):
        raise AttributeError("the hinge loss gives no probabilities; use logistic or softmax")
    return True


_FROM_DATA = "the labels are taken from the data as public"


@documented(losses="`logistic`, `softmax` or `hinge`")
@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A private linear model of classes, as a classifier of scikit-learn.

    >>> import numpy as np
    >>> X = np.random.default_rng(1).uniform(-1, 1, (1000, 3))
    >>> model = PrivateClassifier(bounds=(-1, 1), classes=[False, True]).fit(X, X[:, 0] > 0)
    >>> model.predict_proba(X).shape
    (1000, 2)
    """

    classes: Sequence[Any] | None = None
    loss: LossName | Loss = "logistic"

    def __sklearn_tags__(self) -> object:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = not _is_hinge(self.loss)
        return self._tagged(tags, tags.classifier_tags)

    def partial_fit(self, X: object, y: object, classes: Sequence[object] | None = None) -> Self:
        """Learn further rows, a window of their own; as `fit`, also for `X` and `y`, if there is no model yet.

        `classes` are the public labels, if the constructor did not get them. Later calls ignore them.
        """
        return self._learn(X, y, first=self._begins(), classes=classes)

    def statement(self) -> str:
        """Return the guarantee in words, after a fit."""
        said = super().statement()
        return said if self._declared else with_notes(said, {}, [f"{_FROM_DATA}, so no guarantee covers who has them"])

    def predict(self, X: object) -> np.ndarray:
        """Return the (n,) most probable labels of `X`, which is as for `fit`."""
        best = np.asarray(self._predicted(X), dtype=int)
        return self.classes_[best]

    def decision_function(self, X: object) -> np.ndarray:
        """Return the linear predictors of `X`, which is as for `fit`: (n,) of two labels, else (n, K)."""
        found = np.asarray(self._predicted(X, "decision_many"), dtype=float)
        return found[:, 1] - found[:, 0] if found.ndim == len(self.classes_) == 2 else found

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: object) -> np.ndarray:
        """Return the logarithms of `predict_proba` of `X`."""
        with np.errstate(divide="ignore"):
            found: np.ndarray = np.log(self.predict_proba(X))
        return found

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: object) -> np.ndarray:
        """Return the (n, K) probabilities of the labels of `X`, which is as for `fit`.

        There is no such method with the hinge loss, as scikit-learn expects.
        """
        return np.asarray(self._predicted(X, "predict_proba_many"), dtype=float)

    def _learn(self, X: Any, y: Any, *, first: bool, whole: bool = False, classes: Sequence[Any] | None = None) -> Self:
        warn_if_repeated(self, X, y)
        X, y = self._rows(as_frame(X), first), _checked(column_or_1d, _labels("y", as_frame(y)), warn=True)
        _checked(check_consistent_length, X, y)
        _checked(check_classification_targets, y)
        rows = len(y) if whole else None
        if first:
            self._declare(y, self.classes if classes is None else classes)
            self._begin(True, X, rows, classes=list(range(len(self.classes_))))
        index = {label: k for k, label in enumerate(self.classes_.tolist())}
        codes = [index.get(label, -1) for label in y.tolist()]
        if -1 in codes:
            raise SchemaError(f"y: expected one of the {len(index)} declared classes")
        self._step(X, codes)
        return self

    def _declare(self, y: np.ndarray, classes: Sequence[object] | None) -> None:
        self._declared = classes is not None
        if not self._declared:
            warnings.warn(f"{_FROM_DATA}: declare classes=[...]", PrivacyWarning, stacklevel=4)
        self.classes_ = np.unique(y if classes is None else np.asarray(_labels("classes", classes)))
        if len(self.classes_) < 2:
            raise ConfigError("PrivateClassifier: expected at least two classes, got 1 class")
        if len(self.classes_) > 2 and _is_hinge(self.loss):  # as scikit-learn says it
            said = "Only binary classification is supported. The type of the target is multiclass"
            raise ConfigError(f"{said}: the hinge loss is for two classes; use softmax")


def _labels(name: str, given: object) -> Any:
    """What is `given`, unless numpy's array of it has other labels: texts without NUL at their end, or numbers as text.

    Raises `SchemaError`.
    """
    if isinstance(given, list | tuple) and any(isinstance(label, str | bytes) for label in given):
        kinds = set(map(type, given))
        if len(kinds) > 1 or any(label[-1:] in ("\0", b"\0") for label in given):
            need = "labels of one kind, and no text that ends with NUL"
            raise SchemaError(f"{name}: expected {need}, because numpy changes such ones")
    return given


def _checked(check: Callable[..., Any], *data: object, **options: object) -> Any:
    """Make a `check` of scikit-learn, without the values that its errors show, and those of a caller's own objects."""
    try:
        return check(*data, **options)
    except OverflowError:
        said = "expected numbers that fit a double"
    except TypeError:
        if check is not check_classification_targets:  # scikit-learn expects it of X
            raise
        said = "y: expected labels of one kind, and none that is missing"
    except ValueError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        of_sklearn = frame.f_globals.get("__name__", "").partition(".")[0] == "sklearn"
        said = str(error) if of_sklearn else _NUMBERS
    if said.startswith("could not convert"):
        said = _NUMBERS
    if said.startswith("Complex data not supported"):
        said = "Complex data not supported"
    raise SchemaError(re.sub(r"\narray=.*?\.\n", "\n", said, flags=re.DOTALL))
