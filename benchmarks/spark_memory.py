"""What a window of users needs of memory on Spark. `python -m benchmarks.spark_memory [--whole] [--write]`.

A window of 10^8 records of 10^7 users, with ten features, is divided into 200 shards. Each process is measured in a
process of its own, without Spark around it: an executor that gathers one shard and then answers one question, by the
peak of its resident memory beyond that of a shard without records; and the driver with a cap, which lends the rows of
a part of the users and makes their loads. The window's numbers follow by multiplication. `--shards N` simulates N of
the shards, one after another as many processes would have them, and takes the largest numbers; `--whole` all of them,
10^8 records.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks.shared.pages import fill, in_a_process, table
from streamdp.config.job import NOTHING, JobConfig, make_config
from streamdp.ledger.rows import ROW
from streamdp.optim.curvature import Curvature
from streamdp.optim.losses import Huber
from streamdp.spark.records import LOAD, PLACE, SHARD
from streamdp.spark.sealing import Seal
from streamdp.spark.task import SEALED, Gather, PartitionQuestion, Result, encode_load, user_sum
from streamdp.store.state_codec import decode_state

PAGE = Path(__file__).with_suffix(".md")
RECORDS, USERS, SHARDS, FEATURES = 100_000_000, 10_000_000, 200, 10
ARROW_ROWS = 10_000
"""Rows that Spark sends to a Python process at a time."""
LENT = 500_000


def config(cap: str | None = None, store: str = "") -> JobConfig:
    names = [f"f{i}" for i in range(FEATURES)]
    schema = {
        "features": {name: [-1, 1] for name in names},
        "target": {"column": "y", "bounds": [-1, 1]},
        "subject": "who",
    }
    model = {"estimator": "WindowedRegressor", "budget": "eps=1,delta=1e-8", "items_per_user": 16}
    more = {} if cap is None else {"cap": cap, "store": store}
    return make_config({"job": "j", "schema": schema, "model": model, "source": {"type": "spark"}} | more)


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def partition(records: int, users: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The rows of a shard as Spark sends them, batch by batch."""
    rng = np.random.default_rng(seed)
    load = encode_load(None, np.empty((0, 2), np.uint64), np.empty((0, ROW)))
    first = True
    for begin in range(0, records, ARROW_ROWS):
        n = min(ARROW_ROWS, records - begin)
        values = {f"c{i}": pa.array(rng.uniform(-1, 1, n)) for i in range(FEATURES + 1)}
        values[f"c{FEATURES + 1}"] = pa.array(np.char.add(f"s{seed}-", rng.integers(0, users, n).astype(str)))
        values |= {SHARD: pa.array(np.zeros(n, np.int64)), PLACE: pa.array(np.arange(begin, begin + n))}
        values[LOAD] = pa.nulls(n, pa.binary())
        batch = pa.RecordBatch.from_pydict(values)
        if first:
            head = {name: pa.nulls(1, batch.column(name).type) for name in batch.schema.names}
            head |= {SHARD: pa.array([0]), PLACE: pa.array([-1]), LOAD: pa.array([load], pa.binary())}
            yield pa.RecordBatch.from_pydict(head)
            first = False
        yield batch


def timed(batches: Iterator[pa.RecordBatch], seconds: list[float]) -> Iterator[pa.RecordBatch]:
    """The same batches; notes what it takes to make each."""
    while True:
        began = time.process_time()
        batch = next(batches, None)
        seconds.append(time.process_time() - began)
        if batch is None:
            return
        yield batch


