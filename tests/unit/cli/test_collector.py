"""Only a command may change the settings of its process: the garbage collector, and the threads of matrices."""

import ast
import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from streamdp.cli.start import rare_collections
from tests.support.paths import ROOT


@pytest.fixture
def before() -> Iterator[tuple[int, int, int]]:
    """Python's default setting: mypy, which another test of this process runs, changes it and leaves it so."""
    found = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*found)


def test_the_setting_is_restored(before: tuple[int, int, int]) -> None:
    within = []

    def interrupted() -> None:
        with rare_collections():
            within.append(gc.get_threshold())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert within[0][0] > before[0]
    assert within[0][1:] == before[1:]
    assert gc.get_threshold() == before
    assert gc.isenabled()


@pytest.mark.slow
def test_the_library_leaves_the_collector_alone() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for top in ("streamdp", "connectors")
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and "gc" in [name.name for name in node.names]
    ]
    assert found == ["streamdp/cli/start.py"]


THREADS = """
import os, sys
import streamdp.cli.start, streamdp.cli.main
assert "numpy" not in sys.modules
streamdp.cli.main.run_command = lambda: print(os.environ["OPENBLAS_NUM_THREADS"])
streamdp.cli.start.start()
"""


def test_the_command_multiplies_matrices_in_one_thread_unless_it_is_told_another_number() -> None:
    for given, used in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        others = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        command = [sys.executable, "-c", THREADS]
        found = subprocess.run(command, env=others | given, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == used
