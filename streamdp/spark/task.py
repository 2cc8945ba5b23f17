"""What an executor does: it learns the records of its shards, one shard after another, from the state of each.

`LDP*`, `UserLevelLDP*` and statistics that trust nobody are learned shard by shard. Of other statistics the driver
adds up sums without noise, and the noise (`SumTask`). `UserLevelLDP*` close their open batch at the end of a batch of
Spark, because only then may their state leave memory.

The rows of a partition are ordered by shard, and within it by place. The first row of a shard is its load: the state,
and what its people have spent. Records are decoded, admitted, counted and learned by the same code as in a file runner
(`runtime.learning.learn`), with noise from this machine's operating system. What comes out is sealed for the driver.

Windows of users, and batches (see `streamdp.learners.divided`), have their sums at the driver (`Gather`). Executors
admit the records of their shards and keep them in Spark's cache until the batch of Spark ends. The estimator runs on
the driver. It asks for a sum over all users of the window, or over all records of one of its batches, at one point
after another; each question is a job of Spark. An executor adds what its records say, seals the partial sum for the
driver, and the driver adds the partial sums and the noise, once.

**Sums are exact.** What is added is rounded to a grid or is a whole number, so the sum does not depend on how the
records are divided or on the order of additions. The release is that of one process.

**Partial sums have no noise**, or, of `Shuffle*`, only the bits of the shard's own people. They leave an executor's
process sealed (`streamdp.spark.sealing`), so the driver opens one box of each shard. Query points, which follow from
noisy sums, go to executors in the clear. Record 8 of docs/decisions says what that shows to disks.

**Every question is asked of the same records.** Spark may lose a cached block and make it again. If the source or its
order changed in between, a record could be heard in another batch, or twice. So each answer has the digests of the
blocks that it was computed from, and the driver compares them with those of the first pass.

**What a question costs**: a job of Spark with a task for each core, a copy of the cached blocks to the Python
processes, and at the driver one partial sum for each task, of about d^2 / 2 + 2 d numbers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any
from zipimport import zipimporter

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from streamdp.config.definition import read_definition
from streamdp.config.job import JobConfig
from streamdp.data.schema import Schema
from streamdp.errors import SourceError, StreamDPError, raise_alone
from streamdp.estimators.estimator import Estimator
from streamdp.learners.batches import Batches
from streamdp.learners.user_reports import MOST_WINDOW
from streamdp.learners.user_windows import Windows
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.loans import CarriedRows, Loan
from streamdp.ledger.rows import ROW
from streamdp.optim.curvature import Curvature
from streamdp.runtime.learning import learn
from streamdp.scaling.units import Link
from streamdp.spark.records import LOAD, PLACE, SHARD
from streamdp.spark.sealing import Seal, seal
from streamdp.store.snapshot import Counts
from streamdp.store.state_codec import decode_state, encode_state

SEALED = "sealed"
"""The column with what only the driver can open."""
RESULT = f"{SHARD} long, {SEALED} binary"
"""The columns of the results, for Spark."""


@dataclass(frozen=True)
class Result:
    """What was learned of a shard's records of one batch."""

    state: Mapping[str, Any]  # of the estimator; of users that were gathered, what `Gather` says about them
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


def encode_load(
    state: Mapping[str, object] | None, loan: Loan | None = None, chosen: np.ndarray | None = None
) -> bytes:
    """Return a shard's committed `state` (None: empty) as bytes, and the rows of a `loan` of which `chosen` are its."""
    item: dict[str, object] = {"state": None if state is None else dict(state)}
    if loan is not None and chosen is not None:
        keys, rows = loan.rows(chosen)
        charged = [list(cap) for cap in sorted(loan.charged)]
        item |= {"keys": keys.view(np.int64), "rows": rows, "mark": loan.mark, "charged": charged}
    return encode_state(item).encode()


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


definition_of = lru_cache(maxsize=4)(read_definition)
"""The definition of a job from its text, which a Python worker reads once for all its tasks."""


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
        self._rows = ledger = None
        if cap is not None and key is not None:
            charged = frozenset((str(text), bool(own)) for text, own in item["charged"])
            lent = item["keys"].view(np.uint64), item["rows"]
            self._rows = CarriedRows(cap, *lent, item["mark"], charged)
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


Scaled = tuple[np.ndarray, np.ndarray, Link]
"""The columns (k,) that are scaled, and their centres and scales (2, k)."""
BATCH = "batch"
"""The column with the number of the estimator's batch, from 0; of a window 0."""
BLOCKS = f"{SHARD} long, {SEALED} binary, {BATCH} int, features binary, targets binary, sizes binary"
"""The columns of what was gathered, for Spark: a row with the sealed result of each shard, and rows with records."""
_BLOCK = 1 << 20
"""The most numbers in a row with records, but for those of its last user."""


