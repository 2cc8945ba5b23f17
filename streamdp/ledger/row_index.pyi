import numpy as np

def find_or_add(
    wanted: np.ndarray, present: np.ndarray, keys: np.ndarray, index: np.ndarray, asked: np.ndarray
) -> np.ndarray: ...
