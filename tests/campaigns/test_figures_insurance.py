"""Section 6 of Shi et al. 2025: encoding, start and measures are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error

from streamdp import datasets
from studies.figures_insurance import LEVELS, NUMBERS, TERCILES, HeldOut, Line, Size, learned, people

pytestmark = pytest.mark.campaign

N = 5_000


def test_columns_are_encoded_as_in_the_paper() -> None:
    data = people(N)
    assert set(LEVELS) | set(NUMBERS) == set(datasets.INSURANCE_SCHEMA["features"])
    assert all(sorted(LEVELS[name]) == sorted(datasets.INSURANCE_SCHEMA["features"][name]) for name in LEVELS)
    np.testing.assert_allclose(data.X[:, :3].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.X[:, :3].std(axis=0), 1)
    for column, names in zip(data.X[:, 3:].T, LEVELS.values(), strict=True):
        assert set(column) == set(range(len(names)))
    np.testing.assert_allclose(np.cumsum(np.bincount(data.tercile.astype(int)))[:2] / N, TERCILES, atol=1e-3)
    assert data.charges[data.tercile == 0].max() <= data.charges[data.tercile == 1].min()


@pytest.mark.parametrize(("loss", "d"), [("huber", 13), ("softmax", 36)])
def test_the_papers_walk_starts_in_the_unit_cube_and_ours_does_not(loss: str, d: int) -> None:
    start = Line(loss=loss, budget="mu=1").estimator(1).state_dict()["state"]
    assert start.shape == (3, d)
    assert start.min() > 0
    assert start.max() < 1
    assert len(np.unique(start[0])) == d
    ours = Line(loss=loss, budget="mu=1", ours=True).estimator(1).state_dict()["state"]
    assert set(ours[0]) <= {0.0, 1.0}  # Huber's scale starts at 1


def test_measures_are_those_of_scikit_learn() -> None:
    asked, rng = HeldOut(N), np.random.default_rng(1)
    data, line = people(N), Line()
    rows = slice(N * 4 // 5, N)
    X = np.hstack([data.X[rows], np.ones((N // 5, 1))])
    thetas = 0.3 * rng.standard_normal((2, 3, 13))
    expected = [[mean_squared_error(data.charges[rows], X @ theta[:-1]) for theta in some] for some in thetas]
    np.testing.assert_allclose(asked.squared_error(line, thetas), expected)
    np.testing.assert_allclose(asked.squared_error(Line(unit=0.25), 4 * thetas), expected)
    thetas = 0.3 * rng.standard_normal((2, 36))
    scores = [X @ theta.reshape(3, 12).T for theta in thetas]
    shares = [np.exp(s) / np.exp(s).sum(axis=1, keepdims=True) for s in scores]
    labels = data.tercile[rows]
    np.testing.assert_allclose(
        asked.cross_entropy(line, thetas), [log_loss(labels, p, labels=[0, 1, 2]) for p in shares]
    )
    np.testing.assert_allclose(
        asked.accuracy(line, thetas), [accuracy_score(labels, np.argmax(p, axis=1)) for p in shares]
    )


def test_without_noise_our_defaults_learn_and_the_last_step_of_the_paper_does_not() -> None:
    """Margins are several times what five other permutations differ by."""
    asked, runs = HeldOut(20_000), learned("softmax", Size(20_000, 1))
    ours = asked.accuracy(Line(), runs[Line(loss="softmax", ours=True)].average[:, -1])
    paper = asked.accuracy(Line(), runs[Line(loss="softmax", alpha=1.0)].average[:, -1])
    assert ours > 0.75
    assert paper < 0.6
