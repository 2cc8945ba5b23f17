"""Tables as people have them, at the defaults. Run with `python -m benchmarks.ordinary [--write] [--quick]`.

Amounts with a long tail, rare flags, columns that are almost always 0, rare classes, categories, counts, many columns,
bounds that are far too wide, sorted files; and the real tables of `shared.real_data`. Each table is learned by every
trust, beside peers in the same run and at the same budget by mu-GDP: gradient descent with noise over all records,
steps by noisy Hessians, and AdaSSP; the linear models of diffprivlib at the same epsilon; gradient descent without
noise; and the best constant. Cells are the median of the draws and the worst one. delta = 1e-6, and none for local
reports and diffprivlib. Noise comes from seeded generators, which are for measuring only.

diffprivlib has an environment of its own, which `make ordinary` installs. The scores of peers are kept beside it, in
`.venv/.peers`, until this file or one of `shared` changes.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from joblib import Memory
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, roc_auc_score
from threadpoolctl import threadpool_limits

from benchmarks.shared.pages import command, table
from benchmarks.shared.real_data import JOBS, RealData
from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.privacy.guarantees import ApproxDP, GaussianDP

DRAWS, EPSILONS, HELD, PROCESSES = 8, (0.5, 1.0, 4.0), 20_000, 2
ROUNDS, STEPS, UNIT_SHARE, NORMAL, WIDEST = 50, 5, 0.1, 3.0, 4.0
"""Of the peers: rounds of gradients and of Hessians, the share of mu^2 for the units of the columns, and where
residuals and outcomes are cut, in spreads."""


@dataclass(frozen=True)
class Data:
    """Raw columns (n, p) with their bounds, and a target: numbers with bounds, or indices of classes."""

    X: np.ndarray
    y: np.ndarray
    bounds: Sequence[tuple[float, float]]
    target: tuple[float, float] | None = None
    levels: int = 0  # so many of the last columns are flags of the levels of a category

    @property
    def declared(self) -> np.ndarray:
        """Columns (n, p) between -1 and 1."""
        low, high = np.array(self.bounds).T
        return np.asarray(np.clip((self.X - low) / (high - low), 0, 1) * 2 - 1)

    @property
    def features(self) -> dict[str, Any]:
        """What a schema declares: numbers with bounds, and a category."""
        numbers = {f"x{j}": bounds for j, bounds in enumerate(self.bounds[: len(self.bounds) - self.levels])}
        return numbers | ({"level": {"categories": [f"{k}" for k in range(self.levels)]}} if self.levels else {})

    @property
    def encoded(self) -> np.ndarray:
        """The rows as a model with these features encodes them: no column for the first level, the others 0 or 1."""
        numbers = self.X.shape[1] - self.levels
        return np.hstack([self.declared[:, :numbers], self.X[:, numbers + 1 :]]) if self.levels else self.declared


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


def many(columns: int) -> Draw:
    """So many normal columns."""
    b = np.random.default_rng(9).normal(size=columns) * 10 / 7 / math.sqrt(columns)

    def draw(rng: np.random.Generator, n: int) -> Data:
        X = rng.standard_normal((n, columns))
        return Data(X, X @ b + rng.standard_normal(n), [(-4.0, 4.0)] * columns, (-10.0, 10.0))

    return draw


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


def several(rng: np.random.Generator, n: int) -> Data:
    """Four classes by amounts and flags, of which the rarest has 3 %."""
    X, Z, bounds = _amounts(rng, n)
    u = 0.7 * Z @ np.random.default_rng(8).standard_normal((8, 4)) + np.array([0.0, 0.0, -1.5, -3.0])
    return Data(X, np.argmax(u + rng.gumbel(size=(n, 4)), axis=1).astype(float), bounds)


def many_classes(count: int) -> Draw:
    """So many classes by ten normal columns."""
    B = np.random.default_rng(7).standard_normal((10, count))

    def draw(rng: np.random.Generator, n: int) -> Data:
        X = rng.standard_normal((n, 10))
        y = np.argmax(1.5 * X @ B + rng.gumbel(size=(n, count)), axis=1)
        return Data(X, y.astype(float), [(-4.0, 4.0)] * 10)

    return draw


def _category(
    rng: np.random.Generator, n: int, levels: int
) -> tuple[np.ndarray, np.ndarray, list[tuple[float, float]]]:
    """Three normal columns and one of so many levels as flags; and the level."""
    level, normal = np.minimum(rng.geometric(2.1 / levels, n) - 1, levels - 1), rng.standard_normal((n, 3))
    return np.hstack([normal, level[:, None] == np.arange(levels)]), level, [(-4.0, 4.0)] * 3 + [(0.0, 1.0)] * levels


def categories(levels: int) -> Draw:
    """A number by so many levels, of which some are rare."""

    def draw(rng: np.random.Generator, n: int) -> Data:
        X, level, bounds = _category(rng, n, levels)
        y = X[:, 0] + np.random.default_rng(8).standard_normal(levels)[level] + rng.standard_normal(n)
        return Data(X, y, bounds, (-10.0, 10.0), levels)

    return draw


def classes_by_category(rng: np.random.Generator, n: int) -> Data:
    """Three classes by 30 levels."""
    X, level, bounds = _category(rng, n, 30)
    B = 1.5 * np.random.default_rng(8).standard_normal((33, 3))
    y = np.argmax(X[:, :3] @ B[:3] / 1.5 + B[3 + level] + rng.gumbel(size=(n, 3)), axis=1)
    return Data(X, y.astype(float), bounds, levels=30)


def tails(rng: np.random.Generator, n: int) -> Data:
    """Eight normal columns, and noise of two degrees of freedom."""
    data = normal(rng, n)
    return Data(data.X, data.y + rng.standard_t(2, n), data.bounds, (-100.0, 100.0))


def wide(times: float) -> Draw:
    """Eight normal columns, all bounds so many times too wide."""

    def draw(rng: np.random.Generator, n: int) -> Data:
        data = normal(rng, n)
        return Data(data.X, data.y, [(-4.0 * times, 4.0 * times)] * 8, (-8.0 * times, 8.0 * times))

    return draw


def alike(rng: np.random.Generator, n: int) -> Data:
    """Ten columns that are nearly the same two."""
    X = np.repeat(rng.standard_normal((n, 2)), 5, axis=1) + 0.1 * rng.standard_normal((n, 10))
    y = X @ np.array([0.2, 0.2, 0.2, 0.2, 0.2, -0.1, -0.1, -0.1, -0.1, -0.1]) + rng.standard_normal(n)
    return Data(X, y, [(-4.0, 4.0)] * 10, (-8.0, 8.0))


def claims(rng: np.random.Generator, n: int) -> Data:
    """Amounts of which about two thirds are 0."""
    X = rng.standard_normal((n, 3))
    some = rng.random(n) < expit(X @ np.array([0.5, -0.3, 0.2]) - 1)
    return Data(X, np.where(some, np.minimum(rng.lognormal(5, 1, n), 3000), 0.0), [(-4.0, 4.0)] * 3, (0.0, 3000.0))


def events(rng: np.random.Generator, n: int) -> Data:
    """Counts that vary more than a Poisson law."""
    X = rng.standard_normal((n, 6))
    rates = np.exp(X @ np.array([0.4, -0.3, 0.2, 0.2, 0.0, 0.0]) - 0.5) * rng.gamma(1.5, 1 / 1.5, n)
    return Data(X, np.minimum(rng.poisson(rates), 40.0), [(-4.0, 4.0)] * 6, (0.0, 40.0))


def in_order(rng: np.random.Generator, n: int) -> Data:
    """Eight normal columns, the rows in the order of one of them."""
    data = normal(rng, n)
    order = np.argsort(data.X[:, 0])
    return Data(data.X[order], data.y[order], data.bounds, data.target)


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

    draw: Draw | str
    records: int
    score: Callable[[Data, np.ndarray], float]
    classes: int = 0
    loss: str = "huber"  # of numbers

    def drawn(self, rng: np.random.Generator, part: float) -> tuple[Data, Data]:
        """This part of the records that learn, and those that score; a text is a job of `RealData`."""
        if not isinstance(self.draw, str):
            return self.draw(rng, int(self.records * part)), self.draw(rng, HELD)
        job = RealData(self.draw)
        X, y = np.concatenate([job.X, job.holdout]), np.concatenate([job.y, job.truth])
        order, numeric = rng.permutation(len(y)), (X < 0).any(axis=0)
        bounds = [(-1.0, 1.0) if each else (0.0, 1.0) for each in numeric.tolist()]
        parts = order[: int(len(job.y) * part)], order[len(job.y) :]
        data, held = (Data(X[rows], y[rows], bounds, job.bounds) for rows in parts)
        return data, held


def _scored(target: tuple[float, float] | list[str]) -> tuple[Callable[[Data, np.ndarray], float], int]:
    """The score of a real table, and how many classes it has."""
    return (_mae, 0) if isinstance(target, tuple) else (_loss if len(target) == 2 else _wrong, len(target))


TABLES = {
    "amounts and flags, MAE": Table(amounts, 50_000, _mae),
    "the same, 1.7 % positive, 1 - AUC": Table(classes(0.017), 100_000, _auc, 2),
    "the same, 15 % positive, 1 - AUC": Table(classes(0.15), 100_000, _auc, 2),
    "linear truth with flags, 1 - R²": Table(linear, 200_000, _square),
    "99 % zeros, 1 - R²": Table(zeros, 12_000, _square),
    "ten classes, errors": Table(ten, 40_000, _wrong, 10),
    "35 counts, MAE": Table(counts, 20_000, _mae),
    "100 columns, 1 - R²": Table(many(100), 20_000, _square),
    "5 % positive, log loss": Table(few_positive, 8_000, _loss, 2),
    "fraud-like, .8 %, log loss": Table(fraud, 100_000, _loss, 2),
    "normal columns, 1 - R²": Table(normal, 20_000, _square),
    "four classes, amounts and flags, log loss": Table(several, 50_000, _loss, 4),
    "30 classes, errors": Table(many_classes(30), 40_000, _wrong, 30),
    "100 classes, errors": Table(many_classes(100), 40_000, _wrong, 100),
    "a category of 30, 1 - R²": Table(categories(30), 50_000, _square),
    "three classes, a category of 30, errors": Table(classes_by_category, 50_000, _wrong, 3),
    "heavy tails, MAE": Table(tails, 20_000, _mae),
    "bounds 3 times too wide, 1 - R²": Table(wide(3), 20_000, _square),
    "bounds 30 times too wide, 1 - R²": Table(wide(30), 20_000, _square),
    "ten columns nearly two, 1 - R²": Table(alike, 20_000, _square),
    "a sorted file, 1 - R²": Table(in_order, 20_000, _square),
    "mostly 0, loss: squared, 1 - R²": Table(claims, 20_000, _square, loss="squared"),
    "counts, loss: squared, 1 - R²": Table(events, 20_000, _square, loss="squared"),
    "visits to a doctor, loss: squared, 1 - R²": Table("visits to a doctor in a year", 0, _square, loss="squared"),
    **{job: Table(job, 0, *_scored(JOBS[job][2])) for job in JOBS},
}
WIDE = {
    "300 columns, 1 - R²": Table(many(300), 20_000, _square),
    "a category of 300, 1 - R²": Table(categories(300), 50_000, _square),
}
"""Nothing is shuffled here: a record has a share of each of 45,000 products of two columns, which takes minutes."""


# --- learners -------------------------------------------------------------------------------------------------------

TRUSTS: dict[str, tuple[type[Any], type[Any]]] = {
    "nobody": (LDPASGDRegressor, LDPASGDClassifier),
    "process": (PanPrivateRegressor, PanPrivateClassifier),
    "shuffler": (ShuffleRegressor, ShuffleClassifier),
    "window": (WindowedRegressor, WindowedClassifier),
}


def learned(trust: str, case: Table, data: Data, epsilon: float, seed: int) -> Any:
    """A model of a table."""
    options: dict[str, Any] = {"window": len(data.y), "items_per_user": 1} if trust == "window" else {}
    if case.classes:
        options |= {"classes": list(range(case.classes)), "loss": "logistic" if case.classes == 2 else "softmax"}
    else:
        options |= {"target": data.target, "loss": case.loss}
    model = TRUSTS[trust][bool(case.classes)](
        budget=f"eps={epsilon:g}" + ",delta=1e-6" * (trust != "nobody"), features=data.features, seed=seed, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn_encoded(data.encoded, data.y)
        if trust != "nobody":
            model.close_batch()
    return model


def predicted(case: Table, model: Any, held: Data) -> np.ndarray:
    """Numbers, or the chances of the classes, for the rows of `held`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray((model.predict_proba_encoded if case.classes else model.predict_encoded)(held.encoded))


