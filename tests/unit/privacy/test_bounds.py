"""Compiled samplers read and write no memory but their own, wherever the words run out."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.slow
def test_samplers_touch_nothing_outside_of_their_arrays() -> None:
    """In a process of its own, which a read or a write outside ends: see `guarded_memory`."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.guarded_memory"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONMALLOC": "debug"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5000
