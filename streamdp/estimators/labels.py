"""Declared classes: the labels that people give and get, and their numbers, which learners take."""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from streamdp.data.floats import number
from streamdp.errors import SchemaError
from streamdp.optim.losses import Loss

TRUTH_VALUES: tuple[Hashable, ...] = (False, True)
"""The labels of a classifier without declared classes."""
_EXACT = 1 << 53


def numbers_of(labels: Iterable[Hashable]) -> dict[Hashable, float]:
    """Return the number of each label: its place in the order of the declaration."""
    return {label: float(k) for k, label in enumerate(labels)}


def number_of(label: object, numbers: Mapping[Hashable, float]) -> float:
    """Return the number of a label, one of `numbers`. Raises `SchemaError` if it is not declared."""
    try:
        found = numbers.get(label)
    except Exception:  # noqa: BLE001 - it has no hash; the error may show it
        found = None
    if found is None:
        truth_values = all(isinstance(known, bool) for known in numbers)
        default = "False or True; other labels are declared by classes=[...]"
        raise SchemaError(
            f"target: expected {default if truth_values else f'one of the {len(numbers)} declared classes'}"
        )
    return found


def target_of(y: object, loss: Loss, labels: tuple[Hashable, ...]) -> float:
    """Return the number that a `loss` takes for the target y of a record: its own, or that of one of the `labels`.

    Raises `SchemaError` for no finite number, and for a label that is not declared.
    """
    if loss.of_classes:
        return number_of(y, numbers_of(labels))
    target = number("y", y)
    if not np.isfinite(target):
        raise SchemaError("y: expected a finite number, got NaN or an infinity")
    return target


def numbers_of_array(labels: np.ndarray, numbers: Mapping[Hashable, float]) -> np.ndarray | None:
    """As `number_of`, for an array (n,) of numbers or truth values, at once; None if this cannot be done exactly."""
    known: list[object] = list(numbers)
    if labels.dtype.kind not in "biuf" or labels.ndim != 1 or not all(_is_small(label) for label in known):
        return None
    of_label = np.array(known, dtype=float)
    order = np.argsort(of_label)
    at = order[np.minimum(np.searchsorted(of_label, labels, sorter=order), len(known) - 1)]
    return at.astype(float) if np.array_equal(of_label[at], labels) else None


def _is_small(label: object) -> bool:
    numbers = bool | int | float | np.bool_ | np.integer | np.floating
    return isinstance(label, numbers) and abs(float(label)) < _EXACT
