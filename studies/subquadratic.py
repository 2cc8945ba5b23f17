"""Gradient queries of smoothed AC-SA against noisy SGD, planned and run. `python -m studies.subquadratic [--write]`.

Convex ERM at one d beside noisy SGD at equal excess, plans of the rest, and runs for new users, other d, strong
convexity and regularisers. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.stats import beta

from benchmarks.shared.pages import command, mean_and_error, pm, table
from streamdp.errors import TooFewUsersError
from streamdp.optim.ac_sa import Averaged
from streamdp.optim.losses import Hinge
from streamdp.optim.smoothing import smoothed_gradients
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.privacy.subsampling import nearly_normal, noise_multiplier
from streamdp.windows.regularisers import ElasticNet
from streamdp.windows.smoothed import ConvolutionSmoothing, noisy_gradient
from streamdp.windows.smoothed_plan import Run, SmoothedPlan
from streamdp.windows.task import Task

HINGE = Hinge()
BUDGET = ApproxDP(1.0, 1e-6)
D = 100
SIZES = (1_000, 2_000, 4_000, 8_000, 16_000)
REPETITIONS = (10, 10, 10, 10, 10)
COLUMNS = (10, 100, 1_000)
WIDE = 10_000
"""The number of users where queries are counted against d."""
CONVEXITY = 0.1
GROWTH = tuple(round(10 ** (k / 2)) for k in range(6, 11))  # 10^3, 10^3.5, ..., 10^5
WRONG = 0.1


def task(n: int, d: int = D, convexity: float = 0.0) -> Task:
    """The unit ball; the hinge loss, with a regulariser of this strong convexity."""
    return Task(n, 1, d, BUDGET, HINGE.bound, HINGE.sensitivity, math.inf, convexity, 1.0, HINGE.bound)


class Window:
    """n users of one record each, whose least average hinge loss in the unit ball is known.

    x = (s, z) with s = +-1, z uniform on the unit sphere, so ||x||^2 = 2 and no record is weighted down; y is the sign
    s but for a tenth. Records come in pairs (s, z), (s, -z), so the average loss is even in the coordinates of z, and
    its optimum has zeros there; along s it falls up to theta = (1, 0, ..., 0), where it is 2 times the share of wrong
    ones. All right ones have their kink there. It stays the optimum with a regulariser in each user's loss, convexity
    ||theta||^2 / 2 below 0.8, the slope below the kink. For new users it is the optimum, too: `expected`.
    """

    def __init__(self, n: int, d: int, seed: int, convexity: float = 0.0) -> None:
        self._convexity = convexity
        rng = np.random.default_rng(seed)
        z = rng.standard_normal((n // 2, d - 1))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        s = rng.choice([-1.0, 1.0], (n // 2, 1))
        right = np.where(rng.random((n // 2, 1)) < WRONG, -1.0, 1.0)
        order = rng.permutation(n // 2 * 2)
        self.X = np.concatenate([np.hstack([s, z]), np.hstack([s, -z])])[order]
        self.y = (np.concatenate([s * right, s * right])[order, 0] > 0).astype(float)
        self.least = 2 * float(np.mean(right < 0))

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """As `windows.task.Users` asks."""
        X, y = (self.X, self.y) if users is None else (self.X[users], self.y[users])
        if radius > 0:
            return smoothed_gradients(HINGE, False, theta, X, y, radius) + self._convexity * theta
        sign = 2 * y - 1
        return X * np.where(sign * (X @ theta) < 1, -sign, 0.0)[:, None] + self._convexity * theta

    def project(self, theta: np.ndarray) -> np.ndarray:
        """In the unit ball."""
        return theta / max(1.0, float(np.linalg.norm(theta)))

    def excess(self, theta: np.ndarray) -> float:
        """The average loss over the least one."""
        hinge = float(np.mean(np.maximum(0, 1 - (2 * self.y - 1) * (self.X @ theta)))) - self.least
        return hinge + self._convexity / 2 * (float(theta @ theta) - 1)

    @staticmethod
    def expected(theta: np.ndarray) -> float:
        """The expected hinge loss over the least one. The score of z is ||theta[1:]|| times a coordinate of the sphere,
        of which this takes 20,000 quantiles."""
        share = (np.arange(20_000) + 0.5) / 20_000
        half = (len(theta) - 2) / 2
        across = np.linalg.norm(theta[1:]) * (2 * beta.ppf(share, half, half) - 1)
        right, wrong = (float(np.mean(np.maximum(0, 1 - sign * (theta[0] + across)))) for sign in (1, -1))
        return (1 - WRONG) * right + WRONG * wrong - 2 * WRONG


@dataclass(frozen=True)
class NoisySGD:
    """Averaged noisy SGD (Bassily, Smith, Thakurta 2014), not with one user in each of n^2 steps but with the best rate
    and number of steps, and the same accounting. Its bound is D sqrt(Q / T), Q = L^2 + a noisy gradient's variance."""

    run: Run
    step: float

    @classmethod
    def planned(cls, task: Task, target: float) -> NoisySGD:
        """With the fewest queries for a bound of `target`."""
        rate, steps = cls.cheapest(task, target)
        noise = noise_multiplier(task.budget, rate, steps)
        square = cls.square(task, rate, noise)
        bound = task.distance * math.sqrt(square / steps)
        run = Run(0, task.users, rate, steps, steps, noise, 0.0, 0.0, 0.0, 0.0, bound)
        return cls(run, task.distance / math.sqrt(square * steps))

    @classmethod
    def cheapest(cls, task: Task, target: float) -> tuple[float, int]:
        """Rate and steps; noise as `nearly_normal` has it."""
        mu = GaussianDP.from_approx(task.budget).mu
        steps, rate = np.meshgrid(np.geomspace(1, 1e10, 1000), np.geomspace(1 / task.users, 1, 100), indexing="ij")
        square = cls.square(task, rate, nearly_normal(mu, rate, steps))
        queries = np.where(task.distance * np.sqrt(square / steps) <= target, steps * rate, math.inf)
        at = np.unravel_index(np.argmin(queries), queries.shape)
        return float(rate[at]), math.ceil(steps[at])

    @staticmethod
    def square(task: Task, rate: Any, noise: Any) -> Any:
        """Q."""
        drawn = rate * task.users
        return task.bound**2 * (1 + (1 - rate) / drawn + task.d * (noise / drawn) ** 2)

    def learn(self, window: Window, d: int, rng: SeededEntropy) -> np.ndarray:
        """theta."""
        walk = Averaged(np.zeros(d), window.project)
        gradient = partial(noisy_gradient, self.run, HINGE.bound, window, rng)
        for _ in range(self.run.steps):
            walk.move(gradient(walk.middle), 1 / self.step)
        return walk.points[1]


