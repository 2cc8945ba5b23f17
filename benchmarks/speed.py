"""How fast streamdp is and how much memory it takes, on Linux: `python -m benchmarks.speed [PART ...] [--track]`.

Ten features, cryptographic noise, one run of less than 15 minutes. Contenders take turns, so that a busy machine slows
all of them, and the best of several rounds counts, for whatever else runs can only add time. A row that misses its goal
says in which functions the time is spent, by Python's profiler; what compiled loops take is that of their callers.
`--write` puts the table into README.md beside this file. `--track`, which `--write` implies, adds a line to speed.jsonl
beside this file, with date, commit, version and machine, and says what is slower than in the runs before.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.metadata
import itertools
import math
import os
import platform
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from river import evaluate, linear_model, metrics, stats, stream
from threadpoolctl import threadpool_limits

import streamdp
import streamdp.stats as private
from benchmarks.shared.pages import fill, table
from benchmarks.shared.track import run_of, track
from streamdp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
)
from streamdp.aggregation.shuffled_sum import LocalRandomizer, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.cli.settings import file_like
from streamdp.config.job import JobConfig, make_config
from streamdp.optim.losses import Huber, Logistic
from streamdp.privacy.entropy import LARGEST, Entropy
from streamdp.privacy.guarantees import ApproxDP, parse_budget
from streamdp.privacy.mechanisms import calibrated, mechanism_for
from streamdp.privacy.mechanisms.base import randomize_rows
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Runner
from streamdp.serving.predict_file import predict_file
from streamdp.serving.publish import Publisher, committed
from streamdp.store.store import Store

README = Path(__file__).parent / "README.md"
TRACKED = Path(__file__).with_suffix(".jsonl")

FEATURES = [f"x{j}" for j in range(10)]
SUBJECTS = 100_000
FILE_ROWS, RIVER_ROWS = 1_000_000, 100_000
MEMORY_ROWS = (100_000, 10_000_000)
MIB = 1 << 20
TURN_S = 25.0
"""For how long the contenders of a part take turns, at least three each."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, beside what, and what it should be."""

    what: str
    measured: str
    beside: str = ""
    goal: str = ""
    met: bool | None = None
    where: str = ""
    rate: float | None = None
    """Records a second; of a rival's rate where there is one."""

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "yes", False: "**missed**"}[self.met]
        return self.what, self.measured, self.beside, self.goal, f"{verdict} {self.where}".strip()


@dataclass(frozen=True)
class Work:
    """A contender: what one call does, how many records it has, and which part of a rival's rate it should reach."""

    run: Callable[[], object]
    records: int
    rival: str = ""
    goal: float | None = None
    least: float | None = None
    """Records a second, as a goal."""


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The least time of each contender by `clock`; they take turns, at most for `TURN_S`."""
    best, began = dict.fromkeys(contenders, math.inf), time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - began > TURN_S:
            break
        for name, contend in contenders.items():
            started = clock()
            contend()
            best[name] = min(best[name], clock() - started)
    return best


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process to one core. What runs on one core and waits for nothing is timed by `process_time`.

    BLAS has one thread: its others wait in a loop after each product, and their time would count for the next one.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        os.sched_setaffinity(0, allowed)


def compared(works: Mapping[str, Work], *, whole_machine: bool = False) -> list[Row]:
    """Measure contenders in turns, each beside its rival."""
    runs = {name: work.run for name, work in works.items()}
    if whole_machine:
        seconds = best_seconds(runs, 5)
    else:
        with one_core():
            seconds = best_seconds(runs, 1000, time.process_time)
    rates = {name: work.records / seconds[name] for name, work in works.items()}
    rows = []
    for name, work in works.items():
        beside, goals, met, ratio = "", [], [], None
        if work.rival:
            ratio = rates[name] / rates[work.rival]
            beside = f"{ratio:.2f} of the rate of {work.rival}"
            if work.goal is not None:
                goals.append(f"{work.goal:g} of it")
                met.append(ratio >= work.goal)
        if work.least is not None:
            goals.append(f"{rate_text(work.least)}")
            met.append(rates[name] >= work.least)
        good = all(met) if met else None
        where = time_goes(work.run) if good is False else ""
        kept = rates[name] if ratio is None else ratio
        rows.append(Row(name, rate_text(rates[name]), beside, ", ".join(goals), good, where, kept))
    return rows


def rate_text(rate: float) -> str:
    """Records a second; with the time of one if that is a long time for a computer."""
    return f"{rate / 1e6:.2f} M/s" if rate >= 2e6 else f"{rate / 1e3:.3g} k/s, {1e6 / rate:.3g} µs each"


def time_goes(run: Callable[[], object]) -> str:
    """The functions with the most time of their own, by Python's profiler."""
    profile = cProfile.Profile()
    profile.runcall(run)
    stats: Any = pstats.Stats(profile)
    own = sorted(((entry[2], name[2]) for name, entry in stats.stats.items()), reverse=True)[:3]
    whole = stats.total_tt or math.inf
    return "(" + ", ".join(f"`{name.strip('<>')}` {100 * spent / whole:.0f} %" for spent, name in own) + ")"


