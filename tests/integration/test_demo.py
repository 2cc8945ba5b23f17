"""The demo, on one month of the real stream."""

from __future__ import annotations

import pytest

from examples import flights


@pytest.mark.slow
def test_the_demo_runs_to_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(flights.datasets, "TRAINING_MONTHS", (1,))
    monkeypatch.setattr(flights, "DRAWS", 2)
    flights.main()
    out = capsys.readouterr().out
    assert "Privacy statement after" in out
    assert (flights.OUTPUT / "error.png").exists()
