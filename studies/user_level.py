"""What user-level learning gains from many records a user. Run with `python -m studies.user_level [--write]`.

`--quick` takes seconds and is for trying. Populations, contenders and baselines are in `user_baselines`. `--write` puts
tables and figure into user_level.md and user_level.png beside this file. Noise comes from seeded generators, which are
for measuring only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.shared.pages import fast_enough, mean_and_error, pm, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from studies.user_baselines import (
    DIFFERENT,
    FAMILY,
    LINEAR,
    LOGISTIC,
    MOST_STEPS,
    Contender,
    CutRecord,
    OneRecord,
    Population,
    central_descent,
    coarse_batch,
)
from studies.user_runs import (
    CONTENDERS,
    FEWEST,
    LARGE,
    PUBLIC,
    RIVALS,
    USERS,
    Runs,
    beats,
    cells_of,
    fits,
    gain,
    learned,
    measure,
    share,
    worst,
)

FOLDER = Path(__file__).parent
SIZES = (1_000, 3_162, 10_000, 31_623, 100_000)
ITEMS = (1, 4, 16, 64)
MANY = (16, 64)
BUDGETS: tuple[ApproxDP, ...] = (ApproxDP(1.0, 1e-6), ApproxDP(4.0, 1e-6))
POPULATIONS = (LOGISTIC, LINEAR)
REPETITIONS = {1_000: 16, 3_162: 12, 10_000: 10, 31_623: 8, 100_000: 6}
FEW = 6
"""Repetitions of the smaller tables."""
CUTS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Of the bound: what one record is cut to, the best in hindsight."""


def slopes_row(runs: Runs, name: str, population: Population, budget: Budget, contender: Contender) -> list[str]:
    """A row of the table of slopes."""
    where, fitted = learned(runs, population, budget, contender), fits(runs, population, budget, contender)
    verdicts = ["too few sizes"] * 3 if fitted is None else [_verdict(pair) for pair in fitted]
    sizes = f"{len(where)} of {len(runs.sizes()) * len(runs.items())}"
    return [name, str(budget), contender.name, sizes, *verdicts, f"{share(runs, population, budget, contender):.2f}"]


def slopes_table(
    runs: Runs, populations: Sequence[Population], budgets: Sequence[Budget], extreme: Runs, extreme_budget: Budget
) -> str:
    """A row a population, budget and knowledge, and the worst of the family."""
    rows = []
    for population, budget, ours in product(populations, budgets, RIVALS):
        rows.append(slopes_row(runs, population.name, population, budget, ours))
    rows.append(slopes_row(extreme, f"logistic, worst of {len(FAMILY)}", FAMILY[0], extreme_budget, USERS))
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
            means = [_scientific(runs.of(population, budget, contender, n, m)) for n in runs.sizes()]
            shown = "any" if isinstance(contender, OneRecord) else str(m)
            rows.append([population.name, str(budget), contender.name, shown, *means])
    return table(["population", "budget", "method", "m", *(f"n = {n:,}" for n in runs.sizes())], rows)


def _scientific(run: np.ndarray) -> str:
    mean, error = mean_and_error(run)
    return f"{mean:.1e} ± {error:.0e}"


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
        means = [_scientific(runs.of(population, budget, contender, n, m)) for n in sizes]
        rows.append([str(budget), contender.name, shown, *means])
    return table([f"excess, {population.name}", "method", "m", *(f"n = {n:,}" for n in sizes)], rows)


def control_table(sizes: Sequence[int], repetitions: int) -> tuple[str, str]:
    """One record with the best of all cuts in hindsight, and where ours does not beat it."""
    rivals = [CutRecord("one record", cut=cut) for cut in CUTS]
    rows, lost, count = [], [], 0
    for population, budget, n in product(POPULATIONS, BUDGETS, sizes):
        cells = cells_of([population], [budget], [n], MANY, [USERS, PUBLIC, *rivals])
        runs = measure(cells, {n: repetitions})
        best = min(rivals, key=lambda rival: runs.of(population, budget, rival, n, 1).mean())
        shown = [f"{_scientific(runs.of(population, budget, best, n, 1))} ({best.cut:g} L)"]
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
    return table(head, rows), said


