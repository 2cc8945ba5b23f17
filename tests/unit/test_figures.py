"""Every study and notebook is a step of `make figures`, and a page that is older than its code has a reason."""

import re
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import STEPS, Record, Step, differences, note, older, records
from studies import verdicts
from tests.support.paths import ROOT


def test_the_hash_changes_with_what_a_step_needs_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks.shared.pages` is imported by the first module, and by no other."""
    needs = Step("needs", ("-m", "studies.few_users"), "studies.few_users")
    other = Step("other", ("-m", "benchmarks.shared.pictures"), "benchmarks.shared.pictures")
    before = needs.inputs, other.inputs
    assert replace(needs, arguments=("-m", "studies.few_users", "--write")).inputs != before[0]
    pages, read = ROOT / "benchmarks" / "shared" / "pages.py", Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b'"""More."""\n' * (path == pages))
    assert replace(needs).inputs == before[0]
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == pages))
    assert replace(needs).inputs != before[0]
    assert replace(other).inputs == before[1]
    loop = next(path for path in figures.compiled() if path.suffix == ".pyx")
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == loop))
    assert replace(other).inputs != before[1]


def test_every_notebook_and_study_is_a_step() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} <= set(names)
    assert all(find_spec(step.arguments[1]) for step in STEPS)
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`python -m ((?:benchmarks|studies)\.\w+)", text)) <= {step.arguments[1] for step in STEPS}
    assert set(records(figures.FILE)) <= set(names), "records of steps that are no more"


@pytest.mark.usefixtures("settings_of_git")
def test_a_page_that_is_older_than_its_code_has_a_reason(tmp_path: Path) -> None:
    book, page = tmp_path / "figures.jsonl", tmp_path / "pages.md"
    step = Step("pages --write", ("-S",), "benchmarks.shared.pages")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    page.touch()

    def wrong(*records: Record, **reasons: str) -> list[str]:
        for record in records:
            note(record, book)
        return [line.partition(":")[0] for line in differences(older([step], book, [tmp_path]), reasons)]

    told = ["pages is older than the code that it measures"]
    new = Record(step.name, head.stdout.strip()[:9], step.inputs, 1, 1)
    assert wrong() == told
    assert wrong(replace(new, inputs="other code")) == told
    assert wrong(replace(new, commit="0123456789")) == told
    assert wrong(pages="a reason") == []
    assert wrong(new) == []
    assert wrong(pages="a reason") == ["pages is up to date"]
    (tmp_path / "alone.md").touch()
    assert wrong() == ["alone is older than the code that it measures"]
    assert wrong(alone="no step writes it") == []


def test_numbers_of_documents_are_those_of_the_pages_that_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two numbers of a page on Spark were those of an earlier run."""
    assert {str(page): lost for page in verdicts.documents() if (lost := verdicts.unsupported(page))} == {}
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "speed.md").write_text("| 613,569 | 12.74 |")
    said = (
        "Fast: about 600,000 rows, an error of 12.7, not 12.8, of 700,000 ([speed](benchmarks/speed.md)).\n\nNone: 55."
    )
    (tmp_path / "README.md").write_text(said)
    assert verdicts.unsupported(tmp_path / "README.md") == ["12.8", "700,000"]
