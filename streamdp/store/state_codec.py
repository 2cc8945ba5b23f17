"""A state as JSON text: plain values as JSON values, arrays as base64 of their little-endian bytes.

Pickle is never used, because it runs code when it is read.

>>> decode_state(encode_state({"n_seen": 2, "theta": np.array([0.1, -0.0])}))
{'n_seen': 2, 'theta': array([ 0.1, -0. ])}
"""

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from streamdp.errors import StoreError

_ARRAY = "__array__"
_DTYPES = ("<f4", "<f8", "<i8")


class StoredState(Mapping[str, Any]):
    """A state as it is stored, the text of `encode_state`, which is kept. Reading raises the errors of `decode_state`.

    It is decoded when it is first read: many listeners of a commit read the counts only.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _state(self) -> dict[str, object]:
        return decode_state(self.text)

    def __getitem__(self, name: str) -> Any:
        return self._state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return repr(self._state)


def encode_state(state: Mapping[str, object]) -> str:
    """Return a state as JSON text.

    Every float and every array is decoded bit for bit. numpy scalars are decoded as Python's numbers, tuples as lists.
    Values are nested dicts (with str keys) and lists of str, bool, int, float, None, and float32, float64 and int64
    arrays. Raises `StoreError` for any other value; the message names its place.
    """
    if isinstance(state, StoredState):
        return state.text
    plain = _encode(dict(state), "state")
    try:
        text = orjson.dumps(plain).decode()  # a state with private scaling has 300 kB
    except TypeError:  # a whole number of more than 64 bits, or text that is not valid Unicode
        text = "null"
    return json.dumps(plain, separators=(",", ":")) if "null" in text else text  # it writes null for NaN and infinities


def decode_state(text: str) -> dict[str, Any]:
    """Return the state of a text by `encode_state`. Raises `StoreError` if it is JSON but not an encoded state."""
    state = json.loads(text, object_hook=_decode)
    if not isinstance(state, dict):
        raise StoreError("expected an encoded state, got another JSON value")
    return state


def _encode(value: object, place: str) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic() if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            return value.item()
        case list() | tuple():
            return [_encode(item, f"{place}[{i}]") for i, item in enumerate(value)]
        case dict() if _ARRAY not in value and all(isinstance(key, str) for key in value):
            return {key: _encode(item, f"{place}[{key!r}]") for key, item in value.items()}
        case np.ndarray():
            code = value.dtype.newbyteorder("<").str
            if code in _DTYPES:
                data = base64.b64encode(value.astype(code).tobytes()).decode("ascii")
                return {_ARRAY: code, "shape": list(value.shape), "data": data}
            raise StoreError(f"{place}: expected an array of float32, float64 or int64, got {value.dtype}")
    raise StoreError(f"{place}: expected plain values and arrays, got {type(value).__name__}")


def _decode(item: dict[str, Any]) -> Any:
    if _ARRAY not in item:
        return item
    if item[_ARRAY] not in _DTYPES:
        raise StoreError(f"expected an array of float32, float64 or int64, got {item[_ARRAY]!r}")
    flat = np.frombuffer(base64.b64decode(item["data"]), dtype=item[_ARRAY])
    return flat.reshape(item["shape"]).astype(flat.dtype.newbyteorder("="))
