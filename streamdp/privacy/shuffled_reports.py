"""Amplification by shuffling: the central privacy of local reports whose senders and order nobody sees.

Each of n people sends one report, the outcome of one randomizer that is epsilon_0-DP for its own record (pure, replace
one). A shuffler shows the reports in an order that is drawn uniformly, and nothing else.

Neighbours: the record of one of the n people is replaced by any other; n, the randomizer and who takes part are public.
Trust: the shuffler, and that the n people are there and honest. Claim: what is shown is (epsilon, delta)-DP with the
numbers computed here, because the pair of `shuffled_delta` dominates it (Feldman, McMillan, Talwar, "Hiding among the
clones", 2021, Theorem 3.1). Without that trust, the reports are epsilon_0-DP as before.

Proof: docs/proofs/shuffled_reports.md.
"""

import math

import numpy as np
import scipy

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.guarantees import nearest

LEAST_DELTA = 1e-12  # below it, rounding errors of the tails could matter
_MOST_EPSILON = 50.0  # of a report: above it nobody is a clone, and nothing is gained
_CELLS = 2000  # of numbers of clones: up to it each number has its own
_ROUNDING = 1e-9  # relative error of a tail, measured below 1e-11


def _tail(trials: np.ndarray, p: float, least: np.ndarray) -> np.ndarray:
    """The probability that of so many `trials`, each of which succeeds with probability `p`, at least `least` do."""
    inside = np.clip(least, 1, np.maximum(trials, 1))
    tail = scipy.special.betainc(inside, np.maximum(trials, 1) - inside + 1, p)
    return np.where(least <= 0, 1.0, np.where(least > trials, 0.0, tail))


def shuffled_delta(epsilon: float, local_epsilon: float, people: int) -> float:
    """An upper bound on the delta at `epsilon` >= 0 of the shuffled reports of so many `people`.

    The bound is the hockey-stick divergence of (A + D, C + 1 - A - D) and (A + 1 - D, C - A + D), where C is
    Bin(people - 1, e^-epsilon_0), A is Bin(C, 1/2), D is 1 with probability e^epsilon_0 / (e^epsilon_0 + 1), and
    epsilon_0 is `local_epsilon`. Swapping the two numbers exchanges the two laws, so both directions have the same
    divergence. Given C = c, the ratio of the two at (a, b) is (e^epsilon_0 a + b) / (a + e^epsilon_0 b), which grows
    with a: the divergence is a difference of tails. It falls with c, so a cell of numbers is counted as its least one.
    """
    if epsilon >= local_epsilon:
        return 0.0
    if local_epsilon > _MOST_EPSILON:
        return 1.0
    others, small, ratio = people - 1, math.exp(-local_epsilon), math.exp(epsilon)
    middle, spread = others * small, math.sqrt(others * small)
    cells = np.linspace(max(0.0, middle - 9 * spread), min(others, middle + 9 * spread + 60), _CELLS + 1)
    clones = np.unique(np.concatenate(([0.0], np.floor(cells))))  # what is below the cells counts as no clone
    weights = _tail(np.full(len(clones), float(others)), small, clones)
    weights[:-1] -= weights[1:]
    least = np.floor((clones + 1) * (1 - small / ratio) / ((1 - small) * (1 + 1 / ratio))) + 1
    more, fewer = _tail(clones, 0.5, least - 1), _tail(clones, 0.5, least)
    likely, unlikely = (more + small * fewer) / (1 + small), (small * more + fewer) / (1 + small)
    return float(weights @ np.maximum(likely * (1 + _ROUNDING) - ratio * unlikely, 0.0))


def shuffled_epsilon(local_epsilon: float, people: int, delta: float) -> float:
    """The epsilon at `delta` of the shuffled reports of so many `people`, each of which is `local_epsilon`-DP.

    It is never above `local_epsilon`. It holds for pure differential privacy only, when all reports of a shuffle
    answer one question by one randomizer, each with the same budget: a report that names its own hides among its like.
    Raises `BudgetError` if `local_epsilon` is not positive and finite or `delta` not from 1e-12 to 1, `ConfigError` if
    there is nobody.

    >>> round(shuffled_epsilon(2.0, 10_000, 1e-6), 3)
    0.155
    """
    _check(local_epsilon, people, delta)
    if shuffled_delta(0.0, local_epsilon, people) <= delta:
        return 0.0
    return nearest(lambda epsilon: shuffled_delta(epsilon, local_epsilon, people) <= delta, 0.0, local_epsilon)


def local_epsilon(epsilon: float, people: int, delta: float) -> float:
    """The largest epsilon of each report for which the shuffled reports are (`epsilon`, `delta`)-DP together.

    The inverse of `shuffled_epsilon`, with its conditions and errors, among so many `people`. It is at least `epsilon`.

    >>> [round(local_epsilon(1.0, people, 1e-6), 2) for people in (100, 1_000, 10_000)]
    [1.3, 2.72, 4.8]
    """
    _check(epsilon, people, delta)
    if epsilon >= _MOST_EPSILON:
        return epsilon
    return nearest(lambda local: shuffled_delta(epsilon, local, people) <= delta, _MOST_EPSILON + 1, epsilon)


def _check(epsilon: float, people: int, delta: float) -> None:
    if not 0 < epsilon < math.inf:
        raise BudgetError(f"expected a positive and finite epsilon, got {epsilon}")
    if not LEAST_DELTA <= delta < 1:
        raise BudgetError(f"expected a delta from {LEAST_DELTA:g} to below 1, got {delta}")
    if people < 1:
        raise ConfigError(f"expected at least one person whose report is shuffled, got {people}")
