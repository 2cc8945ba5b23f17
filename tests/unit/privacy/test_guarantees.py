"""Budgets: text, validation, conversions against independent computations, and composition."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, PrivacyAccountant, dp_event
from dp_accounting.pld import PLDAccountant, common, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from streamdp.errors import BudgetError, NotAvailableError
from streamdp.privacy.composition import Spend, widest
from streamdp.privacy.guarantees import (
    ApproxDP,
    Budget,
    GaussianDP,
    Guarantee,
    PureDP,
    amount,
    gdp_delta,
    parse_budget,
    with_amount,
)

REPLACE_ONE = NeighboringRelation.REPLACE_ONE

numbers = st.floats(1e-6, 1e6)
deltas = st.floats(1e-300, 0.9)
budgets: st.SearchStrategy[Budget] = st.one_of(
    st.builds(PureDP, numbers), st.builds(ApproxDP, numbers, deltas), st.builds(GaussianDP, numbers)
)


def delta_of(budget: Budget) -> float:
    return budget.delta if isinstance(budget, ApproxDP) else 0.0


# --- text


@pytest.mark.parametrize(
    ("text", "budget"),
    [("eps=1", PureDP(1)), ("epsilon=0.25", PureDP(0.25)), (" EPS = 1 ", PureDP(1)),
        ("eps=1,delta=1e-6", ApproxDP(1, 1e-6)), ("delta=1e-6, eps=1", ApproxDP(1, 1e-6)), ("eps=2,delta=0", PureDP(2)),
        ("mu=0.5", GaussianDP(0.5))],
)  # fmt: skip
def test_reads_text(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "eps", "eps=", "eps=one", "eps=1;delta=1e-6", "eps=1,eps=2", "eps=1,epsilon=2", "rho=1"),
        *("eps=0", "eps=-1", "eps=nan", "eps=inf", "mu=0", "mu=-1", "mu=inf", "mu=1,delta=1e-6", "eps=1,mu=1"),
        *("delta=1e-6", "eps=1,delta=1", "eps=1,delta=-1e-6", "eps=1,delta=nan", "eps=1,", ",", "eps==1"),
        *("eps=0_5", "eps=\u0661", "mu=1_0", "eps=1,delta=1_0e-9"),
    ],
)
def test_refuses_other_text(text: str) -> None:
    with pytest.raises(BudgetError):
        parse_budget(text)


@pytest.mark.parametrize("value", [None, 1, 1.0, ("eps", 1), b"eps=1"])
def test_refuses_what_is_not_text(value: object) -> None:
    with pytest.raises(BudgetError):
        parse_budget(value)


@given(budgets)
def test_text_gives_the_same_budget_back(budget: Budget) -> None:
    """If a stored budget became smaller when read, the total spend would be understated."""
    assert parse_budget(str(budget)) == budget


@given(budgets)
def test_what_people_read_is_short_and_promises_no_less(budget: Budget) -> None:
    """A share of a budget was shown as eps=0.19999999999999996."""
    shown = f"{budget}"
    assert len(shown) <= len("eps=1.23457e-300,delta=1.23457e-300")
    for said, exact in zip(astuple(parse_budget(shown)), astuple(budget), strict=True):
        assert exact <= said <= exact * (1 + 1e-5) + 5e-324
    assert f"{PureDP(1 - 0.8)}" == f"{PureDP(0.2)}" == str(PureDP(0.2)) == "eps=0.2"
    assert f"{Guarantee((PureDP(1 - 0.8), GaussianDP(2**0.5)), '', '')}" == "eps=0.2; mu=1.41422"


# --- values


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, -math.inf, "one", None, [1]])
def test_refuses_numbers_out_of_range(bad: object) -> None:
    for make in (PureDP, GaussianDP, lambda v: ApproxDP(v, 1e-6), lambda v: ApproxDP(1, v)):
        with pytest.raises(BudgetError):
            make(bad)


def test_budgets_are_values() -> None:
    assert PureDP(1) == PureDP(1.0)
    assert hash(PureDP(1)) == hash(PureDP(1.0))
    assert PureDP(1) != GaussianDP(1)
    assert PureDP(1) < PureDP(2)
    assert GaussianDP(2) >= GaussianDP(1)
    with pytest.raises(TypeError):
        _ = PureDP(1) < GaussianDP(2)
    with pytest.raises(AttributeError):
        PureDP(1).epsilon = 2


@given(budgets, numbers)
def test_with_amount_changes_only_the_amount(budget: Budget, value: float) -> None:
    other = with_amount(budget, value)
    assert amount(other) == value
    assert type(other) is type(budget)
    assert delta_of(other) == delta_of(budget)


# --- GDP and (epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 0.1269), (2, 0.0209), (3, 0.0015)])
def test_table_of_dong_roth_su(epsilon: float, delta: float) -> None:
    assert round(GaussianDP(1).delta(epsilon), 4) == delta


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0])
@pytest.mark.slow
def test_delta_is_that_of_dp_accounting(mu: float, epsilon: float) -> None:
    oracle = common.get_delta_gaussian(1 / mu, epsilon) if hasattr(common, "get_delta_gaussian") else None
    if oracle is None:
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        oracle = accountant.compose(dp_event.GaussianDpEvent(1 / mu)).get_delta(epsilon)
    assert GaussianDP(mu).delta(epsilon) == pytest.approx(oracle, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
def test_epsilon_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    oracle = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    assert GaussianDP(mu).epsilon(delta) == pytest.approx(oracle.get_epsilon_for_delta(delta), abs=3e-4)


@given(st.floats(1e-2, 20), st.floats(1e-10, 0.3))
def test_epsilon_inverts_delta(mu: float, delta: float) -> None:
    budget = GaussianDP(mu)
    epsilon = budget.epsilon(delta)
    if epsilon > 0:
        assert budget.delta(epsilon) == pytest.approx(delta, rel=1e-5)
    else:
        assert budget.delta(0) <= delta


@given(st.floats(1e-2, 20), st.floats(1e-10, 0.3))
def test_from_approx_is_the_largest_mu(epsilon: float, delta: float) -> None:
    """Its delta is never above the requested one; that of a mu larger by one part in 10^6 is."""
    mu = GaussianDP.from_approx(ApproxDP(epsilon, delta)).mu
    assert gdp_delta(mu, epsilon) <= delta
    assert gdp_delta(mu * (1 + 1e-6), epsilon) > delta


@given(st.floats(1e-3, 50), st.floats(0, 100), st.floats(1e-3, 10))
def test_delta_falls_with_epsilon_and_grows_with_mu(mu: float, epsilon: float, more: float) -> None:
    assert 0 <= gdp_delta(mu, epsilon + more) <= gdp_delta(mu, epsilon) * (1 + 1e-9) + 1e-15 <= 1 + 1e-8
    assert gdp_delta(mu, epsilon) <= gdp_delta(mu + more, epsilon) * (1 + 1e-9) + 1e-15


def test_extreme_values_are_right() -> None:
    assert gdp_delta(50, 0) == pytest.approx(2 * ndtr(25) - 1)
    assert gdp_delta(1e-3, 0) == pytest.approx(2 * ndtr(5e-4) - 1, rel=1e-9)
    assert gdp_delta(1e-3, 1000) == 0.0
    assert gdp_delta(50, 1000) == pytest.approx(1.0, abs=1e-6)
    for mu in (1e-3, 1.0, 50.0):
        for delta in (1e-12, 1e-6, 0.5):
            found = GaussianDP(mu).to_approx(delta)
            assert gdp_delta(mu, found.epsilon) <= delta * (1 + 1e-6)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.5, 0.999])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0, 1000.0])
def test_from_approx_at_extreme_values(epsilon: float, delta: float) -> None:
    mu = GaussianDP.from_approx(ApproxDP(epsilon, delta)).mu
    assert gdp_delta(mu, epsilon) <= delta < gdp_delta(mu * (1 + 1e-6), epsilon)


def test_from_approx_is_safe_where_both_terms_of_delta_are_nearly_the_same() -> None:
    """In doubles the difference is 0 up to mu = 2.96e-12. For small mu, z = epsilon / mu, it is mu phi(z) / z^2."""
    mu = GaussianDP.from_approx(ApproxDP(1e-10, 1e-300)).mu
    z = 1e-10 / mu
    assert math.log(mu) - z**2 / 2 - math.log(2 * math.pi) / 2 - 2 * math.log(z) <= math.log(1e-300)
    with pytest.raises(BudgetError, match="no mu-GDP"):
        GaussianDP.from_approx(ApproxDP(5e-324, 5e-324))


@pytest.mark.parametrize("delta", [0, 1, -0.1, math.nan])
def test_epsilon_refuses_a_delta_out_of_range(delta: float) -> None:
    with pytest.raises(BudgetError):
        GaussianDP(1).to_approx(delta)


# --- pure and GDP


def pure_curve(epsilon: float, level: np.ndarray) -> np.ndarray:
    """The least type II error of a test of this level between two outputs of an epsilon-DP mechanism."""
    return np.maximum(0, np.maximum(1 - math.exp(epsilon) * level, math.exp(-epsilon) * (1 - level)))


def gaussian_curve(mu: float, level: np.ndarray) -> np.ndarray:
    return ndtr(ndtri(1 - level) - mu)


LEVELS = np.concatenate([np.geomspace(1e-12, 0.5, 20_000), 1 - np.geomspace(1e-12, 0.5, 20_000)])


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 2.0, 5.0, 20.0])
def test_from_pure_lies_below_the_pure_curve_and_touches_it(epsilon: float) -> None:
    mu = GaussianDP.from_pure(PureDP(epsilon)).mu
    assert np.all(gaussian_curve(mu, LEVELS) <= pure_curve(epsilon, LEVELS) + 1e-12)
    corner = np.array([1 / (1 + math.exp(epsilon))])
    assert gaussian_curve(mu * 0.999, corner) > pure_curve(epsilon, corner)  # a smaller mu would be a wrong guarantee


def test_from_pure_at_extreme_values() -> None:
    """The corner's level at epsilon = 1000 is e^-1000, below the smallest double; its quantile is a normal number."""
    assert GaussianDP.from_pure(PureDP(1e-3)).mu == pytest.approx(1e-3 * math.sqrt(2 * math.pi) / 2, rel=1e-5)
    assert GaussianDP.from_pure(PureDP(30)).mu == pytest.approx(-2 * ndtri(math.exp(-30)), rel=1e-9)
    # Mills: log Phi(-z) = -z^2/2 - log(z sqrt(2 pi)) - 1/z^2 + ...
    z = GaussianDP.from_pure(PureDP(1000)).mu / 2
    assert z**2 / 2 + math.log(z * math.sqrt(2 * math.pi)) + 1 / z**2 == pytest.approx(1000, abs=1e-4)


