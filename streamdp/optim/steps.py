"""Step sizes and averages of stochastic gradient descent on noisy reports.

The parameter `clock` says what measures progress. "information": step i is eta (3/4) D tau_i T_0^(alpha - 1/2) (T_i +
T_0)^-alpha, with the information tau_i of report i, their sum T_i, and D, the expected distance from the first theta to
the best one; the average weighs iterate i by tau_i sqrt(T_i). "records": eta i^-alpha, and equal weights (Shi et al.
2025, eq. 3.2). Why, and how the constants were chosen: docs/proofs/local_reports.md, the steps.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from streamdp.errors import ConfigError, check_choice

Clock = Literal["information", "records"]
"""What measures the progress of steps."""
EACH = 4.0
"""I_0/d, in units of 1/C0^2."""
_LATER = 2.0  # T_0/I_0 for classes
_LARGEST = 1e6
_TOLD_APART = 4.0  # the largest D for classes


def expected_distance(d: int, scaled: bool, classes: bool) -> float:
    """Return D, the expected distance from the first theta (d,) to the best one: docs/proofs/local_reports.md.

    It depends on whether the target is scaled, that is learned in units of its own, and on whether targets are classes.
    """
    far = math.sqrt(2 if scaled else d)
    return min(far, _TOLD_APART) if classes else far


@dataclass(frozen=True)
class Steps:
    """The sizes of the steps (see docs/proofs/local_reports.md, the steps).

    `eta`: positive, at most 1e6. With "information" a multiplier, with "records" the first step. `alpha`: 0 <= alpha <=
    1. At alpha = 1 neither iterate is sure to converge (Shi et al. 2025, Remark 2). `clock`: "information" or
    "records".

    Raises `ConfigError` for what is no number or out of range, or for another `clock`.

    >>> Steps(0.2, 0.5, "records").numbers(distance=2.0, bound=2.0, d=6)
    (0.2, 0.5, 0.0)
    """

    eta: float = 1.0
    alpha: float = 0.6
    clock: Clock = "information"

    def __post_init__(self) -> None:
        for name in ("eta", "alpha"):
            try:
                object.__setattr__(self, name, float(getattr(self, name)))
            except OverflowError:  # it is too large
                pass
            except (TypeError, ValueError):
                raise ConfigError(f"{name}: expected a number, got {getattr(self, name)!r}") from None
        if not 0 < self.eta <= _LARGEST:
            raise ConfigError(f"eta: expected a positive number of at most {_LARGEST:g}, got {self.eta}")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha: expected a number from 0 to 1, got {self.alpha}")
        check_choice("clock", self.clock, get_args(Clock))

    def numbers(self, distance: float, bound: float, d: float, classes: bool = False) -> tuple[float, float, float]:
        """Return (factor, alpha, T_0): step i is factor tau_i (T_i + T_0)^-alpha. With "records" tau_i = 1 and T_0 = 0.

        `distance` is D, expected from the first theta to the best one, `bound` is C0, that of a gradient, d is the
        number of parameters, for I_0, and `classes` says whether the target is a class.
        """
        offset = EACH * d * (_LATER if classes else 1.0)
        if self.clock == "records":
            return self.eta, self.alpha, 0.0
        return self.eta * 0.75 * distance / bound * offset ** (self.alpha - 0.5), self.alpha, offset


def rarity(intercepts: np.ndarray) -> float:
    """How many times less curvature the loss has if one class has the share p > 1/2: 1 / (4 p (1 - p)), else 1.

    The noise of noisy sums hides a signal up to so many times more records, and that of single records up to the square
    of it. The intercepts (K,) are of columns that are 0 at their centres; one alone is that of the
    second of two classes.

    >>> round(rarity(np.log([0.9, 0.05, 0.05])), 2), round(rarity(np.log([1 / 9])), 2)
    (2.78, 2.78)
    """
    intercepts = np.append(0.0, intercepts) if len(intercepts) == 1 else intercepts
    share = min(max(1.0 / float(np.exp(intercepts - intercepts.max()).sum()), 0.5), 1 - 1e-6)
    return float(1 / (4 * share * (1 - share)))
