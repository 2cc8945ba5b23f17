"""What each trust model costs. Run with `python -m benchmarks.trust [--write]`; a few minutes on one core.

300,000 records of the simulations of Shi et al. 2025 (section 5: all coefficients 1, Huber's noise of standard
deviation 2), six parameters, one pass: pan-private Newton's method without noise and with it, the shuffled one, AC-SA
for both, LDP reports that are shuffled, LDP-ASGD. `--write` writes trust.md and puts the table
into docs/explanations/noise.md. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.shared.pages import NOISE, command, mean_and_error, pm, table
from benchmarks.shared.simulation import SIGMA, expected_huber
from streamdp.data import datasets
from streamdp.estimators.batch_methods import batch_plan
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor
from streamdp.learners.batches import Batches, Vectors
from streamdp.learners.linear_problem import LinearProblem
from streamdp.optim.domains import L2Ball
from streamdp.optim.user_averages import gradients
from streamdp.privacy.amplification import local_budget, shuffled
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from streamdp.privacy.mechanisms import PrivUnit

RECORDS, REPETITIONS, TUNING = 300_000, 12, 5
FIXED_BATCH = 1000
CENTRAL = ApproxDP(1.0, 1e-6)
LOCAL = PureDP(1.0)
DOMAIN = L2Ball(5.0)
ETAS = (0.5, 1.0, 2.0)
DEFAULT_ETA = 1.0
FEATURES = {"logistic": 5, "huber": 4}  # six parameters each: with the intercept, and Huber's scale
SCORE = {"logistic": "accuracy", "huber": "R²"}


# --- LDP reports in batches ---------------------------------------------------------------------------------


class Reports(Batches):
    """AC-SA whose batches are sums of PrivUnit reports, all of a batch at one point by one randomizer, so that what
    shuffling adds to them is a theorem (`accounting.amplification`); `local` is what a report spends."""

    methods = ("ac-sa",)
    local: Callable[[int], PureDP]

    def _sums(self, vectors: Vectors) -> None:
        self._reports = np.zeros(vectors.size)

    @property
    def total(self) -> np.ndarray:
        return self._reports

    def _randomizer(self, batch: int) -> PrivUnit:
        return PrivUnit(self.local(batch), self.problem.loss.bound, self.problem.loss.sensitivity)

    def _noise(self, batch: int) -> float:
        return self._randomizer(batch).variance(len(self._reports)) / batch

    def _open(self) -> None:
        self._reports[:] = 0

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        found = gradients(self.spec, self.middle, X, y)
        self._reports += self._randomizer(self.batch).randomize(found, self.rng).sum(axis=0)

    def _close(self, records: int) -> np.ndarray:
        return self._reports.copy()


@cache
def local_for(batch: int) -> PureDP:
    """What a report may spend so that a shuffled batch has the central budget."""
    return local_budget(CENTRAL, batch)


def fixed(batch: int) -> PureDP:
    """The local budget whatever the batch."""
    return LOCAL


def reports(kind: type[Any], local: Callable[[int], PureDP]) -> type[Any]:
    """Such an estimator, with the interface of `kind`."""

    def make(model: Any, problem: LinearProblem, budget: Budget, rng: Any) -> Reports:
        learner = Reports(problem, budget, rng, batch_plan(model), given_domain=model.domain is not None)
        learner.local = local
        return learner

    return type("Reports" + kind.__name__, (kind,), {"learns": Reports, "_make_learner": make})


# --- what is compared ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A simulation, and how far an estimate is from its best one."""

    loss: str

    @property
    def names(self) -> list[str]:
        return [f"x{j}" for j in range(FEATURES[self.loss])]

    @property
    def truth(self) -> np.ndarray:
        ones = np.ones(FEATURES[self.loss] + 1)
        return np.append(ones, SIGMA) if self.loss == "huber" else ones

    def draw(self, seed: int, n: int = RECORDS) -> tuple[np.ndarray, np.ndarray]:
        """n records."""
        make = datasets.linear if self.loss == "huber" else datasets.logistic
        return make(n, FEATURES[self.loss], seed=seed)

    def kind(self, family: str) -> type[Any]:
        """The estimator of a family."""
        kinds = {
            "ldp": (LDPASGDRegressor, LDPASGDClassifier),
            "pan": (PanPrivateRegressor, PanPrivateClassifier),
            "shuffle": (ShuffleRegressor, ShuffleClassifier),
        }
        return kinds[family][self.loss == "logistic"]

    @cache  # noqa: B019 - there are two
    def _sample(self) -> np.ndarray:
        X = np.random.default_rng(99).standard_normal((200_000, FEATURES[self.loss]))
        return np.hstack([X, np.ones((len(X), 1))])

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - E f(theta*) of the weighted loss: the mean over 200,000 x of the exact mean over y, which is at
        least 0 for each x; off by about 1 % of itself."""
        X, best = self._sample(), self.truth
        weight = np.minimum(1, 2 / np.sum(X**2, axis=1))
        if self.loss == "logistic":
            u, v = X @ theta, X @ best
            return float(np.mean(weight * (np.logaddexp(0, u) - np.logaddexp(0, v) - expit(v) * (u - v))))
        off = X @ (theta - best)[:-1]
        here = expected_huber(off, float(theta[-1]))
        return float(np.mean(weight * (here - expected_huber(np.zeros(1), SIGMA))))

    def score(self, theta: np.ndarray) -> float:
        """Accuracy, or R² of predictions of y."""
        off = theta - self.truth
        if self.loss == "huber":
            return float(1 - (np.sum(off[:-1] ** 2) + SIGMA**2) / (FEATURES[self.loss] + SIGMA**2))
        p = expit(self._sample() @ self.truth)
        return float(np.mean(np.where(self._sample() @ theta > 0, p, 1 - p)))


@dataclass(frozen=True)
class Contender:
    """One row: how to make the model, and what it promises to whom."""

    name: str
    trusted: str
    promise: Callable[[Any], str]
    make: Callable[[Problem, int], Any]


def batched(problem: Problem, kind: type[Any], seed: int, **options: Any) -> Any:
    return kind(
        problem.loss,
        str(CENTRAL),
        features=problem.names,
        seed=seed,
        **options,
    )


def planned(problem: Problem, kind: type[Any], seed: int, **options: Any) -> Any:
    """AC-SA, told the number of records and a domain."""
    return batched(problem, kind, seed, domain=DOMAIN, horizon=RECORDS, method="ac-sa", **options)


def asgd(problem: Problem, seed: int, eta: float | None = None) -> Any:
    chosen = best_eta(problem) if eta is None else eta
    kind = problem.kind("ldp")
    return kind(problem.loss, str(LOCAL), eta=chosen, domain=DOMAIN, features=problem.names, seed=seed)


@cache
def best_eta(problem: Problem) -> float:
    """The step size with the least mean excess over streams of their own."""

    def mean(eta: float) -> float:
        found = []
        for seed in range(10_000, 10_000 + TUNING):
            model = asgd(problem, seed, eta)
            model.learn_arrays(*problem.draw(seed))
            found.append(problem.excess(model.theta))
        return float(np.mean(found))

    return min(ETAS, key=mean)


def fallen(model: Any) -> str:
    """What shuffling makes of the local budget, in batches of the plan's size."""
    batch = model.phase.batch
    local, central = model.local(batch), shuffled(model.local(batch), batch, CENTRAL.delta)
    return f"({central.epsilon:.2g}, 1e-6), and eps={local.epsilon:.3g} against the shuffler; b={batch:,}"