def ours(trust: str, case: Table, data: Data, held: Data, epsilon: float, seed: int) -> np.ndarray:
    """What a model predicts for the rows of `held`."""
    return predicted(case, learned(trust, case, data, epsilon, seed), held)


@dataclass(frozen=True)
class Units:
    """What a peer learns from: rows (n, p + 1) in noisy units with a 1 at the end, outcomes, and what is left of mu."""

    X: np.ndarray
    y: np.ndarray
    held: np.ndarray
    mu: float
    to_number: Callable[[np.ndarray], np.ndarray]

    @staticmethod
    def of(case: Table, data: Data, held: Data, epsilon: float, rng: np.random.Generator) -> Units:
        """Centres and spreads of the columns, and of a number, from noisy means of values and of squares."""
        mu = math.inf if math.isinf(epsilon) else GaussianDP.from_approx(ApproxDP(epsilon, 1e-6)).mu
        n, p = data.X.shape
        low, high = data.target or (-1.0, 1.0)
        middle, half = (low + high) / 2, (high - low) / 2
        wide = np.column_stack([data.declared, np.clip((data.y - middle) / half, -1, 1)])
        noise = math.sqrt(5 * (p + 1)) / (n * mu * math.sqrt(UNIT_SHARE))
        centre = wide.mean(axis=0) + noise * rng.standard_normal(p + 1)
        square = (wide**2).mean(axis=0) + noise * rng.standard_normal(p + 1)
        spread = np.sqrt(np.maximum(square - centre**2, 0.0) + 3 * noise)
        X, other = (
            np.column_stack([(d.declared - centre[:-1]) / spread[:-1], np.ones(len(d.y))]) for d in (data, held)
        )
        y = data.y if case.classes else (wide[:, -1] - centre[-1]) / spread[-1]

        def to_number(u: np.ndarray) -> np.ndarray:
            return np.asarray(np.clip(middle + half * (centre[-1] + spread[-1] * u), low, high))

        return Units(X, y, other, mu * math.sqrt(1 - UNIT_SHARE), to_number)

    def predicted(self, case: Table, theta: np.ndarray) -> np.ndarray:
        """Numbers, or the chances of the classes, for the rows that score. theta: (p + 1, outputs)."""
        u = self.held @ theta
        if not case.classes:
            return self.to_number(u[:, 0])
        return np.column_stack([1 - expit(u), expit(u)]) if case.classes == 2 else np.asarray(softmax(u, axis=1))


