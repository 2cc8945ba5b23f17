"""Smoothed AC-SA for new users, other d, strong convexity. Run with `python -m benchmarks.subquadratic_runs [--write]`.

`subquadratic` runs convex ERM at one d and plans the rest. Here the rest is run, on the same windows. `--write` writes
subquadratic_runs.md beside this file. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.pages import mean_and_error, pm, table
from benchmarks.subquadratic import COLUMNS, CONVEXITY, WIDE, D, Row, Window, measured, slope, task, theory
from streamdp.privacy.entropy import SeededEntropy
from streamdp.windows.regularisers import ElasticNet
from streamdp.windows.smoothed import ConvolutionSmoothing
from streamdp.windows.smoothed_plan import Plan

FILE = Path(__file__).with_suffix(".md")
REPETITIONS = 4
MIDDLE = 2_000
"""The number of users where both methods run against d."""
LASSO = ElasticNet(l1=0.1)
STRONG, NEW = (1_000, 2_000, 4_000, 8_000), (3_162, 10_000, 31_622)


@dataclass(frozen=True)
class Learned:
    """One plan and the excess of its runs."""

    n: int
    d: int
    plan: Plan
    excess: np.ndarray


def learned(objective: str, n: int, d: int = D, convexity: float = 0.0, net: ElasticNet | None = None) -> Learned:
    """Run it; the excess of the expected loss for "sco", of the window's objective for "erm".

    `convexity` is of a regulariser in each user's loss, `net` is one that the method adds. Below 0.8, the slope of the
    loss, neither moves the optimum, which is e_1.
    """
    public, method = task(n, d, convexity), ConvolutionSmoothing(objective, regulariser=net)
    longest = public.bound + convexity  # with the regulariser's gradient
    plan, found = method.plan(replace(public, bound=longest, spread=longest)), []
    for seed in range(REPETITIONS):
        window = Window(n, d, seed, convexity)
        theta = method.run(plan, window, np.zeros(d), SeededEntropy(seed, 1 << 16)).theta
        if objective == "sco":
            found.append(window.expected(theta))
        else:
            found.append(window.excess(theta) + (added(net, theta) - added(net, np.eye(d)[0]) if net else 0.0))
    return Learned(n, d, plan, np.array(found))


def added(net: ElasticNet, theta: np.ndarray) -> float:
    """What the regulariser adds to the loss."""
    return net.l1 * float(np.abs(theta).sum()) + net.l2 / 2 * float(theta @ theta)


def sparse_table(rows: Sequence[tuple[Learned, Learned]]) -> str:
    """A row a d: excess without and with the regulariser."""
    cells = []
    for plain, sparse in rows:
        pairs = [mean_and_error(row.excess) for row in (plain, sparse)]
        shown = ["{:.2e} ± {:.0e}".format(*pair) for pair in pairs]
        cells.append([f"{plain.d:,}", *shown, f"{sparse.plan.queries / plain.plan.queries:.2f}"])
    return table(["d", "excess without", "excess with it", "queries, with it over without"], cells)


def wide_table(rows: Sequence[tuple[int, Row]]) -> str:
    """A row a d, both run, and the slopes."""
    cells = []
    for d, row in rows:
        ours, theirs = row.smoothed.queries, row.sgd.run.queries
        excess = [pm(mean_and_error(found), 4) for found in (row.excess, row.sgd_excess)]
        cells.append([f"{d:,}", f"{ours:,}", excess[0], f"{theirs:,.0f}", excess[1], f"{theirs / ours:.2f}"])
    columns = [d for d, _ in rows]
    queries = zip(*((row.smoothed.queries, row.sgd.run.queries) for _, row in rows), strict=True)
    ours, theirs = (slope(columns, q) for q in queries)
    paper = slope(columns, [float(theory("erm", np.array([float(row.n)]), d)[0]) for d, row in rows])
    cells.append(["slope", f"{ours:.2f}", "", f"{theirs:.2f}", "", ""])
    cells.append(["slope of the paper's bound", f"{paper:.2f}", "", "", "", ""])
    return table(["columns", "queries", "excess", "SGD: queries", "SGD: excess", "SGD's queries over ours"], cells)


def learned_table(rows: Sequence[Learned], varied: str, queries: Sequence[float], excess: Sequence[float]) -> str:
    """A row an n or d, and the slopes; `queries` and `excess` are the paper's, up to constants."""
    sizes = [getattr(row, varied) for row in rows]
    cells = []
    for size, row in zip(sizes, rows, strict=True):
        shown = "{:.2e} ± {:.0e}".format(*mean_and_error(row.excess))
        cells.append([f"{size:,}", f"{row.plan.queries:,}", shown, f"{row.plan.excess:.3f}"])
    fitted = zip(*((row.plan.queries, row.excess.mean(), row.plan.excess) for row in rows), strict=True)
    cells.append(["slope", *(f"{slope(sizes, values):.2f}" for values in fitted)])
    cells.append(["slope of the paper's bound", f"{slope(sizes, queries):.2f}", f"{slope(sizes, excess):.2f}", ""])
    return table([varied, "queries", "excess", "bound"], cells)