def shard(records: int, users: int, seed: int = 0) -> dict[str, float]:
    """Gather a shard and answer a question."""
    seal = Seal()
    imports = peak()
    made: list[float] = []
    began = time.process_time()
    rows = list(Gather.of(config(), seal.public, None, SHARDS)(timed(partition(records, users, seed), made)))
    seconds = time.process_time() - began - sum(made)
    result = Result.decode(seal.open(rows[0].column(SEALED)[0].as_py()), 0)
    blocks = rows[1:]
    size = sum(batch.nbytes for batch in blocks)
    began = time.process_time()
    answer = next(iter(question(seal)(iter(blocks))))
    asked = time.process_time() - began
    sealed = answer.column(SEALED)[0].as_py()
    return {
        "records": result.counts.learned + result.counts.refused,
        "users": sum(result.state["users"]),
        "block": size,
        "imports": imports,
        "gather": peak() - imports,
        "numbers": len(sealed),
        "seconds": seconds,
        "asked": asked,
        "answer": float(np.abs(decode_state(seal.open(sealed).decode())["total"]).sum()),
    }


def question(seal: Seal) -> PartitionQuestion:
    curvature = Curvature(Huber(), FEATURES + 1)
    theta = np.append(np.zeros(curvature.parameters - 1), 1.0)
    return PartitionQuestion(
        config().text(), seal.public, partial(user_sum, "curvatures", (curvature, theta, 2.0**-20), None)
    )


def lend(users: int) -> dict[str, float]:
    """Lend the rows of users, and make the loads of their shards."""
    with TemporaryDirectory() as name, config("eps=1,delta=1e-8", f"{name}/job.db").open_store(NOTHING) as store:
        assert store.ledger is not None
        imports = peak()
        loan = store.ledger.export_rows([f"subject-{i}" for i in range(users)], b"k" * 32)
        homes = np.arange(users) % SHARDS
        loads = [len(encode_load(None, *loan.rows(homes == lane))) for lane in range(SHARDS)]
        return {"person": peak() - imports, "load": sum(loads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    records, users = RECORDS // SHARDS, USERS // SHARDS
    if asked.one:
        kind, *numbers = asked.one
        print(json.dumps(shard(*map(int, numbers)) if kind == "shard" else lend(*map(int, numbers))))
        return
    count = SHARDS if asked.whole else asked.shards
    found = []
    for seed in range(count):
        found.append(in_a_process("spark_memory", "shard", str(records), str(users), str(seed)))
        print(f"shard {seed}: {found[-1]}", flush=True)
    most = {name: max(one[name] for one in found) for name in found[0]}
    lent = in_a_process("spark_memory", "lend", str(LENT))
    block, gather, numbers = most["block"], most["gather"], most["numbers"]
    person, load = lent["person"] / LENT, lent["load"] / LENT
    rows = [
        (
            "records in Spark's cache (memory, else disk)",
            f"{block / records:.0f} bytes a record",
            f"{block * SHARDS / 1e9:.1f} GB, {block / 1e6:.0f} MB a shard",
        ),
        (
            "an executor's Python process, the most at any time",
            f"{gather / records:.0f} bytes a record",
            f"{gather / 1e6:.0f} MB",
        ),
        ("answers of a round at the driver", f"{int(numbers):,} bytes a shard", f"{numbers * SHARDS / 1e6:.1f} MB"),
        ("the driver's process, with a cap", f"{person:.0f} bytes a user", f"{person * USERS / 1e9:.1f} GB"),
        ("a shard's load, with a cap", f"{load:.0f} bytes a user", f"{load * users / 1e6:.1f} MB a shard"),
    ]
    gathered, of = int(sum(one["records"] for one in found)), int(sum(one["users"] for one in found))
    text = (
        f"{table(['part', 'measured', 'for the window'], rows)}\n\n"
        f"Processor time of this machine: {most['seconds'] / records * 1e6:.2f} µs a record to gather, "
        f"{most['asked'] / records * 1e6:.3f} µs a record for a question. The\n"
        f"memory of imports ({most['imports'] / 1e6:.0f} MB a process) is not in these numbers. "
        f"{gathered:,} records of {of:,} users in\n{count} of the shards were gathered for them."
    )
    print(text)
    if asked.write:
        fill(PAGE, "memory", text)


if __name__ == "__main__":
    main()
