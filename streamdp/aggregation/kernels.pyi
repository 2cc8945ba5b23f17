"""Types of `kernels`, which is compiled."""

import numpy as np

from streamdp.optim.record_kernel import RecordKernel

class CountTotal(RecordKernel):
    def __init__(
        self,
        spec: np.ndarray,
        theta: np.ndarray,
        p: int,
        bound: float,
        places: int,
        noise: int,
        ones: np.ndarray,
        factor: float = 0.0,
    ) -> None: ...

def noisy_counts(places: np.ndarray, noise: int, out: np.ndarray, words: np.ndarray) -> int: ...
def count_ones(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    bound: float,
    places: int,
    noise: int,
    ones: np.ndarray,
    words: np.ndarray,
    factor: float = 0.0,
) -> int: ...
def write_ones(counts: np.ndarray, out: np.ndarray) -> None: ...
def add_ones(bits: np.ndarray, ones: np.ndarray) -> None: ...
