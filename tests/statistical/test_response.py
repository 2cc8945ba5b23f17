"""Randomised response, and the bits that learners ask for: the right probability, and attacks on neighbours."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.estimators.ldp.randomizer import Answer, Randomizer
from streamdp.privacy import samplers
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.scaling import location_scale as ls
from streamdp.scaling import pair_bits
from streamdp.scaling import unit_table as k
from tests.support.states import arrays_of, units_of

TRIALS = 400_000
BUDGETS = [PureDP(1), PureDP(0.25), ApproxDP(2, 1e-6), GaussianDP(1), GaussianDP(2.5)]
each = pytest.mark.parametrize("budget", BUDGETS, ids=str)


def expected(budget: Budget) -> float:
    return float(norm.cdf(budget.mu / 2)) if isinstance(budget, GaussianDP) else 1 / (1 + math.exp(-amount(budget)))


def answers(bit: bool, keep: float, seed: int) -> np.ndarray:
    rng, out = SeededEntropy(seed, 1 << 16), np.empty(TRIALS, dtype=bool)
    for i in range(TRIALS):
        while (told := samplers.respond(bit, keep, rng.words)) < 0:
            rng.refill()
        out[i] = told
    return out


@each
def test_the_probability_of_the_truth(budget: Budget) -> None:
    """It is that of the formula, and that of a tenth more budget would be rejected."""
    keep = float(truth(budget, np.array([amount(budget)]))[0])
    assert keep == pytest.approx(expected(budget), rel=1e-12)
    assert keep <= expected(budget)
    for bit in (False, True):
        true = int(np.count_nonzero(answers(bit, keep, 7 + bit) == bit))
        assert binomtest(true, TRIALS, keep).pvalue > 1e-6
        wrong = float(truth(budget, np.array([1.1 * amount(budget)]))[0])
        assert binomtest(true, TRIALS, wrong).pvalue < 1e-6


@each
def test_the_claim_holds_exactly(budget: Budget) -> None:
    """The two probabilities of each answer, against the definition of the guarantee."""
    p = float(truth(budget, np.array([amount(budget)]))[0])
    if isinstance(budget, GaussianDP):
        for threshold in np.linspace(0, 1, 101):  # the trade-off of randomised response, and that of mu-GDP
            missed = 1 - threshold * p / (1 - p) if threshold <= 1 - p else (1 - threshold) * (1 - p) / p
            least = norm.cdf(norm.ppf(1 - threshold) - budget.mu)
            assert missed >= least - 1e-12
    else:
        assert math.log(p / (1 - p)) <= amount(budget)


def test_a_certain_answer_is_never_given() -> None:
    for budget in (PureDP(1.0), GaussianDP(1.0)):
        keep = truth(budget, np.array([2.0**-20, 1.0, 2.0**20]))
        assert np.all((keep >= 0.5) & (keep < 1))


def asked(estimator: str, budget: str, rows: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
    """Shares (2, 2) of the answers "no" and "yes" of two records that answer a question differently (`learn_encoded`).

    Neighbouring streams: one record, which is asked about its target, column, class, tail, or pair of columns.
    """
    features = {"a": (-1, 1)}
    if estimator == "target":
        model: LDPASGDRegressor | LDPASGDClassifier
        model = LDPASGDRegressor(features=features, target=(-1, 1), budget=budget, seed=5)
    else:
        model = LDPASGDClassifier(features=features, budget=budget, seed=5)
        units_of(model).progress[k.REACHED] = 31.0  # as after some records: a bit is due
    if estimator in ("column", "tail"):
        units_of(model).progress[k.TOTAL] = 1e-9  # no bit about the class
    if estimator == "pair":
        units_of(model).progress[[k.ASKED, k.TOTAL]] = 1.0, k.SHORTEST  # no bit about the column alone
    if estimator == "tail":
        units_of(model).posterior[0] = -80.0
        units_of(model).posterior[0, 0, 0] = 0.0  # nearly all values are known to lie at the lower bound
        k.refresh(units_of(model))
    if rows is not None:
        model.learner.default_rows = rows(model.learner.default_rows)
    start = [array.copy() for array in arrays_of(model)]
    seen = np.zeros((2, 2))
    for side, value in enumerate((-1.0, 1.0)):
        for _ in range(2000):
            for array, before in zip(arrays_of(model), start, strict=True):
                array[:] = before
            target = value if estimator == "target" else float(side) if estimator == "class" else 0.0
            model.learn_encoded(np.full((1, 1), value), np.array([target]))
            assert model.n_asked + model.n_paired == 1
            pair, mean = (units_of(model).pairs[0, pair_bits.SUM], units_of(model).summary[-1, ls.MEAN])
            found = {
                "pair": pair,
                "tail": units_of(model).tail_evidence[0, 0],
                "class": -units_of(model).progress[k.CLASS],
            }
            told = found.get(estimator, mean)
            assert told != 0
            seen[side, int(told < 0)] += 1  # its sign tells the answer
    return seen / seen.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("estimator", ["target", "column", "class", "pair", "tail"])
def test_a_question_keeps_the_claim_and_a_louder_bit_does_not(estimator: str) -> None:
    shares = asked(estimator, "eps=1")
    found = max(abs(np.log(shares[0] / shares[1])))
    assert 0.85 < found < 1.15  # the ratio is e^1, up to the error of the shares

    def louder(rows: np.ndarray) -> np.ndarray:
        broken = rows.copy()
        broken[:, samplers.KEEP] = 1 / (1 + math.exp(-2))
        return broken

    shares = asked(estimator, "eps=1", louder)
    assert max(abs(np.log(shares[0] / shares[1]))) > 1.5


def test_a_device_answers_the_question_of_its_learner_and_keeps_the_claim() -> None:
    learner = LDPASGDRegressor(features={"a": (0, 10), "c": ["u", "v"]}, target=(0, 100))
    first = learner.randomizer
    assert first.question.bit.column == 2
    found = np.zeros(2)
    for side, y in enumerate((0.0, 100.0)):
        yes = 0
        for _ in range(20_000):
            answer = first({"a": 3, "c": "v"}, y)
            assert isinstance(answer, Answer)
            yes += answer.yes
        found[side] = yes / 20_000
    assert abs(np.log(found[0] / found[1])) == pytest.approx(1, abs=0.1)
    kinds = set()
    for _ in range(1500):
        report = learner.randomizer({"a": 3, "c": "v"}, 40.0)
        kinds.add((type(report).__name__, report.question.column if isinstance(report, Answer) else None))
        learner.absorb(report)
    assert kinds == {("Answer", 2), ("Answer", 0), ("Report", None)}
    assert learner.n_seen == 1500
    assert isinstance(learner.randomizer, Randomizer)
