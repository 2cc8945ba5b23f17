"""Excess loss of the learners of users, on the simulations of Shi et al. 2025. `python -m benchmarks.users [--write]`.

Windowed learners, by method, also with users who are unlike the others, whom Asi and Liu 2024 call outliers: Theorems
3.2 and 4.1 promise a small error if nearly all users are near each other. The excess is that for the usual users. Local
learners beside the planned steps of Bassily, Sun 2023, in at most 500 steps, because they take a millisecond each.
Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.shared.pages import command, mean_and_error, rough, table
from benchmarks.shared.simulation import Simulation
from streamdp.errors import TooFewUsersError
from streamdp.estimators.user.estimators import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.estimators.windowed import WindowedClassifier, WindowedRegressor
from streamdp.learners.user_windows import WindowWarning
from streamdp.windows.methods import METHODS

DRAWS, FEW = 12, 10
"""Draws of the default method, and of the others, which are slow."""
USERS, ITEMS, FEATURES = (300, 1_000, 3_162, 10_000, 31_623), (1, 4, 16, 64), (2, 5, 10, 20, 40)
LOSSES = ("huber", "logistic")
EPSILON = 1.0
problem = cache(Simulation)


def learned(
    kinds: tuple[Any, Any], loss: str, X: np.ndarray, y: np.ndarray, m: int, epsilon: float, **options: Any
) -> Any:
    """A regressor or a classifier that has learned users with m records each."""
    features = [f"x{j}" for j in range(X.shape[1])]
    budget = f"eps={epsilon:g},delta=1e-6"
    model = kinds[loss == "logistic"](features=features, budget=budget, items_per_user=m, **options)
    with warnings.catch_warnings(action="error", category=WindowWarning):
        model.learn_encoded(X, y, subjects=[b"%d" % (i // m) for i in range(len(X))])
    return model


# --- windows ------------------------------------------------------------------------------------------------

WINDOWED = (WindowedRegressor, WindowedClassifier)


def excess(loss: str, d: int, n: int, m: int, epsilon: float, method: str, seed: int) -> float:
    """The excess loss after one window."""
    X, y = problem(loss, d).draw(n * m, 1000 + seed)
    model = learned(WINDOWED, loss, X, y, m, epsilon, method=method, window=n * m, seed=seed)
    return problem(loss, d).excess(model.theta)


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


COLUMNS = ["loss", "n", "m", "d", *METHODS, "best constant's", "newton / limit"]


def against(varied: str) -> str:
    """One row for each loss and size, and the slopes against what is varied."""
    rows = []
    for loss in LOSSES:
        means: dict[str, list[float]] = {method: [] for method in METHODS}
        sizes = {"n": USERS, "m": ITEMS, "d": FEATURES}[varied]
        for size in sizes:
            n, m, d = (size if varied == name else usual for name, usual in (("n", 10_000), ("m", 4), ("d", 5)))
            row = [loss, f"{n:,}", str(m), str(d)]
            for method in METHODS:
                text, mean = cell(loss, d, n, m, EPSILON, method)
                means[method].append(mean)
                row.append(text)
            least = limit(loss, d, n, m)
            rows.append([*row, f"{problem(loss, d).constant:.2g}", f"{means['newton'][-1] / least:.1f}"])
        slopes = [slope(np.array(sizes, dtype=float), np.array(found)) for found in means.values()]
        rows.append([loss, *(f"slope in {varied}" if name == varied else "" for name in "nmd"), *slopes, "", ""])
    return table(COLUMNS, rows)


def slope(sizes: np.ndarray, means: np.ndarray) -> str:
    """The least-squares slope of log excess on log size."""
    known = np.isfinite(means)
    if np.count_nonzero(known) < 2:
        return ""
    return f"{np.polyfit(np.log(sizes[known]), np.log(means[known]), 1)[0]:.2f}"


# --- users who are unlike the others ------------------------------------------------------------------------

MANY, EACH, D = 3_000, 8, 5
SHARES, STRENGTHS = (0.01, 0.1), (0.0, -1.0, -10.0)
ROBUST = ("newton", "private-range", "outlier-removal", "smoothed")


def draw(share: float, strength: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The records of all users, user after user; the first users are unlike the others."""
    simulated, rng = problem("logistic", D), np.random.default_rng(seed)
    X, y = simulated.draw(MANY * EACH, seed)
    unlike = round(share * MANY) * EACH
    scores = strength * (np.hstack([X[:unlike], np.ones((unlike, 1))]) @ simulated.truth)
    y[:unlike] = rng.random(unlike) < 1 / (1 + np.exp(-scores))
    return X, y


