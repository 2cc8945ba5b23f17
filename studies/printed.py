"""The papers' plans as they print them, beside ours. Run with `python -m studies.printed [--write]`.

A plan is how many steps, on how many people, how long. Cheu et al. 2022, Theorems 4.1 and 4.3 (by Algorithm 6,
pan-private): logistic regression of Shi et al. 2025 with Mallows' weight, in the ball of radius 5, so D = 10. Bassily
and Sun 2023, Algorithm 4, and Asi and Liu 2024, Algorithm 3: linear losses of `user_rates`; constants that the papers
hide in O and Theta are 1. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.shared.pages import command, mean_and_error, scientific, table
from benchmarks.shared.pictures import COLOURS, MARKERS, sheet
from streamdp import datasets
from streamdp.aggregation.concentrated_mean import ConcentratedMean
from streamdp.aggregation.range_mean import RangeMean
from streamdp.estimators.ldp.estimators import LDPASGDClassifier
from streamdp.estimators.pan import PanPrivateClassifier
from streamdp.optim.ac_sa import Accelerated, Averaged
from streamdp.optim.domains import L2Ball
from streamdp.optim.losses import Logistic
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.privacy.mechanisms import Gaussian
from streamdp.privacy.subsampling import nearly_normal
from studies.figures_ldp import Study, excess
from studies.user_rates import DELTA, LINEAR, WAYS, draw, measured
from studies.user_rates import Size as Users

BALL, LOSS = L2Ball(5.0), Logistic(weighting="mallows")
SIZES = (3_000, 10_000, 100_000, 1_000_000)


def repetitions(n: int) -> int:
    """How often a size is repeated."""
    return 24 if n < 100_000 else 12 if n < 1_000_000 else 6


@dataclass(frozen=True)
class Size:
    """n records, d features and an intercept, and epsilon."""

    n: int
    d: int = 5
    epsilon: float = 1.0

    @cache  # noqa: B019 - a few sizes at a time
    def stream(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The records of a repetition."""
        return datasets.logistic(self.n, self.d, seed=seed)


@dataclass(frozen=True)
class Plan:
    """b, T, and 1 / eta or M; `zeta` is the deviation of either noise of a sum, by coordinate."""

    batch: int
    steps: int
    modulus: float
    zeta: float
    accelerated: bool = True

    def learn(self, size: Size, seed: int) -> np.ndarray:
        """theta (d + 1,). AC-SA counts t from 1."""
        X, y = size.stream(seed)
        rng, d = np.random.default_rng(1000 + seed), size.d + 1
        walk = (Accelerated if self.accelerated else Averaged)(np.zeros(d), BALL.project)
        walk.step = int(self.accelerated)
        for k in range(self.steps):
            rows = slice(k * self.batch, (k + 1) * self.batch)
            Z = np.hstack([X[rows], np.ones((self.batch, 1))])
            off = (expit(Z @ walk.middle) - y[rows]) * np.minimum(1, 2 / np.sum(Z**2, axis=1))
            noise = math.sqrt(2) * self.zeta * rng.standard_normal(d)
            walk.move((off @ Z + noise) / self.batch, self.modulus)
        return np.asarray(walk.points[1])


def printed(size: Size, theorem: str = "4.3", analytic: bool = False) -> Plan:
    """The plan of a theorem, with the noise of Algorithm 6, or with analytic noise."""
    n, d, L, D = size.n, size.d + 1, LOSS.bound, 2 * BALL.radius
    log, budget = math.log(d / DELTA), ApproxDP(size.epsilon, DELTA)
    zeta = math.sqrt(8 * L**2 * math.log(2 / DELTA)) / size.epsilon
    if analytic:
        zeta = math.sqrt(Gaussian(budget, L, 2 * L).variance(1))
    if theorem == "4.1":
        batch = math.ceil(math.sqrt(d) * log / size.epsilon)
        steps, spent = n // batch, size.epsilon * batch
        eta = spent * D / (L * math.sqrt(steps) * (spent + math.sqrt(d) * L * log))
        return Plan(batch, steps, 1 / eta, zeta, accelerated=False)
    batch = min(n, round(n**0.6 * d**0.2 * (L * log / (size.epsilon * LOSS.smoothness * D)) ** 0.4))
    sigma = math.sqrt(L**2 / batch + 2 * d * (zeta / batch) ** 2)
    steps = n // batch
    return Plan(batch, steps, (steps + 2) ** 1.5 * sigma / D + LOSS.smoothness, zeta)


