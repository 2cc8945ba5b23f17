"""What benchmarks share to write pages: means with errors, tables, sections by their titles."""

from __future__ import annotations

import argparse
import fcntl
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np


def mean_and_error(samples: np.ndarray) -> tuple[float, float]:
    """The mean and its Monte Carlo standard error."""
    return float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))


def slope(sizes: Sequence[int], runs: Sequence[np.ndarray]) -> tuple[float, float]:
    """The least-squares slope of log mean excess on log n, and its standard error from the spread of repetitions.

    Repetitions are independent, and log mean has the standard error s.e. / mean.
    """
    x = np.log(sizes)
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    pairs = [mean_and_error(run) for run in runs]
    value = sum(w * math.log(mean) for w, (mean, _) in zip(weights, pairs, strict=True))
    return float(value), math.sqrt(sum((w * e / m) ** 2 for w, (m, e) in zip(weights, pairs, strict=True)))


def fast_enough(fitted: tuple[float, float], exponent: float) -> bool:
    """Whether the excess falls at least as fast as n^exponent, two standard errors allowed."""
    return fitted[0] <= exponent + 2 * fitted[1]


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """The ratio of two means and its standard error."""
    (a, da), (b, db) = mean_and_error(above), mean_and_error(below)
    return a / b, a / b * math.hypot(da / a, db / b)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pm(pair: tuple[float, float], digits: int = 2) -> str:
    """A value and its Monte Carlo standard error."""
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"


def write(section: str, head: str, page: Path) -> None:
    """Put a section into the page, in the order of titles; a page with another head is begun anew."""
    with page.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # steps of `make figures` may end at the same time
        file.seek(0)
        first, *others = re.split(r"^(?=## )", file.read(), flags=re.MULTILINE)
        kept = others if first.strip() == head.strip() else []
        title = section.splitlines()[0]
        sections = [*(part.strip() for part in kept if part.splitlines()[0] != title), section.strip()]
        file.seek(0)
        file.truncate()
        file.write("\n\n".join([head.strip(), *sorted(sections)]) + "\n")


def measure(
    about: str, sections: Mapping[str, Callable[[], str]], head: str, page: Path, arguments: Sequence[str] | None
) -> None:
    """The command of a page of sections: measure them, print, and with --write save."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--write", action="store_true", help=f"write sections of {page.name}")
    parser.add_argument("--only", choices=sections, nargs="+", default=[*sections], help="which sections")
    given = parser.parse_args(arguments)
    for name in given.only:
        section = sections[name]()
        print(section, flush=True)
        if given.write:
            write(section, head, page)


def write_between(file: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a file."""
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{file} lacks the lines {begin} and {end}")
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def write_costs(mark: str, text: str) -> None:
    """Put a table into the page about the costs of noise, between its marks."""
    path = Path(__file__).parents[2] / "docs" / "explanations" / "noise.md"
    write_between(path, f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->", text)


def short(records: float) -> str:
    """A number of records to two digits."""
    digits = float(f"{records:.1e}")
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if digits >= size:
            return f"{digits / size:.3g} {unit}"
    return f"{digits:.0f}"
