"""Documents, docstrings and comments name only what exists: files, tests, commands, and names in backticks.

What a docstring must have is checked by ruff (D, with D417 for parameters), and the site by Sphinx (`make docs`).
"""

import builtins
import keyword
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.paths import ROOT

CODE = sorted(
    path for top in ("streamdp", "connectors") for path in (ROOT / top).rglob("*.p*") if path.suffix != ".pyc"
)
DOCUMENTS = sorted(path for at in ("", "docs/**/", "benchmarks/", "studies/") for path in ROOT.glob(f"{at}*.md"))
FOLDERS = "tests|benchmarks|studies|docs|streamdp|connectors|examples|servers"
PROSE = re.compile(r'"""(?:.|\n)*?"""|#.*')
ELSEWHERE = frozenset({"tests", "benchmarks", "studies", "examples", "README", "pyproject", "gz", "jsonl", "ndjson"})
ELSEWHERE |= {"csv", "yaml", "db", "cryptography", "dp_accounting"}
"""Words in backticks that stand outside the two packages: folders, endings of files, libraries used elsewhere."""


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def identifiers() -> frozenset[str]:
    """Every name in the code, and every word of its strings that are no docstrings (settings, SQL, column names)."""
    found = set(keyword.kwlist) | set(dir(builtins)) | ELSEWHERE
    for path in [*CODE, *(ROOT / "servers").rglob("*.py")]:
        found |= {*path.relative_to(ROOT).with_suffix("").parts, *re.findall(r"\w+", PROSE.sub("", text(path)))}
    return frozenset(found)


def missing(said: str, code: bool = False) -> list[str]:
    """What a text names and is not there; in code also the names in backticks."""
    out = []
    for name, _, test in re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/.-]*\w\.\w+)(::(\w+))?", said):
        if not (ROOT / name).exists() or (test and not re.search(rf"\bdef {test}\b", text(ROOT / name))):
            out.append(name + f"::{test}" * bool(test))
    out += [name for name in re.findall(r"`python -m ([\w.]+)[^`]*`", said) if find_spec(name) is None]
    for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)", said, re.ASCII) if code else ():
        known = (
            any(ROOT.glob(f"[a-z]*/**/{name}")) if name.endswith(".py") else not set(name.split(".")) - identifiers()
        )
        out += [] if known else [name]
    return out


def test_docstrings_and_comments_name_what_is_there() -> None:
    prose = {path: "\n".join(PROSE.findall(text(path))) for path in CODE}
    assert len(prose) > 300
    assert not {str(path): found for path, said in prose.items() if (found := missing(said, code=True))}


def test_documents_name_what_is_there() -> None:
    assert not {str(path): found for path in DOCUMENTS if (found := missing(text(path)))}


def test_documents_link_what_is_there() -> None:
    """`make docs` writes two of the pages."""
    written = {ROOT / "docs" / "gallery" / "index.md", ROOT / "docs" / "reference" / "commands.md"}
    links = [(path, to) for path in DOCUMENTS for to in re.findall(r"\]\(([^)#\s]+)", text(path)) if "://" not in to]
    assert len(links) > 300
    there = {(path, to) for path, to in links if (at := (path.parent / to).resolve()) in written or at.exists()}
    assert set(links) - there == set()


def test_what_is_missing_is_found() -> None:
    here = "tests/unit/test_documents.py"
    assert missing(f"{here}::{test_what_is_missing_is_found.__name__}, `python -m streamdp`, {here}") == []
    assert missing(f"{here}::gone, docs/gone.md") == [f"{here}::gone", "docs/gone.md"]
    assert missing("`python -m benchmarks.gone` of commit 29991d0") == ["benchmarks.gone"]
    assert missing("See `nowhere_at_all`, `missing.py` and `Store`", code=True) == ["nowhere_at_all", "missing.py"]
