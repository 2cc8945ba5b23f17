"""Compare the numbers of documents with the measured pages. Run with `python -m studies.verdicts`.

A paragraph of a document that names a page of `benchmarks` or `studies` has its numbers from there, maybe rounded, or
from the tables and the code of the document itself. The others follow from the code, and are in `OF_THE_CODE`. The
verdicts of docs/papers.md are compared more strictly, as follows.

A verdict quotes means with their Monte Carlo errors, and plain numbers, as its page has them. After a study ran again,
`--write` replaces the means by what now stands in their places of the page, and prints them: the words around have to
be read again. A place is known by the page as it was at a commit (`--since`, HEAD by default).
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "papers.md"
_PAIR = re.compile(r"-?\d[\d.]*(?:e-?\d+)? ± \d[\d.]*(?:e-?\d+)?")

_PLAIN = re.compile(r"(?<![\w.^])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
_NAMED = re.compile(
    r"(?:Theorem|Lemma|Corollar|Table|Figure|Claim|Algorithm)\w* [A-Z\d]+(?:\.\d+)?(?:(?: and|,) \d\.\d+)*"
)
_PAGE = re.compile(r"(?:\((?:\.\./)*|`)((?:benchmarks|studies)/\w+\.md)")
OF_THE_CODE = {
    "docs/explanations/limits.md": {
        "64": "the least scale of a column is 1/64 of half the bounds",
    },
    "docs/howto/kafka.md": {"15": "seconds of `session_timeout_ms`"},
    "docs/howto/people.md": {"281": "users that are asked for the unit at eps=1", "65": "the same at eps=4"},
    "docs/howto/shuffler.md": {"0.55": "what the code above prints"},
    "docs/howto/statistics.md": {"1,048,576": "records of a window of a file"},
    "docs/service.md": {"850": "connections with 1024 open files"},
}
"""Numbers of paragraphs that name a page, and are not measured."""


def documents() -> list[Path]:
    """README.md and the pages of docs, but for proofs, which have numbers of formulas, and papers.md."""
    found = [page for page in (ROOT / "docs").rglob("*.md") if page != FILE and page.parent.name != "proofs"]
    return [ROOT / "README.md", *sorted(found)]


def unsupported(document: Path) -> list[str]:
    """The numbers of a document's paragraphs that name pages, and that neither these nor the document itself have."""
    text, lost = document.read_text(encoding="utf-8"), []
    blocks, prose = re.findall(r"```(?:.|\n)*?```|^\|.*", text, re.M), re.sub(r"```(?:.|\n)*?```", "", text)
    known = {*plain("\n".join(blocks)).values()}
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", prose):
        if paragraph.startswith("|") or not (named := set(_PAGE.findall(paragraph))):
            continue
        there = known.union(*(plain((ROOT / page).read_text(encoding="utf-8")).values() for page in named))
        bare = re.sub(r"\]\([^)]*\)|`[^`]*`|(?<![\d,.])0\d+", "", paragraph)  # also without the number of a decision
        lost += [shown for shown, value in plain(bare).items() if not any(_rounds(one, shown, value) for one in there)]
    own = OF_THE_CODE.get(str(document.relative_to(ROOT)), {})
    return [shown for shown in lost if shown not in own]


def _rounds(measured: float, shown: str, value: float) -> bool:
    """Whether a measured number has the `value` to the digits that are `shown`, which are two or more of a fraction."""
    digits = max(len(re.sub(r"[.,]", "", shown).strip("0")), 2 if "." in shown else 1)
    return float(f"{measured:.{digits}g}") == value


def pairs(text: str) -> list[str]:
    """Every "mean ± error" in the text, in order."""
    return _PAIR.findall(text)


def number(pair: str) -> tuple[float, ...]:
    """The mean and its error, however they are written."""
    return tuple(map(float, pair.split(" ± ")))


def plain(text: str) -> dict[str, float]:
    """Every number of two digits or more without its sign, by how it is written."""
    found = {shown: float(shown.replace(",", "")) for shown in _PLAIN.findall(text)}
    return {shown: value for shown, value in found.items() if len(re.sub(r"\D", "", shown)) > 1}


def pages(commands: str) -> list[str]:
    """The pages that these commands of a row write, as paths in the repository."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)`", commands):
        commands += "".join(re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE))
    modules = dict.fromkeys(re.findall(r"(benchmarks|studies)\.(\w+)", commands))
    return [page for names in modules if (ROOT / (page := "{}/{}.md".format(*names))).exists()]


def missing(verdict: str, commands: str) -> list[str]:
    """What the verdict quotes and no page of its commands has."""
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in pages(commands)]
    there = {number(pair) for text in texts for pair in pairs(text)}
    lost = [pair for pair in pairs(verdict) if number(pair) not in there]
    if texts:
        known = {value for text in texts for value in plain(text).values()}
        lost += [shown for shown, value in plain(_NAMED.sub("", _PAIR.sub("", verdict))).items() if value not in known]
    return lost


def moved(commands: str, commit: str) -> dict[tuple[float, ...], set[str]]:
    """What now stands in the place of each pair of the pages at the commit; new and longer pages are left out."""
    found: dict[tuple[float, ...], set[str]] = {}
    for page in pages(commands):
        shown = subprocess.run(["git", "show", f"{commit}:{page}"], cwd=ROOT, capture_output=True, text=True)
        before, after = pairs(shown.stdout), pairs((ROOT / page).read_text(encoding="utf-8"))
        if len(before) == len(after):
            for old, new in zip(before, after, strict=True):
                found.setdefault(number(old), set()).add(new)
    return found


def updated(item: str, verdict: str, commands: str, commit: str) -> str:
    """The verdict with what now stands in the places that it quotes; prints each change and unknown place."""
    places, lost = moved(commands, commit), missing(verdict, commands)

    def current(found: re.Match[str]) -> str:
        old, now = found[0], places.get(number(found[0]), set())
        if number(old) in map(number, now) or not (now or old in lost):
            return old
        print(f"{item}: {old} is now {' or '.join(sorted(now)) or 'at no known place'}")
        return min(now) if len(now) == 1 else old

    return _PAIR.sub(current, verdict)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what is quoted and no longer there; replace it with --write, or fail with --check."""
    parser = argparse.ArgumentParser(description="Compare the numbers of documents with the measured pages.")
    parser.add_argument("--write", action="store_true", help="replace what is quoted, where its place is known")
    parser.add_argument("--since", default="HEAD", help="the commit whose pages the verdicts quote")
    parser.add_argument("--check", action="store_true", help="fail if a number is quoted that no page beside it has")
    given, lines, lost = parser.parse_args(arguments), [], []
    for line in FILE.read_text(encoding="utf-8").splitlines(keepends=True):
        cells = line.split("|")
        if len(cells) == 7:
            lost += [f"{cells[1].strip()}: {found}" for found in missing(cells[5], cells[4])]
            cells[5] = updated(cells[1].strip(), cells[5], cells[4], given.since)
        lines.append("|".join(cells))
    if given.write:
        FILE.write_text("".join(lines), encoding="utf-8")
    lost += [f"{page.relative_to(ROOT)}: {shown}" for page in documents() for shown in unsupported(page)]
    if given.check and lost:
        parser.exit(1, "\n".join(["quoted, and in none of the pages that are named with it:", *lost, ""]))


if __name__ == "__main__":
    main()
