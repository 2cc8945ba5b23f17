"""Ctrl-C and SIGTERM at any moment end the command with its exit code, and never with a traceback."""

import signal
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
# Sends a signal to itself within SQLite, which loses an exception that comes up in a callback.
WITHIN_A_LIBRARY = """
import contextlib, os, signal, sqlite3, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import streamdp.cli.main, streamdp.cli.start
from streamdp.runtime.signals import ended_by_sigterm, stopped_by_signals
number, kind = int(sys.argv[1]), sys.argv[2]
def interrupt():
    os.kill(os.getpid(), number)
    for _ in range(1000):
        pass  # Python runs the handler here
    return 0
def command():
    database = sqlite3.connect(":memory:")
    database.create_function("interrupt", 0, interrupt)
    run = stopped_by_signals(lambda: print("stop", flush=True), lambda: True) if kind == "run" else ended_by_sigterm()
    with ended_by_sigterm(), run:
        database.execute("SELECT interrupt()").fetchall()
    return 7
streamdp.cli.main.run_command = command
streamdp.cli.start.start()
"""
LEFT = "streamdp: interrupted; what was committed is kept\n"
JOB = ["run", "d.csv", "--target", "y", "--feature", "a=0:1", "--trust", "process"]


def interrupted(folder: Path, imports: int, *arguments: str) -> tuple[int, str]:
    (folder / "d.csv").write_text("a,y\n" + "0.5,1\n" * 50)
    command = [sys.executable, "-c", AT_IMPORT, str(imports), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(None), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("number", "kind", "expected"),
    [
        (signal.SIGINT, "no run", (130, "", LEFT)),
        (signal.SIGINT, "run", (130, "", LEFT)),  # the second one: the run was asked to stop before
        (signal.SIGTERM, "no run", (0, "", "")),
        (signal.SIGTERM, "run", (7, "stop\n", "")),
    ],
)
def test_a_signal_within_a_library(number: int, kind: str, expected: tuple[int, str, str]) -> None:
    command = [sys.executable, "-c", WITHIN_A_LIBRARY, str(int(number)), kind]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.slow
@pytest.mark.parametrize("imports", [1, 40, 350])
def test_an_interrupt_while_modules_are_loaded(tmp_path: Path, imports: int) -> None:
    code, err = interrupted(tmp_path, imports, *JOB)
    assert (code, err) == (130, LEFT)


@pytest.mark.campaign
@pytest.mark.parametrize("imports", range(1, 1500, 50))
def test_an_interrupt_at_any_import(tmp_path: Path, imports: int) -> None:
    code, err = interrupted(tmp_path, imports, *JOB)
    assert code in (0, 130)  # 0: the run had begun, and stopped after a commit; or all was imported
    assert err == ("" if code == 0 else LEFT)
