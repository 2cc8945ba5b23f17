"""`make figures` goes on where it ended, and every study and notebook is a step of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import STEPS, Record, Step, note, records, run, summary
from tests.support.paths import ROOT

NOTE = "import sys; open(sys.argv[1], 'a').write('x')"


def test_a_step_that_failed_is_run_again_and_one_that_ended_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = [tmp_path / "good", tmp_path / "bad"]
    good = Step("good", ("-S", "-c", NOTE, str(ran[0])), "benchmarks.pages")
    bad = Step("bad", ("-S", "-c", f"{NOTE}; sys.exit(1)", str(ran[1])), "benchmarks.pages")
    book, logs = tmp_path / "figures.jsonl", tmp_path / "logs"
    assert run([good, bad], book, logs) == ["bad"]
    shown = capfd.readouterr().out
    assert "[0 of 2, 0 min, about 5 left] good: begins" in shown
    assert "[2 of 2, 0 min, about 0 left]" in shown
    corrected = replace(bad, arguments=("-S", "-c", NOTE, str(ran[1])))
    assert run([good, corrected], book, logs) == []
    assert [path.read_text() for path in ran] == ["x", "xx"]
    assert run([good, corrected], book, logs) == []
    assert [path.read_text() for path in ran] == ["x", "xx"]
    assert run([good, corrected], book, logs, again=True) == []
    assert [path.read_text() for path in ran] == ["xx", "xxx"]
    assert "2 of 2 steps have a record" in summary([good, corrected], book)
    assert summary([good, corrected], book).count("up to date") == 2


def test_a_step_that_would_not_end_in_time_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    slow = Step("slow", ("-S", "-c", NOTE, str(tmp_path / "slow")), "benchmarks.pages")
    quick = Step("quick", ("-S", "-c", NOTE, str(tmp_path / "quick")), "benchmarks.pages")
    book = tmp_path / "figures.jsonl"
    note(Record("slow", "0", "old", 3600, 3600), book)
    note(Record("quick", "0", "old", 1, 1), book)
    assert summary([slow], book).count("its inputs have changed") == 1
    assert run([slow, quick], book, tmp_path / "logs", minutes=30) == []
    assert "slow: left for another run" in capfd.readouterr().out
    assert not (tmp_path / "slow").exists()
    assert records(book)["quick"].inputs == quick.inputs
    assert records(book)["slow"].inputs == "old"


def test_the_hash_changes_with_what_a_step_needs_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks.pages` is imported by the first module, and by no other."""
    needs = Step("needs", ("-m", "benchmarks.few_users"), "benchmarks.few_users")
    other = Step("other", ("-m", "benchmarks.pictures"), "benchmarks.pictures")
    before = needs.inputs, other.inputs
    assert replace(needs, arguments=("-m", "benchmarks.few_users", "--write")).inputs != before[0]
    pages, read = ROOT / "benchmarks" / "pages.py", Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == pages))
    assert replace(needs).inputs != before[0]
    assert replace(other).inputs == before[1]
    loop = next(path for path in figures._compiled() if path.suffix == ".pyx")
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == loop))
    assert replace(other).inputs != before[1]


def test_a_notebook_needs_its_code_and_what_that_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = next(step for step in STEPS if step.name == "06_subquadratic")
    hashed, path = before.inputs, ROOT / "notebooks" / "06_subquadratic.ipynb"
    for what, same in (("outputs", True), ("source", False)):
        book = json.loads(path.read_text())
        cell = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
        cell[what] = [] if what == "outputs" else [*cell["source"], "\n1"]
        copy = tmp_path / path.name
        copy.write_text(json.dumps(book))
        read = figures.nbformat.read
        with monkeypatch.context() as patch:
            patch.setattr(figures.nbformat, "read", lambda _, as_version: read(copy, as_version))  # noqa: B023
            assert (replace(before).inputs == hashed) is same
    kept = Path.read_bytes
    study = ROOT / "benchmarks" / "subquadratic.py"
    monkeypatch.setattr(Path, "read_bytes", lambda path: kept(path) + b"#" * (path == study))
    assert replace(before).inputs != hashed


def test_every_notebook_and_study_is_a_step() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} <= set(names)
    assert all(find_spec(step.arguments[1]) for step in STEPS)
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`python -m (benchmarks\.\w+)", text)) <= {step.arguments[1] for step in STEPS}
    assert set(records(figures.FILE)) <= set(names), "records of steps that are no more"
