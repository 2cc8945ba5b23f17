"""Mechanisms: each turns a gradient of norm at most `bound` into an unbiased noisy gradient.

A mechanism is calibrated by a budget, the l2 bound C0 of one gradient, and the l2 sensitivity S, the largest distance
between two gradients (2 C0 unless the loss proves less). All noise lies on a grid that does not depend on the data
(`entropy` explains why).

Neighbours. One record is replaced by any other. So the gradient is replaced by another one at distance at most S.

Rounding. Additive noise protects the gradients after rounding. Two gradients at distance s are at most

    reach(s) = (1 + 2^-40) s + sqrt(d) h

apart after rounding: 2^-40 covers the floating-point arithmetic of the gradients, and rounding to the grid of multiples
of h moves each of two vectors by at most h/2 in each of d coordinates. The noise is calibrated to reach(S).

Privacy map. `Mechanism.guarantee` answers which budget holds if two gradients are up to s apart instead of S. The noise
is fixed, so for additive noise the budget changes by the factor reach(s) / reach(S): the epsilon of Laplace noise and
the mu of Gaussian noise are proportional to the distance after rounding.
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
_ARITHMETIC = 1 + 2.0**-40  # gradients are computed in floating point: rounding may exceed their bound


@dataclass(frozen=True)
class Mechanism:
    """Base class of all mechanisms. Use a subclass.

    Parameters
    ----------
    budget
        What one record may spend: an epsilon or mu within `guarantees.SERVICEABLE`.
    bound
        C0, from 1e-60 to 1e60: every gradient has l2 norm at most this. `randomize` refuses a longer one.
    sensitivity
        S in (0, 2 `bound`]: the largest l2 distance between two gradients; 2 `bound` if None.

    Raises `BudgetError` if the mechanism cannot serve the kind or the size of the budget, `ConfigError` if the bound or
    the sensitivity is out of range.
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

    def guarantee(self, sensitivity: float, d: int) -> Budget | None:
        """The budget that one record spends if two gradients are up to `sensitivity` apart: the privacy map.

        It is `budget` at the planned sensitivity, grows with the sensitivity, and counts the rounding to the grid.
        None if the mechanism is not private.

        Parameters
        ----------
        sensitivity
            s > 0, the largest l2 distance between two gradients, in the unit of the gradient. It may be below or above
            the planned one. `PrivUnit` allows at most 2 `bound`.
        d
            The number of coordinates, at least 1. The cost of the rounding depends on it.

        Raises `ConfigError` if the sensitivity is out of range, `BudgetError` if the budget is not a finite number.

        >>> planned = Laplace(PureDP(1), bound=1.0, sensitivity=2.0)
        >>> planned.guarantee(2.0, d=1)
        PureDP(epsilon=1.0)
        >>> round(amount(planned.guarantee(4.0, d=1)), 4)
        2.0
        """
        if not 0 < sensitivity < math.inf:
            raise ConfigError(f"sensitivity must be positive and finite, got {sensitivity}")
        return self._guarantee(sensitivity, d)

    def _guarantee(self, sensitivity: float, d: int) -> Budget | None:
        raise NotImplementedError

    def variance(self, d: int) -> float:
        """E||noise||^2, summed over the coordinates.

        Parameters
        ----------
        d
            The number of coordinates, at least 1.
        """
        raise NotImplementedError

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """Calibrations for the compiled loops: (1, c) for `budget`, or (n, c) for n amounts.

        Parameters
        ----------
        d
            The number of coordinates, at least 1.
        amounts
            (n,) the epsilon or mu of each record, of the kind of `budget`. If a calibration has to be solved for, an
            amount is rounded down by at most a relative 2^-10, so that few distinct ones remain.
        """
        raise NotImplementedError

    def randomize(self, g: np.ndarray, rng: Rng | None = None) -> np.ndarray:
        """A noisy copy of the gradients; the rows are randomised independently.

        Parameters
        ----------
        g
            (d,) or (n, d) float. Each row is finite and has l2 norm at most `bound`.
        rng
            The random words; fresh ones from the operating system if None.

        Raises `ConfigError` if a row is longer than `bound` or not finite: the noise would not protect it.
        """
        out = np.array(g, dtype=float, order="C", ndmin=2)
        norms = np.linalg.norm(out, axis=1)
        if not np.all(norms <= self.bound * (1 + 1e-9)):
            raise ConfigError(f"vectors to randomise must be finite and of l2 norm at most {self.bound:g}")
        randomize_rows(self.code, self.rows(out.shape[1]), out, rng or Entropy())
        return out[0] if np.ndim(g) == 1 else out


