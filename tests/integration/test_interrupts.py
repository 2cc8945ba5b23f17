"""Ctrl-C at any moment ends the command with a message and its exit code, and never with a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

# Interrupts the process at the k-th import, from the first line of the command on.
AT_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupter:
    left = int(sys.argv.pop(1))
    def find_spec(self, *_):
        Interrupter.left -= 1
        if Interrupter.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
import streamdp.cli.start
sys.meta_path.insert(0, Interrupter())
sys.argv[0] = "streamdp"
streamdp.cli.start.start()
"""
JOB = ["run", "d.csv", "--target", "y", "--feature", "a=0:1"]


def interrupted(folder: Path, imports: int, *arguments: str) -> tuple[int, str]:
    (folder / "d.csv").write_text("a,y\n" + "0.5,1\n" * 50)
    command = [sys.executable, "-c", AT_IMPORT, str(imports), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(None), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("imports", [1, 40, 350])
def test_an_interrupt_while_modules_are_loaded(tmp_path: Path, imports: int) -> None:
    code, err = interrupted(tmp_path, imports, *JOB)
    assert (code, err) == (130, "streamdp: interrupted; what was committed is kept\n")


@pytest.mark.campaign
@pytest.mark.parametrize("imports", range(1, 3000, 50))
def test_an_interrupt_at_any_import(tmp_path: Path, imports: int) -> None:
    code, err = interrupted(tmp_path, imports, *JOB)
    assert code in (0, 130)  # 0: the run had begun, and stopped after a commit; or all was imported
    assert err == ("" if code == 0 else "streamdp: interrupted; what was committed is kept\n")
