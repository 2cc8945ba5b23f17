"""One job's part of a ledger that several jobs share, so that they cannot each claim the whole cap.

A commit of the job has three steps:

1. `before_commit` writes the spends since the last commit to the ledger, in a transaction of its own. It notes two
   balances of the shard: what is prepaid if the store does not commit, and what remains of it if the store does.
2. The store commits state and position.
3. `after_commit` notes the store's commit.

After a crash between 1 and 2, the shard is learned again from its last commit, and records that are prepaid are
admitted without a second charge (`prepaid` has the proof). After a crash between 2 and 3, the store has one commit more
than the ledger has noted, which tells that the second balance holds. The noise is fresh each time, because the state of
an attempt without a commit never left memory.

If store and ledger are in the same PostgreSQL database, all three steps are one transaction (`within_commit`).

A claim of a shard draws a token. A charge with an older token is refused (`FencedError`), so that a worker that lost a
shard cannot change its balances. Claims are made inside the store's transaction, and so in the order of its epochs.

What is told from the ledger: a new store under the name of a job that has charged already is refused. An older copy of
the store gets a `PrivacyWarning`, and what it learns again is charged again. It is older if it has fewer commits, or
if it does not know the claim under which the ledger was last charged: each claim takes the next epoch of the store. So
a copy that was made before the last start is told, whatever crashed after it. A copy of a running job's store that
lacks the last commit only, restored after a crash between 2 and 3 of that commit, is not told: it has the bytes of a
store that crashed between 1 and 2. To tell it would need one more write to the store before each charge.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, select, update

from streamdp.data.records import Position, Shard, Subject
from streamdp.errors import FencedError, LedgerConflictError, PrivacyWarning, StoreMismatchError
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.ledger_format import JOBS, SPANS
from streamdp.ledger.periods import Cap
from streamdp.ledger.prepaid import Prepaid, add_charges
from streamdp.ledger.shared_database import SharedDatabase, check_cap, lock, next_version, read_version
from streamdp.ledger.shared_rows import SharedRows
from streamdp.privacy.guarantees import Budget

Commits = Mapping[Shard, tuple[int, Position]]
"""What the store commits, by shard: the number of the commit, and the position after the last record."""


@dataclass(slots=True)
class _Span:
    """A claimed shard: the token of the claim, how often it charged, and the number of the shard's last commit."""

    token: bytes
    charges: int
    seq: int


@dataclass(slots=True)
class _Written:
    """A transaction with charges: the versions of the ledger around it, and the shards that were charged."""

    before: int
    after: int
    shards: set[Shard]


