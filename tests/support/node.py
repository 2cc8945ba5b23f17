"""Node.js, which runs the JavaScript device in tests."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.paths import ROOT


def node(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run Node.js in the root of the project. A machine without it fails the test: nothing else checks the module."""
    program = shutil.which("node") or shutil.which("nodejs")
    if program is None:
        pytest.fail("Node.js >= 18 is needed for clients/js: install it (on Debian: apt-get install nodejs)")
    return subprocess.run([program, *arguments], cwd=ROOT, input=given, capture_output=True, timeout=300, check=False)
