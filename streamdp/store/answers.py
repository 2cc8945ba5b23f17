"""What a service has answered to calls and records, so that a retry counts once; remembered by the commit itself.

Services that share a job may get the same call at the same time. The key is unique in the table, so the commit of one
is refused, and it finds the answer of the other when it reads the call again.

The table holds keyed digests: of a caller's key or a record's id, and of the body. The subject key is beside the
database and never in it, so the database alone confirms no guess of a body. The answers are numbers, reasons and
names of columns.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b

from streamdp.database.interface import Connection, in_sqlite
from streamdp.errors import ConflictError
from streamdp.ledger.ledger_rows import wait_for_writers

_TABLE = (  # `answered_at` is in seconds since 1970 (UTC)
    "CREATE TABLE IF NOT EXISTS answers (job TEXT NOT NULL, key BYTEA NOT NULL, digest BYTEA NOT NULL,"
    " answer TEXT NOT NULL, answered_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (job, key))"
)
_INDEX = "CREATE INDEX IF NOT EXISTS ix_answers_answered_at ON answers (answered_at)"
_AT_ONCE = 500
"""The most keys of a query."""
PRUNE_S = 60.0
"""The time between two deletions of old answers, in seconds."""

_RECALL = "SELECT key, digest, answer FROM answers WHERE job = :job AND answered_at > :since AND key IN"
_FORGET = "DELETE FROM answers WHERE job = :job AND answered_at <= :since"
_REMEMBER = (
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
            wait_for_writers(connection)
            connection.change(_TABLE if connection.server else f"{in_sqlite(_TABLE)} WITHOUT ROWID")
            connection.change(_INDEX)

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
                asked = {f"key{i}": key for i, key in enumerate(keys[at : at + _AT_ONCE])}
                recall = f"{_RECALL} ({', '.join(f':{name}' for name in asked)})"
                rows = self._connection.fetch(recall, asked | {"job": self._job, "since": since})
                found |= {bytes(key): (bytes(digest), json.loads(answer)) for key, digest, answer in rows}
        return found

    def write(self, connection: Connection, answers: Mapping[bytes, tuple[bytes, object]]) -> None:
        """Remember answers, with the digests of their bodies, by key, inside the transaction of their commit.

        Raises `ConflictError` if another service has answered one of the keys since `recall`.
        """
        now = self.clock()
        if now - self.pruned_at >= PRUNE_S:
            connection.change(_FORGET, {"job": self._job, "since": now - self._seconds})
            self.pruned_at = now
        if answers:
            common = {"job": self._job, "now": now, "since": now - self._seconds}
            rows = [
                {"key": key, "digest": digest, "answer": json.dumps(answer)} | common
                for key, (digest, answer) in sorted(answers.items())  # in one order, so that no two commits deadlock
            ]
            if connection.change_each(_REMEMBER, rows) != len(rows):
                raise ConflictError("another service has answered the same calls: roll back and read its answers")
