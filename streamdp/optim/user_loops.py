"""Compiled loops that average the gradients of each user's records."""

from __future__ import annotations

import numpy as np

from streamdp.optim.loops import gradient, gradient_of_classes
from streamdp.privacy.samplers import compiled


@compiled
def average_gradients(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    users: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the average gradient of each user into the rows of an array, for losses of one linear predictor.

    Parameters
    ----------
    spec, theta
        As for `loops.gradient`.
    X, y
        (N, p) features and (N,) targets of all users.
    starts
        (users + 1,) int: user u has the rows starts[u] to starts[u + 1] - 1, at least one.
    users
        (k,) int, the indices of the users.
    out
        (k, d), overwritten.
    """
    g = np.zeros(theta.shape[0] + 1)
    for k in range(users.shape[0]):
        begin, end = starts[users[k]], starts[users[k] + 1]
        out[k, :] = 0.0
        for i in range(begin, end):
            gradient(spec, theta, X, y, i, g)
            for j in range(theta.shape[0]):
                out[k, j] += g[j]
        for j in range(theta.shape[0]):
            out[k, j] /= end - begin
    g[:] = 0.0


@compiled
def average_gradients_of_classes(
    spec: np.ndarray,
    theta: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    users: np.ndarray,
    out: np.ndarray,
) -> None:
    """As `average_gradients`, for the multinomial loss."""
    g = np.zeros(theta.shape[0])
    for k in range(users.shape[0]):
        begin, end = starts[users[k]], starts[users[k] + 1]
        out[k, :] = 0.0
        for i in range(begin, end):
            gradient_of_classes(spec, theta, X, y, i, g)
            for j in range(theta.shape[0]):
                out[k, j] += g[j]
        for j in range(theta.shape[0]):
            out[k, j] /= end - begin
    g[:] = 0.0
