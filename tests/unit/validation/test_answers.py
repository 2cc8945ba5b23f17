"""The randomised answers: their law, their claim, their mean and their variance."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy, draw
from streamdp.privacy.guarantees import Budget, GaussianDP, PureDP, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.answers import truthful
from streamdp.validation.plan import ERROR
from streamdp.validation.sums import COLUMNS, ERRORS
from streamdp.validation.tasks import Numbers
from streamdp.validation.validator import PROGRESS
from tests.support.sizes import some

TRIALS = 200_000


def keep_of(budget: Budget) -> np.ndarray:
    return truth(budget, np.array([amount(budget)]))


def told(value: float, keep: np.ndarray, seed: int, n: int = TRIALS) -> tuple[float, float]:
    """The mean and the mean square of n answers about a value in [-1, 1]: the error of 0 at 1 + value, at most 2."""
    words, sums = draw(SeededEntropy(seed, 1 << 16), 2 * n).reshape(-1, 2), np.zeros(COLUMNS)
    errors = Numbers(0.5, -9, 9).errors(np.zeros(3), 2.0)
    errors.answer(
        np.full(n, ERROR), np.zeros((n, 1)), np.full(n, 1 + value), keep, words, sums, np.zeros(PROGRESS), np.zeros(3)
    )
    assert not words.any()
    mean, square = sums[ERRORS + 1 : ERRORS + 3] / n
    return mean - 1, square - 2 * mean + 1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0, 1e6])
def test_the_claim_holds_exactly(epsilon: float) -> None:
    """The probabilities of two answers, as the multiples of 2^-53 that they are."""
    t = truthful(keep_of(PureDP(epsilon)).item())
    assert t * 2**53 == round(t * 2**53)
    assert math.log(t) - math.log(1 - t) <= epsilon
    if epsilon < 20:
        assert t == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + 1), rel=1e-12)


@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_ends_have_their_probability_and_louder_and_softer_answers_are_rejected(value: float) -> None:
    """False alarms: 1e-6 for each of the comparisons."""
    keep = keep_of(PureDP(1))
    mean, square = told(value, keep, 5)
    true = round(TRIALS * (1 + value * mean / math.sqrt(square)) / 2)
    assert binomtest(true, TRIALS, float(keep[0])).pvalue > 1e-6
    for epsilon in (0.8, 1.2):
        assert binomtest(true, TRIALS, float(keep_of(PureDP(epsilon))[0])).pvalue < 1e-6


@pytest.mark.parametrize("budget", [PureDP(1), PureDP(4), GaussianDP(1)], ids=str)
@pytest.mark.parametrize("value", some([-1.0, -0.3, 0.0, 0.7], 0, 1))
@pytest.mark.slow
def test_answers_are_unbiased_and_have_the_variance_of_the_text(budget: Budget, value: float) -> None:
    keep = keep_of(budget)
    (mean, square), a = told(value, keep, 11), 1 / (2 * keep[0] - 1)
    assert abs(mean - value) < 5.2 * a / math.sqrt(TRIALS)  # 2e-7
    assert square == pytest.approx(a**2)
    assert {round(abs(told(value, keep, seed, 1)[0]) / a, 9) for seed in range(20)} == {1.0}


def test_the_figures_of_the_text() -> None:
    assert [round(told(0.0, keep_of(PureDP(e)), 1, 1)[1], 2) for e in (1, 4)] == [4.68, 1.08]


@pytest.mark.parametrize("rng", [Entropy(8), SeededEntropy(3, 8), FreshWords()], ids=lambda rng: type(rng).__name__)
def test_no_word_is_drawn_twice_and_all_are_overwritten(rng: Entropy | SeededEntropy | FreshWords) -> None:
    first, second = draw(rng, 30), draw(rng, 5)
    assert len(set(first.tolist()) | set(second.tolist())) == 35
    if not isinstance(rng, FreshWords):
        assert not rng.words[1 : rng.position].any()
        rng.words[rng.position :] = 0  # as if they had been used
        assert draw(rng, 20).all()
