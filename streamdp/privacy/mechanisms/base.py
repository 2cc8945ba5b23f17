"""The interface of all mechanisms."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from streamdp.errors import BudgetError, ConfigError, is_number
from streamdp.privacy.entropy import Entropy, Rng
from streamdp.privacy.guarantees import (
    FORMS,
    SERVICEABLE,
    ApproxDP,
    Budget,
    GaussianDP,
    PureDP,
    check_serviceable,
    with_amount,
)

ARITHMETIC = 1 + 2.0**-40
"""Gradients are computed in floating point: rounding may exceed their bound by this factor."""
CODES = range(4)
"""The values of `Mechanism.code` that the compiled samplers know. They refuse any other one."""


@dataclass(frozen=True)
class Mechanism:
    """Base class of all mechanisms. Use a subclass.

    - `budget`: what one record may spend: an epsilon or mu within `guarantees.SERVICEABLE`.
    - `bound`: C0, from 1e-60 to 1e60: every gradient has l2 norm at most this. `randomize` refuses a longer one.
    - `sensitivity`: S in (0, 2 `bound`]: the largest l2 distance between two gradients; 2 `bound` if None.

    Raises `BudgetError` if the mechanism cannot serve the kind or the size of the budget, `ConfigError` if the bound or
    the sensitivity is out of range.
    """

    budget: Budget
    bound: float = 1.0
    sensitivity: float | None = None

    name: ClassVar[str]
    code: ClassVar[int]
    serves: ClassVar[tuple[type, ...]]

    def __post_init__(self) -> None:
        if not isinstance(self.budget, self.serves):
            forms = " or ".join(FORMS[kind] for kind in self.serves)
            raise BudgetError(f"{type(self).__name__} serves a budget {forms}, got {self.budget}")
        if getattr(self, "code", None) not in CODES:
            raise ConfigError(
                f"{type(self).__name__}: the compiled samplers have no mechanism with this code: use one of the "
                "mechanisms of streamdp"
            )
        check_serviceable(self.budget)
        # The limits are far from where squares of gradients and noise leave the doubles.
        if not (is_number(self.bound) and 1e-60 <= self.bound <= 1e60):
            raise ConfigError(f"bound must be from 1e-60 to 1e60, got {self.bound}")
        if self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 2.0 * self.bound)
        elif not (is_number(self.sensitivity) and 0 < self.sensitivity <= 2 * self.bound * (1 + 1e-12)):
            raise ConfigError(f"sensitivity must be in (0, 2 bound], got {self.sensitivity}")

    def guarantee(self, sensitivity: float, d: int) -> Budget | None:
        """The budget that one record spends if two gradients are up to `sensitivity` apart: the privacy map.

        It is `budget` at the planned sensitivity, grows with the sensitivity, and counts the rounding to the grid.
        None if the mechanism is not private.

        The sensitivity s > 0 is the largest l2 distance between two gradients in R^d, in the unit of the gradient. It
        may be below or above the planned one. `PrivUnit` allows at most 2 `bound`. The cost of the rounding depends on
        d >= 1.

        Raises `ConfigError` if the sensitivity is out of range, `BudgetError` if the budget is not a finite number.

        >>> from streamdp import Laplace
        >>> planned = Laplace(PureDP(1), bound=1.0, sensitivity=2.0)
        >>> planned.guarantee(2.0, d=1)
        PureDP(epsilon=1.0)
        >>> round(planned.guarantee(4.0, d=1).epsilon, 4)
        2.0
        """
        if not 0 < sensitivity < math.inf:
            raise ConfigError(f"sensitivity must be positive and finite, got {sensitivity}")
        return self._guarantee(sensitivity, d)

    def _guarantee(self, sensitivity: float, d: int) -> Budget | None:
        raise NotImplementedError

    def variance(self, d: int) -> float:
        """E||noise||^2, summed over the d coordinates."""
        raise NotImplementedError

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        """Calibrations in R^d for the compiled loops (see `samplers`): (1, c) for `budget`, or (n, c) for n amounts.

        `amounts` (n,) are the epsilon or mu of each record, of the kind of `budget`. If a calibration has to be solved
        for, an amount is rounded down by at most a relative 2^-10, so that few distinct ones remain. With `answers`
        records may be asked for one bit; without, their answers may be noise alone, which is faster.
        """
        raise NotImplementedError

    def randomize(self, g: np.ndarray, rng: Rng | None = None) -> np.ndarray:
        """A noisy copy of the gradients g, (d,) or (n, d); the rows are randomised independently.

        `rng` has the random words; fresh ones from the operating system if None. Raises `ConfigError` if a row is
        longer than `bound` or not finite: the noise would not protect it.
        """
        out = np.array(g, dtype=float, order="C", ndmin=2)
        norms = np.linalg.norm(out, axis=1)
        if not np.all(norms <= self.bound * (1 + 1e-9)):
            raise ConfigError(f"vectors to randomise must be finite and of l2 norm at most {self.bound:g}")
        randomize_rows(self.code, self.rows(out.shape[1]), out, rng or Entropy())
        return out[0] if np.ndim(g) == 1 else out


def randomize_rows(code: int, rows: np.ndarray, G: np.ndarray, rng: Rng) -> None:
    """Randomise the rows of G (n, d), C-contiguous, in place, all by one calibration (1, c) of `Mechanism.rows`.

    `code` is `Mechanism.code`. Each row has l2 norm at most the bound of the mechanism; this is not checked.
    """
    from streamdp.privacy import samplers

    with rng.lock:
        rng.serve(lambda left, words: samplers.randomize(code, rows, left, words), G)


class NoNoise(Mechanism):
    """The gradient without noise: NOT private, for comparisons. An estimator that uses it says so in its statement."""

    name = "none"
    code = 0
    serves = (PureDP, ApproxDP, GaussianDP)

    def _guarantee(self, sensitivity: float, d: int) -> None:
        return None

    def variance(self, d: int) -> float:
        return 0.0

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        from streamdp.privacy.samplers import ADDITIVE, GRID, INFORMATION, KEEP

        rows = np.zeros((1 if amounts is None else len(amounts), ADDITIVE))
        rows[:, [GRID, KEEP, INFORMATION]] = 1.0
        return rows


_CUT = 42
"""The lowest bits of a double that `round_down` cuts: of its 52 bits after the leading one, 10 remain."""


def round_down(amounts: np.ndarray) -> np.ndarray:
    """Positive amounts (n,), cut to 10 bits after the leading one."""
    return np.asarray((_leading_bits(amounts) << _CUT).view(float))


def _leading_bits(amounts: np.ndarray) -> np.ndarray:
    """Whole numbers in the order of the amounts, and the same for amounts that are the same when rounded down."""
    return np.asarray(amounts, dtype=float).view(np.int64) >> _CUT


def solved(mechanism: Mechanism, d: int, amounts: np.ndarray) -> np.ndarray:
    """Rows (n, c) of a mechanism in R^d for amounts (n,), epsilon or mu, that each need a calibration to be solved for.

    They are rounded down first, so that few distinct ones remain. Raises `BudgetError` if one is outside `SERVICEABLE`.
    """
    for extreme in (np.min(amounts), np.max(amounts)):
        check_serviceable(with_amount(mechanism.budget, float(extreme)))
    table = _table(replace(mechanism, budget=with_amount(mechanism.budget, 1.0)), d)
    at = _leading_bits(amounts)
    least = _leading_bits(np.array(SERVICEABLE[:1]))
    at -= least
    for new in np.unique(at[table[at, 0] == 0.0]):
        value = float(((least + new) << _CUT).view(float)[0])
        table[new] = replace(mechanism, budget=with_amount(mechanism.budget, value)).rows(d)
    return np.asarray(table.take(at, axis=0))


@lru_cache(maxsize=16)
def _table(mechanism: Mechanism, d: int) -> np.ndarray:
    """The rows of all amounts that remain after rounding down, of those that were solved for; zeros for the others."""
    least, largest = _leading_bits(np.array(SERVICEABLE)).tolist()
    return np.zeros((largest - least + 1, mechanism.rows(d).shape[1]))
