"""What columns `predict` adds to a DataFrame, without Spark around it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamdp.config.job import make_config
from streamdp.errors import NotAvailableError, SchemaError
from streamdp.serving.publish import present
from streamdp.serving.snapshots import Model
from streamdp.spark.predicting import predict
from streamdp.store.store import Store


def model(folder: Path, learned: int = 1) -> Model:
    settings = {
        "job": "j",
        "schema": {"features": {"a": [-1, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}},
        "model": {"estimator": "LDPSGDClassifier", "budget": "eps=1"},
        "source": {"type": "spark"},
        "store": str(folder / "a.db"),
    }
    config = make_config(settings)
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text()):
        found = present(config.store_path, "j")
    for _ in range(learned):
        found.estimator.learn_one({"a": 0.5}, "yes")
    return found


@pytest.mark.parametrize(
    ("columns", "column", "said"),
    [
        (["a", "prediction"], "prediction", "two columns of the name 'prediction'"),
        (["a", "Prediction"], "prediction", "two columns of the name 'prediction'"),
        (["a", "PREDICTION_YES"], "prediction", "two columns of the name 'prediction_yes'"),
        (["a", "prediction_no", "p"], "prediction", "two columns of the name 'prediction_no'"),
        (["a", "b"], "A", "two columns of the name 'A'"),
        (["a"], "", "expected a name, got an empty one"),
        (["a"], " ", "expected a name, got an empty one"),
    ],
)
def test_a_name_that_is_taken_or_empty_is_refused(columns: list[str], column: str, said: str, tmp_path: Path) -> None:
    """An empty name was taken, and Spark took one column for the other."""
    frame: Any = SimpleNamespace(columns=columns)
    with pytest.raises(SchemaError, match=said):
        predict(frame, model(tmp_path), column=column)


def test_nothing_learned_is_nothing_predicted(tmp_path: Path) -> None:
    frame: Any = SimpleNamespace(columns=["a"])
    with pytest.raises(NotAvailableError, match="nothing is learned yet"):
        predict(frame, model(tmp_path, 0))
