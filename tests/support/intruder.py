"""An intruder: it takes everything that can be reached from an object, and distinguishes two streams by that.

`walk` follows references as the garbage collector does, and opens what the collector does not: arrays and their bases,
buffers, generators of random numbers. It stops at modules of other packages, at compiled code, at the code of a source
file, which holds what the file says, and at weak references, which own nothing. `Seen` is one linear observation of a
batch; `best_weights` combines several into the likelihood ratio, and `learned_scores` finds a good combination from
runs of known streams.
"""

import gc
import io
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from struct import pack
from typing import Any, NamedTuple, cast

import numpy as np

OURS = ("streamdp", "connectors")

PLAIN = (int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, np.generic, np.dtype)
"""Values that hold no other values."""
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
"""Nearly all of them, which are recognised faster by their type."""

_PYTHONS = (dict, list, tuple, set, frozenset, deque, bytearray, memoryview, slice, property, io.BytesIO, random.Random)
_CODES = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CellType, types.CodeType, partial)
_ARRAYS = (np.ndarray, np.random.BitGenerator, np.random.Generator)
OPENED = (*_PYTHONS, *_CODES, *_ARRAYS, types.MappingProxyType)
"""Types that `children` opens completely; it also opens instances of classes written in Python."""


CODE = (type, types.ModuleType, types.CodeType)


def is_from(package: str, name: Any) -> bool:
    """Whether a module of this name belongs to the package; some types have a descriptor for a name."""
    return isinstance(name, str) and name.split(".")[0] == package


def is_ours(name: Any) -> bool:
    return any(is_from(package, name) for package in OURS)


def is_compiled(thing: Any) -> bool:
    """A compiled function: it keeps no argument, and its module is walked by itself."""
    return type(thing).__name__ == "cython_function_or_method"


