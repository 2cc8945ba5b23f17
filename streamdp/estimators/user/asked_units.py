"""The centres and the spreads of target and columns, learned privately: some users answer one bit, and no gradient.

With scaling="private" the first users answer whether one of their targets is in an interval, by randomised response,
until the centre and the spread are known (`target_search`). Until then the estimate is a constant, the centre as far as
it is known. Later users answer with gradients in these units, but some of them with a bit about a column with declared
bounds (`column_search`); columns are centred and scaled anew between batches. A user answers about the value of one of
its records, because a question about averages would find a spread that is too small; which record is given by the
number of bits before.

Assumption, neighbours, trust: those of `estimators`. Claim: each user's report has the whole budget, epsilon or mu; the
bit has a delta of 0.

Proof. What a user is asked - a bit about a certain column with certain ends, or a gradient in certain units - follows
from the number of its report and from reports before, which are of other users. It is fixed before its records are
seen. A user gives one answer. The truth of the bit is a function of all its records, and two users with any records
differ by one bit at most, so randomised response keeps the budget (`mechanisms.response`), whatever the question. A
gradient keeps it in any units of target and columns, because the loss's bounds hold for every x and y (`losses`). So
the protocol is a sequentially interactive local one, with one answer of each user. Posteriors, centres, spreads and all
that is learned are post-processing. A user who reports again is asked again, and spends again.

Source: of the protocol, Duchi, Jordan, Wainwright 2018; the questions are streamdp's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError, check_choice
from streamdp.estimators.user.randomizer import chance_of_truth, is_within
from streamdp.estimators.user.records import UserRecords
from streamdp.estimators.user.target_units import Bounds, Units
from streamdp.optim.asgd import Asgd
from streamdp.optim.column_search import ColumnSearch
from streamdp.optim.column_units import inward, outward
from streamdp.optim.target_search import Question, TargetSearch
from streamdp.optim.walk import Walk
from streamdp.privacy.mechanisms.response import respond

_SCALINGS = ("private", "declared", "none")


class AskedUnits(UserRecords):
    """The search for the units of target and columns."""

    _method: str
    _search: TargetSearch | None = None
    _columns: ColumnSearch | None = None
    """None: the units are not learned."""
    _walk: Walk
    _middle: np.ndarray

    def _set_up(self) -> None:
        if self.scaling is not None:
            check_choice("scaling", self.scaling, _SCALINGS, " or None")
        super()._set_up()
        self._chance = chance_of_truth(self._budget)

    def _usual_bounds(self) -> Bounds | None:
        bounds, columns = super()._usual_bounds(), self._scaled_columns()
        if self.scaling in ("private", "declared") and bounds is None and not columns.any():
            raise ConfigError(
                f"scaling: {self.scaling} scaling needs declared bounds, in `features` or `target`, an intercept, and "
                "neither a domain nor smoothness or strong_convexity, which are in units of theta"
            )
        if self.scaling == "private" and self._method != "asgd":
            raise ConfigError('scaling: private scaling needs method="asgd", because the planned steps count all users')
        return bounds

    def _scaled_columns(self) -> np.ndarray:
        """(p,) which columns have declared bounds, if a new model may learn in other units."""
        assert self._features is not None
        return self._features.numeric & self._may_scale

    def _begin_in(self, bounds: Bounds | None) -> None:
        super()._begin_in(bounds)
        private = self._method == "asgd" and self.scaling in (None, "private")
        self._search = TargetSearch(bounds) if private and bounds is not None else None
        self._begin_columns(private and bool(self._scaled_columns().any()))

    def _begin_columns(self, private: bool) -> None:
        """Learn columns in units of their own, or as they are, in an estimator that has learned nothing."""
        assert self._features is not None
        self._columns = None
        if private:
            self._columns = ColumnSearch(self._scaled_columns(), self._features.typical, self._chance)

    @property
    def _column_units(self) -> np.ndarray | None:
        """(2, p) centres and slopes; None: columns are learned as they are."""
        return None if self._columns is None else self._columns.units

    @property
    def _units(self) -> Units | None:
        if self._search is None or self._bounds is None:
            return super()._units
        return Units(*self._bounds, *self._search.place)

    def _outward(self, theta: np.ndarray) -> np.ndarray:
        return super()._outward(theta if (units := self._column_units) is None else outward(theta, units))

    def _inward(self, original: np.ndarray) -> np.ndarray:
        theta = super()._inward(original)
        return theta if (units := self._column_units) is None else inward(theta, units)

    @property
    def _asking_target(self) -> bool:
        """Whether the centre and the spread of the target are not known yet."""
        return self._search is not None and self._search.open

    def _question(self) -> Question | None:
        """What the next user is asked; None: a gradient."""
        if self._search is not None and self._search.open:
            return self._search.question()
        return self._columns.question() if self._columns is not None and self._columns.wait == 0 else None

    @property
    def _gradients_ahead(self) -> int:
        """How many users answer with a gradient before the next bit."""
        if self._asking_target:
            return 0
        return MOST_RECORDS if self._columns is None else self._columns.wait

    @property
    def n_asked(self) -> int:
        """Reports that were one bit about the centre and the spread of target or columns, and not a gradient."""
        return sum(search.asked for search in (self._search, self._columns) if search is not None)

    def _place_of_target(self) -> tuple[float, float, float]:
        if self._search is None or self._bounds is None:
            return 0.0, 1.0, np.inf
        low, high = self._bounds
        centre, unit = self._search.place
        return centre, 0.0 if self._search.open else unit, high / 2 - low / 2

    def _take_bit(self, asked: Question, yes: bool) -> None:
        """Take in one noisy bit."""
        if asked.column >= 0:
            assert self._columns is not None
            self._columns.take(asked, yes)
        else:
            assert self._search is not None
            self._search.take(asked, yes, self._chance)

    def _ask(self, asked: Question, X: np.ndarray, y: np.ndarray) -> None:
        """Let a user with these records, (k, p) and (k,), answer with a bit."""
        self._take_bit(asked, respond(is_within(asked, X, y, self._bounds), self._chance, self._rng))

    def _scale_columns(self) -> None:
        """Scale columns anew if it is time, between two batches."""
        if (before := self._columns) is None or not isinstance(self._walk, Asgd):
            return
        columns, walk = deepcopy(before), self._walk
        restart = columns.rescale(walk.information)
        if (before.units != columns.units).any():
            walk = walk.mapped(lambda theta: inward(outward(theta, before.units), columns.units))
            self._follow_scales(walk, columns)
        if restart:
            walk.forget()
        # All on one line: an exception, such as Ctrl-C, must not leave theta in other units than the columns.
        self._columns, self._walk, self._middle = columns, walk, walk.middle

    def _follow_scales(self, walk: Walk, columns: ColumnSearch | None) -> None:
        """Tell a walk where the clocks of columns began."""
        if columns is not None and isinstance(walk, Asgd):
            blocks = self._blocks(since := np.zeros(len(walk.middle)))
            blocks[:, :-1] = columns.since
            walk.since = since

    def _about_scale(self) -> list[str]:
        if self._search is None and self._columns is None:
            return []
        return [
            f"of the reports, {self.n_asked:,} spent their budget on one bit about the centre and the spread of the "
            "target or of a column, and the others on a gradient; which ones is public"
        ]

    # -- state -------------------------------------------------------------------------------------------------------

    def _learned_bounds(self) -> dict[str, Any]:
        state = super()._learned_bounds()
        for search in (self._search, self._columns):
            state |= {} if search is None else search.learned()
        return state

    def _read_search(self, state: Mapping[str, Any], bounds: Bounds | None) -> TargetSearch | None:
        """That of a state, None for one of targets in declared units."""
        if "search" not in state or bounds is None:
            return None
        search = TargetSearch(bounds)
        search.read(state)
        return search

    def _read_columns(self, state: Mapping[str, Any]) -> ColumnSearch | None:
        """That of a state, None for one of columns as they are."""
        if "scales" not in state:
            return None
        columns, features = self._scaled_columns(), self._features
        if self._method != "asgd" or not columns.any() or features is None:
            raise ConfigError("state: expected columns with declared bounds")
        search = ColumnSearch(columns, features.typical, self._chance)
        search.read(state)
        return search

    def _contribution(self) -> tuple[dict[str, Any], dict[str, int], np.ndarray]:
        model, counts, numbers = super()._contribution()
        scaled = (self._search is not None, self._columns is not None)
        return model | {"scaling of target and columns": scaled}, counts, numbers

    def _begin_as(self, parts: Sequence[Self]) -> None:
        super()._begin_as(parts)
        searches = [part._search for part in parts if part._search is not None]  # noqa: SLF001 - the same class
        self._search = deepcopy(max(searches, key=lambda one: (not one.open, one.asked), default=None))
        if self._search is not None:
            self._search.asked = sum(search.asked for search in searches)
        columns = [part._columns for part in parts if part._columns is not None]  # noqa: SLF001
        self._begin_columns(bool(columns))
        if self._columns is not None:
            self._columns.merge(columns)
        self._follow_scales(self._walk, self._columns)
