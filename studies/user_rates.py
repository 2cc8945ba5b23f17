"""Users whose losses attain the rates of user-level privacy. Run with `python -m studies.user_rates [--write]`.

Bassily and Sun 2023, Theorem 3.1, and Asi and Liu 2024, Theorems 4.1 and 4.11, bound the excess for every loss of a
class. A fixed loss may be easier. Two families are as hard as the bounds: linear losses -<z, theta>, whose lower bound
is the theorems', and squared distances ||theta - z||^2 / 2, whose excess is the squared error of a mean. z is a vector
of d signs of norm 1 with a mean of norm a along the diagonal, so the excess is known. A user has m of them. Theta is in
the unit ball and begins at 0. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, fast_enough, mean_and_error, pm, scientific, slope, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from streamdp.errors import TooFewUsersError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP
from streamdp.windows.outliers import OutlierRemoval
from streamdp.windows.ranges import PrivateRange
from streamdp.windows.task import Method, Task

DELTA = 1e-6
DRAWS = 10
RANGES, OUTLIERS = PrivateRange(), OutlierRemoval()


@dataclass(frozen=True)
class Size:
    """n users, m records of each, d parameters, and epsilon."""

    n: int = 4_000
    m: int = 16_384
    d: int = 16
    epsilon: float = 1.0


SWEEPS: dict[str, tuple[float, ...]] = {
    "n": (1_000, 2_000, 4_000, 8_000),
    "m": (16, 512, 16_384, 131_072),
    "d": (4, 16, 64),
    "epsilon": (0.5, 1, 2),
}
CROWDS = (4_000, 16_000, 64_000)
SHARES, STRENGTHS = (0.004, 0.01, 0.1), (10, 100)


@dataclass(frozen=True)
class Problem:
    """A family. `power`: the excess is the theorem's error of a mean to this power."""

    name: str
    bound: float
    smoothness: float
    convexity: float
    power: int

    def norms(self, bound: float) -> tuple[float, ...]:
        """Which a are tried. Linear losses are the hardest where a is near the excess: then theta's direction is noise.
        The excess of the squared distance does not depend on a."""
        return (0.5,) if self.convexity else tuple(min(1.0, bound * share) for share in (0.3, 0.7, 1.0))

    def excess(self, theta: np.ndarray, a: float) -> float:
        """E f(theta) - min E f."""
        mean = np.full(len(theta), a / math.sqrt(len(theta)))
        return float(np.sum((theta - mean) ** 2) / 2 if self.convexity else a - mean @ theta)

    def rate(self, size: Size) -> float:
        """The theorems' bound for user-level privacy without constants and logarithms."""
        public, private = 1 / math.sqrt(size.n * size.m), math.sqrt(size.d / size.m) / (size.n * size.epsilon)
        return public**self.power + private**self.power


LINEAR = Problem("linear", 1.0, 1e-7, 0.0, 1)
"""Smoothness is that of the loss, nearly 0. If it is 0.001, plans have 1 to 16 steps, more for smaller errors, and the
slopes in n, m and epsilon are flatter than the theorems': -0.85, -0.42 and -0.59 of private ranges."""
SQUARED = Problem("squared distance", 2.0, 1.0, 1.0, 2)
PROBLEMS = (LINEAR, SQUARED)


@dataclass(frozen=True)
class Way:
    """How to learn. `slopes`: exponents of n, m, d, epsilon in privacy's part of the bound.

    Without `near` nobody knows that averages are near their mean. A replaced record changes the average of a user by
    2 / m at most; with `item` that is all that is hidden, and nothing is cut.
    """

    name: str
    method: Method
    slopes: tuple[float, ...]
    near: bool = False
    item: bool = False

    def task(self, problem: Problem, size: Size) -> Task:
        """The public numbers."""
        sensitivity = 2 / size.m if self.item else 2.0
        spread = 1 / math.sqrt(size.m) if self.near or self.item else problem.bound
        budget = ApproxDP(size.epsilon, DELTA)
        loss = (problem.bound, sensitivity, problem.smoothness, problem.convexity)
        return Task(size.n, size.m, size.d, budget, *loss, distance=1.0, spread=spread)


WAYS = (
    Way("item level", RANGES, (-1.0, -1.0, 0.5, -1.0), item=True),
    Way("cut at the bound", RANGES, (-1.0, 0.0, 0.5, -1.0)),
    Way("private ranges", RANGES, (-1.0, -0.5, 0.5, -1.0), near=True),
    Way("outlier removal", OUTLIERS, (-1.0, -0.5, 0.5, -1.0), near=True),
)


