import numpy as np

CELL: int

def scan(
    text: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    keys: bytearray,
    bounds: np.ndarray,
    numeric: int,
    declared: int,
    certain: np.ndarray,
    table: np.ndarray,
) -> int: ...
