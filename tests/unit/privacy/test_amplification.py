"""Shuffling: the bound against exact divergences of many randomizers, published values, and attacks."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom

from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.amplification import MOST_USERS, local_budget, pair_delta, shuffled
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some

locals_ = st.floats(0.05, 6)
shares = st.floats(0.02, 0.98)
deltas = st.floats(1e-12, 0.1)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The least delta such that p and q are within (epsilon, delta), in both directions."""
    ratio = math.exp(epsilon)
    return float(max(np.maximum(0, p - ratio * q).sum(), np.maximum(0, q - ratio * p).sum()))


def multisets(rows: list[np.ndarray]) -> dict[tuple[int, ...], float]:
    """The law of how often each value is reported, one report from each of these distributions."""
    law = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        after: dict[tuple[int, ...], float] = defaultdict(float)
        for counts, mass in law.items():
            for value, share in enumerate(row):
                after[(*counts[:value], counts[value] + 1, *counts[value + 1 :])] += mass * share
        law = after
    return law


def exact_delta(first: np.ndarray, second: np.ndarray, others: list[np.ndarray], epsilon: float) -> float:
    """delta(epsilon) of the shuffled reports of one user, of law `first` or `second`, and of the others."""
    p, q = multisets([*others, first]), multisets([*others, second])
    return hockey_stick(np.array([p[k] for k in p]), np.array([q[k] for k in p]), epsilon)


def pair_by_enumeration(local: float, users: int, epsilon: float, clones: float) -> float:
    """D(epsilon) from all values of C, A and Y."""
    yes = 1 / (1 + math.exp(-local))
    p: dict[tuple[int, int], float] = defaultdict(float)
    for c in range(users):
        for a in range(c + 1):
            mass = math.comb(users - 1, c) * clones**c * (1 - clones) ** (users - 1 - c) * math.comb(c, a) * 0.5**c
            p[a + 1, c - a] += mass * yes
            p[a, c - a + 1] += mass * (1 - yes)
    return hockey_stick(np.array([*p.values()]), np.array([p[b, a] for a, b in p]), epsilon)


# --- the pair of distributions


@given(locals_, shares, st.integers(1, 12))
def test_the_pair_is_computed_as_by_enumeration(local: float, share: float, users: int) -> None:
    for clones in (2 / (math.exp(local) + 1), math.exp(-local)):
        exact = pair_by_enumeration(local, users, share * local, clones)
        found = pair_delta(local, users, share * local, 1e-6, clones)
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-6) + 1e-14


def sum_over_all(local: float, users: int, epsilon: float) -> float:
    c = np.arange(users)
    ratio, E = math.exp(epsilon), math.exp(local)
    k = np.floor((c + 1) * (E * ratio - 1) / ((E - 1) * (ratio + 1)))
    terms = (E - ratio) / (E + 1) * binom.pmf(k, c, 0.5) - (ratio - 1) * binom.sf(k, c, 0.5)
    return float(binom.pmf(c, users - 1, 2 / (E + 1)) @ np.maximum(terms, 0))


@pytest.mark.parametrize("users", [100, 1000])
@pytest.mark.parametrize("local", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-4, 0.1])
def test_what_is_cut_off_is_little(users: int, local: float, delta: float) -> None:
    epsilon = shuffled(PureDP(local), users, delta).epsilon
    exact = sum_over_all(local, users, epsilon)
    assert exact <= pair_delta(local, users, epsilon, delta) <= exact * (1 + 1e-6) + 1e-8 * delta


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 2.0])
def test_what_is_cut_off_is_counted(epsilon: float) -> None:
    """Most of a tiny divergence comes from few clones, which are outside the window of a large delta."""
    assert pair_delta(4, 30_000, epsilon, 0.999) >= sum_over_all(4, 30_000, epsilon) > 1e-200


# --- every randomizer is below the bound


@st.composite
def randomizers(draw: st.DrawFn) -> tuple[float, np.ndarray]:
    """A local epsilon and the rows R(x) of a randomizer with three or four records and up to four values.

    This includes randomizers with a value E times likelier for both records in question than for the others, which the
    errata leave out.
    """
    records, values = draw(st.integers(3, 4)), draw(st.integers(2, 4))
    local = draw(st.floats(0.2, 3))
    level = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    cells = st.lists(st.lists(level, min_size=values, max_size=values), min_size=records, max_size=records)
    raw = np.exp(local * np.array(draw(cells)) / 2) * np.array(draw(st.lists(shares, min_size=values, max_size=values)))
    rows = raw / raw.sum(axis=1, keepdims=True)
    ratios = rows.max(axis=0) / rows.min(axis=0)
    assume(ratios.max() > 1.01)
    return float(np.log(ratios.max())) * (1 + 1e-12), rows


