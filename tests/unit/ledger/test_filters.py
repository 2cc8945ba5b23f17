"""Caps hold against an adversary that chooses each spend by the last outcome; a known mix of kinds would not."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

from streamdp import ApproxDP, GaussianDP, Ledger, PureDP
from streamdp.errors import BudgetError
from streamdp.ledger.caps import fits
from streamdp.ledger.periods import parse_cap
from streamdp.privacy.guarantees import gdp_delta, parse_budget

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()

Delta = Callable[[np.ndarray], np.ndarray]
"""The delta of the remaining mechanisms, at an epsilon that may be negative."""


def nothing(epsilon: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, -np.expm1(epsilon))


def gaussian(mu: float) -> Delta:
    return lambda e: ndtr(-e / mu + mu / 2) - np.exp(e) * ndtr(-e / mu - mu / 2)


def pure(epsilon: float) -> Delta:
    """Randomized response, the worst case (Kairouz, Oh, Viswanath 2015)."""
    yes = 1 / (1 + np.exp(-epsilon))
    return lambda e: np.maximum(0, yes - np.exp(e) * (1 - yes)) + np.maximum(0, 1 - yes - np.exp(e) * yes)


def after_gaussian(mu: float, then: Delta) -> Delta:
    """A Gaussian mechanism with the loss N(mu^2/2, mu^2), then the best choice for an adversary that sees the loss."""
    losses = mu * mu / 2 + mu * NODES
    return lambda e: then(np.asarray(e)[..., None] - losses) @ WEIGHTS


def after_pure(epsilon: float, then: Delta) -> Delta:
    yes = 1 / (1 + np.exp(-epsilon))
    return lambda e: yes * then(e - epsilon) + (1 - yes) * then(e + epsilon)


def best(*choices: Delta) -> Delta:
    return lambda e: np.max([choice(e) for choice in choices], axis=0)


def as_pure(mu_squared: float) -> float:
    """The epsilon of a PureDP spend that counts as this mu squared."""
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if GaussianDP.from_pure(PureDP(middle)).mu ** 2 <= mu_squared else (low, middle)
    return low


def adversary(left: float, moves: int) -> Delta:
    """Spends `left` of mu squared in this many moves, each Gaussian or pure, or stops."""
    if moves == 1:
        return best(nothing, gaussian(left**0.5), pure(as_pure(left)))
    choices = [nothing]
    for share in (0.2, 0.5, 0.8):
        then = adversary(left * (1 - share), moves - 1)
        choices += [after_gaussian((share * left) ** 0.5, then), after_pure(as_pure(share * left), then)]
    return best(*choices)


@pytest.mark.parametrize("cap", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_gaussian_cap_is_a_filter(cap: float, moves: int) -> None:
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 3.0])
    most = [gdp_delta(cap, epsilon) for epsilon in epsilons]
    assert np.all(adversary(cap**2, moves)(epsilons) <= np.array(most) * (1 + 1e-3) + 1e-7)  # quadrature at a kink


def most(fits: Callable[[float], bool]) -> float:
    low, high = 1e-6, 100.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def test_an_approx_cap_would_be_no_filter_if_kinds_were_mixed_by_outcomes() -> None:
    """As `caps` says: each choice after a Gaussian spend stays within delta; a choice by the outcome exceeds it."""
    epsilon, delta, first = 1.0, 0.01, 0.25
    some_mu = gaussian(most(lambda mu: gdp_delta((first**2 + mu**2) ** 0.5, epsilon) <= delta))
    some_epsilon = pure(most(lambda pure: pure <= epsilon and gdp_delta(first, epsilon - pure) <= delta))
    for then in (some_mu, some_epsilon):
        assert after_gaussian(first, then)(epsilon) < 1.001 * delta
    assert after_gaussian(first, best(some_mu, some_epsilon))(epsilon) > 1.03 * delta
    cap = ApproxDP(epsilon, delta)
    ledger = Ledger(cap)
    assert ledger.admit("ann", GaussianDP(first))
    assert not ledger.admit("ann", PureDP(1e-9))
    left = GaussianDP.from_approx(cap).mu ** 2 - first**2  # of the cap that counts both kinds
    assert after_gaussian(first, best(gaussian(left**0.5), pure(as_pure(left))))(epsilon) <= 1.001 * delta


def basic(epsilon: float, delta: float) -> Delta:
    """The worst (epsilon, delta)-DP mechanism: it shows all with probability delta, else randomized response."""
    return lambda e: delta + (1 - delta) * pure(epsilon)(e)


def after_approx(epsilon: float, delta: float, then: Delta) -> Delta:
    return lambda e: delta + (1 - delta) * after_pure(epsilon, then)(e)


def approx_adversary(epsilon: float, delta: float, moves: int) -> Delta:
    """Spends epsilon and delta in this many moves, or stops."""
    if moves == 1:
        return best(nothing, basic(epsilon, delta))
    choices = [nothing]
    for share in (0.0, 0.2, 0.5, 0.8):
        for part in (0.0, 0.5, 1.0):
            then = approx_adversary(epsilon * (1 - share), delta * (1 - part), moves - 1)
            choices.append(after_approx(share * epsilon, part * delta, then))
    return best(*choices)


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_an_approx_cap_is_a_filter_for_either_of_its_kinds(moves: int) -> None:
    """For either first spend, later spends are chosen by outcomes, and the total is at most delta."""
    for epsilon, delta in ((0.5, 0.01), (1.0, 1e-4), (2.0, 0.05)):
        either = best(approx_adversary(epsilon, delta, moves), adversary_of_gaussians(epsilon, delta, moves))
        assert delta * 0.999 <= either(np.asarray(epsilon)) <= delta * 1.001 + 1e-7


def adversary_of_gaussians(epsilon: float, delta: float, moves: int) -> Delta:
    def spend(left: float, moves: int) -> Delta:
        if moves == 1:
            return best(nothing, gaussian(left**0.5))
        then = [after_gaussian((s * left) ** 0.5, spend(left * (1 - s), moves - 1)) for s in (0.2, 0.5, 0.8)]
        return best(nothing, *then)

    return spend(GaussianDP.from_approx(ApproxDP(epsilon, delta)).mu ** 2, moves)


def test_spends_chosen_by_releases_end_at_the_cap() -> None:
    """The admitted spends reach the cap and do not exceed it, for amounts that depend on releases."""
    rng = np.random.default_rng(5)
    for cap, kind in ((PureDP(2), PureDP), (GaussianDP(2), GaussianDP), (ApproxDP(2, 1e-6), GaussianDP)):
        ledger, answers = Ledger(cap), 0.0
        for _ in range(400):
            amount = min(0.2, abs(answers) / 10 + 1e-3)
            if ledger.admit("ann", kind(amount)):
                answers += rng.normal(0, 1 / amount) / 100
        total = ledger.spent("ann")
        most = cap if not isinstance(cap, ApproxDP) else GaussianDP.from_approx(cap)
        reached = total.epsilon / 2 if kind is PureDP else total.mu_squared**0.5 / most.mu
        assert ledger.n_refused > 0
        assert 0.7 < reached <= 1 + 2e-9


CAPS = ["eps=1", "eps=1,delta=1e-6", "mu=1", "eps=1 per 1 day, total eps=2", "mu=2 per 1 day, total mu=1"]
SPENDS = ["eps=0.9999999999", "eps=1.1", "eps=1,delta=1e-6", "eps=1,delta=2e-6", "mu=0.1", "mu=1", "mu=1.1"]


@pytest.mark.parametrize("cap", CAPS)
def test_a_record_fits_a_cap_if_a_ledger_admits_it(cap: str) -> None:
    for spend in map(parse_budget, SPENDS):
        with Ledger(cap) as ledger:
            try:
                expected = ledger.admit("ann", spend)
            except BudgetError as error:
                with pytest.raises(BudgetError, match=re.escape(str(error))):
                    fits(parse_cap(cap), spend)
                continue
        assert fits(parse_cap(cap), spend) == expected
