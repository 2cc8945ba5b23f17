"""A window, its users and single runs for the tests of smoothed AC-SA."""

import math

import numpy as np

from streamdp import ApproxDP
from streamdp.optim.losses import Hinge
from streamdp.privacy.entropy import SeededEntropy
from streamdp.windows.smoothed_plan import Run, run_bound
from streamdp.windows.task import Task

HINGE = Hinge()
TASK = Task(
    users=4000,
    items=1,
    d=4,
    budget=ApproxDP(1.0, 1e-6),
    bound=HINGE.bound,
    sensitivity=HINGE.sensitivity,
    smoothness=math.inf,
    convexity=0.0,
    distance=2.0,
    spread=1.0,
)


def fresh(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


class Fixed:
    """Users whose gradients are what they are, wherever they are asked."""

    def __init__(self, gradients: np.ndarray) -> None:
        self.rows = gradients
        self.given: list[np.ndarray] = []

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        out = self.rows.copy() if users is None else self.rows[users]
        self.given.append(out)
        return out

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta


def run_with(steps: int, ramp: int, modulus: float, convexity: float, pull: float = 0.0) -> Run:
    return Run(0, 1, 1.0, steps, ramp, 1.0, 0.0, modulus, convexity, pull, 0.0)


def bound_of(steps: int, ramp: int, distance: float, convexity: float, smoothness: float, sigma: float) -> list[float]:
    """(excess, psi)."""
    arrays = [np.array([float(v)]) for v in (steps, ramp, distance, smoothness, sigma)]
    return [float(v[0]) for v in run_bound(*arrays[:3], convexity, *arrays[3:])]