@given(randomizers(), shares, st.integers(1, 6), st.data())
@pytest.mark.slow
def test_no_randomizer_is_above_the_bound(
    drawn: tuple[float, np.ndarray], share: float, users: int, data: st.DataObject
) -> None:
    local, rows = drawn
    others = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=users - 1, max_size=users - 1))
    exact = exact_delta(rows[0], rows[1], [rows[i] for i in others], share * local)
    assert exact <= pair_delta(local, users, share * local, 1e-6) + 1e-13


def test_a_randomizer_outside_the_class_of_the_errata() -> None:
    """Two records share values that are E times less likely for the others, as the caps of PrivUnit do."""
    local, users = 1.0, 7
    E = math.e
    for p in (0.02, 0.1, 0.2, 0.25):
        common = 1 - (E + 1) * p
        first = np.array([E * p, p, common, 0])
        other = np.array([p, p, common / E, 1 - 2 * p - common / E])
        first, second = first, first[[1, 0, 2, 3]]
        for epsilon in np.linspace(0.05, 0.95, 10):
            exact = exact_delta(first, second, [other] * (users - 1), epsilon)
            assert exact <= pair_delta(local, users, epsilon, 1e-6)


@pytest.mark.parametrize("local", [0.3, 1.0, 2.0, 4.0])
@pytest.mark.slow
def test_laplace_noise_on_a_grid(local: float) -> None:
    """The noise is clipped, so the ratios of the outermost values are those of the whole tails."""
    weights = np.exp(-local / 3 * np.abs(np.arange(-6, 10)[None, :] - np.arange(4)[:, None]))
    weights[:, 0] += weights[:, 0] / math.expm1(local / 3)
    weights[:, -1] += weights[:, -1] / math.expm1(local / 3)
    fine = weights / weights.sum(axis=1, keepdims=True)
    rows = np.stack([fine[:, :7].sum(1), fine[:, 7], fine[:, 8], fine[:, 9:].sum(1)], axis=1)  # four values remain
    assert rows.max(axis=0) / rows.min(axis=0) == pytest.approx(np.ones(4), abs=math.expm1(local) + 1e-9)
    for others in itertools.combinations_with_replacement(range(4), 5):
        exact = exact_delta(rows[0], rows[3], [rows[i] for i in others], local / 3)
        assert exact <= pair_delta(local, 6, local / 3, 1e-6)


def binary_curve(local: float, users: int, ones: int) -> tuple[np.ndarray, np.ndarray]:
    """The laws of the number of ones reported by randomized response, if `ones` of the other records are one."""
    yes = 1 / (1 + math.exp(-local))
    others = np.convolve(
        binom.pmf(np.arange(ones + 1), ones, yes), binom.pmf(np.arange(users - ones), users - 1 - ones, 1 - yes)
    )
    return np.convolve(others, [1 - yes, yes]), np.convolve(others, [yes, 1 - yes])


@given(locals_, shares, st.integers(1, 12))
def test_binary_randomized_response_is_below_the_bound(local: float, share: float, users: int) -> None:
    for ones in range(users):
        p, q = binary_curve(local, users, ones)
        assert hockey_stick(p, q, share * local) <= pair_delta(local, users, share * local, 1e-6) + 1e-13


