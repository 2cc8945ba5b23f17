"""Predicts with an exported model in mlflow. `streamdp export --to mlflow` copies this file beside `exported.py`."""

import json
from typing import Any

from .exported import predict, probabilities


class ExportedModel:
    """What mlflow calls: an exported `model`, which is the document, and its predictions."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, frame: Any, params: Any = None) -> Any:
        """Return a data frame with the prediction for each row of `frame`, and the probability of each class.

        A row that does not fit the schema has missing values. There are no `params`.
        """
        records = frame.astype(object).where(frame.notna(), None).to_dict("records")
        found = {"prediction": [predict(record, self.model) for record in records]}
        if self.model["probabilities"]:
            shares = [probabilities(record, self.model) or {} for record in records]
            for label in self.model["classes"]:
                found[f"probability of {label}"] = [share.get(label) for share in shares]
        kinds = {name: float for name in found if name != "prediction" or self.model["classes"] is None}
        return type(frame)(found, index=frame.index, dtype=object).astype(kinds)


def _load_pyfunc(path: str) -> ExportedModel:
    """What mlflow calls with the path of the document."""
    with open(path, encoding="utf-8") as file:
        return ExportedModel(json.load(file))
