"""Figures of the decision records in docs/decisions. `python -m benchmarks.decisions NAME` prints those of one record.

Names: compiled, json, kafka (needs a JDK), databases (needs PostgreSQL's programs), noise, limits. Alternatives
that are no dependency of streamdp are left out if they are not installed: `pip install msgspec confluent-kafka opendp
diffprivlib`.
Contenders take turns and the best of the rounds counts. Processor time is printed unless a line says otherwise,
because other work on the machine changes it less. The storage engines of record 0001 have `benchmarks.ledger_engines`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from benchmarks.speed import (
    FEATURES,
    FILE_ROWS,
    FIRST,
    SUBJECTS,
    best_seconds,
    environment,
    job,
    keystream,
    machine,
    make_arrays,
    one_core,
    python,
    run_job,
    write_file,
)
from streamdp import GaussianDP, LDPASGDRegressor
from streamdp.config.job import JobConfig
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.ledger.subject_key import hash_subjects
from streamdp.store.snapshot import Counts
from streamdp.store.state_codec import encode_state
from streamdp.store.store import Store

ROUNDS = 3


def show(what: str, value: str) -> None:
    print(f"| {what} | {value} |", flush=True)


def show_rates(contenders: dict[str, Callable[[], object]], n: dict[str, int], unit: str, rounds: int = ROUNDS) -> None:
    seconds = best_seconds(contenders, rounds, time.process_time)
    for name, busy in seconds.items():
        show(name, f"{n[name] / busy:,.0f} {unit} per s of processor")


def installed(name: str) -> bool:
    found = importlib.util.find_spec(name) is not None
    if not found:
        show(name, "not installed")
    return found


# -- 0002: compiled loops ----------------------------------------------------------------------------------------------

C_LOOP = """
#include <math.h>
void learn(long n, long d, const double *X, const double *y, const double *Z, double *theta, double *mean) {
    for (long i = 0; i < n; i++) {
        double u = 0, radius = 0;
        for (long j = 0; j < d; j++) u += X[i * d + j] * theta[j];
        u = fmax(-1.0, fmin(1.0, u - y[i]));
        for (long j = 0; j < d; j++) theta[j] -= 0.1 / sqrt(i + 1.0) * (u * X[i * d + j] + Z[i * d + j]);
        for (long j = 0; j < d; j++) radius += theta[j] * theta[j];
        radius = sqrt(radius);
        for (long j = 0; j < d; j++) {
            if (radius > 4.0) theta[j] *= 4.0 / radius;
            mean[j] += (theta[j] - mean[j]) / (i + 1.0);
        }
    }
}
"""


def numpy_loop(X: np.ndarray, y: np.ndarray, Z: np.ndarray, theta: np.ndarray, mean: np.ndarray) -> None:
    """Huber gradient, given noise, step, projection to a ball, average, with numpy's operations for each record."""
    for i in range(len(y)):
        u = max(-1.0, min(1.0, float(X[i] @ theta) - y[i]))
        theta -= 0.1 / (i + 1.0) ** 0.5 * (u * X[i] + Z[i])
        radius = float(theta @ theta) ** 0.5
        if radius > 4.0:
            theta *= 4.0 / radius
        mean += (theta - mean) / (i + 1.0)


def c_loop(folder: Path) -> Callable[..., None]:
    """The loop compiled ahead of time, as Cython or Rust would."""
    (folder / "loop.c").write_text(C_LOOP)
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(folder / "loop.so"), str(folder / "loop.c")]
    subprocess.run([*command, "-lm"], check=True)
    learn = ctypes.CDLL(str(folder / "loop.so")).learn

    def run(*arrays: np.ndarray) -> None:
        learn(*map(ctypes.c_long, arrays[0].shape), *(ctypes.c_void_p(array.ctypes.data) for array in arrays))

    return run


