"""Tables as people have them, at the defaults. Run with `python -m benchmarks.ordinary [--write] [--quick]`.

Amounts with a long tail, rare flags, columns that are almost always 0, rare classes, categories, counts, many columns,
bounds that are far too wide, sorted files; and the real tables of `shared.real_data`. Each table is learned by every
trust, beside peers in the same run: gradient descent with noise over all records, its rounds accounted for by mu-GDP;
the same without noise; and the best constant. Cells are the median of the draws and the worst one. delta = 1e-6, and
none for local reports. Noise comes from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, roc_auc_score

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

DRAWS, EPSILONS, HELD, PROCESSES = 2, (0.5, 1.0, 4.0), 20_000, 2
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


def several(rng: np.random.Generator, n: int) -> Data:
    """Four classes by amounts and flags, of which the rarest has 3 %."""
    X, Z, bounds = _amounts(rng, n)
    u = 0.7 * Z @ np.random.default_rng(8).standard_normal((8, 4)) + np.array([0.0, 0.0, -1.5, -3.0])
    return Data(X, np.argmax(u + rng.gumbel(size=(n, 4)), axis=1).astype(float), bounds)


def thirty(rng: np.random.Generator, n: int) -> Data:
    """30 classes by ten normal columns."""
    B, X = np.random.default_rng(7).standard_normal((10, 30)), rng.standard_normal((n, 10))
    y = np.argmax(1.5 * X @ B + rng.gumbel(size=(n, 30)), axis=1)
    return Data(X, y.astype(float), [(-4.0, 4.0)] * 10)


def _category(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, list[tuple[float, float]]]:
    """Three normal columns and one of 30 levels as flags; and the level."""
    level, normal = np.minimum(rng.geometric(0.07, n) - 1, 29), rng.standard_normal((n, 3))
    return np.hstack([normal, level[:, None] == np.arange(30)]), level, [(-4.0, 4.0)] * 3 + [(0.0, 1.0)] * 30


def categories(rng: np.random.Generator, n: int) -> Data:
    """A number by 30 levels, of which the rarest have less than 1 %."""
    X, level, bounds = _category(rng, n)
    y = X[:, 0] + np.random.default_rng(8).standard_normal(30)[level] + rng.standard_normal(n)
    return Data(X, y, bounds, (-10.0, 10.0))


def classes_by_category(rng: np.random.Generator, n: int) -> Data:
    """Three classes by 30 levels."""
    X, level, bounds = _category(rng, n)
    B = 1.5 * np.random.default_rng(8).standard_normal((33, 3))
    y = np.argmax(X[:, :3] @ B[:3] / 1.5 + B[3 + level] + rng.gumbel(size=(n, 3)), axis=1)
    return Data(X, y.astype(float), bounds)


def tails(rng: np.random.Generator, n: int) -> Data:
    """Eight normal columns, and noise of two degrees of freedom."""
    data = normal(rng, n)
    return Data(data.X, data.y + rng.standard_t(2, n), data.bounds, (-100.0, 100.0))


def wide(rng: np.random.Generator, n: int) -> Data:
    """Eight normal columns, all bounds 30 times too wide."""
    data = normal(rng, n)
    return Data(data.X, data.y, [(-120.0, 120.0)] * 8, (-240.0, 240.0))


def alike(rng: np.random.Generator, n: int) -> Data:
    """Ten columns that are nearly the same two."""
    X = np.repeat(rng.standard_normal((n, 2)), 5, axis=1) + 0.1 * rng.standard_normal((n, 10))
    y = X @ np.array([0.2, 0.2, 0.2, 0.2, 0.2, -0.1, -0.1, -0.1, -0.1, -0.1]) + rng.standard_normal(n)
    return Data(X, y, [(-4.0, 4.0)] * 10, (-8.0, 8.0))


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
    "100 columns, 1 - R²": Table(many, 20_000, _square),
    "5 % positive, log loss": Table(few_positive, 8_000, _loss, 2),
    "fraud-like, .8 %, log loss": Table(fraud, 100_000, _loss, 2),
    "normal columns, 1 - R²": Table(normal, 20_000, _square),
    "four classes, amounts and flags, log loss": Table(several, 50_000, _loss, 4),
    "30 classes, errors": Table(thirty, 40_000, _wrong, 30),
    "a category of 30, 1 - R²": Table(categories, 50_000, _square),
    "three classes, a category of 30, errors": Table(classes_by_category, 50_000, _wrong, 3),
    "heavy tails, MAE": Table(tails, 20_000, _mae),
    "bounds 30 times too wide, 1 - R²": Table(wide, 20_000, _square),
    "ten columns nearly two, 1 - R²": Table(alike, 20_000, _square),
    "a sorted file, 1 - R²": Table(in_order, 20_000, _square),
    **{job: Table(job, 0, *_scored(JOBS[job][2])) for job in JOBS},
}


# --- learners -------------------------------------------------------------------------------------------------------

TRUSTS: dict[str, tuple[type[Any], type[Any]]] = {
    "nobody": (LDPASGDRegressor, LDPASGDClassifier),
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
        budget=f"eps={epsilon:g}" + ",delta=1e-6" * (trust != "nobody"), features=names, seed=seed, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn_encoded(data.declared, data.y)
        if trust != "nobody":
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


def rows(name: str, epsilons: Sequence[float], draws: int, trusts: Sequence[str], part: float = 1.0) -> list[list[str]]:
    """One row of a table for each epsilon. `part`: of the records."""
    case, found = TABLES[name], [dict[str, list[float]]() for _ in epsilons]
    for seed in range(draws):
        rng = np.random.default_rng([seed, 5])
        data, held = case.drawn(rng, part)
        free = case.score(held, descent(case, data, held, math.inf, rng))
        usual = case.score(held, constant(case, data, held))
        for epsilon, scores in zip(epsilons, found, strict=True):
            for trust in trusts:
                scores.setdefault(trust, []).append(case.score(held, ours(trust, case, data, held, epsilon, seed)))
            peer = case.score(held, descent(case, data, held, epsilon, rng))
            for other, score in (("gradient descent", peer), ("no privacy", free), ("constant", usual)):
                scores.setdefault(other, []).append(score)
        records = f"{len(data.y):,}"
    return [
        [name, records, f"{epsilon:g}", *map(_cell, scores.values())]
        for epsilon, scores in zip(epsilons, found, strict=True)
    ]


HEAD = ["table", "records", "eps", *TRUSTS, "gradient descent", "no privacy", "constant"]


def tables(quick: bool) -> str:
    """All tables; for a look, two draws at one epsilon."""
    measure = partial(rows, epsilons=(1.0,) if quick else EPSILONS, draws=2 if quick else DRAWS, trusts=[*TRUSTS])
    with ProcessPoolExecutor(PROCESSES) as pool:
        found: Iterator[list[list[str]]] = pool.map(measure, TABLES)
        return table(HEAD, (row for of_one in found for row in of_one))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {"tables": tables}, arguments, quick=True)


if __name__ == "__main__":
    main()
