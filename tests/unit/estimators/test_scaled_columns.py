"""Pan-private and shuffle learners whose columns get private units: predictions, records, devices, parts and states."""

from typing import Any

import numpy as np
import pytest

from streamdp import L2Ball, PanPrivateRegressor, ShuffleRegressor
from streamdp.aggregation.shuffled_sum import Shuffler
from streamdp.errors import ConfigError
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import ShuffleDevice
from streamdp.protocol.shuffle_wire import write_announcement
from tests.support.states import middle_of, steps_of

NAMES = ["a", "b", "c"]
FEATURES = dict.fromkeys(NAMES, (-8.0, 8.0))
TARGET = (-1024.0, 1024.0)
BUDGET = "eps=4,delta=1e-6"
KINDS = [PanPrivateRegressor, ShuffleRegressor]
each = pytest.mark.parametrize("kind", KINDS)


def stream(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns with spreads of 1/30 of their bounds, and a target with one of 1/200."""
    rng = np.random.default_rng(seed)
    X = rng.normal([0.5, -0.4, 0.1], [0.03, 0.03, 0.5], (n, 3)).clip(-1, 1)
    return X, X @ [120.0, -80.0, 5.0] + 40 + rng.normal(0, 1, n)


def learned(kind: Any, n: int, **options: Any) -> Any:
    model = kind(**({"features": FEATURES, "target": TARGET, "budget": BUDGET, "seed": 1} | options))
    model.learn_encoded(*stream(n))
    model.close_batch()
    return model


def error(model: Any) -> float:
    X, y = stream(2000, 9)
    return float(np.mean(np.abs(y - model.predict_encoded(X))))


@each
def test_a_domain_and_a_model_without_intercept_keep_their_columns(kind: Any) -> None:
    for options in ({"domain": L2Ball(500.0)}, {"intercept": False}):
        model = learned(kind, 500, **options)
        assert steps_of(model).state.units.size == 0
        assert len(middle_of(model)) == steps_of(model).curvature.parameters


@each
def test_a_state_within_a_search_with_much_noise_goes_on(kind: Any) -> None:
    """What a search keeps may lie anywhere, so it must not be checked as if it were parameters."""
    options: dict[str, Any] = {"features": FEATURES, "target": TARGET, "budget": "eps=1,delta=1e-6", "batch_size": 40}
    X, y = stream(400)
    for seed in range(5):
        model, other = kind(seed=seed, **options), kind(**options)
        for at in range(0, len(X), 40):
            model.learn_encoded(X[at : at + 40], y[at : at + 40])
            model.close_batch()
            other.load_state_dict(model.state_dict())
            np.testing.assert_array_equal(steps_of(other).state.numbers(), steps_of(model).state.numbers())


def test_parts_of_a_batch_add_up_to_one_process() -> None:
    """Without noise: two processes hold the records, one adds their sums; units change on the way."""
    X, y = stream(6000)
    options: dict[str, Any] = {"features": FEATURES, "target": TARGET, "mechanism": "none", "batch_size": 1000}
    alone, driver = PanPrivateRegressor(**options), PanPrivateRegressor(**options)
    alone.learn_encoded(X, y)
    alone.close_batch()

    def ask(number: int, state: dict[str, Any]) -> Any:
        for half in (slice(0, 400), slice(400, 1000)):
            worker = PanPrivateRegressor(**options)
            worker.load_state_dict(state)
            yield worker.part(X[1000 * number :][half], y[1000 * number :][half])

    driver.learn_parts([1000] * 6, ask)
    assert np.any(steps_of(driver).state.units[1] > 2)
    np.testing.assert_array_equal(steps_of(driver).state.numbers(), steps_of(alone).state.numbers())


@pytest.mark.slow
def test_devices_get_centre_and_slope_with_the_point() -> None:
    options: dict[str, Any] = {"features": FEATURES, "target": TARGET, "budget": "eps=20,delta=1e-5"}
    learner, agreement = ShuffleRegressor(**options, seed=4), Agreement(ShuffleRegressor(**options))
    X, y = stream(12_000)
    at = 0
    while at + (users := learner.randomizer.params.users) <= len(X):
        announced = write_announcement(Agreement(learner).announcement(learner.batch, learner.randomizer.point))
        device = agreement.accept(announced)
        np.testing.assert_array_equal(device.point, learner.randomizer.point)
        ShuffleDevice(agreement).answer(announced, {"a": 4.0, "b": -3.0, "c": 1.0}, 60.0)
        shuffler = Shuffler(device.params)
        shuffler.collect(device.messages_of(X[at : at + users], y[at : at + users]))
        learner.absorb(shuffler.forward())
        at += users
    assert np.all(steps_of(learner).state.units[1, :2] > 10)
    assert error(learner) < 1.5


def test_a_device_refuses_units_that_are_none() -> None:
    good = ShuffleRegressor(features=FEATURES, target=TARGET).randomizer
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    for point in (good.point[:-1], np.append(good.point[:-1], np.inf), np.append(good.point, 1.0)):
        with pytest.raises(ConfigError, match=r"units|finite"):
            ShuffleRandomizer(**(fields | {"point": point}))
    assert ShuffleRandomizer(**(fields | {"point": good.point[:-6]})).point.shape == (5,)