class Averages:
    """The users, by the averages (n, d) of their records."""

    def __init__(self, problem: Problem, points: np.ndarray) -> None:
        self._problem, self._points = problem, points

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """As `windows.task.Users` asks."""
        points = self._points if users is None else self._points[users]
        return np.asarray(theta - points if self._problem.convexity else -points)

    def project(self, theta: np.ndarray) -> np.ndarray:
        """In the unit ball."""
        return np.asarray(theta / max(1.0, float(np.linalg.norm(theta))))


def draw(size: Size, a: float, seed: int, share: float = 0.0, strength: float = 0.0) -> np.ndarray:
    """The averages (n, d). A share of the users has one that lies opposite to the mean of the others, further from it
    by `strength` times 1 / sqrt(m), or at the edge of the ball where that is nearer."""
    rng = np.random.default_rng((seed, size.n, size.m, size.d))
    points = (2 * rng.binomial(size.m, (1 + a) / 2, (size.n, size.d)) / size.m - 1) / math.sqrt(size.d)
    unlike = round(share * size.n)
    points[rng.permutation(size.n)[:unlike]] = max(-1.0, a - strength / math.sqrt(size.m)) / math.sqrt(size.d)
    return np.asarray(points)


@cache
def planned(problem: Problem, way: Way, size: Size) -> Any:
    """The plan; None: too few users."""
    try:
        return way.method.plan(way.task(problem, size))
    except TooFewUsersError:
        return None


@cache
def measured(
    problem: Problem, way: Way, size: Size, share: float = 0.0, strength: float = 0.0
) -> tuple[np.ndarray, int] | None:
    """The excess (draws,) for the hardest of the norms, and how many runs stopped early; None: too few users."""
    plan = planned(problem, way, size)
    if plan is None:
        return None
    found, stopped = [], 0
    for a in problem.norms(plan.excess):
        runs = []
        for seed in range(DRAWS):
            users = Averages(problem, draw(size, a, seed, share, strength))
            release = way.method.run(plan, users, np.zeros(size.d), SeededEntropy(seed, 1 << 14))
            runs.append(problem.excess(release.theta, a))
            stopped += not release.complete
        found.append(np.array(runs))
    return max(found, key=np.mean), stopped


@cache
def public(problem: Problem, size: Size, share: float = 0.0, strength: float = 0.0) -> np.ndarray:
    """The excess (draws,) of what minimises the loss of all records, for the hardest of the norms."""
    found = []
    for a in problem.norms(1 / math.sqrt(size.n * size.m)) if not share else (0.5,):
        thetas = [draw(size, a, seed, share, strength).mean(axis=0) for seed in range(DRAWS)]
        if not problem.convexity:
            thetas = [theta / np.linalg.norm(theta) for theta in thetas]
        found.append(np.array([problem.excess(theta, a) for theta in thetas]))
    return max(found, key=np.mean)


@dataclass(frozen=True)
class Curve:
    """The excess against what is varied; sizes with too few users are left out."""

    problem: Problem
    way: Way
    varied: str
    base: Size = Size()

    @property
    def sizes(self) -> list[Size]:
        """All of them."""
        kind = float if self.varied == "epsilon" else int
        return [replace(self.base, **{self.varied: kind(value)}) for value in SWEEPS[self.varied]]

    @property
    def points(self) -> list[tuple[float, np.ndarray]]:
        """(value, runs)."""
        found = [(getattr(size, self.varied), measured(self.problem, self.way, size)) for size in self.sizes]
        return [(value, cell[0]) for value, cell in found if cell is not None]

    def steepness(self, last: int | None = None) -> str:
        """The slope of the plan's bound over the same sizes."""
        found = [
            (value, planned(self.problem, self.way, size))
            for value, size in zip(SWEEPS[self.varied], self.sizes, strict=True)
        ]
        pairs = [(value, plan.excess) for value, plan in found if plan is not None]
        pairs = pairs if last is None else pairs[-last:]
        return f"{np.polyfit(*np.log(pairs).T, 1)[0]:.2f}" if len(pairs) > 1 else ""

    @property
    def exponent(self) -> float:
        """That of privacy's part of the bound."""
        return self.problem.power * self.way.slopes[list(SWEEPS).index(self.varied)]

    def fit(self, last: int | None = None) -> str:
        """The slope over all sizes or the last few, and whether it is at most the exponent."""
        points = self.points if last is None else self.points[-last:]
        if len(points) < 2:
            return "too few sizes"
        fitted = slope([value for value, _ in points], [runs for _, runs in points])  # type: ignore[misc]
        return f"{pm(fitted)} ({'yes' if fast_enough(fitted, self.exponent) else '**no**'})"