def for_the_usual(share: float, strength: float, method: str, seed: int) -> float:
    """The excess loss for the usual users after one window."""
    X, y = draw(share, strength, 1000 + seed)
    model = learned(WINDOWED, "logistic", X, y, EACH, EPSILON, method=method, window=MANY * EACH, seed=seed)
    return problem("logistic", D).excess(model.theta)


def without_privacy(share: float, strength: float, seed: int) -> float:
    """The same for the estimate without privacy from all records."""
    simulated = problem("logistic", D)
    return simulated.excess(simulated.public(*draw(share, strength, 1000 + seed)))


def unlike() -> str:
    """A row for each share and strength."""
    found = []
    for share, strength in [(0.0, 1.0), *((share, strength) for share in SHARES for strength in STRENGTHS)]:
        cells = []
        for method in ROBUST:
            try:
                runs = np.array([for_the_usual(share, strength, method, seed) for seed in range(FEW)])
                cells.append(rough(runs))
            except (TooFewUsersError, WindowWarning):
                cells.append("too few users")
        least = np.mean([without_privacy(share, strength, seed) for seed in range(FEW)])
        found.append([f"{share:.0%}", f"{strength:g}" if share else "", *cells, f"{least:.2g}"])
    constant = f"The best constant's excess is {problem('logistic', D).constant:.2g}."
    return table(["unlike users", "strength", *ROBUST, "no privacy"], found) + "\n\n" + constant


# --- local reports ------------------------------------------------------------------------------------------

LOCAL, LOCAL_DRAWS, STEPS = (UserLevelLDPRegressor, UserLevelLDPClassifier), 10, 500
CASES = [
    case
    for case in product((1_000, 10_000, 100_000), (5, 20), ("huber", "logistic"), (1, 4, 16), (1, 4))
    if case[0] * case[3] <= 400_000  # the records of a draw
]
"""(n, d, loss, m, eps)."""


def local_excess(loss: str, d: int, n: int, m: int, epsilon: float, seed: int, **options: Any) -> float:
    """The excess loss after all users."""
    X, y = problem(loss, d).draw(n * m, 1000 + seed)
    model = learned(LOCAL, loss, X, y, m, epsilon, window=2**31 - 1, seed=seed, **options)
    return problem(loss, d).excess(model.theta)


def local() -> str:
    """One row for each case."""
    found = []
    for n, d, loss, m, epsilon in CASES:
        planned = {"method": "ac-sa", "batch_size": max(1, n // STEPS)}
        cells = []
        for options in ({}, planned, planned | {"horizon": n}):
            runs = [local_excess(loss, d, n, m, epsilon, seed, **options) for seed in range(LOCAL_DRAWS)]
            cells.append(rough(np.array(runs)))
        constant = f"{problem(loss, d).constant:.2g}"
        found.append([loss, str(d), f"{n:,}", str(m), f"{epsilon:g}", *cells, constant])
    return table(["loss", "d", "n", "m", "eps", "asgd", "ac-sa", "ac-sa, n declared", "best constant's"], found)


PARTS: dict[str, Callable[[], str]] = {
    **{varied: partial(against, varied) for varied in "nmd"},
    "unlike": unlike,
    "local": local,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
