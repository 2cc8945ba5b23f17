"""The compiled loop that admits spends against caps. `ledger.Ledger` states the rules; this is their arithmetic."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamdp.ledger.rows import (
    CAP,
    CAP_DELTA,
    DELTA,
    EPSILON,
    GAUSSIAN,
    MU_SQUARED,
    PURE,
    PURE_MU_SQUARED,
    RECORDS,
    CapNumbers,
    Sums,
)

TOLERANCE = 1e-9
"""Relative slack of every cap: thirty spends of 0.1 sum to 3.0000000000000013 and must fit a cap of 3."""


@njit(cache=True, nogil=True)
def _log_ndtr(x: float) -> float:
    """Logarithm of the normal distribution function, with a relative error of 1e-10 for x <= 0."""
    if x > -25.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    # Further out, erfc underflows. Its asymptotic series, of which the next term is below 1e-11.
    z = 1 / (x * x)
    series = 1 - z * (1 - z * (3 - z * (15 - z * (105 - z * 945))))
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)


@njit(cache=True, nogil=True)
def gdp_delta(mu_squared: float, epsilon: float) -> float:
    """Return the delta of sqrt(mu_squared)-GDP at epsilon: `guarantees.gdp_delta` for compiled code.

    Source: Corollary 1, Dong, Roth, Su 2022.

    Parameters
    ----------
    mu_squared
        Positive; infinite gives 1.
    epsilon
        At least 0.
    """
    if mu_squared == math.inf:
        return 1.0
    mu = math.sqrt(mu_squared)
    first = 0.5 * math.erfc((epsilon / mu - mu / 2) / math.sqrt(2.0))
    return max(0.0, first - math.exp(min(0.0, epsilon + _log_ndtr(-epsilon / mu - mu / 2))))


@njit(cache=True, nogil=True)
def _fits(sums: Sums, cap: CapNumbers) -> bool:
    """Whether these sums stay within the cap; `caps` has the proofs."""
    slack = 1 + TOLERANCE
    if cap.kind == PURE:
        return sums.epsilon <= cap.most * slack and sums.delta == 0 and sums.mu_squared == 0
    if cap.kind == GAUSSIAN:
        return sums.mu_squared + sums.pure_mu_squared <= cap.most * slack * slack and sums.delta == 0
    if sums.mu_squared == 0:
        return sums.epsilon <= cap.most * slack and sums.delta <= cap.most_delta * slack
    alone = sums.epsilon == 0 and sums.delta == 0
    return alone and gdp_delta(sums.mu_squared, cap.most * slack) <= cap.most_delta * slack


@njit(cache=True, nogil=True)
def _cap_of(row: np.ndarray, kind: int, most: float, most_delta: float) -> CapNumbers:
    """The cap of a subject: its own, or the ledger's."""
    own = row[CAP] > 0
    return CapNumbers(kind, row[CAP] if own else most, row[CAP_DELTA] if own else most_delta)


@njit(cache=True, nogil=True)
def all_fit(rows: np.ndarray, kind: int, most: float, most_delta: float) -> bool:
    """Whether no subject is over its cap.

    Parameters
    ----------
    rows
        (m, ROW).
    kind, most, most_delta
        The ledger's cap, as the fields of a `CapNumbers`.
    """
    for i in range(len(rows)):
        row = rows[i]
        sums = Sums(row[EPSILON], row[DELTA], row[MU_SQUARED], row[PURE_MU_SQUARED])
        if not _fits(sums, _cap_of(row, kind, most, most_delta)):
            return False
    return True


@njit(cache=True, nogil=True)
def admit_in_order(
    slots: np.ndarray,
    terms: np.ndarray,
    rows: np.ndarray,
    pending: np.ndarray,
    kind: int,
    most: float,
    most_delta: float,
) -> np.ndarray:
    """Admit records in order; a refused record adds nothing, so that a later, smaller one may still fit.

    Returns (n,) bool.

    Parameters
    ----------
    slots
        (n,) int64, the row of each record's subject; -1 for a record without a subject, which is admitted.
    terms
        (n, 4), or (1, 4) if all records spend the same: what each record adds to the four sums.
    rows
        (m, ROW). Changed in place.
    pending
        (m,) bool. Set for the rows that change.
    kind, most, most_delta
        The ledger's cap, as the fields of a `CapNumbers`. They are scalars because a call with a tuple costs 5 us more.
    """
    admitted = np.ones(len(slots), dtype=np.bool_)
    step = 0 if len(terms) == 1 else 1
    for i in range(len(slots)):
        if slots[i] < 0:
            continue
        row, term = rows[slots[i]], terms[i * step]
        after = Sums(
            row[EPSILON] + term[EPSILON],
            row[DELTA] + term[DELTA],
            row[MU_SQUARED] + term[MU_SQUARED],
            row[PURE_MU_SQUARED] + term[PURE_MU_SQUARED],
        )
        if _fits(after, _cap_of(row, kind, most, most_delta)):
            row[EPSILON], row[DELTA], row[MU_SQUARED], row[PURE_MU_SQUARED] = after
            row[RECORDS] += 1
            pending[slots[i]] = True
        else:
            admitted[i] = False
    return admitted
