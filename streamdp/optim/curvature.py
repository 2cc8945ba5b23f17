"""Gradient and curvature of one record as one bounded vector, released together by Newton's method.

With q columns (the intercept included), Q = sqrt(2 q) and r the residual over sigma, a record (x, y) at theta has

    w = min(1, sqrt2 / |x|, Q / |x|^2),
    g = (w a x) and for Huber's scale also (kappa - a^2) w / 2,   a the derivative of the loss in the predictor,
    M = w h x x',       h = min(1, c / |r|) (Huber) or 4 p (1 - p) (logistic),
    s = w r^2 if |r| < c, else 0 (Huber only),

and contributes v = (g, lambda svec M, lambda s). svec lists the upper triangle with off-diagonal entries times sqrt2,
so that |svec M| is the Frobenius norm |M|. M / sigma (Huber) or M / 4 (logistic) is the Hessian of the weighted loss,
or above it for Huber's linear part, where the Hessian is 0 and steps would be too long. s / sigma is the second
derivative in sigma.

Assumption: theta has sigma > 0; x and y are arbitrary. A record that overflows contributes zeros. The sensitivity of
the gradient alone differs from that of `losses`, because w is not the loss's own weight.

Neighbours: two records are arbitrary, (x, y) and (x', y'), at one theta. Trust is that of the estimator.

Claim: |v| is at most `bound` and |v - v'| at most `sensitivity`.

Proof, Huber: sensitivity^2 = 8 c^2 + (c^2 - kappa)^2 / 4 + lambda^2 (Q^2 + c^4), where lambda is chosen such that K =
lambda^2 Q^2 / c^2 is at most 2 + sqrt2. Write |a| = p, |x| w = sqrt2 rho, |x|^2 w = Q tau, with p <= c and rho, tau, w,
h in [0, 1], and -t for the cosine between a x and a' x'. Relax: let rho, tau h and w vary freely in [0, 1]. With
D = (kappa - p^2) w - (kappa - p'^2) w',

    |v - v'|^2 <= 2 (p^2 rho^2 + p'^2 rho'^2 + 2 p p' rho rho' t) + D^2 / 4
                  + lambda^2 Q^2 (m^2 + m'^2 - 2 m m' t^2) + lambda^2 (s - s')^2,           m = tau h, m' = tau' h'.

1. 0 <= s <= c^2 w, so the last term is at most lambda^2 c^4. The others are convex in (rho, rho'), in (m, m') and in
   (w, w'), because |t| <= 1. So their maximum has these at 0 or 1. A negative t may be replaced by -t.
2. rho = rho' = 1: the derivative in p of the first two terms is 4 p + 4 p' t - p w D >= p (4 - w D) >= 0, because w D
   <= max(kappa, c^2) <= 4 for c <= 2. Likewise in p'. So p = p' = c, D = (kappa - c^2) (w - w') and D^2 / 4 <= (c^2 -
   kappa)^2 / 4.
3. There the rest is c^2 times 4 (1 + t) + K (m^2 + m'^2 - 2 m m' t^2). If m or m' is 0, it is at most 8 + K. If m = m'
   = 1, it is 4 (1 + t) + 2 K (1 - t^2): 8 at t = 1 if K <= 1, else at t = 1/K 4 + 2 K + 2 / K, which is at most 8 + K
   because K^2 - 4 K + 2 <= 0 for 2 - sqrt2 <= K <= 2 + sqrt2.
4. rho or rho' = 0: |D| <= c^2 <= 2 c, so all is at most 2 c^2 + c^2 + 2 K c^2 <= 8 c^2 + K c^2 for K <= 5.       QED

bound^2 = C0^2 + lambda^2 (Q^2 + c^4), C0^2 = 2 c^2 + (c^2 - kappa)^2 / 4: the parts' maxima, as in `Huber`.

Proof, logistic: sensitivity = 2 sqrt2, that of the gradient alone, if lambda^2 = 3 / (2 q): the curvature is free. A
gradient is long if |a| = |p - y| is near 1, and there h = 4 p (1 - p) = 4 |a| (1 - |a|) is near 0. Write a for |a|, m =
a (1 - a). As above, but with h tied to a, lambda^2 Q^2 16 = 48 and rho, tau at 0 or 1,

    |v - v'|^2 <= 2 (a^2 rho + a'^2 rho' + 2 a a' rho rho' t) + 48 (m^2 tau + m'^2 tau' - 2 m m' tau tau' t^2).

1. rho or rho' = 0: at most 2 + 48 (1/16 + 1/16) = 8.
2. rho = rho' = 1, tau tau' = 0: it grows in t and in one of a, a', so it is at most 2 (2 - b)^2 + 48 b^2 (1 - b)^2, b =
   1 - a. That is P(b), and P <= 8 on [0, 1.05]: 8 - P(b) = b (8 - 2 b - 48 b (1 - b)^2), and 48 b (1 - b)^2 <= 64/9 and
   falls on [1/3, 1]; the bracket is at least 8 - 2/3 - 64/9 > 0 for b <= 1/3, and beyond at least 8 - 2 b_1 - 48 b_0 (1
   - b_0)^2 > 0 on each of the intervals [b_0, b_1] with the ends 1/3, .4, .5, .75, 1.05.
3. All 1: the maximum over t is at t = min(1, 1 / (48 (1 - a) (1 - a'))). If that is below 1, the terms with t add up
   to 2 a a' t <= a^2 + a'^2, so the sum is at most F(a) + F(a'), F(a) = 3 a^2 + 48 m^2 = a^2 (3 + 48 (1 - a)^2) <= 3.9.
4. If t = 1 it is 2 (a + a')^2 + 48 (a - a')^2 (1 - a - a')^2. With b = 1 - a, b' = 1 - a' and S = b + b' <= 1 + 1/48
   (as b b' <= 1/48), (a - a')^2 <= S^2, so it is at most P(S) <= 8.                                              QED

bound^2 = max a^2 (2 + 48 (1 - a)^2) <= 3.55, at a = .546.

The Gaussian noise of a batch has this sensitivity in the whole space of v; the rounding to the grid is over all its
coordinates (see `additive` and `binomial`). A search for violations is in tests/unit/optim/test_curvature.py.

Source: of the joint release, streamdp; of the weighted losses, Shi et al. 2025. Other losses have no such vector here:
the gradient of the quantile and hinge losses has no derivative, that of `Squared` and of clipped losses is not
weighted, and the softmax loss has K^2 blocks of curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.losses import Huber, Logistic, Loss

_SHARE = 2.0
"""K of the proof for Huber's loss."""


