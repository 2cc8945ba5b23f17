"""Caps and spends as numbers for the compiled loop of `admission`, and the proof that caps are privacy filters.

`periods` has the caps that renew.

A privacy filter refuses a record that would take its subject over the cap.

Claim: the records of a subject that a cap admits have, together, the guarantee that the cap names, although each amount
may depend on everything that was released before (Rogers, Roth, Ullman, Vadhan 2016; for the spends of each person
Feldman, Zrnic 2021).

Neighbours: streams that differ in the records of one subject. Given the releases so far, the contributions of all other
subjects are the same in both streams.

Assumptions: mechanisms 1, 2, ... answer the admitted records of the subject. Each is chosen by what was released before
it. Their privacy losses are L1, L2, ...

Proof, for each kind of cap:

* PureDP(E): on every path, L1 + L2 + ... <= epsilon1 + epsilon2 + ... <= E.
* GaussianDP(M): fix any epsilon. Let V(loss, left) be the delta of sqrt(left)-GDP at epsilon - loss. When a mechanism
  with mu <= sqrt(left) is chosen, the mean of V(loss + L, left - mu^2) over its loss L is the delta of that mechanism
  composed with sqrt(left - mu^2)-GDP. This is at most V(loss, left) (Dong, Roth, Su 2022, Corollary 2). So V decreases
  in the mean along every path. At the end, V is at least (1 - e^(epsilon - loss))+, and the mean of that is the delta
  of the whole. Thus the delta of the whole is at most V(0, M^2), for every epsilon: the whole is M-GDP. The proof uses
  of a mechanism only that it is mu-GDP, so PureDP counts by `GaussianDP.from_pure`. Smith, Thakurta 2022 and Koskela,
  Tobaben, Honkela 2023 prove the claim for adaptive mu and for the mu of each person.
* ApproxDP(E, D), if a subject's first spend is PureDP or ApproxDP, and therefore all its spends are: the same proof,
  with V of (left epsilon, left delta). This is the filter by basic composition of Rogers et al. If the first spend is
  GaussianDP: gdp_delta(mu, E) <= D holds up to a certain mu, and the cap at that mu is the filter above. Both V start
  at D, and the first spend is chosen before there is any loss to choose by, so the choice between the two gains
  nothing.

Counterexample: a subject that mixes GaussianDP with the other kinds under ApproxDP(E, D) would have no filter, so this
mix is refused. What is left is then not one curve: after a GDP spend, either some epsilon or some mu would fit. A
choice by the loss so far gets the larger of two deltas on each path, and the mean of that is above D
(`tests/unit/ledger/test_filters.py` has numbers).

Not implemented: a cap by Renyi divergence at one order (Feldman, Zrnic 2021). It would be a filter for PureDP and
GaussianDP spends together. But a GaussianDP cap is one too, and it is exact for Gaussian spends, while the conversion
from one order is not. The Renyi cap would be better only for many small PureDP spends, by a factor below 1.26 in
epsilon (mu = 1.253 epsilon, against 1 by the variance of the loss). It would need an order that is chosen in advance, a
guarantee that is not a `Budget`, and one more sum for each subject.

Trust: the operator can raise a cap at any time (`Ledger.set_cap`). The promise to a subject is the largest cap that it
ever gets.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from streamdp.data.floats import floats
from streamdp.errors import BudgetError, StoreMismatchError
from streamdp.ledger.rows import APPROX, CAP, CAP_DELTA, GAUSSIAN, PURE, CapNumbers
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount, parse_budget


def cap_numbers(cap: Budget) -> CapNumbers:
    """Return a cap as numbers."""
    match cap:
        case PureDP(epsilon):
            return CapNumbers(PURE, epsilon, 0.0)
        case ApproxDP(epsilon, delta):
            return CapNumbers(APPROX, epsilon, delta)
        case GaussianDP(mu):
            return CapNumbers(GAUSSIAN, mu * mu, -1.0)


def own_cap_numbers(own: Budget | str | None, cap: Budget) -> tuple[float, float]:
    """Return the two numbers of a subject's cap, `own`, as the columns of its row; None: it has the ledger's.

    Raises `BudgetError` for a malformed cap and for one of another kind than the ledger's.
    """
    if own is None:
        return 0.0, 0.0
    own = parse_budget(own)
    if type(own) is not type(cap):
        raise BudgetError(f"the ledger's cap is {cap}, so a subject's must be {type(cap).__name__}")
    _, most, most_delta = cap_numbers(own)
    return most, most_delta


def cap_of_numbers(most: float, most_delta: float) -> Budget:
    """Return the cap of `most` and `most_delta`, the numbers of a `CapNumbers`."""
    if most_delta == 0:
        return PureDP(most)
    return ApproxDP(most, most_delta) if most_delta > 0 else GaussianDP(math.sqrt(most))


def check_counts(cap: Budget, budget: Budget) -> None:
    """Raise `BudgetError` if a cap cannot count spends of a budget's kind."""
    match cap, budget:
        case (PureDP(), PureDP()) | (ApproxDP(), _) | (GaussianDP(), PureDP() | GaussianDP()):
            return
    raise BudgetError(f"a cap of {cap} cannot count {type(budget).__name__}; a cap of ApproxDP (eps=E,delta=D) can")


def check_kinds(cap: Budget, rows: np.ndarray) -> None:
    """Raise `StoreMismatchError` if a cap in the rows (n, ROW) of subjects is of another kind than the ledger's."""
    marks = np.sign(rows[rows[:, CAP] > 0, CAP_DELTA])
    if np.any(marks != np.sign(cap_numbers(cap).most_delta)):
        raise StoreMismatchError(f"subjects have caps of another kind than the ledger's, which is {cap}")


def spend_numbers(budget: Budget, amounts: np.ndarray | None, n: int) -> np.ndarray:
    """Return what n records add to the four sums of a `Spend`: (n, 4), or (1, 4) if all spend the same.

    As `composition.spend_terms`, for arrays. `amounts` (n,) float64 is the epsilon or mu of each record, NaN for the
    budget's; None if no record has one. Raises `BudgetError` for amounts that are not positive and finite or not n
    numbers.
    """
    values = np.array([amount(budget)] if amounts is None else floats("amounts", amounts))
    if amounts is not None and values.shape != (n,):
        raise BudgetError(f"expected {n} amounts for {n} subjects, got an array of shape {values.shape}")
    values[np.isnan(values)] = amount(budget)
    if not np.all((values > 0) & (values < np.inf)):
        raise BudgetError("amounts must be positive and finite")
    terms = np.zeros((len(values), 4))
    with np.errstate(over="ignore"):  # a square may be infinite: it fits no cap
        match budget:
            case PureDP():
                # mu = -2 Phi^-1(1 / (1 + e^eps)) loses precision near 0. The tangent at 0 is above it.
                mu = np.where(
                    values < 1e-4, np.sqrt(np.pi / 2) * values, -2 * scipy.special.ndtri(scipy.special.expit(-values))
                )
                terms[:, 0], terms[:, 3] = values, mu**2
            case ApproxDP(_, delta):
                terms[:, 0], terms[:, 1], terms[:, 3] = values, delta, np.inf
            case GaussianDP():
                terms[:, 2] = values**2
    return terms
