"""The driver's half: it sends spends and states to the executors, and commits what they learned in one transaction.

LDP* and UserLevelLDP* learn in shards: each shard has a model of its own, and an executor learns its records. For
PanPrivate*, Shuffle* and Windowed* (`streamdp.spark.task`) a shard is a part of the records, and there is one
model, which the driver learns. Statistics are learned like LDP* if nobody is trusted; else executors return sums, to
which the driver adds noise.

One batch, in this order: the driver draws keys for this attempt; with a cap, it reads which people are in the batch and
what they have spent; the executors learn; the driver opens one result of each shard, checks it, and commits all shards,
the spends and the number of the batch together. Only then is anything shown. If any step fails, nothing of the attempt
is kept: the driver goes back to the last commit, and Spark repeats the batch with fresh keys and fresh noise.

So of all attempts to learn a record, the one that is committed is the one that is seen: one draw of noise, one spend.
docs/howto/spark.md says what each machine and each disk sees of an attempt; the statement says that people must trust
these machines.
"""

import contextlib
import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from streamdp.config.job import Accepted, JobConfig
from streamdp.data.records import Position, Shard
from streamdp.data.schema import Schema
from streamdp.errors import (
    ConfigError,
    SourceError,
    StoreUnavailableError,
    TooFewUsersError,
    TooManyBadRecordsError,
    closed_on_error,
    raise_alone,
)
from streamdp.estimators.estimator import Estimator
from streamdp.learners.batches import Batches
from streamdp.learners.learner import Collector
from streamdp.learners.sums import Sums
from streamdp.learners.user_windows import Windows, WindowWarning
from streamdp.ledger.loans import Loan
from streamdp.ledger.rows import ROW
from streamdp.runtime.bad_records import too_many
from streamdp.runtime.defaults import BAD_SHARE
from streamdp.runtime.learning import check_finite, total
from streamdp.spark.records import LOAD, PLACE, SHARD, canonical, prepared
from streamdp.spark.sealing import Seal
from streamdp.spark.task import (
    BLOCKS,
    RESULT,
    SEALED,
    ClusterUsers,
    Gather,
    GatheredRecords,
    Result,
    ShardTask,
    SumTask,
    encode_load,
    learn_batches,
)
from streamdp.store.snapshot import ON_SPARK, Counts, Part, Snapshot, counts_sum
from streamdp.store.store import Store

_patiently = Retrying(
    retry=retry_if_exception_type(StoreUnavailableError), wait=wait_fixed(1), stop=stop_after_attempt(600), reraise=True
)
"""What a call of the database returns; repeated each second, at most so often, while the database does not answer."""


class _Batch(NamedTuple):
    """A batch on its way to the executors, and what this attempt has drawn and lent for it."""

    rows: DataFrame
    key: bytes | None
    loan: Loan | None
    seal: Seal


