"""Usefulness of the pan-private and the shuffle learners. Run with `python -m benchmarks.batches [--write]`.

The length of the stream is unknown to Newton's method, and known to AC-SA. Noise comes from seeded generators, which
are for measuring only. A few minutes on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks.shared.flights import encoded_flights
from benchmarks.shared.pages import command, mean_and_error, pm, table
from benchmarks.shared.simulation import Simulation
from streamdp.data.schema import Schema
from streamdp.datasets import FLIGHTS_SCHEMA
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor

DRAWS = 12
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "pan-private": (PanPrivateRegressor, PanPrivateClassifier),
    "shuffle": (ShuffleRegressor, ShuffleClassifier),
}


def learned(trust: str, X: np.ndarray, y: np.ndarray, classify: bool, epsilon: float, **options: Any) -> Any:
    """A model that has learned all rows; the last batch is closed early."""
    names = [f"x{j}" for j in range(X.shape[1])]
    model = KINDS[trust][classify](features=names, budget=f"eps={epsilon},delta=1e-6", **options)
    model.learn_encoded(X, y)
    model.close_batch()
    return model


# --- flights


@cache
def flights(target: str, season: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X and y of the stream, and of December; delays in units of 30 minutes."""
    features = {name: declared for name, declared in FLIGHTS_SCHEMA["features"].items() if season or name != "season"}
    if target == "late":
        schema = Schema(features, target, classes=FLIGHTS_SCHEMA["targets"][target])
    else:
        bounds = FLIGHTS_SCHEMA["targets"][target]
        schema = Schema(features | {"dep_delay": [-30, bounds[1]]}, target, target_bounds=bounds, target_scale=30)
    stream, december = encoded_flights(schema)
    return stream.X, stream.y, december.X, december.y


def score(target: str, season: bool, model: Any) -> float:
    """The accuracy, or the mean absolute error in minutes, in December."""
    _, _, X, y = flights(target, season)
    predicted = model.predict_encoded(X)
    return float(np.mean(predicted == y)) * 100 if target == "late" else float(np.mean(np.abs(predicted - y))) * 30


def flights_rows(draws: int) -> Iterator[list[str]]:
    """One row for each target, choice of columns, trust model and epsilon."""
    goals = {("arr_delay", 0.5): "13.3", ("arr_delay", 1.0): "13.2", ("late", 0.5): "85.3", ("late", 1.0): "85.4"}
    for target, season in (("arr_delay", True), ("arr_delay", False), ("late", True), ("late", False)):
        X, y, *_ = flights(target, season)
        late = target == "late"

        def run(trust: str, epsilon: float, **options: Any) -> float:
            return score(target, season, learned(trust, X, y, late, epsilon, **options))  # noqa: B023

        free = run("pan-private", 1.0, mechanism="none")
        for trust in KINDS:
            for epsilon in (0.5, 1.0, 4.0):
                found = np.array([run(trust, epsilon, seed=s) for s in range(draws)])
                old = [run(trust, epsilon, seed=s, method="ac-sa", horizon=len(X)) for s in range(min(draws, 4))]
                worst = found.min() if late else found.max()
                row = ["late, accuracy" if late else "delay, MAE", "yes" if season else "no", trust, f"{epsilon:g}"]
                row += [pm(mean_and_error(found)), f"{worst:.2f}", f"{np.mean(old):.1f}", f"{free:.2f}"]
                yield [*row, goals.get((target, epsilon), "") if season or late else ""]


# --- simulations


CASES: tuple[tuple[str, int, int, str], ...] = (
    ("huber", 5, 1_000, ""),
    ("huber", 5, 10_000, ""),
    ("huber", 5, 100_000, "1.6"),
    ("huber", 20, 10_000, ""),
    ("huber", 20, 100_000, "2.3"),
    ("logistic", 5, 1_000, ""),
    ("logistic", 5, 10_000, ""),
    ("logistic", 5, 100_000, "2.6"),
    ("logistic", 20, 10_000, ""),
    ("logistic", 20, 100_000, "7"),
)


def simulated_rows(draws: int) -> Iterator[list[str]]:
    """One row for each case, trust model and epsilon."""
    for loss, d, n, goal in CASES:
        problem = Simulation(loss, d)
        streams = [problem.draw(n, 1000 + s) for s in range(draws)]
        public = np.mean([problem.excess(problem.public(X, y)) for X, y in streams])
        constant = problem.constant
        for trust in KINDS:
            for epsilon in (1.0, 4.0):

                def run(s: int, trust: str = trust, epsilon: float = epsilon, **options: Any) -> float:
                    X, y = streams[s]  # noqa: B023 - called within this turn of the loop
                    model = learned(trust, X, y, loss == "logistic", epsilon, seed=s, **options)  # noqa: B023
                    return problem.excess(model.theta)  # noqa: B023

                found = np.array([run(s) for s in range(draws)])
                old = np.array([run(s, method="ac-sa", horizon=n) for s in range(draws)])
                (mean, error), before = mean_and_error(found), old.mean()
                row = [loss, str(d), f"{n:,}", trust, f"{epsilon:g}", f"{mean:.2g} ± {error:.1g}"]
                row += [f"{found.max():.2g}", f"{before:.2g}", f"{constant:.2g}"]
                yield [*row, f"{mean / public:.1f}", f"{before / public:.0f}", goal if epsilon == 1 else ""]


FLIGHTS_HEAD = ["target", "season", "trust", "eps", "Newton", "worst draw", "AC-SA", "no privacy", "goal"]
SIMULATED_HEAD = [
    "loss",
    "features",
    "n",
    "trust",
    "eps",
    "Newton's excess",
    "worst draw",
    "AC-SA's",
    "best constant's",
    "Newton / limit",
    "AC-SA / limit",
    "goal",
]


PARTS: dict[str, Callable[[], str]] = {
    "flights": lambda: table(FLIGHTS_HEAD, flights_rows(DRAWS)),
    "simulated": lambda: table(SIMULATED_HEAD, simulated_rows(DRAWS)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
