"""The README's examples run as they stand, pasted into an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
USES = README.split("## Five uses")[1].split("## How many records?")[0]
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", USES, flags=re.DOTALL)


def test_there_are_five_uses_batches_and_people() -> None:
    assert [language for language, _ in BLOCKS] == [
        "sh",
        "sh",
        "sh",
        "python",
        "python",
        "python",
        "sh",
        "python",
        "python",
    ]


@pytest.mark.parametrize(
    ("language", "code"),
    BLOCKS,
    ids=["command line", "Kafka", "shuffler", "River", "validation", "randomizer", "service", "batches", "people"],
)
def test_a_use_runs_as_it_stands(language: str, code: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    kafka = "streamdp produce" in code
    if kafka or "streamdp shuffle" in code:
        environment["STREAMDP_KAFKA"] = request.getfixturevalue("broker").bootstrap
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    if "streamdp serve" in code:
        assert "'learned': 2000, 'refused': 0, 'dead': []" in done.stdout
        assert "'predictions': ['" in done.stdout
        assert "origin=JFK" in done.stdout
    elif "validation=" in code:
        assert "the model is better than the best constant" in done.stdout
    elif language == "sh":
        assert '"reason": "done"' in done.stdout
        assert "origin=JFK" in done.stdout
        said = (
            "'flights/3': 0" if kafka else "(epsilon, delta) = (1, " if "streamdp shuffle" in code else "epsilon = 1:"
        )
        assert said in done.stdout
    else:
        assert "eps" in done.stdout or "mu=1" in done.stdout
