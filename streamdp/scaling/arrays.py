"""What is known of columns and target, and the units that follow: the arrays of `unit_table`."""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.scaling import location_scale, pair_bits, tails
from streamdp.scaling import unit_table as k

FIRST_SCALE = 0.44
"""Of a column with bounds: between 1/3, for bounds at three spreads, and 3^(-1/2), for evenly spread values."""
_FINEST_SCALE = 2.0**-40  # of half the bounds: devices accept the same scales
_MOST_COUNTED = 1e15
_FINEST = -5.75 * math.log(2)  # a spread nearer to the finest one of `location_scale` than to the next
_LEAST_POSTERIOR = -1e30  # beside a largest of 0: posteriors are floats of 32 bits


class UnitArrays(NamedTuple):
    """The units of p columns and a target, and the noisy bits about them.

    - `progress`: (`unit_table.PROGRESS`,) what was counted.
    - `table`: (p + 1, `unit_table.TABLE`) the columns and, in the last row, the target.
    - `posterior`: (c, ...) float32, what is known about the c columns that are scaled; the target is the last one if it
      is scaled.
    - `tail_evidence`: (c, `tails.TAILS`) what is known about their tails; the target has none.
    - `summary`: (c, `unit_table.SUMMARY`) what follows from the posteriors.
    - `pairs`: (m + 1, `pair_bits.PAIR`) what is known about m pairs of columns; the last row says which one is asked
      about.
    """

    progress: np.ndarray
    table: np.ndarray
    posterior: np.ndarray
    tail_evidence: np.ndarray
    summary: np.ndarray
    pairs: np.ndarray

    @property
    def pair_evidence(self) -> np.ndarray:
        """The bits about pairs (m, 3): sums, information and numbers, a view."""
        return self.pairs[:-1, pair_bits.SUM :]

    @property
    def unresolved(self) -> list[int]:
        """The columns whose spread may be below the finest one that bits can distinguish, by two deviations."""
        summary = self.summary
        low = summary[:, location_scale.REACH] - 2.0 * np.sqrt(summary[:, location_scale.REACH_VARIANCE])
        found: list[int] = summary[low <= _FINEST, k.COLUMN].astype(int).tolist()
        return [j for j in found if j < len(self.table) - 1]

    def ends(self, column: int) -> tuple[float, float]:
        """The interval that the next bit about a scaled column is about."""
        slot = int(self.table[column, k.SLOT])
        low, high = self.summary[slot, [location_scale.LOW, location_scale.HIGH]].tolist()
        return low, high

    def scaled(self, column: object) -> bool:
        """Whether this, maybe from an untrusted source, is the index of a column or target that is scaled."""
        return isinstance(column, int) and 0 <= column < len(self.table) and bool(self.table[column, k.SLOT] >= 0)

    def merge(self, parts: "Sequence[UnitArrays]") -> None:
        """Take over what learners of disjoint records know, and the units of the one with most information.

        These are arrays of which nothing is known, `parts` at least one of the same model.
        """
        self.table[:] = max(parts, key=lambda part: float(part.progress[k.TOTAL])).table
        self.progress[:] = np.minimum(sum(part.progress for part in parts), k.DONE)
        self.posterior[:] = sum(part.posterior for part in parts)  # of disjoint records, so likelihoods multiply
        self.tail_evidence[:] = sum(part.tail_evidence for part in parts)
        self.pair_evidence[:] = sum(part.pair_evidence for part in parts)
        k.refresh(self)

    # -- state -------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, object]:
        """The state as new arrays."""
        return {
            "progress": self.progress.copy(),
            "scales": self.table[:, : k.LEARNED].copy(),
            "posterior": self.posterior.reshape(len(self.posterior), location_scale.CELLS).copy(),
            "tails": self.tail_evidence.copy(),
            "pairs": self.pair_evidence.copy(),
        }

    def read(self, state: Mapping[str, object], segments: int = 1) -> None:
        """Take over the `state` that `learned` returned, of a path with so many segments.

        Raises `ConfigError` for numbers out of range.
        """
        scales = finite_array(state, "scales", (len(self.table), k.LEARNED))
        progress = np.minimum(finite_array(state, "progress", self.progress.shape, sys.float_info.max), k.DONE)
        cells = read_posterior(state, "posterior", self.posterior)
        pairs = finite_array(state, "pairs", self.pair_evidence.shape)
        far = finite_array(state, "tails", self.tail_evidence.shape)
        middle, half = np.zeros(len(scales)), np.ones(len(scales))
        if np.isfinite(self.table[-1, k.UNIT]):
            middle[-1], half[-1] = self.table[-1, [k.ORIGIN, k.UNIT]]
        if (
            np.delete(progress, k.CLASS).min() < 0
            or progress[k.SEGMENT] > max(segments - 1, 0)
            or np.abs(progress[k.CLASS :]).max() > _MOST_COUNTED
            or np.any(np.abs(scales[:, k.CENTRE] - middle) > 2 * half)
            or np.any(scales[:, k.SCALE] < _FINEST_SCALE * half)
            or np.any(scales[:, [k.SCALE, k.RESTARTED]] > half[:, None] / _FINEST_SCALE)
            or scales[:, k.SINCE].max() > progress[k.TOTAL]
            or scales[:, k.SINCE].min() < -_MOST_COUNTED
            or scales[-1, k.SINCE] > 0
            or min(scales[:, k.RESTARTED].min(), pairs[:, 1:].min(initial=0.0), far[:, -1].min(initial=0.0)) < 0
            or max(np.abs(pairs).max(initial=0.0), np.abs(far).max(initial=0.0)) > _MOST_COUNTED
        ):
            raise ConfigError("state: its scales of columns are out of range")
        self.table[:, : k.LEARNED], self.progress[:], self.posterior[:] = scales, progress, cells
        self.pair_evidence[:], self.tail_evidence[:] = pairs, far
        k.refresh(self)


