"""Each "not known yet" says how many more answers would tell, or why no number can be given."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.validation.quality import UNKNOWN, Estimate, Quality, Stretch, first, missing

NONE = Estimate(None, None, None)
BOUNDS = {"a": (-1, 1), "b": (-1, 1)}
SHARE = {"share": 0.2}


def stretch(value: float, half: float, constant: float = 1.0, answers: int = 1000) -> Stretch:
    known = Estimate(constant, constant, constant)
    return Stretch(answers, known, known, Estimate(value, value - half, value + half))


@pytest.mark.parametrize(
    ("value", "half", "constant"),
    [(-0.1, 0.2, 1.0), (0.0, 0.3, 1.0), (-0.1, 0.1, 1.0), (0.0, 0.1, 0.001), (-1e-9, 1, 1)],
)
def test_an_interval_gives_a_number(value: float, half: float, constant: float) -> None:
    found = stretch(value, half, constant)
    more = missing(found, found)
    assert 1 <= more <= 1e15
    assert first(found, found, 0.5, 0.0) is None


def test_the_number_is_right_for_a_difference_that_stays() -> None:
    before = stretch(-0.1, 0.3)
    more = missing(before, before)
    after = stretch(-0.1, 0.3 * (1000 / (1000 + more)) ** 0.5)
    assert after.difference.high == pytest.approx(0, abs=0.01)


def test_without_an_interval_there_is_the_number_of_the_first_one() -> None:
    none = Stretch(40, NONE, NONE, NONE)
    assert missing(none, none) is None
    assert first(none, none, 0.5, 0.0) == 80  # 30 of each kind
    assert first(none, none, 3.0, 0.0) == 200  # twice 40 more for the constant
    assert first(replace(none, answers=0), none, np.inf, 250.0) == 200
    assert first(replace(none, answers=0), none, np.inf, 0.0) is None


def test_every_sentence_has_a_number_or_a_reason() -> None:
    def said(total: Stretch, largest: float | None, more: int | None, begun: int | None) -> str:
        return Quality("error", largest, total, total, UNKNOWN, 0, None, more, begun).sentence().partition(": ")[2]

    none = Stretch(0, NONE, NONE, NONE)
    assert said(none, None, None, None).startswith("records answer as soon as the centre and spread of the target are")
    assert said(none, 1.0, None, None).startswith("no record has answered")
    assert said(none, 1.0, None, 200).startswith("about 200 more answers give a first interval")
    assert said(stretch(0.0, 0.0, 0.0), 1.0, None, None).startswith("both errors are 0")
    assert said(stretch(-1.0, 0.1), 1.0, None, None).startswith("more answers would not decide")
    assert said(stretch(0.0, 1.0), 1.0, 3000, None).startswith("about 3,000 more answers would decide")


@pytest.mark.parametrize("numbers", [False, True])
def test_a_model_says_a_number_from_its_first_answers_on(numbers: bool) -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (3000, 2))
    model: Any
    if numbers:
        model = LDPASGDRegressor(features=BOUNDS, target=(-2, 2), validation=SHARE, seed=1)
        y = X.sum(axis=1)
    else:
        model = LDPASGDClassifier(features=BOUNDS, validation=SHARE, seed=1)
        y = (X.sum(axis=1) > 0).astype(float)
    firsts, unsaid = [], 0
    for i in range(0, 3000, 50):
        model.learn_encoded(X[i : i + 50], y[i : i + 50])
        found = model.quality
        if found.verdict == UNKNOWN and found.total.answers:
            assert (found.missing is None) != (found.first is None)
            firsts += [] if found.first is None else [found.first]
        unsaid += not found.total.answers
    assert unsaid < 60
    assert firsts
    assert firsts[-1] <= firsts[0]