class SharedLedger:
    """The part of one job, in one process.

    Parameters
    ----------
    url_or_path, key
        See `SharedDatabase`.
    job
        The name of the job.
    cap
        The cap. A new ledger gets it; otherwise it must be the ledger's.
    accept_loss
        Whether to go on with an SQLite file that has lost commits.

    Attributes
    ----------
    ledger
        Admits the records of the job.
    losses
        How often a loss of commits was accepted.

    Raises the errors of `SharedDatabase`, and `StoreMismatchError` for another cap than the ledger's.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        job: str,
        cap: Cap,
        key: bytes | None = None,
        *,
        accept_loss: bool = False,
    ) -> None:
        self._job, self._cap = job, cap
        self._shared = shared = SharedDatabase(url_or_path, cap=cap, key=key, accept_loss=accept_loss)
        self.key, self.losses = shared.key, shared.database.losses
        self._spans: dict[Shard, _Span] = {}
        self._written: _Written | None = None
        self._joint = False
        try:
            with self._errors(), shared.connection.begin():
                check_cap(shared.connection, cap, shared.database.name)
                charged_at = _charged_at(shared.connection)
            self._rows = SharedRows(shared.connection, self._errors, cap, self._version, self._prepaid)
            self.ledger = Ledger.over(self._rows, cap, shared.key, several_jobs=True)
            self.ledger.moments.begin(charged_at)
        except BaseException:
            shared.close()
            raise

    def _errors(self) -> AbstractContextManager[None]:
        return self._shared.database.errors()

    def _version(self) -> int:
        with self._errors():
            return read_version(self._rows.open_connection())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Connection]:
        """A transaction that excludes other writers."""
        connection = self._rows.open_connection()
        with self._errors(), connection.begin():
            lock(connection)
            yield connection

    def enter(self, store: bytes, *, new: bool) -> None:
        """Check that the ledger knows the store of this job, or note it.

        Parameters
        ----------
        store
            The random mark of the store.
        new
            Whether the store has no commit.

        Raises `StoreMismatchError` if another store of the job has charged records, because a new one would read and
        charge them again; and if the store has commits that this ledger does not know.
        """
        name = self._shared.database.name
        with self._alone() as connection:
            row = connection.execute(select(JOBS).where(JOBS.c.job == self._job)).one_or_none()
            if row is not None and row.store == store:
                return
            if not new:
                raise StoreMismatchError(
                    f"{name} does not know this store of job {self._job!r}; name the ledger that the store was created"
                    " with, or restore it"
                )
            if row is not None and row.records:
                raise StoreMismatchError(
                    f"another store of job {self._job!r} has charged {row.records:,} records to {name}, and this new"
                    " store would read and charge them again; restore that store, or give this job another name"
                )
            sums = {"records": 0, "epsilon": 0.0, "delta": 0.0, "mu_squared": 0.0, "charged_at": 0.0}
            if row is None:
                connection.execute(insert(JOBS).values(job=self._job, store=store, **sums))
            else:
                connection.execute(update(JOBS).where(JOBS.c.job == self._job).values(store=store))

    def claim(self, claims: Mapping[Shard, tuple[int, int]]) -> None:
        """Take shards: from now on, charges of their earlier owners are refused.

        Parameters
        ----------
        claims
            The epoch and the number of the last commit of each shard.
        """
        spans = {shard: _Span(secrets.token_bytes(16), 0, seq) for shard, (_, seq) in claims.items()}
        older = []
        with self._alone() as connection:
            for shard in sorted(spans):
                span, row, epoch = spans[shard], self._row(connection, shard), claims[shard][0]
                if row is None:
                    values = {"job": self._job, "topic": shard.topic, "partition": shard.partition}
                    values |= {"seq": span.seq, "position": "", "token": span.token, "charges": 0, "epoch": epoch}
                    connection.execute(insert(SPANS).values(**values, prepaid=b"", remaining=b""))
                    continue
                # A claim that failed in the store is repeated with its epoch, and has charged nothing.
                is_older = row.seq > span.seq or epoch < row.epoch or (epoch == row.epoch and row.charges > 0)
                balance = b"" if is_older else _balance(row, span)
                owner = {"seq": span.seq, "token": span.token, "charges": 0, "epoch": epoch}
                self._update(connection, shard, **owner, prepaid=balance, remaining=balance)
                if is_older:
                    older.append(shard)
        self._spans |= spans
        for shard in spans:
            self._rows.forget(shard)
        if older:
            warnings.warn(
                f"the store of job {self._job!r} is older than what {self._shared.database.name} has charged: it is an"
                f" old copy, and the records after its last commit are learned and charged again ({len(older)} shards)",
                PrivacyWarning,
                stacklevel=3,
            )

    def at(self, shard: Shard, seq: int) -> None:
        """Note the last commit of a claimed shard, after the store has looked.

        Parameters
        ----------
        seq
            The number of its last commit.
        """
        if (span := self._spans.get(shard)) is not None and span.seq != seq:
            span.seq = seq
            self._rows.forget(shard)

    def _row(self, connection: Connection, shard: Shard) -> Row[Any] | None:
        return connection.execute(select(SPANS).where(self._is(shard))).one_or_none()

    def _is(self, shard: Shard) -> Any:
        mine = SPANS.c.job == self._job
        return and_(mine, SPANS.c.topic == shard.topic, SPANS.c.partition == shard.partition)

    def _update(self, connection: Connection, shard: Shard, **values: Any) -> None:
        connection.execute(update(SPANS).where(self._is(shard)).values(**values))

    def _owned(self, connection: Connection, shard: Shard) -> tuple[_Span, Row[Any]]:
        span, row = self._spans.get(shard), self._row(connection, shard)
        if span is None or row is None or row.token != span.token:
            raise FencedError(f"{shard} of job {self._job!r} was claimed by another worker", shard)
        return span, row

    def _prepaid(self, shard: Shard) -> Prepaid:
        """The balances of a shard whose admissions begin; none if another worker has claimed it."""
        connection, span = self._rows.open_connection(), self._spans.get(shard)
        with self._errors(), connection.begin():
            row = self._row(connection, shard)
        if span is None or row is None or row.token != span.token:
            return Prepaid(b"")
        span.charges = row.charges
        return Prepaid(_balance(row, span), self.ledger.moments.oldest)

    def before_commit(self, connection: Connection, committed: Commits) -> None:
        """Write the pending charges, as prepaid, unless the transaction of the store will write them.

        Raises `LedgerConflictError` if a subject would be over its cap by what others have spent, `FencedError` if
        another worker has claimed a shard since, and `StoreMismatchError` if the ledger has another cap now.
        """
        self._joint = self._shared.database.within(connection) is not None
        for shard in committed:
            self._rows.read_balances(shard)  # a shard that admitted nothing may have some, of an attempt before
        if self._charged and not self._joint:
            with self._errors(), self._rows.open_connection().begin():
                self._write(self._rows.open_connection())
            self._mark_written()

    @property
    def _charged(self) -> set[Shard]:
        """The shards that were charged, or whose balances were used, since the last transaction."""
        used = {shard for shard in self._spans if (has := self._rows.balances(shard)) is not None and has.changed}
        return used | self._rows.journal.keys()

    def within_commit(self, connection: Connection, committed: Commits, repeated: bool) -> None:
        """Write the pending charges inside the transaction of a store in the same database.

        Parameters
        ----------
        repeated
            Whether an earlier transaction has committed the same.

        Raises as `before_commit`.
        """
        tables = self._shared.database.within(connection)
        if tables is not None and not repeated:
            with tables:
                self._write(connection)
                self._note(connection, committed)

    def after_commit(self, committed: Commits) -> None:
        """Note that the store has committed shards: their charges are no longer prepaid."""
        if self._joint:
            self._mark_written()
        else:
            connection = self._rows.open_connection()
            with self._errors(), connection.begin():
                self._note(connection, committed)
        for shard, (seq, _) in committed.items():
            self._spans[shard].seq = seq

    def _note(self, connection: Connection, committed: Commits) -> None:
        for shard, (seq, position) in committed.items():
            mine = and_(self._is(shard), SPANS.c.token == self._spans[shard].token)
            noted = {"seq": seq, "position": json.dumps(position), "prepaid": SPANS.c.remaining}
            connection.execute(update(SPANS).where(mine).values(**noted))

    def _write(self, connection: Connection) -> None:
        before = lock(connection)
        next_version(connection)
        check_cap(connection, self._cap, self._shared.database.name)
        journal, shards = self._rows.journal, self._charged
        for shard in sorted(shards):
            span, row = self._owned(connection, shard)
            if row.charges != span.charges:
                raise LedgerConflictError(
                    "the answer to the last charge was lost: roll back to the last commit and learn again"
                )
            balances = self._rows.balances(shard)
            remaining = b"" if balances is None else balances.pack()
            prepaid = _balance(row, span)
            if shard in journal:
                slots, terms = journal[shard]
                prepaid = add_charges(prepaid, self._rows.cache.keys[slots], terms)
            noted = {"seq": span.seq, "charges": span.charges + 1}
            self._update(connection, shard, prepaid=prepaid, remaining=remaining, **noted)
        now, oldest = self.ledger.begin_commit(_charged_at(connection))
        self._rows.write_at(connection, before, oldest)
        every = self._rows.records
        epsilon, delta, mu_squared, _ = every.sum(axis=0).tolist()
        added = {
            "records": JOBS.c.records + len(every),
            "epsilon": JOBS.c.epsilon + epsilon,
            "delta": JOBS.c.delta + delta,
            "mu_squared": JOBS.c.mu_squared + mu_squared,
            "charged_at": now,  # also without a charge, because old periods may have been deleted
        }
        connection.execute(update(JOBS).where(JOBS.c.job == self._job).values(**added))
        self._written = _Written(before, before + 1, shards)

    def _mark_written(self) -> None:
        """Note that the transaction of the last charge is on disk."""
        written, self._written = self._written, None
        if written is not None:
            self._rows.mark_written(written.before, written.after)
            for shard in written.shards:
                self._spans[shard].charges += 1

    def set_caps(self, caps: Mapping[Subject, Budget | str | None]) -> None:
        """See `SharedDatabase.set_caps`."""
        self._shared.set_caps(caps)

    def close(self) -> None:
        """Close the ledger. What was not charged is discarded. Idempotent."""
        self._shared.close()


def _charged_at(connection: Connection) -> float:
    """The time of the last charge by any job, in seconds since 1970 (UTC)."""
    return float(connection.execute(select(func.max(JOBS.c.charged_at))).scalar() or 0.0)


def _balance(row: Row[Any], span: _Span) -> bytes:
    """The packed balances of a shard at its last commit; none if the ledger does not know that commit."""
    prepaid: bytes = row.prepaid
    remaining: bytes = row.remaining
    return prepaid if row.seq == span.seq else remaining if row.seq + 1 == span.seq else b""
