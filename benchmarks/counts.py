"""Losses of counts, by which a mean is linear or its logarithm. Run with `python -m benchmarks.counts [--write]`.

Six draws of each table of 20,000 records are learned by each loss and by the trusts that have the Poisson loss; and by
a Poisson model and least squares without privacy. Cells are the median of 1 - R² on 20,000 other records, and the worst
draw: a constant has 1. delta = 1e-6. Noise comes from seeded generators, which are for measuring only. Ten minutes on
one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from sklearn.linear_model import LinearRegression, PoissonRegressor
from threadpoolctl import threadpool_limits

from benchmarks.ordinary import TABLES, Data, Draw, Table, ours
from benchmarks.shared.pages import command, table

DRAWS, RECORDS, EPSILONS = 6, 20_000, (0.5, 1.0, 4.0)
LOSSES = ("poisson", "squared", "huber")


def multiplied(slopes: Sequence[float], level: float, most: float) -> Draw:
    """Poisson counts of at most `most`: normal columns multiply their mean, which is exp(level) where all are 0."""
    return _poisson(slopes, most, lambda u: np.exp(u + level))


def added(rng: np.random.Generator, n: int) -> Data:
    """Poisson counts: normal columns add to their mean, which is at least .1."""
    return _poisson((0.8, -0.6, 0.4, 0.0), 60.0, lambda u: np.maximum(u + 3, 0.1))(rng, n)


def _poisson(slopes: Sequence[float], most: float, mean: Callable[[np.ndarray], np.ndarray]) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Data:
        X = rng.standard_normal((n, len(slopes)))
        y = rng.poisson(mean(X @ np.array(slopes)))
        return Data(X, np.minimum(y, most).astype(float), [(-4.0, 4.0)] * len(slopes), (0.0, most))

    return draw


_MANY = (np.random.default_rng(3).normal(size=40) / 10).tolist()
_DRAWS: dict[str, Draw | str] = {
    "more varied than Poisson": TABLES["counts, loss: squared, 1 - R²"].draw,
    "visits to a doctor": TABLES["visits to a doctor, loss: squared, 1 - R²"].draw,
    "columns multiply, mean 2": multiplied((0.8, -0.6, 0.4, 0.0), 0.0, 60.0),
    "columns multiply, mean 170": multiplied((0.3, -0.3, 0.2, 0.0, 0.0, 0.0), 5.0, 2000.0),
    "40 columns multiply": multiplied(_MANY, 0.5, 60.0),
    "rare: mean .05": multiplied((0.5, -0.4, 0.3, 0.0, 0.0, 0.0), -3.2, 10.0),
    "columns add": added,
    "amounts, two thirds 0": TABLES["mostly 0, loss: squared, 1 - R²"].draw,
}
CASES = {name: Table(draw, RECORDS, TABLES["counts, loss: squared, 1 - R²"].score) for name, draw in _DRAWS.items()}


def _cell(scores: Sequence[float]) -> str:
    return f"{median(scores):.3f} ({max(scores):.3f})"


def _of_trust(case: Table, trust: str, epsilon: float) -> Iterator[str]:
    """The cells of a row: one for each loss."""
    for loss in LOSSES:
        chosen, scores = replace(case, loss=loss), []
        for draw in range(DRAWS):
            data, held = case.drawn(np.random.default_rng(draw), 1.0)
            scores.append(case.score(held, ours(trust, chosen, data, held, epsilon, draw)))
        yield _cell(scores)


def _without_privacy(case: Table) -> Iterator[str]:
    for model in (PoissonRegressor(alpha=0, max_iter=1000), LinearRegression()):
        scores = []
        for draw in range(DRAWS):
            data, held = case.drawn(np.random.default_rng(draw), 1.0)
            found = model.fit(data.declared, data.y).predict(held.declared)
            scores.append(case.score(held, np.clip(found, *(data.target or (0.0, np.inf)))))
        yield _cell(scores)
    yield "-"


def losses() -> str:
    """The table."""
    with threadpool_limits(1):
        rows = (
            [name, trust, f"{epsilon:g}", *_of_trust(case, trust, epsilon)]
            if trust
            else [name, "no privacy", "-", *_without_privacy(case)]
            for name, case in CASES.items()
            for trust, epsilon in [*((t, e) for t in ("process", "window", "shuffler") for e in EPSILONS), ("", 0.0)]
        )
        return table(["table", "trust", "eps", *LOSSES], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, {"losses": losses}, arguments)


if __name__ == "__main__":
    main()
