"""The figures of the records in docs/decisions: `python -m benchmarks.decisions [--only NAME ...] [--write]`.

Contenders take turns, the best of the rounds counts, and it is processor time, which other work on the machine changes
least. `--write` puts the tables into the records.
"""

from __future__ import annotations

import asyncio
import csv
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import polars as pl
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from benchmarks.shared.flights import COLUMNS
from benchmarks.shared.pages import command, table
from connectors.files import CSVSource, JSONLSource
from connectors.jsonrows import encode_json_lines
from connectors.recordblocks import BLOCK_BYTES, Records, cut_lines
from streamdp import GaussianDP, LDPASGDRegressor, Store
from streamdp.config.job import make_config
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.datasets import flights, insurance
from streamdp.privacy.mechanisms import Gaussian
from streamdp.service.app import create_app
from streamdp.service.guard import Guard, Origins
from streamdp.service.problems import ProblemError, problem_of
from streamdp.service.requests import Route
from streamdp.store.snapshot import Counts

RECORDS = Path(__file__).parents[1] / "docs" / "decisions"
SCHEMA = Schema(
    {"age": (18, 65), "bmi": (15, 55), "children": (0, 5), "smoker": ["yes", "no"]}, "charges", target_bounds=(0, 4e4)
)
ROWS, BAD_EVERY, ROUNDS = 200_000, 100, 3
Contenders = Mapping[str, tuple[Callable[[], object], int]]
"""What each contender does, and with how many records."""


def rates(contenders: Contenders, rounds: int = ROUNDS) -> dict[str, float]:
    """The records of each contender in a second of processor time."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, (run, _) in contenders.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return {name: records / best[name] for name, (_, records) in contenders.items()}


def shown(head: Sequence[str], rows: Mapping[str, float], unit: str) -> str:
    first = next(iter(rows.values()))
    cells = ([name, f"{float(f'{rate:.2g}'):,.0f}", f"{rate / first:.2f}"] for name, rate in rows.items())
    return table([*head, f"{unit} per s of processor", "of the first"], list(cells))


# -- 0001: the ledger --------------------------------------------------------------------------------------------------


def _admit_in_pages(folder: Path, batches: list[list[str]], mu: float, cap: float) -> int:
    with Store(folder / "job.db", "job", "", cap=GaussianDP(cap)) as store:
        assert store.ledger is not None
        for names in batches:
            store.ledger.admit_many(names, GaussianDP(mu))
            store.commit({}, {}, Counts())
        return store.ledger.n_refused


def _admit_in_a_table(folder: Path, batches: list[list[str]], mu: float, cap: float) -> int:
    """One row for each subject, and one statement that admits a record and spends."""
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE spends (subject BLOB PRIMARY KEY, mu_squared REAL) WITHOUT ROWID")
    admit = (
        "INSERT INTO spends VALUES (?1, ?2) ON CONFLICT (subject) DO UPDATE SET mu_squared = mu_squared + ?2"
        " WHERE mu_squared + ?2 <= ?3"
    )
    asked = 0
    for names in batches:
        keys = sorted(blake2b(name.encode(), digest_size=16, key=b"k" * 32).digest() for name in names)
        connection.execute("BEGIN")
        connection.executemany(admit, ((key, mu**2, cap**2 * (1 + 1e-9)) for key in keys))
        connection.execute("COMMIT")
        asked += len(names)
    refused = asked - connection.total_changes
    connection.close()
    return refused


def _admit(admit: Callable[..., int], batches: list[list[str]], mu: float, cap: float, refused: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        refused.add(admit(Path(folder), batches, mu, cap))


def ledger() -> str:
    """Spends of 100,000 and of a million subjects, drawn uniformly, with a commit every 100,000."""
    found, mu, spends = [], 0.1, 1_000_000
    for subjects in (100_000, 1_000_000):
        rng, refused = np.random.default_rng(3), set[int]()
        batches = [[f"person-{i}" for i in rng.integers(0, subjects, 100_000)] for _ in range(spends // 100_000)]
        given = batches, mu, mu * max(1.0, spends / subjects) ** 0.5, refused
        contenders: Contenders = {
            "pages and a log": (partial(_admit, _admit_in_pages, *given), spends),
            "a table with a row a subject": (partial(_admit, _admit_in_a_table, *given), spends),
        }
        found.append(shown([f"{subjects:,} subjects"], rates(contenders, 1), "spends"))
        assert len(refused) == 1, "both refuse the same records"
    return "\n\n".join(found)


# -- 0002: loops -------------------------------------------------------------------------------------------------------


def _learn_by_numpy(X: np.ndarray, y: np.ndarray, noise: np.ndarray) -> None:
    """Huber's gradient, noise, a step, the projection to a ball, and the average, by operations for each record."""
    theta, mean = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for t in range(1, len(X) + 1):
        x = X[t - 1]
        gradient = np.clip(theta @ x - y[t - 1], -1, 1) * x + noise[t - 1]
        theta -= gradient / np.sqrt(t)
        theta *= min(1.0, 5.0 / max(1e-300, float(np.linalg.norm(theta))))
        mean += (theta - mean) / t


