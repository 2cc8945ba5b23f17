"""The squared error beside that of the mean, which is learned from bits, or from counts of values rounded at random."""

import numpy as np
import pytest

from streamdp import PanPrivateRegressor
from streamdp.privacy.entropy import FreshWords
from streamdp.validation.tasks import Squares
from tests.support.questions import said_about_constant, values_of

TASK = Squares(0.0, 100.0)


def targets() -> np.ndarray:
    """Mostly 0, of mean 7."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(40_000) < 0.1, 70.0, 0.0)


def test_the_mean_is_found_from_bits_and_from_counts() -> None:
    y = targets()
    first = TASK.start(50.0, 100.0)
    found = said_about_constant(TASK, y, first, 0, 100.0, keep=1 - 2.0**-53)
    assert TASK.constant(found) == pytest.approx(y.mean(), abs=0.5)
    summed = TASK.start(50.0, 100.0, summed=True)
    groups = TASK.errors(summed, 100.0).groups(y, summed, FreshWords().draw(len(y)))
    counts = np.bincount(groups, minlength=TASK.groups).astype(float)
    assert TASK.constant(TASK.counted(summed, counts, len(y), 1.0)) == pytest.approx(y.mean(), abs=0.5)


def test_errors_are_squares_that_are_cut() -> None:
    known, y = np.array([7.0, 1.0, 7.0]), np.array([0.0, 70.0])
    scores = np.array([[5.0], [60.0]])
    errors = TASK.errors(known, 20.0)
    np.testing.assert_allclose(values_of(errors, scores, y), [25.0, 100.0])
    np.testing.assert_allclose(values_of(errors, scores, y, other=True), [49.0, 400.0])
    assert errors.range(False) == (0.0, 400.0)
    of_log = Squares(0.0, 100.0, exponential=True).errors(known, 20.0)
    np.testing.assert_allclose(values_of(of_log, np.log(scores), y), [25.0, 100.0])
    np.testing.assert_allclose(values_of(of_log, scores, y, other=True), [49.0, 400.0])
    assert values_of(of_log, np.array([[1e308]]), y[:1]).tolist() == [400.0]


def test_a_model_of_the_mean_is_validated_by_squares() -> None:
    for loss, measure in (("squared", "mean squared error"), ("huber", "mean absolute error")):
        model = PanPrivateRegressor(loss, features={"a": (0, 1)}, target=(0, 9), validation={"share": 0.5})
        assert model.quality.measure == measure
