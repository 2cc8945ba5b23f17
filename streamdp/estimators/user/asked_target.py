"""The centre and the spread of a target, learned privately: some users answer one bit about a target, and no gradient.

With scaling="private" the first users answer whether one of their targets is in an interval, by randomised response,
until the centre and the spread are known (`target_search`). The others answer with gradients in these units, which stay
as they are. Until then the estimate is a constant, the centre as far as it is known. The target that a user answers
about is one record, because a question about averages would find a spread that is too small; which record is given by
the number of bits before.

Assumption, neighbours, trust: those of `estimators`. Claim: each user's report has the whole budget, epsilon or mu; the
bit has a delta of 0.

Proof. What a user is asked - a bit with certain ends, or a gradient in certain units - follows from the number of its
report and from reports before, which are of other users. It is fixed before its records are seen. A user gives one
answer. The truth of the bit is a function of all its records, and two users with any records differ by one bit at most,
so randomised response keeps the budget (`mechanisms.response`), whatever the question. A gradient keeps it in any units
(`target_units`). So the protocol is a sequentially interactive local one, with one answer of each user. Posterior,
centre, spread and all that is learned are post-processing. A user who reports again is asked again, and spends again.

Source: of the protocol, Duchi, Jordan, Wainwright 2018; the questions are streamdp's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import numpy as np

from streamdp.errors import ConfigError, check_choice
from streamdp.estimators.user.randomizer import chance_of_truth, is_within
from streamdp.estimators.user.records import UserRecords
from streamdp.estimators.user.target_units import Bounds, Units
from streamdp.optim.target_search import TargetSearch
from streamdp.privacy.mechanisms.response import respond

_SCALINGS = ("private", "declared", "none")


class AskedTarget(UserRecords):
    """The search for the units of the target."""

    _method: str
    _search: TargetSearch | None = None
    """None: the units are not learned."""

    def _set_up(self) -> None:
        if self.scaling is not None:
            check_choice("scaling", self.scaling, _SCALINGS, " or None")
        super()._set_up()
        self._chance = chance_of_truth(self._budget)

    def _usual_bounds(self) -> Bounds | None:
        bounds = super()._usual_bounds()
        if self.scaling in ("private", "declared") and bounds is None:
            raise ConfigError(
                f"scaling: {self.scaling} scaling needs `target`, an intercept, and neither a domain nor smoothness or "
                "strong_convexity, which are in units of theta"
            )
        if self.scaling == "private" and self._method != "asgd":
            raise ConfigError('scaling: private scaling needs method="asgd", because the planned steps count all users')
        return bounds

    def _begin_in(self, bounds: Bounds | None) -> None:
        super()._begin_in(bounds)
        private = self._method == "asgd" and self.scaling in (None, "private")
        self._search = TargetSearch(bounds) if private and bounds is not None else None

    @property
    def _units(self) -> Units | None:
        if self._search is None or self._bounds is None:
            return super()._units
        return Units(*self._bounds, *self._search.place)

    @property
    def _asking(self) -> TargetSearch | None:
        """The search, if the next user is asked about its target."""
        return self._search if self._search is not None and self._search.open else None

    @property
    def n_asked(self) -> int:
        """Reports that were one bit about the centre and the spread of the target, and not a gradient."""
        return 0 if self._search is None else self._search.asked

    def _place_of_target(self) -> tuple[float, float, float]:
        if self._search is None or self._bounds is None:
            return 0.0, 1.0, np.inf
        low, high = self._bounds
        centre, unit = self._search.place
        return centre, 0.0 if self._search.open else unit, high / 2 - low / 2

    def _ask(self, search: TargetSearch, y: np.ndarray) -> None:
        """Let a user with these targets (k,) answer the open question."""
        assert self._bounds is not None
        asked = search.question()
        search.take(asked, respond(is_within(asked, y, self._bounds), self._chance, self._rng), self._chance)

    def _about_scale(self) -> list[str]:
        if self._search is None:
            return []
        return [
            f"of the reports, {self.n_asked:,} spent their budget on one bit about the centre and the spread of the "
            "target, and the others on a gradient; which ones is public"
        ]

    # -- state -------------------------------------------------------------------------------------------------------

    def _learned_bounds(self) -> dict[str, Any]:
        return super()._learned_bounds() | ({} if self._search is None else self._search.learned())

    def _read_search(self, state: Mapping[str, Any], bounds: Bounds | None) -> TargetSearch | None:
        """That of a state, None for one of targets in declared units."""
        if "search" not in state or bounds is None:
            return None
        search = TargetSearch(bounds)
        search.read(state)
        return search

    def _contribution(self) -> tuple[dict[str, Any], dict[str, int], np.ndarray]:
        model, counts, numbers = super()._contribution()
        return model | {"scaling of the target": self._search is not None}, counts, numbers

    def _begin_as(self, parts: Sequence[Self]) -> None:
        super()._begin_as(parts)
        searches = [part._search for part in parts if part._search is not None]  # noqa: SLF001 - the same class
        self._search = deepcopy(max(searches, key=lambda one: (not one.open, one.asked), default=None))
