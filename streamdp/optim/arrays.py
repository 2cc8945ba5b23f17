"""What an LDP learner holds: the arrays that its compiled loops read and write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
