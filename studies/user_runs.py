"""Runs of contenders at many n and m, and what follows: slopes, gains, the worst of a family (see `user_level`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.shared.pages import mean_and_error, ratio
from streamdp.privacy.guarantees import Budget
from studies.user_baselines import Contender, GroupPrivacy, OneRecord, Population, UserLevel

FEWEST = 3
"""Repetitions for the worst of a family, and where there are more than `LARGE` reports."""
LARGE = 10**6

USERS, PUBLIC = UserLevel("user level"), UserLevel("user level, spread known", known=True)
RIVALS = {
    USERS: (OneRecord("one record"), GroupPrivacy("group privacy")),
    PUBLIC: (
        OneRecord("one record, spread known", known=True),
        GroupPrivacy("group privacy, spread known", known=True),
    ),
}
CONTENDERS = tuple(c for ours, others in RIVALS.items() for c in (ours, *others))

Cell = tuple[Population, Budget, Contender, int, int]
"""Who learns what from how many users (n) with how many records (m)."""


@dataclass(frozen=True)
class Runs:
    """The excess of every repetition in every cell measured."""

    found: dict[Cell, np.ndarray]

    def of(self, population: Population, budget: Budget, contender: Contender, n: int, m: int) -> np.ndarray:
        """(repetitions,); one record a user is the same for every m."""
        return self.found[population, budget, contender, n, 1 if isinstance(contender, OneRecord) else m]

    def sizes(self) -> list[int]:
        return sorted({cell[3] for cell in self.found})

    def items(self) -> list[int]:
        return sorted({cell[4] for cell in self.found})


def measure(cells: Iterable[Cell], repetitions: dict[int, int]) -> Runs:
    """Every cell, so many repetitions for each n. All of them have seeds of their own."""
    found: dict[Cell, np.ndarray] = {}
    for cell in cells:
        population, budget, contender, n, m = cell
        if cell in found:
            continue
        place = f"{population.name} {budget} {contender.name} {n} {m}"
        count = repetitions[n] if contender.reports(n, m)[0] <= LARGE else min(FEWEST, repetitions[n])
        seeds = np.random.SeedSequence(list(place.encode())).generate_state(count).tolist()
        thetas = [contender.learn(population, budget, n, m, seed) for seed in seeds]
        found[cell] = np.array([population.excess(theta) for theta in thetas])
        print(f"{place}: {found[cell].mean():.2g}", flush=True)
    return Runs(found)


def cells_of(
    populations: Sequence[Population],
    budgets: Sequence[Budget],
    sizes: Sequence[int],
    items: Sequence[int],
    contenders: Sequence[Contender] = CONTENDERS,
) -> Iterable[Cell]:
    """All combinations, one record a user once, and the baselines not where m = 1 makes all of them one."""
    for population, budget, n, m, contender in product(populations, budgets, sizes, items, contenders):
        if isinstance(contender, OneRecord):
            yield population, budget, contender, n, 1
        elif m > 1 or isinstance(contender, UserLevel):
            yield population, budget, contender, n, m


# -- slopes ------------------------------------------------------------------------------------------------------------


def slopes(points: Sequence[tuple[float, ...]], runs: Sequence[np.ndarray]) -> list[tuple[float, float]]:
    """The least-squares slopes of log mean excess on the logs of the points' numbers, each with its standard error."""
    design = np.column_stack([np.ones(len(points)), np.log(np.array(points, dtype=float))])
    weights = np.linalg.pinv(design)
    pairs = [mean_and_error(run) for run in runs]
    values = weights @ [math.log(mean) for mean, _ in pairs]
    errors = np.sqrt(weights**2 @ [(error / mean) ** 2 for mean, error in pairs])
    return [(float(v), float(e)) for v, e in zip(values, errors, strict=True)][1:]


def learned(runs: Runs, population: Population, budget: Budget, contender: Contender) -> list[tuple[int, int]]:
    """At which (n, m) the mean excess is less than half of not learning at all: below that, theta_0 limits it."""
    return [
        (n, m)
        for n, m in product(runs.sizes(), runs.items())
        if runs.of(population, budget, contender, n, m).mean() < population.start / 2
    ]


def fits(runs: Runs, population: Population, budget: Budget, contender: Contender) -> list[tuple[float, float]] | None:
    """The slopes in n, in m and in their product over where something is learned; None where that is too little."""
    where = learned(runs, population, budget, contender)
    if len({n for n, _ in where}) < 2 or len({m for _, m in where}) < 2:
        return None
    excess = [runs.of(population, budget, contender, n, m) for n, m in where]
    return slopes(where, excess) + slopes([(n * m,) for n, m in where], excess)


def worst(runs: Runs, family: Sequence[Population], budget: Budget, contender: Contender) -> Runs:
    """The runs of that member of the family whose mean excess is the largest at each n and m, as of the first."""
    found: dict[Cell, np.ndarray] = {}
    for n, m in product(runs.sizes(), runs.items()):
        members = [runs.of(member, budget, contender, n, m) for member in family]
        found[family[0], budget, contender, n, m] = max(members, key=np.mean)
    return Runs(found)


def share(runs: Runs, population: Population, budget: Budget, contender: Contender) -> float:
    """The largest ratio of mean excess, plus two standard errors, and the plan's bound."""
    shares = []
    for n, m in product(runs.sizes(), runs.items()):
        mean, error = mean_and_error(runs.of(population, budget, contender, n, m))
        shares.append((mean + 2 * error) / contender.model(population, budget, n, m, 0).learner.walk.plan[-1].excess)
    return max(shares)


def gain(
    runs: Runs, population: Population, budget: Budget, pair: tuple[Contender, Contender], n: int, m: int
) -> tuple[float, float]:
    """How many times the excess of the first is that of the second, and its standard error."""
    above, below = (runs.of(population, budget, contender, n, m) for contender in pair)
    return ratio(above, below)


def beats(pair: tuple[float, float]) -> bool:
    """By more than two standard errors."""
    return pair[0] - 2 * pair[1] > 1
