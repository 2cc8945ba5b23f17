"""How fast streamdp is and how much memory it takes. Run with `python -m benchmarks.speed [--write]`; Linux only.

Ten features, cryptographic noise, one run. Contenders take turns, so that a busy machine slows all of them, and the
best of several rounds counts, for whatever else runs can only add time. `--write` puts the table into README.md beside
this file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from river import linear_model, stream

from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.config.job import JobConfig, make_config
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Runner
from streamdp.serving.publish import Publisher
from streamdp.store.store import Store

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"

FEATURES = [f"x{j}" for j in range(10)]
SUBJECTS = 100_000
CSV_ROWS, RIVER_ROWS = 1_000_000, 100_000
MEMORY_ROWS = (100_000, 10_000_000)
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, beside what, and what it should be."""

    what: str
    measured: str
    beside: str = ""
    goal: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "yes", False: "**no**"}[self.met]
        return self.what, self.measured, self.beside, self.goal, verdict


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The least time of each contender by `clock`; they take turns."""
    best = dict.fromkeys(contenders, math.inf)
    for _ in range(rounds):
        for name, contend in contenders.items():
            started = clock()
            contend()
            best[name] = min(best[name], clock() - started)
    return best


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process to one core. What runs on one core and waits for nothing is timed by `process_time`."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def make_arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (rows, len(FEATURES)))
    return X, X @ np.linspace(-1, 1, len(FEATURES)) + rng.normal(0, 0.5, rows)


# -- one record at a time ------------------------------------------------------------------------------------------


def one_by_one() -> list[Row]:
    X, y = make_arrays(2_000)
    records = [
        (dict(zip(FEATURES, values, strict=True)), target)
        for values, target in zip(X.tolist(), y.tolist(), strict=True)
    ]
    labelled = [(x, target > 0) for x, target in records]

    def learn(model: Any, pairs: list[tuple[dict[str, float], Any]]) -> Callable[[], None]:
        def loop() -> None:
            for x, target in pairs:
                model.learn_one(x, target)

        return loop

    river = "River LinearRegression, no privacy"
    river_classes = "River LogisticRegression, no privacy"
    contenders = {
        river: learn(linear_model.LinearRegression(), records),
        "LDPASGDRegressor, mu=1, Gaussian": learn(LDPASGDRegressor(budget="mu=1", features=FEATURES), records),
        "LDPASGDRegressor, eps=1, Laplace": learn(
            LDPASGDRegressor(budget="eps=1", mechanism="laplace", features=FEATURES), records
        ),
        "LDPASGDRegressor, eps=1, PrivUnit": learn(LDPASGDRegressor(budget="eps=1", features=FEATURES), records),
        river_classes: learn(linear_model.LogisticRegression(), labelled),
        "LDPASGDClassifier, mu=1, Gaussian": learn(LDPASGDClassifier(budget="mu=1", features=FEATURES), labelled),
        "LDPASGDClassifier, eps=1, PrivUnit": learn(LDPASGDClassifier(budget="eps=1", features=FEATURES), labelled),
    }
    with one_core():
        seconds = best_seconds(contenders, 100, time.process_time)
    rows = []
    for name in contenders:
        if name in (river, river_classes):
            continue
        other = river_classes if "Classifier" in name else river
        ratio = seconds[other] / seconds[name]
        measured, theirs = (f"{seconds[k] / len(records) * 1e6:.1f} µs" for k in (name, other))
        beside = f"{other}: {theirs}; {ratio:.2f} times as fast"
        rows.append(Row(f"`learn_one`, {name}", measured, beside, "1 (2 wished)", ratio >= 1))
    return rows


# -- arrays --------------------------------------------------------------------------------------------------------


def in_arrays() -> list[Row]:
    X, y = make_arrays(50_000)
    budgets = np.random.default_rng(1).uniform(0.5, 2, len(y))
    models = {
        "mu=1, Gaussian": ("mu=1", "gaussian"),
        "eps=1, Laplace": ("eps=1", "laplace"),
        "eps=1, PrivUnit": ("eps=1", "privunit"),
        "no noise": ("eps=1", "none"),
    }
    contenders: dict[str, Callable[[], object]] = {}
    for name, (budget, mechanism) in models.items():
        model = LDPASGDRegressor(budget=budget, mechanism=mechanism, features=FEATURES)
        contenders[name] = lambda model=model: model.learn_arrays(X, y)
        if mechanism != "none":
            contenders[f"{name}, a budget for each record"] = lambda model=model: model.learn_arrays(X, y, budgets)
    with one_core():
        seconds = best_seconds(contenders, 60, time.process_time)
    rows = []
    for name, time_s in seconds.items():
        rate = len(y) / time_s
        beside = f"{seconds['no noise'] / time_s:.2f} of the rate without noise" if name != "no noise" else ""
        rows.append(Row(f"`learn_arrays` on one core, {name}", f"{rate / 1e6:.1f} M/s", beside, "5 M/s", rate >= 5e6))
    return rows


# -- from a file to a committed model --------------------------------------------------------------------------------


def write_csv(path: Path, rows: int, *, people: bool = False) -> None:
    X, y = make_arrays(rows)
    frame = pl.DataFrame({name: X[:, j] for j, name in enumerate(FEATURES)} | {"y": y})
    if people:
        numbers = np.random.default_rng(2).integers(0, SUBJECTS, rows)
        frame = frame.with_columns(person=pl.format("person-{}", pl.Series(numbers)))
    frame.write_csv(path, float_precision=12)


def job(folder: Path, path: str, budget: str = "mu=1", cap: str | None = None, records: int = 10_000) -> JobConfig:
    schema: dict[str, Any] = {"features": {name: [-1, 1] for name in FEATURES}, "target": {"column": "y"}}
    settings: dict[str, Any] = {
        "job": "speed",
        "source": {"path": path},
        "schema": schema,
        "model": {"estimator": "LDPASGDRegressor", "budget": budget},
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
    source = config.build_source(config.build_schema())
    with Store(
        config.store_path, config.job, config.fingerprint(), cap=config.cap_budget, config=config.text()
    ) as store:
        counts = Runner(
            source,
            config.build_estimator(store.ledger),
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            publish=[Publisher(None, None, (lambda snapshot, measures: None,))],
        ).run()
    source.close()
    if counts.learned != rows:
        raise RuntimeError(f"expected {rows} records learned, got {counts}")


def river_csv(path: Path) -> None:
    model = linear_model.LinearRegression()
    columns = stream.iter_csv(str(path), target="y", converters=dict.fromkeys([*FEATURES, "y"], float))
    for x, y in itertools.islice(columns, RIVER_ROWS):
        model.learn_one(x, y)


def from_csv(folder: Path) -> list[Row]:
    path, with_people = folder / "rows.csv", folder / "people.csv"
    write_csv(path, CSV_ROWS)
    write_csv(with_people, CSV_ROWS, people=True)
    ledgers = f"{SUBJECTS:,} subjects under a cap, commits every"
    jobs = {
        "commits every 10,000, mu=1": job(folder, str(path)),
        "commits every 100,000, mu=1": job(folder, str(path), records=100_000),
        "commits every 10,000, eps=1 (PrivUnit)": job(folder, str(path), budget="eps=1"),
        f"{ledgers} 10,000, mu=1": job(folder, str(with_people), cap="mu=10"),
        f"{ledgers} 100,000, mu=1": job(folder, str(with_people), cap="mu=10", records=100_000),
    }
    contenders: dict[str, Callable[[], object]] = {
        name: lambda config=config: run_job(config, CSV_ROWS) for name, config in jobs.items()
    }
    floor, river = "polars alone", "River"
    contenders[floor] = lambda: pl.read_csv(path)
    contenders[river] = lambda: river_csv(path)
    seconds = best_seconds(contenders, 4)
    rates = {name: CSV_ROWS / seconds[name] for name in (*jobs, floor)}
    slow = RIVER_ROWS / seconds[river]
    rows = []
    for name in jobs:
        beside = (
            f"River `iter_csv` and LinearRegression, first {RIVER_ROWS:,} rows, no commits: {slow / 1e6:.3f} M rows/s; "
            f"{rates[name] / slow:.1f} times as fast"
        )
        met = rates[name] >= 1e6 and rates[name] >= 5 * slow
        goal = ("", None) if ledgers in name else ("1 M rows/s, 5 times River", met)
        rows.append(Row(f"CSV to committed model, {name}", f"{rates[name] / 1e6:.2f} M rows/s", beside, *goal))
    rows.append(Row("the same file, only read, by `polars.read_csv`", f"{rates[floor] / 1e6:.2f} M rows/s"))
    return rows


# -- memory ----------------------------------------------------------------------------------------------------------

# The kernel's high-water mark of this address space: `getrusage` would count the parent's before the exec.
PEAK = """
import sys
from streamdp.cli.main import main
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


