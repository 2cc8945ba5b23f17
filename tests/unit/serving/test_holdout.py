"""The best constant on a holdout: no other constant does better. And the doubt that a store keeps of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from streamdp import Quantile
from streamdp.config.job import NOTHING, make_config
from streamdp.database.sqlite import SQLiteFile
from streamdp.errors import StoreUnavailableError
from streamdp.service.jobs import Follower
from streamdp.serving.holdout import WORSE, Holdout
from streamdp.serving.publish import Publisher
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.service import job


def holdout(folder: Path, target: dict[str, Any], values: list[Any]) -> Holdout:
    (folder / "public.csv").write_text("a,y\n" + "".join(f"0,{value}\n" for value in values))
    estimator = "LDPASGDClassifier" if "classes" in target else "LDPASGDRegressor"
    settings = {
        "job": "j",
        "source": {"type": "csv", "path": "never-read.csv"},
        "schema": {"features": {"a": [-1, 1]}, "target": {"column": "y"} | target},
        "model": {"estimator": estimator},
        "holdout": str(folder / "public.csv"),
    }
    return Holdout(make_config(settings))


def test_of_numbers_in_their_unit(tmp_path: Path) -> None:
    y = np.array([0.0, 1.0, 5.0, 310.0, 31.0])  # one lies beyond the bounds, to which records are clipped
    found = holdout(tmp_path, {"bounds": [0, 100], "scale": 10}, y.tolist()).constant()
    tried = np.linspace(0, 100, 10_001)[:, None]
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(np.mean((y - tried) ** 2, axis=1)).min(), abs=1e-4)
    assert found["mean_absolute_error"] == pytest.approx(np.mean(np.abs(y - tried), axis=1).min(), abs=1e-4)


def test_of_classes(tmp_path: Path) -> None:
    found = holdout(tmp_path, {"classes": ["u", "v", "w"]}, ["u", "v", "v", "u", "v"]).constant()
    assert found["accuracy"] == 0.6
    losses = [-0.4 * np.log(p) - 0.6 * np.log(1 - p) for p in np.linspace(0.01, 0.99, 99)]
    assert found["log_loss"] == pytest.approx(min(losses))


class Constant:
    """A model that says the same of every record."""

    probabilistic = False
    loss: Any = "huber"

    def __init__(self, value: float, learned: int = 1) -> None:
        self.value, self.learner = value, SimpleNamespace(n_released=learned)

    def predict_encoded(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.value)


def test_a_model_that_is_worse_than_a_constant_in_all_measures_is_told(tmp_path: Path) -> None:
    found = holdout(tmp_path, {"bounds": [0, 100], "scale": 10}, [0.0, 10.0, 20.0, 90.0])
    text = found.measure(Constant(0.1))["warning"]
    assert "worse than the best constant: mean absolute error 29.5 beside 25, root" in text
    assert "warning" not in found.measure(Constant(1.5))  # the median has the best absolute error, not the best square
    high = Constant(0.1)
    high.loss = Quantile(tau=0.9)
    assert "warning" not in found.measure(high)
    classes = holdout(tmp_path, {"classes": ["u", "v"]}, ["u", "v", "v"])
    assert classes.measure(Constant(0))["warning"].endswith("accuracy 0.3333 beside 0.6667")
    assert "warning" not in classes.measure(Constant(1))
    assert classes.measure(Constant(0, learned=0)) is None


def test_the_store_has_the_doubt_of_the_last_commit_whoever_noted_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a worker did not clear the doubt of one that had left, and a database that was away ended the run."""
    config = job(tmp_path, holdout=str(tmp_path / "public.csv"), cap=None)
    (tmp_path / "public.csv").write_text("dep_delay,origin,late\n0,EWR,True\n")
    heard: list[Any] = []
    first, left = Publisher(config, (lambda _, measures: heard.append(measures),)), Publisher(config)
    with config.open_store(NOTHING) as store:
        found = store.commit(config.build_estimator().state_dict(), {"row": 1}, Counts(learned=1))

    def noted(publisher: Publisher, measures: dict[str, object]) -> tuple[str, bool]:
        monkeypatch.setattr(Holdout, "measure", lambda *_: measures)
        publisher(Store.snapshots(config.store_path)[0])
        looked = Follower(config).look(found).snapshot
        return Store.snapshots(config.store_path)[0].doubt, looked is not None and bool(looked.doubt)

    assert noted(first, {}) == ("", False)
    assert noted(left, {"warning": "w"}) == (WORSE, True)
    with monkeypatch.context() as away:
        away.setattr(SQLiteFile, "open_for_writing", Mock(side_effect=StoreUnavailableError("away")))
        assert noted(first, {}) == (WORSE, True)
    assert noted(first, {}) == ("", False)
    assert heard == [{}, {}, {}]
    noted(left, {"warning": "w"})
    Publisher(config.model_copy(update={"holdout": None}))(Store.snapshots(config.store_path)[0])
    assert Store.snapshots(config.store_path)[0].doubt == ""
