"""Smoothed AC-SA for new users, other d, strong convexity. Run with `python -m studies.subquadratic_runs [--write]`.

`subquadratic` runs convex ERM at one d and plans the rest. Here the rest is run, on the same windows, and regularisers
on a real table. `--write` puts sections into subquadratic_runs.md beside this file. Noise comes from seeded generators,
which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.pages import mean_and_error, measure, pm, table
from benchmarks.shared.real_data import RealData
from streamdp.estimators.windowed.estimators import WindowedClassifier
from streamdp.optim.domains import L2Ball
from streamdp.privacy.entropy import SeededEntropy
from streamdp.windows.regularisers import ElasticNet
from streamdp.windows.smoothed import ConvolutionSmoothing
from streamdp.windows.smoothed_plan import Plan
from studies.subquadratic import BUDGET, COLUMNS, CONVEXITY, WIDE, D, Row, Window, measured, slope, task, theory

FILE = Path(__file__).with_suffix(".md")
REPETITIONS = 4
MIDDLE = 2_000
"""The number of users where both methods run against d."""
LASSO, RIDGE = ElasticNet(l1=0.1), ElasticNet(l2=CONVEXITY)
JOB, USELESS = "is a Vietnamese married?", 90
NETS = (*(ElasticNet(l1=size, free=1) for size in (0.0003, 0.001, 0.003)), ElasticNet(l2=0.003, free=1))
STRONG, NEW = (1_000, 2_000, 4_000, 8_000), (3_162, 10_000, 31_622)


@dataclass(frozen=True)
class Learned:
    """One plan, and the excess of its runs: of the loss alone, and with the regulariser that the method adds."""

    n: int
    d: int
    plan: Plan
    loss: np.ndarray
    excess: np.ndarray


def learned(objective: str, n: int, d: int = D, convexity: float = 0.0, net: ElasticNet | None = None) -> Learned:
    """Run it; the excess is that of the expected loss for "sco", of the window's for "erm".

    `convexity` is of a regulariser in each user's loss, `net` is one that the method adds. Below 0.8, the slope of the
    loss, neither moves the optimum, which is e_1.
    """
    public, method = task(n, d, convexity), ConvolutionSmoothing(objective, regulariser=net)
    longest = public.bound + convexity  # with the regulariser's gradient
    plan, found = method.plan(replace(public, bound=longest, spread=longest)), []
    for seed in range(REPETITIONS):
        window = Window(n, d, seed, convexity)
        theta = method.run(plan, window, np.zeros(d), SeededEntropy(seed, 1 << 16)).theta
        loss = window.expected(theta) if objective == "sco" else window.excess(theta)
        found.append((loss, loss + (added(net, theta) - added(net, np.eye(d)[0]) if net else 0.0)))
    return Learned(n, d, plan, *np.array(found).T)


def added(net: ElasticNet, theta: np.ndarray) -> float:
    """What the regulariser adds to the loss."""
    return net.l1 * float(np.abs(theta).sum()) + net.l2 / 2 * float(theta @ theta)


def sparse_table(rows: Sequence[tuple[Learned, Learned]]) -> str:
    """A row a d: excess without and with the regulariser."""
    cells = []
    for plain, sparse in rows:
        pairs = [mean_and_error(row.loss) for row in (plain, sparse)]
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


def study(
    objective: str, varied: str, cells: Sequence[tuple[int, int]], rate: Callable[[int, int], float], **options: Any
) -> tuple[str, list[Learned]]:
    """A row for each (n, d), and the slopes against what is varied; `rate` is the paper's excess up to a constant."""
    runs, rows = [learned(objective, n, d, **options) for n, d in cells], []
    for row in runs:
        shown = "{:.2e} ± {:.0e}".format(*mean_and_error(row.excess))
        rows.append([f"{getattr(row, varied):,}", f"{row.plan.queries:,}", shown, f"{row.plan.excess:.3f}"])
    sizes = [getattr(row, varied) for row in runs]
    fitted = zip(*((row.plan.queries, row.excess.mean(), row.plan.excess) for row in runs), strict=True)
    rows.append(["slope", *(f"{slope(sizes, values):.2f}" for values in fitted)])
    paper = zip(*((float(theory(objective, np.array([float(n)]), d)[0]), rate(n, d)) for n, d in cells), strict=True)
    rows.append(["slope of the paper's bound", *(f"{slope(sizes, values):.2f}" for values in paper), ""])
    found = table([varied, "queries", "excess", "bound"], rows)
    print(f"{objective}, {options}\n{found}", flush=True)
    return found, runs