CONTENDERS = (
    Contender(
        "no privacy (pan-private Newton, mechanism=none)",
        "everybody",
        lambda model: "none",
        lambda problem, seed: batched(problem, problem.kind("pan"), seed, mechanism="none"),
    ),
    Contender(
        "pan-private Newton",
        "the operator, while a record passes",
        lambda model: f"(1, 1e-6), one break-in; b from {model.learner.walk.batch:,}",
        lambda problem, seed: batched(problem, problem.kind("pan"), seed),
    ),
    Contender(
        "shuffled Newton",
        "a shuffler",
        lambda model: f"(1, 1e-6); b from {model.learner.walk.batch:,}",
        lambda problem, seed: batched(problem, problem.kind("shuffle"), seed),
    ),
    Contender(
        "pan-private AC-SA",
        "the operator, while a record passes",
        lambda model: f"(1, 1e-6), one break-in; b={model.phase.batch:,}",
        lambda problem, seed: planned(problem, problem.kind("pan"), seed),
    ),
    Contender(
        "shuffled AC-SA",
        "a shuffler",
        lambda model: f"(1, 1e-6); b={model.phase.batch:,}",
        lambda problem, seed: planned(problem, problem.kind("shuffle"), seed),
    ),
    Contender(
        "LDP reports (PrivUnit), shuffled in batches, AC-SA: central eps=1",
        "a shuffler, for more than the local eps",
        fallen,
        lambda problem, seed: planned(problem, reports(problem.kind("pan"), local_for), seed),
    ),
    Contender(
        "the same: local eps=1",
        "nobody, for eps=1",
        fallen,
        lambda problem, seed: planned(problem, reports(problem.kind("pan"), fixed), seed, batch_size=FIXED_BATCH),
    ),
    Contender(
        "LDP-ASGD (PrivUnit), eta chosen",
        "nobody",
        lambda model: f"eps=1; eta={model.eta:g}",
        asgd,
    ),
    Contender(
        "LDP-ASGD (PrivUnit), default eta",
        "nobody",
        lambda model: f"eps=1; eta={model.eta:g}",
        lambda problem, seed: asgd(problem, seed, DEFAULT_ETA),
    ),
)


