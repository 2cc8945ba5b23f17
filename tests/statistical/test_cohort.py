"""What an observer of all rounds of a cohort learns about one person: audits, and the noise of each round.

The seeds are fixed. Over seeds, false alarms have a probability of 1e-6 for each audit, and for the noise of a round
that of 6 deviations, 2e-9.
"""

import math

import numpy as np
import pytest

from streamdp import ShuffleClassifier
from streamdp.aggregation.kernels import noisy_counts
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.agreement import Agreement
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some

DELTA, PEOPLE, ROUNDS, TRIALS = 0.02, 10, 4, 20_000
AGREED = Agreement(
    ShuffleClassifier(
        features=["a"], intercept=False, budget=f"eps=1,delta={DELTA}", cohort={"people": PEOPLE, "rounds": ROUNDS}
    ),
    minimum_share=0.5,
)


def ones(params: VectorSum, person: float, people: int, rounds: int, seed: int) -> np.ndarray:
    """The ones (TRIALS, rounds) of each round, if one person always has the gradient `person` and the others 0."""
    vectors = np.zeros(people)
    vectors[0] = person
    places = np.tile(params.places(vectors[:, None]).ravel(), TRIALS * rounds)
    rng, out, done = SeededEntropy(seed, 1 << 20), np.empty(len(places), dtype=np.int64), 0
    while done < len(places):
        more = noisy_counts(places[done:], params.b, out[done:], rng.words)
        done += more
        rng.refill_for(more)
    return out.reshape(TRIALS, rounds, people).sum(axis=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("people", "rounds", "low", "high"),
    some(
        [
            (PEOPLE, ROUNDS, 0.5, 1.0),
            (PEOPLE, 2 * ROUNDS, 1.05, math.inf),  # a device that answers in twice as many rounds as agreed
            (PEOPLE // 2, ROUNDS, 1.05, AGREED.weakest((0, 0, 0)).epsilon),  # half of the people are absent
        ],
        0,
        2,
    ),
    ids=["agreed", "twice", "absent"],
)
def test_all_rounds_together_keep_the_claim(people: int, rounds: int, low: float, high: float) -> None:
    """The gradient of the person is at one end of the ball or the other in each round, the worst case; seeded."""
    params = AGREED.params((0, 0, 0))
    a, b = (
        ones(params, sign * params.bound, people, rounds, seed).sum(axis=1) for seed, sign in enumerate((1.0, -1.0))
    )
    found = epsilon_lower_bound(a, b, DELTA)
    print(f"{people} people, {rounds} rounds: found {found:.3f}")
    assert low < found <= high


@pytest.mark.slow
def test_each_round_has_its_noise() -> None:
    """20,000 sums: 6 standard errors are 6 %; noise off by a tenth in its deviation would be rejected."""
    params = AGREED.params((0, 0, 0))
    found = np.var(ones(params, 0.0, PEOPLE, 1, 7)[:, 0]) * params.cell**2
    expected = params.d * params.cell**2 * PEOPLE * (params.b + params.g % 2) / 4  # an odd grid rounds 0 by a coin
    assert abs(found / expected - 1) < 6 * math.sqrt(2 / TRIALS)
    assert expected <= params.variance
