"""The methods of the windowed estimators: which one learns, and how well."""

from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, L2Ball, WindowedClassifier, WindowedRegressor
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.windows.methods import METHODS
from streamdp.windows.regularisers import ElasticNet
from streamdp.windows.smoothed import ConvolutionSmoothing
from tests.support.sizes import some
from tests.support.states import method_of

pytestmark = pytest.mark.slow


def people(n: int, items: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """Records of n interleaved people with `items` each; y is 1 with the probability expit(3 x1)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * items, 3))
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-3 * X[:, 0]))).astype(float)
    return X, y, [b"p%d" % k for k in np.arange(len(X)) % n]


@pytest.mark.parametrize("method", some(METHODS, 0, 1, 2))
def test_every_method_learns(method: str) -> None:
    """At eps = 4 from two windows of 3,000 people: the first weight is the largest, the others are small."""
    model = WindowedClassifier(
        features=["a", "b", "c"],
        method=method,
        items_per_user=8,
        window=24_000,
        budget=ApproxDP(4, 1e-6),
        domain=L2Ball(3),
        seed=1,
    )
    for seed in (0, 1):
        X, y, subjects = people(3000, 8, seed)
        model.learn_encoded(X, y, subjects=subjects)
    assert (model.n_windows, model.n_users, model.n_stopped) == (2, 6000, 0)
    X, y, _ = people(3000, 1, 9)
    assert np.mean(model.predict_encoded(X) == y) > 0.78
    assert model.theta[0] > 2 * np.abs(model.theta[1:]).max()


def test_a_regulariser_shrinks_weights_and_is_part_of_the_state() -> None:
    """The weights of two columns that say nothing are halved; the intercept is free."""

    def build(net: ElasticNet | None) -> WindowedClassifier:
        return WindowedClassifier(
            loss="hinge",
            features=["a", "b", "c"],
            method=ConvolutionSmoothing(most_queries=6000, regulariser=net),
            items_per_user=1,
            window=3000,
            budget=ApproxDP(8, 1e-6),
            domain=L2Ball(3),
            seed=1,
        )

    X, _, subjects = people(3000, 1, 0)
    y = (X[:, 0] > -1).astype(float)  # 84 % ones: the intercept matters
    plain, lasso = build(None), build(ElasticNet(l1=0.02, free=1))
    for model in (plain, lasso):
        model.learn_encoded(X, y, subjects=subjects)
        assert model.n_windows == 1
    assert np.abs(lasso.theta[1:3]).sum() < 0.5 * np.abs(plain.theta[1:3]).sum()
    assert np.all(lasso.theta[[0, 3]] > 1)
    assert np.mean(lasso.predict_encoded(X) == y) > 0.9
    again = build(ElasticNet(l1=0.02, free=1))
    again.load_state_dict(lasso.state_dict())
    np.testing.assert_array_equal(again.theta, lasso.theta)
    with pytest.raises(ConfigError, match="window"):
        plain.load_state_dict(lasso.state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_too_few_users_are_an_error_that_says_how_many(method: str) -> None:
    """The number that the error names works, and one less does not."""

    def build(window: int) -> WindowedClassifier:
        return WindowedClassifier(features=["a", "b"], method=method, window=window, items_per_user=1)

    with pytest.raises(TooFewUsersError) as caught:
        build(3)
    needed = caught.value.needed
    assert str(needed) in str(caught.value)
    build(needed)
    with pytest.raises(TooFewUsersError):
        build(needed - 1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "newton"),
        ({"loss": "quantile"}, "private-range"),
        ({"strong_convexity": 0.1}, "private-range"),
        ({"smoothness": 2.0}, "private-range"),
        ({"method": "smoothed"}, "smoothed"),
    ],
    ids=str,
)
def test_auto_is_newton_where_that_is_possible(options: dict[str, Any], name: str) -> None:
    assert method_of(WindowedRegressor(**options)).name == name


@pytest.mark.parametrize(
    ("loss", "classes", "needed", "name"), [("logistic", None, 203, "newton"), ("softmax", [0, 1, 2], 371, "newton")]
)
def test_a_window_that_is_too_small_is_refused_and_changes_no_method(
    loss: str, classes: list[int] | None, needed: int, name: str
) -> None:
    """It was learned by private ranges, which is worse than a constant there: MAE 38,373 beside 3,375."""
    options: dict[str, Any] = {"features": ["a", "b", "c"], "items_per_user": 1, "loss": loss, "classes": classes}
    with pytest.raises(
        TooFewUsersError, match=rf"window: {needed - 1} records are too few: .*by {name} with .*{needed}"
    ):
        WindowedClassifier(window=needed - 1, **options)
    assert method_of(WindowedClassifier(window=needed, **options)).name == name


def test_newton_refuses_what_only_planned_steps_use() -> None:
    with pytest.raises(ConfigError, match=r'smoothness: .*method="private-range"'):
        WindowedRegressor(method="newton", smoothness=2.0)
    with pytest.raises(ConfigError, match="bounded curvature"):
        WindowedRegressor(method="newton", loss="quantile")
