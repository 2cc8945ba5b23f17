"""The notebooks run from top to bottom at a small size, and are stored with their outputs."""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from servers.broker import Broker
from tests.support.paths import ROOT
from tests.support.servers import RunningBroker

FOLDER = ROOT / "notebooks"
RECORDS = "1000"
"""STREAMDP_RECORDS, which is the size of a notebook."""
KAFKA, DASHBOARD = "07_kafka_checkpoint_resume", "10_dashboard"
PRINTS = {
    "01_first_model": "eps = 4    error after 1,000 records",
    "02_ldp_sgd_figures": "| 10 | mu = 1, our defaults |",
    "03_insurance": "charges in thousand dollars, mu = 1, 800 records",
    "04_shuffle_and_pan": "no privacy:",
    "05_user_level": "group privacy: m = 1",
    "06_subquadratic": "n = 1,000: smoothed",
    "09_service_and_devices": "a new call with five of them",
    KAFKA: "1,000 in the topic, 1,000 learned, 0 refused (over the cap), 0 not decoded",
    DASHBOARD: "1,000 people, largest error",
    "08_audit_a_claim": "PrivUnit, eps = 1: spends at least",
}
"""Each notebook, and what its last cells print."""
ON_BROKER = (KAFKA, DASHBOARD)
RUN = ("01_first_model",)
"""The campaign and `make figures` run all."""


def cells(name: str, kind: str) -> list[dict[str, Any]]:
    found = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the code in this process, which has loaded the libraries; return what it prints."""
    code = "\n".join("".join(cell["source"]) for cell in cells(name, "code"))
    path = list(sys.path)
    try:
        exec(compile(code, f"{name}.ipynb", "exec"), {"__name__": "__main__"})
    finally:
        sys.path[:] = path
    return capsys.readouterr().out


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PRINTS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in RUN else [pytest.mark.campaign])
        for name in PRINTS
        if name not in ON_BROKER
    ],
)
def test_a_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMDP_RECORDS", RECORDS)
    assert PRINTS[name] in run(name, capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", ON_BROKER)
def test_a_notebook_of_a_topic_counts_every_record_once(
    name: str, broker: Broker | RunningBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMDP_RECORDS", RECORDS)
    monkeypatch.setenv("STREAMDP_KAFKA", broker.bootstrap)
    assert PRINTS[name] in run(name, capsys)


def test_what_notebooks_import_exists() -> None:
    """Also that of notebooks which only the campaign runs."""
    for name in PRINTS:
        tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells(name, "code")))
        for found in ast.walk(tree):
            if isinstance(found, ast.ImportFrom) and str(found.module).startswith(
                ("streamdp", "connectors", "servers", "benchmarks", "studies")
            ):
                exec(compile(ast.Module([found], []), name, "exec"), {})
