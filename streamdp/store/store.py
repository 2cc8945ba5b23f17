"""State, position, counts and spends of a job, committed in ONE transaction.

A database holds any number of jobs, and one ledger: jobs that share people share a database, and each person's cap
holds over all of them. A transaction that writes spends excludes the others (docs/proofs/ledger.md).

Only what is committed may be shown. A crash rolls back to the last commit, so that no record counts twice, and every
spend is kept that something visible was learned from.

A job that reads one stream has one shard, `WHOLE`. A job that reads a partitioned stream has one shard for each
(topic, partition), and workers that share the store; each keeps the state of its model in one of its shards. Each claim
of a shard takes the next epoch of that shard, and a commit under an older epoch is refused.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamdp.data.records import WHOLE, Position, Shard, Subject
from streamdp.database.interface import Connection, Session
from streamdp.database.opening import open_database
from streamdp.errors import ConfigError, FencedError, StoreError, check_texts
from streamdp.ledger.ledger_rows import wait_for_writers
from streamdp.ledger.periods import Cap, RenewingCap, parse_cap
from streamdp.ledger.sql import transaction
from streamdp.ledger.subject_key import given_key, make_key, source_key
from streamdp.privacy.guarantees import Budget
from streamdp.store.identity import Continued, Terms, create_or_check, enter
from streamdp.store.reading import history, read_job, snapshots
from streamdp.store.snapshot import Commit, Counts, Part, Snapshot
from streamdp.store.snapshot_codec import commit_columns, history_checksum, read_snapshot, snapshot_of, state_columns
from streamdp.store.tables import ADD_SHARD, NAMES, OF_SHARD, STORE_FORMAT, JobRow, ShardRow, named

if TYPE_CHECKING:
    from streamdp.ledger.stored import StoredLedger
    from streamdp.store.answers import Answers

Within = Callable[[Connection, int], None]
"""Writes more in the transaction of a commit, which it gets with the number of the commit."""

HISTORY = 10_000
"""Commits of each shard that the history keeps."""

_READ = f"SELECT {', '.join(ShardRow._fields)} FROM shards WHERE {OF_SHARD}"
_OTHERS = "SELECT COALESCE(SUM(seq), 0) FROM shards WHERE job <> :job"
_USED = "SELECT 1 FROM shards WHERE seq > 0 UNION SELECT 1 FROM spend_pages UNION SELECT 1 FROM spend_log"
_EPOCH = f"SELECT epoch FROM shards WHERE {OF_SHARD}"
_CLAIM = f"UPDATE shards SET epoch = epoch + 1 WHERE {OF_SHARD}"
_HELD = f"{OF_SHARD} AND epoch = :of_epoch"
_WRITTEN = (*NAMES, "state", "checksum", "waiting")
_MOVE = f"UPDATE shards SET {', '.join(f'{c} = :{c}' for c in _WRITTEN)} WHERE {_HELD} AND seq = :of_seq"
_NOTE = f"UPDATE shards SET waiting = :found WHERE {_HELD}"
_KEPT = ("job", "topic", "partition", *NAMES, "checksum")
_REMEMBER = f"INSERT INTO commits ({', '.join(_KEPT)}) VALUES ({', '.join(f':{column}' for column in _KEPT)})"
_FORGET = f"DELETE FROM commits WHERE {OF_SHARD} AND seq <= :of_seq"


@dataclass(slots=True)
class _Claim:
    """A shard that this store owns: the epoch of the claim, and the number of the shard's last commit."""

    epoch: int
    seq: int