@dataclass(frozen=True)
class Row:
    """Both at one n: plans and measured excess."""

    n: int
    smoothed: SmoothedPlan
    sgd: NoisySGD
    excess: np.ndarray
    sgd_excess: np.ndarray


def measured(n: int, repetitions: int, d: int = D, seed: int = 0) -> Row:
    """Run both. SGD is planned for the bound of the other, times how much nearer to its bound it came in one run."""
    method = ConvolutionSmoothing("erm")
    plan = method.plan(task(n, d))
    excess, rival = np.empty(repetitions), np.empty(repetitions)
    for i in range(repetitions):
        window = Window(n, d, seed + i)
        excess[i] = window.excess(method.run(plan, window, np.zeros(d), SeededEntropy(seed + i, 1 << 16)).theta)
    sgd, window = NoisySGD.planned(task(n, d), plan.excess), Window(n, d, seed + repetitions)
    pilot = window.excess(sgd.learn(window, d, SeededEntropy(999 + seed, 1 << 16)))
    sgd = NoisySGD.planned(task(n, d), plan.excess * float(np.mean(excess)) / pilot)
    for i in range(repetitions):
        window = Window(n, d, seed + i)
        rival[i] = window.excess(sgd.learn(window, d, SeededEntropy(1000 + seed + i, 1 << 16)))
    return Row(n, plan, sgd, excess, rival)


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of log values on log sizes, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


@dataclass(frozen=True)
class Growth:
    """Queries for the bound of the ERM plan, and those of the SCO plan (None: too few users)."""

    n: int
    d: int
    erm: float
    sgd: float
    sco: float | None


def growth(n: int, d: int, convexity: float = 0.0) -> Growth:
    """By plans alone."""
    erm = ConvolutionSmoothing("erm").plan(task(n, d, convexity))
    rate, steps = NoisySGD.cheapest(task(n, d), erm.excess)
    try:
        sco = float(ConvolutionSmoothing("sco").plan(task(n, d, convexity)).queries)
    except TooFewUsersError:
        sco = None
    return Growth(n, d, erm.queries, rate * n * steps, sco)