def loops() -> str:
    rng = np.random.default_rng(1)
    X, n, few = rng.uniform(-1, 1, (100_000, 10)), 100_000, 5_000
    y, noise = X.sum(axis=1), rng.normal(0, 2, X.shape)
    contenders: dict[str, tuple[Callable[[], object], int]] = {
        "numpy's operations for each record, noise given": (lambda: _learn_by_numpy(X[:few], y[:few], noise), few)
    }
    for mechanism in ("none", "gaussian"):
        model = LDPASGDRegressor(budget="mu=1", mechanism=mechanism, features=[f"x{j}" for j in range(10)], seed=1)
        contenders[f"`learn_arrays`, mechanism {mechanism}"] = partial(model.learn_arrays, X / 4, y), n
    return shown(["ten features"], rates(contenders), "records")


# -- 0003 and 0007: JSON lines and CSV ---------------------------------------------------------------------------------


def _by_source(kind: type[CSVSource] | type[JSONLSource], path: Path) -> int:
    source, good = kind(path, SCHEMA, max_bad_share=None), 0
    while not source.finished:
        good += len(source.poll(65_536, 0.0).y)
    source.close()
    return good


def _encoded(frame: pl.DataFrame) -> int:
    chosen = frame.select(
        pl.col(name) if name in SCHEMA.numeric_columns else pl.col(name).cast(pl.String) for name in SCHEMA.columns
    )
    return len(SCHEMA.encode(chosen, np.arange(frame.height), {}).y)


def _by_orjson(path: Path) -> int:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.columns}
    with path.open("rb") as file:
        for text in file:
            try:
                item = orjson.loads(text)
                values = [item.get(name) for name in columns]
            except (ValueError, AttributeError):
                continue
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    kinds = {name: pl.Float64 if name in SCHEMA.numeric_columns else pl.String for name in columns}
    return _encoded(pl.DataFrame(columns, kinds, strict=False))


def _by_csv(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.columns}
        for row in rows:
            for name, column in columns.items():
                column.append(row[name])
    return _encoded(pl.DataFrame(columns, dict.fromkeys(columns, pl.String)))


def _by_polars(read: Callable[..., pl.DataFrame], path: Path) -> int:
    kinds = dict.fromkeys(SCHEMA.numeric_columns, pl.Float64) | {"smoker": pl.String}
    return _encoded(read(path, schema_overrides=kinds))


