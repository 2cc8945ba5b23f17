"""setuptools, and a C compiler as a package where the machine has none (PEP 517)."""

from __future__ import annotations

import os
import shutil
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks


def _compiler() -> list[str]:
    return [] if "CC" in os.environ or shutil.which("cc") else ["ziglang>=0.13"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What a wheel needs."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _compiler()


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """What an editable installation needs."""
    return build_meta.get_requires_for_build_editable(config_settings) + _compiler()