def compiled() -> None:
    X, y = make_arrays(50_000)
    few = 5_000
    Z = np.random.default_rng(2).normal(0, 2, X.shape)
    loops: dict[str, tuple[Callable[..., None], int]] = {
        "reduced loop, numpy operations for each record": (numpy_loop, few),
    }
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("gcc"):
            loops["reduced loop, C by gcc -O3 -march=native"] = c_loop(Path(folder)), len(y)
        results = {}
        for name, (loop, _) in loops.items():
            results[name] = np.zeros(10), np.zeros(10)
            loop(X[:few], y[:few], Z[:few], *results[name])  # for the comparison below
        assert all(np.allclose(mean, next(iter(results.values()))[1]) for _, mean in results.values())
        contenders: dict[str, Callable[[], object]] = {
            name: lambda loop=loop, n=n: loop(X[:n], y[:n], Z[:n], np.zeros(10), np.zeros(10))
            for name, (loop, n) in loops.items()
        }
        sizes = {name: n for name, (_, n) in loops.items()}
        for mechanism in ("none", "gaussian"):
            name = f"LDPASGDRegressor.learn_arrays, mechanism={mechanism}"
            model = LDPASGDRegressor(budget="mu=1", mechanism=mechanism, features=[f"x{j}" for j in range(10)])
            contenders[name], sizes[name] = lambda model=model: model.learn_arrays(X, y), len(y)
        show_rates(contenders, sizes, "records", 10)
    first = FIRST.replace("perf_counter", "process_time")
    show("import and first `learn_one`", f"{min(float(python(first)) for _ in range(3)):.2f} s")
    for module in ("numpy", "streamdp"):
        code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        show(f"`import {module}`", f"{min(float(python(code)) for _ in range(3)) * 1000:.0f} ms")


# -- 0003: JSON --------------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    {"hour": (0, 24), "dep_delay": (-30, 180), "distance": (0, 3000), "origin": ["EWR", "JFK", "LGA"]},
    "arr_delay",
    target_bounds=(-60, 180),
    subject="tailnum",
)
BAD = [b"{", b'{"hour": 1, "hour": 2}', b"[1, 2]", b"\xff", b'{"hour": {"a": 1}}']


def flights_jsonl(path: Path, bad_every: int | None) -> tuple[int, int]:
    """Write the complete flights as JSON lines, with a bad line after every so many; good and bad lines."""
    from streamdp.datasets import flights

    text = flights().drop_nulls().write_ndjson().encode().splitlines()
    if bad_every is None:
        path.write_bytes(b"\n".join(text) + b"\n")
        return len(text), 0
    lines, bad = [], 0
    for i in range(0, len(text), bad_every):
        lines += [*text[i : i + bad_every], BAD[bad % len(BAD)]]
        bad += 1
    path.write_bytes(b"\n".join(lines) + b"\n")
    return len(text), bad


def by_connectors(path: Path) -> tuple[int, int]:
    from connectors.files import JSONLSource

    source, good, dead = JSONLSource(path, SCHEMA, max_bad_share=None), 0, 0
    while not source.finished:
        batch = source.poll(65_536, 0.0)
        good, dead = good + len(batch.y), dead + len(batch.dead)
    source.close()
    return good, dead


def _encode(columns: dict[str, list[Any]]) -> int:
    numeric = SCHEMA.numeric_columns
    frame = pl.DataFrame({c: pl.Series(c, v, pl.Float64 if c in numeric else pl.String) for c, v in columns.items()})
    return len(SCHEMA.encode(frame, np.arange(frame.height), {}).y)


def by_orjson(path: Path) -> tuple[int, int]:
    """One `orjson.loads` a line. Equal keys and nesting would need more checks; nesting is one here."""
    good, dead, names = 0, 0, SCHEMA.columns
    with path.open("rb") as file:
        while lines := file.readlines(1 << 22):
            columns: dict[str, list[Any]] = {name: [] for name in names}
            for text in lines:
                try:
                    item = orjson.loads(text)
                    values = [item.get(name) for name in names]
                except (ValueError, AttributeError):
                    dead += 1
                    continue
                if any(type(value) is dict for value in values):
                    dead += 1
                    continue
                for name, value in zip(names, values, strict=True):
                    columns[name].append(value)
            good += _encode(columns)
    return good, dead