def _formats(suffix: str, readers: Mapping[str, Callable[[Path], int]], bad: Sequence[str]) -> str:
    """The rates of all good records, and what each reader finds if one in a hundred is bad."""
    frame = insurance(ROWS, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        good, mixed = Path(folder, f"good{suffix}"), Path(folder, f"mixed{suffix}")
        (frame.write_ndjson if suffix == ".jsonl" else frame.write_csv)(good)
        head, lines = [], good.read_text().splitlines()
        if suffix == ".csv":
            head, lines = lines[:1], lines[1:]
        for i in range(0, ROWS, BAD_EVERY):
            head += [*lines[i : i + BAD_EVERY], bad[i // BAD_EVERY % len(bad)]]
        mixed.write_text("\n".join(head) + "\n")
        contenders = {name: (lambda read=read: read(good), ROWS) for name, read in readers.items()}
        found = rates(contenders)
        rows = []
        for name, rate in found.items():
            try:
                said = f"{readers[name](mixed):,}"
            except Exception as error:  # noqa: BLE001 - each library has its own errors
                said = f"none: {type(error).__name__}"
            rows.append([name, f"{float(f'{rate:.2g}'):,.0f}", said])
    return table(["reader", "rows per s of processor, all good", f"of {ROWS:,} with 1 % bad ones beside them"], rows)


def json_lines() -> str:
    readers = {
        "`JSONLSource` (scanner, polars, orjson)": lambda path: _by_source(JSONLSource, path),
        "orjson, a line at a time": _by_orjson,
        "`polars.read_ndjson`": lambda path: _by_polars(pl.read_ndjson, path),
    }
    found = _formats(".jsonl", readers, ["{", "[1, 2]", '{"age": 30, "age": 31}', '{"age": {"a": 1}}'])
    return f"{found}\n\n{_json_blocks()}"


def _json_blocks() -> str:
    """The flights of 2013 without gaps, in the blocks of a file, to encoded arrays, and to a model."""
    schema = Schema(COLUMNS | {"dep_delay": (-30, 180)}, "arr_delay", target_bounds=(-60, 180))
    frame = flights().drop_nulls()
    kinds = {name: pl.Float64 if name in schema.numeric_columns else pl.String for name in schema.columns}
    text, blocks = frame.write_ndjson().encode(), []
    while text:
        end = text.rfind(b"\n", 0, BLOCK_BYTES) + 1
        blocks.append(cut_lines(text[:end]))
        text = text[end:]

    def by_scanner(records: Records) -> Batch:
        return encode_json_lines(records, np.arange(len(records.ends)), schema)

    def by_polars(records: Records) -> Batch:
        return schema.encode(pl.read_ndjson(records.data, schema=kinds), np.arange(len(records.ends)), {})

    def checked_too(records: Records) -> Batch:
        """Also count what shows equal keys, escapes and nested values; numbers are not checked."""
        data = np.frombuffer(records.data, np.uint8)
        for mark in b':"':
            np.add.reduceat(data == mark, records.starts, dtype=np.int64)
        for mark in b"\\[{":
            np.count_nonzero(data == mark)
        return by_polars(records)

    def read(encode: Callable[[Records], Batch], learn: bool) -> None:
        model = LDPASGDRegressor(budget="mu=1", features=list(schema.feature_names), target=(-60, 180), seed=1)
        for block in blocks:
            batch = encode(block)
            if learn:
                model.learn_arrays(batch.X, batch.y)

    readers = {
        "scanner, polars, orjson": by_scanner,
        "`polars.read_ndjson`, nothing checked": by_polars,
        "`polars.read_ndjson`, with counts": checked_too,
    }
    contenders: Contenders = {
        f"{name}{', and learning' * learn}": (partial(read, encode, learn), frame.height)
        for learn in (False, True)
        for name, encode in readers.items()
    }
    return shown(["flights in blocks of 4 MiB"], rates(contenders, 2 * ROUNDS), "rows")


def csv_rows() -> str:
    readers = {
        "`CSVSource` (grammar, polars)": lambda path: _by_source(CSVSource, path),
        "Python's `csv`, a row at a time": _by_csv,
        "`polars.read_csv`": lambda path: _by_polars(pl.read_csv, path),
    }
    return _formats(".csv", readers, ["1,2", '30,"fe', 'a"b,1,2,3,4,5,6,7,8,9,10,11'])


# -- 0005 and 0006: databases and noise --------------------------------------------------------------------------------


def databases() -> str:
    commits, state = 200, {"theta": [0.12345678901234567] * 100}

    def by_store() -> None:
        with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/a.db", "job", "1") as store:
            for i in range(commits):
                store.commit(state, {"row": i}, Counts(i))

    def by_driver() -> None:
        """As many bytes by the driver alone: no checksum and no fence."""
        with tempfile.TemporaryDirectory() as folder:
            connection = sqlite3.connect(f"{folder}/a.db", isolation_level=None)
            for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("CREATE TABLE shard (id INTEGER PRIMARY KEY, seq, position, state)")
            connection.execute("CREATE TABLE commits (seq INTEGER PRIMARY KEY, position)")
            for i in range(commits):
                position = json.dumps({"row": i})
                connection.execute("BEGIN")
                connection.execute("REPLACE INTO shard VALUES (1, ?, ?, ?)", (i, position, json.dumps(state)))
                connection.execute("INSERT INTO commits VALUES (?, ?)", (i, position))
                connection.execute("COMMIT")
            connection.close()

    contenders: Contenders = {
        "`Store.commit`, SQLite file": (by_store, commits),
        "`sqlite3` alone": (by_driver, commits),
    }
    return shown(["a state of 2 KB"], rates(contenders), "commits")


def noise() -> str:
    d, n = 10, 20_000
    ours, generator, G = Gaussian(GaussianDP(1)), np.random.default_rng(), np.full((20_000, 10), 0.1)
    contenders: Contenders = {
        "ours: AES words, ziggurat, grid": (lambda: ours.randomize(G), n * d),
        "numpy's `Generator.normal`": (lambda: G + generator.normal(0, 2, G.shape), n * d),
    }
    text = shown(["noise"], rates(contenders, 20), "numbers")
    grid, rows = ours.rows(d)[0, 1], []
    noisy = ours.randomize(G)
    rows.append([f"our outputs that are multiples of h = {grid:.2g}", f"{np.mean(noisy % grid == 0):.0%}"])
    for g in (0.0, 1.0):
        outputs = g + generator.laplace(0, 1, 400_000)
        near = outputs[np.abs(outputs) < 1 / 64] * 2.0**53
        what = f"numpy's Laplace noise on g = {g:g}: outputs near 0 with a bit below 2^-53"
        rows.append([what, f"{np.mean(near != np.rint(near)):.0%}"])
    return f"{text}\n\n{table(['what', 'share'], rows)}"


# -- 0012: the service's routes ----------------------------------------------------------------------------------------

_PREDICTION = json.dumps({"records": [{"age": 40, "bmi": 25, "children": 1, "smoker": "no"}]}).encode()


async def _call(app: FastAPI, path: str, body: bytes, times: int) -> None:
    """Call an application in this process, without a network."""
    head = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "http_version": "1.1", "method": "POST" if body else "GET", "path": path, "headers": head}
    statuses = set()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        statuses.add(message.get("status", 200))

    for _ in range(times):
        await app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    assert statuses == {200}, statuses


def routes() -> str:
    calls = 2000
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            {
                "job": "charges",
                "source": {"type": "http"},
                "schema": {
                    "features": {"age": [18, 65], "bmi": [15, 55], "children": [0, 5], "smoker": ["no", "yes"]},
                    "target": {"column": "charges", "bounds": [0, 40_000]},
                },
                "model": {"trust": "nobody"},
                "store": f"{folder}/charges.db",
            }
        )
        ours, theirs = create_app([config]), create_app([config])

        async def answer(_: Request, error: Exception) -> Response:
            return problem_of(error).response()

        theirs.add_exception_handler(ProblemError, answer)
        state = theirs.state
        theirs.middleware_stack = Guard(
            Origins(theirs.build_middleware_stack(), {}), state.metrics, state.stopping, state.access.open
        )

        def run(app: FastAPI, handle: Any, path: str, body: bytes) -> None:
            with patch.object(Route, "handle", handle):
                asyncio.run(_call(app, path, body, calls))

        contenders: Contenders = {
            f"{what}, {way}": (partial(run, app, handle, path, body), calls)
            for what, path, body in (
                ("a prediction", "/v1/models/charges/predict", _PREDICTION),
                ("the list of models", "/v1/models", b""),
            )
            for way, app, handle in (("`Route`", ours, Route.handle), ("FastAPI's own way", theirs, APIRoute.handle))
        }
        return shown(["calls in one process"], rates(contenders, 5), "calls")


PARTS = {
    "ledger": ledger, "loops": loops, "json": json_lines, "databases": databases, "noise": noise, "csv": csv_rows,
    "routes": routes,
}  # fmt: skip
PAGES = {
    "ledger": [RECORDS / "0001-ledger-page-store.md"],
    "loops": [RECORDS / "0002-compiled-loops.md"],
    "json": [RECORDS / "0003-json-scanner.md"],
    "databases": [RECORDS / "0005-sqlite-and-postgresql.md"],
    "noise": [RECORDS / "0006-noise-on-a-grid.md"],
    "csv": [RECORDS / "0007-csv-grammar.md"],
    "routes": [RECORDS / "0012-routes.md"],
}


if __name__ == "__main__":
    command(__file__, PARTS, None, pages=PAGES)
