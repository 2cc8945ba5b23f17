"""What an LDP learner holds: the arrays that its compiled loops read and write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim import frame as k
from streamdp.optim import location_scale, pair_bits, tails
from streamdp.optim.inference import SEGMENTS
from streamdp.optim.states import finite_array

FIRST_SCALE = 0.44
"""Of a column with bounds: between 1/3, for bounds at three spreads, and 3^(-1/2), for evenly spread values."""
_LARGEST_SCALE = 1e100
_MOST_COUNTED = 1e15
_FINEST = -5.75 * math.log(2)  # a spread nearer to the finest one of `location_scale` than to the next
_LEAST_POSTERIOR = -1e30  # beside a largest of 0: posteriors are floats of 32 bits


class Arrays(NamedTuple):
    """What is learned, and what describes the model.

    Parameters
    ----------
    spec, box
        (`loops.SPEC`,) and (2, d): the model, and the lower and upper bounds of theta.
    state
        (2, d): theta, and in original units its average; theta itself for a learner without an average.
    segments
        (`inference.SEGMENTS`, d + 1 + 2 (p + 1)): those of `path`.
    clock
        (`frame.CLOCK`,) numbers.
    frame
        (p + 1, `frame.FRAME`) the columns and, in the last row, the target.
    posterior
        (c, ...) float32, what is known about the c columns that are scaled; the target is the last one if it is scaled.
    tails
        (c, `tails.TAILS`) what is known about their tails; the target has none.
    summary
        (c, `frame.SUMMARY`) what follows from the posteriors.
    pairs
        (m + 1, `pair_bits.PAIR`) what is known about m pairs of columns; the last row says which one is asked about.
    """

    spec: np.ndarray
    box: np.ndarray
    state: np.ndarray
    segments: np.ndarray
    clock: np.ndarray
    frame: np.ndarray
    posterior: np.ndarray
    tails: np.ndarray
    summary: np.ndarray
    pairs: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """The posteriors as rows (c, cells), a view."""
        return self.posterior.reshape(len(self.posterior), math.prod(self.posterior.shape[1:]))

    @property
    def told(self) -> np.ndarray:
        """What the bits about pairs told (m, 3): sums, information and numbers, a view."""
        return self.pairs[:-1, pair_bits.TOLD :]


def begin(
    spec: np.ndarray,
    box: np.ndarray,
    state: np.ndarray,
    segments: int,
    frame: np.ndarray,
    scaled: Sequence[int],
    paired: Sequence[int] = (),
) -> Arrays:
    """Return the arrays of a model that has learned nothing about its columns.

    spec, box, state and frame are those of `Arrays`, with a number of segments; the slots of the frame are written
    here. `scaled` are the rows of the frame that bits are asked about, ascending. `paired` are the columns of which
    pairs are asked about; the number of columns is the constant 1.
    """
    frame[:, k.SLOT] = -1
    frame[scaled, k.SLOT] = np.arange(len(scaled))
    frame[:-1, k.RESTARTED] = frame[:-1, k.SCALE]
    summary = np.zeros((len(scaled), k.SUMMARY))
    summary[:, k.COLUMN] = scaled
    posterior = location_scale.flat(len(scaled))
    pairs = pair_bits.nothing_told(paired)
    far = np.zeros((len(scaled), tails.TAILS))
    path = np.zeros((segments, state.shape[1] + 1 + 2 * len(frame)))
    arrays = Arrays(spec, box, state, path, np.zeros(k.CLOCK), frame, posterior, far, summary, pairs)
    k.refresh(arrays)
    return arrays


def merge(arrays: Arrays, parts: Sequence[Arrays]) -> None:
    """Take over what learners of disjoint records know about columns, and the units of the one with most information.

    `arrays` are those of a model that has learned nothing, `parts` at least one of the same model.
    """
    arrays.frame[:] = max(parts, key=lambda part: float(part.clock[k.TOTAL])).frame
    arrays.clock[:] = sum(part.clock for part in parts)
    arrays.posterior[:] = sum(part.posterior for part in parts)  # of disjoint records, so likelihoods multiply
    arrays.tails[:] = sum(part.tails for part in parts)
    arrays.told[:] = sum(part.told for part in parts)
    k.refresh(arrays)


def average_in_units(arrays: Arrays) -> np.ndarray:
    """Return the average of theta in the units in which it is learned, as a new array (d,)."""
    out = np.empty(len(arrays.state[1]))
    k.inward(arrays, arrays.state[1], out)
    return out


def unresolved(arrays: Arrays) -> list[int]:
    """The columns whose spread may be any number below the finest one that bits tell from others, by two deviations."""
    summary = arrays.summary
    low = summary[:, location_scale.REACH] - 2.0 * np.sqrt(summary[:, location_scale.REACH_VARIANCE])
    found: list[int] = summary[low <= _FINEST, k.COLUMN].astype(int).tolist()
    return [j for j in found if j < len(arrays.frame) - 1]


def read(arrays: Arrays, state: Mapping[str, Any], posterior: str) -> None:
    """Take over what a state tells about columns.

    It has `scales` (p + 1, `frame.LEARNED`), `progress` (`frame.CLOCK`,), the posteriors (c, ...) in the entry that
    `posterior` names, `tails` (c, `tails.TAILS`) and, if pairs of columns are asked about, `pairs` (m, 3). Raises
    `ConfigError` for numbers out of range.
    """
    scales = finite_array(state, "scales", (len(arrays.frame), k.LEARNED))
    progress = finite_array(state, "progress", arrays.clock.shape)
    cells = read_posterior(state, posterior, arrays.posterior)
    told = finite_array(state, "pairs", arrays.told.shape) if len(arrays.told) else arrays.told
    far = finite_array(state, "tails", arrays.tails.shape)
    if (
        np.delete(progress, k.CLASS).min() < 0
        or progress[k.SEGMENT] > SEGMENTS - 1
        or np.abs(progress[k.CLASS :]).max() > _MOST_COUNTED
        or scales[:, 1].min() < 1e-60
        or np.abs(scales[:, :2]).max() > _LARGEST_SCALE
        or scales[:, k.SINCE].max() > progress[k.TOTAL]
        or scales[:, k.SINCE].min() < -_MOST_COUNTED
        or scales[-1, k.SINCE] > 0
        or min(scales[:, k.RESTARTED].min(), told[:, 1:].min(initial=0.0), far[:, tails.TOLD].min(initial=0.0)) < 0
        or max(np.abs(told).max(initial=0.0), np.abs(far).max(initial=0.0)) > _MOST_COUNTED
    ):
        raise ConfigError("state: its scales of columns are out of range")
    arrays.frame[:, : k.LEARNED], arrays.clock[:], arrays.posterior[:] = scales, progress, cells
    arrays.told[:], arrays.tails[:] = told, far
    k.refresh(arrays)


def read_posterior(state: Mapping[str, Any], name: str, posterior: np.ndarray) -> np.ndarray:
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
