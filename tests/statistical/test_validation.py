"""Attacks on neighbouring streams over all that a record releases: its gradient and its answer.

The streams differ in one record, for which gradient and answer are as far apart as they can be. Each bound is wrong
with a probability of at most 1e-6 (Clopper-Pearson); seeds are fixed.
"""

from typing import Any

import numpy as np
import pytest

from benchmarks.validation import run, simulated
from streamdp import LDPSGDClassifier
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import GaussianDP
from streamdp.validation.held_out import HeldOut
from streamdp.validation.plan import ERROR, NOTHING, plan_of
from streamdp.validation.sums import ERROR as TOLD
from streamdp.validation.tasks import Probabilities
from tests.support.audit import epsilon_lower_bound, mu_lower_bound
from tests.support.sizes import some
from tests.support.states import arrays_of, path_of

TRIALS = 3500


def releases(validation: dict[str, Any], label: float, seed: int, budget: str, trials: int) -> np.ndarray:
    """(trials, 2): the step of theta and the answer of one record. Its gradient is the longest; the model says 0."""
    model = LDPSGDClassifier("hinge", budget, features=["a"], intercept=False, seed=seed, validation=validation)
    validator = model.held_out.validator
    validator.begin(np.zeros(1), 0.0, 1.0, np.inf)
    arrays, clock, out = (
        [array.copy() for array in arrays_of(model)],
        validator.progress.copy(),
        np.empty((trials, 2)),
    )
    X, y = np.full((1, 1), 2**0.5), np.array([label])
    asked = np.full(1, ERROR)
    for trial in range(trials):
        for array, before in zip(arrays_of(model), arrays, strict=True):
            array[:] = before
        validator.progress, validator.questions = clock.copy(), asked
        validator.open = np.zeros_like(validator.open)
        model.learn_encoded(X, y)
        out[trial] = path_of(model)[0, 0], validator.open[TOLD]
    assert (validator.questions != NOTHING).all()
    return out


def found(validation: dict[str, Any], budget: str = "eps=1", trials: int = TRIALS) -> float:
    scores = [np.sign(releases(validation, label, 11 + int(label), budget, trials)) @ [1, 1.01] for label in (1.0, 0.0)]
    return epsilon_lower_bound(*scores)


@pytest.mark.parametrize(
    ("claimed", "louder"),
    some([({"budget": "eps=1"}, {"budget": "eps=2"}), ({"budget": "eps=0.5"}, {"budget": "eps=1"})], 0),
)
def test_gradient_and_answer_together_keep_the_sum_of_budgets(claimed: Any, louder: Any) -> None:
    claim = float(LDPSGDClassifier(features=["a"], budget="eps=1", validation=claimed).record_budget.epsilon)  # type: ignore[union-attr]
    assert 0.7 * claim < found(claimed) <= claim
    assert found(louder) > 1.05 * claim


def test_an_answer_in_place_of_a_gradient_keeps_the_budget() -> None:
    assert 0.6 < found({"share": 0.5}, trials=1500) <= 1
    assert found({"share": 0.5}, "eps=2", trials=1500) > 1.3


@pytest.mark.campaign
def test_intervals_hold_the_true_errors_of_the_models_that_were_asked_about() -> None:
    """Of 20 intervals of 95 %, at least 12 hold the truth: fewer have a probability below 1e-6. An answer with a bias,
    such as a difference of errors that is cut, has hardly one at epsilon = 4."""
    found = [run(simulated("numbers"), 6000, "eps=4", {"budget": "eps=4"}, 70 + seed) for seed in range(20)]
    assert sum(result.error for result in found) >= 12
    assert sum(result.difference for result in found) >= 12
    assert all(result.right for result in found)


@pytest.mark.parametrize("first", [False, True])
def test_a_sum_of_people_who_are_held_out_keeps_the_budget_and_half_its_noise_does_not(first: bool) -> None:
    """One person of the two whose vectors are furthest apart; the attacker sees the sum of a block."""
    task, mu, trials = Probabilities(2), 1.0, 12_000
    known = task.counted(task.start(0, 1), np.array([5e5, 5e5]), 10**6, 1.0)

    def bound(budget: float) -> float:
        scores = []
        for label, score in ((0.0, 9.0), (1.0, 9.0)):
            held = HeldOut(plan_of({"share": 0.1}), task, 1, SeededEntropy(3 + int(label)), GaussianDP(budget), first)
            held.begin(np.zeros(1), 0.0, 1.0, np.inf)
            held.fixed = known
            held.add(np.full(1, ERROR), np.full((1, 1), score), np.full(1, label), np.ones(1, dtype=np.int64))
            held.scores.discard()  # the vector alone is of interest: its law is that plus the noise
            vectors = held.errors.vectors(task.weights, 0.5, np.full((1, 1), score), np.full(1, label))
            found = np.empty((trials, 20))
            for trial in range(trials):
                held.scores.add(vectors.copy())
                found[trial] = held.scores.close()[1]
            scores.append((found, vectors[0]))
        (zero, a), (one, b) = scores
        direction = b - a
        return mu_lower_bound(one @ direction, zero @ direction)

    claim = mu / np.sqrt(1 + first)  # with noise at both ends the sum alone shows less
    assert 0.65 * claim < bound(mu) <= claim
    assert bound(2 * mu) > 1.3 * claim