def make_arrays(rows: int, d: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (rows, d))
    return X, X @ np.linspace(-1, 1, d) + rng.normal(0, 0.5, rows)


# -- one record at a time ------------------------------------------------------------------------------------------

Pair = tuple[dict[str, float], Any]
LINEAR, LOGISTIC = "River's LinearRegression", "River's LogisticRegression"


def records_of(n: int, d: int = 10) -> list[Pair]:
    X, y = make_arrays(n, d)
    names = [f"x{j}" for j in range(d)]
    return [(dict(zip(names, row, strict=True)), t) for row, t in zip(X.tolist(), y.tolist(), strict=True)]


def learning(model: Any, pairs: Sequence[Pair]) -> Callable[[], None]:
    def loop() -> None:
        for x, target in pairs:
            model.learn_one(x, target)

    return loop


def predicting(model: Any, pairs: Sequence[Pair], method: str = "predict_one") -> Callable[[], None]:
    learning(model, pairs)()
    predict = getattr(model, method)

    def loop() -> None:
        for x, _ in pairs:
            predict(x)

    return loop


def single_predictions() -> list[Row]:
    pairs = records_of(2_000)
    labelled = [(x, y > 0) for x, y in pairs]
    n, found = len(pairs), {}
    found[f"`predict_one`, {LINEAR}"] = Work(predicting(linear_model.LinearRegression(), pairs), n)
    for kind in (LDPASGDRegressor, LDPSGDRegressor, PanPrivateRegressor, ShuffleRegressor):
        run = predicting(kind(features=FEATURES), pairs)
        found[f"`predict_one`, {kind.__name__}"] = Work(run, n, f"`predict_one`, {LINEAR}", 1.0)
    for method in ("predict_one", "predict_proba_one"):
        rival = f"`{method}`, {LOGISTIC}"
        found[rival] = Work(predicting(linear_model.LogisticRegression(), labelled, method), n)
        run = predicting(LDPASGDClassifier(features=FEATURES), labelled, method)
        found[f"`{method}`, LDPASGDClassifier"] = Work(run, n, rival, 1.0)
    return compared(found)


def single_records() -> list[Row]:
    pairs = records_of(2_000)
    labelled = [(x, y > 0) for x, y in pairs]
    n = len(pairs)
    bounds = dict.fromkeys(FEATURES, (-1, 1))
    river: dict[str, tuple[Any, Sequence[Pair]]] = {
        LINEAR: (linear_model.LinearRegression(), pairs),
        LOGISTIC: (linear_model.LogisticRegression(), labelled),
    }
    ours: dict[str, tuple[str, Any, Sequence[Pair]]] = {
        "LDPASGDRegressor, Gaussian": (LINEAR, LDPASGDRegressor(budget="mu=1", features=FEATURES), pairs),
        "LDPASGDRegressor, Laplace": (LINEAR, LDPASGDRegressor(mechanism="laplace", features=FEATURES), pairs),
        "LDPASGDRegressor, PrivUnit": (LINEAR, LDPASGDRegressor(features=FEATURES), pairs),
        "LDPASGDClassifier, Gaussian": (LOGISTIC, LDPASGDClassifier(budget="mu=1", features=FEATURES), labelled),
        "LDPASGDRegressor, raw records with bounds": (LINEAR, LDPASGDRegressor(features=bounds, target=(-9, 9)), pairs),
        "PanPrivateRegressor": (LINEAR, PanPrivateRegressor(features=FEATURES), pairs),
        "ShuffleRegressor": (LINEAR, ShuffleRegressor(features=FEATURES), pairs),
    }
    found = {f"`learn_one`, {name}": Work(learning(model, given), n) for name, (model, given) in river.items()}
    for name, (rival, model, given) in ours.items():
        found[f"`learn_one`, {name}"] = Work(learning(model, given), n, f"`learn_one`, {rival}", 2.0)
    return compared(found)


