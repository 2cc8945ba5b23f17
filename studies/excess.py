"""Distributions whose excess loss is known exactly, for measuring rates (`rates`), and learners on them.

Cheu, Joseph, Mao, Peng 2022, Theorems 4.1, 4.3, 4.7, 4.8 and C.3 bound the excess loss of P_SGD, P_AGD and pan-private
AC-SA. Four distributions of six features, one for each pair of theorems: the 64 feature vectors are all signs of a
fixed vector of scales and equally likely, so the expected excess is a mean over 64 points of a closed form, with the
optimum known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit

from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor
from streamdp.optim.ac_sa import plan
from streamdp.optim.domains import L2Ball
from streamdp.optim.losses import Logistic, Loss, Quantile

D = 6
NAMES = [f"x{j}" for j in range(D)]
METHODS = ("pan-private", "shuffle", "SGD")
FAMILY = 7


def even(d: int) -> np.ndarray:
    """All signs of d equal scales (2^d, d), of norm sqrt(2): covariance 2 I / d."""
    return np.array(list(itertools.product([-1.0, 1.0], repeat=d))) * math.sqrt(2 / d)


_EVEN = even(D)
_STEEP = np.sign(_EVEN) * 2.0 ** -np.arange(D)
"""Curvatures a factor of 1024 apart: at every n of the range some directions are too flat to be settled, as in the
worst case of the theorems. Norm below sqrt(2), so that no Mallows weight plays a part."""
_WIDE = 2.55  # half the width of the uniform noise: no residual within the ball is larger than this


@dataclass(frozen=True, eq=False)
class Setting:
    """A distribution and its loss: `targets` draws y for scores x'theta* (n,), `excess_of` is the expected excess given
    scores u and x'theta* (64,). `slow` and `fast` are the theorem's exponents of n without and with privacy's part.
    """

    name: str
    theorem: str
    slow: float
    fast: float
    loss: Loss
    points: np.ndarray
    truth: np.ndarray
    radius: float
    targets: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    excess_of: Callable[[np.ndarray, np.ndarray], np.ndarray]
    convexity: float = 0.0
    methods: tuple[str, ...] = METHODS
    budget: str = "eps=1,delta=1e-6"

    @property
    def d(self) -> int:
        """The number of features."""
        return self.points.shape[1]

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n records: X (n, d), y (n,)."""
        X = self.points[rng.integers(0, len(self.points), n)]
        return X, self.targets(rng, X @ self.truth)

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - f(theta*), exactly."""
        return float(np.mean(self.excess_of(self.points @ theta, self.points @ self.truth)))

    def rate(self, n: int) -> float:
        """The slower of the theorem's two terms, up to a constant: n^slow, for n / k records a phase where it has k =
        ceil(log2 log2 n) phases (its O~)."""
        phases = math.ceil(math.log2(math.log2(n))) if self.convexity else 1
        return (n / phases) ** self.slow

    def family(self) -> list[Setting]:
        """The same with all scales equal, each time half as long: curvatures from 1 to 2^-12, one at a time."""
        scales = 2.0 ** -np.arange(FAMILY)
        points = even(self.d)
        return [replace(self, name=f"{self.name}, worst of {FAMILY}", points=points * scale) for scale in scales]

    def wide(self, d: int) -> Setting:
        """The same with d equal scales, theta* of the same norm, and the strong convexity that is left: 6 / d times."""
        truth = np.full(d, np.linalg.norm(self.truth) / math.sqrt(d))
        return replace(self, points=even(d), truth=truth, convexity=self.convexity * D / d)

    @property
    def start(self) -> float:
        """The excess of theta_0 = 0."""
        return self.excess(np.zeros(self.d))

    def model(self, method: str, n: int, seed: int | None = None) -> Any:
        """A fresh estimator for n records."""
        classify = isinstance(self.loss, Logistic)
        kinds = (PanPrivateClassifier, ShuffleClassifier) if classify else (PanPrivateRegressor, ShuffleRegressor)
        options = {"method": "sgd" if method == "SGD" else "ac-sa"}
        return kinds[method != "pan-private"](
            self.loss,
            self.budget,
            domain=L2Ball(self.radius),
            features=[f"x{j}" for j in range(self.d)],
            intercept=False,
            horizon=n,
            seed=seed,
            strong_convexity=self.convexity,
            **options,
        )

    @cache  # noqa: B019 - there are four settings
    def bounds(self, method: str, n: int) -> tuple[float, float]:
        """The plan's bound on the expected excess, and what it would be without privacy."""
        model = self.model(method, n)
        public = replace(model.learner.batch_steps.problem, noise=lambda batch: 0.0)
        return model.learner.batch_steps.plan[-1].excess, plan(public, n)[-1].excess

    def measure(self, method: str, n: int, repetitions: int, seed: int = 0) -> np.ndarray:
        """The excess after n records, (repetitions,)."""
        seeds = np.random.SeedSequence((seed, n, METHODS.index(method))).spawn(repetitions)
        found = []
        for one in seeds:
            rng = np.random.default_rng(one)
            model = self.model(method, n, int(rng.integers(2**31)))
            model.learn_arrays(*self.draw(rng, n))
            found.append(self.excess(model.theta))
        return np.array(found)


