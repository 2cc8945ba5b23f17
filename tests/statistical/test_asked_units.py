"""The question about a target or a column that a user answers: its probabilities, and an attack on all records."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from streamdp import UserLevelLDPRegressor
from streamdp.errors import ConfigError
from streamdp.estimators.user import randomizer
from streamdp.estimators.user.randomizer import averages, chance_of_truth
from streamdp.privacy.guarantees import ApproxDP, parse_budget
from streamdp.scaling.search import Question, UnitSearch
from streamdp.scaling.units import Units
from tests.support.audit import epsilon_lower_bound, mu_lower_bound
from tests.support.sizes import some

BUDGETS = ["eps=1,delta=1e-6", "eps=1", "mu=1"]
TRIALS = 20_000
HIGH = [({"a": 5.0}, 1e9)]  # neighbours: all records, and how many there are
QUESTIONS = [Question(-np.inf, 0.0, 4, 1), Question(-1.0, 1.0, 7, 0)]  # of the target, and of the column


def half_of(budget: str, **options: Any) -> Any:
    return UserLevelLDPRegressor(features=["a"], target=(-1.0, 1.0), budget=budget, seed=5, **options).randomizer


def asking(half: Any, question: Question) -> Any:
    fields = {name: getattr(half, name) for name in half.__dataclass_fields__}
    return type(half)(**fields | {"question": question})


def bits(half: Any, records: Any) -> np.ndarray:
    return np.array([half(records).answer[0] for _ in range(TRIALS)])


@pytest.mark.parametrize("question", QUESTIONS, ids=["target", "column"])
@pytest.mark.parametrize("budget", some(BUDGETS, 0))
def test_devices_tell_the_truth_with_the_claimed_probability(budget: str, question: Question) -> None:
    """And a tenth more budget would be rejected. Each p-value is below its limit by chance once in 10^6."""
    keep, half = chance_of_truth(parse_budget(budget)), asking(half_of(budget), question)
    true = int(np.count_nonzero(bits(half, [({"a": 0.5}, -0.5)])))
    assert binomtest(true, TRIALS, keep).pvalue > 1e-6
    assert binomtest(true, TRIALS, keep + 0.022).pvalue < 1e-6


@pytest.mark.parametrize("question", some(QUESTIONS, 0), ids=["target", "column"])
@pytest.mark.parametrize("budget", some(BUDGETS, 0))
def test_an_attack_on_all_records_of_a_user_stays_below_the_claim(
    budget: str, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes close to it, and finds more than the claim if the bit is as loud as twice the budget."""

    def found() -> float:
        half = asking(half_of(budget), question)
        a, b = bits(half, [({"a": 0.0}, -1e9)] * 3), bits(half, HIGH)
        agreed = parse_budget(budget)
        delta = agreed.delta if isinstance(agreed, ApproxDP) else 0.0
        return mu_lower_bound(a, b) if budget == "mu=1" else epsilon_lower_bound(a, b, delta)

    assert 0.85 < found() <= 1
    twice = chance_of_truth(parse_budget(budget.replace("=1,", "=2,") if "," in budget else budget.replace("1", "2")))
    monkeypatch.setattr(randomizer, "chance_of_truth", lambda _: twice)
    assert found() > 1.4


def test_the_learner_asks_as_devices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of collected users have the claimed probability, for the same question."""
    answers: list[bool] = []
    monkeypatch.setattr(UnitSearch, "take", lambda self, question, yes: answers.append(yes))
    model = UserLevelLDPRegressor(features=["a"], target=(-1.0, 1.0), items_per_user=1, seed=6)
    model.learn_encoded(np.zeros((TRIALS, 1)), np.full(TRIALS, -0.5))
    keep = chance_of_truth(parse_budget("eps=1"))
    assert len(answers) == TRIALS
    assert binomtest(sum(answers), TRIALS, keep).pvalue > 1e-6
    assert binomtest(sum(answers), TRIALS, keep + 0.022).pvalue < 1e-6


def test_no_question_and_no_user_makes_a_bit_more_certain() -> None:
    """Random users and questions, also those of a hostile learner: the answer depends on one true bit only."""
    rng = np.random.default_rng(7)
    half = half_of("eps=1")
    ends = [-np.inf, np.inf, np.nan, 0.0, 1e300, -5e-324]
    true = asked_for = 0
    for _ in range(2000):
        low, high = rng.choice(ends, 2) if rng.random() < 0.5 else rng.normal(0, 10 ** rng.uniform(-3, 3), 2)
        asked = Question(low, high, int(rng.integers(-5, 10**9)), int(rng.integers(0, 2)))
        x, y = rng.normal(0, 10 ** rng.uniform(-3, 3), (2, rng.integers(1, 9)))
        try:
            device = asking(half, asked)
        except ConfigError:  # before a record is read
            continue
        asked_for += 1
        answer = device([({"a": value}, t) for value, t in zip(x, y, strict=True)]).answer
        assert answer.shape == (1,)
        true += bool(answer[0]) == randomizer.is_within(asked, x[:, None], y, (-1.0, 1.0))
    assert asked_for > 300
    assert binomtest(true, asked_for, chance_of_truth(parse_budget("eps=1"))).pvalue > 1e-6


def test_no_units_of_columns_make_a_report_longer() -> None:
    """Random users, points and hostile units: averages of the compiled gradients keep bound and sensitivity."""
    rng = np.random.default_rng(8)
    device = UserLevelLDPRegressor(features=["a", "b"], items_per_user=4, seed=5).randomizer
    loss, longest, widest = device.loss, 0.0, 0.0
    for _ in range(4000):
        units = np.stack([rng.normal(0, 10 ** rng.uniform(-2, 3), 2), 10 ** rng.uniform(-3, 9, 2)])
        point = rng.normal(0, 10 ** rng.uniform(-3, 3), 4)
        point[-1] = abs(point[-1]) + loss.sigma_min
        found = []
        for _ in range(2):
            n = int(rng.integers(1, 5))
            X, y = rng.normal(0, 10 ** rng.uniform(-2, 4), (n, 2)), rng.normal(0, 10 ** rng.uniform(-2, 6), n)
            Units(units).place_columns(X)
            found.append(averages(device.spec, loss, point, X, y, [n])[0])
        longest = max(longest, *map(np.linalg.norm, found))
        widest = max(widest, float(np.linalg.norm(found[0] - found[1])))
    assert 0.9 * loss.bound < longest <= loss.bound * (1 + 1e-12)
    assert 0.7 * loss.sensitivity < widest <= loss.sensitivity * (1 + 1e-12)
