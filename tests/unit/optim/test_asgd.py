"""Averaged SGD on reports with one noise: its steps and its batches."""

import math

import numpy as np
import pytest

from streamdp.optim.asgd import Asgd, Reports

REPORTS = Reports(information=0.02, bound=0.5, largest=2.0, distance=2.0)


def same(theta: np.ndarray) -> np.ndarray:
    return theta


def walk(batch: int | None = None, reports: Reports = REPORTS) -> Asgd:
    return Asgd(reports, np.array([1.0, -1.0]), same, batch)


def test_a_batch_makes_the_step_of_its_reports_and_the_average_forgets_the_start() -> None:
    learner = walk()
    theta, average, clock, weights = np.array([1.0, -1.0]), np.zeros(2), 0.0, 0.0
    for batch, mean in ((1, [0.2, 0.0]), (7, [-0.1, 0.4]), (50, [0.3, 0.1])):
        tau = 0.02 * batch
        clock += tau
        theta = theta - 0.75 * 2.0 / 0.5 * tau * 2**0.1 * (clock + 2) ** -0.6 * np.array(mean)
        weights += tau * math.sqrt(clock)
        average = average + tau * math.sqrt(clock) / weights * (theta - average)
        learner.move(np.array(mean) * batch, batch, batch)
        np.testing.assert_allclose(learner.middle, theta, rtol=1e-12)
    np.testing.assert_allclose(learner.estimate, average, rtol=1e-12)
    assert learner.records == 58


@pytest.mark.parametrize("information", [1.0, 0.02, 1e-4])
def test_batches_are_single_reports_first_and_always_a_small_part_of_the_stream(information: float) -> None:
    learner = walk(reports=Reports(information, 0.5, 2.0, 2.0))
    batches, longest = 0, 0.0
    while learner.records < 10**6:
        batch, before = learner.batch, learner.records
        if before < 128:
            assert batch == 1
        assert batch <= max(1, before / 64)
        following = next(learner.runs())
        start = learner.middle
        learner.move(np.array([0.5, 0.0]), 1, batch)  # the longest mean
        longest = max(longest, float(np.linalg.norm(learner.middle - start)))
        assert following == (learner.batch, 1)
        batches += 1
    assert longest < 0.45 * 2.0  # a part of the distance, even without noise
    assert batches < 20_000
