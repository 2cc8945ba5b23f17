"""Numbers whose bounds are not declared: windows find a range, and other learners refuse them."""

from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor, WindowedRegressor
from streamdp.config.definition import Definition
from streamdp.config.prospect import prospect
from streamdp.config.trust import completed
from streamdp.data.declaration import FURTHEST
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators.statistics import Statistics
from streamdp.serving.export import exported_model

UNKNOWN = {name: {"bounds": "private"} for name in ("year", "amount", "small")}
HONEST = {"year": (1900.0, 2030.0), "amount": (0.0, 200_000.0), "small": (-0.1, 0.1)}


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(1985, 12, n), np.exp(rng.normal(8, 1, n)), rng.normal(0, 0.01, n)])
    return X, (X[:, 0] - 1985) / 12 + np.log(X[:, 1]) - 8 + 50 * X[:, 2] + rng.normal(size=n)


def learned(features: Any, n: int, **more: Any) -> Any:
    model = WindowedRegressor(features=features, target=(-10, 10), window=n, items_per_user=1, seed=1, **more)
    model.learn_arrays(*drawn(n))
    return model


def test_a_model_without_bounds_is_as_good_as_one_with_honest_bounds() -> None:
    X, y = drawn(20_000, 1)
    errors = [np.mean((learned(f, 20_000).predict_arrays(X) - y) ** 2) / y.var() for f in (UNKNOWN, HONEST)]
    assert errors[1] < 0.47
    assert errors[0] < 1.03 * errors[1]


def test_a_value_far_out_is_cut_and_the_range_is_exported() -> None:
    model = learned(UNKNOWN, 20_000)
    far, further = (model.predict_one({"year": 1985, "amount": amount, "small": 0}) for amount in (1e6, 1e300))
    assert far == further
    low, high = np.array(exported_model(model)["ranges"][1]) * FURTHEST
    assert -60_000 < low < 0
    assert 10_000 < high < 100_000
    assert "3 columns have no declared bounds" in model.statement()


def test_a_window_of_few_people_waits_and_spends_nothing_on_it() -> None:
    model = learned(UNKNOWN, 2000)
    least = model.learner.bounds_from
    assert 2000 < least < 20_000
    assert model.learner.scales.columns[:3].tolist() == [0, 1, 2]
    assert model.learner.units.columns[1, :3].tolist() == [1.0] * 3
    assert model.learner.ranges is None or np.isinf(model.learner.ranges).all()


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor, LDPASGDRegressor])
def test_other_trusts_refuse_it_with_what_to_do(kind: Any) -> None:
    with pytest.raises(ConfigError, match="bounds: private needs trust: window and no domain, because"):
        kind(features=UNKNOWN, target=(-10, 10))


@pytest.mark.parametrize("more", [{"scaling": "none"}, {"method": "private-range"}])
def test_windows_without_private_scales_refuse_it(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="bounds: private"):
        learned(UNKNOWN, 20_000, **more)


def test_statistics_refuse_it() -> None:
    with pytest.raises((ConfigError, SchemaError), match="bounds: private"):
        Statistics({"m": {"mean": "year"}}, UNKNOWN)


@pytest.mark.parametrize("more", [{"transform": "asinh"}, {"knots": [1.0]}, {"typical": (1.0, 2.0)}])
def test_what_needs_public_bounds_says_so(more: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="need public bounds"):
        Schema({"a": {"bounds": "private", **more}}, target="y")


def job(trust: str) -> Definition:
    settings = {
        "schema": {"features": UNKNOWN, "target": {"column": "y", "bounds": [-10, 10]}},
        "model": {"trust": trust, "budget": "eps=1,delta=1e-6"} | ({"window": 20_000} if trust == "window" else {}),
    }
    return Definition.model_validate(completed(settings))


def test_a_job_may_say_it_and_check_says_its_price() -> None:
    found = prospect(job("window"), 20_000)
    assert (
        f"cost 5 % of the mu^2 of a window that finds them, which takes about {found.bounds_from:,} people"
        in found.sentence
    )
    with pytest.raises(ValueError, match="bounds: private"):
        job("process")
