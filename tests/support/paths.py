"""Where the project stands."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of pyproject.toml."""


def with_root() -> dict[str, str]:
    """The environment of a program that imports the project."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