def slopes_table() -> str:
    """A row for each family, way and what is varied."""
    rows = []
    for problem in PROBLEMS:
        for way in WAYS:
            for varied in SWEEPS:
                c = Curve(problem, way, varied)
                fits = [cell for last in (None, 3) for cell in (c.fit(last), c.steepness(last))]
                rows.append([problem.name, way.name, varied, f"{c.exponent:g}", *fits])
    head = ["slope, all sizes (met)", "the plan's", "last three sizes (met)", "the plan's"]
    return table(["loss", "way", "against", "exponent", *head], rows)


def excess_table(problem: Problem, varied: str) -> str:
    """A row for each size; the excess of user-level ways over the rate, too."""
    rows = []
    for size in Curve(problem, WAYS[0], varied).sizes:
        cells = [measured(problem, way, size) for way in WAYS]
        shown = ["too few users" if cell is None else scientific(cell[0]) for cell in cells]
        over = ["" if cell is None else f"{cell[0].mean() / problem.rate(size):.1f}" for cell in cells[2:]]
        rows.append([f"{getattr(size, varied):,}", scientific(public(problem, size)), *shown, *over])
        print(problem.name, varied, " | ".join(rows[-1]), flush=True)
    names = [way.name for way in WAYS]
    return table([varied, "no privacy", *names, *(f"{name} / rate" for name in names[2:])], rows)


def outliers_table() -> str:
    """Squared distances: a row for each share and strength."""
    rows, ways = [], WAYS[1:]
    for share, strength in [(0.0, 0), *product(SHARES, STRENGTHS)]:
        cells = [measured(SQUARED, way, Size(), share, strength) for way in ways]
        assert cells[-1] is not None
        shown = ["too few users" if cell is None else scientific(cell[0]) for cell in cells]
        row = [f"{share:.1%}", str(strength) if share else "", scientific(public(SQUARED, Size(), share, strength))]
        rows.append([*row, *shown, str(cells[-1][1])])
    head = ["unlike users", "strength", "no privacy", *(way.name for way in ways), "runs that stopped"]
    return table(head, rows)


def crowds_table() -> str:
    """Squared distances and outlier removal against m: a row for each number of users."""
    rows = []
    for n in CROWDS:
        c = Curve(SQUARED, WAYS[-1], "m", Size(n=n))
        phases = ", ".join(str(len(planned(c.problem, c.way, size).phases)) for size in c.sizes)
        rows.append([f"{n:,}", phases, *(scientific(runs) for _, runs in c.points), c.fit(), c.steepness()])
    return table(["n", "phases", *(f"m = {m:,}" for m in SWEEPS["m"]), "slope (met)", "the plan's"], rows)


def picture() -> Any:
    """A row for each family, a column for what is varied."""
    figure, axes = sheet(len(PROBLEMS), len(SWEEPS))
    labels = {"n": "users n", "m": "records of each user m", "d": "parameters d", "epsilon": "epsilon"}
    for row, problem in zip(axes, PROBLEMS, strict=True):
        for axis, varied in zip(row, SWEEPS, strict=True):
            for colour, marker, way in zip(COLOURS, MARKERS, WAYS, strict=False):
                c = Curve(problem, way, varied)
                pairs = np.array([mean_and_error(runs) for _, runs in c.points])
                values = [value for value, _ in c.points]
                style = {"color": colour, "marker": marker, "ms": 4, "capsize": 2, "label": way.name}
                axis.errorbar(values, pairs[:, 0], 2 * pairs[:, 1], **style)
                if way is WAYS[-1]:
                    line = pairs[-1, 0] * (np.array(values) / values[-1]) ** c.exponent
                    axis.plot(values, line, ":", color="0.3", label="privacy's part of the bound, slope")
            axis.set(xscale="log", yscale="log", xlabel=labels[varied])
            axis.set_xticks(SWEEPS[varied], [f"{value:,}" for value in SWEEPS[varied]])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        row[0].set_ylabel(f"excess loss, {problem.name}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=9)
    return figure


def excess_tables() -> str:
    """A table for each family and what is varied."""
    return "\n\n".join(
        f"### {problem.name.capitalize()}, against {varied}\n\n{excess_table(problem, varied)}"
        for problem, varied in product(PROBLEMS, SWEEPS)
    )


PARTS: dict[str, Callable[[], str | tuple[str, Any]]] = {
    "excess": excess_tables,
    "slopes": lambda: (slopes_table(), picture()),
    "crowds": crowds_table,
    "outliers": outliers_table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
