"""What benchmarks share to write pages: means with errors, slopes, tables, and the command of a page."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

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


def scientific(samples: np.ndarray) -> str:
    """The mean and its Monte Carlo standard error, with a digit of it."""
    return "{:.1e} ± {:.0e}".format(*mean_and_error(samples))


def rough(samples: np.ndarray) -> str:
    """The same without an exponent where the mean needs none."""
    return "{:.2g} ± {:.1g}".format(*mean_and_error(samples))


def fast_enough(fitted: tuple[float, float], exponent: float) -> bool:
    """Whether the excess falls at least as fast as n^exponent, two standard errors allowed."""
    return fitted[0] <= exponent + 2 * fitted[1]


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """The ratio of two means and its standard error."""
    (a, da), (b, db) = mean_and_error(above), mean_and_error(below)
    return a / b, a / b * math.hypot(da / a, db / b)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Rows of a generator, which may take long, are printed as they come."""
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append(row)
        if isinstance(rows, Iterator):
            print(" | ".join(row), flush=True)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pm(pair: tuple[float, float], digits: int = 2) -> str:
    """A value and its Monte Carlo standard error."""
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"


NOISE = Path(__file__).parents[2] / "docs" / "explanations" / "noise.md"
"""The page about the costs of noise, which shows some parts."""
Found = str | tuple[str, Any]
"""The text of a part, and perhaps its picture."""


def fill(page: Path, name: str, text: str) -> None:
    """Replace what stands in a page between the marks of a name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    with page.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # steps of `make figures` may end at the same time
        before, _, rest = file.read().partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{page} lacks the lines {begin} and {end}")
        file.seek(0)
        file.truncate()
        file.write(f"{before}{begin}\n{text}\n{end}{after}")


def command(
    script: str,
    parts: Mapping[str, Callable[..., Found]],
    arguments: Sequence[str] | None,
    quick: bool = False,
    pages: Mapping[str, Sequence[Path]] = MappingProxyType({}),
) -> None:
    """The command of the page beside a script: measure its parts, print them, and with --write save them.

    `quick`: whether there is a smaller size, for a look. Parts then take whether it is asked for; it is never saved.
    `pages`: where parts are saved, if that is not the page beside the script alone.
    """
    page = Path(script).with_suffix(".md")
    parser = argparse.ArgumentParser(description=f"Measure what {page.parent.name}/{page.name} shows.")
    parser.add_argument("--write", action="store_true", help=f"save the parts in {page.name}")
    parser.add_argument("--only", choices=parts, nargs="+", default=[*parts], help="which parts")
    if quick:
        parser.add_argument("--quick", action="store_true", help="a small size, which cannot be saved")
    given = parser.parse_args(arguments)
    small = quick and given.quick
    if given.write and small:
        parser.error("--quick is for a look: its figures cannot be saved")
    for name in given.only:
        found = parts[name](small) if quick else parts[name]()
        text, picture = found if isinstance(found, tuple) else (found, None)
        print(text, flush=True)
        if given.write:
            for one in pages.get(name, [page]):
                fill(one, name, text)
            if picture is not None:
                picture.savefig(page.parent / "figures" / f"{page.stem}-{name}.png", dpi=80)


def short(records: float) -> str:
    """A number of records to two digits."""
    digits = float(f"{records:.1e}")
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if digits >= size:
            return f"{digits / size:.3g} {unit}"
    return f"{digits:.0f}"


def in_a_process(benchmark: str, *arguments: str) -> dict[str, float]:
    """One measurement of a benchmark in a process of its own, which prints it as JSON."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--one", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
