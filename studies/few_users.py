"""How many users private means of concentrated vectors need. Run with `python -m studies.few_users [--write]`; some
twenty seconds on one core.

`--write` puts tables and figure into few_users.md and few_users.png beside this file. Noise comes from seeded
generators, which are for measuring only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.shared.pages import mean_and_error, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from streamdp.aggregation.concentrated_mean import Answers, ConcentratedMean
from streamdp.aggregation.range_mean import RangeMean
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, GaussianDP

FOLDER = Path(__file__).parent
BUDGET = ApproxDP(1.0, 1e-6)
MU = GaussianDP.from_approx(BUDGET).mu
BOUND, SPREAD = 1.0, 0.02
FAILURE = 0.01
OUTLIERS = 0.01
DIMENSIONS = (16, 64, 256, 1024, 4096)
QUERIES = (1, 32)
MEASURED = {16: (500, 1000, 4000), 1024: (1000, 4000, 8000)}
REPETITIONS = {16: 40, 1024: 6}
USELESS = "does not pay"


def cut(d: int, users: int, queries: int = 1) -> RangeMean:
    """Vectors cut to the bound, and noise for a replaced one."""
    return RangeMean(MU / math.sqrt(queries), BOUND, 2 * BOUND, d, users, 1.0, SPREAD, 0.0, FAILURE / queries)


def ranges(d: int, users: int, queries: int = 1) -> RangeMean | None:
    """USER-BS; None where private ranges do not lower the noise."""
    mu = MU / math.sqrt(queries)
    mean = RangeMean.planned(mu, BOUND, 2 * BOUND, d, users, 1.0, SPREAD, FAILURE / queries)
    return mean if mean.share else None


def outliers(
    d: int, users: int, queries: int = 1, spread: float = SPREAD, budget: ApproxDP = BUDGET
) -> ConcentratedMean | None:
    """USER-AL, as `OutlierRemoval` plans it; None where it does not lower the noise."""
    distance = math.sqrt(2) * spread * (1 + math.sqrt(2 * math.log(1 / OUTLIERS)))
    mean = ConcentratedMean.planned(budget, users, d, queries, BOUND, distance, "weighted", OUTLIERS, FAILURE)
    mu = GaussianDP.from_approx(budget).mu
    return mean if mean and mean.noise < 2 * BOUND * math.sqrt(queries) / (users * mu) else None


def least(pays: Callable[[int], bool]) -> int:
    """The least n that pays, odd ones only (an even one may do a little earlier)."""
    low, high = 0, 1
    while not pays(2 * high + 1):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(2 * middle + 1) else (middle, high)
    return 2 * high + 1


METHODS: dict[str, Callable[[int, int, int], RangeMean | ConcentratedMean | None]] = {
    "private ranges": ranges,
    "outlier removal": outliers,
}


def needed(name: str, d: int, queries: int) -> int:
    """The least users with whom a method pays."""
    return least(lambda users: METHODS[name](d, users, queries) is not None)


def vectors(d: int, users: int, rng: np.random.Generator, spread: float = SPREAD) -> np.ndarray:
    """Gaussian vectors (n, d) at a root mean square distance of `spread` from a mean of norm 0.9."""
    middle = rng.standard_normal(d)
    middle *= 0.9 * BOUND / np.linalg.norm(middle)
    return middle + rng.standard_normal((users, d)) * (spread / math.sqrt(d))


def error(mean: RangeMean | ConcentratedMean, points: np.ndarray, seed: int) -> float:
    """The squared distance of one answer from the mean of the points; infinite where none is given."""
    truth, rng = points.mean(axis=0), SeededEntropy(seed, 1 << 14)
    answer = mean.estimate(points, rng) if isinstance(mean, RangeMean) else Answers(mean, rng).of(points)
    return math.inf if answer is None else float(np.sum((answer - truth) ** 2))


def measured(d: int, users: int) -> list[str]:
    """A row of root mean square errors, and their Monte Carlo standard errors."""
    row = [f"{d:,}", f"{users:,}"]
    for method in (cut, ranges, outliers):
        mean = method(d, users)
        if mean is None:
            row.append(USELESS)
            continue
        runs = range(REPETITIONS[d])
        squares = np.array([error(mean, vectors(d, users, np.random.default_rng(k)), k) for k in runs])
        value, deviation = mean_and_error(squares)
        row.append(f"{math.sqrt(value):.1e} ± {deviation / (2 * math.sqrt(value)):.0e}")
    return row


def finding(rows: list[list[str]]) -> str:
    """Where one method helps and the other does not, in words."""
    lines = []
    for name, mine, other in (("private ranges help", 3, 4), ("outlier removal helps", 4, 3)):
        where = [f"d = {row[0]}, n = {row[1]}" for row in rows if row[mine] != USELESS and row[other] == USELESS]
        lines.append(f"Only {name} at: {'; '.join(where) or 'none of these'}.")
    return "\n".join(lines)


def draw(path: Path, least_users: dict[tuple[str, int], list[int]]) -> None:
    """The figure."""
    figure, ((axis,),) = sheet(width=4.8, height=3.3)
    for (name, queries), users in least_users.items():
        k, line = list(METHODS).index(name), "-" if queries == 1 else "--"
        label = f"{name}, {queries} quer{'y' if queries == 1 else 'ies'}"
        axis.plot(DIMENSIONS, users, MARKERS[k] + line, color=COLOURS[k], ms=5, label=label)
    d = np.array(DIMENSIONS)
    axis.plot(d, 100 * np.sqrt(d), ":", color="0.3", label="slope 1/2")
    axis.set(xscale="log", yscale="log", xlabel="parameters d", ylabel="least number of users")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=90)


TEXT = """# Few users

