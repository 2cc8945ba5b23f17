"""How fast the ledger of a job on disk admits, and in how much memory. `python -m benchmarks.ledger [--write]`.

Subjects are drawn uniformly, which is the hardest for a cache: a batch of 10,000 among 10 million meets hardly one
subject twice. Batches are as the runner makes them; each goes to `admit_many`, and every so many records are committed,
which means that they are on the disk. Only these two calls are timed, not the making of names.

`python -m benchmarks.ledger --shared 4` lets so many jobs, each with people of its own, spend in one database of
PostgreSQL, and samples what their transactions wait for. With `--rest 0.1` each job rests so many seconds after each
commit: then a machine with few cores has room for all, and what is left to wait for are locks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, text

from benchmarks.shared.pages import fill, in_a_process, table
from streamdp import GaussianDP, Store
from streamdp.runtime.runner import POLL_RECORDS
from streamdp.store.snapshot import Counts

MIB = 2**20

PAGE = Path(__file__).parent / "ledger.md"
PLAN = [
    (100_000, 10_000_000, 100_000),
    (1_000_000, 10_000_000, 100_000),
    (10_000_000, 10_000_000, 10_000),
    (10_000_000, 100_000_000, 100_000),
]
"""Subjects, spends, and records from commit to commit; the last is the goal's."""
GOAL, GOAL_MIB = 200_000, 1e9 / MIB


def measure(subjects: int, spends: int, commit: int, folder: Path) -> dict[str, float]:
    """One run, in this process."""
    rng = np.random.default_rng(3)
    mu = 0.1
    cap = GaussianDP(mu * max(1.0, spends / subjects) ** 0.5)
    tenths, seconds, busy, largest_file = [], 0.0, 0.0, 0
    batch = min(POLL_RECORDS, commit)
    with Store(folder / "job.db", "job", "", cap=cap) as store:
        ledger, write = store.ledger, partial(store.commit, {}, {}, Counts())
        assert ledger is not None
        ledger.admit_many(["nobody", "else"] * 10, GaussianDP(mu))  # loads what it needs
        write()
        waiting, last = 0, 0.0
        for done in range(0, spends, batch):
            names = [f"person-{i}" for i in rng.integers(0, subjects, min(batch, spends - done))]
            started, worked = time.perf_counter(), time.process_time()
            ledger.admit_many(names, GaussianDP(mu))
            waiting += len(names)
            if waiting >= commit or done + len(names) == spends:
                write()
                waiting = 0
            seconds += time.perf_counter() - started
            busy += time.process_time() - worked
            if (done + len(names)) * 10 // spends > len(tenths):
                tenths.append(seconds - last)
                last = seconds
                largest_file = max(largest_file, sum(file.stat().st_size for file in folder.iterdir()))
                print(f"{len(tenths)}0 %: {spends / 10 / tenths[-1]:,.0f} admits/s", file=sys.stderr, flush=True)
        known, refused = ledger.n_subjects, ledger.n_refused
    status = Path("/proc/self/status").read_text()
    return {
        "subjects": known,
        "refused": refused,
        "rate": spends / seconds,
        "of_processor": spends / busy,
        "slowest": spends / 10 / max(tenths),
        "memory": int(status.split("VmHWM:")[1].split()[0]) / 1024,
        "disk": largest_file,
    }


SHARED_SECONDS, SHARED_COMMIT, SHARED_PEOPLE = 20.0, 2_000, 200_000


def spend(url: str, number: int, rest: float) -> int:
    """Let a job spend for a while, with a rest after each commit; return how many spends it has committed."""
    rng, done = np.random.default_rng(number), 0
    with Store(url, f"job-{number}", "", cap=GaussianDP(1000)) as store:
        ledger = store.ledger
        assert ledger is not None
        until = time.monotonic() + SHARED_SECONDS
        while time.monotonic() < until:
            people = rng.integers(0, SHARED_PEOPLE, SHARED_COMMIT)
            ledger.admit_many([f"{number}-person-{i}" for i in people], GaussianDP(0.1))
            store.commit({}, {}, Counts())
            done += SHARED_COMMIT
            time.sleep(rest)
    return done


