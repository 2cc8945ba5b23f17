"""Spends and state in other storage engines, beside ours. `python -m benchmarks.ledger_engines [--write]`.

Needs `pip install lmdb rocksdict`; they are no dependencies of streamdp. Every engine keeps a row for each subject,
under the same 16-byte keyed hash, and a model's state of 2 KB. Both are written in one durable transaction (RocksDB:
one synchronous write batch). All contenders hash the same names, cache rows in the same `RowCache` and admit by the
same compiled loop; they differ only in how rows are read and committed. `--write` replaces ledger_engines.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

# All imports from the project; the engines are imported by the classes that use them.
from benchmarks.speed import environment, machine
from streamdp import GaussianDP
from streamdp.ledger.admission import admit_in_order
from streamdp.ledger.caps import cap_numbers, spend_numbers
from streamdp.ledger.paging import KEPT_SUBJECTS
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import RECORDS, ROW
from streamdp.ledger.subject_key import hash_subjects
from streamdp.runtime.runner import POLL_RECORDS
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

MIB, KEY, MU = 2**20, bytes(range(32)), 0.1
CACHE_MIB = 128
"""The page cache of an engine, beside the rows in memory; as in `streamdp.database.sqlite`. Mapped files have none."""
LIMIT_S = 90.0
"""Seconds of processor after which a run is stopped; the table says at how many spends."""
Run = tuple[int, int, int, int]
PLAN: list[Run] = [
    (10_000_000, 10_000_000, 5_500_000, 100_000),
    (100_000, 0, 3_000_000, 100_000),
    (1_000_000, 0, 5_000_000, 100_000),
    (10_000_000, 0, 5_000_000, 10_000),
]
"""Subjects, spends before the clock starts (one of each subject), spends, and records from commit to commit.

Shorter than `benchmarks.ledger`. 5.5 million spends of 10 million subjects fill the rows in memory once, so our log
goes to the pages once.
"""
KILLS, KILL_SUBJECTS, KILL_BATCH = 20, 100_000, 20_000


class Lmdb:
    """`read` takes keys in order and gives None for one that is not there; `write` is durable when it returns."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(folder / "lmdb"), map_size=32 << 30, readahead=False)
        self.close = self._env.close

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            found = dict(cursor.getmulti(keys))
        return [found.get(key) for key in keys]

    def write(self, items: list[tuple[bytes, bytes]]) -> None:
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items)


class RocksDB:
    """Mapped files, no compression and hashed blocks were the fastest reads of those tried."""

    def __init__(self, folder: Path) -> None:
        import rocksdict

        options, table = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
        options.set_max_background_jobs(2)
        options.set_write_buffer_size(32 * MIB)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_allow_mmap_reads(True)
        table.disable_cache()
        table.set_bloom_filter(10, False)
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        options.set_block_based_table_factory(table)
        self._db: Any = rocksdict.Rdict(str(folder / "rocksdb"), options)
        self._new_batch, self._durable = rocksdict.WriteBatch, rocksdict.WriteOptions()
        self._durable.sync = True
        self.read, self.close = self._db.get, self._db.close

    def write(self, items: list[tuple[bytes, bytes]]) -> None:
        batch = self._new_batch(raw_mode=True)
        for key, value in items:
            batch.put(key, value)
        self._db.write(batch, self._durable)


