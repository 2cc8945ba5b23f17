"""Mechanisms: each turns a gradient of norm at most `bound` into an unbiased noisy gradient.

A mechanism is calibrated by a budget, the l2 bound C0 of one gradient, and the l2 sensitivity S, the largest distance
between two gradients (2 C0 unless the loss proves less). All noise lies on a grid that does not depend on the data
(`entropy` explains why).

Neighbours. One record is replaced by any other. So the gradient is replaced by another one at distance at most S.

Privacy map. `Mechanism.guarantee` answers which budget holds if two gradients are further apart, or closer, than S.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from streamdp.errors import check_choice
from streamdp.privacy.guarantees import Budget, PureDP, amount
from streamdp.privacy.mechanisms.additive import Gaussian, Laplace
from streamdp.privacy.mechanisms.base import Mechanism, NoNoise, randomize_rows, round_down
from streamdp.privacy.mechanisms.privunit import PrivUnit

__all__ = [
    "MECHANISMS",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NoNoise",
    "PrivUnit",
    "calibrated",
    "mechanism_for",
    "randomize_rows",
    "record_rows",
    "round_down",
]

MECHANISMS: dict[str, type[Mechanism]] = {m.name: m for m in (Laplace, Gaussian, PrivUnit, NoNoise)}


def mechanism_for(choice: str | type[Mechanism], budget: Budget) -> type[Mechanism]:
    """The mechanism class for a choice: "auto", a name in `MECHANISMS`, or a class.

    "auto" is `PrivUnit` for the kind PureDP of a budget, `Gaussian` for ApproxDP and GaussianDP. Raises `ConfigError`
    if the choice is unknown.
    """
    if isinstance(choice, type) and issubclass(choice, Mechanism):
        return choice
    if isinstance(choice, str) and choice == "auto":
        return PrivUnit if isinstance(budget, PureDP) else Gaussian
    check_choice("mechanism", choice, MECHANISMS, ", auto or a Mechanism class")
    return MECHANISMS[choice]


@lru_cache(maxsize=4096)
def calibrated(kind: Any, budget: Budget, bound: float, sensitivity: float) -> Mechanism:
    """`kind(budget, bound, sensitivity)`, a `Mechanism`, cached because many records have the same budget."""
    made: Mechanism = kind(budget, bound, sensitivity)
    return made


@lru_cache(maxsize=4096)
def record_rows(mechanism: Mechanism, d: int) -> np.ndarray:
    """The calibration (1, c) of one record (d,) with a budget of its own, rounded as for arrays of records."""
    return mechanism.rows(d, np.array([amount(mechanism.budget)]))
