"""Losses: each knows its gradient, value, prox and constants.

A loss of one record (x, y) at theta is l(x'theta, y) w(x). By default w is the Mallows weight min(1, 2/||x||^2), which
bounds the gradient without bias in a model that is right, since it depends on x only; `clip=C` scales the whole
gradient down to norm C instead (w = 1), which is biased (Shi et al. 2025, Figure 1). With the Mallows weight

    ||x|| w(x) <= sqrt(2)   (both factors are largest at ||x|| = sqrt(2))   and   ||x||^2 w(x) <= 2.

`bound` is C0 = sup ||gradient||, `sensitivity` is S = sup ||gradient - gradient'|| over two records at one theta,
`smoothness` is the largest eigenvalue of the Hessian (inf where there is none). With `clip=C`: C0 = C and S = 2 C.
`x` includes the constant 1 of the intercept where there is one. Where the docstring says nothing else, two records with
opposite x and coefficients of one sign attain S = 2 C0. The tests search for violations of each constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit, log_expit, logsumexp, ndtr, softmax

from streamdp.errors import ConfigError, SchemaError

_ROUNDING = 2.0**-41  # what projection may leave; half of what mechanisms allow for


def check_classes(y: np.ndarray, classes: int) -> None:
    """Raise `SchemaError` unless y holds class indices."""
    if not np.all((y == np.floor(y)) & (y >= 0) & (y < classes)):
        raise SchemaError(f"target: expected class indices 0 to {classes - 1}")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What all losses share. `clip` is None for Mallows weights, or the norm that gradients are clipped to (biased)."""

    clip: float | None = None

    name: ClassVar[str]
    code: ClassVar[int]
    has_envelope: ClassVar[bool] = False
    """Whether the compiled loops know the gradient of its Moreau envelope: the non-smooth losses."""

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ConfigError(f"clip must be positive and finite, got {self.clip}")

    @property
    def bound(self) -> float:
        """C0 = sup ||gradient||_2."""
        return self.clip if self.clip is not None else self._bound()

    @property
    def sensitivity(self) -> float:
        """S = sup ||gradient - gradient'||_2 over two records at one theta."""
        return 2 * self.clip if self.clip is not None else self._sensitivity()

    @property
    def smoothness(self) -> float:
        """The Lipschitz constant of the gradient in theta; inf for non-smooth losses, and where gradients are clipped
        (then w = 1, and x may be as long as it likes).
        """
        return math.inf if self.clip is not None else self._smoothness()

    def _smoothness(self) -> float:
        return math.inf

    def _bound(self) -> float:
        raise NotImplementedError

    def _sensitivity(self) -> float:
        return 2 * self._bound()

    def size(self, columns: int, classes: int = 1) -> int:
        """The number of parameters for `columns` columns of x, intercept included."""
        return columns

    def start(self, d: int) -> np.ndarray:
        """theta_0."""
        return np.zeros(d)

    def spec(self) -> np.ndarray:
        """The numbers that describe this loss to the compiled loops."""
        from streamdp.optim import loops as k

        spec = np.zeros(k.SPEC)
        spec[k.LOSS] = self.code
        spec[k.CLIP] = math.inf if self.clip is None else self.clip
        spec[k.TARGET_BOUND] = math.inf
        return spec

    def weight(self, x: np.ndarray) -> float:
        """The Mallows weight of x, or 1 where gradients are clipped."""
        square = float(np.dot(x, x))
        return 1.0 if self.clip is not None or square <= 2 else 2 / square

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        """Raise `ConfigError` unless theta is a finite vector for `columns` columns of x, where the constants hold."""
        if theta.shape != (self.size(columns),):
            raise ConfigError(f"theta: expected shape ({self.size(columns)},), got {theta.shape}")
        if not np.isfinite(theta).all():
            raise ConfigError("theta: expected finite numbers")

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        """Raise `SchemaError` for targets that the constants do not hold for. `classes` is theirs, where they have."""
        if not np.isfinite(y).all():
            raise SchemaError("target: expected a finite number, got NaN or an infinity")

    def gradient(self, theta: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
        """The bounded gradient (d,) at theta (d,) for one record x (columns,), y.

        Raises `ConfigError` and `SchemaError` for wrong shapes, a theta outside its domain and targets out of range.
        """
        theta, row, target = np.array(theta, dtype=float), np.array(x, dtype=float), np.array([y], dtype=float)
        if row.ndim != 1:
            raise SchemaError(f"x: expected one record, got shape {row.shape}")
        self.check_theta(theta, len(row))
        self.check_targets(target, max(2, len(theta) // max(1, len(row))))
        return self._gradient(theta, row[None, :], target)

    def _gradient(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        from streamdp.optim import loops

        out = np.empty(len(theta) + 1)
        loops.gradient(self.spec(), theta, X, y, 0, out)
        return out[:-1]

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        """The weighted loss of one record."""
        return self._loss(float(np.dot(x, theta)), y) * self.weight(x)

    def _loss(self, u: float, y: float) -> float:
        raise NotImplementedError

    def prox(self, theta: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
        """argmin_z value(z) + ||z - theta||^2 / (2 step), step > 0.

        z = theta - step w a x where a is the (sub)derivative of l at u = x'z: one scalar root along x, since u solves
        u = x'theta - t l'(u) with t = step w ||x||^2. Defined for the weighted loss (`clip` plays no part).
        """
        square = float(np.dot(x, x))
        scale = step * self.weight(x)
        if square == 0:
            return np.array(theta, dtype=float)
        a = self._prox_slope(float(np.dot(x, theta)), y, scale * square)
        return np.asarray(theta - scale * a * np.asarray(x), dtype=float)

    def _prox_slope(self, u: float, y: float, t: float) -> float:
        """The derivative a of l at the point v with v = u - t a."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Squared(Loss):
    """l(u) = (u - y)^2 / 2, for bounded targets and a bounded theta, or clipped (the default, C = 1).

    Mallows weights do not bound this gradient, since the residual is free. Either clip it, or give `clip=None`, a
    `target_bound` B (targets are cut to [-B, B]) and the `radius` R of the ball that theta is projected to: then
    |u - y| ||x|| w <= R ||x||^2 w + B ||x|| w <= 2 R + sqrt(2) B = C0. S = 2 C0 is safe but not attained: opposite x
    cannot both be worst at one theta. Smoothness ||x||^2 w <= 2.
    """

    clip: float | None = 1.0
    target_bound: float | None = None
    radius: float | None = None

    name = "squared"
    code = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.clip is None) == (self.target_bound is None or self.radius is None):
            raise ConfigError("Squared: give clip, or clip=None with target_bound and radius")
        for name, value in (("target_bound", self.target_bound), ("radius", self.radius)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Squared: {name} must be positive and finite, got {value}")

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        super().check_theta(theta, columns)
        if self.radius is not None and np.linalg.norm(theta / self.radius) > 1 + _ROUNDING:
            raise ConfigError(f"theta: expected a norm of at most {self.radius:g}, which the bound assumes")

    def _bound(self) -> float:
        return 2 * (self.radius or 0.0) + math.sqrt(2) * (self.target_bound or 0.0)

    def _smoothness(self) -> float:
        return 2.0

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        if self.target_bound is not None:
            spec[k.TARGET_BOUND] = self.target_bound
        return spec

    def _cut(self, y: float) -> float:
        return y if self.target_bound is None else min(max(y, -self.target_bound), self.target_bound)

    def _loss(self, u: float, y: float) -> float:
        return 0.5 * (u - self._cut(y)) ** 2

    def _prox_slope(self, u: float, y: float, t: float) -> float:
        return (u - self._cut(y)) / (1 + t)


@dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    """Huber regression with jointly estimated scale: (sigma rho_c(r) + kappa_c sigma / 2) w(x), r = (y - x'b) / sigma.

    theta = (b, sigma), sigma kept at least `sigma_min` > 0 by projection; c = 1.345 gives 95 % efficiency for normal
    noise; kappa_c = E min(Z^2, c^2) makes sigma consistent. Source: Shi et al. 2025, section 5.1.

    With a = clip(r, -c, c) the gradient is (-a x w, (kappa - a^2) w / 2), because rho_c(r) - r psi_c(r) = -a^2 / 2 on
    both pieces. For w = 1: C0^2 = max over |a| <= c of 2 a^2 + (kappa - a^2)^2 / 4, which is at |a| = c for c <= 2.

    Sensitivity: write p = |a| sqrt(w) <= c sqrt(w). Then ||a x w|| <= sqrt(2) p, the last entry is (kappa w - p^2) / 2,
    and S^2 = max 2 (p1 + p2)^2 + (kappa (w1 - w2) - p1^2 + p2^2)^2 / 4. For c <= 2 this grows in each p (its derivative
    in p2 is 4 (p1 + p2) + p2 (kappa (w1 - w2) - p1^2 + p2^2) >= p2 (4 - c^2), the bracket being at least
    -c^2; likewise in p1), so p = c sqrt(w); then with w1 = 1, w2 = s^2 it is (1+s)^2 (2 c^2 + (c^2 - kappa)^2 (1-s)^2
    / 4), which grows in s; so S = 2 sqrt(2) c, at two records with opposite x and |r| >= c. The paper's
    sqrt(8 c^2 + c^4 / 4) takes both maxima at once, which no pair attains; it is 3 % larger.
    Smoothness: the Hessian is (x, r)(x, r)' w / sigma where |r| < c, so at most (2 + c^2) / sigma_min.
    """

    c: float = 1.345
    sigma_min: float = 0.1

    name = "huber"
    code = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.c <= 2:
            raise ConfigError(f"Huber: c must be in (0, 2], got {self.c}")
        if not 0 < self.sigma_min < math.inf:
            raise ConfigError(f"Huber: sigma_min must be positive and finite, got {self.sigma_min}")

    @property
    def kappa(self) -> float:
        """E min(Z^2, c^2), Z standard normal: P(|Z| <= c) - 2 c phi(c) + 2 c^2 Phi(-c)."""
        c = self.c
        density = math.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
        return float(1 - 2 * ndtr(-c) - 2 * c * density + 2 * c**2 * ndtr(-c))

    def _bound(self) -> float:
        return math.sqrt(2 * self.c**2 + (self.kappa - self.c**2) ** 2 / 4)

    def _sensitivity(self) -> float:
        return 2 * math.sqrt(2) * self.c

    def _smoothness(self) -> float:
        return (2 + self.c**2) / self.sigma_min

    def size(self, columns: int, classes: int = 1) -> int:
        return columns + 1

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        super().check_theta(theta, columns)
        if theta[-1] < self.sigma_min:
            raise ConfigError(f"theta: expected a scale of at least {self.sigma_min:g}, got {theta[-1]:g}")

    def start(self, d: int) -> np.ndarray:
        theta = np.zeros(d)
        theta[-1] = max(1.0, self.sigma_min)
        return theta

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

    def prox(self, theta: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
        """As for every loss, over sigma >= sigma_min: given sigma the root along x is in closed form, and what is left
        is the root of a decreasing function of sigma.
        """
        from scipy.optimize import brentq

        theta = np.asarray(theta, dtype=float)
        scale, square = step * self.weight(x), float(np.dot(x, x))
        residual = y - float(np.dot(x, theta[:-1]))

        def slope(sigma: float) -> float:
            return float(np.clip(residual / (sigma + scale * square), -self.c, self.c))

        def excess(sigma: float) -> float:
            return float(theta[-1]) - sigma - scale * (self.kappa - slope(sigma) ** 2) / 2

        high = max(float(theta[-1]), 0.0) + scale * self.c**2 + self.sigma_min
        sigma = self.sigma_min if excess(self.sigma_min) <= 0 else brentq(excess, self.sigma_min, high, xtol=1e-14)
        return np.append(theta[:-1] + scale * slope(sigma) * np.asarray(x), sigma)


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """l(u) = log(1 + e^u) - y u, y in {0, 1}. The derivative is in (-1, 1): C0 = sqrt(2), S = 2 sqrt(2).

    Smoothness ||x||^2 w / 4 <= 1/2. Source: Shi et al. 2025, section 5.3.
    """

    name = "logistic"
    code = 2

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        check_classes(y, 2)

    def _bound(self) -> float:
        return math.sqrt(2)

    def _smoothness(self) -> float:
        return 0.5

    def _loss(self, u: float, y: float) -> float:
        return float(-log_expit(u) if y else -log_expit(-u))

    def _prox_slope(self, u: float, y: float, t: float) -> float:
        from scipy.optimize import brentq

        return float(brentq(lambda a: a - (expit(u - t * a) - y), -1.0, 1.0, xtol=1e-15))


@dataclass(frozen=True, kw_only=True)
class Softmax(Loss):
    """Multinomial logistic loss of K classes, theta = K blocks of coefficients, y in {0, ..., K-1}.

    The gradient is (p - e_y) (x) x w with ||p - e_y|| <= sqrt(2), since sum p_j^2 <= (1 - p_y)^2 over j != y. So C0 = 2
    and S = 4. Smoothness: the Hessian is (diag(p) - p p') (x) x x' w and its first factor is at most 1/2: 1.
    """

    name = "softmax"
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

    def _gradient(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        from streamdp.optim import loops

        out = np.empty(len(theta))
        loops.gradient_of_classes(self.spec(), theta, X, y, 0, out)
        return out

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        u = np.reshape(theta, (-1, len(x))) @ x
        return float(logsumexp(u) - u[int(y)]) * self.weight(x)

    def prox(self, theta: np.ndarray, x: np.ndarray, y: float, step: float) -> np.ndarray:
        """As for every loss; K roots along x by a damped Newton iteration on the strongly convex problem in u."""
        blocks = np.reshape(np.asarray(theta, dtype=float), (-1, len(x)))
        scale, square = step * self.weight(x), float(np.dot(x, x))
        if square == 0:
            return np.array(theta, dtype=float)
        t, start = scale * square, blocks @ x
        truth = np.eye(len(start))[int(y)]
        u = start.copy()

        def objective(v: np.ndarray) -> float:
            return float(t * (logsumexp(v) - v @ truth) + 0.5 * np.sum((v - start) ** 2))

        for _ in range(100):
            p = softmax(u)
            slope = t * (p - truth) + u - start
            if np.max(np.abs(slope)) < 1e-13 * (1 + t):
                break
            move = np.linalg.solve(np.eye(len(u)) + t * (np.diag(p) - np.outer(p, p)), slope)
            size = 1.0
            while objective(u - size * move) > objective(u) - 0.25 * size * float(slope @ move) and size > 1e-8:
                size /= 2
            u = u - size * move
        return np.ravel(blocks - scale * np.outer(softmax(u) - truth, x))


@dataclass(frozen=True, kw_only=True)
class Quantile(Loss):
    """The pinball loss of quantile tau in (0, 1): l(u) = (tau - 1{y < u}) (y - u); tau = 1/2 is half the absolute loss.

    The subgradient 1{u > y} - tau has modulus at most M = max(tau, 1 - tau): C0 = sqrt(2) M, S = 2 sqrt(2) M.
    Non-smooth.
    """

    tau: float = 0.5

    name = "quantile"
    code = 4
    has_envelope = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau < 1:
            raise ConfigError(f"Quantile: tau must be in (0, 1), got {self.tau}")

    def _bound(self) -> float:
        return math.sqrt(2) * max(self.tau, 1 - self.tau)

    def spec(self) -> np.ndarray:
        from streamdp.optim import loops as k

        spec = super().spec()
        spec[k.SHAPE] = self.tau
        return spec

    def _loss(self, u: float, y: float) -> float:
        return (self.tau - (y < u)) * (y - u)

    def _prox_slope(self, u: float, y: float, t: float) -> float:
        # v = u - t a must equal y where a lies strictly between the two slopes
        return min(max((u - y) / t, -self.tau), 1 - self.tau)


@dataclass(frozen=True, kw_only=True)
class Hinge(Loss):
    """l(u) = max(0, 1 - s u) with s = 2 y - 1, y in {0, 1}: a linear support vector classifier.

    The subgradient is 0 or -s: C0 = sqrt(2), S = 2 sqrt(2). Non-smooth; gives no probabilities.
    """

    name = "hinge"
    code = 5
    has_envelope = True

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        check_classes(y, 2)

    def _bound(self) -> float:
        return math.sqrt(2)

    def _loss(self, u: float, y: float) -> float:
        return max(0.0, 1 - (2 * y - 1) * u)

    def _prox_slope(self, u: float, y: float, t: float) -> float:
        s = 2 * y - 1
        return -s * min(max((1 - s * u) / t, 0.0), 1.0)


LOSSES: dict[str, type[Loss]] = {kind.name: kind for kind in (Squared, Huber, Logistic, Softmax, Quantile, Hinge)}


def loss_for(choice: str | Loss) -> Loss:
    """A loss by name, or the loss itself. Raises `ConfigError` for an unknown name."""
    if isinstance(choice, Loss):
        return choice
    if choice in LOSSES:
        return LOSSES[choice]()
    raise ConfigError(f"loss: expected one of {', '.join(LOSSES)} or a Loss, got {choice!r}")
