"""PrivUnit: an unbiased random direction for a bounded vector."""

import math
from functools import lru_cache

import numpy as np
import scipy

from streamdp.errors import ConfigError
from streamdp.privacy.guarantees import Budget, PureDP, amount
from streamdp.privacy.mechanisms.base import ARITHMETIC, Mechanism, solved
from streamdp.privacy.mechanisms.response import truth


class PrivUnit(Mechanism):
    """PrivUnit: a direction from a cap around the gradient's with probability p, else from outside it: epsilon-DP.

    Mechanism. For a unit vector u, the answer V lies on the sphere of R^d. Relative to the uniform law it has density
    p/q on the cap {<v, u> >= gamma} and (1-p)/(1-q) off the cap; q is the cap's share of the sphere. A gradient g of
    norm at most C0 is first replaced by u = g/||g|| with probability (1 + ||g||/C0)/2, and by u = -g/||g|| otherwise
    (Duchi, Jordan, Wainwright 2018, section 4.2.3). The result is C0 V / m with

        m = (1 - gamma^2)^((d-1)/2) / ((d-1) B(1/2, (d-1)/2)) (p/q - (1-p)/(1-q)).

    Claim. The result is epsilon-DP and unbiased for g, and E||noise||^2 = C0^2/m^2 - ||g||^2.

    It holds for all gradients of norm at most C0: the sensitivity S is not used, and one above 2 C0 is refused. If the
    rounding of doubles is counted, there is a delta of about d 2^-32 (1 + e^epsilon) besides: see `arithmetic_delta`.

    Proof: docs/proofs/noise.md. Source: Bhowmick et al. 2018, Algorithm 1. The choice of p and gamma is that of Asi,
    Feldman, Talwar 2022 (PrivUnitG shows that it is near optimal).

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
        """E||noise||^2 on `d` coordinates for a gradient of this `norm`; None: `bound`, which has the least noise."""
        norm = self.bound if norm is None else norm
        return float((self.bound * _cap(amount(self.budget), d)[0]) ** 2 - norm**2)

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        if amounts is not None:
            return solved(self, d, amounts)
        return _row(amount(self.budget), d, self.bound).copy()


def arithmetic_delta(budget: Budget, d: int) -> float:
    """The delta of PrivUnit in R^d at the epsilon of a budget if its arithmetic counts: (1 + e^epsilon) eta, at most 1.

    The budget is a PureDP or an ApproxDP.
    """
    return min(1.0, (8 if d == 2 else d) * 2.0**-32 * (1 + math.exp(min(amount(budget), 300.0))))


@lru_cache(maxsize=65536)
def _row(epsilon: float, d: int, bound: float) -> np.ndarray:
    """The calibration (1, c) of PureDP(epsilon)."""
    inverse, gamma, p = _cap(epsilon, d)
    bound = bound * ARITHMETIC
    radial = (1 - gamma**2) ** ((d - 2) / 2) if d > 2 else 1.0
    keep = float(truth(PureDP(epsilon), np.array([epsilon]))[0])
    return np.array([[bound * inverse, 2.0**-16, keep, inverse**-2, p, gamma, radial, math.acos(gamma), bound]])


@lru_cache(maxsize=65536)
def _cap(epsilon: float, d: int) -> tuple[float, float, float]:
    """(1/m, gamma, p) of PrivUnit in d dimensions with the best gamma."""
    # The cap's share has an error of about 1e-14. Above an epsilon of 300 it would underflow, and nothing is gained.
    epsilon = min(epsilon, 300.0) * (1 - 1e-12)
    if d == 1:  # randomised response of a sign
        p = 1 / (1 + math.exp(-epsilon))
        return 1 / (2 * p - 1), 0.0, p

    def at(gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = 0.5 * scipy.special.betainc((d - 1) / 2, 0.5, 1 - gamma**2)
        # p = q e^eps / (q e^eps + 1 - q), and p/q - (1-p)/(1-q) with the common denominator taken out
        denominator = q + (1 - q) * math.exp(-epsilon)
        log_first = (d - 1) / 2 * np.log1p(-(gamma**2)) - math.log(d - 1) - scipy.special.betaln(0.5, (d - 1) / 2)
        return np.exp(log_first) * -math.expm1(-epsilon) / denominator, q / denominator

    # m has one maximum. Each round keeps the two steps beside it. scipy.optimize would take 0.4 s to load.
    ends = np.array([0.0, 1 - 1e-9])
    for _ in range(6):
        gammas = np.linspace(ends[0], ends[1], 101)
        best = int(np.argmax(at(gammas)[0]))
        ends = gammas[[max(best - 1, 0), min(best + 1, 100)]]
    gamma = gammas[[best]]
    m, share = at(gamma)
    return float(1 / m[0]), float(gamma[0]), float(share[0])
