"""A package of somebody else adds a source, a sink and an export, each by one entry point and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamdp.store.store import Store
from tests.support.paths import ROOT

PACKAGE = """
import json
from typing import Any, Literal

import numpy as np
import polars as pl

from streamdp.config.publish import SinkConfig
from streamdp.config.settings import ReadConfig
from streamdp.data.records import Source

class Numbers(Source):
    finished, position = False, {"row": 0}

    def __init__(self, encoder, count):
        self._encoder, self._count = encoder, count

    def poll(self, max_records, timeout_s):
        self.finished, self.position = True, {"row": self._count}
        places = np.arange(self._count)
        return self._encoder.encode(pl.DataFrame({"a": places / self._count, "y": places % 2.0}), places, self.position)

    def seek(self, position): self.position = position

class NumbersConfig(ReadConfig):
    type: Literal["numbers"]
    count: int
    name = property(lambda self: "the numbers")

    def build(self, encoder): return Numbers(encoder, self.count)

class Lines:
    def __init__(self, path): self._path = path
    def send(self, message): open(self._path, "a").write(json.dumps(message.commit) + "\\n")
    def close(self): pass

class LinesConfig(SinkConfig):
    type: Literal["lines"]
    path: str
    name = property(lambda self: self.path)

    def build(self): return Lines(self.path)
"""
EXPORT = """
from streamdp.serving.export import Export

names = Export(lambda document, table: ",".join(one["name"] for one in document["inputs"]))
"""
POINTS = """[streamdp.sources]
numbers = mine:NumbersConfig
[streamdp.sinks]
lines = mine:LinesConfig
[streamdp.exports]
names = mine_export:names
"""


@pytest.mark.slow
def test_another_package_adds_a_source_a_sink_and_an_export(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PACKAGE)
    (tmp_path / "mine_export.py").write_text(EXPORT)
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text(POINTS)
    job = {
        "job": "j",
        "source": {"type": "numbers", "count": 300},
        "schema": {"features": {"a": [0, 1]}, "target": {"column": "y", "bounds": [0, 1]}},
        "model": {"trust": "nobody"},
        "publish": {"type": "lines", "path": str(tmp_path / "sent")},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    commands = ["run job.yaml", "check job.yaml", "export j.db --to names -o names"]
    program = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
    program += "from streamdp.cli.main import run_command\n"
    program += f"for command in {commands}: sys.argv[1:] = command.split(); assert run_command() == 0, command"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
    assert Store.snapshot(tmp_path / "j.db").counts.learned == 300
    assert json.loads((tmp_path / "sent").read_text().splitlines()[-1]) >= 1
    assert (tmp_path / "names").read_text() == "a"
