"""What private scaling gives user-level learners. Run with `python -m benchmarks.user_scaling [--write]`.

12 draws, the same seeds for each contender; delta = 1e-6. Noise comes from seeded generators, which are for measuring
only. Ten minutes on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.special import expit

from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import command, mean_and_error, pm, table
from benchmarks.shared.simulation import Simulation
from streamdp import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.estimators.features import features_of
from streamdp.learners import user_reports
from streamdp.optim import steps
from streamdp.scaling.search import UnitSearch

DRAWS, WIDE, FRESH = 12, 100, 20_000


def t_0(d: int, number: float) -> AbstractContextManager[Any]:
    """Learn with this I_0, for gradients that are not cut."""
    return patch.object(steps, "EACH", number / d)


def unscaled(_: Any) -> Any:
    """Learn columns as they are declared."""

    def search(scaled: np.ndarray, typical: Any, *others: Any) -> UnitSearch:
        return UnitSearch(np.zeros_like(scaled), {}, *others)

    return patch.object(user_reports, "UnitSearch", search)


def learned(make: Any, X: np.ndarray, y: np.ndarray, items: int, seed: int, **options: Any) -> Any:
    """A model of users with so many records each."""
    model = make(seed=seed, items_per_user=items, **options)
    model.learn_encoded(X, y, subjects=None if items == 1 else [i // items for i in range(len(X))])
    model.close_batch()
    return model


# --- flights ------------------------------------------------------------------------------------------------


def widened(data: Flights, wide: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Features, stream and holdout of numeric columns in bounds so many times too wide."""
    numeric = features_of(data.features, "flights").numeric
    shown = np.where(numeric, 1 / wide, 1.0)
    features = {
        name: [(a + b) / 2 + side * wide * (b - a) / 2 for side in (-1, 1)] if isinstance(bounds, tuple) else bounds
        for name, bounds in data.features.items()
        for a, b in [bounds if isinstance(bounds, tuple) else (0, 0)]
    }
    features = {name: tuple(v) if isinstance(v[0], float) else v for name, v in features.items()}
    return features, data.X * shown, data.holdout * shown


def flights() -> Iterator[list[str]]:
    """Rows of the delay, in minutes of mean absolute error."""
    for (job, wide), (items, records) in product(
        (("delay", 1), ("delay, raw bounds", 1), ("delay", WIDE)), ((1, 30_000), (16, 100_000))
    ):
        data = Flights(job)
        features, X, holdout = widened(data, wide)
        X, y = X[:records], data.y[:records]
        for epsilon in (1, 4):
            options = {"features": features, "target": data.target, "budget": f"eps={epsilon},delta=1e-6"}
            found: dict[str, list[float]] = {"columns as declared": [], "default": []}
            for seed, (name, errors) in product(range(DRAWS), found.items()):
                with (
                    unscaled(None) if name == "columns as declared" else nullcontext(),
                    t_0(X.shape[1] + 2, 10 / max(1 / items, 0.5 / math.sqrt(items)))
                    if name == "columns as declared"
                    else nullcontext(),
                ):
                    model = learned(UserLevelLDPRegressor, X, y, items, seed, **options)
                errors.append(data.score(model.predict_encoded(holdout)))
            shown = [f"{np.mean(errors):.2f} ({max(errors):.2f})" for errors in found.values()]
            bounds = f"{job}, columns {wide} times too wide" if wide > 1 else job
            row = [bounds, f"{len(X) // items:,}", str(items), str(epsilon), *shown, f"{model.n_asked:,}"]
            row += [f"{data.without_privacy():.2f}", f"{data.constant():.2f}"]
            yield row


# --- the price ----------------------------------------------------------------------------------------------