def randomize_rows(code: int, rows: np.ndarray, G: np.ndarray, rng: Rng) -> None:
    """Randomise the rows of G in place, all by one calibration.

    Parameters
    ----------
    code
        `Mechanism.code`.
    rows
        (1, c) the calibration, as `Mechanism.rows` returns it.
    G
        (n, d) float, C-contiguous. Each row has l2 norm at most the bound of the mechanism; this is not checked.
    rng
        The random words.
    """
    from streamdp.privacy import samplers

    with rng.lock:
        while (done := samplers.randomize(code, rows, G, rng.words)) < len(G):
            rng.refill_for(done)
            G = G[done:]


def _grid(scale: np.ndarray) -> np.ndarray:
    """The largest power of two at most 2^-20 of the scale."""
    grid: np.ndarray = np.exp2(np.floor(np.log2(scale)) - _GRID_BITS)
    return grid


def _reach(sensitivity: float, d: int, grid: np.ndarray) -> np.ndarray:
    """The largest l2 distance after rounding of two gradients at this distance (see the module's text)."""
    return np.asarray(sensitivity * _ARITHMETIC + math.sqrt(d) * grid)


def _additive(scale_of: Callable[[float | np.ndarray], np.ndarray], sensitivity: float, d: int) -> np.ndarray:
    """Rows for additive noise whose scale is proportional to the sensitivity, rounding included."""
    from streamdp.privacy.samplers import CALIBRATION, GRID, SCALE

    grid = _grid(scale_of(sensitivity))
    rows = np.zeros((np.size(grid), CALIBRATION))
    rows[:, GRID] = grid
    rows[:, SCALE] = scale_of(_reach(sensitivity, d, grid))
    return rows


def _stretch(mechanism: Mechanism, sensitivity: float, d: int) -> float:
    """reach(s) / reach(S) of additive noise: the factor by which epsilon or mu grows if S becomes s."""
    from streamdp.privacy.samplers import GRID

    grid = mechanism.rows(d)[0, GRID]
    return float(_reach(sensitivity, d, grid) / _reach(mechanism.sensitivity or 0.0, d, grid))


def round_down(amounts: np.ndarray) -> np.ndarray:
    """Amounts cut to 10 bits after the leading one.

    Parameters
    ----------
    amounts
        (n,) positive numbers.
    """
    fraction, exponent = np.frexp(np.asarray(amounts, dtype=float))
    return np.asarray(np.ldexp(np.floor(fraction * 2**11) / 2**11, exponent))


def _solved(solve: Callable[[float], np.ndarray], amounts: np.ndarray) -> np.ndarray:
    """Rows for amounts that each need a calibration to be solved for."""
    distinct, where = np.unique(round_down(amounts), return_inverse=True)
    return np.concatenate([solve(float(a)) for a in distinct])[where]


class Laplace(Mechanism):
    """Laplace noise of scale b = sqrt(d) S / epsilon on every coordinate: epsilon-DP.

    Claim. The answers are epsilon-DP. Their total variance is 2 d b^2.

    Proof. The densities of the answers for two vectors g and g' have the log ratio sum_j (|a_j - g'_j| - |a_j - g_j|) /
    b at the answer a, at most ||g - g'||_1 / b. At l2 distance S the l1 distance is at most sqrt(d) S, with equality if
    all coordinates differ by the same amount. So the log ratio is at most sqrt(d) S / b = epsilon.

    Privacy map. At l2 distance s the log ratio is at most sqrt(d) s / b = epsilon s / S. With the rounding this is
    epsilon reach(s) / reach(S).

    Source: Shi et al. 2025, Example 1; Dwork et al. 2006.

    >>> round(Laplace(PureDP(1)).variance(6), 2)
    288.0
    """

    name = "laplace"
    code = 1
    serves = (PureDP,)

    def _guarantee(self, sensitivity: float, d: int) -> PureDP:
        return PureDP(amount(self.budget) * _stretch(self, sensitivity, d))

    def variance(self, d: int) -> float:
        """See `Mechanism.variance`."""
        return 2 * d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """See `Mechanism.rows`."""
        epsilon = np.atleast_1d(amount(self.budget) if amounts is None else amounts)
        return _additive(lambda s: math.sqrt(d) * s / epsilon, self.sensitivity or 0.0, d)


