"""The proximal operator of a non-smooth loss: the reference for gradients of its Moreau envelope."""

import numpy as np

from streamdp.optim.losses import Hinge, Loss, Quantile


def prox(loss: Loss, theta: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
    """argmin_z value(z) + ||z - theta||^2 / (2 step) = theta - step w a x, with the subderivative a at u = x'z.

    So u solves u = x'theta - t a(u) with t = step w ||x||^2. If a is strictly between the slopes beside the kink, u is
    the kink.
    """
    t, u = step * loss.weight(x) * float(x @ x), float(x @ theta)
    if t == 0:
        return theta.copy()
    if isinstance(loss, Hinge):
        sign = 2 * y - 1
        a = -sign * min(max((1 - sign * u) / t, 0.0), 1.0)
    else:
        assert isinstance(loss, Quantile)
        a = min(max((u - y) / t, -loss.tau), 1 - loss.tau)
    return theta - step * loss.weight(x) * a * x
