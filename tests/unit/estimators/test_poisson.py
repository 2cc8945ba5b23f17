"""The Poisson loss: the logarithm of the mean is linear; where it is learned, what it predicts, and what refuses it."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import streamdp
from streamdp import (
    L2Ball,
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    Poisson,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
)
from streamdp.errors import ConfigError, NotAvailableError
from streamdp.optim.newton_state import State
from streamdp.reading import change
from tests.support.states import steps_of

NAMES = ("a", "b", "c")
FEATURES = dict.fromkeys(NAMES, (-4.0, 4.0))
SLOPES, INTERCEPT = np.array([0.5, -0.3, 0.0]), 0.7
KINDS: dict[str, Any] = {"process": PanPrivateRegressor, "shuffler": ShuffleRegressor, "window": WindowedRegressor}
every = pytest.mark.parametrize("trust", KINDS)


def made(trust: str, n: int = 20_000, **more: Any) -> Any:
    options = {"window": n, "items_per_user": 1} if trust == "window" else {}
    usual = {"loss": "poisson", "features": FEATURES, "target": (0, 40), "budget": "eps=4,delta=1e-6", "seed": 1}
    return KINDS[trust](**(usual | options | more))


def stream(n: int, seed: int = 0, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Raw columns (n, 3), and counts whose mean is multiplied by the columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.minimum(rng.poisson(factor * np.exp(X @ SLOPES + INTERCEPT)), 40).astype(float)


@every
def test_it_learns_a_mean_that_columns_multiply(trust: str) -> None:
    X, y = stream(20_000)
    model = made(trust)
    model.learn_arrays(X, y)
    model.close_batch()
    np.testing.assert_allclose(model.theta[:4], [*SLOPES, INTERCEPT], atol=0.08)
    limits = model.interval()[:4]
    assert np.all((limits[:, 0] < [*SLOPES, INTERCEPT]) & ([*SLOPES, INTERCEPT] < limits[:, 1]))
    held, truth = stream(10_000, 9)
    assert np.mean((model.predict_arrays(held) - np.exp(held @ SLOPES + INTERCEPT)) ** 2) < 0.03 * np.var(truth)
    assert not model.doubts


@every
def test_predictions_are_exponentials_within_the_bounds_however_they_are_asked_for(trust: str, tmp_path: Path) -> None:
    X, y = stream(20_000)
    model = made(trust, target=(0, 3))
    model.learn_arrays(X, y)
    model.close_batch()
    far = np.array([[4.0, -4.0, 0.0], [-4.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    found = model.predict_arrays(far)
    assert found[0] == pytest.approx(3)
    assert 0 < found[1] < 0.5 < found[2]
    frame = pl.DataFrame(far, schema=list(NAMES))
    np.testing.assert_allclose(model.predict_many(frame), found, rtol=1e-12)
    assert [model.predict_one(row) for row in frame.iter_rows(named=True)] == pytest.approx(found.tolist())
    assert found[2] == pytest.approx(float(np.exp(model.weights["(intercept)"])))
    assert (model.link, model.cut) == ("log", (-700.0, pytest.approx(np.log(3))))
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(streamdp.load(tmp_path / "m").predict_many(frame), model.predict_many(frame))


def test_a_model_that_has_learned_nothing_predicts_the_middle_of_the_bounds() -> None:
    assert made("process").predict_one(dict.fromkeys(NAMES, 1.0)) == pytest.approx(20)


def test_a_mean_that_moves_far_from_its_level_is_followed() -> None:
    """The level of windows is that of the first: steps were twice too long, and predictions exponentials of noise."""
    model = made("window", 10_000, target=(0, 200))
    for seed, factor in ((0, 1.0), (1, 4.0)):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(40_000, 3))
        mean = factor * np.exp(X @ SLOPES + INTERCEPT)
        model.learn_arrays(X, np.minimum(rng.poisson(mean), 200).astype(float))
    assert model.n_changes == 1
    assert np.mean((model.predict_arrays(X) - mean) ** 2) < 0.1 * np.var(mean)


def test_rare_counts_have_a_level_although_nearly_all_are_0() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60_000, 3))
    y = np.minimum(rng.poisson(np.exp(X @ SLOPES - 3)), 9.0)
    model = made("shuffler", target=(0, 9), budget="eps=8,delta=1e-6")
    model.learn_arrays(X, y)
    model.close_batch()
    assert np.mean(model.predict_arrays(X)) == pytest.approx(np.mean(y), rel=0.2)
    assert np.mean((model.predict_arrays(X) - y) ** 2) < np.var(y)


def test_validation_is_about_what_is_predicted() -> None:
    """By the squares of the mean, and better than it; with linear predictors for predictions it would be far worse."""
    X, y = stream(60_000, factor=4.0)
    model = made("process", budget="eps=8,delta=1e-6", validation={"share": 0.2})
    model.learn_arrays(X, y)
    model.close_batch()
    assert (model.quality.measure, model.quality.verdict) == ("mean squared error", "better")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LDPASGDRegressor("poisson", features=FEATURES, target=(0, 9)), "by Newton's steps alone"),
        (lambda: LDPSGDRegressor(Poisson(), features=FEATURES, target=(0, 9)), "by Newton's steps alone"),
        (lambda: UserLevelLDPRegressor("poisson", features=FEATURES, target=(0, 9)), "by Newton's steps alone"),
        (lambda: made("process", method="ac-sa"), "by Newton's steps alone"),
        (lambda: made("process", loss=Poisson(clip=1.0)), "by Newton's steps alone"),
        (lambda: made("window", method="private-range"), "by Newton's steps alone"),
        (lambda: made("window", scaling="none"), "by Newton's steps alone"),
        (lambda: made("process", target=None), "bounds .low, high. with low of at least 0"),
        (lambda: made("shuffler", target=(-1, 5)), "bounds .low, high. with low of at least 0"),
        (lambda: made("window", intercept=False), "an intercept, and no domain"),
        (lambda: made("process", domain=L2Ball(3.0)), "an intercept, and no domain"),
        (lambda: made("process", target={"bounds": (1, 9), "transform": "log"}), "without transform"),
        (lambda: PanPrivateClassifier("poisson"), "loss must be one of"),
    ],
)
def test_where_it_is_not_learned_it_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_device_does_not_take_part() -> None:
    with pytest.raises(NotAvailableError, match="randomizer"):
        _ = made("shuffler").randomizer


# --- several learners


def test_learners_with_other_levels_are_merged() -> None:
    """Of two streams with another mean; together they have twice the records of one."""
    parts = [made("process", seed=s, budget="eps=8,delta=1e-6") for s in range(2)]
    for s, (part, factor) in enumerate(zip(parts, (0.6, 1.6), strict=True)):
        part.learn_arrays(*stream(40_000, s, factor))
        part.close_batch()
    levels = [float(steps_of(part).state.level[0]) for part in parts]
    assert levels[1] > 1.5 * levels[0]
    together = parts[0].merged(parts[1])
    np.testing.assert_allclose(together.theta[:3], SLOPES, atol=0.1)
    assert parts[0].theta[3] < together.theta[3] < parts[1].theta[3]
    together.learn_arrays(*stream(40_000, 5))
    together.close_batch()
    np.testing.assert_allclose(together.theta[:3], SLOPES, atol=0.1)


def test_sums_at_another_level_give_the_same_answer() -> None:
    model = made("process", batch_size=2_000)
    model.learn_arrays(*stream(20_000))
    steps = steps_of(model)
    state, q, d = steps.state, steps.curvature.columns, steps.curvature.parameters

    def answer(known: State) -> np.ndarray:
        """The logarithm's coefficients (q,), in the units of the columns."""
        total, level = known.blocks.sum(axis=0), float(known.level[0])
        point, gradient = change.means(total, d, True)
        u = point[:q] - np.linalg.solve(known.hessian(q), gradient[:q])
        return u / level + np.eye(q)[-1] * (np.log(level) - 1)

    other = state.at_level(state.level * 3, steps.curvature)
    np.testing.assert_allclose(answer(other), answer(state), rtol=1e-9)
    back = other.at_level(state.level, steps.curvature)
    np.testing.assert_allclose(back.blocks, state.blocks, rtol=1e-9, atol=1e-9)
    assert back.variance == pytest.approx(state.variance)


def test_a_state_without_a_level_is_refused() -> None:
    model = made("process")
    model.learn_arrays(*stream(20_000))
    model.close_batch()
    steps, state = steps_of(model), model.state_dict()
    for wrong in (0.0, -1.0, float("inf")):
        numbers = steps.state.of(state["state"])
        forged = State(**(vars(numbers) | {"level": np.array([wrong])})).numbers()
        with pytest.raises(ConfigError, match="state"):
            made("process").load_state_dict(state | {"state": forged})
