"""How many users private means of concentrated vectors need. Run with `python -m studies.few_users [--write]`.

Some twenty seconds on one core. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.shared.pages import command, mean_and_error, table
from streamdp.aggregation.concentrated_mean import ConcentratedMean, QueryRun
from streamdp.aggregation.range_mean import RangeMean
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, GaussianDP

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
    mean = ConcentratedMean.planned(budget, users, d, queries, BOUND, distance, OUTLIERS, FAILURE)
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
    answer = mean.estimate(points, rng) if isinstance(mean, RangeMean) else QueryRun(mean, rng).of(points)
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


def needs() -> str:
    """The least users, and the slopes of private ranges."""
    users = {(name, q): [needed(name, d, q) for d in DIMENSIONS] for name in METHODS for q in QUERIES}
    slopes = [float(np.polyfit(np.log(DIMENSIONS), np.log(users["private ranges", q]), 1)[0]) for q in QUERIES]
    rows = [[f"{name}, queries: {q}", *(f"{n:,}" for n in ns)] for (name, q), ns in users.items()]
    shown = table(["users", *(f"d = {d:,}" for d in DIMENSIONS)], rows)
    said = " and ".join(f"{slope:.2f}" for slope in slopes)
    return f"{shown}\n\nFitted slopes of private ranges: {said}."


def errors() -> str:
    """The errors, and where one method helps and the other does not."""
    rows = [measured(d, n) for d, sizes in MEASURED.items() for n in sizes]
    return f"{table(['d', 'users', 'cut at the bound', 'private ranges', 'outlier removal'], rows)}\n\n{finding(rows)}"


PARTS: dict[str, Callable[[], str]] = {"needed": needs, "errors": errors}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
