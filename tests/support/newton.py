"""What a Newton walk has in memory, by name."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamdp.optim.losses import Huber
from streamdp.optim.newton import Newton
from streamdp.optim.newton_state import State
from streamdp.reading import change


class Averages(NamedTuple):
    """The weighted means of query points (d,), gradients (d,) and curvatures; T, W, and v W^2."""

    point: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    information: float
    weight: float
    noise: float


def averages(walk: Newton) -> Averages:
    """The averages of a walk."""
    curvature, state = walk.curvature, walk.state
    point, gradient = change.means(state.blocks.sum(axis=0), curvature.parameters, isinstance(curvature.loss, Huber))
    information = float(state.blocks[:, change.INFORMATION].sum())
    return Averages(point, gradient, state.curved, information, state.weight, state.noise)


def with_averages(walk: Newton, gradient: np.ndarray, curved: np.ndarray, variance: float, error: float = 0.0) -> State:
    """The state of a walk that has these averages at its query point, with weight 1 and this variance of a gradient."""
    state = walk.state
    block = np.concatenate([state.point, gradient, [1.0, 1.0, 1.0, 0.0, error, 1.0, 0.0]])
    blocks = state.blocks.copy()
    change.add(blocks, block)
    return replace(state, curved=curved, weight=1.0, noise=variance, blocks=blocks)
