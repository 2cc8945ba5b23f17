"""What synthetic records keep. Run with `python -m benchmarks.synthetic [--write]`; about half an hour on one core.

Three real tables, whose numbers are sorted into bins by their declared bounds. streamdp counts each column together
with the target, in one budget, and draws as many records as it counted. Beside it in the same run: dpmm's MST, which
chooses its tables by the data, at the same budget and with the same bins, in an environment of its own; records with
each column drawn alone; and the real records in the same bins. Scores are the distance of all tables of two columns
from those of the real records (total variation, the average), and the log loss of scikit-learn's boosted trees that
are trained on the records, for real records that were held out. Noise comes from seeded generators, which are for
measuring only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from benchmarks.shared.pages import command, table
from benchmarks.shared.real_data import JOBS, read
from streamdp import stats

TABLES = ("is a wife insured by her job?", "is a Vietnamese married?", "cut of a diamond, five classes")
EPSILONS, DRAWS, BINS, DELTA = (0.5, 1.0, 4.0), 4, 8, 1e-6
PEER = 1.0
"""The epsilon at which the peer is run: it takes five minutes for one table."""
_PEER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd
from dpmm.pipelines import MSTPipeline
for line in sys.stdin:
    asked = json.loads(line)
    real = pd.read_csv(asked["real"])
    model = MSTPipeline(asked["epsilon"], asked["delta"], disable_processing=True, n_jobs=1)
    model.fit(real, domain=asked["domain"], random_state=asked["seed"])
    model.generate(len(real), random_state=asked["seed"]).to_csv(asked["drawn"], index=False)
"""


