import numpy as np

LABEL: int
UNKNOWN: int
DUPLICATE: int
NO_OBJECT: int
BAD_ID: int

def cut_into(
    text: bytes,
    learn: bool,
    most: int,
    out: np.ndarray,
    ends: np.ndarray,
    codes: np.ndarray,
    spans: np.ndarray,
    ids: np.ndarray,
) -> tuple[int, int]: ...