TEXT = """# Gradient queries, run

Written by `python -m benchmarks.subquadratic_runs --write`; do not edit. Kulkarni, Lee and Liu 2021 on the windows of
[subquadratic.md](subquadratic.md): hinge loss, unit ball, eps = 1, delta = 1e-6, replace-one users, {repetitions}
repetitions; ± is one Monte Carlo standard error. d = {d} but where it is varied. The paper's bounds are up to constants
and logarithms.

## Against d

ERM, {middle:,} users. Noisy SGD is planned for the same excess, as far as one run tells.

{wide}

## Strongly convex ERM

Each user's loss has a regulariser of its own, {convexity:g} ||theta||^2 / 2, which leaves the optimum where it is. The
paper's excess is d / (n eps)^2.

{strong}

The same regulariser given to the method (`ElasticNet(l2={convexity:g})`), which adds it to noisy sums: gradients of
users are as long as without it.

{given}

## New users (SCO)

The excess is that of the expected loss; the paper's is n^-1/2 + d^1/2 / (n eps).

{new}

{users:,} users, against d:

{across}

The same with {lasso!r} given to the method. The best theta has one entry that is not 0. The excess is that of
the loss alone:

{sparse}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(description="Run smoothed AC-SA.")
    parser.add_argument("--write", action="store_true", help="write subquadratic_runs.md")
    write = parser.parse_args(arguments).write

    def expected(n: int, d: int) -> float:
        return 1 / math.sqrt(n) + math.sqrt(d) / n

    def queries(objective: str, n: int, d: int) -> float:
        return float(theory(objective, np.array([float(n)]), d)[0])

    wide = wide_table([(d, measured(MIDDLE, REPETITIONS, d)) for d in COLUMNS])
    print(wide, flush=True)
    runs = [learned("erm", n, convexity=CONVEXITY) for n in STRONG]
    strong = learned_table(runs, "n", [queries("erm", n, D) for n in STRONG], [D / n**2 for n in STRONG])
    print(strong, flush=True)
    runs = [learned("erm", n, net=ElasticNet(l2=CONVEXITY)) for n in STRONG]
    given = learned_table(runs, "n", [queries("erm", n, D) for n in STRONG], [D / n**2 for n in STRONG])
    print(given, flush=True)
    runs = [learned("sco", n) for n in NEW]
    new = learned_table(runs, "n", [queries("sco", n, D) for n in NEW], [expected(n, D) for n in NEW])
    print(new, flush=True)
    runs = [learned("sco", WIDE, d) for d in COLUMNS]
    sparse = sparse_table([(run, learned("sco", WIDE, run.d, net=LASSO)) for run in runs])
    across = learned_table(runs, "d", [queries("sco", WIDE, d) for d in COLUMNS], [expected(WIDE, d) for d in COLUMNS])
    page = TEXT.format(
        repetitions=REPETITIONS,
        d=D,
        middle=MIDDLE,
        wide=wide,
        convexity=CONVEXITY,
        strong=strong,
        given=given,
        new=new,
        users=WIDE,
        across=across,
        lasso=LASSO,
        sparse=sparse,
    )
    print(page)
    if write:
        FILE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