def children(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with a name."""
    if isinstance(thing, (*PLAIN, weakref.ref)) or is_compiled(thing):
        return
    if isinstance(thing, types.CodeType) and thing.co_filename.endswith(".py"):
        return
    if isinstance(thing, types.ModuleType) and not is_ours(thing.__name__):
        return
    if isinstance(thing, type) and not is_ours(thing.__module__):  # its subclasses are most of what is loaded
        return
    if isinstance(thing, dict):
        for number, (key, value) in enumerate(list(thing.items())):
            yield f"[key {number}]", key
            yield f"[{key!r}]" if isinstance(key, str | int) else f"[value {number}]", value
    elif isinstance(thing, np.ndarray):
        yield ".base", thing.base
        if thing.dtype.hasobject:
            yield ".tolist", thing.tolist()
    elif isinstance(thing, memoryview):
        yield ".obj", thing.obj
    elif isinstance(thing, np.random.BitGenerator):
        yield ".state", thing.state
    elif isinstance(thing, np.random.Generator):
        yield ".bit_generator", thing.bit_generator
    elif isinstance(thing, random.Random):
        yield ".state", thing.getstate()
    elif isinstance(thing, io.BytesIO):
        yield ".value", thing.getvalue()
    elif isinstance(thing, types.CodeType):
        yield ".co_consts", thing.co_consts
    try:
        inner = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        inner = None
    if isinstance(inner, dict):
        for name, value in list(inner.items()):
            yield f".{name}", value
    if not isinstance(thing, dict):
        for number, value in enumerate(gc.get_referents(thing)):
            if value is not inner:
                yield f"<{number}>", value


def walk(root: Any, *, classes: bool = True) -> Iterator[tuple[str, Any]]:
    """Every object that can be reached from `root`, with a path to it; each once, except plain values.

    Without `classes` it stops at classes, modules and code, so that everything belongs to this object.
    """
    closed = {id(m.__dict__) for name, m in list(sys.modules.items()) if m and not is_ours(name)} if classes else set()
    queue: deque[tuple[str, Any]] = deque([("", root)])
    alive = {id(root): root}  # an id belongs to one object only while that object is alive
    while queue:
        path, thing = queue.popleft()
        yield path, thing
        if not classes and isinstance(thing, types.FunctionType):
            closed |= {id(thing.__globals__), id(thing.__builtins__)}
        for name, child in children(thing):
            if type(child) in _PLAIN or isinstance(child, PLAIN):
                yield path + name, child
            elif not (id(child) in alive or id(child) in closed or (not classes and isinstance(child, CODE))):
                alive[id(child)] = child
                queue.append((path + name, child))


_NO_VALUES = frozenset({dict, list, tuple, set, frozenset, type(None), type, *_CODES})
"""Types without a value of their own; what they hold is walked."""


def content(thing: Any) -> bytes | None:
    """The bytes of a value as memory holds them; None if it is no value."""
    kind = type(thing)
    if kind is str:
        return cast(str, thing).encode(errors="replace")
    if kind is bytes:
        return cast(bytes, thing)
    if kind in _NO_VALUES:
        return None
    if isinstance(thing, int | np.bool_):
        return int(thing).to_bytes(max(8, (int(thing).bit_length() + 8) // 8), sys.byteorder, signed=True)
    if isinstance(thing, float):
        return pack("d", thing)
    if isinstance(thing, str):
        return thing.encode(errors="replace")
    if isinstance(thing, np.ndarray):
        return b"" if thing.dtype.hasobject else thing.tobytes()
    try:
        return memoryview(thing).tobytes()
    except (TypeError, BufferError):
        return None


def contents(root: Any, *, classes: bool = True) -> dict[str, bytes]:
    """The bytes of every value that can be reached, by path."""
    found = ((path, content(thing)) for path, thing in walk(root, classes=classes))
    return {path: data for path, data in found if data is not None}


def where(root: Any, *needles: bytes, classes: bool = True) -> list[str]:
    """The paths of values that contain one of the needles."""
    return [p for p, data in contents(root, classes=classes).items() if any(needle in data for needle in needles)]


def numbers(things: Iterable[Any]) -> np.ndarray:
    """All fractions and arrays of numbers among these, in their order."""
    parts = [np.zeros(0)]
    for thing in things:
        if isinstance(thing, np.ndarray) and thing.dtype.kind in "fiub":
            parts.append(thing.ravel().astype(float))
        elif isinstance(thing, float):
            parts.append(np.array([float(thing)]))
    return np.concatenate(parts)


# --- the attack


class Seen(NamedTuple):
    """One observation: how often the record's gradient, Z_a and Z_b are in it."""

    record: float
    opening: float
    closing: float


SUM_WITHOUT, SUM_WITH = Seen(0, 1, 0), Seen(1, 1, 0)
RELEASE = Seen(1, 1, 1)
CLOSING_NOISE = Seen(0, 0, 1)
GRADIENT = Seen(1, 0, 0)


def best_weights(views: list[Seen], zeta: float, rounding: float) -> np.ndarray:
    """The weights whose sum of observations is a monotone function of the likelihood ratio (Neyman and Pearson).

    Observations are Gaussian, N(m, C) against N(-m, C): the weights are C^-1 m. `rounding` is the standard deviation of
    what remains without noise.
    """
    rows = np.array(views)
    covariance = zeta**2 * rows[:, 1:] @ rows[:, 1:].T + rounding**2 * np.eye(len(rows))
    weights: np.ndarray = np.linalg.solve(covariance, rows[:, 0])
    return weights


def learned_scores(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the second halves of a and b (n, k) by Fisher's discriminant of the first halves."""
    n = len(a) // 2
    known = np.concatenate((a[:n], b[:n]))
    moving = known.max(axis=0) > known.min(axis=0)
    mean, spread = known[:, moving].mean(axis=0), known[:, moving].std(axis=0)
    labels = np.repeat([1.0, -1.0], n)
    weights = np.linalg.lstsq((known[:, moving] - mean) / spread, labels, rcond=1e-12)[0]
    return tuple(((x[n:, moving] - mean) / spread) @ weights for x in (a, b))
