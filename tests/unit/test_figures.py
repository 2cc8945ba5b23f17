"""`make figures` goes on where it ended, and every study and notebook is a part of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.figures import AT_ONCE, PARTS, Part, run
from tests.support.paths import ROOT


def test_a_part_that_failed_is_run_again_and_one_that_is_done_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    note = "import sys; open(sys.argv[1], 'a').write('x')"
    good, bad = tmp_path / "good", tmp_path / "bad"
    parts = [
        Part("good", ("-S", "-c", note, str(good)), 2),
        Part("bad", ("-S", "-c", f"{note}; sys.exit(1)", str(bad)), 4),
    ]
    assert run(parts, tmp_path / "marks") == ["bad"]
    first = capfd.readouterr().out
    assert "[0 of 2, 0 min, about 3 left] bad: begins" in first
    assert "[2 of 2, 0 min, about 0 left]" in first
    corrected = [parts[0], Part("bad", ("-S", "-c", note, str(bad)), 4)]
    assert run(corrected, tmp_path / "marks") == []
    assert "good: was done before" in capfd.readouterr().out
    assert (good.read_text(), bad.read_text()) == ("x", "xx")


def test_every_notebook_and_study_is_a_part_and_all_take_less_than_three_hours() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} <= set(names)
    assert all(find_spec(part.arguments[1]) for part in PARTS)
    assert sum(part.minutes for part in PARTS) / AT_ONCE < 180