class Store(contextlib.AbstractContextManager["Store"]):
    """One job in a database, held by one process, or by the workers of a group.

    - `url_or_path`: a file, `sqlite:///PATH` or `postgresql://HOST/DATABASE`. Several hosts are a primary and its
      standbys: `postgresql://A:5432,B:5432/DATABASE`. On a server the tables are in the schema `streamdp`, or that of
      the parameter `schema`: `postgresql://HOST/DATABASE?schema=people`.
    - `job`: the name of the job.
    - `fingerprint`: stands for everything that must not change between runs: model, schema, budget, source.
    - `cap`: the cap on the spends of each subject over all jobs of the database, which `ledger` counts, or its text.
      All jobs with a cap have the same one; the only job may change it. A job that was created with a cap must be
      opened with one, and the reverse.
    - `key`: the subject key: 32 to 64 secret bytes. If None: `STREAMDP_SUBJECT_KEY`; else the file `<path>.key`; else,
      for a new file, a random key (see `subject_key`).
    - `config`: the job's text for readers, without secrets.
    - `shared`: whether workers share the job. Then each claims the shards that it was assigned. Otherwise one process
      holds the job, and its one shard is claimed when it is opened.
    - `continued`: for a store that exists: takes its text and the number of records learned, and returns the
      fingerprint and the text to go on with, or raises. None: `fingerprint` and `config`.
    - `accept_loss`: whether to go on with an SQLite file that has lost commits, by damage or by an older copy. The
      spends of the lost commits are not counted, and their records are learned again.

    Its attributes:

    - `ledger`: the spends of subjects over all jobs of the database, which `commit` commits; None without a cap.
    - `notes`: sentences for the user. They say which other jobs share the cap of a new job, that the cap of the ledger
      is lower than it was, and what is kept of the former model if a new one was asked for.
    - `source_key`: a secret from which a source makes keyed digests of its records; None without a cap.

    Raises, and leaves the database unchanged: `StoreBusyError` if another process or another object of this process
    holds the job; `StoreVersionError` for a newer format; `StoreDamagedError`; `StoreMismatchError` for another
    fingerprint, key or cap; `ConfigError` for a malformed key; `StoreUnavailableError` if the database does not answer,
    and the call may be repeated; `StoreError` for permissions and disk.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> with Store(directory.name + "/job.db", "trips", "1") as store:
    ...     committed = store.commit({"theta": [0.5]}, {"row": 7}, Counts(learned=7))
    >>> Store.snapshot(directory.name + "/job.db").position
    {'row': 7}
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        job: str,
        fingerprint: str,
        *,
        cap: Cap | str | None = None,
        key: bytes | None = None,
        config: str = "",
        shared: bool = False,
        continued: Continued | None = None,
        accept_loss: bool = False,
    ) -> None:
        cap = None if cap is None else parse_cap(cap)
        check_texts(job=job, fingerprint=fingerprint, config=config)
        self.job = job
        self._database = database = open_database(url_or_path, job)
        database.accept_loss = accept_loss
        self._claims: dict[Shard, _Claim] = {}
        self._first: Callable[[], None] | None = None  # ends that this store holds back the spends of others
        self.ledger: StoredLedger | None = None
        self._abandoned = False
        with contextlib.ExitStack() as stack:
            stack.callback(database.lock(shared))
            stack.push(self._remove)
            checked = create_or_check(
                database, job, Terms(fingerprint, config), cap=cap, key=key, continued=continued, alone=not shared
            )
            self.fingerprint, config, replaced = checked[0]
            self._connection = database.open_for_writing(STORE_FORMAT)
            stack.callback(self._connection.close)
            with self._transaction() as connection:
                found, self.notes = enter(connection, database, job, checked, cap, key)
                mine = {"job": job, "config": config}
                connection.change("UPDATE jobs SET config = :config WHERE job = :job AND config <> :config", mine)
                if read_job(connection, job, database.name).fingerprint != self.fingerprint:
                    self._begin_anew(connection)
                committed_at = _last_time(connection)
            self._config = config
            self.notes += filter(None, [replaced])
            self.source_key = None if found is None else source_key(found)
            if cap is not None and found is not None:
                self.ledger = self._open_ledger(cap, found)
                self.ledger.moments.begin(committed_at)
            if not shared:
                self.claim([WHOLE])
            self._open = stack.pop_all()

    @contextlib.contextmanager
    def _transaction(self, spending: bool = False) -> Iterator[Connection]:
        """A transaction, with the driver's errors as `StoreError` and its kinds."""
        connection = self._open_connection()
        waits = spending and self._first is None
        with self._database.errors(), self._database.spending(connection) if waits else connection.begin():
            yield connection

    def _begin_anew(self, connection: Connection) -> None:
        """Forget the commits of a configuration under which nothing was learned: the source is read from its start."""
        mine = {"job": self.job, "fingerprint": self.fingerprint}
        connection.change("UPDATE jobs SET fingerprint = :fingerprint WHERE job = :job", mine)
        connection.change("UPDATE shards SET seq = 0 WHERE job = :job", mine)
        connection.change("DELETE FROM commits WHERE job = :job", mine)

    def _open_ledger(self, cap: Cap, key: bytes) -> "StoredLedger":
        from streamdp.ledger.paging import PagedRows  # here, because readers need no compiled code
        from streamdp.ledger.stored import StoredLedger

        rows = PagedRows(self._connection, self._database.errors, cap, self._commits_of_others)
        return StoredLedger.over(rows, cap, key)

    def _commits_of_others(self, connection: Connection) -> int:
        with transaction(connection):
            ((commits,),) = connection.fetch(_OTHERS, {"job": self.job})
            return int(commits)

    @property
    def losses(self) -> int:
        """How often a loss of commits was accepted: every spend and every cap may hold once more for each."""
        return self._database.losses

    def set_caps(self, caps: Mapping[Subject, Budget | str | None]) -> None:
        """Give subjects their own caps (see `Ledger.set_cap`), for all jobs. They are on disk when this returns.

        `caps` has the cap of each subject over all time, or its text. None gives a subject the ledger's cap again.

        Raises `BudgetError` for a cap that is malformed or of another kind, `StoreError` without a ledger or if spends
        are pending, and the errors of `commit_parts`.
        """
        if self.ledger is None or self.ledger.n_pending:
            raise StoreError("caps of subjects need a store with a cap, and no spends that wait for their commit")
        with self.ledger.lock:
            try:
                for subject, cap in caps.items():
                    self.ledger.set_cap(subject, cap)
                with self._transaction(spending=True) as connection:
                    self.ledger.write_pending(connection)
            except BaseException:
                self.ledger.rollback()
                raise
            self.ledger.mark_committed()

    def claim(self, shards: Iterable[Shard]) -> dict[Shard, Snapshot | None]:
        """Take ownership of `shards`, with an owner or not; return their last snapshots (None before the first commit).

        Each shard gets its next epoch, so that commits of an earlier owner are refused from now on.

        Raises `ConfigError` for anything else, and the errors of `commit_parts`.
        """
        shards = list(shards) if isinstance(shards, Iterable) else [shards]
        if not all(isinstance(shard, Shard) for shard in shards):
            raise ConfigError("claim: expected a list of Shard(topic, partition)")
        out: dict[Shard, Snapshot | None] = {}
        with self._transaction() as connection:
            job = read_job(connection, self.job, self._database.name)
            for shard in sorted(shards):  # in one order, so that two workers cannot wait for each other
                mine = named(self.job, shard)
                connection.change(ADD_SHARD, mine | {"checksum": b""})
                connection.change(_CLAIM, mine)
                row = ShardRow(*connection.fetch(_READ, mine)[0])
                self._claims[shard] = _Claim(row.epoch, row.seq)
                out[shard] = read_snapshot(row, job, self._database)
        return out

    def end_left(self, left: Session | None) -> Session | None:
        """End the session of an earlier store of the caller, `left`, of which a server does not know that it was cut.

        Otherwise it would hold its shard until the server notices, after half a minute. Returns the session of this
        store; None for a file. Raises the errors of `load`.
        """
        with self._transaction() as connection:
            if left is not None:
                self._database.end_session(connection, left)
            return self._database.session(connection)

    def claim_free(self, most: int, *, add: bool) -> Shard | None:
        """Claim a shard that no other open store has claimed so, and that another one may have left.

        At most `most` shards are held at the same time. If `add`, a new shard may be added; a job without any gets its
        first one in any case. Returns None if there is no such shard now. Raises the errors of `claim`.
        """
        with self._transaction() as connection:
            last = "SELECT MAX(partition) FROM shards WHERE job = :job AND topic = :topic"
            ((known,),) = connection.fetch(last, {"job": self.job, "topic": WHOLE.topic})
            numbers = range(most if add or known is None else min(most, known + 1))
            found = next((n for n in numbers if self._database.hold(connection, n)), None)
        if found is None:
            return None
        shard = Shard(WHOLE.topic, found)
        self.claim([shard])
        return shard

    def load(self, shard: Shard = WHOLE) -> Snapshot | None:
        """Return the last committed snapshot of a `shard`; None before its first commit.

        Raises `StoreDamagedError` if the checksum fails.
        """
        with self._transaction() as connection:
            if not (rows := connection.fetch(_READ, named(self.job, shard))):
                return None
            row, job = ShardRow(*rows[0]), read_job(connection, self.job, self._database.name)
            if (claim := self._claims.get(shard)) is not None and claim.epoch == row.epoch:
                claim.seq = row.seq  # greater than ours after a commit whose answer was lost
            return read_snapshot(row, job, self._database)

    def commit(self, state: Mapping[str, object], position: Position, counts: Counts) -> Snapshot:
        """Commit the one shard and the ledger's pending spends, or nothing. They are on disk when this returns.

        Returns what was committed. For `state`, `position` and `counts` see `Part`. Raises `ConfigError` for values of
        other types, and the errors of `commit_parts`.
        """
        if not (isinstance(state, Mapping) and isinstance(position, dict) and isinstance(counts, Counts)):
            raise ConfigError("commit: expected the state_dict of an estimator, a position of a source, and Counts")
        return self.commit_parts({WHOLE: Part(state, position, counts)})[WHOLE]

    def commit_parts(self, parts: Mapping[Shard, Part], within: Within | None = None) -> dict[Shard, Snapshot]:
        """Commit `parts` of shards with the spends that belong to them, or nothing. They are on disk when this returns.

        Spends belong to a part if no shard owns them, or its shard up to its last boundary (`StoredLedger.charging`,
        `StoredLedger.end_part`). Returns what was committed, by shard. `within` is called in the transaction with the
        connection and the largest number of these commits, to write what belongs to them.

        Raises `FencedError` if another worker has claimed a shard since, and `LedgerConflictError` if other workers or
        jobs spent from the same subjects since, and all spends together are over a cap: then everything after the last
        commit must be discarded (see `rollback`). Raises `StoreMismatchError` if the database has another cap now,
        `StoreUnavailableError` if the database does not answer and `StoreError` if it cannot write: then the same call
        may be repeated, and it finds out whether the first one succeeded.
        """
        own = self.ledger
        with contextlib.nullcontext() if own is None else own.lock:
            with self._transaction(spending=own is not None) as connection:
                now, oldest = (time.time(), 0) if own is None else own.begin_commit(self._committed_at(own, connection))
                written = {shard: self._write(shard, parts[shard], now) for shard in sorted(parts)}
                new = any(moved for _, moved in written.values())
                if own is not None and new:
                    own.write_pending(connection, oldest, parts.keys())
                if within is not None and new:
                    within(connection, 1 + max(self._claims[shard].seq for shard in parts))
            if own is not None:
                own.mark_committed(now)
            self.give_way()
            for shard in parts:
                self._claims[shard].seq += 1
            return {shard: snapshot for shard, (snapshot, _) in written.items()}

    @staticmethod
    def _committed_at(own: "StoredLedger", connection: Connection) -> float:
        """The time of the last commit; of any job, if the cap renews."""
        if not isinstance(own.cap, RenewingCap):
            return own.moments.committed_at
        wait_for_writers(connection)
        return _last_time(connection)

    def _write(self, shard: Shard, part: Part, now: float) -> tuple[Snapshot, bool]:
        """Write a part, inside the caller's transaction; what is there then, and False if an earlier call wrote it."""
        claim = self._claims.get(shard)
        if claim is None:
            raise FencedError(f"{shard} of job {self.job!r} is not claimed", shard)
        values = commit_columns(part, claim.seq + 1, now)
        content = state_columns(part, self.job, self.fingerprint, values)
        ours = named(self.job, shard) | {"of_epoch": claim.epoch, "of_seq": claim.seq}
        if self._connection.change(_MOVE, {**values, **content, **ours}) == 0:
            row = ShardRow(*self._connection.fetch(_READ, ours)[0])
            # Only this store writes under its epoch, so the next number there is its own commit with a lost answer.
            same = all(getattr(row, name) == values[name] for name in NAMES if name != "committed_at")
            if row.epoch == claim.epoch and same and row.state == content["state"]:
                return self._snapshot(shard, row._asdict()), False
            raise FencedError(f"{shard} of job {self.job!r} was claimed by another worker", shard)
        self._connection.change(_REMEMBER, values | ours | {"checksum": history_checksum(self.job, shard, values)})
        if values["seq"] > HISTORY:
            self._connection.change(_FORGET, ours | {"of_seq": values["seq"] - HISTORY})
        return self._snapshot(shard, {**values, **content, "epoch": claim.epoch}), True

    def _snapshot(self, shard: Shard, columns: Mapping[str, object]) -> Snapshot:
        row = JobRow(self.job, self.fingerprint, self._config, int(self.ledger is not None))
        return snapshot_of(row, self._database, shard, columns)

    def note_waiting(self, waiting: Mapping[Shard, int]) -> None:
        """Write, for readers, how many records after the last commit wait in an open batch or window, by shard.

        This is no commit: the records are read again after a crash. The numbers in `waiting` are public, because the
        number of records of a stream is. It is not written for a shard that another worker has claimed since.

        Raises `StoreUnavailableError` if the database does not answer and `StoreError` if it cannot write.
        """
        with self._transaction() as connection:
            for shard in sorted(waiting):
                if (claim := self._claims.get(shard)) is not None:
                    ours = named(self.job, shard) | {"of_epoch": claim.epoch, "found": waiting[shard]}
                    connection.change(_NOTE, ours)

    def check_claims(self, shards: Iterable[Shard]) -> None:
        """See that this store still owns `shards`, before something of them is shown elsewhere.

        Raises `FencedError` if another worker has claimed one since.
        """
        with self._transaction() as connection:
            for shard in shards:
                epochs = connection.fetch(_EPOCH, named(self.job, shard))
                if (claim := self._claims.get(shard)) is None or epochs != [(claim.epoch,)]:
                    raise FencedError(f"{shard} of job {self.job!r} was claimed by another worker", shard)

    def answers(self, hours: float) -> "Answers":
        """The answers of a service, which the transactions of commits remember for so many `hours`.

        Raises `ConfigError` if the database is on a server and the environment has no subject key, and the errors of
        the key file.
        """
        from streamdp.store.answers import Answers

        with self._transaction():  # of the jobs of a file that start at the same time, one makes the key
            key = given_key(self._database.key_file, None) or make_key(self._database.key_file)
        return Answers(self._open_connection(), self._database.errors, self.job, key, hours)

    def rollback(self) -> None:
        """Discard the spends after the last commit, because what was learned with them is discarded too."""
        if self.ledger is not None:
            self.ledger.rollback()

    def come_first(self) -> None:
        """Hold back the spends of other jobs and workers until the next commit, `give_way`, or the end of the process.

        What is read and admitted from now on has no conflict. A server ends it after some seconds. Without a ledger
        this does nothing. Raises `StoreUnavailableError` if the database does not answer, or if others hold spends
        back for long.
        """
        if self.ledger is not None and self._first is None:
            self._first = self._database.come_first()

    def give_way(self) -> None:
        """End `come_first`. Idempotent."""
        first, self._first = self._first, None
        if first is not None:
            first()

    def release(self, shards: Iterable[Shard]) -> None:
        """Give `shards` up, claimed or not, with what they were charged and did not commit.

        Commits of them are refused until they are claimed again.
        """
        given = set(shards)
        for shard in given:
            self._claims.pop(shard, None)
        if self.ledger is not None:
            self.ledger.rollback(given)

    @staticmethod
    def snapshot(url_or_path: str | os.PathLike[str], job: str | None = None) -> Snapshot | None:
        """Return the last committed snapshot of a job with one shard; None before the first commit.

        The job may be running: this only reads, and needs neither the lock nor the key. `url_or_path` is as in the
        constructor; None as `job`: the only one of the database.

        Raises `StoreError` and its kinds; `StoreError` if there is no such store.
        """
        return next((s for s in Store.snapshots(url_or_path, job) if s.shard == WHOLE), None)

    @staticmethod
    def snapshots(url_or_path: str | os.PathLike[str], job: str | None = None) -> list[Snapshot]:
        """As `Store.snapshot`, for all shards of a job, in the order of the shards."""
        return snapshots(url_or_path, job)

    @staticmethod
    def held_shards(url_or_path: str | os.PathLike[str], job: str | None = None) -> list[int]:
        """Return the numbers of the shards that processes hold by `claim_free`. Only reads, like `snapshot`.

        `url_or_path` and `job` are as in `snapshot`.
        """
        database = open_database(url_or_path, job)
        with database.reading(STORE_FORMAT) as connection:
            name = read_job(connection, job, database.name).job
            mine = "SELECT partition FROM shards WHERE job = :job AND topic = :topic ORDER BY partition"
            known = connection.fetch(mine, {"job": name, "topic": WHOLE.topic})
            return database.held(connection, [partition for (partition,) in known])

    @staticmethod
    def history(url_or_path: str | os.PathLike[str], limit: int = 100, job: str | None = None) -> list[Commit]:
        """Return the last commits, at most `limit`, oldest first. Only reads, like `snapshot`.

        `url_or_path` and `job` are as in `snapshot`.
        """
        return history(url_or_path, limit, job)

    def close(self) -> None:
        """Close without a commit: what was learned since the last commit was never visible and is discarded.

        Idempotent.
        """
        self.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave a call in which another thread waits for the database: `close` would wait too, and does nothing now.

        The connection ends with the process. The call may still commit.
        """
        self._abandoned = True

    def _open_connection(self) -> Connection:
        if self._connection.closed:
            raise StoreError("this store is closed")
        return self._connection

    def _remove(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error, leave no file that this store has made and that has nothing."""
        if kind is not None:
            with contextlib.suppress(StoreError, OSError), self._database.errors():  # the first error is shown
                self._database.remove(_USED)

    def __exit__(self, *error: Any) -> None:
        """Close the store. After an error, a file that it has made is removed, unless something was committed there."""
        if not self._abandoned:
            self.give_way()
            self._open.__exit__(*error)


def _last_time(connection: Connection) -> float:
    ((last,),) = connection.fetch("SELECT MAX(committed_at) FROM shards")
    return float(last or 0.0)
