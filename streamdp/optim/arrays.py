"""What an LDP learner holds: the arrays that its compiled loops read and write."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdp.scaling.arrays import UnitArrays


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
    units
        The units of columns and target, and the clocks.
    """

    spec: np.ndarray
    box: np.ndarray
    state: np.ndarray
    segments: np.ndarray
    units: UnitArrays