def shared(jobs: int, rest: float) -> None:
    """Print how many spends so many jobs commit in a second, and the share of their time in which they wait."""
    from servers.postgres import Postgres

    waits: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Postgres(folder) as server:
        key = {"STREAMDP_SUBJECT_KEY": "0" * 64}
        command = [sys.executable, "-m", "benchmarks.ledger", "--spend", server.url]
        workers = [
            subprocess.Popen([*command, str(i), str(rest)], env=os.environ | key, stdout=subprocess.PIPE)
            for i in range(jobs)
        ]
        with create_engine(server.url.replace("postgresql", "postgresql+psycopg")).connect() as connection:
            while any(worker.poll() is None for worker in workers):
                for state, wait, event in connection.execute(text(_WAITS)):
                    waits["transactions"] += state != "idle"
                    waits["locks"] += wait == "Lock"
                    waits[f"{event}"] += wait == "Lock"
                connection.rollback()
                time.sleep(0.005)
        done = [int(worker.communicate()[0]) for worker in workers]
    share = waits["locks"] / max(1, waits["transactions"])
    which = ", ".join(f"{name} {n}" for name, n in waits.most_common() if name not in ("transactions", "locks") and n)
    print(
        f"{jobs} jobs: {sum(done) / SHARED_SECONDS:,.0f} spends/s; of {waits['transactions']:,} samples of open "
        f"transactions {share:.1%} waited for a lock ({which or 'none'})"
    )


_WAITS = """SELECT state, wait_event_type, wait_event FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""


def line(subjects: int, spends: int, commit: int, found: dict[str, float]) -> list[str]:
    cells = [f"{subjects:,}", f"{spends:,}", f"{commit:,}", f"{found['rate']:,.0f}", f"{found['slowest']:,.0f}"]
    cells += [f"{found['of_processor']:,.0f}", f"{found['memory']:.0f} MiB", f"{found['disk'] / found['subjects']:.0f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description="Measure the ledger at scale.")
    parser.add_argument("--write", action="store_true", help=f"save the figures in {PAGE.name}")
    parser.add_argument("--one", nargs=3, type=int, metavar=("SUBJECTS", "SPENDS", "COMMIT"), help="one run, as JSON")
    parser.add_argument("--shared", type=int, metavar="JOBS", help="so many jobs in one database of PostgreSQL")
    parser.add_argument("--spend", nargs=3, metavar=("URL", "NUMBER", "REST"), help="one of these jobs")
    parser.add_argument("--rest", type=float, default=0.0, metavar="SECONDS", help="of a job after each commit")
    arguments = parser.parse_args()
    if arguments.spend:
        url, number, rest = arguments.spend
        print(spend(url, int(number), float(rest)))
        return
    if arguments.shared:
        shared(arguments.shared, arguments.rest)
        return
    if arguments.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(*arguments.one, Path(folder))))
        return
    from benchmarks.speed import machine  # here, as it loads what the runs need not

    about = machine()
    base = in_a_process("ledger", "1", "10", "10")["memory"]
    rows, found = [], {}
    for run in PLAN:
        found = in_a_process("ledger", *map(str, run))
        rows.append(line(*run, found))
        print(*rows[-1], sep=" | ", flush=True)
    met = "met" if found["rate"] >= GOAL and found["memory"] < GOAL_MIB else "not met on this machine"
    head = ["subjects", "spends", "a commit every", "admits/s", "slowest tenth", "per s of processor", "peak memory"]
    shown = table([*head, "bytes a subject"], rows)
    goal = f"The goal is 200,000 admits/s with 10 million subjects and 100 million spends in less than 1 GB: {met}."
    if arguments.write:
        fill(PAGE, "ledger", f"{about} The interpreter and its imports need about {base:.0f} MiB.\n\n{shown}\n\n{goal}")


if __name__ == "__main__":
    main()
