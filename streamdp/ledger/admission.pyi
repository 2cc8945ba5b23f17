import numpy as np

from streamdp.ledger.rows import CapNumbers

TOLERANCE: float

def gdp_delta(mu_squared: float, epsilon: float) -> float: ...
def all_fit(rows: np.ndarray, kind: int, most: float, most_delta: float) -> bool: ...
def admit_in_order(
    slots: np.ndarray, terms: np.ndarray, rows: np.ndarray, pending: np.ndarray, caps: list[CapNumbers]
) -> np.ndarray: ...
