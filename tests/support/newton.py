"""What a Newton walk has in memory, by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdp.optim.losses import Huber
from streamdp.optim.newton import Newton
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
    curvature, (state, _) = walk.curvature, walk.learned().values()
    d, size = curvature.parameters, curvature.size
    blocks = state[size + 8 : Newton.size(curvature)].reshape(change.BLOCKS, -1)
    point, gradient = change.means(blocks.sum(axis=0), d, isinstance(curvature.loss, Huber))
    information = float(blocks[:, change.INFORMATION].sum())
    return Averages(point, gradient, state[d:size], information, float(state[size]), float(state[size + 1]))


def with_averages(walk: Newton, gradient: np.ndarray, curved: np.ndarray, variance: float) -> np.ndarray:
    """The state of a walk that has these averages at its query point, with weight 1."""
    curvature, state = walk.curvature, walk.learned()["state"]
    d, size = curvature.parameters, curvature.size
    state[d:size], state[size : size + 2] = curved, (1.0, variance)
    block = np.concatenate([state[:d], gradient, [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]])
    change.add(state[size + 8 : Newton.size(curvature)].reshape(change.BLOCKS, -1), block)
    return np.asarray(state)
