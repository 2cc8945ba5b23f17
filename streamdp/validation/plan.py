"""Which records answer, and what they are asked: public functions of the record's number and of earlier answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.composition import Spend
from streamdp.privacy.entropy import mixed, uniform
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, check_serviceable, parse_budget

NOTHING, CONSTANT, ERROR, OTHER, CELL = range(5)
"""What a record is asked about: nothing, the best constant, the model's error, what stands beside it, or a cell."""
NEAREST, FARTHEST = 1e-75, 1e60
"""The largest distance of target and prediction that counts is within these: squares of its squares are doubles."""

_USUAL = (CONSTANT, ERROR, ERROR, ERROR, ERROR, OTHER, OTHER, OTHER)
_CELLS = (CONSTANT, ERROR, ERROR, ERROR, ERROR, OTHER, CELL, CELL)
_SUMMED = (CONSTANT, CONSTANT, ERROR, ERROR, ERROR, ERROR, ERROR, ERROR)


@dataclass(frozen=True)
class Plan:
    """How records pay for the validation of a model.

    Either a `share` of the records answer in place of a gradient, with their whole budget, or each spends a `budget` on
    an answer beside its gradient; the other is None. `bound` is the largest distance of target and prediction that
    counts, for numbers. If it is None, it is 2.5 times the scale that is known of the target, and at most half the
    width of its bounds.
    """

    share: float | None
    budget: Budget | None
    bound: float | None

    def total(self, budget: Budget) -> Budget:
        """What a record spends in all, if it spends a budget on its gradient, or in place of it.

        Raises `BudgetError` if budgets of these kinds have no exact sum.
        """
        if self.budget is None:
            return budget
        if isinstance(budget, GaussianDP) != isinstance(self.budget, GaussianDP) or (
            isinstance(self.budget, ApproxDP) and not isinstance(budget, ApproxDP)
        ):
            raise BudgetError(
                f"validation: expected a budget of the model's kind, {type(budget).__name__}, got {self.budget}"
            )
        total = Spend.of([budget, self.budget]).guarantee()
        assert total is not None
        check_serviceable(total)
        return total


def plan_of(value: Mapping[str, Any]) -> Plan:
    """Read a plan: `share`, above 0 and at most 0.5, or `budget`; and `bound`, positive, for numbers.

    Raises `ConfigError` for any other value, and `BudgetError` for a budget that cannot be served.
    """
    expected = 'validation: expected {"share": 0.1} or {"budget": "eps=0.5"}, and "bound" for numbers without bounds'
    if not isinstance(value, Mapping) or not value.keys() <= {"share", "budget", "bound"}:
        raise ConfigError(expected)
    share, text, bound = (value.get(name) for name in ("share", "budget", "bound"))
    if (share is None) == (text is None):
        raise ConfigError(f"{expected}: one of share and budget")
    if share is not None and not (_positive(share) and share <= 0.5):
        raise ConfigError("validation.share: expected a number above 0 and at most 0.5")
    if bound is not None and not (_positive(bound) and NEAREST <= bound <= FARTHEST):
        raise ConfigError(f"validation.bound: expected a number from {NEAREST:g} to {FARTHEST:g}")
    budget = None if text is None else parse_budget(text)
    if budget is not None:
        check_serviceable(budget)
    if isinstance(budget, ApproxDP):
        budget = PureDP(budget.epsilon)  # an answer needs no delta
    return Plan(None if share is None else float(share), budget, None if bound is None else float(bound))


def questions(
    first: int, count: int, share: float | None, learns_constant: bool, *, cells: bool = False, summed: bool = False
) -> np.ndarray:
    """Return what the next records are asked, as codes (count,); `first` is the number of the first of them.

    A record's coin is a hash of its number, SplitMix64, so it depends on no data, and is the same however a stream is
    cut into calls. With a share of None all records answer. Of eight that answer, one is asked about the constant, four
    about the error, and three about what stands beside it, or with `cells` one of these and two about a cell; `summed`:
    two about the constant, and six about all else. While the constant is hardly known (`learns_constant`), all are
    asked about it.
    """
    h = mixed((np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    asked = np.array(_SUMMED if summed else _CELLS if cells else _USUAL)[(h & np.uint64(7)).astype(np.int64)]
    if learns_constant:
        asked[:] = CONSTANT
    if share is not None:
        asked[uniform(h) >= share] = NOTHING
    return asked


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and 0 < float(value) < 1e100