def ours(size: Size, seed: int, kind: Any = PanPrivateClassifier, **options: Any) -> Any:
    """A model of the library that has learned a repetition."""
    model = kind(features=[f"x{j}" for j in range(size.d)], seed=seed, **options)
    model.learn_arrays(*size.stream(seed))
    model.close_batch()
    return model


def accelerated(size: Size, seed: int) -> Any:
    """Pan-private AC-SA, told n."""
    budget = f"eps={size.epsilon:g},delta={DELTA:g}"
    return ours(size, seed, budget=budget, method="ac-sa", domain=BALL, horizon=size.n)


LEARN: dict[str, Callable[[Size, int], np.ndarray]] = {
    "ac-sa": lambda size, seed: accelerated(size, seed).theta,
    "Theorem 4.3": lambda size, seed: printed(size).learn(size, seed),
    "4.3, analytic noise": lambda size, seed: printed(size, analytic=True).learn(size, seed),
    "Theorem 4.1": lambda size, seed: printed(size, "4.1").learn(size, seed),
    "Newton": lambda size, seed: ours(size, seed, budget=f"eps={size.epsilon:g},delta={DELTA:g}").theta,
    "LDP-ASGD": lambda size, seed: ours(size, seed, LDPASGDClassifier, budget=f"eps={size.epsilon:g}").theta,
    "no privacy": lambda size, seed: ours(size, seed, mechanism="none").theta,
}
PRINTED = ("Theorem 4.3", "4.3, analytic noise", "Theorem 4.1")


@cache
def losses(name: str, size: Size) -> np.ndarray:
    """The excess of the weighted loss (repetitions,), with the same records for every name."""
    study = Study(loss="logistic", d=size.d)
    found = [LEARN[name](size, seed) - study.theta for seed in range(repetitions(size.n))]
    return excess(study, np.array(found))


def plan_rows(sizes: Sequence[int] = SIZES) -> Iterator[list[str]]:
    """A row for each size. A difference is of pairs with the same records."""
    for n, d, epsilon in product(sizes, (5, 20), (1.0, 4.0)):
        size = Size(n, d, epsilon)
        phase, paper, own = accelerated(size, 0).learner.batch_steps.plan_of(0)[0], printed(size), losses("ac-sa", size)
        row = [f"{n:,}", str(d), f"{epsilon:g}", f"{phase.batch:,} x {phase.steps}", f"{paper.batch:,} x {paper.steps}"]
        row += [scientific(own), *(scientific(losses(name, size)) for name in PRINTED)]
        yield [*row, *(scientific(own - losses(name, size)) for name in PRINTED[:2])]
        Size.stream.cache_clear()


def picture() -> tuple[str, Any]:
    """Every way to learn against n: d = 5, epsilon 1."""
    names, marks = ["LDP-ASGD", *PRINTED[:2], "ac-sa", "Newton", "no privacy"], (1_000, *SIZES[:2], 30_000, *SIZES[2:])
    figure, ((axis,),) = sheet(1, 1, width=6, height=4)
    rows = []
    for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
        found = [losses(name, Size(n)) for n in marks]
        pairs = np.array([mean_and_error(runs) for runs in found])
        axis.errorbar(marks, pairs[:, 0], 2 * pairs[:, 1], marker=marker, color=colour, capsize=2, label=name)
        rows.append([name, *map(scientific, found)])
    axis.set(xscale="log", yscale="log", xlabel="records n", ylabel="mean excess loss, with two standard errors")
    axis.set_title("Logistic regression, d = 5, epsilon 1", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    return table(["excess loss", *(f"{n:,}" for n in marks)], rows), figure


# --- users


def averaged(size: Users, answers: Callable[[np.ndarray], np.ndarray], steps: int, eta: float) -> np.ndarray:
    """The excess (8,) of averaged SGD on linear losses, for the hardest of five norms from the theorems' rate to 1.
    Answers get the averages of the users of every run (40, n, d), and return a gradient for each."""
    norms = np.repeat(np.geomspace(LINEAR.rate(size), 1, 5), 8)
    points = np.array([draw(size, float(a), seed % 8) for seed, a in enumerate(norms)])
    walk = Averaged(np.zeros((len(norms), size.d)), lambda x: x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None])
    for _ in range(steps):
        walk.move(answers(points), 1 / eta)
    found = np.array([LINEAR.excess(theta, a) for theta, a in zip(walk.points[1], norms, strict=True)])
    return max(found.reshape(-1, 8), key=np.mean)