def peak_bytes(folder: Path, block: bytes, header: bytes, blocks: int) -> int:
    """The peak resident memory of `streamdp run -`, given `block` so many times."""
    for old in folder.glob("speed.db*"):
        old.unlink()
    bounds = [argument for name in FEATURES for argument in ("--feature", f"{name}=-1:1")]
    command = [sys.executable, "-c", PEAK, "run", "-", "--target", "y", *bounds, "--budget", "mu=1"]
    command += ["--store", str(folder / "speed.db")]
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
    write_csv(path, few)
    header, newline, block = path.read_bytes().partition(b"\n")
    small, large = (peak_bytes(folder, block, header + newline, rows // few) for rows in (few, many))
    more = (large - small) / MIB
    beside = f"{few:,} rows: {small / MIB:.0f} MiB; {more:+.1f} MiB"
    what = f"peak memory of `streamdp run -`, {many:,} rows"
    return [Row(what, f"{large / MIB:.0f} MiB", beside, "within 20 MiB", more <= 20)]


# -- start -----------------------------------------------------------------------------------------------------------

FIRST = f"""
import time
started = time.perf_counter()
from streamdp import LDPASGDRegressor
model = LDPASGDRegressor(budget="mu=1", features={FEATURES!r})
model.learn_one(dict.fromkeys({FEATURES!r}, 0.5), 1.0)
print(time.perf_counter() - started)
"""


def environment(**more: str) -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))} | more


