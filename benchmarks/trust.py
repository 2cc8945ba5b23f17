"""What each trust model costs. Run with `python -m benchmarks.trust [--write]`; a few minutes on one core.

300,000 records of the simulations of Shi et al. 2025 (section 5: all coefficients 1, Huber's noise of standard
deviation 2), six parameters, one pass: pan-private Newton's method without noise and with it, the shuffled one, AC-SA
for both, LDP-ASGD. They go into trust.md. Noise comes from seeded generators, which are for measuring only.

Its parts `tables` and `large_tables` measure what a job learns with each `trust` on real and simulated tables, beside
scikit-learn's model without privacy and the best constant; they go into docs/explanations/which_estimator.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from benchmarks.shared.flights import COLUMNS, fitted
from benchmarks.shared.pages import NOISE, command, mean_and_error, pm, table
from benchmarks.shared.real_data import JOBS, read
from benchmarks.shared.simulation import SIGMA, expected_huber
from streamdp import datasets
from streamdp.config.job import JobConfig, make_config
from streamdp.data.records import Position
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, TooFewUsersError
from streamdp.estimators.ldp.estimators import LDPASGDClassifier, LDPASGDRegressor
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor
from streamdp.optim.domains import L2Ball
from streamdp.privacy.guarantees import ApproxDP, PureDP
from streamdp.windows.newton import NewtonSteps

RECORDS, REPETITIONS, TUNING = 300_000, 12, 5
CENTRAL = ApproxDP(1.0, 1e-6)
LOCAL = PureDP(1.0)
DOMAIN = L2Ball(5.0)
ETAS = (0.5, 1.0, 2.0)
DEFAULT_ETA = 1.0
FEATURES = {"logistic": 5, "huber": 4}  # six parameters each: with the intercept, and Huber's scale
SCORE = {"logistic": "accuracy", "huber": "R²"}


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
            model.learn_encoded(*problem.draw(seed))
            found.append(problem.excess(model.theta))
        return float(np.mean(found))

    return min(ETAS, key=mean)


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
        lambda model: f"(1, 1e-6), one break-in; b from {model.learner.batch_steps.batch:,}",
        lambda problem, seed: batched(problem, problem.kind("pan"), seed),
    ),
    Contender(
        "shuffled Newton",
        "a shuffler",
        lambda model: f"(1, 1e-6); b from {model.learner.batch_steps.batch:,}",
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
        model.learn_encoded(*problem.draw(seed))
        model.close_batch()
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


def rows_of(loss: str, repetitions: int = REPETITIONS) -> Iterator[list[str]]:
    """The table's rows for one loss."""
    problem = Problem(loss)
    public: Found | None = None
    for contender in CONTENDERS:
        found = measure(contender, problem, repetitions)
        public = public or found
        times = found.excess.mean() / public.excess.mean()
        row = [loss, contender.name, contender.trusted, found.promise]
        row += [digits(mean_and_error(a)) for a in (found.excess, found.distance, found.score)]
        yield [*row[:5], f"{times:.0f}" if times >= 10 else f"{times:.1f}", *row[5:]]


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


# --- what a job learns from a table, by who sees the records -------------------------------------------------------

WHICH = NOISE.with_name("which_estimator.md")
FEW, MOST_HELD_OUT = 5_000, 50_000
LARGE = ("is a flight late?", "delay of a flight, minutes")
LEARNERS: dict[str, dict[str, Any]] = {
    "nobody: LDP-ASGD": {"trust": "nobody"},
    "process: PanPrivate": {"trust": "process"},
    "shuffler: Shuffle": {"trust": "shuffler"},
    "window: Windowed": {"trust": "window"},
    "windows of 10,000": {"trust": "window", "window": 10_000},
    "one noisy sum": {"trust": "window", "method": "once"},
}


def rare(n: int, seed: int) -> pl.DataFrame:
    """Four skewed columns in wide bounds, four rare flags, about 4.4 % positive."""
    rng = np.random.default_rng(seed)
    skewed = {f"x{j}": np.minimum(rng.lognormal(mean, 1.0, n), 10_000.0) for j, mean in enumerate((2, 3, 4, 5))}
    flags = {f"f{j}": (rng.random(n) < share).astype(float) for j, share in enumerate((0.05, 0.03, 0.02, 0.01))}
    logs = np.stack([np.log(x) - j - 2 for j, x in enumerate(skewed.values())])
    score = -4.5 + np.array([0.9, -0.7, 0.6, 0.5]) @ logs + np.array([1.0, 2.0, 1.5, 2.5]) @ np.stack([*flags.values()])
    return pl.DataFrame({**skewed, **flags, "y": np.where(rng.random(n) < expit(score), "yes", "no")})


