"""Probes of pan-private batches: a change is noticed within a batch, and nothing of an open probe is kept."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from streamdp import PanPrivateClassifier, PanPrivateRegressor, ShuffleRegressor
from streamdp.learners import pan
from tests.support.states import pending_of, probes_of, steps_of

NAMES = ["a", "b", "c"]
THETA = np.array([0.6, -0.6, 0.5])


def model(kind: Any = PanPrivateRegressor, **options: Any) -> Any:
    return kind(features=NAMES, seed=1, **({"budget": "eps=1,delta=1e-6"} | options))


def stream(n: int, sign: float = 1.0, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X @ (sign * THETA) + rng.normal(size=n)


def learned(n: int = 40_000, **options: Any) -> Any:
    found = model(**options)
    found.learn_encoded(*stream(n))
    return found


@pytest.mark.parametrize("budget", ["eps=1,delta=1e-6", "mu=1"])
def test_a_flip_is_noticed_within_the_batch(budget: str) -> None:
    """Within 4,000 records, of which a batch has up to 10,000."""
    found = learned(budget=budget)
    assert found.n_changes == 0
    found.learn_encoded(*stream(4_000, -1.0, 3))
    assert found.n_changes > 0
    assert 40_000 < found.last_change < 44_000
    assert np.sum((found.theta[:3] + THETA) ** 2) < 0.3


def test_classes_that_flip_are_noticed_within_the_batch() -> None:
    found = model(PanPrivateClassifier, budget="mu=1")
    for sign, n, seed in ((4.0, 40_000, 2), (-4.0, 6_000, 3)):
        X, y = stream(n, sign, seed)
        found.learn_encoded(X, (y > 0).astype(float))
    assert found.n_changes > 0
    assert 40_000 < found.last_change < 46_000


def test_record_by_record_it_is_the_same() -> None:
    """Across an alarm: with compiled records, whose loop stops at the end of a probe."""
    found, single = learned(), learned()
    X, y = stream(3_000, -1.0, 3)
    found.learn_encoded(X, y)
    for x, target in zip(X.tolist(), y.tolist(), strict=True):
        single.learn_one(dict(zip(NAMES, x, strict=True)), target)
    assert found.n_changes > 0
    assert found.last_change == single.last_change
    np.testing.assert_array_equal(found.theta, single.theta)


def test_a_copy_within_a_probe_is_that_of_the_last_boundary() -> None:
    found = learned()
    found.close_batch()
    before = found.state_dict()
    found.learn_encoded(*stream(700, seed=4))
    assert probes_of(found).end < found.learner.full
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert probes_of(other) is None
        after = other.state_dict()
        np.testing.assert_array_equal(after["state"], before["state"])
        assert after["place"] == before["place"]
        other.learn_encoded(*stream(700, seed=4))
    found.close_batch()  # within a probe
    assert probes_of(found) is None
    assert found.state_dict()["place"][2] == before["place"][2] + 700


def test_the_end_of_a_probe_that_is_interrupted_releases_nothing_more_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = learned()
    found.close_batch()
    found.learn_encoded(*stream(10, seed=4))
    place, end = steps_of(found).place, probes_of(found).end

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pan, "grid_noise", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.learn_encoded(*stream(end - 10, seed=5))
    found.learn_encoded(*stream(10, seed=6))
    assert steps_of(found).place == place
    assert pending_of(found) == 10  # the others are lost, and counted
    assert found.n_seen == 40_000 + end + 10
    found.close_batch()


def test_only_batches_that_grow_and_follow_in_one_process_have_probes() -> None:
    assert probes_of(learned()) is not None
    assert probes_of(learned(change="ignore")) is None
    assert probes_of(learned(batch_size=20_001)) is None
    assert probes_of(learned(kind=ShuffleRegressor)) is None
    found = learned()
    found.close_batch()
    with steps_of(found).planned():
        assert steps_of(found).probing == (0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_changes_that_end_soon_are_followed_at_first_and_a_change_that_lasts_is_followed_later(seed: int) -> None:
    """Days of 12,000 records and disturbances of 2,000, less than two N_0: once each of them was followed, twice."""
    rng, theta = np.random.default_rng(seed), np.array([0.5, -0.5, 0.5, 0.5])
    model = PanPrivateRegressor(features=["a", "b", "c", "d"], budget="eps=1,delta=1e-6", seed=seed)

    def learn(records: int, sign: float) -> float:
        away = []
        for _ in range(0, records, 1000):
            away.append(float(np.sum((model.theta[:4] - sign * theta) ** 2)))
            X = rng.normal(size=(1000, 4))
            model.learn_encoded(X, sign * X @ theta + rng.normal(size=1000))
        return float(np.mean(away))

    days = []
    for _ in range(20):
        days.append(learn(12_000, 1.0))
        learn(2000, -1.0)
    assert 3 <= model.n_changes <= 8
    assert np.mean(days[8:]) < 0.1
    learn(40_000, -1.0)
    assert np.linalg.norm(model.theta[:4] + theta) < 0.15