class Gaussian(Mechanism):
    """Gaussian noise N(0, sigma^2) on every coordinate: mu-GDP with sigma = S / mu, or (epsilon, delta)-DP.

    Claim. The answers are mu-GDP. For an (epsilon, delta) budget, mu is the largest one whose delta_mu(epsilon) is at
    most delta, so the noise is the least that suffices, at every epsilon.

    Proof. The noise has the same law in every direction. So the answers for two vectors at distance s differ as N(0, 1)
    and N(s / sigma, 1) along the line through both vectors, and not at all across it. This is (s / sigma)-GDP, at most
    mu. mu-GDP implies (epsilon, delta_mu(epsilon))-DP with the exact curve of `GaussianDP.delta` (Balle and Wang 2018,
    Theorem 8; Dong, Roth, Su 2022, Corollary 1). The classical variance 2 S^2 ln(1.25/delta) / epsilon^2 of Shi et al.
    2025, Example 2 holds only for epsilon <= 1 and is larger.

    Privacy map. At distance s the answers are (mu s / S)-GDP, with the rounding mu' = mu reach(s) / reach(S). For an
    (epsilon, delta) budget, it is the epsilon at which delta_mu'(epsilon) equals the same delta.

    >>> round(Gaussian(ApproxDP(1, 1e-5)).variance(6), 1)
    334.0
    >>> round(Gaussian(GaussianDP(1)).variance(6), 2)
    24.0
    """

    name = "gaussian"
    code = 2
    serves = (ApproxDP, GaussianDP)

    def _guarantee(self, sensitivity: float, d: int) -> ApproxDP | GaussianDP:
        stretch = _stretch(self, sensitivity, d)
        if isinstance(self.budget, ApproxDP):
            return GaussianDP(_gdp_of(self.budget).mu * stretch).to_approx(self.budget.delta)
        return GaussianDP(amount(self.budget) * stretch)

    def variance(self, d: int) -> float:
        """See `Mechanism.variance`."""
        return d * float(self.rows(d)[0, 0]) ** 2

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """See `Mechanism.rows`."""
        if isinstance(self.budget, ApproxDP):
            if amounts is not None:
                return _solved(
                    lambda a: type(self)(with_amount(self.budget, a), self.bound, self.sensitivity).rows(d), amounts
                )
            mu = np.array([_gdp_of(self.budget).mu])
        else:
            mu = np.atleast_1d(amount(self.budget) if amounts is None else amounts)
        return _additive(lambda s: s / mu, self.sensitivity or 0.0, d)


@lru_cache(maxsize=4096)
def _gdp_of(budget: ApproxDP) -> GaussianDP:
    return GaussianDP.from_approx(budget)