def theory(objective: str, n: np.ndarray, d: int) -> np.ndarray:
    """The paper's growth, up to a constant."""
    if objective == "sco":
        return np.minimum(n**1.25 * d**0.125, n**1.5 / d**0.125)
    return n**1.5 / d**0.125 + n**2 / d


def growth_table(rows: Sequence[Growth]) -> str:
    """A row an n, and the slopes."""
    sizes = [row.n for row in rows]
    served = [row for row in rows if row.sco is not None]
    n, m, d = np.array(sizes, dtype=float), np.array([row.n for row in served], dtype=float), rows[0].d
    cells = [
        [
            f"{row.n:,}",
            f"{row.erm:.2e}",
            f"{row.sgd:.2e}",
            f"{row.sgd / row.erm:.2f}",
            f"{row.n**2:.0e}",
            "too few users" if row.sco is None else f"{row.sco:.2e}",
        ]
        for row in rows
    ]
    slopes = [slope(sizes, [row.erm for row in rows]), slope(sizes, [row.sgd for row in rows])]
    sco = slope(m.tolist(), [row.sco or 0.0 for row in served])
    cells.append(["slope", f"{slopes[0]:.2f}", f"{slopes[1]:.2f}", f"{slopes[1] - slopes[0]:.2f}", "2", f"{sco:.2f}"])
    erm, expected = slope(sizes, theory("erm", n, d).tolist()), slope(m.tolist(), theory("sco", m, d).tolist())
    cells.append(["slope of the paper's bound", f"{erm:.2f}", "", "", "2", f"{expected:.2f}"])
    head = ["users", "ERM", "noisy SGD, same bound", "SGD over ERM", "n^2 (one user a step)", "SCO"]
    return table(head, cells)


def columns_table(rows: Sequence[Growth]) -> str:
    """A row a d, and the slopes."""
    d = np.array([row.d for row in rows], dtype=float)
    cells = [
        [f"{row.d:,}", f"{row.erm:.2e}", f"{row.sgd:.2e}", "too few users" if row.sco is None else f"{row.sco:.2e}"]
        for row in rows
    ]
    erm, sgd = ([getattr(row, name) for row in rows] for name in ("erm", "sgd"))
    cells.append(["slope", f"{slope(d.tolist(), erm):.2f}", f"{slope(d.tolist(), sgd):.2f}", ""])
    paper = [float(theory("erm", np.array([float(WIDE)]), row.d)[0]) for row in rows]
    cells.append(["slope of the paper's bound", f"{slope(d.tolist(), paper):.2f}", "", ""])
    return table(["columns", "ERM", "noisy SGD, same bound", "SCO"], cells)


def convex_table(rows: Sequence[Growth]) -> str:
    """A row an n, and the slopes."""
    cells = [[f"{row.n:,}", f"{row.erm:.2e}", "too few" if row.sco is None else f"{row.sco:.2e}"] for row in rows]
    served = [row for row in rows if row.sco is not None]
    erm = slope([row.n for row in rows], [row.erm for row in rows])
    sco = slope([row.n for row in served], [row.sco or 0.0 for row in served])
    cells.append(["slope", f"{erm:.2f}", f"{sco:.2f}"])
    return table(["users", "ERM", "SCO"], cells)


def measured_table(rows: Sequence[Row]) -> str:
    """A row an n."""
    cells = []
    for row in rows:
        [run] = row.smoothed.runs
        cells.append(
            [
                f"{row.n:,}",
                str(len(row.excess)),
                f"{row.smoothed.queries:,}",
                f"{run.steps:,}",
                pm(mean_and_error(row.excess), 4),
                f"{row.sgd.run.queries:,.0f}",
                f"{row.sgd.run.steps:,}",
                pm(mean_and_error(row.sgd_excess), 4),
                f"{row.smoothed.excess:.4f}, {row.sgd.run.excess:.4f}",
                f"{row.sgd.run.queries / row.smoothed.queries:.2f}",
            ]
        )
    sizes = [row.n for row in rows]
    ours, theirs = (slope(sizes, q) for q in zip(*((r.smoothed.queries, r.sgd.run.queries) for r in rows), strict=True))
    cells.append(["slope", "", f"{ours:.2f}", "", "", f"{theirs:.2f}", "", "", "", ""])
    head = ["users", "runs", "queries", "steps", "excess", "SGD: queries", "SGD: steps", "SGD: excess", "bounds"]
    return table([*head, "SGD's queries over ours"], cells)


