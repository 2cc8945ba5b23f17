"""The driver's half: it lends spends and states to the executors, and commits what they learned in one transaction.

One batch, in this order: the driver draws keys for this attempt; with a cap, it reads which people are in the batch and
what they have spent; the executors learn; the driver opens one result of each shard, checks it, and commits all shards,
the spends and the number of the batch together. Only then is anything shown. If any step fails, nothing of the attempt
is kept: the driver goes back to the last commit, and Spark repeats the batch with fresh keys and fresh noise.

Who sees what of an attempt
---------------------------
* An executor's process: the raw records of its shards, their noise and its results. It forgets them with the task.
* The disks of executors: the raw records, in Spark's shuffle files and in what it spills, until the batch ends; states
  and spends that are committed; results as ciphertexts. Spark can encrypt all of it (spark.io.encryption.enabled).
* The driver: the names of the people in a batch, in memory, with a cap; the opened results, in memory.
* The driver's disks: the store, which has what any store has; Spark's checkpoint, which has positions in the source;
  event logs and plans, which have names of columns, the job's public settings and counts of rows.
* A second attempt, a speculative copy of a task, or a task whose answer was lost: a ciphertext that nobody can open.

So of all attempts to learn a record, the one that is committed is the one that is seen: one draw of noise, one spend.
This holds for everybody except an intruder who reads the memory of an executor while it learns; the statement says that
people must trust these machines.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamdp.data.records import Position, Shard
from streamdp.errors import ConfigError, SourceError, StoreUnavailableError
from streamdp.ledger.rows import ROW
from streamdp.runtime.learning import check_finite
from streamdp.spark.records import LOAD, PLACE, SHARD, canonical, prepared
from streamdp.spark.sealing import Seal
from streamdp.spark.task import RESULT, Result, ShardTask, encode_load
from streamdp.store.snapshot import ON_SPARK, Counts, Part, Snapshot
from streamdp.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from streamdp.config.job import Accepted, JobConfig
    from streamdp.ledger.loans import Loan

RETRY_S = 1.0
"""The time between two attempts to reach the database."""
RETRIES = 600
"""How often a call of the database is repeated before the batch fails."""

T = TypeVar("T")


class Driver:
    """The store of a job that Spark learns, and its shards. Close it.

    Parameters
    ----------
    spark
        The session.
    config
        The job.
    accepted
        What the operator accepts.
    publish
        Each function is called with the snapshots of all shards after every commit.

    Raises the errors of `JobConfig.open_store`; `ConfigError` if the store has learned from another source, or has
    another number of shards than the job.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: JobConfig,
        accepted: Accepted,
        publish: Sequence[Callable[[list[Snapshot]], None]] = (),
    ) -> None:
        self._spark = spark
        self._config = config
        self._publish = tuple(publish)
        self._store = _patiently(lambda: config.open_store(accepted, shared=True))
        try:
            self.shards = [Shard(ON_SPARK, i) for i in range(self._number_of_shards())]
            self._last = _patiently(lambda: self._store.claim(self.shards))
        except BaseException:
            self._store.close()
            raise

    def _number_of_shards(self) -> int:
        found = {s.shard for s in Store.snapshots(self._config.store_path, self._config.job)}
        wanted = getattr(self._config.source, "shards", None)
        if any(shard.topic != ON_SPARK for shard in found):
            raise ConfigError("this store has learned from another source than Spark: use another store")
        if found and wanted not in (None, len(found)):
            raise ConfigError(f"source.shards: this store has {len(found)} shards: leave it out, or use another store")
        return len(found) or wanted or int(self._spark.sparkContext.defaultParallelism)

    @property
    def counts(self) -> Counts:
        """The committed counts over all shards."""
        all_of = [last.counts for last in self._last.values() if last is not None]
        return Counts(sum(c.learned for c in all_of), sum(c.refused for c in all_of), sum(c.dead for c in all_of))

    @property
    def position(self) -> Position:
        """The committed position, which all shards share but for their dead letters; empty before the first commit."""
        first = self._last[self.shards[0]]
        return {} if first is None else dict(first.position)

    @property
    def dead(self) -> dict[str, int]:
        """The committed dead letters of all shards, by reason and column."""
        found = Counter[str]()
        for last in self._last.values():
            found.update({} if last is None else last.position["dead"])
        return dict(found)

    def learn(self, frame: DataFrame, mark: Mapping[str, Any]) -> None:
        """Learn a batch and commit it; or raise, and be as after the last commit.

        Parameters
        ----------
        frame
            The records.
        mark
            The position after them, for all shards.

        Raises `SchemaError` for a missing column, `SourceError` if Spark fails, `FencedError` if another driver has
        taken over the store, and the `StoreError`s of `Store.commit_parts`.
        """
        try:
            parts = self._parts(frame, mark)
            _patiently(lambda: self._store.commit_parts(parts))
            self._reload()
        except BaseException:
            self._store.rollback()
            with contextlib.suppress(StoreUnavailableError):
                self._reload()
            raise
        self.show()

    def _reload(self) -> None:
        self._last = _patiently(lambda: {shard: self._store.load(shard) for shard in self.shards})

    def show(self) -> None:
        """Publish the last commit, if there is one."""
        snapshots = [last for last in self._last.values() if last is not None]
        if snapshots:
            for publish in self._publish:
                publish(snapshots)

    def _parts(self, frame: DataFrame, mark: Mapping[str, Any]) -> dict[Shard, Part]:
        ledger, schema, seal = self._store.ledger, self._config.build_schema(), Seal()
        key = None if ledger is None else secrets.token_bytes(32)
        with _spark_errors():
            records = prepared(frame, schema, len(self.shards), key, secrets.randbits(62))
            loan, homes = None, np.empty(0, np.int64)
            if ledger is not None and key is not None:
                people, homes = self._people(records, schema)
                loan = _patiently(lambda: ledger.lend(people, key))
            task = ShardTask(self._config.text(), seal.public, key)
            found = self._run(records, task, loan, homes)
        if set(found) != set(range(len(self.shards))):
            raise SourceError("Spark did not return one result of each shard")
        results = {shard: Result.decode(seal.open(found[shard.partition]), shard.partition) for shard in self.shards}
        if loan is not None:
            loan.settle(
                np.concatenate([result.keys for result in results.values()]),
                np.concatenate([result.rows for result in results.values()]),
            )
        return {shard: self._part(shard, result, mark) for shard, result in results.items()}

    def _people(self, records: DataFrame, schema: Any) -> tuple[list[str], np.ndarray]:
        """The subjects of the records, and the shard of each."""
        column = f"c{schema.columns.index(schema.subject)}"
        table = records.select(column, SHARD).distinct().toArrow()
        texts = canonical(pl.Series(pl.from_arrow(table.column(column))), schema.subject_type)
        present = np.array([text is not None for text in texts], dtype=np.bool_)
        return [text for text in texts if text is not None], table.column(SHARD).to_numpy()[present]

    def _run(self, records: DataFrame, task: ShardTask, loan: Loan | None, homes: np.ndarray) -> dict[int, bytes]:
        """Run the task on the records of all shards; the sealed results."""
        nobody = np.empty((0, 2), np.uint64), np.empty((0, ROW))
        loads = []
        for shard in self.shards:
            last = self._last[shard]
            people = nobody if loan is None else loan.rows(homes == shard.partition)
            loads.append(encode_load(None if last is None else last.state, *people))
        numbers = pa.array([shard.partition for shard in self.shards], pa.int64())
        first = pa.array([-1] * len(loads), pa.int64())  # before every record
        table = pa.table({SHARD: numbers, PLACE: first, LOAD: pa.array(loads, pa.binary())})
        rows = records.unionByName(self._spark.createDataFrame(table), allowMissingColumns=True)
        placed = rows.repartition(len(self.shards), SHARD).sortWithinPartitions(SHARD, PLACE)
        table = placed.mapInArrow(task, RESULT).toArrow()
        return dict(zip(table.column(SHARD).to_pylist(), table.column("sealed").to_pylist(), strict=True))

    def _part(self, shard: Shard, result: Result, mark: Mapping[str, Any]) -> Part:
        check_finite(result.state)
        last, new = self._last[shard], result.counts
        old = Counts() if last is None else last.counts
        dead = Counter[str]({} if last is None else last.position["dead"])
        dead.update(result.dead)
        counts = Counts(old.learned + new.learned, old.refused + new.refused, old.dead + new.dead)
        return Part(result.state, {**mark, "dead": dict(dead)}, counts)

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()


@contextlib.contextmanager
def _spark_errors() -> Iterator[None]:
    """Turn errors of Spark into `SourceError`s. Their texts may quote records, so only their names are passed on."""
    try:
        yield
    except PySparkException as error:
        name = error.getCondition() or type(error).__name__
        said = _own_words(str(error))
    except SourceError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        name, said = type(error).__name__, ""
    else:
        return
    raise SourceError(f"Spark could not learn the batch ({name}){said}; nothing of it was kept. See Spark's log")


def _own_words(text: str) -> str:
    """What an executor said itself: the line of an error of `streamdp.errors`, which shows no value."""
    lines = [line for line in text.splitlines() if line.startswith("streamdp.errors.")]
    return f": {lines[-1].partition(': ')[2]}" if lines else ""


def _patiently(call: Callable[[], T]) -> T:
    """What a call of the database returns; repeated while the database does not answer."""
    for _ in range(RETRIES):
        try:
            return call()
        except StoreUnavailableError:
            time.sleep(RETRY_S)
    return call()
