"""Groups with effects of their own (`per`): errors by group, and from how many records on they pay.

Run with `python -m benchmarks.groups [--write]`; some minutes on one core. Four models of the same records:

* one: the group is a category with an intercept of its own, as without `per`;
* per: with `per` of one number, in the bounds that most values have;
* alone: an estimator for each group, which may only be if the group of a record is public;
* no privacy: least squares with the columns of `per`.

One record a person, delta is a tenth of one over the number of records, everything else is the default. Noise comes
from seeded generators, which are for measuring only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from benchmarks.shared.flights import COLUMNS
from benchmarks.shared.pages import command, mean_and_error, table
from benchmarks.shared.real_data import JOBS, read
from streamdp import LDPASGDRegressor, PanPrivateRegressor, WindowedRegressor, datasets
from streamdp.data.records import Position
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError

DRAWS, LEARNED, HELD_OUT = 12, 30_000, 10_000
KINDS: dict[str, Any] = {"nobody": LDPASGDRegressor, "process": PanPrivateRegressor, "window": WindowedRegressor}
HEAD = ["trust", "eps", "records of", "learned", "one", "per", "alone", "no privacy"]


class Groups:
    """Records with a group, `of` is what is declared of the number whose effect a group has of its own."""

    def __init__(self, frame: pl.DataFrame, target: str, bounds: Any, features: dict[str, Any], group: str, of: Any):
        self.bounds, self.group, names = bounds, group, sorted(frame[group].unique().to_list())
        rest = {name: declared for name, declared in features.items() if name != group}
        self.features = {
            "one": rest | {group: names},
            "per": rest | {"usual": of, group: {"categories": names, "per": ["usual"]}},
            "alone": rest,
        }
        self.X, parts = {}, np.arange(frame.height)
        for model, declared in self.features.items():
            batch = Schema(declared, target, target_bounds=bounds).encode(frame, parts, Position())
            assert len(batch.y) == frame.height
            self.X[model], self.y = batch.X, batch.y
        self.names = frame[group].to_numpy()
        self.held = slice(frame.height - HELD_OUT, None)

    def private(self, model: str, trust: str, budget: str, rows: np.ndarray, seed: int) -> Any:
        """The predictions for all held-out records of an estimator that has learned these rows."""
        more = {"window": len(rows)} if trust == "window" else {}
        kind = KINDS[trust](features=self.features[model], target=self.bounds, budget=budget, seed=seed, **more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.learn_encoded(self.X[model][rows], self.y[rows])
            kind.close_batch()
        return kind.predict_encoded(self.X[model][self.held])

    def predictions(self, model: str, trust: str, budget: str, records: int, seed: int) -> np.ndarray:
        """The predictions for the held-out records after so many records."""
        rows = np.arange(records)
        if model == "none":
            A = np.column_stack([self.X["per"], np.ones(len(self.y))])
            return np.asarray(A[self.held] @ np.linalg.lstsq(A[rows], self.y[rows], rcond=None)[0])
        if model != "alone":
            return np.asarray(self.private(model, trust, budget, rows, seed))
        found = np.full(HELD_OUT, np.median(self.bounds))
        for name in np.unique(self.names[rows]):
            try:
                own = self.private(model, trust, budget, rows[self.names[rows] == name], seed)
            except ConfigError:  # too few for a window: the middle of the bounds
                continue
            found = np.where(self.names[self.held] == name, own, found)
        return found

    def errors(self, model: str, trust: str, epsilon: float, records: int, draws: int) -> np.ndarray:
        """The absolute errors (draws, held out)."""
        delta = "" if trust == "nobody" else f",delta={1 / (10 * records):.3g}"
        found = [self.predictions(model, trust, f"eps={epsilon}{delta}", records, seed) for seed in range(draws)]
        return np.abs(np.array(found) - self.y[self.held])


def diamonds() -> Groups:
    """The price of a diamond; the price of a carat by clarity."""
    _, target, bounds, features = JOBS["price of a diamond, dollars"]
    frame = read("ggplot2/diamonds")[: LEARNED + HELD_OUT]
    return Groups(frame, target, bounds, features, "clarity", {"column": "carat", "bounds": (0.3, 1.7)})


def flights() -> Groups:
    """The delay of a flight; the effect of its departure delay by carrier."""
    features = COLUMNS | {"dep_delay": (-30, 180)}
    frame = datasets.flights().drop_nulls().sample(LEARNED + HELD_OUT, shuffle=True, seed=1)
    return Groups(frame, "arr_delay", (-60, 180), features, "carrier", {"column": "dep_delay", "bounds": (-15, 45)})


def rows(data: Groups) -> Iterator[Sequence[str]]:
    """For each trust and budget: all records, those of the smallest and of the largest group."""
    learned, held = data.names[:LEARNED], data.names[data.held]
    counts = {str(name): int(np.sum(learned == name)) for name in np.unique(held)}
    whose = {"all": held == held}
    for name in (min(counts, key=lambda n: counts[n]), max(counts, key=lambda n: counts[n])):
        whose[name] = held == name
    free = data.errors("none", "window", 1, LEARNED, 1)[0]
    for trust in KINDS:
        for epsilon in (1, 4):
            found = {model: data.errors(model, trust, epsilon, LEARNED, DRAWS) for model in data.features}
            for name, mask in whose.items():
                one, per, alone = (mean_and_error(errors[:, mask].mean(axis=1)) for errors in found.values())
                texts = [f"{mean:.4g} ± {float(f'{off:.1g}'):g}" for mean, off in (one, per, alone)]
                if per[0] + 2 * (per[1] + one[1]) < one[0]:
                    texts[1] = f"**{texts[1]}**"
                learned_of = f"{counts.get(name, LEARNED):,}"
                yield [trust, str(epsilon), name, learned_of, *texts, f"{free[mask].mean():.4g}"]


def simulated(groups: int, records: int) -> Groups:
    """Three columns; the slope of the first is 1 plus, by group, a number of deviation 1/2."""
    rng = np.random.default_rng(groups)
    X, which = rng.uniform(-1, 1, (records + HELD_OUT, 3)), rng.integers(0, groups, records + HELD_OUT)
    slopes = 1 + 0.5 * rng.normal(size=groups)
    y = slopes[which] * X[:, 0] + X[:, 1] - X[:, 2] + 0.3 * rng.normal(size=len(X))
    frame = pl.DataFrame({**{f"x{j}": X[:, j] for j in range(3)}, "group": [f"g{k:02d}" for k in which], "y": y})
    return Groups(
        frame, "y", (-5, 5), {f"x{j}": (-1, 1) for j in range(3)}, "group", {"column": "x0", "bounds": (-1, 1)}
    )


SIZES = (3_000, 30_000)
SIMULATED = ["groups", "trust", "eps", *(f"{n:,} records: one" if i % 2 == 0 else "per" for n in SIZES for i in (0, 1))]


def crossings() -> Iterator[Sequence[str]]:
    """The errors of `one` and `per` for numbers of groups and of records."""
    for groups in (3, 10, 50):
        data = simulated(groups, SIZES[-1])
        for trust in KINDS:
            for epsilon in (1, 4):
                cells = []
                for records in SIZES:
                    pair = []
                    for model in ("one", "per"):
                        errors = data.errors(model, trust, epsilon, records, 3)
                        pair.append(mean_and_error(errors.mean(axis=1)))
                    texts = [f"{mean:.3f} ± {float(f'{off:.1g}'):g}" for mean, off in pair]
                    better = pair[1][0] + 2 * (pair[0][1] + pair[1][1]) < pair[0][0]
                    cells += [texts[0], f"**{texts[1]}**" if better else texts[1]]
                yield [str(groups), trust, str(epsilon), *cells]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    parts = {
        "diamonds": lambda: table(HEAD, rows(diamonds())),
        "flights": lambda: table(HEAD, rows(flights())),
        "simulated": lambda: table(SIMULATED, crossings()),
    }
    command(__file__, parts, arguments)


if __name__ == "__main__":
    main()