# --- spends of one subject


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=10))
def test_pure_spends_add(epsilons: list[float]) -> None:
    total = Spend.of(map(PureDP, epsilons))
    assert total.guarantee() == PureDP(total.epsilon)
    assert total.epsilon == pytest.approx(sum(epsilons))
    assert total.records == len(epsilons)


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=10))
def test_squares_of_mu_add(mus: list[float]) -> None:
    found = Spend.of(map(GaussianDP, mus)).guarantee()
    assert isinstance(found, GaussianDP)
    assert found.mu == pytest.approx(math.hypot(*mus))


def test_approximate_spends_add_both() -> None:
    found = Spend.of([ApproxDP(1, 1e-6), ApproxDP(0.5, 2e-6), PureDP(2)]).guarantee()
    assert isinstance(found, ApproxDP)
    assert (found.epsilon, found.delta) == (3.5, pytest.approx(3e-6))


def test_nothing_spent_is_no_guarantee() -> None:
    assert Spend().guarantee() is None


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 1.0), (0.5, 0.2), (2.0, 3.0), (3.0, 0.5), (0.1, 2.0)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_mixed_spends_by_another_route(epsilon: float, mu: float, delta: float) -> None:
    """delta of randomized response with a Gaussian: condition on the response, whose loss is eps or -eps."""
    found = Spend.of([PureDP(epsilon), GaussianDP(mu)]).guarantee(delta)
    assert isinstance(found, ApproxDP)
    assert found.delta == delta
    yes = 1 / (1 + math.exp(-epsilon))

    def exact(total: float) -> float:
        def gaussian(e: float) -> float:  # also for e < 0: sup over events of P - e^e Q
            return float(ndtr(-e / mu + mu / 2) - math.exp(e) * ndtr(-e / mu - mu / 2))

        return yes * gaussian(total - epsilon) + (1 - yes) * gaussian(total + epsilon)

    assert exact(found.epsilon) <= delta
    assert exact(found.epsilon - 0.01) > delta


