"""Statements about user-level learning, one by one. Run with `python -m studies.user_claims [--write]`.

Asi and Liu 2024: the error of means with outlier removal (Theorem 3.2), as excess of squared distances, with users who
are unlike the others, and randomised smoothing (Lemma 2.5). Bassily and Sun 2023: the error of local means (Theorem
4.3) and the excess of local learners (Theorem 3.2) on linear losses, which are the hardest. Noise comes from seeded
generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, fast_enough, mean_and_error, pm, scientific, slope, table
from streamdp.aggregation.concentrated_mean import QueryRun
from streamdp.aggregation.local_mean import UserMean
from streamdp.estimators.user.estimators import UserLevelLDPRegressor
from streamdp.optim.domains import L2Ball
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP
from studies.few_users import BOUND, ConcentratedMean, outliers, vectors
from studies.rates import Linear, linear

DELTA = 1e-6
STEPS = 100
"""Of a local learner, at every size: of a linear loss, more do not lower the plan's bound."""


@dataclass(frozen=True)
class Size:
    """n users, m records of each, d coordinates, epsilon, T queries."""

    n: int
    m: int
    d: int = 16
    epsilon: float = 1.0
    T: int = 1

    @property
    def spread(self) -> float:
        """The root mean square distance of a user's vector from the mean."""
        return BOUND / math.sqrt(self.m)


Runs = Callable[[Size], np.ndarray]
Planned = Callable[[Size], float]


@dataclass(frozen=True)
class Sweep:
    """One of a size's numbers, its values, and the theorem's exponent."""

    varied: str
    values: tuple[float, ...]
    exponent: float


def rows_of(base: Size, sweeps: Sequence[Sweep], runs: Runs, planned: Planned) -> Iterator[list[str]]:
    """A row for each sweep; `planned` is what the plan says, logarithms and constants included."""
    for sweep in sweeps:
        sizes = [replace(base, **{sweep.varied: value}) for value in sweep.values]  # type: ignore[arg-type]
        found = [runs(size) for size in sizes]
        fitted = slope(sweep.values, found)  # type: ignore[arg-type]
        steep = float(np.polyfit(np.log(sweep.values), np.log([planned(size) for size in sizes]), 1)[0])
        shown = [f"{value:,g}: {scientific(run)}" for value, run in zip(sweep.values, found, strict=True)]
        met = "yes" if fast_enough(fitted, sweep.exponent) else "**no**"
        yield [sweep.varied, "; ".join(shown), f"{sweep.exponent:g}", f"{pm(fitted)} ({met})", f"{steep:.2f}"]


HEAD_RATES = ["against", "excess", "exponent", "slope (met)", "slope of the plan"]


# --- Asi and Liu, Lemma 2.5 -------------------------------------------------------------------------------------

Smoothable = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]
DRAWN = 100_000


def kink(d: int) -> Smoothable:
    """|x_1| and its gradient, of points (n, d)."""
    first = np.eye(d)[0]
    return lambda x: np.abs(x[:, 0]), lambda x: np.sign(x[:, :1]) * first


def norm(d: int) -> Smoothable:
    """||x|| and its gradient, of points (n, d)."""
    return lambda x: np.linalg.norm(x, axis=1), lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)