class Table:
    """A plain SQLite table without row numbers, with the pragmas of `streamdp.database.sqlite`."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "table.db", isolation_level=None)
        cache = f"cache_size = -{CACHE_MIB * 1024}"
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 8192", cache):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE IF NOT EXISTS spends (subject BLOB PRIMARY KEY, spend BLOB) WITHOUT ROWID")
        self.close = self._db.close

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for i in range(0, len(keys), 1024):
            some = keys[i : i + 1024]
            marks = ",".join("?" * len(some))
            found.update(self._db.execute(f"SELECT subject, spend FROM spends WHERE subject IN ({marks})", some))
        return [found.get(key) for key in keys]

    def write(self, items: list[tuple[bytes, bytes]]) -> None:
        self._db.execute("BEGIN")
        statement = "INSERT INTO spends VALUES (?, ?) ON CONFLICT DO UPDATE SET spend = excluded.spend"
        self._db.executemany(statement, items)
        self._db.execute("COMMIT")


class Rows:
    """A ledger over an engine: the cache, the arithmetic and the caching rule of `streamdp.Ledger`.

    A value is a mask of the columns that are not zero and these columns: 17 bytes for Gaussian spends.
    """

    def __init__(self, engine: Lmdb | RocksDB | Table, cap: GaussianDP) -> None:
        self._engine, self._cap, self._memory = engine, cap_numbers(cap), RowCache()
        self.close = engine.close

    def admit(self, names: list[str]) -> None:
        slots, memory = self._page_in(names), self._memory
        terms = spend_numbers(GaussianDP(MU), None, len(names))
        admit_in_order(slots, terms, memory.rows, memory.pending, *self._cap)

    def _page_in(self, names: list[str]) -> np.ndarray:
        slots = self._memory.find(*hash_subjects(names, KEY))
        keys = self._memory.unread
        if len(keys):
            order, rows = _in_order(keys), np.empty((len(keys), ROW))
            rows[order] = _decode(self._engine.read(_pieces(keys[order])))
            self._memory.fill(rows, rows[:, RECORDS] > 0)
        return slots

    def commit(self, state: dict[str, Any]) -> None:
        memory = self._memory
        changed = np.flatnonzero(memory.pending[: memory.n])
        changed = changed[_in_order(memory.keys[changed])]
        items = list(zip(_pieces(memory.keys[changed]), _encode(memory.rows[changed]), strict=True))
        self._engine.write([*items, (b"state", json.dumps(state).encode())])
        memory.pending[changed] = False
        if memory.n > KEPT_SUBJECTS:
            self._memory = RowCache()

    def last_records(self) -> int:
        return int(json.loads(self._engine.read([b"state"])[0] or b'{"records": 0}')["records"])

    def spent_records(self, names: list[str]) -> int:
        slots = self._page_in(names)
        return int(self._memory.rows[slots, RECORDS].sum())


class Ours:
    """`streamdp.Store` with a ledger: pages of spends, a log and the state in one SQLite file."""

    def __init__(self, folder: Path, cap: GaussianDP) -> None:
        self._store = Store(folder / "job.db", "engines", "1", cap=cap, key=KEY)
        assert self._store.ledger is not None
        self._ledger, self.close = self._store.ledger, self._store.close

    def admit(self, names: list[str]) -> None:
        self._ledger.admit_many(names, GaussianDP(MU))

    def commit(self, state: dict[str, Any]) -> None:
        self._store.commit(state, None, Counts())

    def last_records(self) -> int:
        snapshot = self._store.load()
        return int(snapshot.state["records"]) if snapshot else 0

    def spent_records(self, names: list[str]) -> int:
        self._ledger.prepare(names)
        return sum(self._ledger.spent(name).records for name in names)


CONTENDERS: dict[str, Callable[[Path, GaussianDP], Ours | Rows]] = {
    "ours": Ours,
    "LMDB": lambda folder, cap: Rows(Lmdb(folder), cap),
    "RocksDB": lambda folder, cap: Rows(RocksDB(folder), cap),
    "SQLite table": lambda folder, cap: Rows(Table(folder), cap),
}


def _in_order(keys: np.ndarray) -> np.ndarray:
    """The order of keys (n, 2) as bytes, but for those that share their first eight bytes."""
    return np.argsort(keys[:, 0].byteswap())


def _pieces(table: np.ndarray) -> list[bytes]:
    """The rows of a table as bytes."""
    pieces: list[bytes] = table.view(f"V{table.shape[1] * table.itemsize}").ravel().tolist()
    return pieces


def _encode(rows: np.ndarray) -> list[bytes]:
    columns = np.flatnonzero(rows.any(axis=0))
    out = np.empty((len(rows), 1 + 8 * len(columns)), dtype=np.uint8)
    out[:, 0] = np.sum(1 << columns)
    out[:, 1:] = np.ascontiguousarray(rows[:, columns]).view(np.uint8)
    return _pieces(out)


def _decode(values: list[bytes | None]) -> np.ndarray:
    rows = np.zeros((len(values), ROW))
    masks = np.array([value[0] if value else 0 for value in values], dtype=np.uint8)
    for mask in np.unique(masks[masks > 0]):
        places = np.flatnonzero(masks == mask)
        packed = np.frombuffer(b"".join([values[i] or b"" for i in places.tolist()]), np.uint8)
        columns = [j for j in range(ROW) if mask >> j & 1]
        rows[np.ix_(places, columns)] = np.ascontiguousarray(packed.reshape(len(places), -1)[:, 1:]).view(np.float64)
    return rows


def _names(numbers: np.ndarray) -> list[str]:
    return [f"person-{i}" for i in numbers]


def _state(records: int) -> dict[str, Any]:
    return {"records": records, "theta": [0.12345678901234567] * 100}


def measure(name: str, run: Run, folder: Path) -> dict[str, float]:
    """One run, in this process."""
    subjects, before, spends, commit = run
    rng = np.random.default_rng(3)
    records = -(-(before + spends) // subjects) + 1  # one more than the average: some are refused, most are not
    ledger = CONTENDERS[name](folder, GaussianDP(MU * records**0.5))
    first = rng.permutation(subjects)[:before]
    for done in range(0, before, POLL_RECORDS):
        ledger.admit(_names(first[done : done + POLL_RECORDS]))
        if done % (8 * POLL_RECORDS) == 0 or done + POLL_RECORDS >= before:
            ledger.commit(_state(done))
    seconds, busy, private, largest, done, waiting = 0.0, 0.0, 0.0, 0, 0, 0
    written = _field("io", "write_bytes")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here on
    while done < spends and busy < LIMIT_S:
        names = _names(rng.integers(0, subjects, min(POLL_RECORDS, commit, spends - done)))
        started, worked = time.perf_counter(), time.process_time()
        ledger.admit(names)
        done, waiting = done + len(names), waiting + len(names)
        if waiting >= commit or done == spends:
            ledger.commit(_state(done))
            waiting = 0
        seconds += time.perf_counter() - started
        busy += time.process_time() - worked
        private = max(private, _field("status", "RssAnon"))
        largest = max(largest, sum(file.stat().st_size for file in list(folder.rglob("*")) if file.is_file()))
    return {
        "done": done,
        "rate": done / seconds,
        "of_processor": done / busy,
        "memory": _field("status", "VmHWM") / 1024,
        "private": private / 1024,
        "disk": largest / min(subjects, before + done),
        "written": (_field("io", "write_bytes") - written) / done,
    }


def _field(file: str, name: str) -> float:
    return float(Path(f"/proc/self/{file}").read_text().split(f"{name}:")[1].split()[0])


def line(name: str, run: Run) -> str:
    """A run in a process of its own, as a line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ledger_engines", "--run", name, *map(str, run), folder]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout
    found = json.loads(answer)
    subjects, before, _, commit = run
    text = [name, f"{subjects:,}", f"{before:,}", f"{found['done']:,}", f"{commit:,}", f"{found['of_processor']:,.0f}"]
    text += [f"{found['rate']:,.0f}", f"{found['memory']:.0f} MiB", f"{found['private']:.0f} MiB"]
    return f"| {' | '.join(text)} | {found['disk']:.0f} | {found['written']:,.0f} | {os.getloadavg()[0]:.1f} |"


