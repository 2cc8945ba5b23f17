"""What is left of raw records in the memory of a process: a child learns, and its parent reads all of its memory.

`python -m tests.memory_dump CASE` is the child: it learns `SECRETS` records whose values have patterns that nothing
else has, and waits at each stage until its parent has looked. Linux only: /proc/<pid>/mem of a child of one's own.
`measure` is the parent. The control makes the same records in the same way and learns none: what it leaves behind is
the caller's.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdp import GaussianDP, PanPrivateRegressor

SECRETS, MORE, FEATURES, SEED = 200, 1000, 8, 20
NAMES = [f"x{j}" for j in range(FEATURES)]
STAGES = ("within the batch", "batch ended", "1,000 records later", "after gc.collect()")
CASES = ("control: dicts", "learn_one", "control: arrays", "learn_arrays", "csv")
_LOW = 0.71093750  # all secrets are within 2^-12 above it: the first 24 bits of the doubles are the same
_SIGN = int(np.float64(_LOW).view(np.uint64)) >> 40


def secret(place: int) -> float:
    """The value at a place (record times columns, plus column), computed afresh so that no table of them is in memory."""
    return _LOW + (place * 0.6180339887498949 % 1.0) * 2.0**-12


def ordinary(place: int) -> float:
    return (place * 0.7548776662466927 % 1.0) - 1.0


def all_secrets() -> np.ndarray:
    return np.array([secret(place) for place in range(1, SECRETS * (FEATURES + 1) + 1)])


# --- the child


def values(value: Callable[[int], float], record: int) -> Iterator[float]:
    """The features of a record and its target."""
    return (value(record * (FEATURES + 1) + column + 1) for column in range(FEATURES + 1))


def estimator() -> PanPrivateRegressor:
    return PanPrivateRegressor(
        budget=GaussianDP(1), features=NAMES, seed=SEED, horizon=100 * SECRETS, batch_size=SECRETS + 1
    )


def wait(stage: str) -> None:
    print(stage, flush=True)
    sys.stdin.readline()


def learn_dicts(model: PanPrivateRegressor | None, value: Callable[[int], float], count: int) -> None:
    for record in range(count):
        *x, y = values(value, record)
        features = dict(zip(NAMES, x, strict=True))
        if model is not None:
            model.learn_one(features, y)


def learn_arrays(model: PanPrivateRegressor | None, value: Callable[[int], float], count: int) -> None:
    rows = np.empty((count, FEATURES + 1))
    for record in range(count):
        for column, number in enumerate(values(value, record)):
            rows[record, column] = number
    X, y = rows[:, :FEATURES].copy(), rows[:, FEATURES].copy()
    rows[:] = 0
    if model is not None:
        model.learn_arrays(X, y)


def by_calls(learn: Callable[..., None], learns: bool) -> None:
    model = estimator()
    learn(model, ordinary, SECRETS + 1)  # everything is compiled and allocated
    target = model if learns else None
    learn(target, secret, SECRETS)
    wait(STAGES[0])
    learn(target, ordinary, 1)
    wait(STAGES[1])
    learn(target, ordinary, MORE)
    wait(STAGES[2])
    gc.collect()
    wait(STAGES[3])


def by_runner() -> None:
    """`streamdp run` on a CSV file: source, runner and store. It polls whole batches, so none is open in between."""
    from connectors.files import CSVSource
    from streamdp.runner import Progress, Runner
    from streamdp.schema import Schema
    from streamdp.store import Store

    folder = Path(sys.stdin.readline().strip())
    schema = Schema({name: (-1.0, 1.0) for name in NAMES}, "y")
    at = iter(((STAGES[1], SECRETS + 1), (STAGES[2], SECRETS + 1 + MORE)))
    due = [next(at)]

    def look(progress: Progress) -> None:
        if due and progress.counts.learned >= due[0][1]:
            stage, _ = due.pop()
            due.extend(next(at, None) and [(STAGES[2], SECRETS + 1 + MORE)] or [])
            wait(stage)

    def run() -> None:
        model = estimator_for_files()
        with Store(folder / "job.db", "job", "f") as store:
            source = CSVSource(folder / "records.csv", schema)
            Runner(source, model, store, on_progress=look).run()
            source.close()

    run()
    gc.collect()
    wait(STAGES[3])
