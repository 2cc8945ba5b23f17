"""Types of `loops`, which is compiled."""

import numpy as np

LOSS: int
INTERCEPT: int
SHAPE: int
KAPPA: int
CLIP: int
DOMAIN: int
RADIUS: int
ENVELOPE: int
BY_NORM: int
FACTOR: int
DECAY: int
OFFSET: int
BY_RECORDS: int
AVERAGED: int
BOUND: int
CURVATURE: int
LINK: int
ORIGIN: int
SPEC: int
HUBER: int
LOGISTIC: int
BALL: int

def gradient(spec: np.ndarray, theta: np.ndarray, X: np.ndarray, y: np.ndarray, i: int, g: np.ndarray) -> None: ...
def gradients(spec: np.ndarray, theta: np.ndarray, X: np.ndarray, y: np.ndarray, G: np.ndarray) -> None: ...