def python(code: str, **more: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(**more), check=True, capture_output=True, text=True).stdout


def start(folder: Path) -> list[Row]:
    seconds = best_seconds({"bare": lambda: python("pass"), "import": lambda: python("import streamdp")}, 7)
    load = seconds["import"] - seconds["bare"]
    first = min(float(python(FIRST)) for _ in range(5))
    bare = f"the bare interpreter, not counted: {seconds['bare'] * 1000:.0f} ms"
    return [
        Row("`import streamdp`", f"{load * 1000:.0f} ms", bare, "500 ms", load < 0.5),
        Row("import and first `learn_one`", f"{first:.2f} s", "also after installing", "1.5 s", first < 1.5),
    ]


# -- the table -------------------------------------------------------------------------------------------------------


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    names = ("streamdp", "numpy", "polars", "river", "SQLAlchemy", "cryptography")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"Machine: {cpu}, {os.cpu_count()} cores, {gigabytes:.0f} GiB, {platform.system()} {platform.release()}; load "
        f"average at the start {os.getloadavg()[0]:.1f}. Python {platform.python_version()}, {versions}."
    )


def version(name: str) -> str:
    if name == "streamdp":  # it may not be installed, only be on the path
        import streamdp

        return streamdp.__version__
    return importlib.metadata.version(name)


def table(rows: list[Row]) -> str:
    lines = [("what", "measured", "beside", "goal", "met"), ("---",) * 5, *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def write_between(file: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a file."""
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{file} lacks the lines {begin} and {end}")
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description="Measure speed and memory.")
    parser.add_argument("--write", action="store_true", help=f"put the table into {README.name}")
    arguments = parser.parse_args()
    about = machine()
    print(about, flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [
            one_by_one,
            in_arrays,
            lambda: from_csv(folder),
            lambda: memory(folder),
            lambda: start(folder),
        ]
        rows = []
        for measure in parts:
            found = measure()
            for row in found:
                print(" | ".join(row.cells()), flush=True)
            rows += found
    text = f"{about}\n\n{table(rows)}"
    if arguments.write:
        write_between(README, BEGIN, END, text)


if __name__ == "__main__":
    main()
