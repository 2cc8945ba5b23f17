"""Types of `follow`, which is compiled."""

import numpy as np

from streamdp.optim.arrays import Arrays

BLOCKS: int
OPEN: int
KNOWN: int
NUMBERS: int
SAVED: int
ROWS: int
LEVELS: int
EVER: int
FOLLOWED: int
RENEWALS: int
MIXED: int
NOTICED: int
BRIEF: int

def notice(arrays: Arrays, g: np.ndarray, information: float) -> bool: ...
def keep_latest(arrays: Arrays, share: float) -> np.ndarray | None: ...
def carry(arrays: Arrays, before: np.ndarray) -> None: ...