@pytest.mark.parametrize(("epsilon", "mu"), [(50.0, 10.0), (51.0, 1.0), (1e6, 1e3), (1e-6, 1e6)])
def test_mixed_spends_of_any_size_have_a_total(epsilon: float, mu: float) -> None:
    found = Spend.of([PureDP(epsilon), GaussianDP(mu)]).guarantee(1e-6)
    assert isinstance(found, ApproxDP)
    basic = epsilon + GaussianDP(mu).epsilon(1e-6)
    assert max(epsilon, GaussianDP(mu).epsilon(1e-6)) * (1 - 1e-9) <= found.epsilon <= basic


def test_mixed_spends_take_the_delta_already_spent_off() -> None:
    spend = Spend.of([ApproxDP(1, 1e-6), GaussianDP(1)])
    with pytest.raises(BudgetError):
        spend.guarantee(1e-6)
    more, less = spend.guarantee(1e-5), spend.guarantee(1.1e-6)
    assert isinstance(more, ApproxDP)
    assert isinstance(less, ApproxDP)
    assert more.epsilon < less.epsilon
    assert less.epsilon >= GaussianDP(1).epsilon(1e-7)


def test_gdp_view_of_pure_spends() -> None:
    """A GDP cap charges mu^2 of the conversion of each pure record; (epsilon, delta) implies no GDP."""
    spend = Spend.of([PureDP(1), PureDP(1), GaussianDP(2)])
    assert spend.pure_mu_squared == pytest.approx(2 * GaussianDP.from_pure(PureDP(1)).mu ** 2)
    assert spend.mu_squared == pytest.approx(4)
    assert Spend.of([ApproxDP(1, 1e-6)]).pure_mu_squared == math.inf


