"""Mechanisms: each turns a gradient of norm at most `bound` into an unbiased noisy gradient.

A mechanism is calibrated by a budget, the l2 bound C0 of one gradient, and the l2 sensitivity S, the largest distance
between two gradients (2 C0 unless the loss proves less). All noise lies on a grid that does not depend on the data
(`entropy` explains why).

Neighbours. One record is replaced by any other. So the gradient is replaced by another one at distance at most S.

Privacy map. `Mechanism.guarantee` answers which budget holds if two gradients are further apart, or closer, than S.
"""

from functools import lru_cache
from itertools import product
from typing import Literal

import numpy as np

from streamdp.errors import ConfigError, check_choice
from streamdp.privacy.guarantees import Budget, PureDP, amount
from streamdp.privacy.mechanisms.additive import Gaussian, Laplace
from streamdp.privacy.mechanisms.base import Mechanism, NoNoise, randomize_rows, round_down
from streamdp.privacy.mechanisms.privunit import PrivUnit

__all__ = [
    "MECHANISMS",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "MechanismName",
    "NoNoise",
    "PrivUnit",
    "calibrated",
    "mechanism_for",
    "randomize_rows",
    "record_rows",
    "round_down",
]

MechanismName = Literal["auto", "laplace", "gaussian", "privunit", "none"]
"""What an estimator accepts as its mechanism, so that a type checker sees a wrong name."""

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
def calibrated(kind: type[Mechanism], budget: Budget, bound: float, sensitivity: float) -> Mechanism:
    """`kind(budget, bound, sensitivity)`, a `Mechanism`, cached because many records have the same budget.

    Raises `ConfigError` for one that is not of the library and claims less than the noise of its code gives.
    """
    made: Mechanism = kind(budget, bound, sensitivity)
    _check_claims(made)
    return made


_IGNORED = ("_guarantee", "guarantee", "randomize")
"""What the samplers, or the claims of the mechanism with the same code, do by themselves."""


def _check_claims(made: Mechanism) -> None:
    """Raise unless a mechanism is of the library, or has at least the noise of the one with its code."""
    from streamdp.privacy.samplers import GRID, KEEP, SCALE

    kind = type(made)
    if kind.__module__.startswith("streamdp.privacy.mechanisms."):
        return
    Mechanism.__post_init__(made)  # its own may not have called it
    theirs = next(each for each in MECHANISMS.values() if each.code == made.code)
    changed = [name for name in _IGNORED if getattr(kind, name) is not getattr(theirs, name)]
    if changed:
        raise ConfigError(f"{kind.__name__}: the samplers would ignore its own {', '.join(changed)}: leave it out")
    least = theirs(made.budget, made.bound, made.sensitivity)  # raises for a budget that the samplers do not serve
    for d, amounts in product((1, 8), (None, np.array([amount(made.budget)]))):
        own, needed = (each.rows(d, amounts) for each in (made, least))
        louder = own[:, SCALE] >= needed[:, SCALE] * (1 + np.sqrt(d) * 2.0**-19 * (own[:, GRID] > needed[:, GRID]))
        additive = theirs is not PrivUnit and own[:, KEEP] <= needed[:, KEEP]
        if not np.all((louder & additive) | (own == needed).all(axis=1)):
            raise ConfigError(
                f"{kind.__name__}: its rows have less noise than {theirs.__name__} needs for {made.budget}"
            )


@lru_cache(maxsize=4096)
def record_rows(mechanism: Mechanism, d: int) -> np.ndarray:
    """The calibration (1, c) of one record (d,) with a budget of its own, rounded as for arrays of records."""
    return mechanism.rows(d, np.array([amount(mechanism.budget)]))