def central_table(sizes: Sequence[int], repetitions: int) -> str:
    """Group privacy with a trusted curator."""
    rows = []
    for population, budget, m in product(POPULATIONS, BUDGETS, MANY):
        runs = [
            np.array([central_descent(population, budget, n, m, seed) for seed in range(repetitions)]) for n in sizes
        ]
        rows.append([population.name, str(budget), str(m), *map(_scientific, runs)])
    return table(["population", "budget", "m", *(f"n = {n:,}" for n in sizes)], rows)


def coarse_table(items: Sequence[int] = (16, 64, 100, 256, 1_024, 4_096, 16_384)) -> str:
    """A row an m: what the coarse question needs, for the default spread."""
    rows = []
    for m in items:
        cells = [coarse_batch(budget, 1 / math.sqrt(m)) for budget in BUDGETS]
        shown = ["nowhere" if cell is None else f"{cell[0]:,} (C = {cell[1]:.2f} L)" for cell in cells]
        rows.append([f"{m:,}", *shown, f"{1 / math.sqrt(m):.3f} L"])
    return table(["m", *(f"{budget}: users in a batch" for budget in BUDGETS), "C of the default"], rows)


def draw(path: Path, runs: Runs) -> None:
    """The figure: a panel a population and budget."""
    figure, axes = sheet(2, 2, share=False, width=4.8, height=3.5)
    for axis, (population, budget) in zip(axes.flat, product(POPULATIONS, BUDGETS), strict=True):
        curves: list[tuple[Contender, int, str, str]] = [(USERS, m, f"user level, m = {m}", "-") for m in runs.items()]
        for rival in RIVALS[USERS]:
            shown = rival.name if isinstance(rival, OneRecord) else f"{rival.name}, m = {MANY[0]}"
            curves.append((rival, MANY[0], shown, "--"))
        for colour, marker, (contender, m, label, style) in zip(COLOURS, MARKERS, curves, strict=False):
            pairs = np.array([mean_and_error(runs.of(population, budget, contender, n, m)) for n in runs.sizes()])
            axis.errorbar(
                runs.sizes(), pairs[:, 0], 2 * pairs[:, 1], fmt=marker + style, ms=5, lw=1, color=colour, label=label
            )
        n = np.array(runs.sizes(), dtype=float)
        top = runs.of(population, budget, USERS, runs.sizes()[-1], MANY[-1]).mean()
        axis.plot(n, top * (n[-1] / n) ** 0.5, ":", color="0.3", lw=1, label="slope -1/2")
        axis.axhline(population.start, color="0.5", lw=0.8, label="nothing learned")
        axis.set(xscale="log", yscale="log", xlabel="users n", ylabel="excess loss")
        axis.set_title(f"{population.name}, {budget}", fontsize=10)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("m records of each user; two standard errors", fontsize=10)
    figure.savefig(path, dpi=90)


