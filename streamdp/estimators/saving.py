"""A model as a file: its parameters and its state as JSON text with a checksum, never as pickle.

What the file holds may leave memory. The parameters are public. The state is that of `state_dict`, which exists at
boundaries only: it holds no raw record, no unreleased contribution and no random words, and it is what a store commits.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from hashlib import blake2b

import numpy as np

from streamdp.database.durable import write_durably
from streamdp.errors import ConfigError, StoreError, file_errors
from streamdp.optim.domains import Box, L2Ball, RealSpace
from streamdp.optim.losses import Loss
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, PureDP
from streamdp.privacy.mechanisms import MECHANISMS
from streamdp.store.state_codec import encode_state

FORMAT = "streamdp model"
VERSION = 1
DOMAINS = {kind.__name__: kind for kind in (Box, L2Ball, RealSpace)}


def checksum(text: str) -> str:
    """The checksum of the text that describes the model."""
    return blake2b(text.encode(), digest_size=32, person=b"streamdp-model").hexdigest()


def save(path: str, kind: str, parameters: Mapping[str, object], state: dict[str, object]) -> None:
    """See `Estimator.save`: path, and of the estimator its kind, parameters and state.

    Raises `ConfigError` for parameters that cannot be written, and `StoreError` if the file cannot be.
    """
    written = {name: _written(name, value) for name, value in parameters.items()}
    text = json.dumps({"estimator": kind, "parameters": written, "state": encode_state(state)})
    document = {"format": FORMAT, "version": VERSION, "checksum": checksum(text), "model": text}
    with file_errors(StoreError, f"cannot write {path}"):
        write_durably(path, json.dumps(document) + "\n")


def _written(name: str, value: object) -> object:
    """A parameter as JSON values; `loading` reads them."""
    if name == "ledger" and value is not None:
        raise ConfigError("save: a model with a ledger is kept by a Store, which commits its spends together with it")
    match value:
        case Loss():
            return {"loss": value.name, "parameters": asdict(value)}
        case PureDP() | ApproxDP() | GaussianDP():
            return str(value)
        case type() if value in MECHANISMS.values():
            return next(known for known, kind in MECHANISMS.items() if kind is value)
        case _ if is_dataclass(value) and type(value).__name__ in DOMAINS:
            return {"domain": type(value).__name__, "parameters": asdict(value)}  # type: ignore[arg-type]
    plain = _plain(value)
    try:
        text = json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        raise ConfigError(f"save: expected {name} of plain values (text, numbers, lists, mappings)") from None
    names = plain if name in ("features", "classes") and isinstance(plain, list) else []
    if plain != json.loads(text) or any(isinstance(one, list) for one in names):
        raise ConfigError(f"save: expected {name} with text as names")
    return plain


def _plain(value: object) -> object:
    """Tuples as lists, as JSON reads them, and numpy's arrays and scalars as lists and Python's scalars."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