def _entropy_excess(u: np.ndarray, best: np.ndarray) -> np.ndarray:
    """The logistic loss where P(y = 1) = expit(best): a relative entropy."""
    return np.logaddexp(0, u) - np.logaddexp(0, best) - expit(best) * (u - best)


def _kinked_excess(u: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Half the absolute loss under noise -1, 0, 1 with probabilities 0.4, 0.2, 0.4: a kink at the optimum."""
    off = np.abs(u - best)
    return 0.1 * off + 0.4 * np.maximum(off - 1, 0)


def _flat_excess(u: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Half the absolute loss under uniform noise on [-_WIDE, _WIDE], for residuals within it."""
    return (u - best) ** 2 / (4 * _WIDE)


_FAR, _NEAR = np.full(D, 2.0), np.full(D, 0.8 / math.sqrt(D))
_RADIUS = 1.5  # of the ball in which the logistic loss is strongly convex: no score is above sqrt(2) _RADIUS
SETTINGS = (
    Setting(
        "convex, smooth: logistic",
        "4.3, C.3(2)",
        -1 / 2,
        -4 / 5,
        Logistic(),
        _STEEP,
        _FAR,
        5.0,
        lambda rng, u: (rng.random(len(u)) < expit(u)).astype(float),
        _entropy_excess,
    ),
    Setting(
        "convex, non-smooth: median",
        "4.7, C.3(1)",
        -1 / 2,
        -2 / 3,
        Quantile(tau=0.5),
        _STEEP,
        _FAR,
        5.0,
        lambda rng, u: u + rng.choice([-1.0, 0.0, 1.0], p=[0.4, 0.2, 0.4], size=len(u)),
        _kinked_excess,
    ),
    Setting(
        "strongly convex, smooth: logistic",
        "4.8, C.3(4)",
        -1.0,
        -2.0,
        Logistic(),
        _EVEN,
        _NEAR * _RADIUS,
        _RADIUS,
        lambda rng, u: (rng.random(len(u)) < expit(u)).astype(float),
        _entropy_excess,
        float(expit(_RADIUS * math.sqrt(2)) * expit(-_RADIUS * math.sqrt(2))) / 3,
        METHODS[:2],
    ),
    Setting(
        "strongly convex, non-smooth: median",
        "4.8, C.3(3)",
        -1.0,
        -4 / 3,
        Quantile(tau=0.5),
        _EVEN,
        _NEAR,
        1.0,
        lambda rng, u: u + rng.uniform(-_WIDE, _WIDE, size=len(u)),
        _flat_excess,
        1 / (6 * _WIDE),
        METHODS[:2],
    ),
)
"""Strong convexity: the covariance of x is I / 3. The Hessian for the median is the noise's density 1 / (2 _WIDE) times
that, everywhere in the ball; for the logistic loss at least p (1 - p) times that, at the largest score of the ball."""
