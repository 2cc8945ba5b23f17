"""Gradients at one point, and their averages per user: all that user-level methods see of a user's records."""

import numpy as np

from streamdp.optim.losses import Loss


def gradients(spec: np.ndarray, point: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradients (n, d) at a point (d,) of records X (n, p), y (n,); spec is that of `loops.gradient`."""
    from streamdp.optim import loops

    out = np.empty((len(X), len(point)))
    loops.gradients(spec, point, X, y, out)
    return out


def average_gradients(
    spec: np.ndarray, loss: Loss, point: np.ndarray, X: np.ndarray, y: np.ndarray, starts: np.ndarray, users: np.ndarray
) -> np.ndarray:
    """The average gradient (k, d) at a point (d,) of each of k users, of norm at most the bound of the loss.

    X (N, p) and y (N,) are the records of all users: user u has the rows starts[u] to starts[u + 1] - 1, at least one.
    `users` (k,) are indices. `spec` is `Loss.spec`, with the intercept set.
    """
    from streamdp.optim import curvature_loops

    out = np.zeros((len(users), len(point)))
    curvature_loops.average_gradients(spec, np.ascontiguousarray(point), X, y, starts, users, out)
    return within_bound(out, loss)


def within_bound(vectors: np.ndarray, loss: Loss) -> np.ndarray:
    """Scale vectors (k, d) down in place to the bound of the loss; returns them.

    An average of bounded gradients may exceed the bound by rounding.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    vectors *= (loss.bound / np.maximum(norms, loss.bound))[:, None]
    return vectors
