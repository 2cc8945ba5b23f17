"""The records of one window's users, and the only question that methods ask of them: average gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamdp.losses import Loss, Softmax


class WindowRecords:
    """The users of a window, as `task.Users`.

    Parameters
    ----------
    loss, spec
        The loss, and the numbers that describe the model to the compiled loops.
    project
        Takes theta to the domain.
    X, y
        (N, p) and (N,): one user's records after another's.
    sizes
        (n,) how many records each user has, at least one.
    """

    def __init__(
        self,
        loss: Loss,
        spec: np.ndarray,
        project: Callable[[np.ndarray], np.ndarray],
        X: np.ndarray,
        y: np.ndarray,
        sizes: np.ndarray,
    ) -> None:
        self._loss, self._spec = loss, spec
        self._X, self._y = X, y
        self._starts = np.append(0, np.cumsum(sizes))
        self.project = project

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """As `task.Users.gradients`; the radius is for non-smooth losses."""
        from streamdp import user_kernels as k

        chosen = np.arange(len(self._starts) - 1) if users is None else np.asarray(users, dtype=np.int64)
        out = np.zeros((len(chosen), len(theta)))
        if radius > 0:
            self._smoothed(theta, chosen, radius, out)
        else:
            average = k.average_gradients_of_classes if isinstance(self._loss, Softmax) else k.average_gradients
            average(self._spec, np.ascontiguousarray(theta), self._X, self._y, self._starts, chosen, out)
        norms = np.sqrt(np.einsum("ij,ij->i", out, out))
        out *= np.minimum(1.0, self._loss.bound / np.maximum(norms, 1e-300))[:, None]
        return out

    def _smoothed(self, theta: np.ndarray, users: np.ndarray, radius: float, out: np.ndarray) -> None:
        from streamdp.convolution import smoothed_gradients
        from streamdp.kernels import INTERCEPT

        sizes = self._starts[users + 1] - self._starts[users]
        begins = np.cumsum(sizes) - sizes
        rows = np.repeat(self._starts[users] - begins, sizes) + np.arange(int(sizes.sum()))
        intercept = bool(self._spec[INTERCEPT])
        single = smoothed_gradients(self._loss, intercept, theta, self._X[rows], self._y[rows], radius)
        if len(users):
            out[:] = np.add.reduceat(single, begins, axis=0) / sizes[:, None]
        single[...] = 0.0

    def wipe(self) -> None:
        """Overwrite all records."""
        self._X[...] = 0.0
        self._y[...] = 0.0
