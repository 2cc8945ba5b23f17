"""The question about a target that a user answers: its probabilities, and an attack on all records of a user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from streamdp import UserLevelLDPRegressor
from streamdp.estimators.user import randomizer
from streamdp.estimators.user.randomizer import chance_of_truth
from streamdp.optim.target_search import Question, TargetSearch
from streamdp.privacy.guarantees import ApproxDP, parse_budget
from tests.support.audit import epsilon_lower_bound, mu_lower_bound

BUDGETS = ["eps=1,delta=1e-6", "eps=1", "mu=1"]
TRIALS = 20_000
LOW, HIGH = [({"a": -9.0}, -1e9)] * 3, [({"a": 5.0}, 1e9)]  # neighbours: all records, and how many there are


def half_of(budget: str, **options: Any) -> Any:
    return UserLevelLDPRegressor(features=["a"], target=(-1.0, 1.0), budget=budget, seed=5, **options).randomizer


def bits(half: Any, records: Any) -> np.ndarray:
    return np.array([half(records).answer[0] for _ in range(TRIALS)])


@pytest.mark.parametrize("budget", BUDGETS)
def test_devices_tell_the_truth_with_the_claimed_probability(budget: str) -> None:
    """And a tenth more budget would be rejected. Each p-value is below its limit by chance once in 10^6."""
    keep, half = chance_of_truth(parse_budget(budget)), half_of(budget)
    true = int(np.count_nonzero(bits(half, LOW)))  # the first question is "below the middle?"
    assert half.question.low == -np.inf
    assert binomtest(true, TRIALS, keep).pvalue > 1e-6
    assert binomtest(true, TRIALS, keep + 0.022).pvalue < 1e-6


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_attack_on_all_records_of_a_user_stays_below_the_claim(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes close to it, and finds more than the claim if the bit is as loud as twice the budget."""

    def found() -> float:
        half = half_of(budget)
        a, b = bits(half, LOW), bits(half, HIGH)
        agreed = parse_budget(budget)
        delta = agreed.delta if isinstance(agreed, ApproxDP) else 0.0
        return mu_lower_bound(a, b) if budget == "mu=1" else epsilon_lower_bound(a, b, delta)

    assert 0.85 < found() <= 1
    twice = chance_of_truth(parse_budget(budget.replace("=1,", "=2,") if "," in budget else budget.replace("1", "2")))
    monkeypatch.setattr(randomizer, "chance_of_truth", lambda _: twice)
    assert found() > 1.4


def test_the_learner_asks_as_devices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of collected users have the claimed probability, for the same question."""
    told: list[bool] = []
    monkeypatch.setattr(TargetSearch, "take", lambda self, question, yes, keep: told.append(yes))
    model = UserLevelLDPRegressor(features=["a"], target=(-1.0, 1.0), items_per_user=1, seed=6)
    model.learn_arrays(np.zeros((TRIALS, 1)), np.full(TRIALS, -0.5))
    keep = chance_of_truth(parse_budget("eps=1"))
    assert len(told) == TRIALS
    assert binomtest(sum(told), TRIALS, keep).pvalue > 1e-6
    assert binomtest(sum(told), TRIALS, keep + 0.022).pvalue < 1e-6


def test_no_question_and_no_user_makes_a_bit_more_certain() -> None:
    """Random users and questions, also those of a hostile learner: the answer depends on one true bit only."""
    rng = np.random.default_rng(7)
    half = half_of("eps=1")
    fields = {name: getattr(half, name) for name in half.__dataclass_fields__}
    ends = [-np.inf, np.inf, np.nan, 0.0, 1e300, -5e-324]
    true = 0
    for _ in range(2000):
        low, high = rng.choice(ends, 2) if rng.random() < 0.5 else rng.normal(0, 10 ** rng.uniform(-3, 3), 2)
        asked = Question(low, high, int(rng.integers(-5, 10**9)))
        y = rng.normal(0, 10 ** rng.uniform(-3, 3), rng.integers(1, 9))
        answer = type(half)(**fields | {"question": asked})([({"a": 0.0}, t) for t in y]).answer
        assert answer.shape == (1,)
        true += bool(answer[0]) == randomizer.is_within(asked, y, (-1.0, 1.0))
    assert binomtest(true, 2000, chance_of_truth(parse_budget("eps=1"))).pvalue > 1e-6
