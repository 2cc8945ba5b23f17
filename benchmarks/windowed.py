"""Excess loss of every method of the windowed learners. Run with `python -m benchmarks.windowed [--write]`.

Simulations of Shi et al. 2025 as in `batches`; each user has m independent records, and all users are in one window.
The excess of the expected loss over its least value is measured against n, m and d. Noise comes from seeded generators,
which are for measuring only.
"""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.pages import mean_and_error, table, write
from benchmarks.shared.simulation import Simulation
from streamdp.errors import TooFewUsersError
from streamdp.estimators.windowed.estimators import WindowedClassifier, WindowedRegressor
from streamdp.learners.user_windows import WindowWarning
from streamdp.windows.methods import METHODS

DRAWS, FEW = 12, 3
"""Draws of the default method, and of the others, which are slow."""
FILE = Path(__file__).with_suffix(".md")
USERS, ITEMS, FEATURES = (300, 1_000, 3_162, 10_000, 31_623), (1, 4, 16, 64), (2, 5, 10, 20, 40)
LOSSES = ("huber", "logistic")


@cache
def problem(loss: str, d: int) -> Simulation:
    """The distribution."""
    return Simulation(loss, d)


def excess(loss: str, d: int, n: int, m: int, epsilon: float, method: str, seed: int) -> float:
    """The excess loss after one window."""
    simulated = problem(loss, d)
    X, y = simulated.draw(n * m, 1000 + seed)
    kind: Any = WindowedClassifier if loss == "logistic" else WindowedRegressor
    model = kind(
        features=[f"x{j}" for j in range(d)],
        budget=f"eps={epsilon:g},delta=1e-6",
        method=method,
        items_per_user=m,
        window=n * m,
        seed=seed,
    )
    with warnings.catch_warnings(action="error", category=WindowWarning):
        model.learn_arrays(X, y, subjects=[b"%d" % (i // m) for i in range(n * m)])
    return simulated.excess(model.theta)


@cache
def limit(loss: str, d: int, n: int, m: int) -> float:
    """The mean excess of the estimate without privacy."""
    simulated = problem(loss, d)
    return float(np.mean([simulated.excess(simulated.public(*simulated.draw(n * m, 1000 + s))) for s in range(FEW)]))


def cell(loss: str, d: int, n: int, m: int, epsilon: float, method: str) -> tuple[str, float]:
    """Mean and error in words, and the mean; "too few users" and nan."""
    try:
        draws = DRAWS if method == "newton" else FEW
        found = np.array([excess(loss, d, n, m, epsilon, method, s) for s in range(draws)])
    except (TooFewUsersError, WindowWarning):
        return "too few users", float("nan")
    mean, error = mean_and_error(found)
    return f"{mean:.2g} ± {error:.1g}", mean


def rows_of(varied: str, epsilon: float) -> list[list[str]]:
    """One row for each loss and size, and the slopes against what is varied."""
    rows = []
    for loss in LOSSES:
        means: dict[str, list[float]] = {method: [] for method in METHODS}
        sizes = {"n": USERS, "m": ITEMS, "d": FEATURES}[varied]
        for size in sizes:
            n, m, d = (size if varied == name else usual for name, usual in (("n", 10_000), ("m", 4), ("d", 5)))
            row = [loss, f"{n:,}", str(m), str(d)]
            for method in METHODS:
                text, mean = cell(loss, d, n, m, epsilon, method)
                means[method].append(mean)
                row.append(text)
            least = limit(loss, d, n, m)
            rows.append([*row, f"{problem(loss, d).constant:.2g}", f"{means['newton'][-1] / least:.1f}"])
            print(" | ".join(rows[-1]), flush=True)
        slopes = [slope(np.array(sizes, dtype=float), np.array(found)) for found in means.values()]
        rows.append([loss, *(f"slope in {varied}" if name == varied else "" for name in "nmd"), *slopes, "", ""])
        print(" | ".join(rows[-1]), flush=True)
    return rows


def slope(sizes: np.ndarray, means: np.ndarray) -> str:
    """The least-squares slope of log excess on log size."""
    known = np.isfinite(means)
    if np.count_nonzero(known) < 2:
        return ""
    return f"{np.polyfit(np.log(sizes[known]), np.log(means[known]), 1)[0]:.2f}"


HEAD = """# Windowed learners: excess loss of every method

Written by `python -m benchmarks.windowed --write`; do not edit. One window of n users with m records each, d features,
eps = {epsilon:g}, delta = 1e-6 for all records of a user. Simulations as in batches.md. {draws} draws of noise and
records for `newton`, which is the default, {few} for the others; ± is one Monte Carlo standard error. "Limit" is the
mean excess of the estimate without privacy from the same records. The other methods keep theta in their default ball of
radius 5.
"""
TITLES = {"n": "1: more users", "m": "2: more records of each user", "d": "3: more features"}
COLUMNS = ["loss", "n", "m", "d", *METHODS, "best constant's", "newton / limit"]


def main() -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windowed", description="Measure windowed learners.")
    parser.add_argument("--write", action="store_true", help="write sections of windowed.md")
    parser.add_argument("--only", choices=TITLES, nargs="+", default=[*TITLES], help="what is varied")
    given, epsilon = parser.parse_args(), 1.0
    for varied in given.only:
        shown = table(COLUMNS, rows_of(varied, epsilon))
        if given.write:
            section = f"## {TITLES[varied]}\n\n{shown}"
            write(section, HEAD.format(epsilon=epsilon, draws=DRAWS, few=FEW), FILE)


if __name__ == "__main__":
    main()