Written by `python -m studies.few_users --write`; do not edit. A window's users have one vector each, of norm at most
{bound:g}, and these lie within {spread:g} (root mean square) of their mean: gradients of some {items:,} records a user.
Each method gives the mean of all, {budget} where one user's records are replaced. To compare with: vectors are
taken as they are, and noise covers two that are opposite ("cut at the bound").

## From how many users on it pays

The least n at which a method has less noise than that; below, its own questions cost more than they gain.

{needed}

![Users needed](few_users.png)

Private ranges (`streamdp.aggregation.range_mean`, Bassily and Sun 2023) choose a bin for each coordinate, so their
users grow with sqrt(d) and a logarithm: fitted slopes {slopes}. They grow so with the number of queries, too.
Outlier removal (`streamdp.aggregation.concentrated_mean`, Asi and Liu 2023) asks one question whatever d is, and one
budget serves all its questions: here its users do not depend on d at all, and on queries by a logarithm.

## Error of one mean

Root mean square distance from the users' mean, ± one Monte Carlo standard error ({many} repetitions at d = {low},
{few} at d = {high}).

{measured}

{finding}
"""


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(prog="python -m studies.few_users", description="How many users means need.")
    parser.add_argument("--write", action="store_true", help="write few_users.md and few_users.png")
    write = parser.parse_args().write
    users = {(name, q): [needed(name, d, q) for d in DIMENSIONS] for name in METHODS for q in QUERIES}
    slopes = [float(np.polyfit(np.log(DIMENSIONS), np.log(users["private ranges", q]), 1)[0]) for q in QUERIES]
    rows = [measured(d, n) for d, sizes in MEASURED.items() for n in sizes]
    low, high = MEASURED
    text = TEXT.format(
        bound=BOUND,
        spread=SPREAD,
        items=round((BOUND / SPREAD) ** 2),
        budget=BUDGET,
        needed=table(
            ["users", *(f"d = {d:,}" for d in DIMENSIONS)],
            [[f"{name}, queries: {q}", *(f"{n:,}" for n in ns)] for (name, q), ns in users.items()],
        ),
        slopes=" and ".join(f"{s:.2f}" for s in slopes),
        many=REPETITIONS[low],
        few=REPETITIONS[high],
        low=f"{low:,}",
        high=f"{high:,}",
        measured=table(["d", "users", "cut at the bound", "private ranges", "outlier removal"], rows),
        finding=finding(rows),
    )
    print(text)
    if write:
        (FOLDER / "few_users.md").write_text(text, encoding="utf-8")
        draw(FOLDER / "few_users.png", users)


if __name__ == "__main__":
    main()
