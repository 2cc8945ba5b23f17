"""The compiled loop that admits spends against a cap. `ledger` states the rules; here they are arithmetic.

A subject's row holds `ROW` float64 numbers: the four sums of a `Spend`, its number of records, and the cap of its own
as (CAP, CAP_DELTA), zeros where it has the ledger's.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

EPSILON, DELTA, MU_SQUARED, PURE_MU_SQUARED, RECORDS, CAP, CAP_DELTA = range(7)
ROW = 7

PURE, APPROX, GAUSSIAN = range(3)
"""The kinds of cap: (PURE, E, 0), (APPROX, E, D), (GAUSSIAN, M squared, -1); the last number tells them apart."""

TOLERANCE = 1e-9
"""Relative slack of every cap: thirty spends of 0.1 sum to 3.0000000000000013 and must fit a cap of 3."""


@njit(cache=True, nogil=True)
def log_ndtr(x: float) -> float:
    """Logarithm of the normal distribution function, to a relative 1e-10 for x <= 0."""
    if x > -25.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    z = 1 / (x * x)  # below, erfc runs out of floats: its asymptotic series, whose next term is under 1e-11
    series = 1 - z * (1 - z * (3 - z * (15 - z * (105 - z * 945))))
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)


@njit(cache=True, nogil=True)
def gdp_delta(mu_squared: float, epsilon: float) -> float:
    """`guarantees.gdp_delta` for the compiled loop: delta of sqrt(mu_squared)-GDP at epsilon >= 0."""
    if mu_squared == math.inf:
        return 1.0
    mu = math.sqrt(mu_squared)
    first = 0.5 * math.erfc((epsilon / mu - mu / 2) / math.sqrt(2.0))
    return max(0.0, first - math.exp(min(0.0, epsilon + log_ndtr(-epsilon / mu - mu / 2))))


@njit(cache=True, nogil=True)
def fits(
    epsilon: float,
    delta: float,
    mu_squared: float,
    pure_mu_squared: float,
    kind: int,
    cap: float,
    cap_delta: float,
) -> bool:
    """Whether these sums stay within the cap; see `ledger.Ledger` for the derivation."""
    slack = 1 + TOLERANCE
    if kind == PURE:
        return epsilon <= cap * slack and delta == 0 and mu_squared == 0
    if kind == GAUSSIAN:
        return mu_squared + pure_mu_squared <= cap * slack * slack and delta == 0
    if mu_squared == 0:
        return epsilon <= cap * slack and delta <= cap_delta * slack
    return epsilon == 0 and delta == 0 and gdp_delta(mu_squared, cap * slack) <= cap_delta * slack


@njit(cache=True, nogil=True)
def admit_in_order(
    slots: np.ndarray,
    terms: np.ndarray,
    rows: np.ndarray,
    touched: np.ndarray,
    kind: int,
    cap: float,
    cap_delta: float,
) -> np.ndarray:
    """Admit record after record; a refused one adds nothing, so that a later smaller one may still fit.

    `slots` (n,) are row numbers, -1 where there is nobody to charge; `terms` (n, 4) or (1, 4) are what each
    record adds; `rows` (m, ROW) and `touched` (m,) change in place. Returns (n,) booleans.
    """
    admitted = np.ones(len(slots), dtype=np.bool_)
    step = 0 if len(terms) == 1 else 1
    for i in range(len(slots)):
        if slots[i] < 0:
            continue
        row, term = rows[slots[i]], terms[i * step]
        epsilon, delta = row[EPSILON] + term[EPSILON], row[DELTA] + term[DELTA]
        mu_squared = row[MU_SQUARED] + term[MU_SQUARED]
        pure_mu_squared = row[PURE_MU_SQUARED] + term[PURE_MU_SQUARED]
        most, most_delta = (row[CAP], row[CAP_DELTA]) if row[CAP] > 0 else (cap, cap_delta)
        if fits(epsilon, delta, mu_squared, pure_mu_squared, kind, most, most_delta):
            row[EPSILON], row[DELTA] = epsilon, delta
            row[MU_SQUARED], row[PURE_MU_SQUARED] = mu_squared, pure_mu_squared
            row[RECORDS] += 1
            touched[slots[i]] = True
        else:
            admitted[i] = False
    return admitted


@njit(cache=True, nogil=True)
def check_words(keys: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The `check_word` (n,) of each row; `keys` (n, 2) and `words` (n, ROW) are uint64 views."""
    out = np.empty(len(words), dtype=np.uint64)
    for i in range(len(words)):
        out[i] = check_word(keys[i], words[i])
    return out


@njit(cache=True, nogil=True)
def check_in_place(which: np.ndarray, keys: np.ndarray, words: np.ndarray, checks: np.ndarray) -> None:
    """The checks of the rows at these places, without a copy of millions of rows."""
    for i in which:
        checks[i] = check_word(keys[i], words[i])


@njit(cache=True, nogil=True)
def check_word(key: np.ndarray, words: np.ndarray) -> np.uint64:
    """A 64-bit check of a row and whose it is, so that a damaged page cannot hand out a new budget unnoticed.

    A cap counts where there is one. Multiply and shift, the mixing step of splitmix64: any one changed bit changes the
    result. It guards against decay, not against a forger, who could as well delete the file.
    """
    mixed = mix(mix(np.uint64(0x9E3779B97F4A7C15), key[0]), key[1])
    for j in range(ROW if words[CAP] != 0 else CAP):
        mixed = mix(mixed, words[j])
    return mixed


@njit(cache=True, nogil=True)
def mix(mixed: np.uint64, word: np.uint64) -> np.uint64:
    """One step of the check."""
    mixed = (mixed ^ word) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))