def bassily_sun(size: Users) -> tuple[str, np.ndarray]:
    """T, B and the excess of Algorithm 4; its mean is `RangeMean`, and its privacy is computed for T steps."""
    c = math.log(size.n) * math.log(1 / DELTA)
    steps = max(1, round((size.n * size.epsilon / c) ** 2 / size.d))
    eta = size.d * math.sqrt(size.m) / (size.n**1.5 * size.epsilon**2)
    eta += c * math.sqrt(size.m * size.d) / (size.n * size.epsilon)
    batch = size.n * size.epsilon / ((math.e - 1) * math.sqrt(2 * steps * math.log(2 / DELTA)))
    rate, task = min(1.0, batch / size.n), WAYS[2].task(LINEAR, size)
    mu = 1 / nearly_normal(GaussianDP.from_approx(ApproxDP(size.epsilon, DELTA)).mu, rate, steps)
    mean = RangeMean.planned(mu, task.bound, task.sensitivity, size.d, size.n, rate, task.spread, 0.01 / steps)
    rng, noise = np.random.default_rng(0), SeededEntropy(0, 1 << 14)

    def answers(points: np.ndarray) -> np.ndarray:
        return np.array([mean.estimate(-users[rng.random(size.n) < rate], noise) for users in points])

    return f"T = {steps}, B = {batch:.0f}, eta = {eta:.1g}", averaged(size, answers, steps, eta)


def asi_liu(size: Users, steps: int) -> tuple[str, np.ndarray | None]:
    """eta and the excess of Algorithm 3 with T steps. Answers are means with the noise of `ConcentratedMean`, which
    they are where nobody is an outlier; the tests are not run."""
    reach = min(2.0, math.sqrt(2 / size.m) * (1 + math.sqrt(2 * math.log(100))))
    budget = ApproxDP(size.epsilon, DELTA)
    mean = ConcentratedMean.planned(budget, size.n, size.d, steps, 1.0, reach, 0.01, 0.01)
    if mean is None:
        return f"T = {steps:,}", None
    log = math.log(size.m * size.n * size.d / DELTA)
    private = math.sqrt(size.m / size.d) * size.n * size.epsilon / (steps * log)
    eta, rng = min(private, steps**-0.75, math.sqrt(size.n * size.m) / steps), np.random.default_rng(0)
    middles: list[np.ndarray] = []  # of a linear loss they stay the same

    def answers(points: np.ndarray) -> np.ndarray:
        if not middles:
            middles.append(points.mean(axis=1))
        return np.asarray(mean.noise * rng.standard_normal(middles[0].shape) - middles[0])

    return f"T = {steps:,}, eta = {eta:.1g}", averaged(size, answers, steps, eta)


def user_rows() -> Iterator[list[str]]:
    """A row for each number of records of a user."""
    for m in (16, 512, 16_384):
        size = Users(m=m)
        for name, way, found in (
            ("Bassily and Sun, Algorithm 4", WAYS[2], bassily_sun(size)),
            *(("Asi and Liu, Algorithm 3", WAYS[3], asi_liu(size, steps)) for steps in (256, 4_096, 65_536)),
        ):
            own = measured(LINEAR, way, size)
            shown = ["too few users" if one is None else scientific(one) for one in (found[1], own and own[0])]
            yield [name, f"{m:,}", found[0], *shown]


PLAN_HEAD = [
    "n",
    "d",
    "eps",
    "our b x T",
    "4.3: b x T",
    "ac-sa",
    *PRINTED,
    "ac-sa less Theorem 4.3",
    "less 4.3, analytic",
]
PARTS: dict[str, Callable[[], str | tuple[str, Any]]] = {
    "plans": lambda: table(PLAN_HEAD, plan_rows()),
    "all": picture,
    "users": lambda: table(["plan", "m", "as printed", "its excess", "ours"], user_rows()),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