def ball(d: int, seed: int) -> np.ndarray:
    """Uniform points (n, d) of the unit ball, each with its opposite."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((DRAWN // 2, d))
    points *= rng.random((len(points), 1)) ** (1 / d) / np.linalg.norm(points, axis=1, keepdims=True)
    return np.concatenate([points, -points])


def smoothing() -> str:
    """A row for each function and d; G = 1."""
    rows = []
    for (name, of), d in product({"abs(x_1)": kink, "norm of x": norm}.items(), (2, 16, 128)):
        f, gradient = of(d)
        y, first = ball(d, d), np.eye(d)[0]
        half = DRAWN // 2
        # f_r - f at theta = 0, where it is largest, in units of r; pairs of opposite points are one draw
        rise = f(y)[:half]
        # |gradient f_r(t e_1) - gradient f_r(0)| r / t: by symmetry only along e_1, and 0 at 0
        t = 0.1 / math.sqrt(d)
        smooth = gradient(y + t * first)[:, 0] / t
        smooth = (smooth[:half] + smooth[half:]) / 2
        far = 0.5 * first
        difference = (f(y + 0.5005 * first) - f(y + 0.4995 * first)) / 0.001
        lean = gradient(y + far)[:, 0] - difference
        lean = (lean[:half] + lean[half:]) / 2
        length = float(np.linalg.norm(gradient(y + far).mean(axis=0)))
        shown = [pm(mean_and_error(values), 3) for values in (rise, smooth / math.sqrt(d))]
        rows.append([name, str(d), *shown, f"{length:.3f}", pm(mean_and_error(lean), 5)])
    head = ["f", "d", "(f_r - f) / (G r)", "smoothness r / (G sqrt(d))", "gradient of f_r / G", "lean of gradients"]
    return table(head, rows)


# --- Asi and Liu, Theorem 3.2 -----------------------------------------------------------------------------------


def answering(size: Size) -> ConcentratedMean:
    """The run that `few_users` plans."""
    mean = outliers(size.d, size.n, size.T, size.spread, ApproxDP(size.epsilon, DELTA))
    assert mean is not None
    return mean


def answered(size: Size, share: float = 0.0, strength: float = 0.0, runs: int = 40) -> tuple[np.ndarray, int]:
    """The excess of squared distances (runs,): half the squared error of the mean of usual users, the mean over all
    answers. And how many runs stopped, which are left out. A share of the users is `strength` spreads away."""
    mean, found, stopped = answering(size), [], 0
    for seed in range(runs):
        rng = np.random.default_rng((seed, size.n, size.m, size.d))
        points = vectors(size.d, size.n, rng, size.spread)
        unlike = round(share * size.n)
        usual = points[unlike:].mean(axis=0)
        away = -usual / np.linalg.norm(usual)  # towards the middle of the ball, so that they stay in it
        points[:unlike] = usual + away * strength * size.spread
        run = QueryRun(mean, SeededEntropy(seed, 1 << 14))
        answers = [run.of(points) for _ in range(size.T)]
        if any(answer is None for answer in answers):
            stopped += 1
        else:
            found.append(float(np.mean([np.sum((answer - usual) ** 2) for answer in answers]) / 2))
    return np.array(found), stopped


CENTRAL = (
    Sweep("n", (2_000, 4_000, 8_000), -2),
    Sweep("m", (625, 2_500, 10_000, 40_000), -1),
    Sweep("d", (16, 64, 256), 1),
    Sweep("T", (1, 4, 16), 1),
    Sweep("epsilon", (0.5, 1, 2, 4), -2),
)


def concentrated() -> str:
    """The rates of means with outlier removal."""

    def planned(size: Size) -> float:
        return size.d * answering(size).noise ** 2 / 2

    return table(HEAD_RATES, rows_of(Size(4_000, 2_500), CENTRAL, lambda size: answered(size)[0], planned))


def unlike() -> str:
    """Users who are unlike the others."""
    base, rows = Size(4_000, 2_500), []
    for share, strength in [(0.0, 0), *product((0.002, 0.005, 0.01, 0.1), (1, 3, 10, 30))]:
        found, stopped = answered(base, share, strength)
        shown = scientific(found) if len(found) > 1 else ""
        # what the mean of all users has: unlike ones move it by share times strength spreads
        plain = (share * strength * base.spread) ** 2 / 2
        rows.append([f"{share:.1%}", str(strength), shown, f"{plain:.1e}", str(stopped)])
    head = ["unlike users", "spreads away", "excess", "of the mean of all without noise", "runs that stopped, of 40"]
    return table(head, rows)


# --- Bassily and Sun, Theorem 4.3 -------------------------------------------------------------------------------


def local_mean(size: Size) -> UserMean:
    """The library's plan; the coarse question is asked only if that lowers the noise."""
    budget = ApproxDP(size.epsilon, DELTA)
    return UserMean.planned(budget, BOUND, 2 * BOUND, size.d, size.n, size.spread)


def mean_of(mean: UserMean, vectors: np.ndarray, place: int, rng: SeededEntropy) -> np.ndarray:
    """The mean (d,) of the vectors (users, d) of all users, who answer one after another; `place` sets the signs."""
    signs, centre = mean.signs((place,)), np.zeros(mean.d)
    if mean.coarse:
        coordinates = np.arange(mean.coarse) % mean.padded
        votes = np.zeros((mean.padded, mean.intervals), dtype=np.int64)
        np.add.at(votes, coordinates, mean.answer_coarse(vectors[: mean.coarse], coordinates, signs, rng))
        centre = mean.centre(votes, signs)
    return np.asarray(centre + mean.answer_fine(vectors[mean.coarse :], centre, rng).mean(axis=0))


