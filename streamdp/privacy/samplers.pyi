"""Types of `samplers`, which is compiled."""

import numpy as np

NO_NOISE: int
LAPLACE: int
GAUSSIAN: int
PRIVUNIT: int
SCALE: int
GRID: int
CAP_PROBABILITY: int
CAP_COSINE: int
CAP_RADIAL: int
CAP_ANGLE: int
NORM_BOUND: int
KEEP: int
INFORMATION: int
ADDITIVE: int
CALIBRATION: int

def calibrate(
    amounts: np.ndarray, root: float, sensitivity: float, reach: float, corner: float, noise: float, out: np.ndarray
) -> None: ...
def respond(truth: bool, keep: float, words: np.ndarray) -> int: ...
def normals(words: np.ndarray, scale: float, out: np.ndarray) -> bool: ...
def randomize(mechanism: int, calibration: np.ndarray, G: np.ndarray, words: np.ndarray) -> int: ...
