"""Only a command may change the garbage collector of its process, and it restores the setting."""

from __future__ import annotations

import ast
import gc

import pytest

from streamdp.cli.start import rare_collections
from tests.support.paths import ROOT


def test_the_setting_is_restored() -> None:
    before = gc.get_threshold()
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