TEXT = """# User-level learning, measured

Written by `python -m studies.user_level --write`; do not edit. n users with m records each; one local budget for all
records of a user, delta = 1e-6 where there is one. Logistic: the convex smooth setting of `rates.md` (curvatures a
factor of 1024 apart). Linear: its squared loss in the unit ball, with no strong convexity declared. Six features, exact
excess, horizon declared, at most {steps:,} steps. ± is one Monte Carlo standard error; {repetitions}, and {few} of
whatever has more than {large:,} reports.

* "User level" is `UserLevelLDPClassifier` or `UserLevelLDPRegressor`: one report on the average gradient of all m.
* "One record" reports on one of the user's records, "group privacy" on each with a budget that keeps the user's for all
  of them: mu / sqrt(m) by GDP composition, which is exact; eps / m for pure epsilon. Same learner, steps, mechanisms.
* "Spread known": what reports are on is cut to its true spread, known from public data, for baselines too. Otherwise
  the spread is taken to be the loss's bound over sqrt(m), so that nothing is cut at m = 1.

![Excess loss](user_level.png)

## Against the baselines

How many times larger their excess is. Bold where it is not larger by more than two standard errors.

{against}

{finding}

Two standard errors are passed by chance in one of 44 comparisons of equals, and errors from few repetitions are rough.
The cut of one spread was chosen out of 0.5, 1, 1.5, 2 and 3 on these two populations with other seeds; users that
differ and pure epsilon, below, had no part in that.

Group privacy has the noise of one record a user: sqrt(m) times more a record, and m records. The average of m has the
same noise too where it is cut to the bound L: what many records allow is a smaller cut at little bias.

## Is it the records, or the cut?

One record is cut to L above and the average of m to L / sqrt(m), so some of the gain may be the smaller cut's, which
anybody can have. Here one record is cut to the best of {cuts} L in hindsight: the least mean excess of {count}, a
little better than can be had. Ours is not chosen so. How many times larger its excess is:

{control}

{controlled}

Where the default is not better here, its gain over a cut to L is that of a bound that is far above all gradients, and
not of many records. The comparisons with a known spread in the first table cut both sides by the same rule and are the
ones that show what records are worth. One record and user level at m = 1 are one method with other seeds, so how far
their rows in the last table are apart shows what the errors are worth.

## Slopes

Bassily, Sun 2023, Theorem 3.2 bounds the excess by (d / (n m eps^2))^1/2 up to logarithms, so it may fall faster. Least
squares of log mean excess on log n and log m together, and on log n m; over sizes where the mean excess is less than
half of theta_0's ({starts}). "Yes": at most -1/2, two standard errors allowed. A fixed distribution is easy at small
n and m: what is steep is settled, what is flat is worth little yet, and the excess starts far below the bound and falls
slower until the flattest direction is settled. So there is also the worst of a family of {family} with equal curvatures
from 1 to 2^-12, at each n and m ({few} repetitions), which is what a theorem about all distributions is about.

{slopes}

## How many users the paper's mean needs

The paper asks some users where the averages lie, and cuts the others' around that. For all its users to be within the
cut takes C of some eight spreads. With the default spread and six parameters, `centre="asked"` has less noise than a
cut to L only from so many users in a single batch, of which a run has many:

{coarse}

Up to m = 100 it never has. The default cuts to one spread, around zero: near the optimum mean gradients are near zero,
and far from it a step keeps its direction. In the worst case over distributions that leaves a bias of a quarter of the
spread, which does not fall with n; see `streamdp.estimators.user.estimators`.

## Users that differ

A quarter of the users have another theta*: their averages do not come closer than some distance, however large m is.

{different}

## Pure epsilon

PrivUnit.

{pure}

## For scale: a trusted curator

Gradient descent on all records in memory with group privacy (S / n a user, the best of three numbers of steps in
hindsight): another promise, against everyone but the curator.

{central}

## Excess

{excess}
"""


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(prog="python -m studies.user_level", description="Measure user-level learning.")
    parser.add_argument("--write", action="store_true", help="write user_level.md and user_level.png")
    parser.add_argument("--quick", action="store_true", help="few users and repetitions; cannot be written")
    arguments = parser.parse_args()
    if arguments.write and arguments.quick:
        parser.error("--quick is for trying only")
    sizes, many = ((200, 500), (500,)) if arguments.quick else (SIZES, (3_162, 31_623))
    repetitions, few = (dict.fromkeys(sizes, 2), 2) if arguments.quick else (REPETITIONS, FEW)
    runs, ends = measure(cells_of(POPULATIONS, BUDGETS, sizes, ITEMS), repetitions), sizes[::2]
    family = measure(cells_of(FAMILY, BUDGETS[-1:], ends, ITEMS, [USERS]), dict.fromkeys(ends, FEWEST))
    extreme = worst(family, FAMILY, BUDGETS[-1], USERS)
    control, controlled = control_table(many, few)
    text = TEXT.format(
        steps=MOST_STEPS,
        repetitions=", ".join(f"{count} repetitions at n = {n:,}" for n, count in repetitions.items()),
        against=against_table(runs, POPULATIONS, BUDGETS),
        finding=finding(runs, POPULATIONS, BUDGETS),
        starts=", ".join(f"{population.name} {population.start:.2f}" for population in POPULATIONS),
        slopes=slopes_table(runs, POPULATIONS, BUDGETS, extreme, BUDGETS[-1]),
        family=len(FAMILY),
        few=FEWEST,
        large=LARGE,
        cuts=", ".join(f"{cut:g}" for cut in CUTS),
        count=len(CUTS),
        control=control,
        controlled=controlled,
        coarse=coarse_table(),
        different=small_table(DIFFERENT, BUDGETS[1:], many, few),
        pure=small_table(LOGISTIC, [PureDP(1.0)], many, few),
        central=central_table(many, few),
        excess=excess_table(runs, POPULATIONS, BUDGETS),
    )
    print(text)
    if arguments.write:
        (FOLDER / "user_level.md").write_text(text, encoding="utf-8")
        draw(FOLDER / "user_level.png", runs)


if __name__ == "__main__":
    main()
