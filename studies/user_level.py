"""What user-level learning gains from many records a user. Run with `python -m studies.user_level [--write]`.

`--quick` takes seconds and is for trying. Populations, contenders and baselines are in `user_baselines`. Noise comes
from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from benchmarks.shared.pages import command, fast_enough, mean_and_error, pm, ratio, scientific, table
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from studies.user_baselines import (
    DIFFERENT,
    FAMILY,
    LOGISTIC,
    Contender,
    CutRecord,
    GroupPrivacy,
    OneRecord,
    Population,
    UserLevel,
    coarse_batch,
)

SIZES = (1_000, 3_162, 10_000, 31_623, 100_000)
ITEMS = (1, 4, 16, 64)
MANY = (16, 64)
BUDGETS: tuple[ApproxDP, ...] = (ApproxDP(1.0, 1e-6), ApproxDP(4.0, 1e-6))
POPULATIONS = (LOGISTIC,)
REPETITIONS = {1_000: 16, 3_162: 12, 10_000: 10, 31_623: 10, 100_000: 10}
FEW = 6
"""Repetitions of the smaller tables."""
CUTS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Of the bound: what one record is cut to, the best in hindsight."""


# -- runs --------------------------------------------------------------------------------------------------------------

FEWEST = 3
"""Repetitions where there are more than `LARGE` reports, as for group privacy."""
LARGE = 10**6

USERS, PUBLIC = UserLevel("user level"), UserLevel("user level, spread known", known=True)
RIVALS = {
    USERS: (OneRecord("one record"), GroupPrivacy("group privacy")),
    PUBLIC: (
        OneRecord("one record, spread known", known=True),
        GroupPrivacy("group privacy, spread known", known=True),
    ),
}
DEFAULT = UserLevel("user level, default steps", planned=False)
CONTENDERS = (*(c for ours, others in RIVALS.items() for c in (ours, *others)), DEFAULT)

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
        shares.append(
            (mean + 2 * error) / contender.model(population, budget, n, m, 0).learner.batch_steps.plan[-1].excess
        )
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


def slopes_row(runs: Runs, name: str, population: Population, budget: Budget, contender: Contender) -> list[str]:
    """A row of the table of slopes."""
    where, fitted = learned(runs, population, budget, contender), fits(runs, population, budget, contender)
    verdicts = ["too few sizes"] * 3 if fitted is None else [_verdict(pair) for pair in fitted]
    sizes = f"{len(where)} of {len(runs.sizes()) * len(runs.items())}"
    largest = f"{share(runs, population, budget, contender):.2f}" if contender.planned else ""
    return [name, str(budget), contender.name, sizes, *verdicts, largest]


def slopes_table(
    runs: Runs,
    populations: Sequence[Population],
    budgets: Sequence[Budget],
    extreme: Mapping[UserLevel, Runs],
    extreme_budget: Budget,
) -> str:
    """A row a population, budget and knowledge, and the worst of the family."""
    rows = []
    for population, budget, ours in product(populations, budgets, (*RIVALS, DEFAULT)):
        rows.append(slopes_row(runs, population.name, population, budget, ours))
    for ours, found in extreme.items():
        rows.append(slopes_row(found, f"logistic, worst of {len(FAMILY)}", FAMILY[0], extreme_budget, ours))
    head = ["population", "budget", "method", "sizes", "slope in n", "slope in m", "slope in n m"]
    return table([*head, "largest (mean + 2 s.e.) / bound"], rows)


def _verdict(pair: tuple[float, float]) -> str:
    return f"{pm(pair)} ({'yes' if fast_enough(pair, -0.5) else '**no**'})"


# -- against the baselines ---------------------------------------------------------------------------------------------


def against_table(runs: Runs, populations: Sequence[Population], budgets: Sequence[Budget]) -> str:
    """A row a population, budget, baseline and m; a column an n. Bold where ours does not win."""
    rows = []
    for population, budget, (ours, others), m in product(populations, budgets, RIVALS.items(), runs.items()):
        for rival in others if m > 1 else ():
            pairs = [gain(runs, population, budget, (rival, ours), n, m) for n in runs.sizes()]
            shown = [pm(pair, 1) if beats(pair) else f"**{pm(pair, 1)}**" for pair in pairs]
            rows.append([population.name, str(budget), rival.name, str(m), *shown])
    return table(["population", "budget", "baseline", "m", *(f"n = {n:,}" for n in runs.sizes())], rows)


def excess_table(runs: Runs, populations: Sequence[Population], budgets: Sequence[Budget]) -> str:
    """The excess in every cell."""
    rows = []
    for population, budget, contender, m in product(populations, budgets, CONTENDERS, runs.items()):
        if (population, budget, contender, runs.sizes()[0], m) in runs.found:
            means = [scientific(runs.of(population, budget, contender, n, m)) for n in runs.sizes()]
            shown = "any" if isinstance(contender, OneRecord) else str(m)
            rows.append([population.name, str(budget), contender.name, shown, *means])
    return table(["population", "budget", "method", "m", *(f"n = {n:,}" for n in runs.sizes())], rows)


def finding(runs: Runs, populations: Sequence[Population], budgets: Sequence[Budget]) -> str:
    """What holds and what does not, in words."""
    lost, slow, won = [], [], 0
    for population, budget, (ours, others) in product(populations, budgets, RIVALS.items()):
        fitted = fits(runs, population, budget, ours)
        if fitted is None or not all(fast_enough(pair, -0.5) for pair in fitted):
            slow.append(f"{population.name}, {budget}, {ours.name}")
        for m, n, rival in product((m for m in runs.items() if m in MANY), runs.sizes(), others):
            if beats(gain(runs, population, budget, (rival, ours), n, m)):
                won += 1
            else:
                lost.append(f"{population.name}, {budget}, m = {m}, n = {n:,}, {rival.name}")
    return "\n".join(
        [
            f"Of {won + len(lost)} comparisons at m >= 16, {won} are won by more than two standard errors. "
            f"Not won: {'; '.join(lost) or 'none'}.",
            f"Slower than (n m)^-1/2 in n, m or both, where something is learned: {'; '.join(slow) or 'none'}.",
        ]
    )


