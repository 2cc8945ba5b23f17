"""Windows in which some users are unlike the others. Run with `python -m benchmarks.outliers [--write]`.

A share of the users has other coefficients: the usual ones times a strength. Their average gradients lie apart from
those of the others, which Asi and Liu 2024 call outliers; Theorems 3.2 and 4.1 promise a small error if nearly all
users are near each other. The excess is that for the usual users, so that a part of it is not the method's fault: the
column "no privacy" has what all records together say. `--write` writes outliers.md beside this file. Noise comes from
seeded generators, which are for measuring only.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.shared.pages import mean_and_error, table
from benchmarks.windowed import problem
from streamdp.errors import TooFewUsersError
from streamdp.estimators.windowed.estimators import WindowedClassifier
from streamdp.learners.user_windows import WindowWarning

FILE = Path(__file__).with_suffix(".md")
USERS, ITEMS, D, DRAWS = 3_000, 8, 5, 3
SHARES, STRENGTHS = (0.01, 0.1), (0.0, -1.0, -10.0)
METHODS = ("newton", "private-range", "outlier-removal", "smoothed")


def draw(share: float, strength: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The records of all users, user after user; the first users are unlike the others."""
    simulated, rng = problem("logistic", D), np.random.default_rng(seed)
    X, y = simulated.draw(USERS * ITEMS, seed)
    unlike = round(share * USERS) * ITEMS
    scores = strength * (np.hstack([X[:unlike], np.ones((unlike, 1))]) @ simulated.truth)
    y[:unlike] = rng.random(unlike) < 1 / (1 + np.exp(-scores))
    return X, y


def excess(share: float, strength: float, method: str, seed: int) -> float:
    """The excess loss for the usual users after one window."""
    X, y = draw(share, strength, 1000 + seed)
    budget, window = "eps=1,delta=1e-6", USERS * ITEMS
    features = [f"x{j}" for j in range(D)]
    model = WindowedClassifier(
        features=features, budget=budget, method=method, items_per_user=ITEMS, window=window, seed=seed
    )
    with warnings.catch_warnings(action="error", category=WindowWarning):
        model.learn_arrays(X, y, subjects=[b"%d" % (i // ITEMS) for i in range(len(X))])
    return problem("logistic", D).excess(model.theta)


def without_privacy(share: float, strength: float, seed: int) -> float:
    """The same for the estimate without privacy from all records."""
    simulated = problem("logistic", D)
    return simulated.excess(simulated.public(*draw(share, strength, 1000 + seed)))


def rows() -> list[list[str]]:
    """A row for each share and strength."""
    found = []
    for share, strength in [(0.0, 1.0), *((share, strength) for share in SHARES for strength in STRENGTHS)]:
        cells = []
        for method in METHODS:
            try:
                runs = np.array([excess(share, strength, method, seed) for seed in range(DRAWS)])
                cells.append("{:.2g} ± {:.1g}".format(*mean_and_error(runs)))
            except (TooFewUsersError, WindowWarning):
                cells.append("too few users")
        least = np.mean([without_privacy(share, strength, seed) for seed in range(DRAWS)])
        found.append([f"{share:.0%}", f"{strength:g}" if share else "", *cells, f"{least:.2g}"])
        print(" | ".join(found[-1]), flush=True)
    return found


TEXT = """# Windows with users who are unlike the others

Written by `python -m benchmarks.outliers --write`; do not edit. Logistic regression, {d} features, {users:,} users with
{items} records each, eps = 1, delta = 1e-6 for all records of a user, {draws} draws. A share of the users has the usual
coefficients times a strength (-1: the opposite). Excess loss for the usual users; the best constant's is
{constant:.2g}.

{table}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    parser = argparse.ArgumentParser(description="Measure windows with users who are unlike the others.")
    parser.add_argument("--write", action="store_true", help="write outliers.md")
    write = parser.parse_args(arguments).write
    shown = table(["unlike users", "strength", *METHODS, "no privacy"], rows())
    if write:
        constant = problem("logistic", D).constant
        page = TEXT.format(d=D, users=USERS, items=ITEMS, draws=DRAWS, constant=constant, table=shown)
        FILE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
