"""Types of `pair_bits`, which is compiled."""

from collections.abc import Sequence

import numpy as np

FIRST: int
SECOND: int
TOLD: int
WEIGHED: int
ANSWERS: int
PAIR: int

def nothing_told(columns: Sequence[int]) -> np.ndarray: ...
