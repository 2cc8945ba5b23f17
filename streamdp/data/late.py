"""Modules that are imported at their first use, because many commands end without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A module that is imported when one of its names is read first, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value
