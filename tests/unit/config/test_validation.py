"""The key `validation` of a job: what it accepts, and what it spends."""

from typing import Any

import pytest

from streamdp.config.definition import read_definition
from streamdp.config.job import JobConfig, make_config
from streamdp.errors import ConfigError


def job(**more: Any) -> JobConfig:
    settings: dict[str, Any] = {
        "job": "j",
        "source": {"type": "csv", "path": "d.csv"},
        "schema": {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["0", "1"]}},
        "model": {"estimator": "LDPSGDClassifier", "budget": "eps=1"},
    }
    return make_config(settings | more)


NUMBERS = {"features": {"x": [0, 1]}, "target": {"column": "y", "bounds": [0, 40], "scale": 10}}


def test_the_store_keeps_validation_and_it_belongs_to_the_model() -> None:
    assert "validation" not in job().text()
    config = job(validation={"share": 0.1})
    assert config.fingerprint() != job().fingerprint() != job(validation={"share": 0.2}).fingerprint()
    stored = read_definition(config.text())
    assert stored.fingerprint() == config.fingerprint()
    assert stored.build_estimator().validation == {"share": 0.1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation": {}}, "one of share and budget"),
        ({"validation": {"share": 0.9}}, "validation.share: expected a number above 0 and at most 0.5"),
        ({"validation": {"part": 0.1}}, "validation.part"),
        ({"validation": {"budget": "mu=1"}}, "the model's kind"),
        (
            {"validation": {"budget": "eps=1"}, "model": {"estimator": "WindowedClassifier", "window": 900}},
            "windows hold people back",
        ),
        (
            {
                "validation": {"share": 0.1},
                "model": {"estimator": "UserLevelLDPClassifier", "window": 900, "items_per_user": 1},
                "schema": {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["0", "1"]}, "subject": "s"},
            },
            "has no validation: its users report under LDP",
        ),
        (
            {
                "validation": {"budget": "eps=1"},
                "schema": {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["0", "1"]}, "budget": "b"},
            },
            "set validation.share",
        ),
        (
            {
                "validation": {"budget": "eps=1"},
                "cap": "eps=1.5",
                "schema": {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["0", "1"]}, "subject": "s"},
            },
            "eps=1.5 is below model.budget with validation.budget, eps=2",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job(**settings)


@pytest.mark.parametrize(
    ("estimator", "given", "bound"),
    [("LDPSGDRegressor", {}, None), ("PanPrivateRegressor", {}, None), ("PanPrivateRegressor", {"bound": 5}, 0.5)],
)
def test_bounds_are_in_the_unit_of_the_column(estimator: str, given: dict[str, Any], bound: float | None) -> None:
    budget = "eps=1" if estimator.startswith("LDP") else "eps=1,delta=1e-6"
    config = job(schema=NUMBERS, model={"estimator": estimator, "budget": budget}, validation={"share": 0.5} | given)
    model: Any = config.build_estimator()
    assert model.validation.get("bound") == bound
    model.learn_encoded([[0.5]] * 60_000, [2.0] * 60_000)
    model.close_batch()
    quality = config.quality(model)
    assert quality.largest == pytest.approx(model.quality.largest * 10)
    assert quality.total.error.value == pytest.approx(model.quality.total.error.value * 10)
    assert job().quality(job().build_estimator()) is None
