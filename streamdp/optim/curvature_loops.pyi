"""Types of `curvature_loops`, which is compiled."""

import numpy as np

from streamdp.optim.record_kernel import RecordKernel

class VectorTotal(RecordKernel):
    def __init__(
        self, spec: np.ndarray, theta: np.ndarray, p: int, cells: float, total: np.ndarray, factor: float = 0.0
    ) -> None: ...

def average_gradients(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    users: np.ndarray,
    out: np.ndarray,
) -> None: ...
def joint_of_rows(
    spec: np.ndarray, theta: np.ndarray, X: np.ndarray, y: np.ndarray, factor: float, G: np.ndarray
) -> None: ...
def accumulate_averages(
    factor: float,
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    cells: float,
    total: np.ndarray,
) -> None: ...
def accumulate_squares(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    squared: float,
    curved: float,
    cells: float,
    total: np.ndarray,
) -> None: ...
def accumulate(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    cells: float,
    total: np.ndarray,
    factor: float = 0.0,
) -> None: ...
