"""Types of `pair_bits`, which is compiled."""

from collections.abc import Sequence

import numpy as np

FIRST: int
SECOND: int
SUM: int
INFORMATION: int
ANSWERS: int
PAIR: int

def flat(columns: Sequence[int]) -> np.ndarray: ...