@cache
def table_of(useless: int) -> tuple[np.ndarray, ...]:
    """A real table with so many useless columns, which are its own in another order: X, y, and those held out."""
    data = RealData(JOB)

    def widened(X: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return np.column_stack([X, *(rng.permutation(X[:, k % X.shape[1]]) for k in range(useless))])

    return widened(data.X, 1), data.y, widened(data.holdout, 2), data.truth


def real_rows() -> list[list[str]]:
    """A row for the table as it is, and one for each regulariser on the table with useless columns."""
    rows = []
    for useless, net in ((0, None), (USELESS, None), *((USELESS, net) for net in NETS)):
        X, y, holdout, truth = table_of(useless)
        right, weights = [], []
        for seed in range(REPETITIONS):
            model = WindowedClassifier(
                "hinge",
                str(BUDGET),
                ConvolutionSmoothing("erm", regulariser=net),
                window=len(X),
                domain=L2Ball(5.0),
                features=[f"x{k}" for k in range(X.shape[1])],
                seed=seed,
            )
            model.learn_arrays(X, y)
            right.append(100 * np.mean((model.predict_arrays(holdout) > 0) == (truth > 0)))
            weights.append(np.linalg.norm(model.theta[X.shape[1] - useless : X.shape[1]]))
        shown = [pm(mean_and_error(np.array(found))) for found in (right, weights)]
        rows.append([str(useless), "none" if net is None else repr(net), shown[0], shown[1] if useless else ""])
        print(" | ".join(rows[-1]), flush=True)
    return rows


HEAD = f"""# Gradient queries, run

Written by `python -m studies.subquadratic_runs --write`; do not edit. Kulkarni, Lee and Liu 2021 on the windows of
[subquadratic.md](subquadratic.md): hinge loss, unit ball, eps = 1, delta = 1e-6, replace-one users, {REPETITIONS}
repetitions; ± is one Monte Carlo standard error. d = {D} but where it is varied. The paper's bounds are up to constants
and logarithms.
"""


def convex() -> str:
    """Section 1."""
    return f"""## 1: against d

ERM, {MIDDLE:,} users. Noisy SGD is planned for the same excess, as far as one run tells.

{wide_table([(d, measured(MIDDLE, REPETITIONS, d)) for d in COLUMNS])}"""


def strongly_convex() -> str:
    """Section 2."""
    sizes = [(n, D) for n in STRONG]
    return f"""## 2: strongly convex ERM

Each user's loss has a regulariser of its own, {CONVEXITY:g} ||theta||^2 / 2, which leaves the optimum where it is. The
paper's excess is d / (n eps)^2.

{study("erm", "n", sizes, strong_rate, convexity=CONVEXITY)[0]}

The same regulariser given to the method (`{RIDGE!r}`), which adds it to noisy sums: gradients of users are as long as
without it.

{study("erm", "n", sizes, strong_rate, net=RIDGE)[0]}"""


def new_users() -> str:
    """Section 3."""
    across, runs = study("sco", "d", [(WIDE, d) for d in COLUMNS], new_rate)
    return f"""## 3: new users (SCO)

The excess is that of the expected loss; the paper's is n^-1/2 + d^1/2 / (n eps).

{study("sco", "n", [(n, D) for n in NEW], new_rate)[0]}

{WIDE:,} users, against d:

{across}

The same with `{LASSO!r}` given to the method. The best theta has one entry that is not 0. The excess is that of the
loss alone:

{sparse_table([(run, learned("sco", WIDE, run.d, net=LASSO)) for run in runs])}"""


def regularised() -> str:
    """Section 4."""
    sizes = [(n, D) for n in NEW]
    return f"""## 4: more with regularisers

The excess is that of loss and regulariser, which is given to the method. ERM with `{RIDGE!r}`, {MIDDLE:,} users:

{study("erm", "d", [(MIDDLE, d) for d in COLUMNS], strong_rate, net=RIDGE)[0]}

New users (SCO) with `{LASSO!r}`:

{study("sco", "n", sizes, new_rate, net=LASSO)[0]}

New users with `{RIDGE!r}`, which makes the objective strongly convex (Table 4); the paper's excess is 1 / n + d / (n
eps)^2:

{study("sco", "n", sizes, lambda n, d: 1 / n + d / n**2, net=RIDGE)[0]}"""


def real() -> str:
    """Section 5."""
    data = RealData(JOB)
    return f"""## 5: a real table

"{JOB}" ({len(data.y):,} records learned, one a user), ball of radius 5. Useless columns are the table's own in another
order. The share of held-out records that are right, in percent (the most frequent class: {data.constant():.1f}), and
the norm of the weights of useless columns.

{table(["useless columns", "regulariser", "right, %", "norm of useless weights"], real_rows())}"""


def strong_rate(n: int, d: int) -> float:
    """The paper's excess of strongly convex ERM, up to a constant."""
    return d / n**2


def new_rate(n: int, d: int) -> float:
    """The paper's excess of SCO, up to a constant."""
    return 1 / math.sqrt(n) + math.sqrt(d) / n


SECTIONS: dict[str, Callable[[], str]] = {
    "convex": convex,
    "strong": strongly_convex,
    "new": new_users,
    "regularised": regularised,
    "real": real,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    measure("Run smoothed AC-SA.", SECTIONS, HEAD, FILE, arguments)


if __name__ == "__main__":
    main()