class Driver(contextlib.AbstractContextManager["Driver"]):
    """The store of a job that Spark learns, and its shards.

    Close it; an exit by an error is that of `Store`. Each function of `publish` is called with the snapshots of all
    shards after every commit. With `stream`, batches come one after another, and the records of a window with too few
    users are refused, because Spark cannot hold a batch back. Raises the errors of `JobConfig.open_store`;
    `ConfigError` if the store has learned from another source, or has another number of shards than the job.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: JobConfig,
        accepted: Accepted,
        publish: Sequence[Callable[[list[Snapshot]], None]] = (),
        *,
        stream: bool = False,
    ) -> None:
        self._spark = spark
        self._config = config
        self._stream = stream
        self._learns = config.build_estimator().learns
        self._one_model = issubclass(self._learns, Windows | Batches | Sums)
        self._publish = tuple(publish)
        self._store = _patiently(lambda: config.open_store(accepted, shared=True))
        with closed_on_error(self._store):
            self._lanes = self._number_of_lanes()
            self.shards = [Shard(ON_SPARK, i) for i in range(1 if self._one_model else self._lanes)]
            self._last = _patiently(lambda: self._store.claim(self.shards))

    def _number_of_lanes(self) -> int:
        kept_by = self._config.store_path, self._config.job
        found = {s.shard for s in _patiently(lambda: Store.snapshots(*kept_by))}
        wanted = getattr(self._config.source, "shards", None)
        if any(shard.topic != ON_SPARK for shard in found):
            raise ConfigError("this store has learned from another source than Spark: use another store")
        kept = 0 if self._one_model else len(found)  # records may be divided otherwise than in the batch before
        if kept and wanted not in (None, kept):
            raise ConfigError(f"source.shards: this store has {kept} shards: leave it out, or use another store")
        return kept or wanted or int(self._spark.sparkContext.defaultParallelism)

    @property
    def counts(self) -> Counts:
        """The committed counts over all shards."""
        return counts_sum(last.counts for last in self._last.values() if last is not None)

    @property
    def position(self) -> Position:
        """The committed position, which all shards share but for their dead letters; empty before the first commit."""
        first = self._last[self.shards[0]]
        return {} if first is None else dict(first.position)

    @property
    def dead_letters(self) -> dict[str, int]:
        """The committed dead letters of all shards, by reason and column."""
        found = Counter[str]()
        for last in self._last.values():
            found.update({} if last is None else last.position["dead_letters"])
        return dict(found)

    def learn(self, frame: DataFrame, mark: Mapping[str, object]) -> None:
        """Learn a batch and commit it; or raise, and be as after the last commit.

        `mark` is the position after the batch, for all shards. Raises `SchemaError` for a missing column, `SourceError`
        if Spark fails, `TooFewUsersError` for a window that is too small, `FencedError` if another driver has taken
        over the store, and the `StoreError`s of `Store.commit_parts`.
        """
        try:
            parts = self._parts(frame, mark)
            self._check_fit(parts.values())
            _patiently(lambda: self._store.commit_parts(parts))
            self._reload()
        except BaseException:
            self._store.rollback()
            with contextlib.suppress(StoreUnavailableError):
                self._reload()
            raise
        self.show()

    def _check_fit(self, parts: Iterable[Part]) -> None:
        """Raise `TooManyBadRecordsError` if a job has learned nothing, and too many of these records do not fit."""
        if not self.counts.learned:
            reasons = Counter[tuple[str, str | None]]()
            for part in parts:
                for said, count in part.position["dead_letters"].items():
                    reason, _, column = said.partition(" ")
                    reasons[reason, column or None] += count
            limit = getattr(self._config.source, "max_bad_share", BAD_SHARE)
            rows = sum(total(part.counts) for part in parts)
            if (problem := too_many("Spark", rows, reasons, limit)) is not None:
                raise TooManyBadRecordsError(problem)

    def _reload(self) -> None:
        self._last = _patiently(lambda: {shard: self._store.load(shard) for shard in self.shards})

    def show(self) -> None:
        """Publish the last commit, if there is one."""
        snapshots = [last for last in self._last.values() if last is not None]
        if snapshots:
            for publish in self._publish:
                publish(snapshots)

    def _parts(self, frame: DataFrame, mark: Mapping[str, object]) -> dict[Shard, Part]:
        with _spark_errors():
            batch = self._batch(frame)
            if issubclass(self._learns, Windows | Batches):
                return {self.shards[0]: self._learned(batch, mark)}
            given = self._config.text(), batch.seal.public, batch.key
            task = SumTask(*given, self._lanes) if self._one_model else ShardTask(*given)
            returned = batch.rows.mapInArrow(task, RESULT)
            results = self._results(batch, returned)
            _remove_shuffle_files(returned.rdd)
        _settle(batch, results)
        if self._one_model:
            return {self.shards[0]: self._summed(results, mark)}
        return {shard: self._part(shard, results[shard.partition], mark) for shard in self.shards}

    def _batch(self, frame: DataFrame) -> _Batch:
        ledger, schema = self._store.ledger, self._config.build_schema()
        collects = issubclass(self._learns, Collector) and self._config.schema_.subject is not None
        key = secrets.token_bytes(32) if ledger is not None or collects else None
        records = prepared(frame, schema, self._lanes, key, secrets.randbits(62))
        loan, homes = None, np.empty(0, np.int64)
        if ledger is not None and key is not None:
            people, homes = self._people(records, schema)
            loan = _patiently(lambda: ledger.export_rows(people, key))
        loads = []
        for lane in range(self._lanes):
            last = self._last[self.shards[0 if self._one_model else lane]]
            # gathering the users of a window needs no state
            state = None if last is None or issubclass(self._learns, Windows) else last.state
            loads.append(encode_load(state, loan, homes == lane))
        numbers = pa.array(range(self._lanes), pa.int64())
        first = pa.array([-1] * len(loads), pa.int64())  # before every record
        table = pa.table({SHARD: numbers, PLACE: first, LOAD: pa.array(loads, pa.binary())})
        rows = records.unionByName(self._spark.createDataFrame(table), allowMissingColumns=True)
        placed = rows.repartitionById(self._lanes, sf.col(SHARD).cast("int")).sortWithinPartitions(SHARD, PLACE)
        return _Batch(placed, key, loan, Seal())

    def _people(self, records: DataFrame, schema: Schema) -> tuple[list[str], np.ndarray]:
        column = f"c{schema.columns.index(schema.subject)}"
        people = records.select(column, SHARD).distinct()
        table = people.toArrow()
        _remove_shuffle_files(people.rdd)
        texts = canonical(pl.Series(pl.from_arrow(table.column(column))), schema.subject_type)
        present = np.array([text is not None for text in texts], dtype=np.bool_)
        return [text for text in texts if text is not None], table.column(SHARD).to_numpy()[present]

    def _results(self, batch: _Batch, returned: DataFrame) -> list[Result]:
        table = returned.toArrow()
        found = dict(zip(table.column(SHARD).to_pylist(), table.column(SEALED).to_pylist(), strict=True))
        if set(found) != set(range(self._lanes)) or table.num_rows != self._lanes:
            raise SourceError("Spark did not return one result of each shard")
        return [Result.decode(batch.seal.open(found[lane]), lane) for lane in range(self._lanes)]

    def _learner(self) -> Any:
        learner = self._config.build_estimator(self._store.ledger)
        if (last := self._last[self.shards[0]]) is not None:
            learner.load_state_dict(last.state)
        return learner

    def _summed(self, results: Sequence[Result], mark: Mapping[str, Any]) -> Part:
        learner, counts = self._learner(), counts_sum(result.counts for result in results)
        learner.add_sums([result.state for result in results], counts.learned)
        return self._one_part(learner, counts, results, mark)

    def _learned(self, batch: _Batch, mark: Mapping[str, object]) -> Part:
        """Gather the records of a batch of Spark, and learn the one model."""
        text = self._config.text()
        task = Gather.of(self._config, batch.seal.public, batch.key, self._lanes)
        gathered = batch.rows.mapInArrow(task, BLOCKS).persist(StorageLevel.MEMORY_AND_DISK)
        computed = None
        try:
            results = self._results(batch, gathered.where(f"{SEALED} is not null").select(SHARD, SEALED))
            computed = gathered.rdd
            learner = self._learner()
            cores = self._spark.sparkContext.defaultParallelism  # a task costs more than a block to read
            records = GatheredRecords(gathered.coalesce(cores), text, batch.seal, results)
            counts = counts_sum(result.counts for result in results)
            if isinstance(learner.learner, Batches):
                _settle(batch, results)
                learn_batches(records, learner)
            elif (n := records.sizes[0]) >= learner.learner.least_users:
                _settle(batch, results)
                learner.learn_users(ClusterUsers(records, learner), n, counts.learned)
            else:
                counts = self._too_small(n, learner.learner.least_users, counts)
        finally:
            gathered.unpersist(blocking=True)
            if computed is not None:
                _remove_shuffle_files(computed)
        return self._one_part(learner, counts, results, mark)

    def _one_part(
        self, learner: Estimator, counts: Counts, results: Sequence[Result], mark: Mapping[str, object]
    ) -> Part:
        learner.add_unlearned(counts.refused, counts.left_out)
        dead = sum((Counter(result.dead) for result in results), Counter[str]())
        nobody = np.empty((0, 2), np.uint64), np.empty((0, ROW))
        return self._part(self.shards[0], Result(learner.state_dict(), counts, dead, *nobody), mark)

    def _too_small(self, n: int, needed: int, counts: Counts) -> Counts:
        """What to count for a window with too few users, of which nothing is spent."""
        if counts.learned:
            said = f"a batch of {n} users is too small for a window: expected at least {needed}"
            if not self._stream:
                raise TooFewUsersError(f"{said}; give a larger DataFrame", needed)
            warnings.warn(f"{said}; its records are refused. Let the trigger wait longer", WindowWarning, stacklevel=2)
        return Counts(0, counts.refused + counts.learned, counts.dead_letters, counts.left_out)

    def _part(self, shard: Shard, result: Result, mark: Mapping[str, object]) -> Part:
        check_finite(result.state)
        last, new = self._last[shard], result.counts
        old = Counts() if last is None else last.counts
        dead = Counter[str]({} if last is None else last.position["dead_letters"])
        dead.update(result.dead)
        return Part(result.state, {**mark, "dead_letters": dict(dead)}, counts_sum([old, new]))

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)


def _settle(batch: _Batch, results: Sequence[Result]) -> None:
    """Take the spends of all lanes into the ledger; the commit writes them."""
    if batch.loan is not None:
        keys, rows = (np.concatenate([getattr(result, name) for result in results]) for name in ("keys", "rows"))
        batch.loan.settle(keys, rows)


def _remove_shuffle_files(computed: RDD[object]) -> None:
    """Remove shuffle files, which hold raw records. Spark itself waits until its JVM collects garbage."""
    computed.cleanShuffleDependencies(blocking=True)


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
    raise_alone(SourceError(f"Spark could not learn the batch ({name}){said}; nothing of it was kept. See Spark's log"))


def _own_words(text: str) -> str:
    """What an executor said itself: the line of an error of `streamdp.errors`, which shows no value."""
    lines = [line for line in text.splitlines() if line.startswith("streamdp.errors.")]
    return f": {lines[-1].partition(': ')[2]}" if lines else ""
