import numpy as np

TOLERANCE: float

def gdp_delta(mu_squared: float, epsilon: float) -> float: ...
def all_fit(rows: np.ndarray, kind: int, most: float, most_delta: float) -> bool: ...
def admit_in_order(
    slots: np.ndarray,
    terms: np.ndarray,
    rows: np.ndarray,
    pending: np.ndarray,
    kind: int,
    most: float,
    most_delta: float,
) -> np.ndarray: ...
