"""Tables as people have them, at the defaults. Run with `python -m benchmarks.ordinary [--write] [--quick]`.

Amounts with a long tail, rare flags, columns that are almost always 0, rare classes, counts, many columns. Each table
is learned by every trust in batches and by one window, beside peers in the same run: gradient descent with noise over
all records, its rounds accounted for by mu-GDP; the same without noise; and the best constant. Cells are the median of
the draws and the worst one. delta = 1e-6. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.shared.pages import command, table
from streamdp import (
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.privacy.guarantees import ApproxDP, GaussianDP

DRAWS, EPSILONS, HELD = 4, (1.0, 4.0), 20_000
ROUNDS, UNIT_SHARE = 50, 0.1
"""Of the peer: its rounds, and the share of mu^2 for the centres and the spreads of the columns."""


@dataclass(frozen=True)
class Data:
    """Raw columns (n, p) with their bounds, and a target: numbers with bounds, or indices of classes."""

    X: np.ndarray
    y: np.ndarray
    bounds: Sequence[tuple[float, float]]
    target: tuple[float, float] | None = None

    @property
    def declared(self) -> np.ndarray:
        """Columns (n, p) between -1 and 1."""
        low, high = np.array(self.bounds).T
        return np.asarray(np.clip((self.X - low) / (high - low), 0, 1) * 2 - 1)


Draw = Callable[[np.random.Generator, int], Data]


# --- tables ---------------------------------------------------------------------------------------------------------


def _amounts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, list[tuple[float, float]]]:
    """Four log-normal columns in (0, 60) and four flags of 3 %; and what the target depends on."""
    logs = rng.standard_normal((n, 4))
    flags = (rng.random((n, 4)) < 0.03).astype(float)
    return np.hstack([np.exp(logs), flags]), np.hstack([logs, flags]), [(0.0, 60.0)] * 4 + [(0.0, 1.0)] * 4


def amounts(rng: np.random.Generator, n: int) -> Data:
    """A number that depends on the logarithms."""
    X, Z, bounds = _amounts(rng, n)
    y = Z @ np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 2.0]) + rng.standard_normal(n)
    return Data(X, y, bounds, (-15.0, 15.0))


def classes(share: float) -> Draw:
    """Two classes, of which the second has about this share."""

    def draw(rng: np.random.Generator, n: int) -> Data:
        X, Z, bounds = _amounts(rng, n)
        u = Z @ np.array([0.5, 0.5, -0.5, 0.5, 1.0, 1.0, -1.0, 1.0])
        return Data(X, (rng.random(n) < expit(u + math.log(share / (1 - share)) - 0.3)).astype(float), bounds)

    return draw


def linear(rng: np.random.Generator, n: int) -> Data:
    """Three normal columns, one log-normal one and two flags of 3 %, and a linear truth."""
    normal, amount = rng.standard_normal((n, 3)), np.exp(rng.standard_normal((n, 1)))
    flags = (rng.random((n, 2)) < 0.03).astype(float)
    X = np.hstack([normal, amount, flags])
    y = X @ np.array([1.0, -0.5, 0.5, 0.3, 1.0, -1.0]) + rng.standard_normal(n)
    return Data(X, y, [(-5.0, 5.0)] * 3 + [(0.0, 60.0)] + [(0.0, 1.0)] * 2, (-30.0, 30.0))


def zeros(rng: np.random.Generator, n: int) -> Data:
    """Two columns that are 0 for 99 % of people, and three normal ones."""
    rare = np.where(rng.random((n, 2)) < 0.01, np.exp(rng.standard_normal((n, 2)) + 1), 0.0)
    X = np.hstack([rng.standard_normal((n, 3)), rare])
    y = X @ np.array([0.3, -0.2, 0.2, 0.3, 0.3]) + rng.standard_normal(n)
    return Data(X, y, [(-4.0, 4.0)] * 3 + [(0.0, 100.0)] * 2, (-10.0, 10.0))


def ten(rng: np.random.Generator, n: int) -> Data:
    """Ten classes by ten normal columns."""
    B, X = np.random.default_rng(7).standard_normal((10, 10)), rng.standard_normal((n, 10))
    y = np.argmax(X @ B + rng.gumbel(size=(n, 10)), axis=1)
    return Data(X, y.astype(float), [(-4.0, 4.0)] * 10)


def counts(rng: np.random.Generator, n: int) -> Data:
    """35 counts that are mostly 0."""
    rates = np.geomspace(0.02, 1.0, 35)
    X = rng.poisson(rates * rng.gamma(1.0, 1.0, size=(n, 35)))
    b = np.random.default_rng(8).normal(size=35) * 1.5 / np.sqrt(rates)
    return Data(np.minimum(X, 20.0), X @ b + 3.5 * rng.standard_normal(n), [(0.0, 20.0)] * 35, (-60.0, 60.0))


def many(rng: np.random.Generator, n: int) -> Data:
    """100 normal columns."""
    X, b = rng.standard_normal((n, 100)), np.random.default_rng(9).normal(size=100) / 7
    return Data(X, X @ b + rng.standard_normal(n), [(-4.0, 4.0)] * 100, (-10.0, 10.0))


def few_positive(rng: np.random.Generator, n: int) -> Data:
    """8 normal columns, and 5 % positive."""
    X = rng.standard_normal((n, 8))
    u = X @ np.array([0.5, -0.5, 0.3, 0.3, 0.0, 0.0, 0.2, 0.0]) - 3.3
    return Data(X, (rng.random(n) < expit(u)).astype(float), [(-4.0, 4.0)] * 8)


def fraud(rng: np.random.Generator, n: int) -> Data:
    """A class of .8 %, six amounts and two flags."""
    logs, flags = rng.standard_normal((n, 6)), (rng.random((n, 2)) < 0.05).astype(float)
    u = logs @ np.array([0.6, 0.4, 0.0, 0.3, -0.3, 0.0]) + flags @ np.array([1.0, 0.5]) - 5.4
    bounds = [(0.0, 100.0)] * 6 + [(0.0, 1.0)] * 2
    return Data(np.hstack([np.exp(logs), flags]), (rng.random(n) < expit(u)).astype(float), bounds)


def normal(rng: np.random.Generator, n: int) -> Data:
    """Eight normal columns and a number: a table without any trouble."""
    X = rng.standard_normal((n, 8))
    y = X @ np.array([0.5, -0.5, 0.3, 0.3, 0.0, 0.0, 0.2, 0.0]) + rng.standard_normal(n)
    return Data(X, y, [(-4.0, 4.0)] * 8, (-8.0, 8.0))


# --- scores: less is better -----------------------------------------------------------------------------------------


def _mae(data: Data, found: np.ndarray) -> float:
    return float(np.mean(np.abs(found - data.y)))


def _square(data: Data, found: np.ndarray) -> float:
    return float(np.mean((found - data.y) ** 2) / np.var(data.y))


def _auc(data: Data, found: np.ndarray) -> float:
    return float(1 - roc_auc_score(data.y, found[:, 1]))


def _loss(data: Data, found: np.ndarray) -> float:
    return float(log_loss(data.y, found, labels=range(found.shape[1])))


def _wrong(data: Data, found: np.ndarray) -> float:
    return float(np.mean(np.argmax(found, axis=1) != data.y))


@dataclass(frozen=True)
class Table:
    """One row: how it is drawn, how many records learn, its score, and how many classes there are."""

    draw: Draw
    records: int
    score: Callable[[Data, np.ndarray], float]
    classes: int = 0


TABLES = {
    "amounts and flags, MAE": Table(amounts, 50_000, _mae),
    "the same, 1.7 % positive, 1 - AUC": Table(classes(0.017), 100_000, _auc, 2),
    "the same, 15 % positive, 1 - AUC": Table(classes(0.15), 100_000, _auc, 2),
    "linear truth with flags, 1 - R²": Table(linear, 200_000, _square),
    "99 % zeros, 1 - R²": Table(zeros, 12_000, _square),
    "ten classes, errors": Table(ten, 40_000, _wrong, 10),
    "35 counts, MAE": Table(counts, 20_000, _mae),
    "100 columns, 1 - R²": Table(many, 20_000, _square),
    "5 % positive, log loss": Table(few_positive, 8_000, _loss, 2),
    "fraud-like, .8 %, log loss": Table(fraud, 100_000, _loss, 2),
    "normal columns, 1 - R²": Table(normal, 20_000, _square),
}


# --- learners -------------------------------------------------------------------------------------------------------

TRUSTS: dict[str, tuple[type[Any], type[Any]]] = {
    "process": (PanPrivateRegressor, PanPrivateClassifier),
    "shuffler": (ShuffleRegressor, ShuffleClassifier),
    "window": (WindowedRegressor, WindowedClassifier),
}


def ours(trust: str, case: Table, data: Data, held: Data, epsilon: float, seed: int) -> np.ndarray:
    """What a model predicts for the rows of `held`."""
    options: dict[str, Any] = {"window": len(data.y), "items_per_user": 1} if trust == "window" else {}
    if case.classes:
        options |= {"classes": list(range(case.classes)), "loss": "logistic" if case.classes == 2 else "softmax"}
    else:
        options |= {"target": data.target}
    names = {f"x{j}": bounds for j, bounds in enumerate(data.bounds)}
    model = TRUSTS[trust][bool(case.classes)](
        budget=f"eps={epsilon:g},delta=1e-6", features=names, seed=seed, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn_encoded(data.declared, data.y)
        model.close_batch()
        if case.classes:
            return np.asarray(model.predict_proba_encoded(held.declared))
        return np.asarray(model.predict_encoded(held.declared))


def descent(case: Table, data: Data, held: Data, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """The peer: gradients of all records in each of many rounds, mu-GDP altogether; an infinite epsilon: no noise."""
    mu = math.inf if math.isinf(epsilon) else GaussianDP.from_approx(ApproxDP(epsilon, 1e-6)).mu
    n, p = data.X.shape
    y, middle, half = data.y, 0.0, 1.0
    if data.target is not None:
        middle, half = sum(data.target) / 2, (data.target[1] - data.target[0]) / 2
        y = np.clip((data.y - middle) / half, -1, 1)
    wide = np.column_stack([data.declared, y])
    noise = math.sqrt(5 * (p + 1)) / (n * mu * math.sqrt(UNIT_SHARE))  # of the means of values and of squares
    centre = wide.mean(axis=0) + noise * rng.standard_normal(p + 1)
    square = (wide**2).mean(axis=0) + noise * rng.standard_normal(p + 1)
    spread = np.sqrt(np.maximum(square - centre**2, 0.0) + 3 * noise)
    X = np.column_stack([(data.declared - centre[:-1]) / spread[:-1], np.ones(n)])
    weight = np.minimum(1, math.sqrt(2) / np.linalg.norm(X, axis=1))[:, None]
    outputs = case.classes if case.classes > 2 else 1
    theta, wanted = np.zeros((p + 1, outputs)), np.eye(max(outputs, 2))[y.astype(int)] if case.classes else None
    z = 2 * math.sqrt(2) * (math.sqrt(2) if outputs > 1 else 1.0) * math.sqrt(ROUNDS / (1 - UNIT_SHARE)) / (n * mu)
    rate, velocity, kept = (2.0 if outputs > 1 else 3.0) if case.classes else 0.4, np.zeros_like(theta), []
    for _ in range(ROUNDS):
        if wanted is None:
            slope = np.clip(2 * (X @ theta - ((y - centre[-1]) / spread[-1])[:, None]), -1, 1)
        elif outputs == 1:
            slope = expit(X @ theta) - y[:, None]
        else:
            slope = softmax(X @ theta, axis=1) - wanted
        gradient = (X * weight).T @ slope / n + z * rng.standard_normal(theta.shape)
        velocity = 0.5 * velocity + gradient
        theta = theta - rate * velocity
        kept.append(theta)
    theta = np.mean(kept[ROUNDS // 2 :], axis=0)
    u = np.column_stack([(held.declared - centre[:-1]) / spread[:-1], np.ones(len(held.y))]) @ theta
    if wanted is None:
        assert data.target is not None
        return np.asarray(np.clip(middle + half * (centre[-1] + spread[-1] * u[:, 0]), *data.target))
    return np.column_stack([1 - expit(u), expit(u)]) if outputs == 1 else np.asarray(softmax(u, axis=1))


def constant(case: Table, data: Data, held: Data) -> np.ndarray:
    """The median, the mean or the shares of the classes, for each row of `held`."""
    if case.classes:
        return np.tile(np.bincount(data.y.astype(int), minlength=case.classes) / len(data.y), (len(held.y), 1))
    return np.full(len(held.y), np.median(data.y) if case.score is _mae else np.mean(data.y))


def _cell(scores: Sequence[float]) -> str:
    return f"{np.median(scores):.4g} ({max(scores):.4g})"


def rows(
    names: Sequence[str], epsilons: Sequence[float], draws: int, trusts: Sequence[str], part: float = 1.0
) -> Iterator[list[str]]:
    """One row for each table and epsilon. `part`: of the records."""
    for name in names:
        case = TABLES[name]
        for epsilon in epsilons:
            found: dict[str, list[float]] = {}
            for seed in range(draws):
                rng = np.random.default_rng([seed, 5])
                data, held = case.draw(rng, int(case.records * part)), case.draw(rng, HELD)
                for trust in trusts:
                    score = case.score(held, ours(trust, case, data, held, epsilon, seed))
                    found.setdefault(trust, []).append(score)
                for peer, budget in (("gradient descent", epsilon), ("no privacy", math.inf)):
                    score = case.score(held, descent(case, data, held, budget, rng))
                    found.setdefault(peer, []).append(score)
                found.setdefault("constant", []).append(case.score(held, constant(case, data, held)))
            yield [name, f"{int(case.records * part):,}", f"{epsilon:g}", *map(_cell, found.values())]


HEAD = ["table", "records", "eps", *TRUSTS, "gradient descent", "no privacy", "constant"]


def tables(quick: bool) -> str:
    """All tables; for a look, two draws at one epsilon."""
    return table(HEAD, rows([*TABLES], (1.0,) if quick else EPSILONS, 2 if quick else DRAWS, [*TRUSTS]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {"tables": tables}, arguments, quick=True)


if __name__ == "__main__":
    main()
