"""Amplification by shuffling: published figures, exact divergences, and attacks on shuffled randomizers."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streamdp import PureDP
from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.mechanisms import PrivUnit, calibrated
from streamdp.privacy.shuffled_reports import shuffled_delta
from streamdp.shuffling import local_epsilon, shuffled_epsilon
from tests.support.audit import epsilon_lower_bound


def exact(epsilon: float, local: float, people: int, clone: float | None = None) -> float:
    """The divergence of the pair, point by point; `clone` is the probability of a clone."""
    clone = math.exp(-local) if clone is None else clone
    clones = np.arange(people)
    c, a = np.meshgrid(clones, np.arange(people + 1), indexing="ij")
    weight = stats.binom.pmf(clones, people - 1, clone)[:, None]
    one, other = stats.binom.pmf(a - 1, c, 0.5), stats.binom.pmf(a, c, 0.5)
    e = math.exp(local)
    p, q = (e * one + other) / (e + 1), (one + e * other) / (e + 1)
    return float((weight * np.maximum(p - math.exp(epsilon) * q, 0)).sum())


def test_published_figures() -> None:
    """A central (1, 1e-6) allows these budgets of a report (issue 60), and they are evaluated otherwise here, too."""
    for people, figure in ((100, 1.30), (1_000, 2.72), (10_000, 4.80)):
        local = local_epsilon(1.0, people, 1e-6)
        assert round(local, 2) == figure
        assert shuffled_epsilon(local, people, 1e-6) == pytest.approx(1, rel=1e-9)
        if people <= 1_000:
            assert exact(1.0, local, people) <= 1e-6 < exact(1.0, local + 1e-6, people)


def test_it_is_the_exact_divergence_rounded_up() -> None:
    for people in (1, 2, 3, 10, 300):
        for local, share in itertools.product((0.1, 1.0, 3.0, 6.0), (0.0, 0.2, 0.5, 0.9)):
            found, true = shuffled_delta(share * local, local, people), exact(share * local, local, people)
            assert true - 1e-20 <= found <= true * (1 + 1e-6) + 1e-12
    clones = np.arange(70_000.0, 78_000)  # 200,000 people have more numbers of clones than cells
    for epsilon in (0.005, 0.01, 0.012):
        weights = stats.binom.pmf(clones, 199_999, math.exp(-1))
        ratio = math.exp(epsilon)
        theta = (math.exp(1 + epsilon) - 1) / ((math.e - 1) * (ratio + 1))
        least = np.floor((clones + 1) * theta)
        p = (math.e * stats.binom.sf(least - 1, clones, 0.5) + stats.binom.sf(least, clones, 0.5)) / (math.e + 1)
        q = (stats.binom.sf(least - 1, clones, 0.5) + math.e * stats.binom.sf(least, clones, 0.5)) / (math.e + 1)
        true = float(weights @ (p - ratio * q))
        assert true <= shuffled_delta(epsilon, 1.0, 200_000) <= true * 1.0001


def histogram(rows: list[Any]) -> dict[tuple[int, ...], float]:
    """The law of how often each outcome is among shuffled reports with these laws."""
    law = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        wider: dict[tuple[int, ...], float] = {}
        for counts, chance in law.items():
            for outcome, part in enumerate(row):
                after = (*counts[:outcome], counts[outcome] + 1, *counts[outcome + 1 :])
                wider[after] = wider.get(after, 0.0) + chance * part
        law = wider
    return law


def divergence(rows: Any, people: int, epsilon: float) -> float:
    """How well reports of row 0 among others of row 2 differ from those of row 1."""
    one, other = (histogram([rows[first]] + [rows[2]] * (people - 1)) for first in (0, 1))
    return sum(max(0.0, chance - math.exp(epsilon) * other[counts]) for counts, chance in one.items())


def test_no_randomizer_tells_more() -> None:
    """Random randomizers with two to four outcomes, and randomized response, which is nearly the worst."""
    rng = np.random.default_rng(1)
    nearest = 0.0
    for draw in range(400):
        outcomes, people = int(rng.integers(2, 5)), int(rng.integers(2, 6))
        rows = rng.dirichlet(np.ones(outcomes)) * np.exp(rng.uniform(0.2, 3) * (rng.random((3, outcomes)) < 0.5))
        if draw % 4 == 0:
            rows = np.array([[1, 0], [0, 1], [0, 1]]) * rng.uniform(1, 20) + 1
        rows /= rows.sum(axis=1, keepdims=True)
        local = float(np.log(rows.max(axis=0) / rows.min(axis=0)).max())
        epsilon = rng.uniform(0, 1) * local
        told = divergence(rows, people, epsilon)
        bound = shuffled_delta(epsilon, local, people)
        assert told <= bound + 1e-12
        nearest = max(nearest, told / max(bound, 1e-6))
    assert nearest > 0.9


def test_the_attack_finds_too_many_clones() -> None:
    """Randomized response of three answers tells less than the bound, and more than one with three times the clones."""
    for local, people, epsilon in ((3.0, 20, 1.5), (4.0, 40, 2.5)):
        rows = (np.exp(local) - 1) * np.eye(3) + 1
        told = divergence(rows / rows.sum(axis=1), people, epsilon)
        bound = shuffled_delta(epsilon, local, people)
        assert 0.5 * bound < told < bound
        assert told > exact(epsilon, local, people, clone=3 * math.exp(-local))


def test_an_attack_on_reports_of_privunit() -> None:
    """20,000 shuffled batches of real reports; the attacker sees how many point its way."""
    people, runs, budget = 5, 20_000, PureDP(2.0)
    mechanism = calibrated(PrivUnit, budget, 1.0, 2.0)
    rng = SeededEntropy(7)
    up, down = np.array([1.0, 0.0]), np.array([-1.0, 0.0])

    def score(first: np.ndarray) -> np.ndarray:
        rows = np.concatenate((np.repeat(first[None], runs, 0), np.repeat(down[None], runs * (people - 1), 0)))
        reports = mechanism.randomize(rows, rng)[:, 0]
        ways: np.ndarray = (reports.reshape(people, runs) > 0).sum(axis=0)
        return ways

    delta = 0.01
    bound = shuffled_epsilon(2.0, people, delta)
    found = epsilon_lower_bound(score(up), score(down), delta)
    assert found <= bound < 2.0
    assert found > 0.3


def test_more_people_and_less_of_a_report_give_more() -> None:
    epsilons = [shuffled_epsilon(2.0, people, 1e-6) for people in (1, 10, 100, 1_000, 10**4, 10**6, 10**9)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] <= 2.0
    assert epsilons[-1] < 1e-3
    reports = (1e-3, 0.5, 1, 2, 4, 8, 40, 100, 1000)
    by_local = [shuffled_epsilon(local, 1_000, 1e-6) for local in reports]
    assert by_local == sorted(by_local)
    assert all(0 <= found <= local for found, local in zip(by_local, reports, strict=True))
    by_delta = [shuffled_epsilon(2.0, 1_000, delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3, 0.5)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert shuffled_epsilon(0.001, 1_000, 0.5) == 0.0
    assert local_epsilon(80.0, 1_000, 1e-6) == 80.0


def test_what_is_out_of_range_is_refused() -> None:
    for function in (shuffled_epsilon, local_epsilon):
        for epsilon in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(BudgetError, match="expected a positive and finite epsilon"):
                function(epsilon, 100, 1e-6)
        for delta in (0.0, 1e-13, 1.0, math.nan):
            with pytest.raises(BudgetError, match="expected a delta from 1e-12"):
                function(1.0, 100, delta)
        with pytest.raises(ConfigError, match="at least one person"):
            function(1.0, 0, 1e-6)
