"""Polars, imported at its first use, because it is in the extra `cli` and many commands end without it.

A module with types of `pl` imports annotations from the future: evaluated, they would be its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamdp.errors import cli_packages

__all__ = ["pl"]

if TYPE_CHECKING:
    import polars as pl
else:

    class _Late:
        def __getattr__(self, name: str) -> Any:
            with cli_packages("a table or a data frame"):
                value = getattr(import_module("polars"), name)
            setattr(self, name, value)
            return value

    pl = _Late()
