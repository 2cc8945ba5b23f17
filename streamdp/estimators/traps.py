"""Warnings about uses that no error can stop, because they may be meant: each comes once, where it happens."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from streamdp.errors import PrivacyWarning
from streamdp.estimators.parts import check_pipeline
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP

_LARGE_EPSILON, _LARGE_MU = 10.0, 3.0
_PIPELINE = ("river", "compose", "pipeline.py")
_given: WeakKeyDictionary[Any, WeakValueDictionary[Any, Any] | None] = WeakKeyDictionary()


def _warn(message: str) -> None:
    """Warn at the line that called this package or River."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("streamdp", "river"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PrivacyWarning, stacklevel=level)


def warn_if_repeated(model: Any, *given: Any) -> None:
    """Warn once if a model gets rows again that it has learned from.

    They are compared by identity, or by their place in memory, and held by weak references: no value of a record stays.

    `model`: what learns. `given`: its rows and targets: frames, arrays and others.
    """
    known = _given.setdefault(model, WeakValueDictionary())
    if known is None:
        return
    for key, owner in chain.from_iterable(map(_places, given)):
        if known.get(key) is owner:
            ignore_repeats(model)
            _warn(
                f"{type(model).__name__} gets rows again that it has learned from: if they are unchanged, each pass"
                " spends their budget again, and the statement counts it once. Make one pass, or give a ledger and"
                " subjects"
            )
            return
        if type(owner).__weakrefoffset__:
            known[key] = owner


def ignore_repeats(model: Any) -> None:
    """Let `warn_if_repeated` say nothing about a model, because it has warned, or who calls it has.

    `model`: what learns.
    """
    _given[model] = None


def _places(item: Any) -> Iterator[tuple[Any, Any]]:
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


def warn_if_large(budget: Budget) -> None:
    """Warn that a budget protects little, if it does.

    `budget`: what a record spends.
    """
    match budget:
        case PureDP(amount) | ApproxDP(amount, _) if amount > _LARGE_EPSILON:
            usual = "eps=1 to eps=10"
        case GaussianDP(amount) if amount > _LARGE_MU:
            usual = "mu=0.2 to mu=2"
        case _:
            return
    message = f"a budget of {budget} protects a record very little: usual are {usual}"
    _warn(message)


def warn_of_pipeline() -> None:
    """Warn of parts that learn without noise, if a pipeline of River is learning its first record."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").split("/")[-3:] == [*_PIPELINE]:
            if parts := check_pipeline(frame.f_locals.get("self")):
                message = (
                    f"{', '.join(parts)} in this pipeline may keep values of records without noise, which every"
                    " prediction shows, and no guarantee covers it: declare bounds or categories in features={...}"
                    " in its place"
                )
                _warn(message)
            return
        frame = frame.f_back