def work_until_killed(name: str, folder: Path, pipe: int) -> None:
    """Go on after the last commit; say "b" before a commit and "e" with the number of records after it."""
    ledger = CONTENDERS[name](folder, GaussianDP(1e3))
    records = ledger.last_records()
    rng = np.random.default_rng(records)
    while True:
        ledger.admit(_names(rng.integers(0, KILL_SUBJECTS, KILL_BATCH)))
        records += KILL_BATCH
        os.write(pipe, b"b\n")
        ledger.commit(_state(records))
        os.write(pipe, f"e {records}\n".encode())


def look(name: str, folder: Path) -> tuple[int, int]:
    """The records that the state and that the spends of all subjects have."""
    ledger = CONTENDERS[name](folder, GaussianDP(1e3))
    found = ledger.last_records(), ledger.spent_records(_names(np.arange(KILL_SUBJECTS)))
    ledger.close()
    return found


def kill_once(name: str, folder: Path, during: bool, chance: random.Random) -> tuple[bool, bool]:
    """Kill a worker at random; whether that was during a commit, and whether spends and state agree."""
    after, begun, lasted, commits, last, said = chance.randint(2, 9), 0.0, 0.0, 0, 0, ""
    processes = multiprocessing.get_context("fork")  # this process opens no engine, so that its forks can
    reader, writer = os.pipe()
    child = processes.Process(target=work_until_killed, args=(name, folder, writer))
    child.start()
    os.close(writer)
    with os.fdopen(reader) as lines:
        for said in lines:
            if said.startswith("b"):
                begun, commits = time.perf_counter(), commits + 1
            else:
                last, lasted = int(said.split()[1]), time.perf_counter() - begun
            if commits == after and during == said.startswith("b"):
                break
        time.sleep(chance.uniform(0, lasted))
        child.kill()
        for said in lines:  # what it said until then
            last = int(said.split()[1]) if said.startswith("e") else last
    child.join()
    assert child.exitcode == -signal.SIGKILL, "it ended by itself"
    with processes.Pool(1) as pool:
        committed, spent = pool.apply(look, (name, folder))
    return said.startswith("b"), spent == committed >= last


