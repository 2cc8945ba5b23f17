"""The logistic losses of two and of several classes."""

import math
from dataclasses import dataclass

import numpy as np
import scipy

from streamdp.errors import ConfigError
from streamdp.optim.losses.base import Loss, check_classes

_LONGEST = 10.0  # longer coefficients separate the classes, and most of their length is noise


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """l(u) = log(1 + e^u) - y u, y in {0, 1}.

    Bound. The derivative in u is expit(u) - y, in (-1, 1). So M = 1 and C0 = sqrt(2) (see `Loss`).

    Sensitivity. S = 2 C0 = 2 sqrt(2), approached by nearly opposite x and x' with y = 0 and a theta across them, so
    large that both u and u' are large.

    Smoothness. The second derivative in u is expit(u) (1 - expit(u)) <= 1/4, and ||x||^2 w <= 2: 1/2.

    Source: Shi et al. 2025, section 5.3.

    Parameters
    ----------
    clip, weighting
        As for `Loss`.
    """

    name = "logistic"
    of_classes = True
    probabilistic = True
    expected_curvature = 0.15
    bend = 0.25
    code = 2

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        check_classes(y, 2)

    def expected_inverses(self, theta: np.ndarray, columns: int) -> np.ndarray:
        """See `Loss.expected_inverses`.

        With Z standard normal, l the length of the coefficients b, b_0 the intercept and h the slope of the sigmoid at
        l Z + b_0, H is E h across b, E[h Z^2] along b, and E[h Z] between this direction and the intercept.
        """
        inverses = super().expected_inverses(theta, columns)
        b, intercept = theta[:columns], theta[columns:]
        length = float(np.linalg.norm(b))
        if length > 0:
            z, offset = np.linspace(-8, 8, 1601), np.clip(intercept.sum(), -_LONGEST, _LONGEST)
            p = scipy.special.expit(min(length, _LONGEST) * z + offset)
            slopes = p * (1 - p) * np.exp(-(z**2) / 2)
            moments = np.vander(z, 3).T @ slopes / slopes.sum()
            both = np.array([[moments[0], moments[1]], [moments[1], 1.0]])
            inverse = np.linalg.inv(both if len(intercept) else both[:1, :1])
            for diagonal, block in zip(inverses, (inverse, inverse @ inverse), strict=True):
                diagonal[:columns] += (block[0, 0] - 1) * (b / length) ** 2
                diagonal[columns:] = block[-1, -1]
        return inverses

    def _bound(self) -> float:
        return math.sqrt(2)

    def _smoothness(self) -> float:
        return 0.5

    def _loss(self, u: float, y: float) -> float:
        return float(-scipy.special.log_expit(u) if y else -scipy.special.log_expit(-u))


def without_shift(theta: np.ndarray, classes: int) -> np.ndarray:
    """A copy of theta (..., d) whose blocks, one for each of several classes, add up to 0.

    A shift of all classes changes no prediction. With 1 class, nothing is changed.
    """
    blocks = theta.reshape(*theta.shape[:-1], classes, -1)
    return (blocks - blocks.mean(axis=-2, keepdims=True)).reshape(theta.shape) if classes > 1 else theta.copy()


@dataclass(frozen=True, kw_only=True)
class Softmax(Loss):
    """Multinomial logistic loss of K classes, theta = K blocks of coefficients, y in {0, ..., K-1}.

    With the predictors u_k of the classes and p = softmax(u), the gradient is the tensor product of p - e_y and w x.

    Bound. ||p - e_y||^2 = (1 - p_y)^2 + sum over j != y of p_j^2 <= 2 (1 - p_y)^2 <= 2, because the p_j over j != y are
    not negative and add up to 1 - p_y. With ||x|| w <= sqrt(2), C0 = 2.

    Sensitivity. S = 2 C0 = 4, approached by nearly opposite x and x' with the same y and a large theta across them, at
    which both predict the same other class.

    Smoothness. The Hessian is the tensor product of diag(p) - p p' and w x x'. The first factor is at most 1/2: v'
    (diag(p) - p p') v is the variance of v_k under p, at most (max v - min v)^2 / 4 <= ||v||^2 / 2. The second factor
    is at most 2. So it is 1.

    Parameters
    ----------
    clip, weighting
        As for `Loss`.
    """

    name = "softmax"
    of_classes = True
    probabilistic = True
    expected_curvature = 0.15
    several = True
    steepest = 2.0
    code = 3

    def _bound(self) -> float:
        return 2.0

    def _smoothness(self) -> float:
        return 1.0

    def size(self, columns: int, classes: int = 2) -> int:
        return columns * classes

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        if theta.ndim != 1 or columns < 1 or len(theta) % columns or len(theta) < 2 * columns:
            raise ConfigError(f"theta: expected two or more blocks of {columns} numbers, got shape {theta.shape}")
        if not np.isfinite(theta).all():
            raise ConfigError("theta: expected finite numbers")

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        check_classes(y, classes)

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        u = np.reshape(theta, (-1, len(x))) @ x
        return float(scipy.special.logsumexp(u) - u[int(y)]) * self.weight(x)
