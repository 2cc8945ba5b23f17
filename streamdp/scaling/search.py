"""The search for units by noisy bits between gradients that are taken in batches.

Bits, posteriors, schedule and rules are those of LDP-SGD (`schedule`, `unit_table`). Here all reports have the same
budget, a batch of gradients has one theta and one unit of each column, and `BatchSteps` keep theta. So columns are
scaled anew between batches only, and the steps convert their numbers.

Bits see spreads from 1/64 of the range that is searched. So a search for the target that ends with a spread below 1/16
of its range begins anew, in a range of six spreads to either side of the centre that it found, until the spread is
large enough or the range is 2^-30 of the bounds. Bounds ten times as wide cost about one more search.

Everything here follows from noisy bits and public numbers. It is about accuracy only.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import NamedTuple, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.scaling import location_scale as ls
from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import FIRST_SCALE, begin
from streamdp.scaling.schedule import ahead
from streamdp.scaling.units import Bounds, Units

_NARROW, _REACH, _LEAST = 1 / 16, 6.0, 2.0**-30
_TARGET = [k.ORIGIN, k.UNIT, k.CENTRE, k.SCALE]


class Question(NamedTuple):
    """Is a value in [low, high)? Either may be infinite. `turn` follows from the number of bits before.

    `column` is the index of a column, or the number of columns for the target, whose interval is in original units.
    """

    low: float
    high: float
    turn: int
    column: int


class UnitSearch:
    """What is known of columns and target, the next question, and the units that follow.

    - `scaled`: (p,) the columns that have values in [-1, 1] and are scaled.
    - `typical`: the declared centres and spreads to begin with, by column.
    - `bounds`: the bounds in whose units targets are learned; None: they are learned as they come.
    - `private`: whether the centre and the spread of the target are searched.
    - `keep`: the probability that a bit is the true one. `intercept`, `outputs`: those of `Units`.
    """

    def __init__(
        self,
        scaled: np.ndarray,
        typical: Mapping[int, tuple[float, float]],
        bounds: Bounds | None,
        private: bool,
        keep: float,
        intercept: bool = True,
        outputs: int = 1,
    ) -> None:
        p = len(scaled)
        table = np.zeros((p + 1, k.TABLE))
        table[:, [k.SCALE, k.UNIT]] = 1.0
        table[:p, k.SCALE][scaled] = FIRST_SCALE
        for j, place in typical.items():
            table[j, [k.CENTRE, k.SCALE]] = place
        if bounds is not None:
            low, high = bounds
            table[p, _TARGET] = 2 * (low / 2 + high / 2, high / 2 - low / 2)
        self.bounds, self._intercept, self._outputs = bounds, intercept, outputs
        self.keep, self._information = keep, (2 * keep - 1) ** 2
        self.arrays = begin(table, np.flatnonzero(np.append(scaled, private and bounds is not None)).tolist())
        self.asked_target = 0  # bits about the target

    # -- units -------------------------------------------------------------------------------------------------------

    @property
    def searched(self) -> tuple[bool, bool]:
        """Whether the units of the target, and of columns, are searched."""
        target = bool(self.arrays.table[-1, k.SLOT] >= 0)
        return target, len(self.arrays.summary) > target

    @property
    def units(self) -> Units:
        """The units as far as they are known."""
        columns, (middle, half, centre, scale) = self.arrays.table[:-1], self.arrays.table[-1, _TARGET].tolist()
        if self.asking_target:
            centre = middle + half * float(self.arrays.summary[-1, ls.MEAN])
        both = np.stack([columns[:, k.CENTRE], 1 / columns[:, k.SCALE]])
        return Units(both, centre, scale, self.bounds, self._intercept, self._outputs)

    @property
    def since(self) -> np.ndarray:
        """(p,) where the progress of each column began (`unit_table`): a view."""
        return self.arrays.table[:-1, k.SINCE]

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def asking_target(self) -> bool:
        """Whether the centre and the spread of the target are searched, and not known yet."""
        return self.searched[0] and bool(self.arrays.progress[k.TARGET] < k.DONE)

    @property
    def asked(self) -> int:
        """The number of bits."""
        return int(self.arrays.progress[k.BITS])

    @property
    def wait(self) -> int:
        """How many reports are gradients before the next bit."""
        return int(min(ahead(self.arrays, self._information)[0], 2.0**60))

    def ask(self) -> Question | None:
        """The next question; None: a gradient."""
        count, column = ahead(self.arrays, self._information)
        if count:
            return None
        low, high = self.arrays.ends(column)
        if not self.asking_target:
            turn = (self.asked - self.asked_target) // (len(self.arrays.summary) - self.searched[0])
            return Question(low, high, turn, column)
        middle, half = self.arrays.table[-1, _TARGET[:2]].tolist()
        return Question(middle + half * low, middle + half * high, self.asked_target, column)

    def take(self, question: Question, yes: bool) -> None:
        """Take in the noisy bit `yes`, the answer to a question that was asked now or before."""
        arrays, (low, high, _, column) = self.arrays, question
        if column < len(arrays.table) - 1:
            k.take_bit(arrays, column, low, high, yes, self.keep)
            self.count(1)
            return
        arrays = deepcopy(arrays)  # so that an exception leaves no search that ended and did not begin anew
        middle, half = arrays.table[-1, _TARGET[:2]].tolist()
        ended = k.take_bit(arrays, column, (low - middle) / half, (high - middle) / half, yes, self.keep)
        centre, scale = arrays.table[-1, _TARGET[2:]].tolist()
        assert self.bounds is not None
        whole = self.bounds[1] / 2 - self.bounds[0] / 2
        if ended and scale < _NARROW * half and _REACH * scale > _LEAST * whole:
            arrays.table[-1, _TARGET] = 2 * (centre, _REACH * scale)
            arrays.posterior[-1] = arrays.progress[k.TARGET] = 0.0
            k.refresh(arrays)
        self.arrays, self.asked_target = arrays, self.asked_target + 1

    def count(self, reports: int) -> None:
        """Count reports: gradients, or bits about columns."""
        progress = self.arrays.progress
        progress[k.COUNT] += reports
        progress[k.REACHED] = progress[k.COUNT] * self._information

    def rescaled(self, information: float) -> tuple[Self, bool] | None:
        """A copy whose columns are scaled anew, and whether averages begin anew; None if it is not time.

        `information` is that of all gradients so far.
        """
        if not self.searched[1] or self.arrays.progress[k.COUNT] < self.arrays.progress[k.NEXT]:
            return None
        other = copy(self)
        other.arrays = arrays = deepcopy(self.arrays)
        arrays.progress[k.TOTAL] = information
        arrays.progress[k.NEXT] = math.ceil(arrays.progress[k.COUNT] * k.GROWTH)
        return other, k.rescale(arrays)

    def merge(self, parts: Sequence[Self]) -> None:
        """Take over what parts with disjoint records know, and the units of those that know most."""
        first = max(parts, key=lambda part: (not part.asking_target, part.asked_target))
        self.arrays.merge([part.arrays for part in parts])
        self.asked_target = sum(part.asked_target for part in parts)
        self.arrays.table[-1], self.arrays.progress[k.NEXT] = first.arrays.table[-1], k.FIRST
        if self.searched[0]:  # the ranges of searches may differ, so the posterior is that of one of them
            self.arrays.progress[k.TARGET] = first.arrays.progress[k.TARGET]
            self.arrays.posterior[-1] = first.arrays.posterior[-1]
        k.refresh(self.arrays)

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, object]:
        """The state as new arrays."""
        target = self.arrays.table[-1, _TARGET[:2]].tolist()
        return self.arrays.learned() | {"target": np.array([*target, self.asked_target])}

    def read(self, state: Mapping[str, object]) -> None:
        """Take over the `state` that `learned` returned. Raises `ConfigError` for numbers out of range."""
        origin, unit, asked = finite_array(state, "target", (3,)).tolist()
        if unit <= 0 or asked < 0:
            raise ConfigError("state: its search for the spread of the target is out of range")
        self.arrays.table[-1, _TARGET[:2]], self.asked_target = (origin, unit), int(asked)
        self.arrays.read(state)
