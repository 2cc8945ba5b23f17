"""The methods that a window may be learned by, by name; loaded when first asked for."""

from __future__ import annotations

from importlib import import_module

from streamdp.errors import ConfigError
from streamdp.windows.task import Method

METHODS = {
    "private-range": "streamdp.windows.ranges:PrivateRange",
    "outlier-removal": "streamdp.windows.outliers:OutlierRemoval",
    "smoothed": "streamdp.windows.smoothed:ConvolutionSmoothing",
}


def method_for(choice: str | Method) -> Method:
    """A method from its name, or as it is. Raises `ConfigError` that lists what there is."""
    if isinstance(choice, str):
        if choice not in METHODS:
            raise ConfigError(f"method: expected one of {', '.join(METHODS)}, or a method object, got {choice!r}")
        module, name = METHODS[choice].split(":")
        method: Method = getattr(import_module(module), name)()
        return method
    methods = all(callable(getattr(choice, name, None)) for name in ("plan", "least_users", "run", "__hash__"))
    if isinstance(choice, type) or not methods or not isinstance(getattr(choice, "name", None), str):
        raise ConfigError(
            "method: expected a name, or a hashable object (a frozen dataclass) with name, plan, least_users and run"
        )
    return choice
