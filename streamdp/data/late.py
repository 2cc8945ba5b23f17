"""Polars, imported at its first use, because many commands end without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pl"]

if TYPE_CHECKING:
    import polars as pl
else:

    class _Late:
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("polars"), name)
            setattr(self, name, value)
            return value

    pl = _Late()
