"""What all losses share: Mallows weights or clipping, the constants, gradient and value.

The loss of one record (x, y) at theta is l(u, y) w(x) with u = x'theta. If there is an intercept, x includes its
constant 1. The gradient is a w(x) x, where a is the derivative of l in u.

Weights. w depends on x only, so it bounds the gradient without bias if the model is right. There are two:

* "mallows": min(1, 2/||x||^2), the weight of Shi et al. 2025.
* "norm": min(1, sqrt(2)/||x||), the largest weight with ||x|| w <= sqrt(2). The noise does not depend on the weight,
  and this one keeps more of the gradient of a long x, so it needs fewer records: `benchmarks/learning.md`. Its
  ||x||^2 w is not bounded, so a loss with this weight has no smoothness constant.

`clip=C` instead scales the whole gradient down to norm C, with w = 1. This is biased (Shi et al. 2025, Figure 1).

Constants. Privacy rests on the first two; the tests search for violations of each.

* `bound`: C0 = sup ||gradient||_2.
* `sensitivity`: S = sup ||gradient - gradient'||_2 over two records at one theta.
* `smoothness`: the largest eigenvalue of the Hessian in theta; inf if there is none.

Derivation, for a loss of one linear predictor with |a| <= M:

* ||x|| w <= sqrt(2). If ||x||^2 <= 2, w = 1 and ||x|| w = ||x||. Otherwise ||x|| w is 2/||x|| (Mallows) or sqrt(2)
  (norm), at most sqrt(2). So C0 = sqrt(2) M.
* S <= 2 C0 by the triangle inequality. Without an intercept, this is reached in the limit by two records with x and x'
  nearly opposite, both of norm sqrt(2), and derivatives near M of the same sign. With an intercept, x' cannot be
  opposite to x in its last entry, and S may be only an upper bound.
* With Mallows' weight ||x||^2 w <= 2, with equality for ||x||^2 >= 2. So a loss with second derivative at most K in u
  has a smoothness of at most 2 K.
* With `clip=C`, C0 = C, S = 2 C, and the smoothness is inf, because w = 1 and x may have any length. If ||x||^2 <= q,
  it is at most max(1, q/2) times that with Mallows' weight, which has q = 2: the Hessian grows at most as q, and a clip
  is the projection on a ball, which makes no distance larger.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from streamdp.data.floats import floats
from streamdp.errors import ConfigError, SchemaError, check_choice, is_number

WEIGHTINGS = ("mallows", "norm")
CODES = range(1, 6)
"""The values of `Loss.code` that the compiled loops have a derivative for. They refuse any other one."""


def check_classes(y: np.ndarray, classes: int) -> None:
    """Raise `SchemaError` if an entry of y (n,) is not a class index, from 0 to classes - 1."""
    if not np.all((y == np.floor(y)) & (y >= 0) & (y < classes)):
        raise SchemaError(f"target: expected class indices 0 to {classes - 1}")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Base class of all losses. Use a subclass.

    `clip`: None for weights; or a positive norm to which gradients are clipped, which is biased. `weighting`: "mallows"
    or "norm", see the text of the module. None: what the estimator prefers, and "mallows" without one.

    Raises `ConfigError` if `clip` is not positive and finite, or if there is no such weight.
    """

    clip: float | None = None
    weighting: str | None = field(default=None, repr=False)

    name: ClassVar[str]
    code: ClassVar[int]
    of_classes: ClassVar[bool] = False
    """Whether targets are indices of classes."""
    probabilistic: ClassVar[bool] = False
    """Whether linear predictors give the probabilities of classes."""
    several: ClassVar[bool] = False
    """Whether each class has a linear predictor."""
    expected_curvature: ClassVar[float] = 1.0
    """The second derivative in the linear predictor that is expected, for a residual of spread 1."""

    effort: ClassVar[float] = 1.0
    """How many times the reports of Huber's loss it takes until their noise hides as little of what columns say."""
    grows: ClassVar[bool] = False
    """Whether Newton's steps let the scale grow as far as the noise allows, so that fewer residuals are cut."""
    log_link: ClassVar[bool] = False
    """Whether the logarithm of what is predicted is linear."""
    bend: ClassVar[float] = 1.0
    """The second derivative in the linear predictors, times the scale if there is one, for h = 1 in `curvature`."""
    steepest: ClassVar[float] = 1.0
    """The square of the longest derivative in the linear predictors, of a loss with no `cut`."""

    @property
    def least_scale(self) -> float | None:
        """The least spread of residuals, if the loss estimates it as the last number of theta; None: it does not."""
        return None

    @property
    def level(self) -> float:
        """The quantile that errors are measured by; 1/2: absolute errors."""
        return 0.5

    @property
    def has_scale(self) -> bool:
        """Whether the last number of theta is a scale of the residuals."""
        return self.least_scale is not None

    @property
    def keeps_tails(self) -> bool:
        """Whether columns with a long tail are cut further out: the loss is robust, and no logarithm is linear."""
        return self.has_scale and not self.log_link

    def with_least_scale(self, least: float) -> "Loss":
        """The loss with a `least_scale` of at most this one; itself if it has no scale."""
        return self

    @property
    def cut(self) -> float:
        """The residual, in units of the scale, above which the loss is linear; inf: it has no scale."""
        return math.inf

    @property
    def kappa(self) -> float:
        """The mean of the squares of residuals, cut at `cut`, at the scale that the loss learns; 0: it has none."""
        return 0.0

    def __post_init__(self) -> None:
        if self.clip is not None and not (is_number(self.clip) and 0 < self.clip < math.inf):
            raise ConfigError(f"clip must be positive and finite, got {self.clip}")
        if getattr(self, "code", None) not in CODES:
            raise ConfigError(
                f"{type(self).__name__}: the compiled loops have no loss with this code: use one of the losses of "
                "streamdp, or add the loss to them (CONTRIBUTING.md, How to add)"
            )
        if self.weighting is not None:
            check_choice("weighting", self.weighting, WEIGHTINGS)
            if self.clip is not None:
                raise ConfigError(f"weighting: expected None with a clip, got {self.weighting!r}, clip={self.clip}")

    @property
    def by_norm(self) -> bool:
        """Whether the weight is min(1, sqrt(2)/||x||), and not Mallows'."""
        return self.weighting == "norm"

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
        """The Lipschitz constant of the gradient in theta; inf if there is none, as with "norm" or with `clip`."""
        return math.inf if self.clip is not None or self.by_norm else self._smoothness()

    def smoothness_in(self, columns: int) -> float:
        """As `smoothness`, for a number of columns that are at most 1 in size, intercept included."""
        return self.smoothness if self.clip is None else self._smoothness() * max(1.0, columns / 2)

    def _smoothness(self) -> float:
        return math.inf

    def _bound(self) -> float:
        raise NotImplementedError

    def _sensitivity(self) -> float:
        return 2 * self._bound()  # by the triangle inequality

    def size(self, columns: int, classes: int = 1) -> int:
        """The number of parameters d for a number of columns, intercept included, and of classes, for `Softmax`."""
        return columns

    def start(self, d: int) -> np.ndarray:
        """theta_0 (d,)."""
        return np.zeros(d)

    def expected_inverses(self, theta: np.ndarray, columns: int) -> np.ndarray:
        """The diagonals (2, d) of H^-1 and H^-2, H the Hessian up to a factor at theta (d,).

        The columns, `columns` without the intercept, are expected to be normal with a spread of 1 and independent, and
        the weight of a record not to depend on it.
        """
        return np.ones((2, len(theta)))

    def spec(self) -> np.ndarray:
        """The description of this loss for the compiled loops: (`loops.SPEC`,) float."""
        from streamdp.optim import loops as k

        spec = np.zeros(k.SPEC)
        spec[k.LOSS] = self.code
        spec[k.CLIP] = math.inf if self.clip is None else self.clip
        spec[k.BY_NORM] = self.by_norm
        return spec

    def weight(self, x: np.ndarray) -> float:
        """The weight w(x) of one record x (columns,); 1 if gradients are clipped."""
        square = float(np.dot(x, x))
        if self.clip is not None or square <= 2:
            return 1.0
        return math.sqrt(2 / square) if self.by_norm else 2 / square

    def check_theta(self, theta: np.ndarray, columns: int) -> None:
        """Raise `ConfigError` if theta has the wrong shape, is not finite, or is outside the domain of the constants.

        The number of columns is the length of x, intercept included.
        """
        if theta.shape != (self.size(columns),):
            raise ConfigError(f"theta: expected shape ({self.size(columns)},), got {theta.shape}")
        if not np.isfinite(theta).all():
            raise ConfigError("theta: expected finite numbers")

    def check_targets(self, y: np.ndarray, classes: int = 2) -> None:
        """Raise `SchemaError` if the constants do not hold for a target in y (n,), a number or one of the classes."""
        if not np.isfinite(y).all():
            raise SchemaError("target: expected a finite number, got NaN or an infinity")

    def gradient(self, theta: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
        """The bounded gradient (d,) at theta (d,) of one record, x (columns,) and y.

        Raises `ConfigError` if theta has the wrong shape or is outside its domain, `SchemaError` if x has the wrong
        shape or the target is out of range.
        """
        theta, row, target = floats("theta", theta), floats("x", x), floats("target", [y])
        if row.ndim != 1:
            raise SchemaError(f"x: expected one record, got shape {row.shape}")
        self.check_theta(theta, len(row))
        self.check_targets(target, max(2, len(theta) // max(1, len(row))))
        return self._gradient(theta, row[None, :], target)

    def _gradient(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        from streamdp.optim import loops

        out = np.empty(len(theta))
        loops.gradient(self.spec(), theta, X, y, 0, out)
        return out

    def value(self, theta: np.ndarray, x: np.ndarray, y: float) -> float:
        """The weighted loss at theta (d,) of one record, x (columns,) and y."""
        return self._loss(float(np.dot(x, theta)), y) * self.weight(x)

    def _loss(self, u: float, y: float) -> float:
        raise NotImplementedError