def test_a_huge_epsilon_can_be_spent() -> None:
    assert Spend.of([PureDP(1000)]).guarantee() == PureDP(1000)


def test_a_spend_refuses_what_is_no_budget() -> None:
    with pytest.raises(BudgetError):
        Spend() + 1.0


# --- disjoint records


@given(st.lists(budgets, max_size=8))
def test_widest_covers_each_and_invents_nothing(found: list[Budget]) -> None:
    wide = widest(found)
    assert len(wide) == len({type(b) for b in found})
    for budget in found:
        (same,) = [w for w in wide if type(w) is type(budget)]
        assert amount(same) >= amount(budget)
        assert delta_of(same) >= delta_of(budget)
    for same in wide:
        assert amount(same) in [amount(b) for b in found if type(b) is type(same)]
    assert widest(reversed(found)) == wide == widest(wide)


def test_a_guarantee_that_is_not_private_promises_nothing() -> None:
    assert str(Guarantee((PureDP(1),), "one record", "nobody", private=False)) == "not private"
    assert str(Guarantee((), "one record", "nobody")) == "nothing spent"
    assert str(Guarantee((PureDP(1), GaussianDP(2)), "one record", "nobody")) == "eps=1; mu=2"


# --- events for dp-accounting


def of(*budgets: Budget, private: bool = True) -> Guarantee:
    return Guarantee(budgets, "one record", "nobody", private)


