"""docs/papers.md has a row for every item of the papers, and names only what exists."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest

from studies import printed, verdicts
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
VERDICTS = ("reproduced", "better", "not reproduced", "not measured", "not applicable")
HEAD = ["item", "where", "what is changed, and why", "measured by", "verdict"]


def rows_of(section: str) -> list[list[str]]:
    """The rows of the section's table, its head first and without the line of dashes."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]] if rows else []


TABLES = {
    title: rows
    for title, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
    if (rows := rows_of(section))
}
ROWS = [row for rows in TABLES.values() for row in rows[1:]]


def numbered(kind: str, *numbers: object) -> list[str]:
    return [f"{kind} {number}" for number in numbers]


ITEMS = {
    "Shi et al. 2025": [
        *numbered("Example", 1, 2, 3),
        *numbered("Theorem", *range(1, 7)),
        "Corollary 1",
        "Table 1",
        *numbered("Figure", *range(1, 10)),
        "Appendix",
    ],
    "Cheu et al. 2022": [
        *numbered("Algorithm", *range(1, 7)),
        "Lemma 3.3",
        *numbered("Theorem", "3.2", "A.6", "4.1", "4.3", "4.7", "4.8", "4.9"),
        *numbered("Theorem", "C.3 (1)", "C.3 (2)", "C.3 (3)", "C.3 (4)"),
        "Claim A.8",
        *numbered("Corollary", "A.9", "B.8", "B.9", "B.10", "B.11"),
        *numbered("Table", "1, sequential", "1, full"),
    ],
    "Bassily and Sun 2023": [
        *numbered("Algorithm", *range(1, 7)),
        *numbered("Theorem", "3.1", "3.2", "3.3", "3.4", "4.1", "4.3"),
        *numbered("Lemma", "4.2", "B.1"),
        *numbered("Table", "1, local", "1, central"),
    ],
    "Asi and Liu 2024": [
        *numbered("Algorithm", *range(1, 5)),
        *numbered("Theorem", "3.2", "4.1", "4.11"),
        *numbered("Lemma", "2.4", "3.3", "3.4", "3.5", "4.9"),
        *numbered("Proposition", "3.6", "3.7", "4.10"),
        "Table 1",
    ],
    "Kulkarni et al. 2021": [
        *numbered("Algorithm", *range(1, 6)),
        *numbered("Theorem", "1.1", "1.2", "3.1", "4.1", "4.9", "4.11", "5.1", "5.6"),
        *numbered("Lemma", "4.5", "4.7", "5.4"),
        "Claim 4.2",
        *numbered("Table", *range(1, 5)),
        *numbered("Figure", 1, 2),
        "Regularised ERM and SCO",
    ],
}
"""What each paper numbers, definitions and most lemmas left out. The papers are not part of the repository."""


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def exists(reference: str) -> bool:
    """Whether a command, a file, a test or a dotted name is there."""
    if reference.startswith("make "):
        return reference.removeprefix("make ") in TARGETS
    if reference.startswith("python -m "):
        return find_spec(reference.removeprefix("python -m ").split()[0]) is not None
    if "/" in reference:
        path, _, test = reference.partition("::")
        return (ROOT / path).is_file() and (not test or test in defined_in(path))
    parts = reference.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            attrgetter(".".join(parts[cut:]))(module) if parts[cut:] else None
        except AttributeError:
            return False
        return True
    return False


def references(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_a_row(paper: str) -> None:
    head, *rows = TABLES[paper]
    assert head == HEAD
    names = [row[0] for row in rows]
    assert len(set(names)) == len(names)
    there = [
        next((name for name in names if re.match(rf"{re.escape(item)}(?![\d.])", name)), None) for item in ITEMS[paper]
    ]
    assert None not in there, dict(zip(ITEMS[paper], there, strict=True))


def test_every_table_is_that_of_a_paper() -> None:
    assert set(TABLES) == set(ITEMS)
    assert all(len(row) == len(HEAD) for row in ROWS)


def test_a_row_names_only_what_exists_and_has_a_verdict() -> None:
    for item, where, _, measured, verdict in ROWS:
        assert not [(item, name) for name in (*references(where), *references(measured)) if not exists(name)]
        assert re.match(rf"({'|'.join(VERDICTS)})\b", verdict), item
        if re.search(r"(?<!not )\b(reproduced|better)\b", verdict):
            assert references(where), f"{item} says where"
            assert references(measured), f"{item} says what shows it"


def test_a_verdict_quotes_what_a_page_of_its_commands_has() -> None:
    """After a study ran again: `python -m studies.verdicts --write`, and read the verdicts that it changes."""
    assert not {row[0]: found for row in ROWS if (found := verdicts.missing(row[4], row[3]))}


@pytest.mark.parametrize("n", [3_000, 10_000])
@pytest.mark.parametrize("d", [5, 20])
def test_ac_sa_is_not_worse_than_the_plan_that_cheu_et_al_print(n: int, d: int) -> None:
    """The same records, and seeds are fixed; `studies/printed.md` has all sizes."""
    size = printed.Size(n, d)
    assert printed.losses("ac-sa", size).mean() < printed.losses("Theorem 4.3", size).mean()


@pytest.mark.usefixtures("settings_of_git")
def test_a_stale_quotation_is_found_and_its_place_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = tmp_path / "benchmarks", tmp_path / "papers.md"
    folder.mkdir()
    (tmp_path / "Makefile").write_text("study: x\n\tpython -m benchmarks.study --write\n")
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    monkeypatch.setattr(verdicts, "FILE", file)

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=tmp_path, check=True)

    (folder / "study.md").write_text("140 of 160 | 1.0e-05 ± 2e-06 | -0.5 ± 0.1 | 0.5 ± 0.1 | 3 ± 1 | 3 ± 1 |")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    (folder / "study.md").write_text("| 1.5e-05 ± 3e-06 | -0.5 ± 0.1 | -0.5 ± 0.1 | 4 ± 1 | 5 ± 1 |")
    file.write_text("| a | `x` | y | `make study` | better: 1.0e-5 ± 2e-6, -0.5 ± 0.1, 0.5 ± 0.1, 3 ± 1 |\n")
    assert verdicts.missing(file.read_text(), "`make study`") == ["1.0e-5 ± 2e-6", "0.5 ± 0.1", "3 ± 1"]
    (folder / "study.md").write_text("140 of 160 | 0.85 |")
    assert verdicts.missing("better: 139 of 160, below 0.92, Theorem 4.13", "`make study`") == ["139", "0.92"]
    (folder / "study.md").write_text("| 1.5e-05 ± 3e-06 | -0.5 ± 0.1 | -0.5 ± 0.1 | 4 ± 1 | 5 ± 1 |")
    verdicts.main(["--write"])
    kept = "| a | `x` | y | `make study` | better: 1.5e-05 ± 3e-06, -0.5 ± 0.1, -0.5 ± 0.1, 3 ± 1 |\n"
    assert file.read_text() == kept


@pytest.mark.parametrize(
    "missing",
    [
        "make no-such-target",
        "python -m benchmarks.no_such_module",
        "docs/no_such_file.md",
        "tests/unit/test_papers.py::test_that_is_not_there",
        "streamdp.no_such_module",
        "streamdp.optim.losses.NoSuchLoss",
    ],
)
def test_what_is_missing_is_found(missing: str) -> None:
    assert not exists(missing)
