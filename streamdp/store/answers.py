"""What a service has answered to calls and records, so that a retry counts once; remembered by the commit itself.

Services that share a job may get the same call at the same time. The key is unique in the table, so the commit of one
is refused, and it finds the answer of the other when it reads the call again.

The table holds keyed digests: of a caller's key or a record's id, and of the body. The subject key is beside the
database and never in it, so the database alone confirms no guess of a body. The answers are numbers, reasons and
names of columns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b

from sqlalchemy import Column, Connection, Double, LargeBinary, MetaData, Table, Text, bindparam, delete, select, text

from streamdp.errors import ConflictError
from streamdp.store.tables import JOBS

_ANSWERS = Table(
    "answers",
    MetaData(),
    Column("job", Text, primary_key=True),
    Column("key", LargeBinary(16), primary_key=True),
    Column("digest", LargeBinary(16), nullable=False),
    Column("answer", Text, nullable=False),
    Column("answered_at", Double, nullable=False, index=True),  # in seconds since 1970 (UTC)
    sqlite_with_rowid=False,
)
_AT_ONCE = 500
"""The most keys of a query."""
PRUNE_S = 60.0
"""The time between two deletions of old answers, in seconds."""

_RECALL = select(_ANSWERS).where(
    _ANSWERS.c.job == bindparam("of_job"),
    _ANSWERS.c.key.in_(bindparam("keys", expanding=True)),
    _ANSWERS.c.answered_at > bindparam("since"),
)

_REMEMBER = text(
    "INSERT INTO answers (job, key, digest, answer, answered_at) VALUES (:job, :key, :digest, :answer, :now)"
    " ON CONFLICT (job, key) DO UPDATE SET digest = excluded.digest, answer = excluded.answer,"
    " answered_at = excluded.answered_at WHERE answers.answered_at <= :since"
)
"""Remember an answer, unless the key has one that is not too old."""


class Answers:
    """The answers of one store, which are remembered for some hours.

    `connection` and `errors` are those of the store, which holds its lock; `key` is the subject key, `job` a name. The
    table is created if it is missing.
    """

    def __init__(
        self,
        connection: Connection,
        errors: Callable[[], AbstractContextManager[None]],
        job: str,
        key: bytes,
        hours: float,
    ) -> None:
        self._connection = connection
        self._errors = errors
        self._job = job
        self._key = key
        self._seconds = hours * 3600
        self.clock = time.time
        self.pruned_at = -PRUNE_S
        with errors(), connection.begin():
            # One service creates the table; another one that starts at the same time waits for it here.
            connection.execute(select(JOBS.c.job).with_for_update())
            _ANSWERS.metadata.create_all(connection)

    def digest(self, kind: bytes, text: bytes) -> bytes:
        """Return a keyed digest of a text, 16 bytes. The kind is at most 8 bytes; digests of different kinds differ."""
        return blake2b(text, digest_size=16, key=self._key, person=b"answers-" + kind).digest()

    def recall(self, keys: Sequence[bytes]) -> Mapping[bytes, tuple[bytes, object]]:
        """Return the digest of the body and the answer under each of some keys, unless it is too old.

        Raises `StoreError` and its kinds.
        """
        found: dict[bytes, tuple[bytes, object]] = {}
        since = self.clock() - self._seconds
        with self._errors(), self._connection.begin():
            for at in range(0, len(keys), _AT_ONCE):
                asked = {"of_job": self._job, "keys": list(keys[at : at + _AT_ONCE]), "since": since}
                rows = self._connection.execute(_RECALL, asked)
                found |= {bytes(row.key): (bytes(row.digest), json.loads(row.answer)) for row in rows}
        return found

    def write(self, connection: Connection, answers: Mapping[bytes, tuple[bytes, object]]) -> None:
        """Remember answers, with the digests of their bodies, by key, inside the transaction of their commit.

        Raises `ConflictError` if another service has answered one of the keys since `recall`.
        """
        now = self.clock()
        if now - self.pruned_at >= PRUNE_S:
            old = _ANSWERS.c.job == self._job, _ANSWERS.c.answered_at <= now - self._seconds
            connection.execute(delete(_ANSWERS).where(*old))
            self.pruned_at = now
        if answers:
            common = {"job": self._job, "now": now, "since": now - self._seconds}
            rows = [
                {"key": key, "digest": digest, "answer": json.dumps(answer)} | common
                for key, (digest, answer) in sorted(answers.items())  # in one order, so that no two commits deadlock
            ]
            if connection.execute(_REMEMBER, rows).rowcount != len(rows):
                raise ConflictError("another service has answered the same calls: roll back and read its answers")