def estimated(size: Size, mean: UserMean | None = None, runs: int = 10) -> np.ndarray:
    """Half the squared error (runs,) of the mean of all users; of the library's plan, if none is given."""
    mean, found = mean or local_mean(size), []
    for seed in range(runs):
        points = vectors(size.d, mean.users, np.random.default_rng((seed, size.n, size.m, size.d)), size.spread)
        points /= np.maximum(1, np.linalg.norm(points, axis=1, keepdims=True) / BOUND)
        answer = mean_of(mean, points, seed, SeededEntropy(seed, 1 << 14))
        found.append(float(np.sum((answer - points.mean(axis=0)) ** 2)) / 2)
    return np.array(found)


LOCAL = (
    Sweep("n", (120_000, 240_000), -1),
    Sweep("m", (1_024, 8_192, 65_536), -1),
    Sweep("d", (4, 8, 16), 1),
    Sweep("epsilon", (1, 2, 4), -2),
)


def local() -> str:
    """The rates of local means."""
    return table(
        HEAD_RATES, rows_of(Size(120_000, 8_192), LOCAL, estimated, lambda size: local_mean(size).variance / 2)
    )


def law() -> str:
    """The error over that of the theorem's law."""
    base, rows = Size(120_000, 8_192), []
    for size in (base, replace(base, m=1_024), replace(base, d=4), replace(base, epsilon=4.0)):
        mean = local_mean(size)
        theorem = math.ceil(4 * size.d * math.log(size.d**1.5 / (size.spread * 0.01)) / size.epsilon**2)
        few = replace(mean, coarse=theorem)
        laws = [pm(mean_and_error(estimated(size, one) / (one.variance / 2)), 1) for one in (mean, few)]
        numbers = [f"{size.m:,}", str(size.d), f"{size.epsilon:g}", f"{mean.radius / size.spread:.1f}"]
        rows.append([*numbers, f"{mean.coarse:,}", laws[0], f"{theorem:,}", laws[1]])
    head = ["m", "d", "epsilon", "C / spread", "planned users of the coarse question", "error over the law"]
    head += ["the theorem's least n", "error over the law"]
    return table(head, rows)


# --- Bassily and Sun, Theorem 3.2 -------------------------------------------------------------------------------


def learner(problem: Linear, size: Size, seed: int) -> Any:
    """Planned accelerated steps; averages are cut to their spread around zero."""
    loss = problem.loss
    return UserLevelLDPRegressor(
        loss,
        ApproxDP(size.epsilon, DELTA),
        items_per_user=size.m,
        domain=L2Ball(problem.radius),
        features=[f"x{j}" for j in range(size.d)],
        intercept=False,
        horizon=size.n,
        batch_size=-(-size.n // STEPS),
        smoothness=0.001,
        method="ac-sa",
        seed=seed,
    )


def learned(size: Size, runs: int = 12) -> np.ndarray:
    """The excess (runs,) on a hard linear loss: its mean gradient is about as long as the bound."""
    problem, found = linear(size.d, min(1.0, bound(size))), []
    for seed in range(runs):
        model, rng = learner(problem, size, seed), np.random.default_rng((seed, size.n, size.m, size.d))
        left = size.n
        while left:
            users = min(left, model.learner._turn)
            positive = rng.binomial(size.m, (1 + problem.a) / 2, (users, size.d))
            model.learner._answer(-(2 * positive / size.m - 1) * problem.points[0] / 2)
            left -= users
        found.append(problem.excess(model.theta))
    return np.array(found)


def bound(size: Size) -> float:
    """The plan's bound on the excess."""
    return float(learner(linear(size.d), size, 0).learner.batch_steps.plan[-1].excess)


LEARNED = (
    Sweep("n", (10_000, 40_000, 160_000), -0.5),
    Sweep("m", (1, 4, 16, 64), -0.5),
    Sweep("d", (4, 16, 64), 0.5),
    Sweep("epsilon", (0.25, 0.5, 1), -1),
)


def descent() -> str:
    """The rates."""
    base = Size(40_000, 16)
    rates = table(HEAD_RATES, rows_of(base, LEARNED, learned, bound))
    worst = max(learned(size).mean() / bound(size) for size in (base, replace(base, n=160_000), replace(base, d=64)))
    return f"{rates}\n\nThe largest of three ratios of mean excess and the plan's bound: {worst:.2f}."


PARTS: dict[str, Callable[[], str]] = {
    "smoothing": smoothing,
    "concentrated": concentrated,
    "unlike": unlike,
    "local": local,
    "law": law,
    "descent": descent,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
