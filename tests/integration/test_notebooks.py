"""The notebooks' code runs from top to bottom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PRINTS = {"price_of_privacy": "epsilon = 1", "02_ldp_sgd_figures": "| 10 | mu = 1, our defaults |"}
"""Each notebook, and what it prints if it runs to its last cell."""


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), "STREAMDP_RECORDS": "1000"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout
