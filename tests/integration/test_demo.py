"""The demo, on one month of the real stream."""

import shutil
from pathlib import Path

import pytest

from examples import flights


def test_the_demo_runs_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    jobs = tmp_path / "examples"  # paths in jobs are relative to their folder
    jobs.mkdir()
    for name in ("late.yaml", "delay.yaml"):
        shutil.copy(flights.HERE / name, jobs)
    monkeypatch.setattr(flights, "HERE", jobs)
    monkeypatch.setattr(flights, "OUTPUT", tmp_path / "demo-output")
    monkeypatch.setattr(flights.datasets, "TRAINING_MONTHS", (1,))
    monkeypatch.setattr(flights, "DRAWS", 2)
    flights.main()
    out = capsys.readouterr().out
    assert "Privacy statement after" in out
    assert "window (default)" in out
    assert all(trust in out for trust in ("nobody", "process", "shuffler", "without privacy"))
    assert (flights.OUTPUT / "error.png").exists()
