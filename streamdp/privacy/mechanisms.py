"""Mechanisms: each turns a gradient of norm at most `bound` into an unbiased noisy one.

A mechanism is calibrated by a budget, the l2 bound C0 of one gradient and the l2 sensitivity S, the largest distance of
two gradients (2 C0 unless the loss knows better). Neighbours: replace one record. All noise lies on a grid that does
not depend on the data (`entropy` explains why), and S is enlarged by the rounding before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import betainc, betaln

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount, check_serviceable, with_amount

Rng = Entropy | SeededEntropy

_GRID_BITS = 20
_ARITHMETIC = 1 + 2.0**-40  # gradients are computed in floating point: their bound may be off by rounding


@dataclass(frozen=True)
class Mechanism:
    """What all mechanisms share. Use a subclass.

    Parameters
    ----------
    budget
        What one record may spend: an epsilon or mu within `guarantees.SERVICEABLE`.
    bound
        C0, from 1e-60 to 1e60: every gradient has l2 norm at most this; longer ones raise in `randomize`.
    sensitivity
        S: the largest l2 distance between two gradients; 2 `bound` when None. At most 2 `bound`.

    Raises `BudgetError` for a budget of a kind or size that the mechanism cannot serve, `ConfigError` for a bad bound.
    """

    budget: Budget
    bound: float = 1.0
    sensitivity: float | None = None

    name: ClassVar[str]
    code: ClassVar[int]
    serves: ClassVar[tuple[type, ...]]

    def __post_init__(self) -> None:
        if not isinstance(self.budget, self.serves):
            kinds = " or ".join(kind.__name__ for kind in self.serves)
            raise BudgetError(f"{type(self).__name__} serves {kinds}, got {type(self.budget).__name__}")
        check_serviceable(self.budget)
        if not 1e-60 <= self.bound <= 1e60:  # far from where squares of gradients and noise leave the doubles
            raise ConfigError(f"bound must be from 1e-60 to 1e60, got {self.bound}")
        if self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 2.0 * self.bound)
        elif not 0 < self.sensitivity <= 2 * self.bound * (1 + 1e-12):
            raise ConfigError(f"sensitivity must be in (0, 2 bound], got {self.sensitivity}")

    def variance(self, d: int) -> float:
        """E||noise||^2, summed over the d coordinates."""
        raise NotImplementedError

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """Calibrations for the compiled loops: (1, c) for the own budget, or (n, c) for n amounts of its kind.

        Amounts (epsilon or mu of single records) are rounded down by at most a relative 2^-10 where a calibration has
        to be solved for, so that few distinct ones remain.
        """
        raise NotImplementedError

    def randomize(self, g: np.ndarray, rng: Rng | None = None) -> np.ndarray:
        """A noisy copy of g, shape (d,) or (n, d), rows randomised independently.

        Raises `ConfigError` where a row is longer than `bound` or not finite: a longer vector would not be protected.
        """
        out = np.array(g, dtype=float, order="C", ndmin=2)
        norms = np.linalg.norm(out, axis=1)
        if not np.all(norms <= self.bound * (1 + 1e-9)):
            raise ConfigError(f"vectors to randomise must be finite and of l2 norm at most {self.bound:g}")
        randomize_rows(self.code, self.rows(out.shape[1]), out, rng or Entropy())
        return out[0] if np.ndim(g) == 1 else out


def randomize_rows(code: int, rows: np.ndarray, G: np.ndarray, rng: Rng) -> None:
    """Randomise the rows of G (n, d) in place, all by one calibration."""
    from streamdp.privacy import samplers

    with rng.lock:
        while (done := samplers.randomize(code, rows, G, rng.words)) < len(G):
            rng.refill_for(done)
            G = G[done:]


def _grid(scale: np.ndarray | float) -> np.ndarray:
    """The largest power of two at most 2^-20 of the scale."""
    return np.exp2(np.floor(np.log2(scale)) - _GRID_BITS)


def _additive(scale_of: Callable[[float | np.ndarray], np.ndarray], sensitivity: float, d: int) -> np.ndarray:
    """Rows for additive noise whose scale is proportional to the sensitivity, rounding included."""
    from streamdp.privacy.samplers import CALIBRATION, GRID, SCALE

    grid = _grid(scale_of(sensitivity))
    rows = np.zeros((np.size(grid), CALIBRATION))
    rows[:, GRID] = grid
    rows[:, SCALE] = scale_of(sensitivity * _ARITHMETIC + math.sqrt(d) * grid)
    return rows


def round_down(amounts: np.ndarray) -> np.ndarray:
    """Amounts cut to 10 bits after the leading one."""
    fraction, exponent = np.frexp(np.asarray(amounts, dtype=float))
    return np.ldexp(np.floor(fraction * 2**11) / 2**11, exponent)


def _solved(solve: Callable[[float], np.ndarray], amounts: np.ndarray) -> np.ndarray:
    """Rows for amounts that each need a calibration to be solved for."""
    distinct, where = np.unique(round_down(amounts), return_inverse=True)
    return np.concatenate([solve(float(a)) for a in distinct])[where]


class Laplace(Mechanism):
    """Laplace noise of scale sqrt(d) S / epsilon on every coordinate: epsilon-DP.

    Two gradients differ by at most S in l2, so by at most sqrt(d) S in l1. Source: Shi et al. 2025, Example 1; Dwork et
    al. 2006. Total variance 2 d (sqrt(d) S / epsilon)^2.

    >>> round(Laplace(PureDP(1)).variance(6), 2)
    288.0
    """

    name = "laplace"
    code = 1
    serves = (PureDP,)

    def variance(self, d: int) -> float:
        return 2 * d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        epsilon = np.atleast_1d(amount(self.budget) if amounts is None else amounts)
        return _additive(lambda s: math.sqrt(d) * s / epsilon, self.sensitivity or 0.0, d)


class Gaussian(Mechanism):
    """Gaussian noise N(0, sigma^2) on every coordinate: mu-GDP with sigma = S / mu, or (epsilon, delta)-DP.

    For (epsilon, delta) the noise is the least that suffices, at every epsilon: S / mu with the largest mu whose
    delta_mu(epsilon) is at most delta (Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 1). The classical
    2 S^2 ln(1.25/delta) / epsilon^2 of Shi et al. 2025, Example 2 holds only for epsilon <= 1 and is larger.

    >>> round(Gaussian(ApproxDP(1, 1e-5)).variance(6), 1)
    334.0
    >>> round(Gaussian(GaussianDP(1)).variance(6), 2)
    24.0
    """

    name = "gaussian"
    code = 2
    serves = (ApproxDP, GaussianDP)

    def variance(self, d: int) -> float:
        return d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        if isinstance(self.budget, GaussianDP):
            mu = np.atleast_1d(self.budget.mu if amounts is None else amounts)
            return _additive(lambda s: s / mu, self.sensitivity or 0.0, d)
        if amounts is None:
            mu = np.array([_gdp_of(self.budget).mu])
            return _additive(lambda s: s / mu, self.sensitivity or 0.0, d)
        return _solved(lambda a: type(self)(with_amount(self.budget, a), self.bound, self.sensitivity).rows(d), amounts)


@lru_cache(maxsize=4096)
def _gdp_of(budget: ApproxDP) -> GaussianDP:
    return GaussianDP.from_approx(budget)


class PrivUnit(Mechanism):
    """PrivUnit: a direction from a cap around the gradient's with probability p, else from outside it: epsilon-DP.

    Source: Bhowmick et al. 2018, Algorithm 1; the choice of p and gamma is that of Asi, Feldman, Talwar 2022 (PrivUnitG
    shows it is near optimal). For a unit vector u and V uniform on the sphere of R^d, the answer V has density p/q on
    the cap {<v, u> >= gamma} and (1-p)/(1-q) off it, relative to uniform, q being the cap's share of the sphere. All
    densities for all u lie within a factor (p/q) / ((1-p)/(1-q)) = e^epsilon, which is epsilon-DP. E V = m u with

        m = (1 - gamma^2)^((d-1)/2) / ((d-1) B(1/2, (d-1)/2)) (p/q - (1-p)/(1-q)),

    so C0 V / m is unbiased for C0 u and has total variance C0^2 (1/m^2 - 1); gamma is chosen to maximise m.

    Shorter gradients: u is g/||g|| with probability (1 + ||g||/C0)/2 and -g/||g|| otherwise (Duchi, Jordan, Wainwright
    2018, section 4.2.3), so C0 E u = g. Privacy holds because the output's density is then an average of two densities
    of the same family, and averages of numbers in [a, a e^epsilon] stay there. E||answer||^2 is C0^2/m^2 whatever the
    length, so E||noise||^2 = C0^2/m^2 - ||g||^2. The other way, a further coordinate that fills the norm up to C0,
    costs one dimension; this one keeps d. Only the bound C0 enters: the sensitivity is not used.

    All this is about real numbers. Computed in doubles, the answer differs from the ideal one with a probability of
    about d 2^-32 (see `entropy`): who counts the arithmetic as part of the mechanism has that as a delta.

    >>> round(PrivUnit(PureDP(1)).variance(6), 1)
    34.5
    """

    name = "privunit"
    code = 3
    serves = (PureDP,)

    def variance(self, d: int, norm: float | None = None) -> float:
        """E||noise||^2 for a gradient of this norm (the bound when None; a shorter gradient has more)."""
        norm = self.bound if norm is None else norm
        return float((self.bound * _cap(amount(self.budget), d)[0]) ** 2 - norm**2)

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        if amounts is not None:
            return _solved(lambda a: PrivUnit(PureDP(a), self.bound).rows(d), amounts)
        inverse, gamma, p = _cap(amount(self.budget), d)
        bound = self.bound * _ARITHMETIC
        radial = (1 - gamma**2) ** ((d - 2) / 2) if d > 2 else 1.0
        return np.array([[bound * inverse, 2.0**-16, p, gamma, radial, math.acos(gamma), bound]])


@lru_cache(maxsize=65536)
def _cap(epsilon: float, d: int) -> tuple[float, float, float]:
    """(1/m, gamma, p) of PrivUnit in d dimensions, gamma the best one."""
    # The cap's share is known to about 1e-14; past an epsilon of 300 it would leave the doubles, and nothing is gained.
    epsilon = min(epsilon, 300.0) * (1 - 1e-12)
    if d == 1:  # randomised response of a sign
        p = 1 / (1 + math.exp(-epsilon))
        return 1 / (2 * p - 1), 0.0, p

    from scipy.optimize import minimize_scalar

    def at(gamma: float) -> tuple[float, float]:
        q = 0.5 * float(betainc((d - 1) / 2, 0.5, 1 - gamma**2))
        # p = q e^eps / (q e^eps + 1 - q), and p/q - (1-p)/(1-q) with the common denominator taken out
        denominator = q + (1 - q) * math.exp(-epsilon)
        log_first = (d - 1) / 2 * math.log1p(-(gamma**2)) - math.log(d - 1) - float(betaln(0.5, (d - 1) / 2))
        return math.exp(log_first) * -math.expm1(-epsilon) / denominator, q / denominator

    best = minimize_scalar(
        lambda gamma: -at(gamma)[0], bounds=(0.0, 1 - 1e-9), method="bounded", options={"xatol": 1e-9}
    )
    gamma = float(best.x)
    m, p = at(gamma)
    return 1 / m, gamma, p


class NoNoise(Mechanism):
    """The gradient as it is: NOT private, for comparisons. An estimator that uses it says so in its statement."""

    name = "none"
    code = 0
    serves = (PureDP, ApproxDP, GaussianDP)

    def variance(self, d: int) -> float:
        return 0.0

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        from streamdp.privacy.samplers import CALIBRATION, GRID

        rows = np.zeros((1 if amounts is None else len(amounts), CALIBRATION))
        rows[:, GRID] = 1.0
        return rows


MECHANISMS: dict[str, type[Mechanism]] = {m.name: m for m in (Laplace, Gaussian, PrivUnit, NoNoise)}


def mechanism_for(choice: str | type[Mechanism], budget: Budget) -> type[Mechanism]:
    """The mechanism class for a choice ("auto", a name or a class) and a budget's kind.

    "auto" takes PrivUnit for PureDP and Gaussian for ApproxDP and GaussianDP. Raises `ConfigError` for an unknown one.
    """
    if isinstance(choice, type) and issubclass(choice, Mechanism):
        return choice
    if choice == "auto":
        return PrivUnit if isinstance(budget, PureDP) else Gaussian
    if choice in MECHANISMS:
        return MECHANISMS[choice]
    raise ConfigError(f"mechanism: expected auto, {', '.join(MECHANISMS)} or a Mechanism class, got {choice!r}")


@lru_cache(maxsize=4096)
def calibrated(kind: Any, budget: Budget, bound: float, sensitivity: float) -> Any:
    """`kind(budget, bound, sensitivity)`, kept: records bring the same few budgets again and again."""
    return kind(budget, bound, sensitivity)


@lru_cache(maxsize=4096)
def record_rows(mechanism: Mechanism, d: int) -> np.ndarray:
    """The calibration of a record that brings its own budget: rounded as `learn_arrays` rounds it."""
    return mechanism.rows(d, np.array([amount(mechanism.budget)]))