class Table:
    """A real table as codes: `real` to count, `held` to judge models by; the `target` is the last column."""

    def __init__(self, name: str) -> None:
        source, self.target, classes, features = JOBS[name]
        self.features: dict[str, Any] = {**features, self.target: classes}
        self.edges = {
            column: np.linspace(*declared, BINS + 1).tolist()
            for column, declared in self.features.items()
            if isinstance(declared, tuple)
        }
        numbers, texts = [*self.edges], [column for column in self.features if column not in self.edges]
        frame = read(source).select(*self.features)
        frame = frame.with_columns(pl.col(numbers).cast(pl.Float64, strict=False), pl.col(texts).cast(pl.String))
        frame = frame.with_columns(pl.col(texts).replace({"TRUE": "true", "FALSE": "false"})).drop_nulls()
        self.frame = frame[: len(frame) * 4 // 5]
        codes = self.codes(frame)
        self.real, self.held = codes[: len(self.frame)], codes[len(self.frame) :]

    def codes(self, frame: pl.DataFrame) -> np.ndarray:
        """The category or bin (n, columns) of each value, from 0."""
        found = []
        for column, declared in self.features.items():
            if column in self.edges:
                found.append(np.searchsorted(self.edges[column][1:-1], frame[column].to_numpy(), side="right"))
            else:
                found.append(np.array([*map(declared.index, frame[column])]))
        return np.stack(found, axis=1)

    @property
    def sizes(self) -> list[int]:
        """The number of categories or bins of each column."""
        return [BINS if column in self.edges else len(self.features[column]) for column in self.features]

    def ours(self, trust: Any, epsilon: float, seed: int, further: bool = False) -> np.ndarray:
        """The codes of records drawn from counts of each column with the target, and of `further` pairs."""
        pairs: dict[str, dict[str, Any]] = {
            column: {"count": [column, self.target]}
            | ({"edges": {column: self.edges[column]}} if column in self.edges else {})
            for column in self.features
            if column != self.target
        }
        if further:
            pairs["further"] = {"pairs": [*pairs], "edges": self.edges}
        model = stats.Statistics(pairs, self.features, f"eps={epsilon},delta={DELTA}", trust, seed=seed)
        model.learn_many(self.frame)
        model.close_batch()
        return self.codes(model.tables().draw(seed=seed))

    def alone(self, seed: int) -> np.ndarray:
        """Real values, each column in an order of its own: no privacy, and no dependence."""
        rng = np.random.default_rng(seed)
        return np.stack([rng.permutation(column) for column in self.real.T], axis=1)

    def peer(self, epsilon: float, seeds: range) -> list[np.ndarray]:
        """The codes of records of dpmm's MST."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            names = [f"c{i}" for i in range(len(self.features))]
            pl.DataFrame(self.real, names, orient="row").write_csv(folder / "real.csv")
            asked = [
                {
                    "real": str(folder / "real.csv"),
                    "drawn": str(folder / f"{seed}.csv"),
                    "epsilon": epsilon,
                    "delta": DELTA,
                    "domain": dict(zip(names, self.sizes, strict=True)),
                    "seed": seed,
                }
                for seed in seeds
            ]
            uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
            run = [uv, "run", "--quiet", "--no-project", "--isolated", "--with", "dpmm==0.1.9", "--python", "3.11"]
            lines = "\n".join(map(json.dumps, asked))
            subprocess.run([*run, "python", "-c", _PEER], input=lines, text=True, check=True, stdout=subprocess.DEVNULL)
            return [pl.read_csv(one["drawn"]).select(names).to_numpy() for one in asked]

    def scores(self, drawn: np.ndarray) -> tuple[float, float]:
        """The average distance of tables of two columns, and the log loss of a model."""
        distances = []
        for a, b in combinations(range(len(self.sizes)), 2):
            cells = [
                np.bincount(rows[:, a] * self.sizes[b] + rows[:, b], minlength=self.sizes[a] * self.sizes[b])
                for rows in (self.real, drawn)
            ]
            distances.append(np.abs(cells[0] / len(self.real) - cells[1] / len(drawn)).sum() / 2)
        trees = HistGradientBoostingClassifier(random_state=0, max_iter=60).fit(drawn[:, :-1], drawn[:, -1])
        p = np.full((len(self.held), self.sizes[-1]), 1e-3)
        p[:, trees.classes_] += trees.predict_proba(self.held[:, :-1])
        return float(np.mean(distances)), float(log_loss(self.held[:, -1], p / p.sum(axis=1, keepdims=True)))


def _cell(found: list[tuple[float, float]]) -> list[str]:
    distance, loss = np.median(found, axis=0)
    return [f"{distance:.3f}", f"{loss:.3f}"]


def rows() -> Iterator[Sequence[str]]:
    """One row for each table, budget and way."""
    for name in TABLES:
        data = Table(name)
        shares = np.bincount(data.real[:, -1], minlength=data.sizes[-1]) / len(data.real)
        constant = float(log_loss(data.held[:, -1], np.tile(shares, (len(data.held), 1))))
        yield [name, "none", "the real records", *_cell([data.scores(data.real)])]
        yield [name, "none", "each column alone", *_cell([data.scores(data.alone(seed)) for seed in range(DRAWS)])]
        yield [name, "none", "the best constant", "", f"{constant:.3f}"]
        for epsilon in EPSILONS:
            for trust in ("window", "process"):
                found = [data.scores(data.ours(trust, epsilon, seed)) for seed in range(DRAWS)]
                yield [name, f"{epsilon:g}", f"streamdp, {trust}", *_cell(found)]


def chosen() -> Iterator[Sequence[str]]:
    """One row for each table: a window that chooses further tables."""
    for name in TABLES:
        data = Table(name)
        found = [data.scores(data.ours("window", PEER, seed, further=True)) for seed in range(DRAWS)]
        yield [name, f"{PEER:g}", "streamdp, window, pairs chosen", *_cell(found)]


def peers() -> Iterator[Sequence[str]]:
    """One row for each table, of one draw."""
    for name in TABLES:
        data = Table(name)
        yield [name, f"{PEER:g}", "dpmm, MST", *_cell([data.scores(drawn) for drawn in data.peer(PEER, range(1))])]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    head = ("table", "epsilon", "records", "distance of two columns", "log loss of a model")
    blocks = {
        "tables": lambda: table(head, rows()),
        "chosen": lambda: table(head, chosen()),
        "peers": lambda: table(head, peers()),
    }
    command(__file__, blocks, arguments)


if __name__ == "__main__":
    main()
