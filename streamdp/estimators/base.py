"""The River face of an estimator, written once: dicts in, floats out, over code that works on plain arrays.

A subclass brings `_learn_rows(X, y, budget, amounts)` and `coefficients` and inherits schema, admission, counts,
`learn_one`, `learn_many`, `learn_arrays`, `guarantee` and `statement`.

Threads may share an estimator: whatever learns, absorbs, loads, saves or packs a record holds the lock of its random
words. An exception that comes at any moment, such as Ctrl-C, leaves a state in which every spend is counted: budgets
count before learning, and the compiled loop counts each record with its step. A signal handler may read an estimator
but should not learn: the record that it interrupts may be learned as zeros.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from river import base as river_base

from streamdp.errors import ConfigError, SchemaError
from streamdp.optim.losses import check_classes
from streamdp.privacy.composition import widest
from streamdp.privacy.guarantees import (
    SERVICEABLE,
    ApproxDP,
    Budget,
    Guarantee,
    PureDP,
    amount,
    parse_budget,
    with_amount,
)
from streamdp.privacy.statement import RECORD, Unit, statement

if TYPE_CHECKING:
    import pandas as pd

    from streamdp.data.records import Subject
    from streamdp.ledger.ledger import Ledger
    from streamdp.privacy.entropy import Entropy, SeededEntropy

NEIGHBOURS = (
    "two streams that differ in one record, replaced by any other that fits the schema (replace-one); public and not "
    "protected are how many records there are, which of them do not fit the schema and why, whose each is, what budget "
    "it brings, and so which ones a cap refuses"
)


_BUFFERS = ("_row", "_target", "_view", "_blank", "_pack_into", "_looked")


def _alone(get: Callable[[Mapping[Any, Any]], Any], x: Mapping[Any, Any]) -> tuple[Any]:
    return (get(x),)


class SchemaWarning(UserWarning):
    """The estimator had to take feature names from the data, or a record did not bring the declared ones."""


class StreamEstimator(river_base.Estimator):
    """Schema, admission, counts and the guarantee. Subclasses are the public estimators."""

    trust: ClassVar[str]
    neighbours: ClassVar[str] = NEIGHBOURS
    commits_at_every_boundary: ClassVar[bool] = False
    """Whether `close_batch` may have to leave a batch open: then every boundary is worth a commit."""
    _unit: ClassVar[Unit] = RECORD
    features: Sequence[str] | None
    ledger: Ledger | None
    seed: int | None
    _rng: Entropy | SeededEntropy
    _looked = False  # for data-dependent steps upstream

    def _set_up(self, budget: Budget | str | None) -> None:
        self._budget = PureDP(1.0) if budget is None else parse_budget(budget)
        self._names: tuple[str, ...] = ()
        self._fetch: Callable[[Mapping[Any, Any]], tuple[Any, ...]]
        self._spent: tuple[Budget, ...] = ()
        self._counted: Budget | None = None
        self._tainted = False
        self._warned: set[str] = set()
        self._seen = np.zeros(1, dtype=np.int64)
        self._make_buffers()
        self.n_refused = 0
        """Records refused because their subject's cap was reached."""
        if self.features is not None:
            self._declare(list(self.features))

    @property
    def n_seen(self) -> int:
        """Records learned."""
        return int(self._seen.item())

    @n_seen.setter
    def n_seen(self, n: int) -> None:
        self._seen[0] = n

    def __getstate__(self) -> dict[str, Any]:
        """The buffers of a record stay behind when an estimator is pickled or copied; its place in a pipeline too."""
        with self._rng.lock:
            return {k: v for k, v in self.__dict__.items() if k not in _BUFFERS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_buffers()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # two estimators with one state would each count half of what it spent

    def _make_buffers(self) -> None:
        """Room for one record, its target last; zeros but while it is learned."""
        p = len(self._names)
        buffer = np.zeros(p + 1)
        self._row, self._target = buffer[None, :p], buffer[p:]
        self._view, self._blank = buffer.data.cast("B"), bytes(buffer.nbytes)
        self._pack_into = Struct(f"{p + 1}d").pack_into  # a view is packed three times as fast as the array

    # -- schema ------------------------------------------------------------------------------------------------

    def _declare(self, names: Sequence[Any]) -> None:
        if not names or len(set(names)) != len(names):
            raise ConfigError("features: expected at least one name and no name twice")
        self._names = tuple(names)
        get = itemgetter(*names)
        self._fetch = get if len(names) > 1 else partial(_alone, get)
        self._make_buffers()
        try:
            self._allocate(len(names))
        except BaseException:
            self._names = ()  # or the next record would be learned after all
            raise

    def _allocate(self, p: int) -> None:
        """Make the state for p features."""
        raise NotImplementedError

    def _adopt(self, names: Sequence[Any]) -> None:
        """Take the names of the first record as public schema, sorted."""
        self._warn("adopted", "no features were declared: the names of the first record are taken as public schema")
        self._declare(sorted(names, key=str))

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{type(self).__name__}: {message}", SchemaWarning, stacklevel=4)

    def _row_of(self, x: Mapping[Any, Any]) -> np.ndarray:
        """x as a new (1, p) array; at once, whatever is being learned."""
        row = np.zeros(len(self._names) + 1)
        self._pack(x, 0.0, row.data.cast("B"))
        return row[None, :-1]

    def _pack(self, x: Mapping[Any, Any], y: float, view: memoryview | None = None) -> None:
        """Write x, y into the view, or into the buffer. Raises `SchemaError` for a value of x that is not a finite
        number.
        """
        if not self._names:
            self._adopt(list(x))
        try:
            values = self._fetch(x)
        except KeyError:
            self._warn("missing", "a record lacks a declared feature; missing features count as 0")
            values = tuple(x.get(name, 0.0) for name in self._names)
        if len(x) > len(self._names):
            self._warn("unknown", "a record has features that were not declared; they are ignored")
        try:
            self._pack_into(self._view if view is None else view, 0, *values, y)
        except (StructError, TypeError, ValueError, OverflowError):
            for name, value in zip(self._names, values, strict=True):
                if not isinstance(value, int | float | np.number | np.bool_):
                    raise SchemaError(f"feature {name!r}: expected a number, got {type(value).__name__}") from None
            raise SchemaError("a feature is not a number that fits a double") from None
        if not math.isfinite(sum(values)):
            bad = [name for name, value in zip(self._names, values, strict=True) if not math.isfinite(value)]
            if bad:
                raise SchemaError(f"feature {bad[0]!r}: expected a finite number, got NaN or an infinity")

    def _frame(self, X: pd.DataFrame) -> np.ndarray:
        if not self._names:
            self._adopt(list(X.columns))
        known = set(X.columns)
        out = np.zeros((len(X), len(self._names)))
        for j, name in enumerate(self._names):
            if name in known:
                try:
                    out[:, j] = X[name].to_numpy(dtype=float, na_value=np.nan)
                except (TypeError, ValueError):
                    raise SchemaError(f"feature {name!r}: expected numbers") from None
            else:
                self._warn("missing", "a record lacks a declared feature; missing features count as 0")
        return out

    def _matrix(self, X: Any) -> np.ndarray:
        X = np.ascontiguousarray(X, dtype=float)
        if X.ndim != 2:
            raise SchemaError(f"X: expected shape (n, p), got {X.shape}")
        if not self._names:
            self._declare([f"x{j}" for j in range(X.shape[1])])
        if X.shape[1] != len(self._names):
            raise SchemaError(f"X: expected {len(self._names)} columns, got {X.shape[1]}")
        return X

    def _look_upstream(self) -> None:
        """Warn of data-dependent steps where the caller of `learn_one` is a River pipeline.

        A step of a pipeline is never told what stands before it, so the caller's frame is asked, once.
        """
        caller = sys._getframe(2).f_locals.get("self")
        self._looked = True
        if caller is not None and type(caller).__module__.startswith("river.compose"):
            from streamdp.data.preprocessing import warn_data_dependent

            warn_data_dependent(caller)

    # -- learning ----------------------------------------------------------------------------------------------

    def learn_one(
        self,
        x: Mapping[Any, Any],
        y: Any,
        *,
        budget: Budget | str | None = None,
        subject: Subject | None = None,
    ) -> None:
        """Learn one record.

        Parameters
        ----------
        x
            Features by name, finite numbers. Undeclared names are ignored, missing ones count as 0; each warns once.
        y
            The target: a finite number, or one of the declared classes.
        budget
            What this record may spend; the estimator's `budget` when None.
        subject
            Whom it is about, for the ledger.

        Raises `SchemaError` for a bad record and `BudgetError` for a budget the mechanism cannot serve (see
        `guarantees.SERVICEABLE`), both before anything is learned or spent. A record over its subject's cap is counted
        in `n_refused` and learns nothing.
        """
        if not self._looked:
            self._look_upstream()
        with self._rng.lock:
            try:
                self._pack(x, self._encode_target(y))
                spend = self._budget
                if budget is not None:
                    spend = parse_budget(budget)
                    self._check(spend)
                if self.ledger is not None and subject is not None and not self.ledger.admit(subject, spend):
                    self.n_refused += 1
                    return
                if spend is not self._counted:
                    self._count(spend)
                self._learn_rows(self._row, self._target, None if budget is None else spend, None)
            finally:
                self._view[:] = self._blank

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn the rows of a DataFrame in order: the same result as `learn_one` in a loop, with the same noise."""
        if not self._looked:
            self._look_upstream()
        with self._rng.lock:
            self._learn_batch(self._frame(X), np.array([self._encode_target(v) for v in y], dtype=float), None, None)

    def learn_arrays(
        self,
        X: np.ndarray,
        y: np.ndarray,
        budgets: np.ndarray | None = None,
        subjects: Sequence[Subject | None] | None = None,
    ) -> np.ndarray | None:
        """Learn n records in order at compiled speed.

        Parameters
        ----------
        X
            (n, p) floats, columns in the order of the declared features.
        y
            (n,) floats; for a classifier the index of each class in `classes`.
        budgets
            (n,) amounts of the estimator's budget kind (epsilon or mu) within `guarantees.SERVICEABLE`, NaN for the
            default; None for all default.
        subjects
            n subjects for the ledger, or None.

        Returns the (n,) mask of the records that were learned where a ledger refused some, else None.
        Raises `SchemaError` for wrong shapes and values that are not finite, before anything is learned or spent.
        """
        with self._rng.lock:
            X = self._matrix(X)
            y = np.ascontiguousarray(y, dtype=float)
            if budgets is not None:
                budgets = np.array(budgets, dtype=float)
                if budgets.shape != y.shape:
                    raise SchemaError(f"budgets: expected shape ({len(X)},), got {budgets.shape}")
                budgets[np.isnan(budgets)] = amount(self._budget)
                least, largest = SERVICEABLE
                if not np.all((budgets >= least) & (budgets <= largest)):
                    expected = f"numbers from {least:.3g} to {largest:.3g}, or NaN for the default"
                    raise SchemaError(f"budgets: expected {expected}")
            return self._learn_batch(X, y, budgets, subjects)

    def _learn_batch(
        self,
        X: np.ndarray,
        y: np.ndarray,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
    ) -> np.ndarray | None:
        if subjects is not None and len(subjects) != len(X):
            raise SchemaError(f"subjects: expected {len(X)}, got {len(subjects)}")
        self._check_rows(X, y)
        admitted = None
        if self.ledger is not None and subjects is not None:
            mask = self.ledger.admit_many(subjects, self._budget, amounts)
            refused = len(mask) - int(np.count_nonzero(mask))
            if refused:
                self.n_refused += refused
                admitted = mask
                X, y = X[mask], y[mask]
                amounts = None if amounts is None else amounts[mask]
        if len(X):
            self._count(self._budget if amounts is None else with_amount(self._budget, float(amounts.max())))
            self._learn_rows(X, y, None, amounts)
        return admitted

    def _check_rows(self, X: np.ndarray, y: np.ndarray) -> None:
        """Raise `SchemaError` unless these are n clean records."""
        if y.shape != (len(X),):
            raise SchemaError(f"y: expected shape ({len(X)},), got {y.shape}")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise SchemaError("X, y: expected finite numbers, got NaN or an infinity")
        self._check_targets(y)

    def _count(self, largest: Budget) -> None:
        """Count a spend, before what it pays for."""
        if largest is not self._counted:  # most records bring no budget of their own
            self._set_spent((*self._spent, largest))
            self._counted = largest

    def _set_spent(self, budgets: Iterable[Budget]) -> None:
        self._spent = widest(budgets)
        self._counted = None

    def _check(self, budget: Budget) -> None:
        """Raise `BudgetError` where the mechanism cannot serve this budget."""

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """Learn clean rows. `budget` is one for all (None: the default), or `amounts` has one number a row."""
        raise NotImplementedError

    def _encode_target(self, y: Any) -> float:
        raise NotImplementedError

    def _check_targets(self, y: np.ndarray) -> None:
        """Raise `SchemaError` for encoded targets out of range."""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """False for an estimator with a seed, whose noise can be taken off, or with a state learned without noise."""
        return self.seed is None and not self._tainted

    @property
    def guarantee(self) -> Guarantee:
        """What holds for every single record learned so far, or what `neighbours` says that is protected."""
        return Guarantee(self._spent, self.neighbours, self.trust, self.private)

    @property
    def at_boundary(self) -> bool:
        """Whether the state may leave memory now."""
        return True

    @property
    def to_boundary(self) -> int:
        """How many records to learn to come to a boundary; 0 at one."""
        return 0

    def boundary_within(self, records: int) -> int:
        """How many of the next `records` to learn so as to end at a boundary; all where there is none among them."""
        return records

    def close_batch(self) -> None:
        """Come to a boundary now. Here every moment is one."""

    def _caveats(self) -> list[str]:
        return []

    def statement(self) -> str:
        """The guarantee in words."""
        if self.ledger is None:
            spends = f"the spends of a person's {self._unit.several} add up (epsilons add, mu^2 add)"
            people = f"no cap is kept, so {spends}"
        else:
            people = (
                f"records with a subject are refused once the person's total would pass {self.ledger.cap}, or the cap"
                " that was set for that person alone"
            )
        caveats = []
        if self.seed is not None:
            caveats.append("the noise comes from a seed, for tests; whoever knows it can take the noise off")
        if self.features is None:
            caveats.append("no features were declared; the first record's names were taken as public")
        if any(isinstance(b, ApproxDP) for b in self._spent):
            caveats.append("delta is the mass of outcomes for which nothing is promised; keep it well below 1/n")
        caveats += self._caveats()
        return statement(
            self.guarantee,
            learned=self.n_seen,
            refused=self.n_refused,
            per_subject=people,
            caveats=tuple(caveats),
            unit=self._unit,
        )


class RegressorFace(StreamEstimator, river_base.MiniBatchRegressor):
    """Numbers as targets."""

    def _encode_target(self, y: Any) -> float:
        try:
            value = float(y)
        except (TypeError, ValueError):
            raise SchemaError(f"target: expected a number, got {type(y).__name__}") from None
        if not math.isfinite(value):
            raise SchemaError("target: expected a finite number, got NaN or an infinity")
        return value

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> float:
        """The prediction for one record; 0 before the first. `kwargs` (budget, subject) are ignored."""
        if not self._names:
            return 0.0
        return float(self.predict_arrays(self._row_of(x))[0])

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The predictions for the rows of a DataFrame."""
        import pandas as pd

        values = np.zeros(len(X)) if not self._names else self.predict_arrays(self._frame(X))
        return pd.Series(values, index=X.index)

    def predict_arrays(self, X: np.ndarray) -> np.ndarray:
        """The (n,) predictions for X (n, p)."""
        return self._scores(self._matrix(X))[:, 0]

    def _scores(self, X: np.ndarray) -> np.ndarray:
        """The (n, K) linear predictors of X (n, p)."""
        raise NotImplementedError


class ClassifierFace(StreamEstimator, river_base.MiniBatchClassifier):
    """Declared classes as targets: (False, True) unless `classes` names others, for undeclared labels would leak."""

    classes: Sequence[Hashable] | None
    _probabilistic = True

    def _set_up_classes(self) -> None:
        self._labels: tuple[Hashable, ...] = (False, True) if self.classes is None else tuple(self.classes)
        if len(set(self._labels)) != len(self._labels) or len(self._labels) < 2:
            raise ConfigError("classes: expected at least two labels and no label twice")
        self._index = {label: float(k) for k, label in enumerate(self._labels)}

    @property
    def _multiclass(self) -> bool:
        return len(self._labels) > 2

    def _encode_target(self, y: Any) -> float:
        try:
            return self._index[y]
        except (KeyError, TypeError):
            raise SchemaError(f"target: expected one of the {len(self._labels)} declared classes") from None

    def _check_targets(self, y: np.ndarray) -> None:
        check_classes(y, len(self._labels))

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each declared class. Raises `NotImplementedError` for the hinge loss, which has none."""
        if not self._probabilistic:
            raise NotImplementedError("the hinge loss gives no probabilities")
        if not self._names:
            return dict.fromkeys(self._labels, 1 / len(self._labels))
        return dict(zip(self._labels, self.predict_proba_arrays(self._row_of(x))[0].tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Any:
        """The likeliest declared class."""
        if not self._names:
            return self._labels[0]
        return self._labels[int(self.predict_arrays(self._row_of(x))[0])]

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probabilities for the rows of a DataFrame, a column a class."""
        import pandas as pd

        if not self._probabilistic:
            raise NotImplementedError("the hinge loss gives no probabilities")
        if not self._names:
            values = np.full((len(X), len(self._labels)), 1 / len(self._labels))
        else:
            values = self.predict_proba_arrays(self._frame(X))
        return pd.DataFrame(values, columns=list(self._labels), index=X.index)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The likeliest classes for the rows of a DataFrame."""
        import pandas as pd

        k = np.zeros(len(X), dtype=int) if not self._names else self.predict_arrays(self._frame(X))
        return pd.Series([self._labels[i] for i in k], index=X.index)

    def predict_arrays(self, X: np.ndarray) -> np.ndarray:
        """The (n,) indices of the likeliest classes for X (n, p); the first one where two are equal."""
        scores = self._scores(self._matrix(X))
        return np.argmax(scores, axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)

    def predict_proba_arrays(self, X: np.ndarray) -> np.ndarray:
        """The (n, K) probabilities of the classes for X (n, p)."""
        from scipy.special import expit, softmax

        scores = self._scores(self._matrix(X))
        if scores.shape[1] > 1:
            return softmax(scores, axis=1)
        p = expit(scores[:, 0])
        return np.column_stack([1 - p, p])

    def _scores(self, X: np.ndarray) -> np.ndarray:
        """The (n, K) linear predictors of X (n, p), or (n, 1) for two classes."""
        raise NotImplementedError
