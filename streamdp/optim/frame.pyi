"""Types of `frame`, which is compiled."""

import numpy as np

from streamdp.optim.arrays import Arrays

TOTAL: int
WEIGHT: int
SEGMENT: int
WIDTH: int
REACHED: int
ASKED: int
TARGET: int
COUNT: int
NEXT: int
CLASS: int
CHANGES: int
BITS: int
CLOCK: int
CENTRE: int
SCALE: int
SINCE: int
RESTARTED: int
ORIGIN: int
UNIT: int
SLOT: int
SLOPE: int
SHIFT: int
LEARNED: int
FRAME: int
ERROR: int
COLUMN: int
SUMMARY: int
GRADIENT: int
SHORTEST: int
DONE: float

def rescale(arrays: Arrays) -> None: ...
def outward(arrays: Arrays, theta: np.ndarray, out: np.ndarray) -> None: ...
def inward(arrays: Arrays, original: np.ndarray, out: np.ndarray) -> None: ...
def refresh(arrays: Arrays) -> None: ...
def take_bit(arrays: Arrays, column: int, low: float, high: float, answer: bool, keep: float) -> None: ...
