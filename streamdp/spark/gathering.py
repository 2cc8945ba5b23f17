"""A window of users on several executors: each holds some users, and the driver gets sums over all of them.

A batch of Spark is one window. Executors gather the records of their users and keep them in Spark's cache until the
batch ends. The method of the window runs on the driver. It asks for sums over all users at one point after another
(`Users.curvatures`, `scaling.Columns.moments`); each question is a job of Spark. An executor adds what its users say,
seals the partial sum for the driver, and the driver adds the partial sums and the noise, once.

**Sums are exact.** Each user's average is rounded to a grid before it is added (`WindowRecords`), so the sum does not
depend on how the users are divided or on the order of additions. A window on Spark is released as in one process.

**What is not noised** are the partial sums. They leave an executor's process as sealed boxes only, which the driver's
memory can open (`streamdp.spark.sealing`). A question holds the query point, which follows from noisy sums. Query
points go to executors in Spark's tasks, in the clear, and may be on their disks, where the raw records of the batch
are. If a batch fails and is repeated, the query points of both attempts, which have different noise, were there; the
statement says that people must trust these disks.

**Every question is asked of the same records.** Spark may lose a cached block and make it again. If the source or its
order changed in between, a user could be heard with other records, or twice. So each answer has the digests of the
blocks that it was computed from, and the driver compares them with those of the first pass.

**What a question costs**: a job of Spark, a copy of the cached blocks to the Python processes, and at the driver one
partial sum for each part, of about d^2 / 2 + 2 d numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamdp.errors import SourceError
from streamdp.estimators.user.records import MOST_WINDOW
from streamdp.optim.curvature import Curvature
from streamdp.spark.records import SHARD
from streamdp.spark.sealing import Seal, seal
from streamdp.spark.task import SEALED, Lane, Result, ShardTask, Task, definition_of
from streamdp.store.state_codec import decode_state, encode_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streamdp.config.job import JobConfig
    from streamdp.estimators.windowed.learner import WindowLearner

GATHERED = f"{SHARD} long, {SEALED} binary, features binary, targets binary, sizes binary"
"""The columns of what was gathered, for Spark: a row with the sealed result of each shard, and rows with records."""
_BLOCK = 1 << 20
"""The most numbers in a row with records, but for those of its last user."""


@dataclass(frozen=True)
class Gather(ShardTask):
    """Admits and gathers the records of the users of a partition; a function for `mapInArrow` of Spark."""

    @classmethod
    def of(cls, config: JobConfig, public: bytes, key: bytes | None) -> Gather:
        """Return the task of a job. Its window does not end by a number of records: it ends with the batch.

        Parameters
        ----------
        config
            The job.
        public, key
            As for `ShardTask`.
        """
        model = config.model.model_copy(update={"window": MOST_WINDOW})
        return cls(config.model_copy(update={"model": model}).text(), public, key)

    def rows(self, lane: Lane) -> Iterator[pa.RecordBatch]:
        """As `ShardTask.rows`: the result, whose state says how many users there are, and their records in blocks."""
        X, y, sizes = lane.estimator.surrender()
        blocks = [(X[r], y[r], sizes[u]) for r, u in _blocks(sizes, max(1, _BLOCK // (X.shape[1] + 1)))]
        digests = [_digest(*(array.tobytes() for array in block)) for block in blocks]
        result = lane.result({"users": len(sizes), "blocks": digests})
        yield _gathered(lane.shard, sealed=seal(result.encode(lane.shard), self.public))
        for features, targets, people in blocks:
            yield _gathered(lane.shard, None, features.tobytes(), targets.tobytes(), people.tobytes())


def _blocks(sizes: np.ndarray, rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield the records and the users of each block: whole users, and about so many rows."""
    ends = np.cumsum(sizes)
    cuts = [0, *(np.flatnonzero(np.diff((ends - 1) // rows)) + 1).tolist(), len(sizes)]
    for begin, end in pairwise(cuts):
        if begin < end:
            yield slice(int(ends[begin] - sizes[begin]), int(ends[end - 1])), slice(begin, end)


def _gathered(shard: int, sealed: bytes | None, *records: bytes) -> pa.RecordBatch:
    values = [sealed, *(records or (None, None, None))]
    names = [SHARD, SEALED, "features", "targets", "sizes"]
    arrays = [pa.array([shard], pa.int64()), *(pa.array([value], pa.binary()) for value in values)]
    return pa.RecordBatch.from_arrays(arrays, names)


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class Question(Task):
    """Asks the users of a partition for a sum; a function for `mapInArrow` of Spark.

    Parameters
    ----------
    definition
        The text of the job's definition.
    public
        The key that the answer is sealed with.
    ask
        A method of `WindowRecords` that returns a sum over users, and its arguments.
    scaled
        The columns (k,) that are scaled, and their centres and scales (2, k); None before they are known.
    """

    definition: str
    public: bytes
    ask: tuple[Any, ...]
    scaled: tuple[np.ndarray, np.ndarray] | None

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `Task.results`: one row for a partition that holds users."""
        learner = _learner(self.definition)
        name, *arguments = self.ask
        total, digests = 0.0, []
        for batch in batches:
            for row in range(batch.num_rows):
                parts = [batch.column(name)[row].as_buffer() for name in ("features", "targets", "sizes")]
                digests.append(_digest(*parts))
                y, sizes = np.frombuffer(parts[1]).copy(), np.frombuffer(parts[2], np.int64)
                users = learner.users_of(np.frombuffer(parts[0]).reshape(len(y), -1).copy(), y, sizes)
                if self.scaled is not None:
                    users.rescale(*self.scaled)
                total = total + getattr(users, name)(*arguments)
                users.wipe()
        if digests:
            answer = encode_state({"total": total, "blocks": digests}).encode()
            yield pa.RecordBatch.from_pydict({SEALED: pa.array([seal(answer, self.public)], pa.binary())})


@lru_cache(maxsize=4)
def _learner(definition: str) -> Any:
    """A learner that knows the loss and the columns of a job, and no records; for all questions to a Python worker."""
    return definition_of(definition).build_estimator(None)


class ClusterUsers:
    """The users of a window on executors, as `windows.records.WindowUsers` without gradients of single users.

    Parameters
    ----------
    gathered
        What `Gather` returned, in Spark's cache.
    definition
        The text of the job's definition.
    seal
        The keys of this attempt of the batch.
    results
        The results of the shards.
    learner
        The learner on the driver.
    """

    def __init__(
        self, gathered: DataFrame, definition: str, seal: Seal, results: Iterable[Result], learner: WindowLearner
    ) -> None:
        self._blocks = gathered.where(f"{SEALED} is null").select("features", "targets", "sizes")
        self._definition, self._seal = definition, seal
        self.project = learner.project
        self._digests = sorted(digest for result in results for digest in result.state["blocks"])
        self._scaled: tuple[np.ndarray, np.ndarray] | None = None

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        """Raise `NotImplementedError`: gradients of single users stay on the executors.

        Parameters
        ----------
        theta, users, radius
            As for `windows.task.Users.gradients`.
        """
        raise NotImplementedError

    def curvatures(self, curvature: Curvature, theta: np.ndarray, grid: float) -> np.ndarray:
        """As `windows.task.Users.curvatures`."""
        return self._sum("curvatures", curvature, theta, grid)

    def moments(self, columns: np.ndarray, frame: np.ndarray, grid: float) -> np.ndarray:
        """As `windows.scaling.Columns.moments`."""
        return self._sum("moments", columns, frame, grid)

    def rescale(self, columns: np.ndarray, frame: np.ndarray) -> None:
        """As `WindowUsers.rescale`: executors scale their copies, for each question anew."""
        self._scaled = columns.copy(), frame.copy()

    def wipe(self) -> None:
        """Do nothing: the driver takes the records from Spark's cache when the batch ends."""

    def _sum(self, *ask: Any) -> np.ndarray:
        question = Question(self._definition, self._seal.public, ask, self._scaled)
        table = self._blocks.mapInArrow(question, f"{SEALED} binary").toArrow()
        total, digests = np.zeros(1), list[str]()
        for sealed in table.column(SEALED).to_pylist():
            answer = decode_state(self._seal.open(sealed).decode())
            total = total + answer["total"]
            digests += answer["blocks"]
        if sorted(digests) != self._digests:
            raise SourceError("the source gave other records when it was read again: write the DataFrame to a file")
        return total
