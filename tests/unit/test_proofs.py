"""Every proof has the same lines, names tests that exist, and is linked by the index and by a module."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs" / "proofs").glob("*.md"))
LINES = ("Assumption", "Neighbours", "Trust", "What is released", "Claim", "Proof", "Constants", "Tests that attack it")


def lacking(text: str) -> list[str]:
    """The lines that a proof must have and that are not there."""
    return [line for line in LINES if not re.search(rf"^\*\*{line}\b", text, flags=re.MULTILINE)]


@cache
def names_of(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))


def unknown(text: str) -> list[str]:
    """The named tests that do not exist."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", text)
    return [test for path, test in named if not (ROOT / path).exists() or test not in names_of(ROOT / path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_proof_has_its_lines_and_tests_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not lacking(text)
    assert not unknown(text)
    assert re.search(r"tests/[\w/]+\.py::\w+", text)


def test_every_proof_is_in_the_index_and_named_by_a_module() -> None:
    index = (ROOT / "docs" / "reference" / "proofs.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "streamdp").rglob("*.py"))
    assert not [page.stem for page in PAGES if f"../proofs/{page.stem}\n" not in index]
    assert not [page.stem for page in PAGES if f"docs/proofs/{page.name}" not in code]
    assert not [name for name in re.findall(r"docs/proofs/\w+\.md", code) if not (ROOT / name).exists()]


def test_what_is_missing_is_found() -> None:
    assert lacking("**Claim.** x") == [line for line in LINES if line != "Claim"]
    assert unknown("`tests/unit/test_proofs.py::test_gone`, `tests/unit/test_proofs.py::test_what_is_missing_is_found`")
    assert unknown("`tests/unit/test_no_such_file.py::test_x`") == ["test_x"]
