"""Values of records as floats. What a failed conversion raised is left behind, because it may show the value."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from streamdp.errors import SchemaError


def is_numeric(values: Any) -> bool:
    """Return whether values may hold real numbers: no times, no complex numbers and nothing masked.

    numpy makes floats of these, too: counts of nanoseconds, real parts, and what is under the mask.
    """
    return getattr(getattr(values, "dtype", None), "kind", "f") not in "cmM" and not np.ma.is_masked(values)


def floats(what: str, values: Any) -> np.ndarray:
    """Return values as an array of floats, contiguous in memory; a new one only if it must be.

    Parameters
    ----------
    what
        What the values are, for messages.
    values
        Numbers, in the form of an array.

    Raises `SchemaError` for anything else.
    """
    with contextlib.suppress(Exception):  # an object may raise anything when it is converted
        if is_numeric(values):
            return np.ascontiguousarray(values, dtype=float)
    raise SchemaError(f"{what}: expected numbers")


def number(what: str, value: Any) -> float:
    """Return a value, a number or its text, as a float, which may be NaN or an infinity.

    Raises `SchemaError`, which says what it is, for anything else.
    """
    try:
        return float(value)
    except OverflowError:
        reason = "a number that fits a double"
    except Exception:  # noqa: BLE001 - as in `floats`
        reason = f"a number, got {type(value).__name__}"
    raise SchemaError(f"{what}: expected {reason}")
