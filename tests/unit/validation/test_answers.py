"""The randomised answers: their law, their claim, their mean and their variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget, GaussianDP, PureDP, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.answers import answer, draw, factor, truthful

TRIALS = 200_000
LEVELS = pytest.mark.parametrize("levels", [2, 3])


def keep_of(budget: Budget) -> np.ndarray:
    return truth(budget, np.array([amount(budget)]))


def told(value: float, keep: np.ndarray, levels: int, seed: int) -> np.ndarray:
    words = draw(SeededEntropy(seed, 1 << 16), 3 * TRIALS).reshape(-1, 3)
    return answer(np.full(TRIALS, value), np.broadcast_to(keep, TRIALS), levels, words)


@LEVELS
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0, 1e6])
def test_the_claim_holds_exactly(levels: int, epsilon: float) -> None:
    """The probabilities of two answers, as the multiples of 2^-53 that they are."""
    t = float(truthful(keep_of(PureDP(epsilon)), levels)[0])
    assert t * 2**53 == round(t * 2**53)
    assert math.log(t) - math.log((1 - t) / (levels - 1)) <= epsilon
    if epsilon < 20:
        assert t == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + levels - 1), rel=1e-12)


@LEVELS
def test_levels_have_their_probabilities_and_louder_ones_are_rejected(levels: int) -> None:
    """False alarms: 1e-6 for each of the comparisons."""
    keep = keep_of(PureDP(1))
    for value in np.linspace(-1, 1, levels):
        found = np.round((told(value, keep, levels, 5) / factor(keep, levels) + 1) * (levels - 1) / 2)
        counts = np.bincount(found.astype(int), minlength=levels)
        at = round((value + 1) * (levels - 1) / 2)

        def p_value(epsilon: float, at: int = at, counts: np.ndarray = counts) -> float:
            t = float(truthful(keep_of(PureDP(epsilon)), levels)[0])
            shares = np.full(levels, (1 - t) / (levels - 1))
            shares[at] = t
            return float(chisquare(counts, TRIALS * shares / shares.sum()).pvalue)

        assert p_value(1.0) > 1e-6
        assert p_value(1.2) < 1e-6
        assert p_value(0.8) < 1e-6


@LEVELS
@pytest.mark.parametrize("budget", [PureDP(1), PureDP(4), GaussianDP(1)], ids=str)
@pytest.mark.parametrize("value", [-1.0, -0.3, 0.0, 0.7])
def test_answers_are_unbiased_and_have_the_variance_of_the_text(levels: int, budget: Budget, value: float) -> None:
    keep = keep_of(budget)
    found = told(value, keep, levels, 11)
    e, w = float(keep[0] / (1 - keep[0])), abs(value)
    a = (e + levels - 1) / (e - 1)
    second = a**2 if levels == 2 else a**2 * (w * (e + 1) + (1 - w) * 2) / (e + 2)
    assert factor(keep, levels)[0] == pytest.approx(a, rel=1e-9)
    assert abs(found.mean() - value) < 5.2 * a / math.sqrt(TRIALS)  # 2e-7
    assert np.mean(found**2) == pytest.approx(second, abs=5.2 * a**2 / math.sqrt(TRIALS))


def test_the_figures_of_the_text() -> None:
    def variance(epsilon: float, levels: int, w: float) -> float:
        e = math.exp(epsilon)
        a = (e + levels - 1) / (e - 1)
        return a**2 * (1 if levels == 2 else (w * (e + 1) + (1 - w) * 2) / (e + 2)) - w**2

    assert [round(variance(1, m, 0), 1) for m in (2, 3)] == [4.7, 3.2]
    assert [round(variance(4, m, 0), 2) for m in (2, 3)] == [1.08, 0.04]
    assert [round(variance(1, m, 1), 1) for m in (2, 3)] == [3.7, 4.9]


@pytest.mark.parametrize("rng", [Entropy(8), SeededEntropy(3, 8), FreshWords()], ids=lambda rng: type(rng).__name__)
def test_no_word_is_drawn_twice_and_all_are_overwritten(rng: Entropy | SeededEntropy | FreshWords) -> None:
    first, second = draw(rng, 30), draw(rng, 5)
    assert len(set(first.tolist()) | set(second.tolist())) == 35
    if not isinstance(rng, FreshWords):
        assert not rng.words[1 : rng.position].any()
        rng.words[rng.position :] = 0  # as if they had been used
        assert draw(rng, 20).all()
    values, words = np.array([0.5, -0.5]), draw(rng, 6).reshape(2, 3)
    answer(values, np.full(2, 0.7), 3, words)
    assert not values.any()
    assert not words.any()
