"""Arrays out of a saved state, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamdp.errors import ConfigError


def finite_array(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the entry `name` of a state as a new array of floats.

    Raises `KeyError` if there is no such entry, `ConfigError` unless it has this shape and finite numbers.
    """
    numbers = np.array(state[name], dtype=float)
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise ConfigError(f"state: {name}: expected finite numbers of shape {shape}, got shape {numbers.shape}")
    return numbers
