"""Learn a DataFrame of Spark: a bounded one as one batch, or a stream batch by batch.

A batch is committed once, whatever is repeated. The position in the store has the names of the frames that were
learned, and the query and the number of the last batch of a stream. Spark gives a batch the same number when it repeats
it, also after a crash, because both are in the checkpoint; a number that is committed is skipped. Another checkpoint
has another query. Its batches would not be comparable, so it is refused.
"""

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streamdp.config.job import NOTHING, Accepted, JobConfig, load_config, make_config
from streamdp.config.spark import SparkSourceConfig
from streamdp.errors import ConfigError, SourceError, StreamDPError, raise_alone
from streamdp.spark.driver import Driver
from streamdp.store.snapshot import Counts, Snapshot

Job = JobConfig | str | os.PathLike[str] | Mapping[str, object]
Publish = Sequence[Callable[[list[Snapshot]], None]]


def learn(
    df: DataFrame,
    job: Job,
    store: str | os.PathLike[str] | None = None,
    *,
    name: str = "whole",
    accepted: Accepted = NOTHING,
    publish: Publish = (),
) -> Counts:
    """Learn the records of a bounded DataFrame, in one transaction, and return the committed counts of the job.

    `df` has the columns of the job's schema. With a cap it is read twice, and must have the same records both times.
    The records of each shard are learned in its order. If the store has learned a frame of this `name`, nothing is
    learned, and a warning says so.

    `job` is the path of a `job.yaml`, its settings, or a `JobConfig`, with `source: {type: spark}`; `store` the path or
    URL of the store, None: the job's; and `accepted` what the operator accepts. Each function of `publish` is called
    with the snapshots of all shards after the commit.

    Raises `ConfigError` for a job that Spark cannot learn, for a stream and for Spark Connect; and the errors of
    `Driver` and `Driver.learn`, after which the store is as before.

    Guarantee: that of the job's estimator, for each record; the cap of the job, for each person.
    """
    if df.isStreaming:
        raise ConfigError("this DataFrame is a stream: use learn_stream")
    with Driver(_session(df), job_config(job, store), accepted, publish) as driver:
        before = driver.position
        frames = before.get("frames", [])
        if name in frames:
            driver.show()
            learned = f"this store has learned data of the name {name!r}, and learns nothing now"
            warnings.warn(f"{learned}: give other data another name", stacklevel=2)
        else:
            driver.learn(df, {"query": None, "batch": None, **before, "frames": [*frames, name]})
        return driver.counts


def learn_stream(
    df: DataFrame,
    job: Job,
    store: str | os.PathLike[str] | None = None,
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, object] | None = None,
    accepted: Accepted = NOTHING,
    publish: Publish = (),
) -> "StreamLearner":
    """Start to learn a streaming DataFrame, `df`. Each batch of Spark is one commit.

    `job`, `store`, `accepted` and `publish` are as for `learn`, `checkpoint` is the folder of Spark's checkpoint, which
    belongs to the store, and `trigger` has arguments of the trigger of Spark. None: those of the job.

    Raises `ConfigError` for a job that Spark cannot learn, for a DataFrame that is no stream and without a checkpoint;
    and the errors of `Driver`.

    Guarantee: as for `learn`.
    """
    if not df.isStreaming:
        raise ConfigError("this DataFrame is no stream: use learn")
    config = job_config(job, store)
    assert isinstance(config.source, SparkSourceConfig)
    checkpoint = checkpoint or config.source.checkpoint
    if checkpoint is None:
        raise ConfigError("a stream needs a checkpoint, a folder that belongs to the store")
    with ExitStack() as stack:
        driver = stack.enter_context(Driver(_session(df), config, accepted, publish, stream=True))
        driver.show()
        learner = StreamLearner(driver)
        writer = df.writeStream.foreachBatch(learner.learn).option("checkpointLocation", checkpoint)
        given = config.source.trigger.arguments() if trigger is None else trigger
        learner.query = (writer.trigger(**given) if given else writer).start()
        stack.pop_all()
        return learner


class StreamLearner:
    """A stream that is being learned. Use it in a `with`, or stop it.

    `driver` is the driver's half of the job, which is closed with this object. The attribute `query` is Spark's.
    """

    query: StreamingQuery

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._failure: BaseException | None = None
        self._learning = threading.Lock()

    @property
    def counts(self) -> Counts:
        """The committed counts of the job."""
        return self._driver.counts

    @property
    def dead_letters(self) -> dict[str, int]:
        """The committed dead letters of the job, by reason and column."""
        return self._driver.dead_letters

    def learn(self, frame: DataFrame, batch: int) -> None:
        """Learn the records of a `frame`, the `batch` of the stream with this number, unless it is committed.

        Spark calls it. Raises what `Driver.learn` raises, and `ConfigError` for a batch of another checkpoint.
        """
        with self._learning:
            try:
                self._learn(frame, batch)
            except BaseException as error:
                self._failure = error
                raise

    def _learn(self, frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise SourceError("Spark does not name the query of a batch; this version of Spark is not supported")
        before = self._driver.position
        known = before.get("query")
        if known not in (None, query):
            raise ConfigError(
                "this store has learned a stream with another checkpoint: continue with that one, or use another store"
            )
        last = -1 if known is None else before["batch"]
        if batch not in (last, last + 1):
            raise ConfigError(
                f"expected batch {last + 1} of the stream, which follows the last commit of the store, but the "
                f"checkpoint is at batch {batch}: restore a store and a checkpoint of one time, or use new ones"
            )
        if batch > last:
            self._driver.learn(frame, {"frames": [], **before, "query": query, "batch": batch})

    def wait(self, timeout_s: int | None = None) -> bool:
        """Wait for `timeout_s` seconds (None: no limit) until the stream ends; return whether it has ended.

        Raises the error that ended it: one of streamdp as it is, and `SourceError` for one of Spark.
        """
        try:
            ended = self.query.awaitTermination(timeout_s)  # None without a limit
        except Exception as error:  # noqa: BLE001 - Spark's text may quote a record
            self._end(error)
            return True
        return ended is None or ended

    def _end(self, error: Exception) -> None:
        failure = self._failure
        if isinstance(failure, StreamDPError):
            raise_alone(failure)
        name = type(error if failure is None else failure).__name__
        raise_alone(SourceError(f"Spark ended the stream ({name}); the last commit is kept. See Spark's log"))

    def stop(self) -> None:
        """End the stream after its last commit, and close the store. Idempotent."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.query.stop()
        with self._learning:
            self._driver.__exit__(*error)


def job_config(job: Job, store: str | os.PathLike[str] | None) -> JobConfig:
    """Return the configuration of a `job` for Spark, with this `store`, as for `learn`.

    Raises `ConfigError` if it is malformed or has another source.
    """
    if isinstance(job, Mapping):
        config = make_config({"source": {"type": "spark"}, **job})
    else:
        config = job if isinstance(job, JobConfig) else load_config(job)
    if not isinstance(config.source, SparkSourceConfig):
        raise ConfigError("source.type: expected spark")
    return config if store is None else config.model_copy(update={"store": os.fspath(store)})


def _session(df: DataFrame) -> SparkSession:
    if type(df.sparkSession) is SparkSession:
        return df.sparkSession
    raise ConfigError("Spark Connect is not supported: use a session that has a sparkContext")