def people() -> list[Row]:
    """Records with subjects, under a cap, and with validation, beside those without; records that join a window."""
    pairs, found = records_of(2_000), {}
    n, numbers = len(pairs), itertools.count()

    def capped(model: Any, subject_of: Callable[[int], int]) -> Callable[[], None]:
        def loop() -> None:
            for i, (x, target) in enumerate(pairs):
                model.learn_one(x, target, subject=subject_of(i))

        return loop

    for kind in (LDPASGDRegressor, PanPrivateRegressor, ShuffleRegressor):
        plain = f"`learn_one`, {kind.__name__}"
        found[plain] = Work(learning(kind(features=FEATURES), pairs), n)
        for who, subject_of, goal in (
            ("known people", lambda i: i, 1 / 2),
            ("new people", lambda _: next(numbers), 1 / 3),
        ):
            model = kind(features=FEATURES, ledger=streamdp.Ledger("eps=1e6,delta=.5"))
            found[f"{plain}, a cap, {who}"] = Work(capped(model, subject_of), n, plain, goal)
    for kind in (LDPASGDClassifier, PanPrivateClassifier, ShuffleClassifier):
        plain = f"`learn_one`, {kind.__name__}"
        labelled = [(x, target > 0) for x, target in pairs]
        found[plain] = Work(learning(kind(features=FEATURES), labelled), n)
        for name, declared in (("a share", {"share": 0.1}), ("a budget", {"budget": "eps=0.5"})):
            model = kind(features=FEATURES, validation=declared)
            found[f"{plain}, validation by {name}"] = Work(learning(model, labelled), n, plain, 1 / 2)
    for d in (10, 50):
        several, names = records_of(n, d), [f"x{j}" for j in range(d)]
        river = f"`learn_one`, d = {d}, {LINEAR}"
        found[river] = Work(learning(linear_model.LinearRegression(), several), n)
        window = streamdp.WindowedRegressor(features=names, window=10**8)
        found[f"`learn_one`, d = {d}, WindowedRegressor"] = Work(learning(window, several), n, river, 1.0)
    return compared(found)


def progressive() -> list[Row]:
    pairs, rival = records_of(5_000), f"`progressive_val_score`, {LINEAR}"

    def score(model: Any) -> Callable[[], object]:
        return lambda: evaluate.progressive_val_score(pairs, model.clone(), metrics.MAE())

    ours = score(LDPASGDRegressor(budget="mu=1", features=FEATURES))
    return compared(
        {
            rival: Work(score(linear_model.LinearRegression()), len(pairs)),
            "`progressive_val_score`, LDPASGDRegressor": Work(ours, len(pairs), rival, 1.0),
        }
    )


# -- arrays --------------------------------------------------------------------------------------------------------


def in_arrays() -> list[Row]:
    X, y = make_arrays(50_000)
    budgets = np.random.default_rng(1).uniform(0.5, 2, len(y))
    floor = "`learn_arrays`, no noise"
    found = {floor: arrays_of(LDPASGDRegressor(mechanism="none", features=FEATURES), X, y)}
    loss, size = Huber(), 12  # ten coefficients, the intercept and Huber's scale
    found["the keystream of such noise alone"] = Work(lambda: keystream(len(y) * size), len(y))
    for name, budget in (("gaussian", "mu=1"), ("laplace", "eps=1"), ("privunit", "eps=1")):
        model = LDPASGDRegressor(budget=budget, mechanism=name, features=FEATURES)
        spent = parse_budget(budget)
        noise = calibrated(mechanism_for(name, spent), spent, loss.bound, loss.sensitivity)
        run = partial(randomize_rows, noise.code, noise.rows(size), np.zeros((20_000, size)), Entropy())
        found[f"noise alone, {name}"] = Work(run, 20_000)
        found[f"`learn_arrays`, {name}"] = arrays_of(model, X, y, None, floor, 0.6, 5e6)
        found[f"`learn_arrays`, {name}, a budget for each"] = arrays_of(model, X, y, budgets, floor, 0.6, 5e6)
    for name, kind, budget in (
        ("LDPASGDRegressor, eps=1", LDPASGDRegressor, "eps=1"),
        ("LDPASGDRegressor, eps=4", LDPASGDRegressor, "eps=4"),
        ("PanPrivateRegressor", PanPrivateRegressor, None),
    ):
        ignores = f'`learn_arrays`, {name}, change="ignore"'
        found[ignores] = arrays_of(kind(features=FEATURES, budget=budget, change="ignore"), X, y)
        least = 5e6 if kind is PanPrivateRegressor else None
        found[f"`learn_arrays`, {name}"] = arrays_of(
            kind(features=FEATURES, budget=budget), X, y, None, ignores, 0.95, least
        )
    found["`learn_arrays`, ShuffleRegressor"] = arrays_of(ShuffleRegressor(features=FEATURES), X, y)
    model, w = LDPASGDRegressor(budget="mu=1", features=FEATURES), np.linspace(-1, 1, 10)
    model.learn_arrays(X, y)
    found["numpy's `X @ w`"] = Work(lambda: X @ w, len(y))
    found["`predict_arrays`"] = Work(lambda: model.predict_arrays(X), len(y), "numpy's `X @ w`", 0.5)
    return compared(found)


