"""The centres and the spreads of target and columns, learned privately: some users answer one bit, and no gradient.

With scaling="private" the first users answer whether one of their targets is in an interval, by randomised response,
until the centre and the spread are known (`target_search`). Until then the estimate is a constant, the centre as far as
it is known. Later users answer with gradients in these units, but some of them with a bit about a column with declared
bounds (`column_search`); columns are centred and scaled anew between batches.

Claim: each user's report has the whole budget; the bit has a delta of 0. Proof: docs/proofs/user_level.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.learners.linear_problem import Columns
from streamdp.learners.target_units import Bounds, Units, units_of
from streamdp.learners.target_units import inward as target_inward
from streamdp.learners.target_units import outward as target_outward
from streamdp.scaling.column_search import ColumnSearch
from streamdp.scaling.column_units import inward, outward
from streamdp.scaling.target_search import Question, TargetSearch


class AskedUnits:
    """The units of target and columns, and the search for them.

    Parameters
    ----------
    columns
        What is declared of the columns.
    scaled
        (p,) which columns may be learned in units of their own.
    bounds
        The bounds in whose units targets are learned; None: they are learned as they come.
    private
        Whether units are searched. If not, targets are in units of their bounds, and columns as they are.
    chance
        The probability of a true bit.
    """

    def __init__(
        self, columns: Columns, scaled: np.ndarray, bounds: Bounds | None, private: bool, chance: float
    ) -> None:
        self.bounds, self._p, self._chance = bounds, len(columns), chance
        self.target_search = TargetSearch(bounds) if private and bounds is not None else None
        self.column_search = ColumnSearch(scaled, columns.typical, chance) if private and scaled.any() else None

    # -- units -------------------------------------------------------------------------------------------------------

    @property
    def searched(self) -> tuple[bool, bool]:
        """Whether the units of the target, and of columns, are searched."""
        return self.target_search is not None, self.column_search is not None

    @property
    def target(self) -> Units | None:
        """What targets are clipped to, and in what units they are learned; None: they are learned as they come."""
        if self.bounds is None:
            return None
        return units_of(self.bounds) if self.target_search is None else Units(*self.bounds, *self.target_search.place)

    @property
    def columns(self) -> np.ndarray | None:
        """(2, p) centres and slopes; None: columns are learned as they are."""
        return None if self.column_search is None else self.column_search.units

    def outward(self, theta: np.ndarray) -> np.ndarray:
        """A `theta` (d,) for columns and targets as they come."""
        return target_outward(theta if (units := self.columns) is None else outward(theta, units), self.target, self._p)

    def inward(self, original: np.ndarray) -> np.ndarray:
        """An `original` theta (d,) as it is learned, as a new array: the inverse of `outward`."""
        theta = target_inward(original, self.target, self._p)
        return theta if (units := self.columns) is None else inward(theta, units)

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        """See `Learner.place_of_target`."""
        if self.target_search is None or self.bounds is None:
            return 0.0, 1.0, np.inf
        low, high = self.bounds
        centre, unit = self.target_search.place
        return centre, 0.0 if self.target_search.open else unit, high / 2 - low / 2

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def asking_target(self) -> bool:
        """Whether the centre and the spread of the target are not known yet."""
        return self.target_search is not None and self.target_search.open

    def question(self) -> Question | None:
        """What the next user is asked; None: a gradient."""
        if self.target_search is not None and self.target_search.open:
            return self.target_search.question()
        return (
            self.column_search.question() if self.column_search is not None and self.column_search.wait == 0 else None
        )

    @property
    def gradients_ahead(self) -> int:
        """How many users answer with a gradient before the next bit."""
        if self.asking_target:
            return 0
        return MOST_RECORDS if self.column_search is None else self.column_search.wait

    @property
    def asked(self) -> int:
        """Reports that were one bit about the centre and the spread of target or columns, and not a gradient."""
        return sum(search.asked for search in (self.target_search, self.column_search) if search is not None)

    def asks(self, question: Question) -> bool:
        """Whether this is a question about the target or a column that is searched."""
        return question.column < 0 or (self.column_search is not None and self.column_search.asks(question))

    def take(self, question: Question, yes: bool) -> None:
        """Take in one noisy bit: `yes`, or no."""
        if question.column >= 0:
            assert self.column_search is not None
            self.column_search.take(question, yes)
        else:
            assert self.target_search is not None
            self.target_search.take(question, yes, self._chance)

    def count(self, gradients: int) -> None:
        """Count reports that were gradients."""
        if self.column_search is not None:
            self.column_search.count(gradients)

    # -- between two batches -----------------------------------------------------------------------------------------

    def rescaled(self, information: float) -> tuple[AskedUnits, bool] | None:
        """A copy whose columns are scaled anew if it is time, and whether the average begins anew; None without any.

        Parameters
        ----------
        information
            That of the gradients so far.
        """
        if self.column_search is None:
            return None
        other = deepcopy(self)
        assert other.column_search is not None
        return other, other.column_search.rescale(information)

    def moved(self, theta: np.ndarray, other: AskedUnits) -> np.ndarray:
        """A `theta` (d,) in the units of the columns of another one."""
        before, after = self.columns, other.columns
        assert before is not None
        assert after is not None
        return inward(outward(theta, before), after)

    @property
    def since(self) -> np.ndarray | None:
        """(p,) where the progress of each column began; None without scaled columns."""
        return None if self.column_search is None else self.column_search.since

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """What was learned, as plain values and new arrays."""
        state: dict[str, Any] = {}
        for search in (self.target_search, self.column_search):
            state |= {} if search is None else search.learned()
        return state

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over the `state` that `learned` returned. Raises `ConfigError` for values out of range."""
        for search in (self.target_search, self.column_search):
            if search is not None:
                search.read(state)

    def merge(self, parts: Sequence[AskedUnits]) -> None:
        """Start from what others have learned of disjoint users: the target's units of the one that knows most."""
        searches = [part.target_search for part in parts if part.target_search is not None]
        if searches:
            self.target_search = deepcopy(max(searches, key=lambda one: (not one.open, one.asked)))
            self.target_search.asked = sum(search.asked for search in searches)
        if self.column_search is not None:
            self.column_search.merge([part.column_search for part in parts if part.column_search is not None])