def finding(rows: Sequence[Row]) -> str:
    """What holds, in words."""
    fewer = [row for row in rows if row.smoothed.queries < row.sgd.run.queries]
    ratios = [f"{np.mean(row.excess) / np.mean(row.sgd_excess):.3f}" for row in fewer]
    return (
        f"Fewer queries than noisy SGD at n = {'; '.join(f'{row.n:,}' for row in fewer) or 'none'}, with an excess of "
        f"{', '.join(ratios)}\ntimes that of SGD."
    )


# --- runs of what is only planned above ---------------------------------------------------------------------


EACH = 10
MIDDLE = 2_000
"""The number of users where both methods run against d."""
LASSO, RIDGE = ElasticNet(l1=0.1), ElasticNet(l2=CONVEXITY)
STRONG, NEW = (1_000, 2_000, 4_000, 8_000, 16_000), (3_162, 10_000, 31_622)


@dataclass(frozen=True)
class Learned:
    """One plan, and the excess of its runs: of the loss alone, and with the regulariser that the method adds."""

    n: int
    d: int
    plan: SmoothedPlan
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
    for seed in range(EACH):
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
    fitted = [*zip(*((row.plan.queries, row.excess.mean(), row.plan.excess) for row in runs), strict=True)]
    rows.append(["slope", *(f"{slope(sizes, values):.2f}" for values in fitted)])
    if len(sizes) > 3:
        rows.append(["slope of the last three", *(f"{slope(sizes[-3:], values[-3:]):.2f}" for values in fitted)])
    paper = zip(*((float(theory(objective, np.array([float(n)]), d)[0]), rate(n, d)) for n, d in cells), strict=True)
    rows.append(["slope of the paper's bound", *(f"{slope(sizes, values):.2f}" for values in paper), ""])
    found = table([varied, "queries", "excess", "bound"], rows)
    print(f"{objective}, {options}\n{found}", flush=True)
    return found, runs


def strong_rate(n: int, d: int) -> float:
    """The paper's excess of strongly convex ERM, up to a constant."""
    return d / n**2


def new_rate(n: int, d: int) -> float:
    """The paper's excess of SCO, up to a constant."""
    return 1 / math.sqrt(n) + math.sqrt(d) / n


def equal() -> str:
    """Both run at equal excess."""
    rows = [measured(n, repetitions) for n, repetitions in zip(SIZES, REPETITIONS, strict=True)]
    return f"{measured_table(rows)}\n\n{finding(rows)}"


@cache
def across() -> tuple[str, list[Learned]]:
    """New users against d."""
    return study("sco", "d", [(WIDE, d) for d in COLUMNS], new_rate)


def sparse() -> str:
    """The same with a regulariser, beside it."""
    return sparse_table([(run, learned("sco", WIDE, run.d, net=LASSO)) for run in across()[1]])


STRONG_SIZES, NEW_SIZES = [(n, D) for n in STRONG], [(n, D) for n in NEW]
PARTS: dict[str, Callable[[], str]] = {
    "equal": equal,
    "growth": lambda: growth_table([growth(n, D) for n in GROWTH]),
    "columns": lambda: columns_table([growth(WIDE, d) for d in COLUMNS]),
    "convex": lambda: convex_table([growth(n, D, CONVEXITY) for n in GROWTH]),
    "wide": lambda: wide_table([(d, measured(MIDDLE, EACH, d)) for d in COLUMNS]),
    "strong": lambda: study("erm", "n", STRONG_SIZES, strong_rate, convexity=CONVEXITY)[0],
    "strong_net": lambda: study("erm", "n", STRONG_SIZES, strong_rate, net=RIDGE)[0],
    "new": lambda: study("sco", "n", NEW_SIZES, new_rate)[0],
    "across": lambda: across()[0],
    "sparse": sparse,
    "ridge_columns": lambda: study("erm", "d", [(MIDDLE, d) for d in COLUMNS], strong_rate, net=RIDGE)[0],
    "lasso_new": lambda: study("sco", "n", NEW_SIZES, new_rate, net=LASSO)[0],
    "ridge_new": lambda: study("sco", "n", NEW_SIZES, lambda n, d: 1 / n + d / n**2, net=RIDGE)[0],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