class PrivUnit(Mechanism):
    """PrivUnit: a direction from a cap around the gradient's with probability p, else from outside it: epsilon-DP.

    Mechanism. For a unit vector u, the answer V lies on the sphere of R^d. Relative to the uniform law it has density
    p/q on the cap {<v, u> >= gamma} and (1-p)/(1-q) off the cap; q is the cap's share of the sphere. A gradient g of
    norm at most C0 is first replaced by u = g/||g|| with probability (1 + ||g||/C0)/2, and by u = -g/||g|| otherwise
    (Duchi, Jordan, Wainwright 2018, section 4.2.3). The result is C0 V / m with

        m = (1 - gamma^2)^((d-1)/2) / ((d-1) B(1/2, (d-1)/2)) (p/q - (1-p)/(1-q)).

    Claim. The result is epsilon-DP and unbiased for g, and E||noise||^2 = C0^2/m^2 - ||g||^2.

    Proof. For all u, the densities of V lie within a factor (p/q) / ((1-p)/(1-q)) = e^epsilon, which is epsilon-DP. The
    random sign makes the density an average of two such densities, and averages of numbers in [a, a e^epsilon] stay in
    [a, a e^epsilon]. E V = m u for a given u, and C0 E u = g; so the result is unbiased. Its norm is always C0 / m,
    which gives the variance. gamma is chosen to maximise m.

    Privacy map. The guarantee is epsilon for all gradients of norm at most C0. These are at most 2 C0 apart, so a
    larger sensitivity is refused. The planned sensitivity S is not used.

    Alternative. A further coordinate that fills the norm up to C0 costs one dimension; the random sign costs none.

    Arithmetic. The proof is about real numbers. Computed in doubles, the answer differs from the ideal one with a
    probability of about d 2^-32 (see `entropy`). If the arithmetic counts as part of the mechanism, this is a delta.

    Source: Bhowmick et al. 2018, Algorithm 1. The choice of p and gamma is that of Asi, Feldman, Talwar 2022
    (PrivUnitG shows that it is near optimal).

    >>> round(PrivUnit(PureDP(1)).variance(6), 1)
    34.5
    """

    name = "privunit"
    code = 3
    serves = (PureDP,)

    def _guarantee(self, sensitivity: float, d: int) -> Budget:
        if sensitivity > 2 * self.bound * (1 + 1e-12):
            raise ConfigError(f"sensitivity must be at most 2 bound = {2 * self.bound:g}, got {sensitivity}")
        return self.budget

    def variance(self, d: int, norm: float | None = None) -> float:
        """E||noise||^2 for a gradient of this norm.

        Parameters
        ----------
        d
            The number of coordinates, at least 1.
        norm
            In [0, `bound`]; `bound` if None. A shorter gradient has more noise.
        """
        norm = self.bound if norm is None else norm
        return float((self.bound * _cap(amount(self.budget), d)[0]) ** 2 - norm**2)

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """See `Mechanism.rows`."""
        if amounts is not None:
            return _solved(lambda a: PrivUnit(PureDP(a), self.bound).rows(d), amounts)
        inverse, gamma, p = _cap(amount(self.budget), d)
        bound = self.bound * _ARITHMETIC
        radial = (1 - gamma**2) ** ((d - 2) / 2) if d > 2 else 1.0
        return np.array([[bound * inverse, 2.0**-16, p, gamma, radial, math.acos(gamma), bound]])


@lru_cache(maxsize=65536)
def _cap(epsilon: float, d: int) -> tuple[float, float, float]:
    """(1/m, gamma, p) of PrivUnit in d dimensions with the best gamma."""
    # The cap's share has an error of about 1e-14. Above an epsilon of 300 it would underflow, and nothing is gained.
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
    """The gradient without noise: NOT private, for comparisons. An estimator that uses it says so in its statement."""

    name = "none"
    code = 0
    serves = (PureDP, ApproxDP, GaussianDP)

    def _guarantee(self, sensitivity: float, d: int) -> None:
        return None

    def variance(self, d: int) -> float:
        """See `Mechanism.variance`."""
        return 0.0

    def rows(self, d: int, amounts: np.ndarray | None = None) -> np.ndarray:
        """See `Mechanism.rows`."""
        from streamdp.privacy.samplers import CALIBRATION, GRID

        rows = np.zeros((1 if amounts is None else len(amounts), CALIBRATION))
        rows[:, GRID] = 1.0
        return rows


MECHANISMS: dict[str, type[Mechanism]] = {m.name: m for m in (Laplace, Gaussian, PrivUnit, NoNoise)}


def mechanism_for(choice: str | type[Mechanism], budget: Budget) -> type[Mechanism]:
    """The mechanism class for a choice and the kind of a budget.

    Parameters
    ----------
    choice
        "auto", a name in `MECHANISMS`, or a class. "auto" is `PrivUnit` for PureDP, `Gaussian` for ApproxDP and
        GaussianDP.
    budget
        Only its kind is used, and only for "auto".

    Raises `ConfigError` if the choice is unknown.
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
    """`kind(budget, bound, sensitivity)`, cached because many records have the same budget.

    Parameters
    ----------
    kind
        A subclass of `Mechanism`.
    budget, bound, sensitivity
        As for `Mechanism`.
    """
    return kind(budget, bound, sensitivity)


@lru_cache(maxsize=4096)
def record_rows(mechanism: Mechanism, d: int) -> np.ndarray:
    """The calibration (1, c) of one record with a budget of its own, rounded as for arrays of records.

    Parameters
    ----------
    mechanism
        Calibrated for the budget of the record.
    d
        The number of coordinates.
    """
    return mechanism.rows(d, np.array([amount(mechanism.budget)]))
