"""The centre and the spread of a target within declared bounds, from one noisy bit of each record that is asked.

Bits, posterior and the rule that ends a search are those of LDP-SGD (`unit_table`), for a model without columns. They
see spreads from 1/64 of the range that is searched. So a search that ends with a spread below 1/16 of its range begins
anew, in a range of six spreads to either side of the centre that it found, until the spread is large enough or the
range is 2^-30 of the bounds. Bounds that fit cost 60 to 240 bits without noise: 281 or more at epsilon = 1, and 65 or
more at epsilon = 4; bounds ten times as wide cost about one more search.

The spread is the unit of the target, as in LDP-SGD: the first steps are made for a target of spread 1.

Everything here follows from noisy bits and public numbers. It is about accuracy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.scaling import location_scale as ls
from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import UnitArrays, begin, read_posterior

_NARROW, _REACH, _LEAST = 1 / 16, 6.0, 2.0**-30
_PLACE = [k.ORIGIN, k.UNIT, k.CENTRE, k.SCALE]


class Question(NamedTuple):
    """Is a value in [low, high)? Either may be infinite. `turn` follows from the number of bits before.

    `column` is the index of a column, or -1 for the target.
    """

    low: float
    high: float
    turn: int
    column: int = -1


class TargetSearch:
    """What is known, and the next question; the target has bounds (low, high)."""

    def __init__(self, bounds: tuple[float, float]) -> None:
        low, high = bounds
        self.asked = 0
        """The number of bits."""
        self._middle, self._whole = low / 2 + high / 2, high / 2 - low / 2
        self._arrays = _search_in(self._middle, self._whole)

    @property
    def open(self) -> bool:
        """Whether more bits are needed."""
        return bool(self._arrays.progress[k.TARGET] < k.DONE)

    @property
    def place(self) -> tuple[float, float]:
        """The centre and the spread of the target as far as they are known."""
        middle, half, centre, scale = self._arrays.table[0, _PLACE].tolist()
        if self.open:
            centre = middle + half * float(self._arrays.summary[0, ls.MEAN])
        return centre, scale

    def question(self) -> Question:
        """Return what is asked next, in an open search."""
        middle, half = self._arrays.table[0, _PLACE[:2]].tolist()
        low, high = self._arrays.summary[0, [ls.LOW, ls.HIGH]].tolist()
        return Question(middle + half * low, middle + half * high, self.asked)

    def take(self, question: Question, yes: bool, keep: float) -> None:
        """Take in the noisy bit `yes`, which is true with the probability `keep`, in an open search."""
        self.asked += 1
        arrays = deepcopy(self._arrays)  # so that an exception leaves no search that ended and did not begin anew
        middle, half = arrays.table[0, _PLACE[:2]].tolist()
        low, high = (question.low - middle) / half, (question.high - middle) / half
        k.take_bit(arrays, 0, low, high, yes, keep)
        centre, scale = arrays.table[0, _PLACE[2:]].tolist()
        ended = arrays.progress[k.TARGET] >= k.DONE
        if ended and scale < _NARROW * half and _REACH * scale > _LEAST * self._whole:
            arrays = _search_in(centre, _REACH * scale)
        self._arrays = arrays

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """The state as new arrays; the posterior is empty when it is not needed any more."""
        place, information = self._arrays.table[0, _PLACE], self._arrays.progress[k.TARGET]
        posterior = self._arrays.posterior.ravel().copy() if information < k.DONE else np.zeros(0)
        return {"search": np.array([*place, information, self.asked]), "posterior": posterior}

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over the state that `learned` returned. Raises `ConfigError` for numbers out of range."""
        numbers = finite_array(state, "search", (len(_PLACE) + 2,))
        place, (information, asked) = np.split(numbers, [len(_PLACE)])
        if min(place[1], place[3]) <= 0 or min(information, asked) < 0:
            raise ConfigError("state: its search for the spread of the target is out of range")
        arrays = _search_in(*place[:2].tolist())
        arrays.table[0, _PLACE], arrays.progress[k.TARGET] = place, information
        if information < k.DONE:
            arrays.posterior[:] = read_posterior(state, "posterior", arrays.posterior)
        k.refresh(arrays)
        self._arrays, self.asked = arrays, int(asked)


def _search_in(middle: float, half: float) -> UnitArrays:
    """A search in [middle - half, middle + half]."""
    table = np.zeros((1, k.TABLE))
    table[0, _PLACE] = middle, half, middle, half
    return begin(table, [0])
