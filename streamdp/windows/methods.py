"""The methods that a window may be learned by, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamdp.errors import ConfigError
from streamdp.windows.task import Method

METHODS: dict[str, Callable[[], Method]] = {}


def method_for(choice: str | Method) -> Method:
    """A method from its name, or as it is. Raises `ConfigError` that lists what there is."""
    if isinstance(choice, str):
        if choice not in METHODS:
            raise ConfigError(f"method: expected one of {', '.join(METHODS)}, or a method object, got {choice!r}")
        return METHODS[choice]()
    wanted: tuple[Any, ...] = ("plan", "least_users", "run")
    if not all(callable(getattr(choice, name, None)) for name in wanted):
        raise ConfigError(f"method: expected a name or an object with {', '.join(wanted)}")
    return choice
