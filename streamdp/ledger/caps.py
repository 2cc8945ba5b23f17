"""Caps and spends as the numbers of `admission`'s compiled loop, and why caps are privacy filters.

A filter refuses what would take a subject over its cap, and so holds although each amount may be chosen with a view to
all that was released before (Rogers, Roth, Ullman, Vadhan 2016; for each person's own spends Feldman, Zrnic 2021).
For one subject, all that others contribute is the same in neighbouring streams, given what was released. So let its
admitted records be answered by mechanisms 1, 2, ..., each chosen by what came before, with privacy losses L1, L2, ...

* PureDP(E): on every path L1 + L2 + ... <= epsilon1 + epsilon2 + ... <= E.
* GaussianDP(M): fix any epsilon, and let V(loss, left) be the delta of sqrt(left)-GDP at epsilon - loss. When a
  mechanism of mu <= sqrt(left) is chosen, the mean of V(loss + L, left - mu^2) over its loss is the delta of that
  mechanism composed with sqrt(left - mu^2)-GDP, which is at most V(loss, left) (Dong, Roth, Su 2022, Corollary 2). So V
  falls in the mean along every path, and it ends at no less than (1 - e^(epsilon - loss))+, whose mean is the delta of
  the whole; thus that is at most V(0, M^2), for every epsilon: the whole is M-GDP. The argument asks of a mechanism
  only that it is mu-GDP, so PureDP counts by `GaussianDP.from_pure`. Smith, Thakurta 2022 and Koskela, Tobaben, Honkela
  2023 prove it for adaptive and for each person's own mu.
* ApproxDP(E, D) where a subject's first spend is PureDP or ApproxDP, and so all are: the same with V of (left epsilon,
  left delta); this is the filter by basic composition of Rogers et al. Where it is GaussianDP: gdp_delta(mu, E) <= D
  holds up to a certain mu, and that is the cap of the filter before. Either V begins at D, and the first spend is
  chosen before there is a loss to choose by, so who picks between them gains nothing.
* A subject that mixed GaussianDP with the others under ApproxDP(E, D) would have no filter, which is why it may not.
  What is left is then no single curve: after a GDP spend, either some epsilon would fit or some mu, and who picks by
  the loss so far gets the larger of two deltas on each path, with a mean above D (`tests/unit/ledger/test_filters.py`
  has numbers).

There is no cap by Renyi divergence at an order (Feldman, Zrnic 2021). It would be a filter for PureDP with GaussianDP
spends as well, but so is a GaussianDP cap, which is exact for Gaussian spends where the conversion from one order is
not; it would be the better only for many small PureDP spends, by less than the factor 1.26 in epsilon (mu = 1.253
epsilon against 1 by the variance of the loss), for an order to be chosen in advance, a guarantee that is no `Budget`,
and a sum more a subject.

A cap is raised by `Ledger.set_cap` at whoever's will: what is promised to a subject is the largest cap that it may get.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, ndtri

from streamdp.errors import BudgetError, StoreMismatchError
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount


def cap_numbers(cap: Budget) -> tuple[int, float, float]:
    """The kind of a cap and its two numbers; the second one's sign tells the kind."""
    from streamdp.ledger import admission

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


def check_kinds(cap: Budget, rows: np.ndarray) -> None:
    """Raise `StoreMismatchError` where one of these rows (n, ROW) has a cap of its own that is of another kind."""
    from streamdp.ledger import admission

    marks = np.sign(rows[rows[:, admission.CAP] > 0, admission.CAP_DELTA])
    if np.any(marks != np.sign(cap_numbers(cap)[2])):
        raise StoreMismatchError(f"subjects have caps of another kind than the ledger's, which is {cap}")


def spend_numbers(budget: Budget, amounts: np.ndarray | None, n: int) -> np.ndarray:
    """`composition.spend_terms` for n records: (n, 4), or (1, 4) where all spend the same."""
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