def has_curvature(loss: Loss) -> bool:
    """Return whether a loss's records have a bounded curvature here: Huber and logistic losses without `clip`."""
    return isinstance(loss, Huber | Logistic) and loss.clip is None


@dataclass(frozen=True)
class Curvature:
    """The vectors (g, lambda svec M, lambda s) of records: see the text of the module.

    The loss is `Huber` or `Logistic` without `clip`, else a `ConfigError` is raised; `columns` is q >= 1, the length of
    x, intercept included.
    """

    loss: Loss
    columns: int

    def __post_init__(self) -> None:
        if not has_curvature(self.loss):
            raise ConfigError(f"{self.loss!r} has no curvature of bounded sensitivity: Huber and logistic losses have")

    @property
    def parameters(self) -> int:
        """d, the number of parameters."""
        return self.loss.size(self.columns)

    @property
    def size(self) -> int:
        """The length of a vector: d + q (q + 1) / 2, and one more for Huber."""
        return self.parameters + self.columns * (self.columns + 1) // 2 + isinstance(self.loss, Huber)

    @property
    def factor(self) -> float:
        """lambda."""
        if isinstance(self.loss, Huber):
            return self.loss.c * math.sqrt(_SHARE / (2 * self.columns))
        return math.sqrt(1.5 / self.columns)

    @property
    def bound(self) -> float:
        """The largest norm of a vector."""
        return math.sqrt(self._gradients(2.0) + self._curvatures) if isinstance(self.loss, Huber) else math.sqrt(3.55)

    @property
    def sensitivity(self) -> float:
        """The largest distance of two vectors."""
        return math.sqrt(self._gradients(8.0) + self._curvatures) if isinstance(self.loss, Huber) else math.sqrt(8)

    def _gradients(self, times: float) -> float:
        assert isinstance(self.loss, Huber)
        return times * self.loss.c**2 + (self.loss.c**2 - self.loss.kappa) ** 2 / 4

    @property
    def _curvatures(self) -> float:
        assert isinstance(self.loss, Huber)
        return self.factor**2 * (2 * self.columns + self.loss.c**4)

    @property
    def variance(self) -> float:
        """V, about the largest variance of a gradient: a quarter of the squared diameter of their set."""
        return 2 * self.loss.c**2 if isinstance(self.loss, Huber) else 2.0

    def vectors(self, spec: np.ndarray, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the vectors (n, size) at theta (d,) of n records, features X (n, p) and encoded targets y (n,).

        `spec` are the loss and the model as numbers for the compiled loops.
        """
        from streamdp.optim.curvature_loops import joint_of_rows

        out = np.empty((len(X), self.size))
        joint_of_rows(spec, theta, X, y, self.factor, out)
        return out
