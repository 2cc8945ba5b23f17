"""Warnings about uses that no error can stop, because they may be meant: each comes once, where it happens."""

import contextlib
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from streamdp.errors import CostWarning, PrivacyWarning
from streamdp.estimators.features import SchemaWarning
from streamdp.estimators.parts import check_pipeline
from streamdp.learners.local_reports import LocalReports
from streamdp.privacy.guarantees import ApproxDP, Budget, weakness

_PARTS = ("river.compose.", "river.preprocessing.")
FAR = 10.0
"""A value beyond it is far from a scale of about 1, which is expected where no bounds are declared."""
_EXACT = 1e-6  # means and deviations of columns that a scaler has made
_EACH_TIME = (
    "each time spends its budget again, and the statement counts it once. Learn each record once, or give a ledger and"
    " subjects"
)
_given: WeakKeyDictionary[object, WeakValueDictionary[object, object]] = WeakKeyDictionary()
_quiet: dict[str, WeakSet[object]] = {"repeats": WeakSet(), "hints": WeakSet(), "records": WeakSet()}
_dear: set[type] = set()
_unsaid: ContextVar[bool] = ContextVar("unsaid", default=False)


def _warn(message: str, category: type[Warning] = PrivacyWarning) -> None:
    """Warn at the line that called this package or River."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("streamdp", "river"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_if_repeated(model: object, *given: object) -> None:
    """Warn once if a model gets rows again that it has learned from.

    What is given is compared by identity, or by its place in memory, and held by weak references: no value stays.
    """
    if model in _quiet["repeats"]:
        return
    known = _given.setdefault(model, WeakValueDictionary())
    for key, owner in chain.from_iterable(map(_places, given)):
        if known.get(key) is owner:
            say_nothing(model, "repeats")
            _warn(
                f"{type(model).__name__} gets rows again that it has learned from: if they are unchanged, each pass"
                " spends their budget again, and the statement counts it once. Make one pass, or give a ledger and"
                " subjects"
            )
            return
        if type(owner).__weakrefoffset__:
            known[key] = owner


def say_nothing(model: object, of: str) -> None:
    """Let nothing be said any more about a model: it was said, or what uses the model says it or has reasons.

    `of`: "repeats" of its rows, or "hints" about its noise, the scale of its numbers and its delta; "records", for
    which its delta is too large.
    """
    _quiet[of].add(model)
    _given.pop(model, None)


def warn_if_dear(model: Any) -> None:
    """Warn once a process and class if a model makes noise of raw records that this process holds (LDP)."""
    kind, learner = type(model), model.learner
    if kind in _dear or not isinstance(learner, LocalReports) or model in _quiet["hints"] or not model.private:
        return
    if learner.problem.outputs > 1:
        return  # there is no plan for softmax
    from streamdp.learners.alike import USUAL, cheaper

    said = cheaper(model.loss, learner.p, learner.budget, USUAL, learner.mechanism)
    if said is not None:
        _dear.add(kind)
        other = kind.__name__.replace("LDPASGD", "PanPrivate").replace("LDPSGD", "PanPrivate")
        message = f'{kind.__name__}: {said}; this is {other}, or trust="process" of streamdp.sklearn'
        _warn(message, CostWarning)


def warn_if_scaled(model: object, X: np.ndarray, bounds: Any) -> None:
    """Warn if rows X (n, p) with these bounds look like the output of a scaler that was fitted to them.

    Columns of one or two values, such as indicators, identify no scaler. The caller, who gave the rows, gets the
    warning; the model and its statement do not depend on it.
    """
    low, high = X.min(axis=0), X.max(axis=0)
    two_valued = (np.equal(X, low) | np.equal(X, high)).all(axis=0)
    if two_valued.all():
        return
    varied = X[:, low < high]
    centred = np.abs(varied.mean(axis=0)).max() < _EXACT and np.abs(varied.std(axis=0) - 1).max() < _EXACT
    unit = False
    if bounds is not None:
        other = (np.broadcast_to(bounds, (X.shape[1], 2)) != (0, 1)).any(axis=1) & (low < high)
        unit = bool((low[other] == 0).all() and (high[other] == 1).all() and not two_valued[other].all())
    if not (centred or unit):
        return
    scaler = "StandardScaler" if centred else "MinMaxScaler"
    _warn(
        f"{type(model).__name__}: the columns look like the output of {scaler}, which was fitted to these records "
        "without privacy: no statement covers what it kept of them. Leave it out, and declare public bounds of the raw "
        "columns: bounds=[(low, high), ...], or features={...}; the model scales within its budget"
    )


def warn_if_far(model: object, X: np.ndarray, y: np.ndarray | None) -> None:
    """Warn if encoded numbers are far from a scale of about 1, which what has no declared bounds must have.

    The caller, who gave the numbers, gets the warning, which shows none; the model and its statement do not depend
    on it. Features X with declared bounds are between -1 and 1 here; y is None for classes, and with declared bounds.
    The log of a job never depends on records so: see `say_nothing`.
    """
    if model in _quiet["hints"]:
        return
    for name, values, declare in (("X", X, "features={'age': (0, 100), ...}"), ("y", y, "target=(low, high)")):
        if values is not None and np.abs(values).max(initial=0.0) > FAR:
            _warn(
                f"{type(model).__name__}: {name} has values beyond {FAR:g}, and without declared bounds a scale of"
                f" about 1 is expected: the model may be far worse than a constant. Declare public bounds: {declare}",
                SchemaWarning,
            )


def warn_if_raw(model: object, X: np.ndarray, apart: Iterable[Sequence[int]]) -> None:
    """Warn if columns X that a `model` learns are not what its schema makes: in [-1, 1], and levels that are `apart`.

    Those are 0 or 1, and at most one of them is 1.
    """
    if model in _quiet["hints"]:
        return
    levels = [X[:, list(columns)] for columns in apart]
    if np.abs(X).max(initial=0.0) > 1 + 1e-9 or any(
        (one * (one - 1)).any() or one.sum(axis=1).max(initial=0.0) > 1 for one in levels
    ):
        _warn(
            f"{type(model).__name__}: learn_encoded takes the columns that the schema makes, numbers in [-1, 1] and, of"
            " the levels of a category, at most one 1 among zeros; some rows are not such: learn_arrays takes raw"
            " numbers, and learn_many raw records",
            SchemaWarning,
        )


def _places(item: Any) -> Iterator[tuple[object, object]]:
    """What identifies rows while they exist, with the object that must be alive: the object itself, and its memory."""
    yield id(item), item
    if hasattr(item, "iloc"):  # a choice of columns is a new frame of pandas over the same memory
        column = item if item.ndim == 1 or not item.shape[1] else item.iloc[:, 0]
        item = column.to_numpy() if column.ndim == 1 and column.dtype.kind in "biuf" else None
    if isinstance(item, np.ndarray):
        owner = item
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        yield (item.__array_interface__["data"][0], item.shape, item.strides), owner


def warn_if_weak(budget: Budget) -> None:
    """Warn that a budget protects little, if it does, unless it is `unsaid`."""
    if not _unsaid.get() and (said := weakness(budget)) is not None:
        _warn(said)


@contextlib.contextmanager
def unsaid() -> Iterator[None]:
    """Let models be made whose budgets the caller speaks of."""
    before = _unsaid.set(True)
    try:
        yield
    finally:
        _unsaid.reset(before)


def warn_if_many(model: Any, records: int) -> None:
    """Warn once if the budget of a `model` protects little among so many `records`, and not because of itself."""
    budget = model.record_budget
    if not isinstance(budget, ApproxDP) or budget.delta * records <= 1 or model in _quiet["records"]:
        return
    say_nothing(model, "records")
    if model not in _quiet["hints"] and weakness(budget) is None and (said := weakness(budget, records)) is not None:
        _warn(said)


def warn_of_pipeline() -> None:
    """Warn of parts that learn without noise, and of measures of raw records, if River is learning its first record."""
    frame = inspect.currentframe()
    while frame is not None:
        place = frame.f_globals.get("__name__", "")
        if place.startswith("river.imblearn."):
            sampler = type(frame.f_locals.get("self")).__name__
            if "UnderSampler" not in sampler:
                _warn(f"{sampler} lets a model learn records several times: {_EACH_TIME}")
        if place == "river.evaluate.progressive_validation":
            _warn(
                "the measure of progressive validation is computed from raw records, and no guarantee covers it: do not"
                " show it, and use validation={...} of the model, or a public holdout"
            )
            return
        if place.startswith(_PARTS) and (parts := check_pipeline(frame.f_locals.get("self"))):
            _warn(
                f"{', '.join(parts)} in this pipeline may keep values of records without noise, which every"
                " prediction shows, and no guarantee covers it: declare bounds or categories in features={...}"
                " in its place, and bounds of the target"
            )
            return
        frame = frame.f_back