def descent(case: Table, data: Data, held: Data, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """The first peer: gradients of all records in each of many rounds with momentum; an infinite epsilon: no noise."""
    units = Units.of(case, data, held, epsilon, rng)
    X, n = units.X, len(data.y)
    weight = np.minimum(1, math.sqrt(2) / np.linalg.norm(X, axis=1))[:, None]
    outputs = case.classes if case.classes > 2 else 1
    theta = np.zeros((X.shape[1], outputs))
    wanted = np.eye(max(outputs, 2))[data.y.astype(int)] if case.classes else None
    z = 2 * math.sqrt(2) * (math.sqrt(2) if outputs > 1 else 1.0) * math.sqrt(ROUNDS) / (n * units.mu)
    rate, velocity, kept = (2.0 if outputs > 1 else 3.0) if case.classes else 0.4, np.zeros_like(theta), []
    for _ in range(ROUNDS):
        if wanted is None:
            slope = np.clip(2 * (X @ theta - units.y[:, None]), -1, 1)
        elif outputs == 1:
            slope = expit(X @ theta) - units.y[:, None]
        else:
            slope = softmax(X @ theta, axis=1) - wanted
        gradient = (X * weight).T @ slope / n + z * rng.standard_normal(theta.shape)
        velocity = 0.5 * velocity + gradient
        theta = theta - rate * velocity
        kept.append(theta)
    return units.predicted(case, np.mean(kept[ROUNDS // 2 :], axis=0))


def _symmetric(size: int, rng: np.random.Generator) -> np.ndarray:
    upper = np.triu(rng.standard_normal((size, size)))
    return np.asarray(upper + np.triu(upper, 1).T)


def newton(case: Table, data: Data, held: Data, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """The second peer: few steps by noisy Hessians of all records, eigenvalues below their noise raised to it.

    A record has the weight min(1, (p + 1) / |x|^2), so that its gradient is at most sqrt(p + 1) and its Hessian p + 1
    times the curvature of the loss; each round gives half of its mu^2 to each (Ganesh et al. 2023).
    """
    units = Units.of(case, data, held, epsilon, rng)
    X, (n, size) = units.X, units.X.shape
    weight, top = np.minimum(1, size / np.sum(X**2, axis=1)), 0.25 if case.classes else 2.0 / NORMAL
    share = math.sqrt(2 * STEPS) / (n * units.mu)
    theta = np.zeros(size)
    for _ in range(STEPS):
        if case.classes:
            chance = expit(X @ theta)
            slope, curve = chance - units.y, chance * (1 - chance)
        else:
            slope = np.clip(2 * (X @ theta - units.y) / NORMAL, -1, 1)
            curve = top * (np.abs(slope) < 1)
        gradient = X.T @ (weight * slope) / n + 2 * math.sqrt(size) * share * rng.standard_normal(size)
        noise = math.sqrt(2) * top * size * share
        values, vectors = np.linalg.eigh((X.T * (weight * curve)) @ X / n + noise * _symmetric(size, rng))
        theta = theta - vectors @ (vectors.T @ gradient / np.maximum(values, 2 * noise * math.sqrt(size) + 1e-6))
    return units.predicted(case, theta[:, None])


def adassp(case: Table, data: Data, held: Data, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """The third peer, for numbers: sufficient statistics and a ridge by their noise (Wang 2018, Algorithm 2).

    Records have the weights of `newton`, outcomes are cut at `WIDEST` spreads, and each of the three releases has a
    third of mu^2.
    """
    units = Units.of(case, data, held, epsilon, rng)
    X, size = units.X, units.X.shape[1]
    weight, y = np.minimum(1, size / np.sum(X**2, axis=1)), np.clip(units.y, -WIDEST, WIDEST)
    share = math.sqrt(3) / units.mu
    noise = math.sqrt(2) * size * share
    A = (X.T * weight) @ X
    least = np.linalg.eigvalsh(A)[0] + size * share * (rng.standard_normal() - 2)
    b = X.T @ (weight * y) + 2 * math.sqrt(size) * WIDEST * share * rng.standard_normal(size)
    ridge = max(0.0, noise * math.sqrt(size * math.log(2 * size**2 / 0.05)) - max(0.0, least))
    theta = np.linalg.solve(A + noise * _symmetric(size, rng) + ridge * np.eye(size), b)
    return units.predicted(case, theta[:, None])


Peer = Callable[["Table", Data, Data, float, np.random.Generator], np.ndarray]
PEERS: dict[str, tuple[Peer, Callable[[Table], bool]]] = {
    "gradient descent": (descent, lambda case: True),
    "noisy Hessian": (newton, lambda case: case.classes <= 2),
    "AdaSSP": (adassp, lambda case: not case.classes),
}
"""What learns at the same budget, and for which tables."""


DIFFPRIVLIB = "diffprivlib"
_ROOT = Path(__file__).parent.parent


def of_diffprivlib(case: Table, data: Data, held: Data, epsilons: Sequence[float], seed: int) -> np.ndarray:
    """What the models of diffprivlib predict at each epsilon (E, m) or (E, m, classes): `diffprivlib_models`."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "data.npz"), Path(folder, "found.npy")
        np.savez(
            source,
            X=data.declared,
            y=data.y,
            held=held.declared,
            target=np.array(data.target or ()),
            classes=case.classes,
            epsilons=np.array(epsilons),
            seed=seed,
        )
        program = [_ROOT / ".venv/.diffprivlib/bin/python", _ROOT / "benchmarks/shared/diffprivlib_models.py"]
        subprocess.run([*program, source, out], check=True)
        return np.asarray(np.load(out))


def constant(case: Table, data: Data, held: Data) -> np.ndarray:
    """The median, the mean or the shares of the classes, for each row of `held`."""
    if case.classes:
        return np.tile(np.bincount(data.y.astype(int), minlength=case.classes) / len(data.y), (len(held.y), 1))
    return np.full(len(held.y), np.median(data.y) if case.score is _mae else np.mean(data.y))


def _cell(scores: Sequence[float]) -> str:
    return f"{median(scores):.4g} ({max(scores):.4g})" if scores else "-"


HEAD = ["table", "eps", *TRUSTS, *PEERS, DIFFPRIVLIB, "no privacy", "constant"]
Scores = dict[str, list[float]]
DOUBTED = "doubted {}"


def of_peers(name: str, seed: int, epsilons: Sequence[float], part: float, code: str) -> list[dict[str, float]]:
    """The scores of all that is not ours in one draw, for each epsilon: they stay if no `code` changes."""
    case, rng = (TABLES | WIDE)[name], np.random.default_rng([seed, 5])
    data, held = case.drawn(rng, part)
    free = case.score(held, descent(case, data, held, math.inf, rng))
    usual = case.score(held, constant(case, data, held))
    found = []
    for epsilon, other in zip(epsilons, of_diffprivlib(case, data, held, epsilons, seed), strict=True):
        able = {peer: learn for peer, (learn, of) in PEERS.items() if of(case)}
        one = {peer: case.score(held, learn(case, data, held, epsilon, rng)) for peer, learn in able.items()}
        found.append(one | {DIFFPRIVLIB: case.score(held, other), "no privacy": free, "constant": usual})
    return found


def scores(
    draw: tuple[str, int], epsilons: Sequence[float], trusts: Sequence[str], part: float = 1.0
) -> list[dict[str, float]]:
    """The score of each learner on a table in one draw (name, seed), for each epsilon. `part`: of the records."""
    name, seed = draw
    case = (TABLES | WIDE)[name]
    code = "".join(path.read_text() for path in (Path(__file__), *sorted((_ROOT / "benchmarks/shared").glob("*.py"))))
    with threadpool_limits(1):  # small matrices: more threads cost more than they give
        kept = Memory(_ROOT / ".venv/.peers", verbose=0).cache(of_peers)
        found: list[dict[str, float]] = kept(name, seed, epsilons, part, code)
        data, held = case.drawn(np.random.default_rng([seed, 5]), part)
        for epsilon, of_one in zip(epsilons, found, strict=True):
            for trust in (one for one in trusts if one != "shuffler" or name not in WIDE):
                model = learned(trust, case, data, epsilon, seed)
                of_one[trust] = case.score(held, predicted(case, model, held))
                of_one[DOUBTED.format(trust)] = bool(model.doubts)
    return found


GOALS = ("within 3 % of the best peer", "worst draw within 5 %", "within 10 % of window", "no worse than the constant")


def goals(found: Mapping[str, list[Scores]], trust: str) -> list[str]:
    """In how many rows a trust reaches each goal; medians, and the worst draw beside the peer's worst."""

    def best(row: Scores, of: Callable[[list[float]], float]) -> float:
        return min(of(row[peer]) for peer in (*PEERS, DIFFPRIVLIB) if row[peer])

    measured = [of_one for of_one in found.values() if of_one[0][trust]]
    all_rows = [row for of_one in measured for row in of_one]
    checks: list[Callable[[Scores], bool]] = [
        lambda row: median(row[trust]) <= 1.03 * best(row, median),
        lambda row: max(row[trust]) <= 1.05 * best(row, max),
        lambda row: median(row[trust]) <= 1.1 * median(row["window"]),
        lambda row: median(row[trust]) <= 1.005 * median(row["constant"]),
    ]
    budget = [
        all(median(more[trust]) <= 1.01 * median(less[trust]) for less, more in pairwise(of_one)) for of_one in measured
    ]
    counts = [f"{sum(map(check, all_rows))} of {len(all_rows)}" for check in checks]
    return [trust, *counts, f"{sum(budget)} of {len(budget)}"]


def doubts(found: Mapping[str, list[Scores]], trust: str) -> list[str]:
    """How many models of a trust are doubted: worse than the constant, up to half of the way to no privacy, better."""
    kinds: list[list[float]] = [[], [], []]
    for row in (row for of_one in found.values() for row in of_one if row[trust]):
        for score, doubted, free, usual in zip(
            row[trust], row[DOUBTED.format(trust)], row["no privacy"], row["constant"], strict=True
        ):
            worse, half = score > 1.005 * usual, score < (usual + min(free, usual)) / 2
            kinds[0 if worse else 1 + half].append(doubted)
    return [trust, *(f"{sum(kind):g} of {len(kind)}" for kind in kinds)]


SAID = ["doubted", "worse than the constant", "up to half of the way to no privacy", "better"]


def tables(quick: bool) -> str:
    """All tables and the goals; for a look, two draws at one epsilon."""
    epsilons = (1.0,) if quick else EPSILONS
    seeds, found = range(2 if quick else DRAWS), dict[str, list[Scores]]()
    measure = partial(scores, epsilons=epsilons, trusts=[*TRUSTS])
    with ProcessPoolExecutor(PROCESSES) as pool:
        drawn = pool.map(measure, product(TABLES | WIDE, seeds))

        def rows() -> Iterator[list[str]]:
            for name in TABLES | WIDE:
                draws = [next(drawn) for _ in seeds]
                found[name] = [
                    {key: [one[key] for one in each if key in one] for key in (*HEAD[2:], *map(DOUBTED.format, TRUSTS))}
                    for each in zip(*draws, strict=True)
                ]
                for epsilon, row in zip(epsilons, found[name], strict=True):
                    yield [name, f"{epsilon:g}", *(_cell(row[column]) for column in HEAD[2:])]

        cells = table(HEAD, rows())
    reached = table(["trust", *GOALS, "more budget no worse"], (goals(found, trust) for trust in TRUSTS))
    said = table(SAID, (doubts(found, trust) for trust in TRUSTS))
    return f"{reached}\n\n{said}\n\n{cells}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {"tables": tables}, arguments, quick=True)


if __name__ == "__main__":
    main()
