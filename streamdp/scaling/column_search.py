"""The centres and the scales of columns, from noisy bits between gradients that are taken in batches.

Bits, posteriors, schedule and rules are those of LDP-SGD (`schedule`, `unit_table`). Here all reports have the same
budget, a batch of gradients has one theta and one unit of each column, and theta is kept by a walk. So columns are
scaled anew between batches only, and the walk carries its numbers along.

Everything here follows from noisy bits and public numbers. It is about accuracy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import FIRST_SCALE, begin
from streamdp.scaling.schedule import ahead
from streamdp.scaling.target_search import Question

_GROWTH = 1.2


class ColumnSearch:
    """What is known, the next question, and the units of the columns.

    `scaled` (p,) are the columns that have values in [-1, 1] and are scaled, at least one; `typical` are the declared
    centres and spreads to begin with, by column. A bit is the true one with the probability `keep`.
    """

    def __init__(self, scaled: np.ndarray, typical: Mapping[int, tuple[float, float]], keep: float) -> None:
        p = len(scaled)
        table = np.zeros((p + 1, k.TABLE))
        table[:, [k.SCALE, k.UNIT]] = 1.0
        table[:p, k.SCALE][scaled] = FIRST_SCALE
        for j, place in typical.items():
            table[j, [k.CENTRE, k.SCALE]] = place
        self._arrays = begin(table, np.flatnonzero(scaled).tolist())
        self._keep, self._information = keep, (2 * keep - 1) ** 2

    @property
    def asked(self) -> int:
        """The number of bits."""
        return int(self._arrays.progress[k.BITS])

    @property
    def units(self) -> np.ndarray:
        """(2, p) centres and slopes: x is learned as (x - centre) * slope."""
        table = self._arrays.table[:-1]
        return np.stack([table[:, k.CENTRE], 1 / table[:, k.SCALE]])

    @property
    def since(self) -> np.ndarray:
        """(p,) where the clock of each column began (`unit_table`)."""
        since: np.ndarray = self._arrays.table[:-1, k.SINCE].copy()
        return since

    @property
    def wait(self) -> int:
        """How many reports are gradients before the next bit."""
        return int(min(ahead(self._arrays, self._information)[0], 2.0**60))

    def question(self) -> Question:
        """Return the next question."""
        column = ahead(self._arrays, self._information)[1]
        return Question(*self._arrays.ends(column), self.asked // len(self._arrays.summary), column)

    def asks(self, question: Question) -> bool:
        """Whether a question, maybe from an untrusted source, is about a column that is scaled."""
        return self._arrays.scaled(question.column)

    def take(self, question: Question, yes: bool) -> None:
        """Take in the noisy bit `yes`, the answer to a question that was asked now or before."""
        k.take_bit(self._arrays, question.column, question.low, question.high, yes, self._keep)
        self.count(1)

    def count(self, reports: int) -> None:
        """Count reports: gradients, or bits."""
        progress = self._arrays.progress
        progress[k.COUNT] += reports
        progress[k.REACHED] = progress[k.COUNT] * self._information

    def rescale(self, information: float) -> bool:
        """Scale columns anew, between two batches, if it is time; return whether the average begins anew.

        `information` is that of all gradients so far.
        """
        progress = self._arrays.progress
        if progress[k.COUNT] < progress[k.NEXT]:
            return False
        progress[k.TOTAL] = information
        progress[k.NEXT] = math.ceil(progress[k.COUNT] * _GROWTH)
        return k.rescale(self._arrays)

    def merge(self, parts: Sequence[Self]) -> None:
        """Take over what parts with disjoint records know, and the units of the one with the most gradients."""
        self._arrays.merge([part._arrays for part in parts])  # noqa: SLF001 - the same class
        self._arrays.progress[k.NEXT] = k.FIRST

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """The state as new arrays."""
        return {"columns": self._arrays.learned()}

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over the state that `learned` returned. Raises `ConfigError` for numbers out of range."""
        self._arrays.read(state["columns"])
