"""The methods that learn from a window, by name. A method is loaded at its first use."""

from importlib import import_module

from streamdp.errors import ConfigError
from streamdp.windows.task import Method

NEWTON = "newton"
METHODS = {
    NEWTON: "streamdp.windows.newton:NewtonSteps",
    "private-range": "streamdp.windows.ranges:PrivateRange",
    "outlier-removal": "streamdp.windows.outliers:OutlierRemoval",
    "smoothed": "streamdp.windows.smoothed:ConvolutionSmoothing",
}


_MEMBERS = ("plan", "memory", "check", "merge", "least_users", "run", "__hash__")


def method_for(choice: str | Method) -> Method:
    """The method of a choice: a key of `METHODS`, or a hashable object with the members of `task.Method`.

    Raises `ConfigError`, which lists the names, for anything else.
    """
    if isinstance(choice, str):
        if choice not in METHODS:
            raise ConfigError(f"method: expected auto, {', '.join(METHODS)}, or a method object, got {choice!r}")
        module, name = METHODS[choice].split(":")
        return getattr(import_module(module), name)()
    methods = all(callable(getattr(choice, name, None)) for name in _MEMBERS)
    if isinstance(choice, type) or not methods or not isinstance(getattr(choice, "name", None), str):
        raise ConfigError(
            "method: expected a name, or a hashable object (a frozen dataclass) that is a subclass of Method"
        )
    return choice
