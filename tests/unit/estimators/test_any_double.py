"""No finite record makes a number that is not finite, and none decides whether there is a release.

Values are drawn over the whole range of doubles: any exponent, subnormal numbers, both signs, zero and the largest.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp.errors import PrivacyWarning

RANGES = {"a": (-1.0, 1.0), "b": (0.0, 1e-59), "c": (-1e59, 1e59)}
UNITS: dict[str, dict[str, Any]] = {"as they are": {"features": list(RANGES)}, "scaled": {"features": RANGES}}
LOSSES = {"Regressor": ["huber", "squared", "quantile"], "Classifier": ["logistic", "hinge", "softmax"]}
OPTIONS: dict[str, dict[str, Any]] = {
    "LDPSGD": {},
    "LDPASGD": {},
    "PanPrivate": {"batch_size": 20},
    "Shuffle": {"batch_size": 20},
    "UserLevelLDP": {"items_per_user": 2},
    "Windowed": {"window": 60, "items_per_user": 2, "budget": "eps=50,delta=0.1"},
}
REPEATS = ("LDPSGD", "Shuffle", "UserLevelLDP", "Windowed"), "as they are"
"""With LDPASGD and PanPrivate, which reach the same lines: the campaign has them too, and their further losses."""
CASES = [
    pytest.param(
        name + kind,
        loss,
        units,
        marks=[pytest.mark.campaign] * (name in REPEATS[0] and (units == REPEATS[1] or loss != losses[0])),
    )
    for name in OPTIONS
    for kind, losses in LOSSES.items()
    for loss in losses
    for units in UNITS
]


def doubles(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Finite doubles of any exponent; a tenth are one of the ends."""
    mantissa, exponent = rng.uniform(-1, 1, shape), rng.integers(-1074, 1025, shape)
    with np.errstate(over="ignore"):
        drawn = np.ldexp(mantissa, exponent)
    largest = np.finfo(float).max
    ends = rng.choice([largest, -largest, 5e-324, -5e-324, 0.0, 1e154, -1e154, 1e77], shape)
    return np.where(np.isfinite(drawn) & (rng.random(shape) < 0.9), drawn, ends)


def made(name: str, loss: str, units: str) -> Any:
    kind = name.removesuffix("Regressor").removesuffix("Classifier")
    options = OPTIONS[kind] | UNITS[units]
    if loss == "softmax":
        options |= {"classes": ["x", "y", "z"]}
    if name.endswith("Regressor") and units != "as they are":
        options |= {"target": (-1e50, 1e50)}
    return getattr(streamdp, name)(loss=loss, seed=1, **options)


@pytest.mark.parametrize(("name", "loss", "units"), CASES)
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
@pytest.mark.slow
def test_any_finite_records_are_learned_and_released(name: str, loss: str, units: str) -> None:
    rng, n = np.random.default_rng(1), 120
    model = made(name, loss, units)
    X = doubles(rng, (n, len(RANGES)))
    y = doubles(rng, (n,)) if name.endswith("Regressor") else rng.integers(0, 3 if loss == "softmax" else 2, n) * 1.0
    people = [f"p{i % (n // 2)}" for i in range(n)] if name.startswith(("User", "Windowed")) else None
    model.learn_encoded(X, y, subjects=people)
    assert model.n_seen == n
    state = model.state_dict()
    assert all(np.isfinite(v).all() for v in state.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f")
    assert np.isfinite(model.theta).all()
    assert model.guarantee is not None
    fresh = made(name, loss, units)
    fresh.load_state_dict(state)  # a state is refused if its theta is outside the domain
    for x in X[:5]:
        record = dict(zip(RANGES, x.tolist(), strict=True))
        assert (
            not np.isnan(model.predict_one(record))
            if name.endswith("Regressor")
            else model.predict_one(record) in (["x", "y", "z"] if loss == "softmax" else [False, True])
        )
        if loss in ("logistic", "softmax"):
            assert sum(model.predict_proba_one(record).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("loss", "budget", "column", "target"),
    [("poisson", "eps=1", (0, 1), (0, 1e-59)), ("huber", "eps=1e6", (1e59, 1.5e59), (-1e59, 1e59))],
)
def test_states_of_the_widest_and_narrowest_bounds_can_be_loaded(
    loss: Any, budget: str, column: tuple[float, float], target: tuple[float, float]
) -> None:
    given: dict[str, Any] = {"loss": loss, "budget": budget, "features": {"a": column}, "target": target, "seed": 1}
    with pytest.warns(PrivacyWarning) if budget == "eps=1e6" else nullcontext():
        model = streamdp.PanPrivateRegressor(**given)
    rng = np.random.default_rng(1)
    model.learn_encoded(rng.uniform(-1, 1, (3000, 1)), rng.choice([*target, 0.0], 3000))
    model.close_batch()
    model.clone().load_state_dict(model.state_dict())


def test_states_of_narrow_columns_and_wide_targets_can_be_loaded() -> None:
    model = streamdp.LDPASGDRegressor(features={"a": (-1e-59, 1e-59)}, target=(0, 1e59), seed=1)
    rng = np.random.default_rng(1)
    model.learn_encoded(rng.uniform(-1, 1, (700, 1)), rng.choice([0.0, 1e59], 700))
    model.clone().load_state_dict(model.state_dict())


@pytest.mark.parametrize("name", ["LDPASGDRegressor", "PanPrivateRegressor", "ShuffleRegressor"])
def test_any_finite_records_are_validated(name: str) -> None:
    rng = np.random.default_rng(2)
    model = getattr(streamdp, name)(features=RANGES, target=(-1e50, 1e50), seed=1, validation={"share": 0.5})
    model.learn_encoded(doubles(rng, (400, len(RANGES))), doubles(rng, (400,)))
    assert model.quality is not None
    if not model.at_boundary:
        model.close_batch()
    assert all(np.isfinite(v).all() for v in model.state_dict().values() if isinstance(v, np.ndarray))