def by_msgspec(path: Path) -> tuple[int, int]:
    """A decoder for a declared structure, one line at a time."""
    import msgspec

    kinds = {name: float if name in SCHEMA.numeric_columns else str for name in SCHEMA.columns}
    structure = msgspec.defstruct("Flight", [(name, kind | None, None) for name, kind in kinds.items()])
    decode, good, dead = msgspec.json.Decoder(structure).decode, 0, 0
    with path.open("rb") as file:
        while lines := file.readlines(1 << 22):
            items = []
            for text in lines:
                try:
                    items.append(decode(text))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    dead += 1
            good += _encode({name: [getattr(item, name) for item in items] for name in kinds})
    return good, dead


def by_polars(path: Path) -> tuple[int, int]:
    """One call for the whole file."""
    frame = pl.read_ndjson(path, schema_overrides=dict.fromkeys(SCHEMA.numeric_columns, pl.Float64))
    chosen = frame.select(
        pl.col(name) if name in SCHEMA.numeric_columns else pl.col(name).cast(pl.String) for name in SCHEMA.columns
    )
    return len(SCHEMA.encode(chosen, np.arange(frame.height), {}).y), 0


def json_lines() -> None:
    readers: dict[str, Callable[[Path], tuple[int, int]]] = {
        "connectors.files.JSONLSource": by_connectors,
        "orjson, a line at a time": by_orjson,
    }
    if installed("msgspec"):
        readers["msgspec, a line at a time"] = by_msgspec
    readers["polars.read_ndjson"] = by_polars
    with tempfile.TemporaryDirectory() as folder:
        for bad_every in (None, 100):
            path = Path(folder) / f"flights{bad_every}.jsonl"
            good, bad = flights_jsonl(path, bad_every)
            print(f"{good:,} good lines, {bad:,} bad ones, {path.stat().st_size / good:.0f} bytes a line")
            able = {}
            for name, read in readers.items():
                try:
                    found = read(path)
                except Exception as error:  # noqa: BLE001 - each library raises its own errors for bad lines
                    show(name, f"the whole file is refused: {type(error).__name__}")
                    continue
                show(name, f"{found[0]:,} records, {found[1]:,} bad lines set apart")
                able[name] = lambda read=read, path=path: read(path)
            show_rates(able, dict.fromkeys(able, good), "rows")
        print("One bad line among five good ones, polars.read_ndjson with ignore_errors=True")
        path = Path(folder) / "trap.jsonl"
        for text in BAD:
            path.write_bytes(b'{"hour": 1}\n' * 3 + text + b'\n{"hour": 1}\n{"hour": 1}\n')
            try:
                values = pl.read_ndjson(path, schema_overrides={"hour": pl.Float64}, ignore_errors=True)["hour"]
                show(text.decode("utf-8", "replace"), f"the values are {values.to_list()}")
            except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
                show(text.decode("utf-8", "replace"), f"the whole file is refused: {type(error).__name__}")


# -- 0004: Kafka's clients ---------------------------------------------------------------------------------------------