def pld(relation: NeighboringRelation) -> PLDAccountant:
    return PLDAccountant(neighboring_relation=relation, value_discretization_interval=1e-3)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
def test_accountants_read_the_event_of_pure_dp(epsilon: float, delta: float) -> None:
    """(epsilon, 0)-DP is (e, delta)-DP from e = log(e^epsilon - delta (1 + e^epsilon)) on, and no earlier."""
    event = of(PureDP(epsilon)).dp_event()
    exact = math.log(max(1.0, math.exp(epsilon) - delta * (1 + math.exp(epsilon))))
    assert pld(REPLACE_ONE).compose(event).get_epsilon(delta) == pytest.approx(exact, abs=2e-3)
    thrice = dp_event.ComposedDpEvent([event] * 3)  # PLDAccountant 0.6.0 ignores the count of this event
    assert pld(REPLACE_ONE).compose(thrice).get_epsilon(0.0) == pytest.approx(3 * epsilon, abs=6e-3)
    if delta:
        assert RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(delta) >= exact


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
@pytest.mark.slow
def test_accountants_read_the_event_of_gdp(mu: float, delta: float) -> None:
    event, exact = of(GaussianDP(mu)).dp_event(), GaussianDP(mu).epsilon(delta)
    assert pld(NeighboringRelation.REPLACE_SPECIAL).compose(event).get_epsilon(delta) == pytest.approx(exact, abs=3e-3)
    doubled = pld(REPLACE_ONE).compose(event).get_epsilon(delta)
    assert doubled == pytest.approx(GaussianDP(2 * mu).epsilon(delta), abs=3e-3)
    renyi = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(delta)
    # the standard conversion from the Renyi divergences alpha mu^2 / 2, which the accountant improves on
    assert exact <= renyi <= mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-9


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("accountant", [PLDAccountant, RdpAccountant])
@pytest.mark.slow
def test_no_accountant_understates_gdp(accountant: type[PrivacyAccountant], relation: NeighboringRelation) -> None:
    event = of(GaussianDP(1)).dp_event()
    assert accountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5) >= GaussianDP(1).epsilon(1e-5)


@pytest.mark.parametrize("accountant", [PLDAccountant, RdpAccountant])
def test_several_budgets_are_composed(accountant: type[PrivacyAccountant]) -> None:
    event = of(PureDP(1), GaussianDP(0.5)).dp_event()
    assert isinstance(event, dp_event.ComposedDpEvent)
    found = accountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-5)
    exact = Spend.of([PureDP(1), GaussianDP(0.5)]).guarantee(1e-5)
    assert isinstance(exact, ApproxDP)
    assert exact.epsilon - 0.01 <= found <= 1 + GaussianDP(1).epsilon(1e-5) + 0.01


@pytest.mark.parametrize("accountant", [PLDAccountant, RdpAccountant])
def test_what_is_not_private_has_no_epsilon(accountant: type[PrivacyAccountant]) -> None:
    event = of(PureDP(1), private=False).dp_event()
    assert accountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-5) == math.inf
    assert accountant(neighboring_relation=REPLACE_ONE).compose(of().dp_event()).get_epsilon(1e-5) == 0


@pytest.mark.parametrize("epsilon", [700.0, 2.0**20])
def test_an_event_of_a_huge_epsilon_promises_no_more(epsilon: float) -> None:
    accountant = PLDAccountant(neighboring_relation=REPLACE_ONE, value_discretization_interval=1.0)
    assert accountant.compose(of(PureDP(epsilon)).dp_event()).get_epsilon(0.0) >= epsilon


def test_approximate_dp_has_no_event() -> None:
    with pytest.raises(NotAvailableError):
        of(PureDP(1), ApproxDP(1, 1e-6)).dp_event()
