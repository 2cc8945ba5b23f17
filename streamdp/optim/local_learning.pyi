"""Types of `local_learning`, which is compiled."""

import numpy as np

from streamdp.optim.arrays import Arrays
from streamdp.optim.record_kernel import RecordKernel

class LocalStep(RecordKernel):
    def __init__(self, arrays: Arrays, mechanism: int, seen: np.ndarray, calibration: np.ndarray) -> None: ...

def learn(
    arrays: Arrays,
    mechanism: int,
    seen: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    calibration: np.ndarray,
    words: np.ndarray,
) -> int: ...
def absorb_bit(
    arrays: Arrays, seen: np.ndarray, column: int, low: float, high: float, yes: bool, keep: float
) -> None: ...
def absorb(arrays: Arrays, seen: np.ndarray, g: np.ndarray, information: float, keep: float) -> None: ...
