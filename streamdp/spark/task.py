"""What an executor does: it learns the records of its shards, one shard after another, from the state of each.

`LDP*`, `UserLevelLDP*` and statistics that trust nobody are learned so. Of other statistics the driver adds up sums
without noise, and the noise (`SumTask`). Windows and other batches have their sums at the driver
(`streamdp.spark.gathering`). `UserLevelLDP*` close their open batch at the end of a batch of Spark, because only then
may their state leave memory.

The rows of a partition are ordered by shard, and within it by place. The first row of a shard is its load: the state,
and what its people have spent. Records are decoded, admitted, counted and learned by the same code as in a file runner
(`runtime.learning.learn`), with noise from this machine's operating system. What comes out is sealed for the driver.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any
from zipimport import zipimporter

import numpy as np
import polars as pl
import pyarrow as pa

from streamdp.config.definition import StoredDefinition, read_definition
from streamdp.data.schema import Schema
from streamdp.errors import SourceError, StreamDPError, raise_alone
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.loans import CarriedRows
from streamdp.ledger.rows import ROW
from streamdp.runtime.learning import learn
from streamdp.spark.records import LOAD, PLACE, SHARD
from streamdp.spark.sealing import seal
from streamdp.store.snapshot import Counts
from streamdp.store.state_codec import decode_state, encode_state

SEALED = "sealed"
"""The column with what only the driver can open."""
RESULT = f"{SHARD} long, {SEALED} binary"
"""The columns of the results, for Spark."""


@dataclass(frozen=True)
class Result:
    """What was learned of a shard's records of one batch."""

    state: Mapping[str, Any]  # of the estimator; of users that were gathered, what `gathering.Gather` says about them
    counts: Counts  # the records of this batch
    dead: Mapping[str, int]  # how many dead letters there are of each reason and column
    keys: np.ndarray  # the people whose spends have changed: hashes (m, 2) uint64 under the key of the loan
    rows: np.ndarray  # their spends (m, ROW)

    def encode(self, shard: int) -> bytes:
        """Return the result of a `shard` as bytes."""
        counts, dead = list(astuple(self.counts)), dict(self.dead)
        item = {"shard": shard, "state": dict(self.state), "counts": counts, "dead": dead}
        return encode_state(item | {"keys": self.keys.view(np.int64), "rows": self.rows}).encode()

    @classmethod
    def decode(cls, content: bytes, shard: int) -> Result:
        """Return the result in the `content` of `encode`. Raises `SourceError` if it is of another `shard`."""
        item = decode_state(content.decode())
        if item["shard"] != shard:
            raise SourceError("an executor returned the result of another shard")
        return cls(item["state"], Counts(*item["counts"]), item["dead"], item["keys"].view(np.uint64), item["rows"])


def encode_load(state: Mapping[str, object] | None, keys: np.ndarray, rows: np.ndarray, mark: str) -> bytes:
    """Return a shard's committed `state` (None: empty), `keys` and `rows` of `Loan.rows` and `Loan.mark` as bytes."""
    some = None if state is None else dict(state)
    return encode_state({"state": some, "keys": keys.view(np.int64), "rows": rows, "mark": mark}).encode()


class SparkTask:
    """A function for `mapInArrow` of Spark. A subclass defines `results`."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of a partition, whose rows come in `batches`.

        Raises `SourceError` in place of an unexpected error, whose text could quote a record.
        """
        try:
            yield from self.results(batches)
        except StreamDPError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark writes the text of an error into its logs
            raise_alone(SourceError(f"unexpected {type(error).__name__} while an executor learned its records"))
        finally:
            _forget_zip_files()

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `__call__`."""
        raise NotImplementedError


def _forget_zip_files() -> None:
    """Save .4 s of processor before the next task.

    PySpark clears the caches of imports before each task. Older versions of Python then read the lists of all zip
    files at once, and PySpark itself is imported from one. An importer that is forgotten is made again if it is needed.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            sys.path_importer_cache.pop(path, None)