@dataclass(frozen=True)
class Found:
    """What the repetitions of a contender gave: (R,) each."""

    promise: str
    excess: np.ndarray
    distance: np.ndarray
    score: np.ndarray


def measure(contender: Contender, problem: Problem, repetitions: int = REPETITIONS) -> Found:
    """Learn `repetitions` streams; every contender gets the same ones."""
    thetas, promise = [], ""
    for seed in range(repetitions):
        model = contender.make(problem, seed)
        promise = contender.promise(model)
        model.learn_arrays(*problem.draw(seed))
        thetas.append(model.theta)
    return Found(
        promise,
        np.array([problem.excess(theta) for theta in thetas]),
        np.array([float(np.linalg.norm(theta - problem.truth)) for theta in thetas]),
        np.array([problem.score(theta) for theta in thetas]),
    )


def digits(pair: tuple[float, float]) -> str:
    """Value and error, to the error's first digit."""
    places = max(0, -math.floor(math.log10(pair[1]))) if pair[1] > 0 else 4
    return pm(pair, places)


def rows_of(loss: str, repetitions: int = REPETITIONS) -> list[list[str]]:
    """The table's rows for one loss."""
    problem, rows = Problem(loss), []
    public: Found | None = None
    for contender in CONTENDERS:
        found = measure(contender, problem, repetitions)
        public = public or found
        times = found.excess.mean() / public.excess.mean()
        row = [loss, contender.name, contender.trusted, found.promise]
        row += [digits(mean_and_error(a)) for a in (found.excess, found.distance, found.score)]
        rows.append([*row[:5], f"{times:.0f}" if times >= 10 else f"{times:.1f}", *row[5:]])
        print(" | ".join(rows[-1]), flush=True)
    return rows


HEAD = [
    "loss",
    "learner",
    "trusted",
    "promise",
    "excess loss",
    "times no privacy's",
    "distance to theta*",
    "accuracy / R²",
]


def truth() -> str:
    """What no learner exceeds."""
    best = {loss: Problem(loss).score(Problem(loss).truth) for loss in FEATURES}
    return f"Knowing the truth, the accuracy is {best['logistic']:.4f} and R² {best['huber']:.4f}."


PARTS: dict[str, Callable[[], str]] = {
    "trust": lambda: table(HEAD, [row for loss in FEATURES for row in rows_of(loss)]),
    "truth": truth,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, pages={"trust": [Path(__file__).with_suffix(".md"), NOISE]})


if __name__ == "__main__":
    main()