def linear(n: int, seed: int) -> pl.DataFrame:
    """Four columns of spread 1 and normal noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    y = X @ np.array([1.0, -0.5, 0.5, 0.25]) + 0.3 * rng.standard_normal(n)
    return pl.DataFrame({**{f"x{j}": X[:, j] for j in range(4)}, "y": y})


RARE = {**{f"x{j}": (0, 10_000) for j in range(4)}, **{f"f{j}": (0, 1) for j in range(4)}}
LINEAR = {f"x{j}": (-5, 5) for j in range(4)}


def _flights(column: str) -> pl.DataFrame:
    return datasets.flights().sample(fraction=1.0, shuffle=True, seed=1).with_columns(pl.col(column).cast(pl.String))


Declared = tuple[float, float] | list[str]
SETS: dict[str, tuple[Callable[[], pl.DataFrame], str, Declared, dict[str, Any]]] = {
    "simulated, 1,000 records": (lambda: linear(11_000, 1), "y", (-5, 5), LINEAR),
    "simulated, 3,000 records": (lambda: linear(13_000, 2), "y", (-5, 5), LINEAR),
    "simulated, rare class": (lambda: rare(100_000, 3), "y", ["no", "yes"], RARE),
    **{
        name: (lambda table=given[0]: read(table), *given[1:])  # type: ignore[misc]
        for name, given in JOBS.items()
        if given[1] not in ("whrswk", "health")
    },
    "is a flight late?": (lambda: _flights("late"), "late", ["false", "true"], COLUMNS | {"dep_delay": (-30, 60)}),
    "delay of a flight, minutes": (
        lambda: _flights("arr_delay"),
        "arr_delay",
        (-60, 180),
        COLUMNS | {"dep_delay": (-30, 180)},
    ),
    "insurance charges, dollars": (
        lambda: datasets.insurance(50_000, seed=1),
        "charges",
        (0, 40_000),
        datasets.INSURANCE_SCHEMA["features"],
    ),
}


class Table:
    """A data set in two parts: what is learned, and what is held out."""

    transform: str | None = None  # of the target

    def __init__(self, name: str) -> None:
        make, self.target, declared, self.features = SETS[name]
        self.classes = declared if isinstance(declared, list) else None
        self.bounds = None if isinstance(declared, list) else declared
        frame = make().with_columns(pl.col(pl.String).replace({"TRUE": "true", "FALSE": "false"}))
        schema = Schema(self.features, self.target, target_bounds=self.bounds, classes=self.classes)
        batch = schema.encode(frame, np.arange(frame.height), Position())
        held = (
            10_000 if len(batch.y) < 14_000 and name.startswith("simulated") else min(len(batch.y) // 5, MOST_HELD_OUT)
        )
        held = len(batch.y) // 2 if name == "simulated, rare class" else held
        self.X, self.y, self.held_out, self.truth = batch.X[:-held], batch.y[:-held], batch.X[-held:], batch.y[-held:]

    @property
    def measure(self) -> str:
        """What a score is."""
        return "MAE" if self.classes is None else "AUC" if len(self.classes) == 2 else "accuracy"

    def score(self, answers: np.ndarray) -> float:
        """The score of predictions: numbers, probabilities of the second class, or classes."""
        if self.measure == "AUC":
            return float(roc_auc_score(self.truth, answers))
        if self.measure == "accuracy":
            return float(np.mean(answers == self.truth))
        return float(np.mean(np.abs(answers - self.truth)))

    def plain(self) -> float:
        """The score of scikit-learn's model without privacy."""
        model = fitted(self.X, self.y, bool(self.classes))
        return self.score(
            model.predict_proba(self.held_out)[:, 1] if self.measure == "AUC" else model.predict(self.held_out)
        )

    def constant(self) -> float:
        """The score of the best constant."""
        if self.classes is None:
            return self.score(np.full(len(self.truth), np.median(self.y)))
        return 0.5 if self.measure == "AUC" else float(np.bincount(self.truth.astype(int)).max() / len(self.truth))

    def job(self, model: dict[str, Any], budget: str, records: int) -> JobConfig:
        """A job with these settings of its model."""
        target = {"column": self.target, "classes": self.classes, "bounds": self.bounds, "transform": self.transform}
        return make_config(
            {
                "job": "one",
                "source": {"type": "csv", "path": "-"},
                "schema": {"features": self.features, "target": target},
                "model": {key: value for key, value in model.items() if value != "once"} | {"budget": budget},
                "expected_records": records,
            }
        )

    def private(self, model: dict[str, Any], budget: str, seed: int) -> float:
        """The score of a job with these settings of its model."""
        once = model.get("method") == "once"
        learner: Any = self.job(model, budget, len(self.y)).build_estimator()
        learner = learner.clone({"seed": seed} | ({"method": NewtonSteps(rounds=1)} if once else {}))
        learner.learn_encoded(self.X, self.y)
        learner.close_batch()
        if self.measure == "AUC":
            return self.score(learner.predict_proba_encoded(self.held_out)[:, 1])
        return self.score(np.asarray(learner.predict_encoded(self.held_out)))


def rows_of_sets(names: list[str], epsilons: tuple[float, ...] = (1.0, 4.0)) -> list[list[str]]:
    """A row for each table and epsilon: the medians, and in brackets the worst of the draws."""
    rows = []
    for name in names:
        found = Table(name)
        draws, worst = (12 if len(found.y) <= FEW else 4), max if found.classes is None else min
        public = [f"{found.constant():.4g}", f"{found.plain():.4g}"]
        for epsilon in epsilons:
            cells = []
            for model in LEARNERS.values():
                try:
                    scores = [found.private(model, f"eps={epsilon:g}", seed) for seed in range(draws)]
                    cells.append(f"{np.median(scores):.4g} ({worst(scores):.4g})")
                except (ConfigError, TooFewUsersError):
                    cells.append("-")
            rows.append([f"{name} ({found.measure})", f"{len(found.y):,}", f"{epsilon:g}", *public, *cells])
            print(" | ".join(rows[-1]), flush=True)
    return rows


SETS_HEAD = ["table", "records", "eps", "constant", "no privacy", *LEARNERS]


PARTS: dict[str, Callable[[], str]] = {
    "trust": lambda: table(HEAD, (row for loss in FEATURES for row in rows_of(loss))),
    "truth": truth,
    "tables": lambda: table(SETS_HEAD, rows_of_sets([name for name in SETS if name not in LARGE])),
    "large_tables": lambda: table(SETS_HEAD, rows_of_sets([*LARGE], (1.0,))),
}
PAGES = {"tables": [WHICH], "large_tables": [WHICH]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, pages=PAGES)


if __name__ == "__main__":
    main()