def kills(name: str) -> str:
    chance = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        found = [kill_once(name, Path(folder), i % 2 == 0, chance) for i in range(KILLS)]
    return f"| {name} | {KILLS} | {sum(hit for hit, _ in found)} | {sum(whole for _, whole in found)} |"


PAGE = Path(__file__).with_suffix(".md")
ABOUT = """# Other storage engines for the ledger

`python -m benchmarks.ledger_engines --write` (after `pip install lmdb rocksdict`) writes this page. The names of the
subjects are drawn uniformly, as in `benchmarks.ledger`; batches have {batch:,} records, or as many as a commit has.
Every commit writes the changed spends and a state of 2 KB in one durable transaction. The contenders of a workload run
one after another, and each in a process of its own. A run is stopped after {limit:.0f} s of processor time.

* "per s of processor" counts all threads, those of RocksDB's compaction included. Names are made outside the clock.
  Compare this column: other work on the machine changes admits/s; "load" is the load average after the run.
* "peak memory" is the peak resident size, the interpreter, its imports and the names included. With LMDB and RocksDB it
  counts pages of mapped files, which the kernel may drop; "private" leaves them out.
* "written" are the bytes that the process passed to the disk per spend.

{machine} {versions}.

| engine | subjects | spends before | spends | a commit every | per s of processor | admits/s | peak memory | \
private | bytes a subject | bytes written a spend | load |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

A worker that commits every {kill_batch:,} records of {kill_subjects:,} subjects is killed (SIGKILL) and started again
in the same folder; every second kill is aimed at a commit. "Whole" means that all spends together have as many records
as the state says, and not fewer than the last commit that returned. A kill does not test a loss of power.

| engine | kills | during a commit | whole afterwards |
| --- | --- | --- | --- |
{killed}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger_engines", description="Measure other engines.")
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    parser.add_argument("--missing", action="store_true", help=f"measure what {PAGE.name} lacks, and add it")
    parser.add_argument("--run", nargs=6, metavar=("ENGINE", "SUBJECTS", "BEFORE", "SPENDS", "COMMIT", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.run:
        name, subjects, before, spends, commit, folder = arguments.run
        run = int(subjects), int(before), int(spends), int(commit)
        print(json.dumps(measure(name, run, Path(folder))))
        return
    versions = ", ".join(f"{name} {version(name)}" for name in ("lmdb", "rocksdict"))
    numbers = {"batch": POLL_RECORDS, "limit": LIMIT_S, "kill_batch": KILL_BATCH, "kill_subjects": KILL_SUBJECTS}
    texts = {"machine": machine(), "versions": versions}
    page = PAGE.read_text(encoding="utf-8").splitlines() if arguments.missing else []
    runs = {f"| {name} | {run[0]:,} | {run[1]:,} | ": (line, name, run) for run in PLAN for name in CONTENDERS}
    kinds = [{f"| {name} | {KILLS} | ": (kills, name) for name in CONTENDERS}, runs]
    done = [{start: found for start in kind for found in page if found.startswith(start)} for kind in kinds]
    line("ours", (100_000, 0, 2_000_000, 100_000))  # loads what it needs
    for kind, found in zip(kinds, done, strict=True):
        for start, (task, *values) in kind.items():
            if start in found:
                continue
            found[start] = task(*values)
            print(found[start], flush=True)
            if arguments.write or arguments.missing:  # what there is so far
                killed, rows = ("\n".join(done[i][s] for s in kinds[i] if s in done[i]) for i in range(2))
                PAGE.write_text(ABOUT.format(killed=killed, rows=rows, **texts, **numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
