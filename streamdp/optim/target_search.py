"""The centre and the unit of a target within declared bounds, from one noisy bit of each record that is asked.

1. Centre and spread. Bits, posterior and the rule that ends a search are those of LDP-SGD (`frame`), for a model
   without columns. They see spreads from 1/64 of the range that is searched. So a search that ends with a spread below
   1/16 of its range begins anew, in a range of six spreads to either side of the centre that it found, until the spread
   is large enough or the range is 2^-30 of the bounds. If the first search finds a spread of at least 1/16 of the
   width of the bounds, they fit, and no more is asked.
2. Reach. The distance t from the centre that 17 of 20 targets keep, by the steps of Robbins and Monro: with b the
   unbiased bit of the question "|y - centre| < t", ln t changes by (.85 - b) 2 (2 p - 1) / sqrt(k + 4) with the k-th
   bit, p being the probability of a true one; from 2 spreads on, until the bits have an information of 60. The average
   of the second half counts.

The unit is 3/2 of the reach, around the centre. A spread alone is no unit: many targets have long tails, and those are
what columns tell about. If the unit is at least 1/8 of the width of the bounds, they fit: the unit is half their
width, around their middle. So bounds that fit cost the asked records and nothing else, 281 or 562 of them at epsilon =
1, and 65 or 130 at epsilon = 4; bounds ten times as wide cost about one more search.

Everything here follows from noisy bits and public numbers. It is about accuracy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim import frame as k
from streamdp.optim import location_scale as ls
from streamdp.optim import loops
from streamdp.optim.arrays import LARGEST_POSTERIOR, begin
from streamdp.optim.states import finite_array

_NARROW, _REACH, _LEAST = 1 / 16, 6.0, 2.0**-30
_SHARE, _DELAY, _ENOUGH = 0.85, 4.0, 60.0
_UNIT, _FIT, _PLAIN_FIT = 1.5, 1 / 4, 1 / 8
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
    """What is known, and the next question.

    Parameters
    ----------
    bounds
        (low, high) of the target.
    """

    def __init__(self, bounds: tuple[float, float]) -> None:
        low, high = bounds
        self.asked = 0
        """The number of bits."""
        self._middle, self._whole = low / 2 + high / 2, high / 2 - low / 2
        self._tail = np.zeros(5)
        """Of the reach: ln t, the number and the information of its bits, and of the second half of these the number
        and the sum of ln t."""
        self._begin(self._middle, self._whole)

    def _begin(self, middle: float, half: float) -> None:
        """Search in [middle - half, middle + half]."""
        spec, frame = np.zeros(loops.SPEC), np.zeros((1, k.FRAME))
        spec[loops.INTERCEPT] = True
        frame[0, _PLACE] = middle, half, middle, half
        self._arrays = begin(spec, np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((0, 2)), frame, [0])

    @property
    def _unit(self) -> float | None:
        """The unit around the centre that was found; None: not found yet; inf: the bounds fit."""
        _, half, _, scale = self._arrays.frame[0, _PLACE].tolist()
        if self._arrays.clock[k.TARGET] < k.DONE:
            return None
        if half == self._whole and scale >= _PLAIN_FIT * half:
            return math.inf
        if self._tail[2] < _ENOUGH:
            return None
        unit = _UNIT * math.exp(self._tail[4] / self._tail[3])
        return math.inf if unit >= _FIT * self._whole else unit

    @property
    def open(self) -> bool:
        """Whether more bits are needed."""
        return self._unit is None

    @property
    def place(self) -> tuple[float, float]:
        """The centre and the unit of the target as far as they are known."""
        middle, half, centre, scale = self._arrays.frame[0, _PLACE].tolist()
        if (unit := self._unit) is not None:
            return (centre, unit) if unit < math.inf else (self._middle, self._whole)
        if self._arrays.clock[k.TARGET] < k.DONE:
            centre = middle + half * float(self._arrays.summary[0, ls.MEAN])
        return centre, scale

    @property
    def _at_tail(self) -> bool:
        """Whether the centre and the spread are known. It begins a search in a narrower range that is due."""
        _, half, centre, scale = self._arrays.frame[0, _PLACE].tolist()
        if self._arrays.clock[k.TARGET] < k.DONE:
            return False
        if scale < _NARROW * half and _REACH * scale > _LEAST * self._whole:
            self._begin(centre, _REACH * scale)
            return False
        if self._tail[1] == 0:
            self._tail[0] = math.log(2 * scale)
        return True

    def question(self) -> Question:
        """Return what is asked next, in an open search."""
        if self._at_tail:
            centre, reach = float(self._arrays.frame[0, k.CENTRE]), math.exp(self._tail[0])
            return Question(centre - reach, centre + reach, self.asked)
        middle, half = self._arrays.frame[0, _PLACE[:2]].tolist()
        low, high = self._arrays.summary[0, [ls.LOW, ls.HIGH]].tolist()
        return Question(middle + half * low, middle + half * high, self.asked)

    def take(self, question: Question, yes: bool, keep: float) -> None:
        """Take in one noisy bit, in an open search.

        Parameters
        ----------
        question
            What was asked, now or before. An answer that is too late is counted, and tells nothing.
        yes
            The noisy answer.
        keep
            The probability that it is the true one.
        """
        tail = self._at_tail
        self.asked += 1
        if not tail:
            middle, half = self._arrays.frame[0, _PLACE[:2]].tolist()
            low, high = (question.low - middle) / half, (question.high - middle) / half
            k.take_bit(self._arrays, 0, low, high, yes, keep)
        elif question.turn >= self.asked - 1 - self._tail[1]:
            self._take_tail(yes, 2 * keep - 1)

    def _take_tail(self, yes: bool, gap: float) -> None:
        tail = self._tail.copy()
        unbiased = (yes - (1 - gap) / 2) / gap
        tail[0] += (_SHARE - unbiased) * 2 * gap / math.sqrt(tail[1] + 1 + _DELAY)
        tail[0] = min(max(tail[0], math.log(self._arrays.frame[0, k.SCALE])), math.log(2 * self._whole))
        tail[1:3] += 1, gap**2
        if tail[2] > _ENOUGH / 2:
            tail[3:] += 1, tail[0]
        self._tail = tail

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """The state as new arrays; the posterior is empty when it is not needed any more."""
        frame, told = self._arrays.frame[0, _PLACE], self._arrays.clock[k.TARGET]
        posterior = self._arrays.posterior.ravel().copy() if told < k.DONE else np.zeros(0)
        return {"search": np.array([*frame, told, self.asked, *self._tail]), "posterior": posterior}

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over what `learned` returned.

        Parameters
        ----------
        state
            The entries of `learned`.

        Raises `ConfigError` for numbers out of range.
        """
        numbers = finite_array(state, "search", (len(_PLACE) + 2 + len(self._tail),))
        place, (told, asked), tail = np.split(numbers, [len(_PLACE), len(_PLACE) + 2])
        cells = np.zeros(0) if told >= k.DONE else finite_array(state, "posterior", (self._arrays.posterior.size,))
        if (
            min(place[1], place[3]) <= 0
            or min(told, asked, *tail[1:4]) < 0
            or (tail[2] >= _ENOUGH and not abs(tail[4]) <= 1e3 * tail[3])
            or abs(tail[0]) > 1e3
            or np.abs(cells).max(initial=0.0) > LARGEST_POSTERIOR
        ):
            raise ConfigError("state: its search for the spread of the target is out of range")
        self._begin(*place[:2].tolist())
        self.asked, self._tail = int(asked), tail
        self._arrays.frame[0, _PLACE], self._arrays.clock[k.TARGET] = place, told
        if len(cells):
            self._arrays.posterior[:] = cells.reshape(self._arrays.posterior.shape)
        k.refresh(self._arrays)
