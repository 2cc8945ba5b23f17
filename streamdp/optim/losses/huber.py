"""Huber's loss with a scale."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from streamdp.errors import ConfigError, is_number
from streamdp.optim.losses.base import Loss


@lru_cache(maxsize=256)
def _kappa(c: float) -> float:
    density, tail = math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi), math.erfc(c / math.sqrt(2)) / 2
    return 1 - 2 * tail - 2 * c * density + 2 * c**2 * tail


@dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    """Huber regression with jointly estimated scale: (sigma rho_c(r) + kappa sigma / 2) w(x), r = (y - x'b) / sigma.

    theta = (b, sigma). kappa = E min(Z^2, c^2) makes sigma consistent. Source: Shi et al. 2025, section 5.1.

    Gradient. With a = clip(r, -c, c) it is (-a x w, (kappa - a^2) w / 2), because rho_c(r) - r psi_c(r) = -a^2 / 2 both
    for |r| <= c and for |r| > c.

    Bound. The squared norm is a^2 ||x||^2 w^2 + (kappa - a^2)^2 w^2 / 4 <= 2 a^2 + (kappa - a^2)^2 / 4 with both
    weights, with equality at ||x||^2 = 2. The right side grows with a^2: its derivative is 2 - (kappa - a^2) / 2 > 0,
    because kappa < 1. So the maximum is at |a| = c: C0^2 = 2 c^2 + (kappa - c^2)^2 / 4.

    Sensitivity with Mallows' weight. S = 2 sqrt(2) c, reached by two records with opposite x of norm sqrt(2) and the
    same a = c or -c.

    1. Write p = |a| sqrt(w) <= c sqrt(w). Then ||a x w|| <= sqrt(2) p because ||x||^2 w <= 2, and the last entry is
       (kappa w - p^2) / 2. So S^2 <= max 2 (p1 + p2)^2 + D^2 / 4, D = kappa (w1 - w2) - p1^2 + p2^2.
    2. It grows in p2: the derivative is 4 (p1 + p2) + p2 D. As p1^2 <= c^2 w1 and kappa <= c^2, D >= -(c^2 - kappa) w1
       - kappa w2 >= -c^2. So the derivative is at least p2 (4 - c^2) >= 0 for c <= 2. Likewise it grows in p1. So the
       maximum has p = c sqrt(w).
    3. There, with w2 = s^2 w1 and s <= 1, it is w1 (1+s)^2 (2 c^2 + (c^2 - kappa)^2 w1 (1-s)^2 / 4), which grows in w1,
       so w1 = 1. Its derivative in s is (1+s) (4 c^2 - (c^2 - kappa)^2 s (1-s)) > 0, because (c^2 - kappa)^2 <= c^4 <=
       4 c^2 and s (1-s) <= 1/4. At s = 1 it is 8 c^2.

    The paper's sqrt(8 c^2 + c^4 / 4) adds the maxima of both terms, which no pair reaches together. It is 3 % larger.

    Sensitivity with the weight min(1, sqrt(2)/||x||). S^2 = 8 c^2 + (c^2 - kappa)^2 / 4, approached by opposite x and
    x' with the same a = c, ||x|| = sqrt(2) and ||x'|| without bound. S is 1 % larger than 2 sqrt(2) c for c = 1.345.

    1. Write p = |a| <= c and v = (kappa - p^2) w. Then ||a x w|| <= sqrt(2) p, and v is between 0 and kappa - p^2. So
       S^2 <= max 2 (p1 + p2)^2 + (v1 - v2)^2 / 4.
    2. For given p1 >= p2, |v1 - v2| is at most one of |kappa - p1^2|, |kappa - p2^2| and p1^2 - p2^2, because it is
       convex in (v1, v2) and these are its values at the corners of their range.
    3. With (kappa - p^2)^2 / 4 for p = p1 or p2, the sum grows in p1 and in p2: its derivative in p is 4 (p1 + p2) - p
       (kappa - p^2) > 0, because kappa < 1. With (p1^2 - p2^2)^2 / 4 it grows in p1, and its derivative in p2 is 4 (p1
       + p2) - p2 (p1^2 - p2^2) >= p2 (4 - c^2) >= 0. So the maximum is at p1 = p2 = c.

    Smoothness. For |r| < c the Hessian is v v' w / sigma with v = (x, r), so its eigenvalue is at most (||x||^2 w + r^2
    w) / sigma <= (2 + c^2) / sigma_min. For |r| > c the loss is linear in theta, and the Hessian is 0.

    Parameters
    ----------
    clip, weighting
        As for `Loss`.
    c
        In (0, 2]: the residual in units of sigma above which the loss is linear. 1.345 gives 95 % efficiency for normal
        noise.
    sigma_min
        Positive: sigma stays at least this, by projection. In the unit of y; of the scaled y, if targets are scaled.
        Newton's steps with bounds of the target lower it to about 3e-7 of half their width, if that is less.

    Raises `ConfigError` if a number is out of range.
    """

    c: float = 1.345
    sigma_min: float = 0.1

    name = "huber"
    expected_curvature = 0.82
    code = 1

    @property
    def least_scale(self) -> float:
        return self.sigma_min

    def with_least_scale(self, least: float) -> "Huber":
        return replace(self, sigma_min=min(self.sigma_min, least))

    @property
    def cut(self) -> float:
        return self.c

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.c) and 0 < self.c <= 2):
            raise ConfigError(f"Huber: c must be in (0, 2], got {self.c}")
        if not (is_number(self.sigma_min) and 0 < self.sigma_min < math.inf):
            raise ConfigError(f"Huber: sigma_min must be positive and finite, got {self.sigma_min}")

    @property
    def kappa(self) -> float:
        """E min(Z^2, c^2), Z standard normal: P(|Z| <= c) - 2 c phi(c) + 2 c^2 Phi(-c)."""
        return _kappa(self.c)

    def _bound(self) -> float:
        return math.sqrt(2 * self.c**2 + (self.kappa - self.c**2) ** 2 / 4)

    def _sensitivity(self) -> float:
        scale = (self.c**2 - self.kappa) ** 2 / 4 if self.by_norm else 0.0
        return math.sqrt(8 * self.c**2 + scale)

    def _smoothness(self) -> float:
        return (2 + self.c**2) / self.sigma_min

    def size(self, columns: int, classes: int = 1) -> int:
        """See `Loss.size`; one more for sigma."""
        return columns + 1

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        super().check_theta(theta, columns)
        if theta[-1] < self.sigma_min * (1 - 1e-9):  # an average of values at the border may be rounded below it
            raise ConfigError(f"theta: expected a scale of at least {self.sigma_min:g}, got {theta[-1]:g}")

    def start(self, d: int) -> np.ndarray:
        theta = np.zeros(d)
        theta[-1] = max(1.0, self.sigma_min)
        return theta

    def expected_inverses(self, theta: np.ndarray, columns: int) -> np.ndarray:
        """See `Loss.expected_inverses`.

        With normal residuals r the curvatures of intercept and scale are P(|r| < c) and E[r^2; |r| < c], times E w and
        over sigma: the second is 1 - 2 c phi(c)/P(|r| < c) of the first, .471 for c = 1.345.
        """
        inverses = super().expected_inverses(theta, columns)
        density = math.exp(-(self.c**2) / 2) / math.sqrt(2 * math.pi)
        curvature = 1 - 2 * self.c * density / math.erf(self.c / math.sqrt(2))
        inverses[:, -1] = 1 / curvature, 1 / curvature**2
        return inverses

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        spec[k.SHAPE], spec[k.KAPPA] = self.c, self.kappa
        return spec

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        sigma = float(theta[-1])
        r = abs(y - float(np.dot(x, theta[:-1]))) / sigma
        rho = r**2 / 2 if r <= self.c else self.c * r - self.c**2 / 2
        return sigma * (rho + self.kappa / 2) * self.weight(x)
