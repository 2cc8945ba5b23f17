"""What shuffled local reports gain. `python -m benchmarks.shuffled [--write]`; five minutes on one core.

The papers' linear model (independent standard normal features, coefficients and intercept 1, noise N(0, 1)), learned by
LDP-ASGD with the Huber loss from 100,000 reports. Each row has the same central promise, (1, 1e-6): without a shuffler
by reports of eps=1, and else by the reports that this promise allows among so many people. The measure is the mean
squared error of predictions of the mean, divided by that of least squares without privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.shared.pages import command, ratio, table
from streamdp import LDPASGDRegressor
from streamdp.shuffling import local_epsilon

FEATURES, RECORDS, REPEATS = 5, 100_000, 3
NAMES = [f"x{j}" for j in range(FEATURES)]
PEOPLE = (1, 100, 1_000, 10_000)


def error(epsilon: float, people: int, seed: int) -> tuple[float, float]:
    """The mean squared errors of a model and of least squares; reports of `people` at once answer one document."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(RECORDS, FEATURES))
    y = 1 + X.sum(axis=1) + rng.normal(size=RECORDS)
    model = LDPASGDRegressor(features=NAMES, budget=f"eps={epsilon}", seed=seed)
    if people == 1:
        model.learn_encoded(X, y)
    else:
        for first in range(0, RECORDS, people):
            randomizer = model.randomizer
            records = range(first, first + people)
            reports = [randomizer(dict(zip(NAMES, X[i], strict=True)), y[i]) for i in records]
            for i in rng.permutation(people):
                model.absorb(reports[i])
    least, *_ = np.linalg.lstsq(np.column_stack((X, np.ones(RECORDS))), y, rcond=None)
    found = np.array([model.weights[name] for name in [*NAMES, "(intercept)"]])
    return float(np.sum((found - 1) ** 2)), float(np.sum((least - 1) ** 2))


def measure() -> str:
    """A row for each number of people."""
    rows = []
    for people in PEOPLE:
        epsilon = math.floor(100 * local_epsilon(1.0, people, 1e-6)) / 100
        cells = []
        for together in (1, people):
            pairs = np.array([error(epsilon, together, seed) for seed in range(REPEATS)])
            cells.append("{:.0f} ± {:.0f}".format(*ratio(pairs[:, 0], pairs[:, 1])))
        rows.append([f"{people:,}", f"{epsilon:g}", *cells])
    return table(["people", "eps of a report", "each at the newest point", "all of a batch at one point"], rows)


PARTS: dict[str, Callable[[], str]] = {"shuffled": measure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
