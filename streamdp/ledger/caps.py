"""Caps and spends as numbers for the compiled loop of `admission`.

A privacy filter refuses a record that would take its subject over the cap. `periods` has the caps that renew.

Neighbours: streams that differ in the records of one subject. Trust: the operator can raise a cap at any time
(`Ledger.set_cap`). Claim: the records of a subject that a cap admits have, together, the guarantee that the cap names,
although each amount may depend on everything that was released before. A subject that mixes GaussianDP with the other
kinds under ApproxDP(E, D) would have no filter, so this mix is refused.

Proof, and why there is no Renyi cap: docs/proofs/caps.md.
"""

import math

import numpy as np
import scipy

from streamdp.data.floats import floats
from streamdp.errors import BudgetError, StoreMismatchError
from streamdp.ledger.admission import all_fit
from streamdp.ledger.periods import Cap, budgets_of
from streamdp.ledger.rows import APPROX, CAP, CAP_DELTA, GAUSSIAN, PURE, RECORDS, ROW, CapNumbers
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount, no_budget, parse_budget


def cap_numbers(cap: Budget) -> CapNumbers:
    """Return a cap as numbers."""
    match cap:
        case PureDP(epsilon):
            return CapNumbers(PURE, epsilon, 0.0)
        case ApproxDP(epsilon, delta):
            return CapNumbers(APPROX, epsilon, delta)
        case GaussianDP(mu):
            return CapNumbers(GAUSSIAN, mu * mu, -1.0)
    raise no_budget(cap)


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
                terms[:, 0], terms[:, 3] = values, _pure_mu_squared(values)
            case ApproxDP(_, delta):
                terms[:, 0], terms[:, 1], terms[:, 3] = values, delta, np.inf
            case GaussianDP():
                terms[:, 2] = values**2
            case _:
                raise no_budget(budget)  # zeros would spend nothing
    return terms


def shared_numbers(budget: Budget, numbers: np.ndarray) -> np.ndarray:
    """Return what records add to the four sums, (n, 4) or (1, 4), whose sums share their noise.

    `numbers` (n,): which record of its person each is in its release, from 1. k records of a pure epsilon are one of k
    epsilon, so the k-th adds to the squares of mu what is missing to its mu. Raises `BudgetError` for a second record
    that spends another budget.
    """
    terms = spend_numbers(budget, None, 1)
    if np.all(numbers == 1):
        return terms
    if not isinstance(budget, PureDP):
        raise BudgetError(f"of records that spend {budget}, a release takes one of a person, and not several")
    terms = np.repeat(terms, len(numbers), axis=0)
    before, with_it = (_pure_mu_squared(k * budget.epsilon) for k in (numbers - 1.0, numbers))
    terms[:, 3] = with_it - before
    return terms


def _pure_mu_squared(epsilons: np.ndarray) -> np.ndarray:
    # mu = -2 Phi^-1(1 / (1 + e^eps)) loses precision near 0. The tangent at 0 is above it.
    exact = -2 * scipy.special.ndtri_exp(scipy.special.log_expit(-epsilons))  # e^eps may overflow
    return np.where(epsilons < 1e-4, np.sqrt(np.pi / 2) * epsilons, exact) ** 2


def fits(cap: Cap, spend: Budget, records: int = 1) -> bool:
    """Return whether the first `records` of a person fit a cap. Raises `BudgetError` for a kind it cannot count."""
    row, bounds = np.zeros((1, ROW)), budgets_of(cap)
    row[:, :RECORDS] = records * spend_numbers(spend, None, 1)
    for bound in bounds:
        check_counts(bound, spend)
    return all(all_fit(row, *cap_numbers(bound)) for bound in bounds)
