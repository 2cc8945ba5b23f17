"""Values of records and states as floats. What a failed conversion raised is left behind: it may show the value."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from streamdp.errors import ConfigError, SchemaError

_LARGEST = 1e150  # its square stays within the doubles


def is_numeric(values: object) -> bool:
    """Return whether values may hold real numbers: no times, no complex numbers and nothing masked.

    numpy makes floats of these, too: counts of nanoseconds, real parts, and what is under the mask.
    """
    return getattr(getattr(values, "dtype", None), "kind", "f") not in "cmM" and not np.ma.is_masked(values)


def is_missing(value: object) -> bool:
    """Return whether a value of a record or a frame is None, NaN, or NaT, or pandas' NA."""
    return value is None or (not isinstance(value, str) and str(value) in ("nan", "NaT", "<NA>"))


def floats(what: str, values: object) -> np.ndarray:
    """Return numbers, `values` in the form of an array, as floats, contiguous in memory; a new one only if it must be.

    Raises `SchemaError`, which says `what` they are, for anything else.
    """
    with contextlib.suppress(Exception):  # an object may raise anything when it is converted
        if is_numeric(values):
            return np.ascontiguousarray(values, dtype=float)
    raise SchemaError(f"{what}: expected numbers")


def number(what: str, value: Any) -> float:
    """Return a value, a number or its text, as a float, which may be NaN or an infinity.

    A text is ASCII without "_", as in files: Python reads other digits, too, and 5_0 as 50. Raises `SchemaError`, which
    says what it is, for anything else.
    """
    try:
        other = isinstance(value, str) and ("_" in value or not value.strip().isascii())
        return float("" if other else value)
    except OverflowError:
        reason = "a number that fits a double"
    except Exception:  # noqa: BLE001 - as in `floats`
        reason = f"a number, got {type(value).__name__}"
    raise SchemaError(f"{what}: expected {reason}")


def flag(state: Mapping[str, object], name: str) -> bool:
    """Return an entry of a state, by its name. Raises `KeyError` without it, `ConfigError` unless true or false."""
    if not isinstance(state[name], bool):
        raise ConfigError(f"state: {name}: expected true or false")
    return bool(state[name])


def finite_array(
    state: Mapping[str, object], name: str, shape: tuple[int, ...], largest: float = _LARGEST
) -> np.ndarray:
    """Return the entry `name` of a state as a new array of floats.

    Raises `KeyError` if there is no such entry, `ConfigError` unless it has this shape and numbers of at most the
    `largest`, of either sign.
    """
    numbers = np.array(state[name], dtype=float)
    if numbers.shape != shape:
        raise ConfigError(f"state: {name}: expected numbers of shape {shape}, got shape {numbers.shape}")
    if not np.all(np.abs(numbers) <= largest):
        raise ConfigError(f"state: {name}: out of range: expected finite numbers, at most {largest:g} in size")
    return numbers


def whole_array(state: Mapping[str, object], name: str, shape: tuple[int, ...], least: float = 0.0) -> np.ndarray:
    """Return an entry as `finite_array`, of whole numbers from the `least` on and at most 10^15, as int64."""
    numbers = finite_array(state, name, shape, 1e15)
    if np.any(numbers != np.rint(numbers)) or numbers.min(initial=least) < least:
        raise ConfigError(f"state: {name}: expected whole numbers of at least {least:g}")
    return numbers.astype(np.int64)
