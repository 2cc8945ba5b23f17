"""How fast the estimators are that learn in batches. Run with `python -m benchmarks.batched_speed [--write]`.

As `speed`: ten features, cryptographic noise, contenders take turns and the best of several rounds counts. All of it
runs on one core and is timed by its clock. `--write` puts the table into README.md beside this file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from river import linear_model

from benchmarks.speed import FEATURES, README, Row, best_seconds, machine, make_arrays, one_core, table, write_between
from streamdp import PanPrivateClassifier, PanPrivateRegressor, ShuffleClassifier, ShuffleRegressor
from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.optim.losses import Logistic
from streamdp.privacy.guarantees import ApproxDP

BEGIN, END = "<!-- batched: begin -->", "<!-- batched: end -->"
HORIZON = 1_000_000
USERS = 10_000


def one_by_one() -> list[Row]:
    """`learn_one` against River."""
    X, y = make_arrays(2_000)
    records = [
        (dict(zip(FEATURES, row, strict=True)), target) for row, target in zip(X.tolist(), y.tolist(), strict=True)
    ]
    labelled = [(x, target > 0) for x, target in records]

    def learn(model: Any, pairs: list[tuple[dict[str, float], Any]]) -> Callable[[], None]:
        def loop() -> None:
            for x, target in pairs:
                model.learn_one(x, target)

        return loop

    options: dict[str, Any] = {"features": FEATURES}
    numbers, labels = "River LinearRegression, no privacy", "River LogisticRegression, no privacy"
    rivals = {
        "PanPrivateRegressor": (numbers, PanPrivateRegressor(**options), records),
        "PanPrivateClassifier": (labels, PanPrivateClassifier(**options), labelled),
        "ShuffleRegressor": (numbers, ShuffleRegressor(**options), records),
        "ShuffleClassifier": (labels, ShuffleClassifier(**options), labelled),
    }
    contenders = {name: learn(model, pairs) for name, (_, model, pairs) in rivals.items()}
    contenders[numbers] = learn(linear_model.LinearRegression(), records)
    contenders[labels] = learn(linear_model.LogisticRegression(), labelled)
    with one_core():
        seconds = best_seconds(contenders, 60, time.process_time)
    rows = []
    for name, (other, _, _) in rivals.items():
        ratio = seconds[other] / seconds[name]
        measured, theirs = (f"{seconds[k] / len(records) * 1e6:.1f} µs" for k in (name, other))
        beside = f"{other}: {theirs}; {ratio:.2f} times as fast"
        rows.append(Row(f"`learn_one`, {name}", measured, beside, "1 (2 wished)", ratio >= 1))
    return rows


def in_arrays() -> list[Row]:
    """`learn_arrays`, in plans for a million records."""
    X, y = make_arrays(200_000)
    labels = (y > 0).astype(float)
    options: dict[str, Any] = {"features": FEATURES}
    planned = options | {"horizon": HORIZON, "method": "ac-sa"}
    models = {
        "PanPrivateRegressor (Huber)": (PanPrivateRegressor(**options), y, 3e6),
        "PanPrivateClassifier (logistic)": (PanPrivateClassifier(**options), labels, 3e6),
        "ShuffleRegressor (Huber)": (ShuffleRegressor(**options), y, None),
        "ShuffleClassifier (logistic)": (ShuffleClassifier(**options), labels, None),
        'PanPrivateRegressor (Huber), method="ac-sa"': (PanPrivateRegressor(**planned), y, 3e6),
        'PanPrivateClassifier (logistic), method="ac-sa"': (PanPrivateClassifier(**planned), labels, 3e6),
        'ShuffleRegressor (Huber), method="ac-sa"': (ShuffleRegressor(**planned), y, None),
        'ShuffleClassifier (logistic), method="ac-sa"': (ShuffleClassifier(**planned), labels, None),
    }
    contenders: dict[str, Callable[[], object]] = {
        name: lambda model=model, target=target: model.learn_arrays(X, target)
        for name, (model, target, _) in models.items()
    }
    with one_core():
        seconds = best_seconds(contenders, 10, time.process_time)
    rows = []
    for name, (model, _, goal) in models.items():
        rate = len(y) / seconds[name]
        beside = f"batches of {model._walk.batch:,}"
        met = None if goal is None else rate >= goal
        rows.append(Row(f"`learn_arrays`, {name}", f"{rate / 1e6:.1f} M/s", beside, "3 M/s" if goal else "", met))
    return rows


def parties() -> list[Row]:
    """The three parties of a shuffled sum, each on one core, with every bit as a message of its own."""
    loss = Logistic()
    params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), loss.bound, USERS, len(FEATURES), "tight", loss.sensitivity)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(USERS, len(FEATURES)))
    vectors *= loss.bound / np.linalg.norm(vectors, axis=1, keepdims=True)
    local, analyzer = LocalRandomizer(params), Analyzer(params)
    messages = local.messages(vectors)
    mixed: list[Shuffled] = []

    def mix() -> None:
        shuffler = Shuffler(params)
        shuffler.collect(messages)
        mixed[:] = [shuffler.forward()]

    mix()
    contenders: dict[str, Callable[[], object]] = {
        "randomizer": lambda: local.messages(vectors),
        "counts": lambda: local.counts(vectors),
        "shuffler": mix,
        "analyzer": lambda: analyzer.sum(mixed[0]),
    }
    with one_core():
        seconds = best_seconds(contenders, 10, time.process_time)
    bits = USERS * params.bits_per_user
    per_user = f"{params.bits_per_user} bits a user, packed in {params.message_bytes} bytes"

    def rate(name: str, things: float) -> str:
        value = things / seconds[name]
        return f"{value / 1e9:.2f} G" if value >= 1e9 else f"{value / 1e6:.2f} M"

    return [
        Row(
            "randomizer, messages", f"{rate('randomizer', USERS)} users/s, {rate('randomizer', bits)} bits/s", per_user
        ),
        Row("randomizer, counts for a secure aggregator", f"{rate('counts', USERS)} users/s"),
        Row("shuffler, collect and forward", f"{rate('shuffler', bits)} bits/s, {rate('shuffler', USERS)} users/s"),
        Row("analyzer", f"{rate('analyzer', bits)} bits/s, {rate('analyzer', USERS)} users/s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batched_speed", description="Measure batched learning.")
    parser.add_argument("--write", action="store_true", help=f"put the table into {README.name}")
    write = parser.parse_args().write
    about = machine()
    print(about, flush=True)
    rows = []
    for measure in (one_by_one, in_arrays, parties):
        found = measure()
        for row in found:
            print(" | ".join(row.cells()), flush=True)
        rows += found
    if write:
        write_between(README, BEGIN, END, f"{about}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