# -- other budgets, other users, and the paper's way -------------------------------------------------------------------


def small_table(population: Population, budgets: Sequence[Budget], sizes: Sequence[int], repetitions: int) -> str:
    """The excess at m = 16 and 64."""
    runs = measure(cells_of([population], budgets, sizes, MANY), dict.fromkeys(sizes, repetitions))
    rows = []
    for budget, contender, m in product(budgets, CONTENDERS, MANY):
        if isinstance(contender, OneRecord) and m != MANY[0]:
            continue
        shown = "any" if isinstance(contender, OneRecord) else str(m)
        means = [scientific(runs.of(population, budget, contender, n, m)) for n in sizes]
        rows.append([str(budget), contender.name, shown, *means])
    return table([f"excess, {population.name}", "method", "m", *(f"n = {n:,}" for n in sizes)], rows)


def control_table(sizes: Sequence[int], repetitions: int) -> str:
    """One record with the best of all cuts in hindsight, and where ours does not beat it."""
    rivals = [CutRecord("one record", cut=cut) for cut in CUTS]
    rows, lost, count = [], [], 0
    for population, budget, n in product(POPULATIONS, BUDGETS, sizes):
        cells = cells_of([population], [budget], [n], MANY, [USERS, PUBLIC, *rivals])
        runs = measure(cells, {n: repetitions})
        best = min(rivals, key=lambda rival: runs.of(population, budget, rival, n, 1).mean())
        shown = [f"{scientific(runs.of(population, budget, best, n, 1))} ({best.cut:g} L)"]
        for ours, m in product((USERS, PUBLIC), MANY):
            pair = gain(runs, population, budget, (best, ours), n, m)
            count += 1
            shown.append(pm(pair, 1) if beats(pair) else f"**{pm(pair, 1)}**")
            if not beats(pair):
                lost.append(f"{population.name}, {budget}, n = {n:,}, m = {m}, {ours.name}")
        rows.append([population.name, str(budget), f"{n:,}", *shown])
    head = ["population", "budget", "n", "one record, best cut"]
    head += [f"over {ours.name}, m = {m}" for ours, m in product((USERS, PUBLIC), MANY)]
    said = f"Of {count} comparisons {count - len(lost)} are won. Not won: {'; '.join(lost) or 'none'}."
    return f"{table(head, rows)}\n\n{said}"


def coarse_table(items: Sequence[int] = (16, 64, 100, 256, 1_024, 4_096, 16_384)) -> str:
    """A row an m: what the coarse question needs, for the default spread."""
    rows = []
    for m in items:
        cells = [coarse_batch(budget, 1 / math.sqrt(m)) for budget in BUDGETS]
        shown = ["nowhere" if cell is None else f"{cell[0]:,} (C = {cell[1]:.2f} L)" for cell in cells]
        rows.append([f"{m:,}", *shown, f"{1 / math.sqrt(m):.3f} L"])
    return table(["m", *(f"{budget}: users in a batch" for budget in BUDGETS), "C of the default"], rows)


@cache
def main_runs(quick: bool) -> Runs:
    """What the first table, the slopes, the last table and the figure are of."""
    if quick:
        return measure(cells_of(POPULATIONS, BUDGETS, (200, 500), ITEMS), {200: 2, 500: 2})
    return measure(cells_of(POPULATIONS, BUDGETS, SIZES, ITEMS), REPETITIONS)


def against(quick: bool) -> str:
    """The comparison with the baselines, in words too."""
    runs = main_runs(quick)
    return f"{against_table(runs, POPULATIONS, BUDGETS)}\n\n{finding(runs, POPULATIONS, BUDGETS)}"


def all_slopes(quick: bool) -> str:
    """The slopes, and those of the worst of the family."""
    runs = main_runs(quick)
    ends = runs.sizes()[::2]
    family = measure(cells_of(FAMILY, BUDGETS[-1:], ends, ITEMS, [USERS, DEFAULT]), dict.fromkeys(ends, 10))
    extreme = {ours: worst(family, FAMILY, BUDGETS[-1], ours) for ours in (USERS, DEFAULT)}
    starts = ", ".join(f"{population.name} {population.start:.2f}" for population in POPULATIONS)
    return f"{slopes_table(runs, POPULATIONS, BUDGETS, extreme, BUDGETS[-1])}\n\nTheta_0's excess: {starts}."


def smaller(shown: Callable[[Sequence[int], int], str]) -> Callable[[bool], str]:
    """A smaller table, by sizes and repetitions."""
    return lambda quick: shown((500,), 2) if quick else shown((3_162, 31_623), FEW)


PARTS: dict[str, Callable[[bool], str]] = {
    "against": against,
    "control": smaller(control_table),
    "slopes": all_slopes,
    "coarse": lambda quick: coarse_table(),
    "different": smaller(lambda sizes, few: small_table(DIFFERENT, BUDGETS[1:], sizes, few)),
    "pure": smaller(lambda sizes, few: small_table(LOGISTIC, [PureDP(1.0)], sizes, few)),
    "excess": lambda quick: excess_table(main_runs(quick), POPULATIONS, BUDGETS),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
