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
    places: np.ndarray,
    labels: list[int],
    named: list[int],
    flawed: list[tuple[int, int]],
) -> tuple[int, int]: ...
