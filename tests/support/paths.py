"""Where the project stands."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of pyproject.toml."""
