"""Types of `user_loops`, which is compiled."""

import numpy as np

def average_gradients(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    users: np.ndarray,
    out: np.ndarray,
) -> None: ...