def kafka_clients() -> None:
    from kafka import TopicPartition

    from benchmarks.kafka import PARTITIONS, TOPIC, collecting_rarely, fill
    from connectors.kafka import connect
    from servers.broker import Broker
    from streamdp.runtime.worker import POLL_RECORDS

    def by_kafka_python() -> int:
        consumer = connect(bootstrap, None, {})
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        found = 0
        while found < records:
            for messages in consumer.poll(timeout_ms=200, max_records=POLL_RECORDS).values():
                found += len([(m.offset, m.key, m.value, m.timestamp) for m in messages])
        consumer.close()
        return found

    def by_confluent() -> int:
        import confluent_kafka as confluent

        consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([confluent.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        found = 0
        while found < records:
            messages = consumer.consume(POLL_RECORDS, 0.2)
            found += len([(m.offset(), m.key(), m.value(), m.timestamp()[1]) for m in messages])
        consumer.close()
        return found

    records = 300_000
    contenders: dict[str, Callable[[], object]] = {"kafka-python": lambda: collecting_rarely(by_kafka_python)}
    if installed("confluent_kafka"):
        contenders["confluent-kafka"] = lambda: collecting_rarely(by_confluent)
    with tempfile.TemporaryDirectory() as folder, Broker(folder) as broker:
        bootstrap = broker.bootstrap
        print(f"{records:,} records of {fill(bootstrap, records)} bytes; key, value, offset and time of each are read")
        show_rates(contenders, dict.fromkeys(contenders, records), "records", 3)
        for name, seconds in best_seconds(contenders, 3).items():
            show(f"{name} (wall time, broker on the same machine)", f"{records / seconds:,.0f} records/s")


# -- 0005: databases ---------------------------------------------------------------------------------------------------


def databases() -> None:
    from servers.postgres import Postgres

    commits, state = 100, {"theta": [0.12345678901234567] * 100}

    def by_store(place: str, clock: Callable[[], float]) -> float:
        with Store(place, "decisions", "1") as store:
            started = clock()
            for i in range(commits):
                store.commit(state, {"row": i}, Counts(i))
            return clock() - started

    def by_driver(path: str, clock: Callable[[], float]) -> float:
        """As many bytes by the driver alone: no checksum, no fence, no history's end."""
        connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE shard (id INTEGER PRIMARY KEY, seq, position, state)")
        connection.execute("CREATE TABLE commits (seq INTEGER PRIMARY KEY, position)")
        started = clock()
        for i in range(commits):
            connection.execute("BEGIN")
            position = json.dumps({"row": i})
            connection.execute("REPLACE INTO shard VALUES (1, ?, ?, ?)", (i, position, json.dumps(state)))
            connection.execute("INSERT INTO commits VALUES (?, ?)", (i, position))
            connection.execute("COMMIT")
        seconds = clock() - started
        connection.close()
        return seconds

    def report(name: str, run: Callable[[str, Callable[[], float]], float], places: Sequence[str]) -> None:
        for clock, what in ((time.process_time, "processor time"), (time.perf_counter, "wall time")):
            best = min(run(place.format(what), clock) for place in places)
            show(f"{name}, a commit of a state of 2 KB, {what}", f"{best / commits * 1000:.2f} ms")

    with tempfile.TemporaryDirectory() as folder:
        report("Store, SQLite file", by_store, [f"{folder}/store {{}} {i}.db" for i in range(3)])
        report("sqlite3 alone", by_driver, [f"{folder}/driver {{}} {i}.db" for i in range(3)])
        with Postgres(folder) as server:
            report("Store, PostgreSQL on the same machine", by_store, [server.url] * 3)
    code = "import time; t = time.process_time(); import sqlalchemy; print(time.process_time() - t)"
    show("`import sqlalchemy`", f"{min(float(python(code)) for _ in range(3)) * 1000:.0f} ms")


# -- 0006: noise -------------------------------------------------------------------------------------------------------


def noise() -> None:
    from streamdp.privacy.mechanisms import Gaussian

    d, n = 10, 20_000
    ours = Gaussian(GaussianDP(1))
    G = np.full((n, d), 0.1)
    grid = ours.rows(d)[0, 1]
    generator, system = np.random.default_rng(), np.random.SeedSequence
    contenders: dict[str, Callable[[], object]] = {
        "streamdp: AES words, ziggurat, grid": lambda: ours.randomize(G),
        "numpy `Generator.normal` (PCG64, doubles)": lambda: G + generator.normal(0, 2, G.shape),
        "numpy, a new generator from the system for each call": lambda: (
            G + np.random.default_rng(system()).normal(0, 2, G.shape)
        ),
    }
    sizes = dict.fromkeys(contenders, n * d)
    if installed("opendp"):
        import opendp.prelude as dp

        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=d), dp.l2_distance(T=float)
        exact, some = dp.m.make_gaussian(*space, scale=2.0), G[:200].tolist()
        contenders["OpenDP `make_gaussian`, exact arithmetic"] = lambda: [exact(g) for g in some]
        sizes["OpenDP `make_gaussian`, exact arithmetic"] = len(some) * d
    if installed("diffprivlib"):
        # Only its mechanisms: its models need an older scikit-learn.
        sys.modules["diffprivlib.models"] = types.ModuleType("diffprivlib.models")
        from diffprivlib.mechanisms import GaussianAnalytic

        single = GaussianAnalytic(epsilon=1, delta=1e-6, sensitivity=2)
        contenders["diffprivlib `GaussianAnalytic`"] = lambda: [single.randomise(0.1) for _ in range(2000)]
        sizes["diffprivlib `GaussianAnalytic`"] = 2000
    show_rates(contenders, sizes, "numbers")
    noisy = ours.randomize(G)
    plain = G + generator.normal(0, 2, G.shape)
    for name, values in (("streamdp", noisy), ("numpy", plain)):
        show(f"outputs of {name} that are multiples of h = {grid:.3g}", f"{np.mean(values % grid == 0):.1%}")
    for g in (0.0, 1.0):
        outputs = g + generator.laplace(0, 1, 400_000)
        near = outputs[np.abs(outputs) < 1 / 64] * 2.0**53
        share = np.mean(near != np.rint(near))
        show(f"numpy's Laplace noise on g = {g:g}: outputs near 0 with a bit below 2^-53", f"{share:.1%}")
    scale = ours.rows(d)[0, 0]
    show("cost of the grid: noise scale with it over that without, 10 features", f"1 + {scale / 2.0 - 1:.1e}")


# -- 0010: limits of speed ---------------------------------------------------------------------------------------------


def best_of(run: Callable[[], object], clock: Callable[[], float], rounds: int = ROUNDS) -> float:
    return best_seconds({"": run}, rounds, clock)[""]


def polled(config: JobConfig) -> list[Batch]:
    """All batches of a job's file."""
    source, found = config.build_source(config.build_schema()), []
    while not source.finished:
        found.append(source.poll(FILE_ROWS, 1.0))
    source.close()
    return found


def stages(folder: Path, path: Path, people: bool) -> None:
    """The processor time of the stages from a file to a committed model, each alone."""
    kind, rows = path.suffix[1:], FILE_ROWS / 1e6
    what = f"{kind}, {SUBJECTS:,} subjects under a cap" if people else f"{kind}, plain"
    config = job(folder, str(path), cap="mu=10" if people else None, records=100_000)
    read = pl.read_csv if kind == "csv" else pl.read_parquet
    batches = polled(config)

    def learn(config: JobConfig) -> None:
        estimator = config.build_estimator(None)
        for batch in batches:
            estimator.learn_arrays(batch.X, batch.y)

    unscaled = config.model_copy(update={"model": config.model.model_copy(update={"scaling": "none"})})
    figures = {
        "polars' own read": best_of(lambda: read(path), time.process_time),
        "read and decode": best_of(lambda: polled(config), time.process_time),
        "learn": best_of(lambda: learn(config), time.process_time),
        "learn without private scaling": best_of(lambda: learn(unscaled), time.process_time),
    }
    if people:
        subjects = [batch.subjects or [] for batch in batches]
        figures["hash subjects"] = best_of(
            lambda: [hash_subjects(block, bytes(32)) for block in subjects], time.process_time
        )
        different = sum(len(set(block)) for block in subjects) / FILE_ROWS
        show(f"{what}: hashes if each subject of a block were hashed once", f"{different:.2f} a row")
    figures["the job, commits every 100,000"] = best_of(lambda: run_job(config, FILE_ROWS), time.process_time)
    often = job(folder, str(path), cap="mu=10" if people else None)
    figures["the job, commits every 10,000"] = best_of(lambda: run_job(often, FILE_ROWS), time.process_time)
    for name, seconds in figures.items():
        show(f"{what}: {name}", f"{seconds / rows:.2f} us a row")


def commits(folder: Path) -> None:
    """The processor time of a commit, with and without the posteriors of ten columns that are scaled."""
    X, y = make_arrays(10_000)
    bounds = dict.fromkeys(FEATURES, (-1.0, 1.0))
    for scaling in ("private", "none"):
        model = LDPASGDRegressor(features=bounds, scaling=scaling)
        model.learn_arrays(X, y)
        state, n = model.state_dict(), 0
        with Store(str(folder / f"{scaling}.db"), "commits", "fingerprint") as store:

            def commit(store: Store = store, state: dict[str, Any] = state) -> None:
                nonlocal n
                n += 1
                store.commit(state, {"row": n}, Counts(learned=n))
                store.load()

            seconds = best_of(commit, time.process_time, 100)
        written = len(encode_state(state))
        show(f"a commit, read back, scaling {scaling}: {written:,} bytes", f"{seconds * 1e3:.2f} ms")


def bulk() -> None:
    """The parts of `learn_arrays`."""
    X, y = make_arrays(50_000)
    size = X.shape[1] + 2  # the intercept and Huber's scale
    budgets = np.random.default_rng(1).uniform(0.5, 2, len(y))
    models = {"no noise": LDPASGDRegressor(mechanism="none", features=FEATURES)}
    models["gaussian"] = LDPASGDRegressor(budget="mu=1", features=FEATURES)
    models |= {
        name: LDPASGDRegressor(mechanism=name, budget="eps=1", features=FEATURES) for name in ("laplace", "privunit")
    }
    runs: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        runs[f"`learn_arrays`, {name}"] = partial(model.learn_arrays, X, y)
        runs[f"`learn_arrays`, {name}, a budget for each"] = partial(model.learn_arrays, X, y, budgets)
    runs["of them the keystream"] = lambda: keystream(len(y) * size)
    with one_core():
        found = best_seconds(runs, 100, time.process_time)
    for name, seconds in found.items():
        ratio = found["`learn_arrays`, no noise"] / seconds
        show(name, f"{seconds / len(y) * 1e9:.0f} ns a record, {ratio:.2f} of the rate without noise")


def loading(folder: Path) -> None:
    """What a run of 1,000 rows imports: the time of its own of each package, by `-X importtime`."""
    data = folder / "thousand.csv"
    write_file(data, 1_000)
    bounds = [argument for name in FEATURES for argument in ("--feature", f"{name}=-1:1")]
    line = ["run", str(data), "--target", "y", "--target-bounds", "-10:10", *bounds, "--store"]
    best: dict[str, float] = {}
    for i in range(ROUNDS):
        command = [sys.executable, "-X", "importtime", "-m", "streamdp", *line, str(folder / f"start{i}.db")]
        out = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stderr
        found: dict[str, float] = {}
        within: list[tuple[int, bool]] = []  # from the last module to the first: those that import come before theirs
        for own, _, module in (row[12:].split("|") for row in reversed(out.splitlines()) if row.startswith("import t")):
            if not own.strip().isdecimal():
                continue
            depth, name = len(module) - len(module.lstrip()), module.strip()
            within = [(outer, special) for outer, special in within if outer < depth]
            special = name.startswith("scipy.special") or any(inner for _, inner in within)
            within.append((depth, special))
            place = "scipy.special with what it imports" if special else name.partition(".")[0]
            found[place] = found.get(place, 0.0) + int(own) / 1e3
        if not best or sum(found.values()) < sum(best.values()):
            best = found
    show("all imports", f"{sum(best.values()):.0f} ms")
    for place, spent in sorted(best.items(), key=lambda item: -item[1])[:6]:
        show(place, f"{spent:.0f} ms")


def limits() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("csv", "parquet"):
            for people in (False, True):
                path = folder / f"{people}.{kind}"
                write_file(path, FILE_ROWS, people=people)
                stages(folder, path, people)
        commits(folder)
        bulk()
        loading(folder)


NAMES: dict[str, Callable[[], None]] = {
    "compiled": compiled,
    "json": json_lines,
    "kafka": kafka_clients,
    "databases": databases,
    "noise": noise,
    "limits": limits,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description="Figures of decision records.")
    parser.add_argument("name", choices=NAMES)
    name = parser.parse_args(arguments).name
    print(machine())
    NAMES[name]()


if __name__ == "__main__":
    main()