def exact_epsilon(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    low, high = 0.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(p, q, middle) <= delta else (middle, high)
    return high


@pytest.mark.parametrize(("local", "share"), [(0.2, 0.93), (0.5, 0.88), (1.0, 0.8), (2.0, 0.7)])
@pytest.mark.parametrize("users", [1000, 10_000])
def test_the_optimal_attack_on_binary_response_comes_close(local: float, share: float, users: int) -> None:
    """It stays below the claim and well above half of the claim, also for other records that are less favourable."""
    claim = shuffled(PureDP(local), users, 1e-6).epsilon
    for ones in (0, users // 2, users - 1):
        p, q = binary_curve(local, users, ones)
        assert share * claim <= exact_epsilon(p, q, 1e-6) <= claim


def many_values_curve(local: float, users: int, values: int) -> np.ndarray:
    """The law of (first, second) counts of many-valued randomized response; all other users have a third record."""
    E = math.exp(local)
    p = 1 / (E + values - 1)
    a, b = np.meshgrid(np.arange(users), np.arange(users), indexing="ij")
    others = binom.pmf(a, users - 1, p) * binom.pmf(b, np.maximum(users - 1 - a, 0), p / (1 - p))
    first = (1 - (E + 1) * p) * np.pad(others, (0, 1))
    first[1:, :-1] += E * p * others
    first[:-1, 1:] += p * others
    return first


@pytest.mark.parametrize("values", [3, 5, 20])
@pytest.mark.parametrize("local", [0.5, 2.0, 4.0])
def test_randomized_response_with_many_values_is_below_the_bound(values: int, local: float) -> None:
    first = many_values_curve(local, 40, values)
    assert first.sum() == pytest.approx(1)
    for epsilon in np.linspace(0.02, 0.98, 13) * local:
        assert hockey_stick(first, first.T, epsilon) <= pair_delta(local, 40, epsilon, 1e-6)


@pytest.mark.parametrize(("local", "share"), [(2.0, 0.93), (3.0, 0.96), (4.0, 0.96)])
@pytest.mark.slow
def test_the_optimal_attack_on_response_with_three_values_is_nearly_the_bound(local: float, share: float) -> None:
    """So a bound with a fifth more clones than 2 / (E + 1) would be wrong."""
    first = many_values_curve(local, 1000, 3)
    claim = shuffled(PureDP(local), 1000, 1e-6).epsilon
    found = exact_epsilon(first, first.T, 1e-6)
    assert share * claim <= found <= claim
    assert pair_delta(local, 1000, found, 1e-6, 2.4 / (math.exp(local) + 1)) < 1e-6


@pytest.mark.slow
def test_an_attack_on_samples_stays_below_the_claim_and_above_half_of_it() -> None:
    """Counts of randomized response. False alarm below 1e-6, by the lower bound."""
    users, local, delta, runs = 200, 1.0, 1e-3, 2_000_000
    rng = np.random.default_rng(1)
    yes = 1 / (1 + math.exp(-local))
    others = rng.binomial(users - 1, 1 - yes, (2, runs))
    mine = rng.random((2, runs)) < np.array([[yes], [1 - yes]])
    found = epsilon_lower_bound(*(others + mine), delta=delta)
    claim = shuffled(PureDP(local), users, delta).epsilon
    assert claim / 2 < found <= claim


# --- published values


def closed_form(local: float, users: int, delta: float) -> float:
    """`closedformanalysis` of the code of "Hiding among the clones", for local <= log(n / (16 log(4 / delta)))."""
    growth = 8 * math.sqrt(math.exp(local) * math.log(4 / delta) / users) + 8 * math.exp(local) / users
    share = -math.expm1(-local) / (1 + math.exp(-local) / (1 + growth))
    return math.log1p(share * growth)


def test_values_of_the_code_of_hiding_among_the_clones() -> None:
    """github.com/apple/ml-shuffling-amplification, README: n = 10^5, epsilon0 = 4, delta = 1e-6."""
    assert closed_form(4, 10**5, 1e-6) == pytest.approx(0.5378040242374512, rel=1e-12)
    clones = math.exp(-4)
    assert pair_delta(4, 10**5, 0.1675385583317841, 1e-6, clones) > 1e-6
    assert pair_delta(4, 10**5, 0.172790550755978, 1e-6, clones) <= 1e-6


@pytest.mark.parametrize("local", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("users", some([10**4, 10**6], 0))
@pytest.mark.parametrize("delta", [1e-4, 1e-8])
@pytest.mark.slow
def test_below_the_bounds_of_2021(local: float, users: int, delta: float) -> None:
    epsilon = shuffled(PureDP(local), users, delta).epsilon
    if epsilon > 1e-9:  # otherwise the local epsilon is returned
        assert pair_delta(local, users, epsilon, delta, math.exp(-local)) > delta
    if local <= math.log(users / (16 * math.log(4 / delta))):
        assert epsilon < closed_form(local, users, delta)


# --- shape


@given(locals_, st.integers(1, 3000), deltas, st.floats(0.01, 3), st.integers(1, 3000))
@pytest.mark.slow
def test_monotone_and_never_above_the_local_epsilon(
    local: float, users: int, delta: float, more: float, join: int
) -> None:
    epsilon = shuffled(PureDP(local), users, delta).epsilon
    slack = 1 + 1e-8
    assert epsilon == local or pair_delta(local, users, epsilon, delta) <= delta
    assert epsilon <= local
    assert epsilon <= shuffled(PureDP(local + more), users, delta).epsilon * slack
    assert shuffled(PureDP(local), users + join, delta).epsilon <= epsilon * slack
    assert shuffled(PureDP(local), users, delta * (1 + more)).epsilon <= epsilon * slack


@given(locals_)
@pytest.mark.slow
def test_one_user_alone_gains_nothing(local: float) -> None:
    """Except for delta: randomized response is (epsilon, delta)-DP from epsilon = log(E - delta (E + 1)) on."""
    E = math.exp(local)
    assert shuffled(PureDP(local), 1, 1e-6).epsilon == pytest.approx(math.log(E - 1e-6 * (E + 1)), rel=1e-7)


@pytest.mark.parametrize(
    ("local", "users", "delta"),
    [
        (1e-9, 10, 1e-3),
        (1e-5, 10**4, 1e-8),
        (1000.0, 10**4, 1e-6),
        (1e300, 10, 0.9),
        (3.0, 100, 1e-300),
        (1.0, 9, 0.99),
    ],
)
def test_extreme_values(local: float, users: int, delta: float) -> None:
    found = shuffled(PureDP(local), users, delta)
    assert 0 < found.epsilon <= local
    assert found.delta == delta
    if local >= 1000 or delta < 1e-290:
        assert found.epsilon == pytest.approx(local, rel=1e-3)


def test_users_past_the_most_are_not_counted() -> None:
    few, many = (shuffled(PureDP(12), n, 1e-6) for n in (MOST_USERS, 10**30))
    assert few == many


# --- the inverse


@given(st.floats(0.01, 4), deltas, st.integers(1, 10_000))
@pytest.mark.slow
def test_the_local_budget_is_private_and_the_largest(epsilon: float, delta: float, users: int) -> None:
    central = ApproxDP(epsilon, delta)
    local = local_budget(central, users).epsilon
    assert local >= epsilon
    if local > epsilon:
        assert pair_delta(local, users, epsilon, delta) <= delta
        assert shuffled(PureDP(local), users, delta).epsilon <= epsilon * (1 + 2e-9)
    assert pair_delta(local * (1 + 1e-8), users, epsilon, delta) > delta


@given(st.floats(0.1, 5), st.integers(2, 10_000))
@pytest.mark.slow
def test_there_and_back(local: float, users: int) -> None:
    assert local_budget(shuffled(PureDP(local), users, 1e-9), users).epsilon == pytest.approx(local, rel=1e-5)


# --- refusals


@pytest.mark.parametrize("budget", [ApproxDP(1, 1e-6), GaussianDP(1), 1.0, None])
def test_refuses_reports_that_are_not_pure(budget: object) -> None:
    with pytest.raises(BudgetError):
        shuffled(budget, 10, 1e-6)


@pytest.mark.parametrize("central", [PureDP(1), GaussianDP(1), 1.0, None])
def test_refuses_central_guarantees_without_delta(central: object) -> None:
    with pytest.raises(BudgetError):
        local_budget(central, 10)


@pytest.mark.parametrize("delta", [0, 1, -1e-6, math.nan, "small"])
def test_refuses_deltas_out_of_range(delta: object) -> None:
    with pytest.raises(BudgetError):
        shuffled(PureDP(1), 10, delta)


@pytest.mark.parametrize("users", [0, -1, 1.5, 10.0, True, None, "10"])
def test_refuses_what_is_no_number_of_users(users: object) -> None:
    with pytest.raises(ConfigError):
        shuffled(PureDP(1), users, 1e-6)
    with pytest.raises(ConfigError):
        local_budget(ApproxDP(1, 1e-6), users)


def test_takes_the_integers_of_numpy() -> None:
    assert shuffled(PureDP(1), np.int64(10), 1e-6) == shuffled(PureDP(1), 10, 1e-6)
