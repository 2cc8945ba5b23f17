"""LDP learners follow a stream that changes: `streamdp.optim.follow`."""

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, LDPSGDRegressor

NAMES = ["a", "b", "c", "d"]
THETA = np.array([0.5, -0.5, 0.5, -0.5])
REGRESSORS = {"asgd": LDPASGDRegressor, "sgd": LDPSGDRegressor}


def records(n: int, theta: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns, and a target of which theta explains a half."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X @ theta + rng.normal(size=n)


def off(model: object, theta: np.ndarray) -> float:
    """The squared error of the coefficients; half of the variance of the target is 1."""
    return float(np.sum((model.theta[:4] - theta) ** 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_flip_is_noticed_and_followed(kind: str) -> None:
    model = REGRESSORS[kind](features=NAMES, budget="eps=4", seed=1)
    model.learn_encoded(*records(20_000, THETA))
    assert model.n_changes == 0
    model.learn_encoded(*records(5_000, -THETA, 1))
    assert model.n_changes >= 1
    assert off(model, -THETA) < 0.05
    assert 20_000 < model.last_change <= 25_000
    assert f"the stream has changed, as noticed after record {model.last_change:,} " in model.statement()


def test_the_record_of_a_change_does_not_depend_on_how_records_come() -> None:
    """In one call, one by one, and across a state; nothing is known of it after a merge."""
    X, y = (np.concatenate(parts) for parts in zip(records(4_000, THETA), records(1_000, -THETA, 1), strict=True))
    whole, single, other = (LDPASGDRegressor(features=NAMES, budget="eps=8", seed=6) for _ in range(3))
    assert whole.last_change is None
    whole.learn_encoded(X, y)
    for row, target in zip(X.tolist(), y.tolist(), strict=True):
        before = single.n_changes
        single.learn_one(dict(zip(NAMES, row, strict=True)), target)
        if single.n_changes > before:
            assert single.last_change == single.n_seen
    assert whole.n_changes == single.n_changes == 1
    assert whole.last_change == single.last_change
    other.load_state_dict(whole.state_dict())
    assert other.last_change == whole.last_change
    merged = whole.merged(other)
    assert (merged.n_changes, merged.last_change) == (1, None)
    assert "the stream has changed, as noticed from released numbers" in merged.statement()


@pytest.mark.parametrize("budget", ["eps=1", "eps=4"])
@pytest.mark.parametrize("slow", [0.0, 0.9])
def test_a_stationary_stream_has_no_alarm(budget: str, slow: float) -> None:
    """Also if all columns are correlated by .9: then theta moves slowly in most directions."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(30_000, 1))
        X = np.sqrt(slow) * common + np.sqrt(1 - slow) * rng.normal(size=(30_000, 4))
        model = LDPASGDRegressor(features=NAMES, budget=budget, seed=seed)
        model.learn_encoded(X, X @ THETA + rng.normal(size=len(X)))
        assert model.n_changes == 0


def test_budgets_that_differ_by_record_give_no_alarm_and_a_change_is_still_noticed() -> None:
    rng = np.random.default_rng(3)
    amounts = rng.choice([0.5, 2.0, 6.0], size=40_000)
    model = LDPASGDRegressor(features=NAMES, budget="eps=1", seed=3)
    model.learn_encoded(*records(30_000, THETA, 3), budgets=amounts[:30_000])
    assert model.n_changes == 0
    model.learn_encoded(*records(10_000, -THETA, 4), budgets=amounts[30_000:])
    assert model.n_changes >= 1


def test_until_a_change_is_likely_the_answer_is_that_of_the_whole_past() -> None:
    """One by one, at each record at which nothing is mixed in."""
    X, y = records(3_000, THETA)
    follows, ignores = (
        LDPASGDRegressor(features=NAMES, budget="eps=1", seed=5, change=c) for c in ("follow", "ignore")
    )
    same = 0
    for at in range(0, len(X), 100):
        for model in (follows, ignores):
            model.learn_encoded(X[at : at + 100], y[at : at + 100])
        same += bool(np.array_equal(follows.theta, ignores.theta))
    assert follows.n_changes == 0
    assert same >= 25


def test_no_stream_without_a_change_ends_with_a_far_larger_error_than_without_following() -> None:
    """Recent iterates, which have more noise, are hardly ever mixed in."""
    ratios = []
    for seed in range(100, 200):
        X, y = records(20_000, THETA, seed)
        errors = []
        for choice in ("follow", "ignore"):
            model = LDPASGDRegressor(features=NAMES, budget="eps=4", seed=seed, change=choice)
            model.learn_encoded(X, y)
            errors.append(off(model, THETA))
        ratios.append(errors[0] / errors[1])
    assert max(ratios) < 2


def test_where_disturbances_end_soon_the_answer_stays_and_a_change_that_lasts_is_followed() -> None:
    """600 of 5,000 records have another intercept, and each time the answer is looked at just then."""
    model, errors = LDPASGDRegressor(features=NAMES, budget="eps=4", seed=3), []
    for i in range(40):
        model.learn_encoded(*records(4_400, THETA, 2 * i))
        X, y = records(600, THETA, 2 * i + 1)
        model.learn_encoded(X, y + 1.5)
        errors.append(off(model, THETA) + float(model.theta[4] ** 2))
    assert np.mean(errors[20:]) < 0.1
    model.learn_encoded(*records(10_000, -THETA, 100))
    assert off(model, -THETA) < 0.05


def test_after_a_change_there_is_no_interval_until_enough_has_come_since() -> None:
    model = LDPASGDRegressor(features=NAMES, budget="eps=8", seed=9)
    model.learn_encoded(*records(10_000, THETA))
    assert np.isfinite(model.interval()).all()
    changes, at = 0, 0
    X, y = records(30_000, -THETA, 1)
    while not changes:
        model.learn_encoded(X[at : at + 50], y[at : at + 50])
        changes, at = model.n_changes, at + 50
    assert np.isnan(model.interval()).all()
    model.learn_encoded(X[at:], y[at:])
    limits = model.interval()[:4]
    assert np.isfinite(limits).all()
    assert np.all(np.abs(limits.mean(axis=1) + THETA) < 0.1)


def test_a_model_of_parts_begins_without_blocks_and_notices_later_changes() -> None:
    parts = [LDPASGDRegressor(features=NAMES, budget="eps=4", seed=i) for i in (1, 2)]
    for i, part in enumerate(parts):
        part.learn_encoded(*records(10_000, THETA, i))
    both = parts[0].merged(parts[1])
    assert off(both, THETA) < 0.05
    both.learn_encoded(*records(10_000, -THETA, 5))
    assert both.n_changes >= 1
    assert off(both, -THETA) < 0.05


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_change_that_one_shard_noticed_is_news_to_the_others(kind: str) -> None:
    """The second has not seen enough yet to notice it."""
    X, y = records(20_000, THETA)
    later = records(3_000, -THETA, 1)
    one, two = (REGRESSORS[kind](features=NAMES, budget=b, seed=1) for b in ("eps=4", "eps=1"))
    for part in (one, two):
        part.learn_encoded(X, y)
        part.learn_encoded(*later)
    assert (one.n_changes, two.n_changes) == (1, 0)
    before = two.state_dict()
    both = two.merged(one)
    assert both.n_changes == 1
    assert off(both, -THETA) < 0.1
    for key, value in before.items():
        np.testing.assert_array_equal(two.state_dict()[key], value, err_msg=key)
    both.learn_encoded(*records(20_000, -THETA, 2))
    assert both.n_changes == 1
    assert off(both, -THETA) < 0.05
