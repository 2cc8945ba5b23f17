"""Caps and spends as the numbers of `admission`'s compiled loop."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, ndtri

from streamdp.errors import BudgetError
from streamdp.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount


def cap_numbers(cap: Budget) -> tuple[int, float, float]:
    """The kind of a cap and its two numbers; the second one's sign tells the kind."""
    from streamdp.accounting import admission

    match cap:
        case PureDP(epsilon):
            return admission.PURE, epsilon, 0.0
        case ApproxDP(epsilon, delta):
            return admission.APPROX, epsilon, delta
        case GaussianDP(mu):
            return admission.GAUSSIAN, mu * mu, -1.0


def cap_of_numbers(cap: float, cap_delta: float) -> Budget:
    """The cap with these two numbers."""
    if cap_delta == 0:
        return PureDP(cap)
    return ApproxDP(cap, cap_delta) if cap_delta > 0 else GaussianDP(math.sqrt(cap))


def check_counts(cap: Budget, budget: Budget) -> None:
    """Raise `BudgetError` where a cap cannot count this kind of budget."""
    match cap, budget:
        case (PureDP(), PureDP()) | (ApproxDP(), _) | (GaussianDP(), PureDP() | GaussianDP()):
            return
    raise BudgetError(f"a cap of {cap} cannot count {type(budget).__name__}; one of ApproxDP (eps=E,delta=D) can")


def spend_numbers(budget: Budget, amounts: np.ndarray | None, n: int) -> np.ndarray:
    """`guarantees.spend_terms` for n records: (n, 4), or (1, 4) where all spend the same."""
    values = np.array([amount(budget)] if amounts is None else amounts, dtype=np.float64)
    if amounts is not None and values.shape != (n,):
        raise BudgetError(f"expected {n} amounts for {n} subjects, got an array of shape {values.shape}")
    values[np.isnan(values)] = amount(budget)
    if not np.all((values > 0) & (values < np.inf)):
        raise BudgetError("amounts must be positive and finite")
    terms = np.zeros((len(values), 4))
    with np.errstate(over="ignore"):  # a square may well be infinite: it fits no cap
        match budget:
            case PureDP():
                # mu = -2 Phi^-1(1 / (1 + e^eps)) loses its digits near 0; its tangent there lies above it.
                mu = np.where(values < 1e-4, np.sqrt(np.pi / 2) * values, -2 * ndtri(expit(-values)))
                terms[:, 0], terms[:, 3] = values, mu**2
            case ApproxDP(_, delta):
                terms[:, 0], terms[:, 1], terms[:, 3] = values, delta, np.inf
            case GaussianDP():
                terms[:, 2] = values**2
    return terms