@dataclass(frozen=True)
class Gather(ShardTask):
    """Admits and gathers the records of the shards of a partition; a function for `mapInArrow` of Spark."""

    shards: int

    @classmethod
    def of(cls, config: JobConfig, public: bytes, key: bytes | None, shards: int) -> Gather:
        """Return a job's task for `shards`. Its window ends with Spark's batch. See `ShardTask` for `public`, `key`."""
        if issubclass(config.model.kind.learns, Windows):
            model = config.model.model_copy(update={"window": MOST_WINDOW})
            config = config.model_copy(update={"model": model})
        return cls(config.text(), public, key, shards)

    def lane(self, shard: int, load: bytes | None) -> SparkShard:
        """As `ShardTask.lane`: it gathers its part of each batch."""
        lane = super().lane(shard, load)
        if issubclass(type(lane.estimator).learns, Batches):
            lane.estimator.gather_part(shard, self.shards)
        return lane

    def rows(self, lane: SparkShard) -> Iterator[pa.RecordBatch]:
        """As `ShardTask.rows`; the state has the numbers of `users` of batches and the digests of blocks."""
        blocks, users = [], []
        for batch, (X, y, sizes) in enumerate(_batches(lane.estimator)):
            users.append(len(sizes))
            cuts = _blocks(sizes, max(1, _BLOCK // (X.shape[1] + 1)))
            blocks += [(batch, X[r], y[r], sizes[u]) for r, u in cuts]
        digests = [_digest(*(array.tobytes() for array in arrays)) for _, *arrays in blocks]
        result = lane.result({"users": users, "batches": [batch for batch, *_ in blocks], "digests": digests})
        yield _gathered(lane.shard, sealed=seal(result.encode(lane.shard), self.public))
        for batch, *arrays in blocks:
            yield _gathered(lane.shard, None, batch, *(array.tobytes() for array in arrays))


def _batches(estimator: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the records of each batch or of the window, and how many each user has."""
    if issubclass(type(estimator).learns, Batches):
        for X, y in estimator.take_records():
            yield X, y, np.ones(len(y), np.int64)
    else:
        yield estimator.take_records()


def _blocks(sizes: np.ndarray, rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield the records and the users of each block: whole users, and about so many rows."""
    if not len(sizes):
        return
    ends = np.cumsum(sizes)
    cuts = [0, *(np.flatnonzero(np.diff((ends - 1) // rows)) + 1).tolist(), len(sizes)]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield slice(int(ends[begin] - sizes[begin]), int(ends[end - 1])), slice(begin, end)


def _gathered(shard: int, sealed: bytes | None, batch: int | None = None, *block: bytes) -> pa.RecordBatch:
    features, targets, sizes = block or (None, None, None)
    columns = {SEALED: sealed, "features": features, "targets": targets, "sizes": sizes}
    arrays = {name: pa.array([value], pa.binary()) for name, value in columns.items()}
    numbers = {SHARD: pa.array([shard], pa.int64()), BATCH: pa.array([batch], pa.int32())}
    names = [column.split()[0] for column in BLOCKS.split(", ")]
    return pa.RecordBatch.from_pydict({name: {**numbers, **arrays}[name] for name in names})


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


Ask = Callable[[object, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""What is asked of records; it goes to executors.

It returns a sum of a learner over users with sizes (n,) of the records X (N, p) and y (N,), which are sorted by user.
"""


@dataclass(frozen=True)
class PartitionQuestion(SparkTask):
    """Asks the users of a partition for a sum; a function for `mapInArrow` of Spark."""

    definition: str  # the text of the job's definition
    public: bytes  # the key that the answer is sealed with
    ask: Ask

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `SparkTask.results`: one row for a partition that holds users."""
        learner, total, digests = _learner(self.definition), None, []
        for batch in batches:
            for row in range(batch.num_rows):
                parts = [batch.column(name)[row].as_buffer() for name in ("features", "targets", "sizes")]
                digests.append(_digest(*parts))
                y, sizes = np.frombuffer(parts[1]).copy(), np.frombuffer(parts[2], np.int64)
                found = self.ask(learner, np.frombuffer(parts[0]).reshape(len(y), -1).copy(), y, sizes)
                total = found if total is None else total + found
        if digests:
            answer = encode_state({"total": total, "blocks": digests}).encode()
            yield pa.RecordBatch.from_pydict({SEALED: pa.array([seal(answer, self.public)], pa.binary())})


@lru_cache(maxsize=4)
def _learner(definition: str) -> Estimator:
    """A learner that knows the loss and the columns of a job, and no records; for all questions to a Python worker."""
    return definition_of(definition).build_estimator(None)


class GatheredRecords:
    """The records that executors hold: `rows` of `Gather`, in Spark's cache, of a job of this `definition`."""

    def __init__(self, rows: DataFrame, definition: str, seal: Seal, results: Iterable[Result]) -> None:
        self._rows = rows.select(BATCH, "features", "targets", "sizes")
        self._definition, self._seal = definition, seal
        states = [result.state for result in results]
        longest = max((len(state["users"]) for state in states), default=0)
        self.sizes = [0] * longest
        """How many users each batch has."""
        self._digests: list[list[str]] = [[] for _ in range(longest)]
        for state in states:
            for batch, users in enumerate(state["users"]):
                self.sizes[batch] += users
            for batch, digest in zip(state["batches"], state["digests"], strict=True):
                self._digests[batch].append(digest)

    def ask(self, ask: Ask, batch: int = 0) -> Iterator[np.ndarray]:
        """Yield a batch's partial sums as they are opened. Raises `SourceError` if its records have changed."""
        rows = self._rows.where(f"{BATCH} = {batch}").drop(BATCH)
        table = rows.mapInArrow(
            PartitionQuestion(self._definition, self._seal.public, ask), f"{SEALED} binary"
        ).toArrow()
        digests = list[str]()
        for sealed in table.column(SEALED).to_pylist():
            answer = decode_state(self._seal.open(sealed).decode())
            digests += answer["blocks"]
            yield answer["total"]
        if sorted(digests) != sorted(self._digests[batch]):
            raise SourceError("the source gave other records when it was read again: write the DataFrame to a file")


def learn_batches(records: GatheredRecords, learner: Any) -> None:
    """Learn the batches of `learner`, at the boundary of its records. After a `SourceError`, load a state."""
    learner.learn_parts(records.sizes, lambda batch, state: records.ask(partial(_batch_sum, state), batch))


def _batch_sum(state: dict[str, object], learner: Any, X: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """An `Ask` for the part of a batch, after a state of the estimator before it, which was released."""
    learner.load_state_dict(state)
    return learner.part(X, y)


def user_sum(
    name: str,
    arguments: tuple[object, ...],
    scaled: Scaled | None,
    learner: Any,
    X: np.ndarray,
    y: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """As `Ask`, for a window: the method of `WindowRecords` with this name returns the sum, after `rescale`."""
    users = learner.learner.users_of(X, y, sizes)
    try:
        if scaled is not None:
            users.rescale(*scaled)
        return getattr(users, name)(*arguments)
    finally:
        users.wipe()


class ClusterUsers:
    """The users of a window of a `learner`, as `windows.records.WindowUsers` without gradients of single users."""

    def __init__(self, records: GatheredRecords, learner: Any) -> None:
        self._records = records
        self.project = learner.learner.region.project
        self._scaled: Scaled | None = None
        self.link: Link = (0.0, 0.0)

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """See `windows.task.Users.gradients`; `NotImplementedError`: they stay on the executors."""
        raise NotImplementedError

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """As `windows.task.Users.curvatures`."""
        return self._sum("curvatures", curvature, theta, grid)

    def squares(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """As `windows.task.Users.squares`."""
        return self._sum("squares", curvature, theta, grid)

    def parts(self, theta: np.ndarray, count: int, grid: float) -> None:
        """As `windows.task.Users.parts`: executors hold their users in no order of the stream."""

    def keep_from(self, place: float) -> int:
        """See `windows.task.Users.keep_from`; `NotImplementedError`: there is no order."""
        raise NotImplementedError

    def moments(self, columns: np.ndarray, table: np.ndarray, grid: float) -> np.ndarray:
        """As `window_moments.WindowColumns.moments`."""
        return self._sum("moments", columns, table, grid)

    def sizes(self, columns: np.ndarray, grid: float) -> np.ndarray:
        """As `window_moments.WindowColumns.sizes`."""
        return self._sum("sizes", columns, grid)

    def rescale(self, columns: np.ndarray, table: np.ndarray, link: Link) -> None:
        """As `WindowUsers.rescale`: executors scale their copies, for each question anew."""
        self._scaled, self.link = (columns.copy(), table.copy(), link), link

    def wipe(self) -> None:
        """Do nothing: the driver takes the records from Spark's cache when the batch ends."""

    def _sum(self, name: str, *arguments: object) -> np.ndarray:
        parts = self._records.ask(partial(user_sum, name, arguments, self._scaled))
        return sum(parts, start=np.zeros(1))
