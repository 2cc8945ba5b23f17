"""Targets with declared bounds: what they change, and states from before them."""

from typing import Any

import numpy as np
import pytest

from streamdp import (
    L2Ball,
    LDPSGDRegressor,
    PanPrivateRegressor,
    Quantile,
    ShuffleRegressor,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.errors import ConfigError, SchemaError
from streamdp.scaling.units import declared
from tests.support.states import open_sum

BOUNDS = (-500.0, 2500.0)
CENTRE, SCALE = 1000.0, 1500.0
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (WindowedRegressor, {"window": 1200}),
    (WindowedRegressor, {"window": 1200, "method": "private-range", "items_per_user": 4}),
    (UserLevelLDPRegressor, {"items_per_user": 4, "batch_size": 25, "scaling": "declared"}),
    (UserLevelLDPRegressor, {"loss": Quantile(tau=0.3), "items_per_user": 4, "scaling": "declared"}),
    (UserLevelLDPRegressor, {"method": "ac-sa", "items_per_user": 4}),
]


def made(kind: Any, options: dict[str, Any], target: tuple[float, float] | None = BOUNDS) -> Any:
    if target is None and options.get("scaling") == "declared":
        options = {name: value for name, value in options.items() if name != "scaling"}
    return kind(
        features={"a": (-1.0, 1.0), "b": (-1.0, 1.0)} if kind is WindowedRegressor else ["a", "b"],
        seed=3,
        target=target,
        **options,
    )


def data(n: int = 1200) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    """Some targets are beyond the bounds."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (n, 2))
    return X, 1000 + X @ [900.0, -700.0] + rng.normal(0, 200, n), [b"%d" % (i // 4) for i in range(n)]


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.slow
def test_it_learns_what_it_would_of_targets_in_their_units(kind: Any, options: dict[str, Any]) -> None:
    """The same noise, so the same theta in other units: every step commutes with the units."""
    X, y, people = data()
    learner, other = made(kind, options), made(kind, options, (-1.0, 1.0))
    learner.learn_encoded(X, y, subjects=people)
    units = y.copy()
    declared(2, BOUNDS).place_targets(units)
    assert np.abs(units).max() == 1
    other.learn_encoded(X, units, subjects=people)
    theta = other.theta
    expected = theta * SCALE + CENTRE * (np.arange(len(theta)) == 2)
    np.testing.assert_allclose(learner.theta, expected, rtol=1e-9)
    np.testing.assert_allclose(learner.predict_encoded(X[:9]), CENTRE + SCALE * other.predict_encoded(X[:9]), rtol=1e-9)
    x = {"a": 0.5, "b": -0.2}
    assert learner.predict_one(x) == pytest.approx(learner.predict_encoded(np.array([[0.5, -0.2]]))[0], rel=1e-9)
    assert learner.on_border == other.on_border


def test_a_device_reports_as_the_learner_would() -> None:
    X, y, people = data(4)
    inside, device = (
        made(UserLevelLDPRegressor, {"items_per_user": 4, "batch_size": 10, "scaling": "declared"}) for _ in range(2)
    )
    inside.learn_encoded(X, y, subjects=people)
    report = device.randomizer([({"a": a, "b": b}, t) for (a, b), t in zip(X, y, strict=True)])
    np.testing.assert_array_equal(open_sum(inside), report.answer)
    half = device.randomizer
    inf = float("inf")
    for centre, scale, *bounds in (
        (0.0, 1.0, 1.0, 1.0),
        (0.0, 1.0, 0.0, inf),
        (0.0, 1.0, 1.0),
        (0.0, 1.0, 0.0, 5e-324),
        (inf, 1.0, 0.0, 1.0),
        (0.0, 0.0, 0.0, 1.0),
    ):
        units = half.units._replace(centre=centre, scale=scale, bounds=tuple(bounds))
        with pytest.raises((SchemaError, ConfigError), match="target"):
            type(half)(**{name: getattr(half, name) for name in half.__dataclass_fields__} | {"units": units})


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor])
def test_newton_begins_within_the_bounds_and_then_units_do_not_matter(kind: Any) -> None:
    X, y, _ = data(3000)
    learner, other, raw = (kind(features=["a", "b"], seed=3, target=t) for t in (BOUNDS, (-100.0, 100.0), None))
    np.testing.assert_array_equal(learner.theta, [0, 0, CENTRE, SCALE])
    np.testing.assert_array_equal(raw.theta, [0, 0, 0, 1])
    learner.learn_encoded(X, y)
    other.learn_encoded(X, (y - CENTRE) / SCALE * 100)
    np.testing.assert_allclose(learner.theta, other.theta * SCALE / 100 + CENTRE * (np.arange(4) == 2), rtol=1e-4)
    with pytest.raises(ConfigError, match="state"):
        learner.load_state_dict(raw.state_dict())  # of a target without bounds
    for options in ({"intercept": False}, {"domain": L2Ball(3.0)}, {"method": "ac-sa"}, {"loss": "quantile"}):
        assert np.abs(kind(features=["a", "b"], target=BOUNDS, **options).theta).max() <= 1


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor])
def test_newton_learns_targets_of_any_size(kind: Any) -> None:
    """Shares, rates and dollars: the same model in other units. The least scale of Huber's loss, .1, is not in them."""
    X, y, _ = data(3000)
    y = (y - CENTRE) / SCALE
    whole = kind(features=["a", "b"], seed=3, target=(-1.0, 1.0))
    whole.learn_encoded(X, y)
    for unit in (1e-50, 1e-3, 1e9):
        learner = kind(features=["a", "b"], seed=3, target=(-unit, unit))
        learner.learn_encoded(X, y * unit)
        np.testing.assert_allclose(learner.theta, whole.theta * unit, rtol=1e-6)
        again = kind(features=["a", "b"], seed=3, target=(-unit, unit))
        learner.close_batch()
        again.load_state_dict(learner.state_dict())
        np.testing.assert_array_equal(again.theta, learner.theta)


@pytest.mark.parametrize("kind", [LDPSGDRegressor, PanPrivateRegressor, UserLevelLDPRegressor])
def test_bounds_whose_squares_leave_the_doubles_are_refused(kind: Any) -> None:
    for bounds in ((0.0, 1e-61), (-1e61, 1e61)):
        with pytest.raises(SchemaError, match="distance"):
            kind(features=["a"], target=bounds).learn_one({"a": 0.0}, 0.0)


@pytest.mark.slow
def test_units_are_off_where_a_parameter_is_in_those_of_theta() -> None:
    for options in ({"domain": L2Ball(3.0)}, {"smoothness": 2.0}, {"strong_convexity": 0.1}, {"intercept": False}):
        assert made(UserLevelLDPRegressor, options).randomizer.units.bounds is None
        assert made(WindowedRegressor, options | {"window": 9000}).model_dict()["scaling"] == "(None, [])"
    assert made(WindowedRegressor, {"scaling": "none"}).model_dict()["scaling"] == "(None, [])"
    for kind in (WindowedRegressor, UserLevelLDPRegressor):
        with pytest.raises(SchemaError, match="low < high"):
            made(kind, {}, (2.0, 1.0))
    for kind in (WindowedClassifier, UserLevelLDPClassifier):
        assert "None" in kind(features=["a"]).model_dict()["scaling"]
