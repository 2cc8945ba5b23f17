"""The tables of a database of jobs, the same in SQLite and PostgreSQL, and what several statements about them share."""

from typing import NamedTuple

from streamdp.data.records import Shard
from streamdp.database.interface import Format
from streamdp.ledger import tables as ledger

NAMES = ("seq", "committed_at", "learned", "refused", "dead", "left_out", "position")
"""The columns of a commit that a snapshot and the history share."""
_SHARD = "job TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL"
_COMMIT = (
    "committed_at DOUBLE PRECISION NOT NULL, learned BIGINT NOT NULL, refused BIGINT NOT NULL, dead BIGINT NOT NULL,"
    " left_out BIGINT NOT NULL, position TEXT NOT NULL"
)
_TABLES = (
    # `capped` is 1 if the ledger admits the records of the job; `doubt` is noted after a commit.
    "CREATE TABLE jobs (job TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, config TEXT NOT NULL,"
    " capped INTEGER NOT NULL, doubt TEXT NOT NULL)",
    # `seq` is 0 if the shard is claimed and nothing committed yet; `waiting` is not in the checksum.
    f"CREATE TABLE shards ({_SHARD}, epoch BIGINT NOT NULL, seq BIGINT NOT NULL, {_COMMIT}, state TEXT NOT NULL,"
    " checksum BYTEA NOT NULL, waiting BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (job, topic, partition))",
    f"CREATE TABLE commits ({_SHARD}, seq BIGINT NOT NULL, {_COMMIT}, checksum BYTEA NOT NULL,"
    " PRIMARY KEY (job, topic, partition, seq))",
    # `place` is that in the job's list, `seq` the newest commit that the sink has, or 0; `failing_since` is 0 if it
    # does not fail.
    "CREATE TABLE sinks (job TEXT NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, seq BIGINT NOT NULL,"
    " committed_at DOUBLE PRECISION NOT NULL, failing_since DOUBLE PRECISION NOT NULL, reason TEXT NOT NULL,"
    " PRIMARY KEY (job, place))",
)
STORE_FORMAT = Format("store", 0x73445073, 1, (*ledger.TABLES, *_TABLES), ledger.ON_SERVER, ledger.IN_FILE)


class JobRow(NamedTuple):
    """The row of a job."""

    job: str
    fingerprint: str
    config: str
    capped: int
    doubt: str = ""


class ShardRow(NamedTuple):
    """The row of a shard."""

    job: str
    topic: str
    partition: int
    epoch: int
    seq: int
    committed_at: float
    learned: int
    refused: int
    dead: int
    left_out: int
    position: str
    state: str
    checksum: bytes
    waiting: int


ALL_JOBS = f"SELECT {', '.join(JobRow._fields)} FROM jobs"
"""All jobs, as `JobRow`s."""
OF_JOB = f"SELECT {', '.join(ShardRow._fields)} FROM shards WHERE job = :job ORDER BY topic, partition"
"""The shards of a job, as `ShardRow`s."""
OF_SHARD = "job = :job AND topic = :topic AND partition = :partition"
"""The condition that a row belongs to the shard that `named` gives to a statement."""
ADD_SHARD = (
    f"INSERT INTO shards (job, topic, partition, epoch, {', '.join(NAMES)}, state, checksum)"
    " VALUES (:job, :topic, :partition, 0, 0, 0, 0, 0, 0, 0, '', '', :checksum)"
    " ON CONFLICT (job, topic, partition) DO NOTHING"
)
"""Add a shard without any commit, unless it exists; the checksum is b""."""


def named(job: str, shard: Shard) -> dict[str, str | int]:
    """Return the parameters of a statement with `OF_SHARD`: a job and one of its shards."""
    return {"job": job, "topic": shard.topic, "partition": shard.partition}
