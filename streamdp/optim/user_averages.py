"""The average gradients of users, of whom methods and reports at user level know nothing else."""

from __future__ import annotations

import numpy as np

from streamdp.optim.losses import Loss, Softmax


def average_gradients(
    spec: np.ndarray,
    loss: Loss,
    point: np.ndarray,
    X: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    users: np.ndarray,
) -> np.ndarray:
    """The average gradient (k, d) at the point (d,) of each of the users (k,), of norm at most the loss's bound.

    User u has the rows starts[u] to starts[u + 1] of X (N, p), y (N,), at least one.
    """
    from streamdp.optim import user_loops

    out = np.zeros((len(users), len(point)))
    average = user_loops.average_gradients_of_classes if isinstance(loss, Softmax) else user_loops.average_gradients
    average(spec, np.ascontiguousarray(point), X, y, starts, users, out)
    return within_bound(out, loss)


def within_bound(vectors: np.ndarray, loss: Loss) -> np.ndarray:
    """Cut the vectors (k, d), in place, to the norm that the loss's gradients have at most; returns them."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    vectors *= np.minimum(1.0, loss.bound / np.maximum(norms, 1e-300))[:, None]
    return vectors