def keystream(words: int) -> None:
    """Fill a buffer, as long as that of a model that learns arrays, until it had so many words."""
    source = Entropy(LARGEST)
    for _ in range(0, words, len(source.words) - 1):
        source.discard()
        source.refill()


def arrays_of(
    model: Any,
    X: np.ndarray,
    y: np.ndarray,
    budgets: np.ndarray | None = None,
    rival: str = "",
    goal: float | None = None,
    least: float | None = None,
) -> Work:
    given = () if budgets is None else (budgets,)
    return Work(lambda: model.learn_arrays(X, y, *given), len(y), rival, goal, least)


def sizes() -> list[Row]:
    """Ten times the features, or ten classes, may take ten times as long, beside River."""
    found: dict[str, Work] = {}
    for d in (10, 100, 1_000):
        names, n = [f"x{j}" for j in range(d)], max(20, 20_000 // d)
        pairs, (X, y) = records_of(n, d), make_arrays(10 * n, d)
        river, ours = f"`learn_one`, d = {d:,}, {LINEAR}", LDPASGDRegressor(budget="mu=1", features=names)
        found[river] = Work(learning(linear_model.LinearRegression(), pairs), n)
        found[f"`learn_one`, d = {d:,}"] = Work(learning(ours, pairs), n, river, 1.0)
        found[f"`learn_arrays`, d = {d:,}"] = arrays_of(ours, X, y)
        if d > 10:
            before = f"`learn_arrays`, d = {d // 10:,}"
            found[f"`learn_arrays`, d = {d:,}"] = arrays_of(ours, X, y, None, before, 0.1)
    labels = list(range(10))
    pairs = [(x, i % 10) for i, (x, _) in enumerate(records_of(500))]
    rival = "`learn_one`, River's SoftmaxRegression, 10 classes"
    softmax = LDPASGDClassifier(loss="softmax", classes=labels, budget="mu=1", features=FEATURES)
    found[rival] = Work(learning(linear_model.SoftmaxRegression(), pairs), len(pairs))
    found["`learn_one`, softmax, 10 classes"] = Work(learning(softmax, pairs), len(pairs), rival, 1.0)
    return compared(found)


GROWTH = 1.1
"""The largest exponent of the time of a record against a size that is a goal."""


def growth() -> list[Row]:
    """The time of a record against columns, classes, groups, people and the size of a window."""

    def arrays(kind: Any, d: int, n: int, people: int = 0, **given: Any) -> Work:
        X, y = make_arrays(n, d)
        subjects = [i % people for i in range(n)] if people else None

        def run() -> None:
            ledger = streamdp.Ledger("eps=1e6") if people else None
            model = kind(features=[f"x{j}" for j in range(d)], ledger=ledger, **given)
            model.learn_arrays(X, y % len(given["classes"]) // 1 if "classes" in given else y, None, subjects)
            model.close_batch()

        return Work(run, n)

    def grouped(groups: int) -> Work:
        names, n = [str(i) for i in range(groups)], 100_000
        frame = pl.DataFrame({"x": np.linspace(0, 1, n), "g": [names[i % groups] for i in range(n)]})
        model = private.Statistics({"m": {"mean": "x", "by": "g"}}, {"x": (0, 1), "g": names})
        return Work(lambda: model.learn_many(frame), n)

    window, rows_of = streamdp.WindowedRegressor, lambda d: max(5_000, 400_000 // d)
    works: dict[str, dict[int, Work]] = {
        f"columns, {kind.__name__}": {d: arrays(kind, d, rows_of(d)) for d in sizes}
        for kind, sizes in (
            (LDPASGDRegressor, (5, 50, 200, 1_000)),
            (PanPrivateRegressor, (5, 50, 200)),
            (ShuffleRegressor, (5, 20, 50)),
        )
    }
    works |= {
        "columns, WindowedRegressor": {d: arrays(window, d, rows_of(d), window=rows_of(d)) for d in (5, 50, 200)},
        "classes, LDPASGDClassifier": {
            k: arrays(LDPASGDClassifier, 10, 20_000, loss="softmax", classes=list(range(k))) for k in (3, 10, 100)
        },
        "groups, Statistics": {k: grouped(k) for k in (10, 100, 1_000, 10_000)},
        "people, LDPASGDRegressor under a cap": {
            k: arrays(LDPASGDRegressor, 10, k, people=k) for k in (10_000, 100_000, 1_000_000, 5_000_000)
        },
        "records of a window": {n: arrays(window, 10, n, window=n) for n in (10_000, 100_000, 1_000_000)},
    }
    rows = []
    for what, sizes in works.items():
        with one_core():
            best = best_seconds({str(size): work.run for size, work in sizes.items()}, 5, time.process_time)
        times = {size: best[str(size)] / work.records for size, work in sizes.items()}
        steps = itertools.pairwise(times.items())
        slopes = [math.log(after / before) / math.log(large / small) for (small, before), (large, after) in steps]
        measured = ", ".join(f"{size:,}: {1e6 * seconds:.3g} µs" for size, seconds in times.items())
        beside = "exponents " + ", ".join(f"{slope:.2f}" for slope in slopes)
        rows.append(Row(f"a record against {what}", measured, beside, f"at most {GROWTH}", max(slopes) <= GROWTH))
    return rows


def statistics() -> list[Row]:
    """Single values beside River's statistics, and means by group of a table beside polars."""
    values, found = np.random.default_rng(0).uniform(0, 1, 20_000), {}
    n, numbers = len(values), values.tolist()

    def updating(one: Any, by: int = 0) -> Callable[[], None]:
        names = [str(i % by) for i in range(n)] if by else [None] * n

        def loop() -> None:
            for value, name in zip(numbers, names, strict=True):
                one.update(value) if name is None else one.update(value, name)

        return loop

    several = [str(i) for i in range(10)]
    for name, rival, one, by in (
        ("Mean", stats.Mean(), private.Mean((0, 1)), 0),
        ("Mean, by 10 groups", stats.Mean(), private.Mean((0, 1), by=several), 10),
        ("Mean, a shuffler", stats.Mean(), private.Mean((0, 1), trust="shuffler"), 0),
        ("Quantile", stats.Quantile(0.5), private.Quantile(0.5, (0, 1)), 0),
    ):
        beside = f"`update`, River's {type(rival).__name__}"
        found[beside] = Work(updating(rival), n)
        found[f"`update`, {name}"] = Work(updating(one, by), n, beside, 0.1)
    for groups in (10, 1_000):
        names = [str(i) for i in range(groups)]
        frame = pl.DataFrame({"x": values, "g": [names[i % groups] for i in range(n)]})
        model = private.Statistics({"m": {"mean": "x", "by": "g"}}, {"x": (0, 1), "g": names})
        rival = f"polars' means by {groups:,} groups"
        found[rival] = Work(lambda frame=frame: frame.group_by("g").agg(pl.col("x").mean()), n)  # type: ignore[misc]
        found[f"`learn_many`, means by {groups:,} groups"] = Work(
            lambda model=model, frame=frame: model.learn_many(frame),  # type: ignore[misc]
            n,
            rival,
            0.5,
        )
    return compared(found)


# -- batches, windows and users -------------------------------------------------------------------------------------


def batches() -> list[Row]:
    """What is done with all people of a batch: figures of commit 466d1ff times three are the goals that are known."""
    users, items = 10_000, 16
    X, y = make_arrays(users * items)
    people = [b"%d" % (i // items) for i in range(users * items)]
    budget = "eps=1,delta=1e-6"

    def window() -> None:
        model = streamdp.WindowedRegressor(features=FEATURES, budget=budget, items_per_user=items, window=len(people))
        model.learn_arrays(X, y, subjects=people)

    few, several = 1_000, people[: 1_000 * items]
    user = streamdp.UserLevelLDPRegressor(features=FEATURES, items_per_user=items, window=len(several))

    loss = Logistic()
    params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), loss.bound, users, len(FEATURES), loss.sensitivity)
    vectors = np.random.default_rng(0).normal(size=(users, len(FEATURES)))
    vectors *= loss.bound / np.linalg.norm(vectors, axis=1, keepdims=True)
    messages = LocalRandomizer(params).messages(vectors)

    def mix() -> None:
        shuffler = Shuffler(params)
        shuffler.collect(messages)
        shuffler.forward()

    bits = users * params.d * (params.g + params.b)
    return compared(
        {
            f"window of {users:,} users with {items} records each, learned and released: records": Work(
                window, len(people)
            ),
            f"reports of users with {items} records each: reports": Work(
                lambda: user.learn_arrays(X[: len(several)], y[: len(several)], subjects=several), few
            ),
            "shuffler, collect and forward: bits": Work(mix, bits, least=3 * 152e6),
        }
    )


# -- from a file to a committed model --------------------------------------------------------------------------------


def write_file(path: Path, rows: int, *, people: bool = False) -> None:
    X, y = make_arrays(rows)
    frame = pl.DataFrame({name: X[:, j] for j, name in enumerate(FEATURES)} | {"y": y})
    if people:
        numbers = np.random.default_rng(2).integers(0, SUBJECTS, rows)
        frame = frame.with_columns(person=pl.format("person-{}", pl.Series(numbers)))
    if path.suffix == ".csv":
        frame.write_csv(path, float_precision=12)
    else:
        frame.write_parquet(path)


def job(
    folder: Path,
    path: str,
    budget: str = "mu=1",
    cap: str | None = None,
    records: int = 10_000,
    trust: str | None = None,
) -> JobConfig:
    schema: dict[str, Any] = {"features": {name: [-1, 1] for name in FEATURES}, "target": {"column": "y"}}
    settings: dict[str, Any] = {
        "job": "speed",
        "source": {"path": path, "type": Path(path).suffix[1:]},
        "schema": schema,
        "model": {"trust": trust} if trust else {"estimator": "LDPASGDRegressor", "budget": budget},
        "store": str(folder / "speed.db"),
        "commit": {"records": records, "seconds": 1000},
    }
    if cap is not None:
        schema["subject"] = "person"
        settings["cap"] = cap
    return make_config(settings)


def run_job(config: JobConfig, rows: int) -> None:
    """From nothing to a committed model, put together as `streamdp run` does."""
    for old in Path(config.store_path).parent.glob("speed.db*"):
        old.unlink()
    source = config.source.build(config.build_schema())
    with Store(
        config.store_path, config.job, config.fingerprint(), cap=config.cap_budget, config=config.text()
    ) as store:
        counts = Runner(
            source,
            config.build_estimator(store.ledger),
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            publish=[Publisher(config, (lambda snapshot, measures: None,))],
        ).run()
    source.close()
    if counts.learned != rows:
        raise RuntimeError(f"expected {rows} records learned, got {counts}")


def river_csv(path: Path) -> None:
    model = linear_model.LinearRegression()
    columns = stream.iter_csv(str(path), target="y", converters=dict.fromkeys([*FEATURES, "y"], float))
    for x, y in itertools.islice(columns, RIVER_ROWS):
        model.learn_one(x, y)


def expression(path: str, read: Callable[[str], pl.DataFrame]) -> None:
    """The same predictions by a linear expression, read and written as they are."""
    terms = [pl.col(name) * weight for name, weight in zip(FEATURES, np.linspace(-1, 1, 10).tolist(), strict=True)]
    frame = read(path).with_columns(prediction=pl.sum_horizontal(terms))
    with open(os.devnull, "wb") as out:
        (frame.write_csv if path.endswith("csv") else frame.write_parquet)(out)


def predict(folder: Path, path: str) -> None:
    """As the command does, by the model that was committed last."""
    model = committed(str(folder / "speed.db"))
    with open(os.devnull, "wb") as out:
        predict_file(model, file_like(path, model.definition.written, ()), out)


def from_files(folder: Path) -> list[Row]:
    found: dict[str, Work] = {}
    for ending, read in (("csv", pl.read_csv), ("parquet", pl.read_parquet)):
        for people, goal in ((False, 0.4), (True, 0.25)):
            path = folder / f"{people}.{ending}"
            write_file(path, FILE_ROWS, people=people)
            what = f"{SUBJECTS:,} subjects under a cap" if people else "plain"
            rival = f"polars' read of this {ending} file, {what}"
            found[rival] = Work(lambda path=path, read=read: read(path), FILE_ROWS)  # type: ignore[misc]
            for records in (10_000, 100_000):
                config = job(folder, str(path), cap="mu=10" if people else None, records=records)
                name = f"{ending} to committed model, {what}, commits every {records:,}"
                found[name] = Work(lambda config=config: run_job(config, FILE_ROWS), FILE_ROWS, rival, goal)  # type: ignore[misc]
        plain, rival = str(folder / f"False.{ending}"), f"polars' read of this {ending} file, plain"
        window = job(folder, plain, records=FILE_ROWS, trust="window")
        name = f"{ending} to committed model, one window"
        found[name] = Work(lambda window=window: run_job(window, FILE_ROWS), FILE_ROWS, rival, 0.25)  # type: ignore[misc]
        rival = f"polars' expression, {ending} to {ending}"
        found[rival] = Work(lambda plain=plain, read=read: expression(plain, read), FILE_ROWS)  # type: ignore[misc]
        found[f"`streamdp predict`, {ending} to {ending}"] = Work(
            lambda plain=plain: predict(folder, plain),  # type: ignore[misc]
            FILE_ROWS,
            rival,
            0.5,
        )
    found["River's `iter_csv` and LinearRegression, no commits"] = Work(
        lambda: river_csv(folder / "False.csv"), RIVER_ROWS
    )
    return compared(found, whole_machine=True)


# -- memory ----------------------------------------------------------------------------------------------------------

# The kernel's high-water mark of this address space: `getrusage` would count the parent's before the exec.
PEAK = """
import sys
from streamdp.cli.main import run_command
try:
    sys.exit(run_command())
finally:
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


def peak_bytes(folder: Path, block: bytes, header: bytes, blocks: int, options: Sequence[str]) -> int:
    """The peak resident memory of `streamdp run -` with `options`, given `block` so many times."""
    for old in folder.glob("speed.db*"):
        old.unlink()
    bounds = [argument for name in FEATURES for argument in ("--feature", f"{name}=-1:1")]
    command = [sys.executable, "-c", PEAK, "run", "-", "--target", "y", "--target-bounds", "-10:10", *bounds]
    command += [*options, "--store", str(folder / "speed.db")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(header)
        for _ in range(blocks):
            process.stdin.write(block)
        process.stdin.close()
        answer = process.stderr.read()
    if process.returncode:
        raise RuntimeError(answer.decode())
    snapshot = Store.snapshot(folder / "speed.db")
    assert snapshot is not None
    assert total(snapshot.counts) == blocks * block.count(b"\n")
    return int(answer.split()[-1]) * 1024


def memory(folder: Path) -> list[Row]:
    few, many = MEMORY_ROWS
    path = folder / "block.csv"
    write_file(path, few)
    header, newline, block = path.read_bytes().partition(b"\n")
    rows = []
    for trust, options in ("nobody", ["--trust", "nobody", "--budget", "mu=1"]), ("the default, windows", []):
        small, large = (peak_bytes(folder, block, header + newline, n // few, options) for n in (few, many))
        more = (large - small) / MIB
        what = f"peak memory of `streamdp run -`, {many:,} rows, {trust}"
        measured, beside = f"{large / MIB:.0f} MiB", f"{few:,} rows: {small / MIB:.0f} MiB; {more:+.1f} MiB"
        goal = ("within 20 MiB", more <= 20) if trust == "nobody" else ("", None)
        rows.append(Row(what, measured, beside, *goal))
    return rows


# -- start -----------------------------------------------------------------------------------------------------------

ONE = f"model.learn_one(dict.fromkeys({FEATURES!r}, 0.5), 1.0)"
FIRST = f"""
from streamdp import LDPASGDRegressor
model = LDPASGDRegressor(budget="mu=1", features={FEATURES!r})
{ONE}
"""
RIVERS_FIRST = f"""
from river.linear_model import LinearRegression
model = LinearRegression()
{ONE}
"""


def environment() -> dict[str, str]:
    """That of a process that finds streamdp, and writes the modules that it compiles."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}


def processor_time_of_children() -> float:
    """Seconds of the processor that ended children of this process took, for themselves and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout


def start(folder: Path) -> list[Row]:
    """Seconds of processor time of processes whose modules are compiled and in the page cache; the least of ten."""
    data, store = folder / "thousand.csv", str(folder / "thousand.db")
    write_file(data, 1_000)
    bounds = [argument for name in FEATURES for argument in ("--feature", f"{name}=-1:1")]
    run = ["run", str(data), "--target", "y", "--target-bounds", "-10:10", *bounds, "--store", store]

    def command(*arguments: str) -> Callable[[], object]:
        line = [sys.executable, "-m", "streamdp", *arguments]
        return lambda: subprocess.run(line, env=environment(), check=True, capture_output=True)

    def learn() -> None:
        for old in folder.glob("thousand.db*"):
            old.unlink()
        command(*run)()

    found: dict[str, tuple[float, Callable[[], object]]] = {
        "the bare interpreter": (math.inf, lambda: python("pass")),
        "numpy's import": (math.inf, lambda: python("import numpy")),
        "River's import and first `learn_one`": (math.inf, lambda: python(RIVERS_FIRST)),
        "`import streamdp`": (0.3, lambda: python("import streamdp")),
        "import and first `learn_one`": (1.5, lambda: python(FIRST)),
        "`streamdp --version`": (0.05, command("--version")),
        "`streamdp --help`": (0.3, command("--help")),
        "`streamdp run` of 1,000 rows": (0.8, learn),
        "`streamdp status`": (0.3, command("status", store)),
        "`streamdp weights`": (0.5, command("weights", store)),
    }
    seconds = best_seconds({name: run for name, (_, run) in found.items()}, 10, processor_time_of_children)
    rows = []
    for name, (goal, _) in found.items():
        text, met = (f"{goal:g} s", seconds[name] <= goal) if goal < math.inf else ("", None)
        rows.append(Row(name, f"{seconds[name]:.2f} s", "", text, met))
    return rows


# -- the table -------------------------------------------------------------------------------------------------------


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{kind}, {os.cpu_count()} cores"


def machine() -> str:
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    names = ("streamdp", "numpy", "polars", "river", "cryptography")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"Machine: {cpu()}, {gigabytes:.0f} GiB, {platform.system()} {platform.release()}; load "
        f"average at the start {os.getloadavg()[0]:.1f}. Python {platform.python_version()}, {versions}."
    )


def version(name: str) -> str:
    if name == "streamdp":  # it may not be installed, only be on the path
        import streamdp

        return streamdp.__version__
    return importlib.metadata.version(name)


def shown(rows: list[Row]) -> str:
    return table(["what", "measured", "beside", "goal", "met"], [row.cells() for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="Measure speed and memory.")
    parser.add_argument("--write", action="store_true", help=f"put the table into {README.name}")
    parser.add_argument("--track", action="store_true", help=f"add the run to {TRACKED.name}, beside those before")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], list[Row]]] = {
            "predict": single_predictions,
            "learn": single_records,
            "people": people,
            "progressive": progressive,
            "arrays": in_arrays,
            "sizes": sizes,
            "growth": growth,
            "statistics": statistics,
            "batches": batches,
            "files": lambda: from_files(folder),
            "start": lambda: start(folder),
            "memory": lambda: memory(folder),
        }
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all")
        arguments = parser.parse_args()
        if arguments.write and arguments.parts:
            parser.error("--write is for the whole table")
        about = machine()
        print(about, flush=True)
        rows = []
        for part in arguments.parts or parts:
            found = parts[part]()
            for row in found:
                print(" | ".join(row.cells()), flush=True)
            rows += found
    if arguments.write:
        fill(README, "speed", f"{about}\n\n{shown(rows)}")
    if arguments.write or arguments.track:
        known = {row.what: row.rate for row in rows if row.rate is not None}
        beside = {row.what: known.pop(row.what) for row in rows if row.beside and row.what in known}
        print(*track(run_of(streamdp.__version__, cpu(), beside, known), TRACKED), sep="\n")


if __name__ == "__main__":
    main()
