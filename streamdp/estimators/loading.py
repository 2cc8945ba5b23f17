"""Models from the files that `save` wrote."""

import json
import os
from typing import Any

from streamdp import estimators
from streamdp.errors import StoreDamagedError, StoreError, StoreVersionError, StreamDPError, check_path, file_errors
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.saving import DOMAINS, FORMAT, VERSION, checksum
from streamdp.optim.losses import LOSSES
from streamdp.store.state_codec import decode_state


def load(path: str | os.PathLike[str]) -> Any:
    """Return the model of a file that its method `save` wrote. No code in the file is run.

    Two models that are loaded from one file each count their own spends from then on.

    Parameters
    ----------
    path
        The file.

    Raises `StoreError` if it cannot be read, `StoreVersionError` for another format, and `StoreDamagedError` for any
    other file and for a damaged one.
    """
    name = check_path("load", path)
    try:
        with file_errors(StoreError, f"cannot read {name}"), open(name, encoding="utf-8") as file:
            document = json.load(file)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError
    except (ValueError, RecursionError):
        raise StoreDamagedError(f"{name}: expected a file that the method save of a model wrote") from None
    if document.get("version") != VERSION:
        raise StoreVersionError(f"{name} has another format: use the version of streamdp that wrote it")
    text = document.get("model")
    if not isinstance(text, str) or document.get("checksum") != checksum(text):
        raise StoreDamagedError(f"{name} fails its checksum: it is damaged, or was changed; restore a copy")
    try:
        return _built(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError, StreamDPError):
        raise StoreDamagedError(f"{name} holds no model that this version can build") from None


def _built(model: dict[str, Any]) -> object:
    kind = getattr(estimators, model["estimator"])
    if model["estimator"] not in estimators.__all__ or not issubclass(kind, Estimator):
        raise ValueError("no estimator")
    estimator = kind(**{name: _read(name, value) for name, value in model["parameters"].items()})
    estimator.load_state_dict(decode_state(model["state"]))
    return estimator


def _read(name: str, value: Any) -> object:
    if name == "loss" and isinstance(value, dict):
        return LOSSES[value["loss"]](**value["parameters"])
    if name == "domain" and value is not None:
        return DOMAINS[value["domain"]](**value["parameters"])
    return tuple(value) if name == "target" and value is not None else value