def begin(table: np.ndarray, scaled: Sequence[int], paired: Sequence[int] = ()) -> UnitArrays:
    """Return the arrays of columns of which nothing is known; the slots of the `table` are written here.

    `scaled` are the rows of the table that bits are asked about, ascending. `paired` are the columns, ascending, of
    which pairs are asked about; the number of columns is the constant 1.
    """
    table[:, k.SLOT] = -1
    table[scaled, k.SLOT] = np.arange(len(scaled))
    table[:-1, k.RESTARTED] = table[:-1, k.SCALE]
    progress, summary = np.zeros(k.PROGRESS), np.zeros((len(scaled), k.SUMMARY))
    progress[k.NEXT] = k.FIRST
    summary[:, k.COLUMN] = scaled
    posterior = np.zeros((len(scaled), location_scale.CENTRES, location_scale.SPREADS), np.float32)
    both = list(combinations(paired, 2))
    pairs = np.zeros((len(both) + 1, pair_bits.PAIR))
    pairs[:-1, [pair_bits.FIRST, pair_bits.SECOND]] = np.reshape(both, (-1, 2))
    arrays = UnitArrays(progress, table, posterior, np.zeros((len(scaled), tails.TAILS)), summary, pairs)
    k.refresh(arrays)
    return arrays


def read_posterior(state: Mapping[str, object], name: str, posterior: np.ndarray) -> np.ndarray:
    """Return the entry `name` of a state in the shape (c, ...) of a posterior, each with a largest of 0.

    Raises `ConfigError` for numbers out of range.
    """
    cells = np.array(state[name], dtype=float)
    if cells.size != posterior.size or not np.isfinite(cells).all():
        raise ConfigError(f"state: {name}: expected {posterior.size} finite numbers, got shape {cells.shape}")
    cells = cells.reshape(posterior.shape)
    cells -= cells.max(axis=(1, 2), keepdims=True)
    if cells.min(initial=0.0) < _LEAST_POSTERIOR:
        raise ConfigError(f"state: {name}: expected differences of at most {-_LEAST_POSTERIOR:g}")
    return cells
