"""Node.js, which runs the JavaScript device in tests."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.paths import ROOT


def node(*arguments: str, given: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run Node.js in the root of the project. A machine without it fails the test: nothing else checks the module."""
    program = shutil.which("node") or shutil.which("nodejs")
    if program is None:
        pytest.fail("Node.js >= 18 is needed for clients/js: install it (on Debian: apt-get install nodejs)")
    command, given_to_it = [program, *arguments], os.environ | environment
    return subprocess.run(
        command, cwd=ROOT, env=given_to_it, input=given, capture_output=True, timeout=300, check=False
    )