def uniform(loss: str, d: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns evenly spread with variance 1, targets, and the coefficients, which explain half of a target."""
    rng = np.random.default_rng(seed)
    X, theta = rng.uniform(-math.sqrt(3), math.sqrt(3), (n, d)), np.random.default_rng(1).choice([-1.0, 1.0], d)
    theta /= math.sqrt(d) / (1 if loss == "huber" else 2)
    if loss == "huber":
        return X, X @ theta + rng.normal(size=n), theta
    return X, (rng.random(n) < expit(X @ theta)).astype(float), theta


def missed(loss: str, theta: np.ndarray, truth: np.ndarray) -> float:
    """The share of the explained loss that a model misses: 1 for a constant."""
    X, y, _ = uniform(loss, len(truth), FRESH, 999)
    scores, best = X @ theta[: len(truth)] + theta[len(truth)], X @ truth
    if loss == "huber":
        return float(np.mean((scores - best) ** 2) / np.var(best))
    none, mine, ideal = (np.mean(np.logaddexp(0, s) - y * s) for s in (np.zeros(FRESH), scores, best))
    return float((mine - ideal) / (none - ideal))


def price() -> Iterator[list[str]]:
    """Rows of columns that are well scaled already."""
    half = math.sqrt(3)
    for loss, d, users, epsilon in product(("huber", "logistic"), (5, 20), (3_000, 30_000), (1, 4)):
        names = [f"x{j}" for j in range(d)]
        make = UserLevelLDPRegressor if loss == "huber" else UserLevelLDPClassifier
        options: dict[str, Any] = {"budget": f"eps={epsilon},delta=1e-6"}
        if loss == "huber":
            options["target"] = (-6.0, 6.0)
        found = []
        for seed in range(DRAWS):
            X, y, truth = uniform(loss, d, users, seed)
            plain = learned(make, X, y, 1, seed, features=names, **options)
            asked = learned(make, X / half, y, 1, seed, features=dict.fromkeys(names, (-half, half)), **options)
            found.append([missed(loss, model.theta, truth) for model in (plain, asked)])
        both = np.array(found)
        more, error = mean_and_error((both[:, 1] - both[:, 0]) / both[:, 0].mean())
        cells = [pm(mean_and_error(column), 3) for column in both.T]
        yield [loss, str(d), f"{users:,}", str(epsilon), *cells, f"{100 * more:+.0f} ± {100 * error:.0f} %"]


# --- the steps ----------------------------------------------------------------------------------------------


def first_steps() -> Iterator[list[str]]:
    """Rows of excess losses by I_0."""
    for loss, d, (items, users) in product(("huber", "logistic"), (5, 20, 50), ((1, 3_000), (16, 3_000))):
        simulation = Simulation(loss, d)
        make = UserLevelLDPRegressor if loss == "huber" else UserLevelLDPClassifier
        half = 4 * math.hypot(math.sqrt(d), 1.0)
        options: dict[str, Any] = {"features": [f"x{j}" for j in range(d)], "budget": "eps=1,delta=1e-6"}
        options |= {"target": (1 - half, 1 + half)} if loss == "huber" else {}
        share = max(1 / items, 0.5 / math.sqrt(items))  # C/C0
        each = [10.0 / share, 4.0 * d, 4.0 * d / share]
        found: dict[float, list[float]] = {number: [] for number in each}  # some are equal
        for seed in range(DRAWS):
            X, y = simulation.draw(users * items, 100 + seed)
            for number, excess in found.items():
                with t_0(d, number):
                    excess.append(simulation.excess(learned(make, X, y, items, seed, **options).theta))
        cells = [pm(mean_and_error(np.array(found[number])), 3) for number in each]
        yield [loss, str(d), str(items), f"{users:,}", *cells, f"{simulation.constant:.3f}"]


HEADS = {
    "flights": "bounds, users, records each, eps, columns as declared, default, bits of the last draw, no privacy,"
    " constant",
    "price": "loss, columns, users, eps, without questions, private scaling, difference",
    "steps": "loss, columns, records each, users, I_0 = 10, I_0 = 4 d C/C0, I_0 = 4 d, constant",
}
PARTS: dict[str, Callable[[], str]] = {
    name: (lambda head=HEADS[name], rows=rows: table(head.split(", "), rows()))
    for name, rows in (("flights", flights), ("price", price), ("steps", first_steps))
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments)


if __name__ == "__main__":
    main()