@dataclass(frozen=True)
class ShardTask(SparkTask):
    """Learns the shards of a partition; a function for `mapInArrow` of Spark."""

    definition: str  # the text of the job's definition
    public: bytes  # the key that results are sealed with
    key: bytes | None  # the key of the loan; None without a cap

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `SparkTask.results`: the rows of each shard."""
        lane: SparkShard | None = None
        for batch in batches:
            numbers = batch.column(SHARD).to_numpy()
            starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
            for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
                if end == start:
                    continue
                shard, rows = int(numbers[start]), batch.slice(start, end - start)
                if lane is None or lane.shard != shard:
                    if lane is not None:
                        yield from self.rows(lane)
                    lane, rows = self.lane(shard, rows.column(LOAD)[0].as_py()), rows.slice(1)
                lane.learn(rows)
        if lane is not None:
            yield from self.rows(lane)

    def lane(self, shard: int, load: bytes | None) -> SparkShard:
        """Return a shard before its first record, with its `load`."""
        return SparkShard(shard, load, self.definition, self.key)

    def state(self, lane: SparkShard) -> dict[str, object]:
        """Return what a shard has learned."""
        return lane.estimator.state_dict()

    def rows(self, lane: SparkShard) -> Iterator[pa.RecordBatch]:
        """Yield what goes to the driver of a shard whose records are learned."""
        lane.estimator.close_batch()
        sealed = seal(lane.result(self.state(lane)).encode(lane.shard), self.public)
        yield pa.RecordBatch.from_pydict({SHARD: pa.array([lane.shard], pa.int64()), SEALED: pa.array([sealed])})


@dataclass(frozen=True)
class SumTask(ShardTask):
    """Adds up the records of the shards of a partition, for statistics whose noise the driver adds."""

    shards: int

    def lane(self, shard: int, load: bytes | None) -> SparkShard:
        """As `ShardTask.lane`: it has its part of each batch."""
        lane = super().lane(shard, load)
        lane.estimator.part_of(self.shards)
        return lane

    def state(self, lane: SparkShard) -> dict[str, object]:
        """As `ShardTask.state`: the sums, without noise."""
        return lane.estimator.take_sums()


@lru_cache(maxsize=4)
def definition_of(text: str) -> StoredDefinition:
    """Return the definition of a job from its `text`, which a Python worker reads once for all its tasks."""
    return read_definition(text)


class SparkShard:
    """A shard while its records are learned. Its `load` is of `encode_load`; None raises `SourceError`.

    `definition` and `key` are as for `ShardTask`.
    """

    def __init__(self, shard: int, load: bytes | None, definition: str, key: bytes | None) -> None:
        if load is None:
            raise SourceError("a shard came without its load")
        self.shard = shard
        job, item = definition_of(definition), decode_state(load.decode())
        cap = job.cap_budget
        self._rows = None if cap is None else CarriedRows(cap, item["keys"].view(np.uint64), item["rows"], item["mark"])
        ledger = None
        if self._rows is not None and cap is not None and key is not None:
            ledger = Ledger.over(self._rows, cap, key)
        estimator: Any = job.build_estimator(ledger)
        self.estimator = estimator
        if item["state"] is not None:
            estimator.load_state_dict(item["state"])
        self._schema = job.build_schema()
        self._counts, self._dead = Counts(), Counter[str]()

    def learn(self, rows: pa.RecordBatch) -> None:
        """Learn `rows` of `records.prepared`."""
        if rows.num_rows:
            frame, places = decoded(rows, self._schema)
            batch = self._schema.encode(frame, places, {})
            self._dead.update(" ".join(filter(None, (letter.reason, letter.column))) for letter in batch.dead)
            self._counts = learn(self.estimator, batch, self._counts)

    def result(self, state: Mapping[str, object]) -> Result:
        """Return what was learned, with this `state`."""
        keys, rows = (np.empty((0, 2), np.uint64), np.empty((0, ROW))) if self._rows is None else self._rows.changed()
        return Result(state, self._counts, self._dead, keys, rows)


def decoded(rows: pa.RecordBatch, schema: Schema) -> tuple[pl.DataFrame, np.ndarray]:
    """Return n `rows` of `records.prepared` as the frame that a schema encodes, and their places (n,) int64."""
    names = {f"c{i}": name for i, name in enumerate(schema.columns)}
    table = pa.Table.from_batches([rows.select(list(names))]).rename_columns(list(names.values()))
    return pl.DataFrame(pl.from_arrow(table)), rows.column(PLACE).to_numpy()
