"""What an LDP learner holds: the arrays that its compiled loops read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamdp.optim import frame as k
from streamdp.optim import location_scale

FIRST_SCALE = 0.44
"""Of a column with bounds: between 1/3, for bounds at three spreads, and 3^(-1/2), for evenly spread values."""
LARGEST_POSTERIOR = 1e30
"""Of a state, in absolute value: posteriors are floats of 32 bits."""


class Arrays(NamedTuple):
    """What is learned, and what describes the model.

    Parameters
    ----------
    spec, box
        (`loops.SPEC`,) and (2, d): the model, and the lower and upper bounds of theta.
    state
        (2, d): theta, and in original units its average; theta itself for a learner without an average.
    segments
        (`inference.SEGMENTS`, d + 1): the sums of the segments of `inference`, in original units, and their lengths.
    clock
        (`frame.CLOCK`,) numbers.
    frame
        (p + 1, `frame.FRAME`) the columns and, in the last row, the target.
    posterior
        (c, ...) float32, what is known about the c columns that are scaled; the target is the last one if it is scaled.
    summary
        (c, `frame.SUMMARY`) what follows from the posteriors.
    """

    spec: np.ndarray
    box: np.ndarray
    state: np.ndarray
    segments: np.ndarray
    clock: np.ndarray
    frame: np.ndarray
    posterior: np.ndarray
    summary: np.ndarray


def begin(
    spec: np.ndarray, box: np.ndarray, state: np.ndarray, segments: np.ndarray, frame: np.ndarray, scaled: Sequence[int]
) -> Arrays:
    """Return the arrays of a model that has learned nothing about its columns.

    Parameters
    ----------
    spec, box, state, segments
        As for `Arrays`.
    frame
        As for `Arrays`; its slots are written here.
    scaled
        The rows of the frame that bits are asked about, ascending.
    """
    frame[:, k.SLOT] = -1
    frame[scaled, k.SLOT] = np.arange(len(scaled))
    frame[:-1, k.LOWEST] = frame[:-1, k.SCALE]
    summary = np.zeros((len(scaled), k.SUMMARY))
    summary[:, k.COLUMN] = scaled
    posterior = location_scale.flat(len(scaled))
    arrays = Arrays(spec, box, state, segments, np.zeros(k.CLOCK), frame, posterior, summary)
    k.refresh(arrays)
    return arrays
