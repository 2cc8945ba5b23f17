"""The centres and the scales of columns, from noisy bits between gradients that are taken in batches.

Bits, posteriors, schedule and rules are those of LDP-SGD (`questions`, `frame`). Here all reports have the same budget,
a batch of gradients has one theta and one unit of each column, and theta is kept by a walk. So columns are scaled anew
between batches only, and the walk carries its numbers along.

Everything here follows from noisy bits and public numbers. It is about accuracy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.optim import frame as k
from streamdp.optim import location_scale as ls
from streamdp.optim import loops
from streamdp.optim.arrays import FIRST_SCALE, begin, merge, read
from streamdp.optim.questions import ahead
from streamdp.optim.target_search import Question

_FIRST, _GROWTH = 32, 1.2


class ColumnSearch:
    """What is known, the next question, and the units of the columns.

    `scaled` (p,) are the columns that have values in [-1, 1] and are scaled, at least one; `typical` are the declared
    centres and spreads to begin with, by column. A bit is the true one with the probability `keep`.
    """

    def __init__(self, scaled: np.ndarray, typical: Mapping[int, tuple[float, float]], keep: float) -> None:
        p = len(scaled)
        spec, frame = np.zeros(loops.SPEC), np.zeros((p + 1, k.FRAME))
        spec[loops.INTERCEPT] = True
        frame[:, [k.SCALE, k.UNIT]] = 1.0
        frame[:p, k.SCALE][scaled] = FIRST_SCALE
        for j, place in typical.items():
            frame[j, [k.CENTRE, k.SCALE]] = place
        theta = np.zeros((2, p + 1))
        self._arrays = begin(spec, theta, theta.copy(), 0, frame, np.flatnonzero(scaled).tolist())
        self._keep, self._information = keep, (2 * keep - 1) ** 2
        self._due = float(_FIRST)
        self._hold()

    def _hold(self) -> None:
        """Keep `frame` from scaling columns within a batch."""
        self._arrays.clock[k.NEXT] = np.inf

    @property
    def asked(self) -> int:
        """The number of bits."""
        return int(self._arrays.clock[k.BITS])

    @property
    def units(self) -> np.ndarray:
        """(2, p) centres and slopes: x is learned as (x - centre) * slope."""
        frame = self._arrays.frame[:-1]
        return np.stack([frame[:, k.CENTRE], 1 / frame[:, k.SCALE]])

    @property
    def since(self) -> np.ndarray:
        """(p,) where the clock of each column began (`frame`)."""
        since: np.ndarray = self._arrays.frame[:-1, k.SINCE].copy()
        return since

    @property
    def wait(self) -> int:
        """How many reports are gradients before the next bit."""
        return int(min(ahead(self._arrays, self._information)[0], 2.0**60))

    def question(self) -> Question:
        """Return the next question."""
        column = ahead(self._arrays, self._information)[1]
        low, high = self._arrays.summary[int(self._arrays.frame[column, k.SLOT]), [ls.LOW, ls.HIGH]].tolist()
        return Question(low, high, self.asked // len(self._arrays.summary), column)

    def asks(self, question: Question) -> bool:
        """Whether a question, maybe from an untrusted source, is about a column that is scaled."""
        column, frame = question.column, self._arrays.frame
        return isinstance(column, int) and 0 <= column < len(frame) - 1 and bool(frame[column, k.SLOT] >= 0)

    def take(self, question: Question, yes: bool) -> None:
        """Take in the noisy bit `yes`, the answer to a question that was asked now or before."""
        k.take_bit(self._arrays, question.column, question.low, question.high, yes, self._keep)
        self.count(0)

    def count(self, gradients: int) -> None:
        """Count reports that were gradients."""
        clock = self._arrays.clock
        clock[k.COUNT] += gradients
        clock[k.REACHED] = clock[k.COUNT] * self._information

    def rescale(self, information: float) -> bool:
        """Scale columns anew, between two batches, if it is time; return whether the average begins anew.

        `information` is that of all gradients so far.
        """
        clock = self._arrays.clock
        if clock[k.COUNT] < self._due:
            return False
        clock[[k.TOTAL, k.WEIGHT]] = information, 1.0
        k.rescale(self._arrays)
        self._due = math.ceil(clock[k.COUNT] * _GROWTH)
        return bool(clock[k.WEIGHT] == 0)

    def merge(self, parts: Sequence[Self]) -> None:
        """Take over what parts with disjoint records know, and the units of the one with the most gradients."""
        merge(self._arrays, [part._arrays for part in parts])  # noqa: SLF001 - the same class
        self._hold()

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, Any]:
        """The state as new arrays."""
        arrays, progress = self._arrays, self._arrays.clock.copy()
        progress[k.NEXT] = self._due
        return {
            "scales": arrays.frame[:, : k.LEARNED].copy(),
            "progress": progress,
            "bits": arrays.cells.copy(),
            "tails": arrays.tails.copy(),
        }

    def read(self, state: Mapping[str, Any]) -> None:
        """Take over the state that `learned` returned. Raises `ConfigError` for numbers out of range."""
        read(self._arrays, state, "bits")
        self._due = float(self._arrays.clock[k.NEXT])
        self._hold()
