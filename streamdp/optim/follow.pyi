"""Types of `follow`, which is compiled."""

import numpy as np

from streamdp.optim.arrays import Arrays

BLOCKS: int
OPEN: int
KNOWN: int
RECENT: int
NUMBERS: int
SAVED: int
ROWS: int
LEVELS: int
EVER: int
FOLLOWED: int
ALARMS: int
MIXED: int
LOOKED: int
NOTICED: int

def notice(arrays: Arrays, g: np.ndarray, information: float) -> bool: ...
def carry(arrays: Arrays, before: np.ndarray) -> None: ...
