"""The table of spends, and how rows are paged in and out of it by the thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, func, select

from streamdp.errors import LedgerConflictError, StoreDamagedError

_ROW_BYTES = 48


class SpendTable:
    """Rows of (keyed hash of a subject, its spend).

    A spend is 48 bytes: epsilon, delta, mu squared, pure mu squared and records as little-endian float64, and
    a 64-bit check over them and the hash (`admission.check_words`). One packed column and not six, because
    turning 10,000 rows of six columns into Python objects and back costs more than finding them.
    """

    def __init__(self, metadata: MetaData) -> None:
        self.table = Table(
            "spends",
            metadata,
            Column("subject", LargeBinary(16), primary_key=True),
            Column("spend", LargeBinary(_ROW_BYTES), nullable=False),
            sqlite_with_rowid=False,  # rows lie in their key's order: one search a subject and not two
        )

    def count(self, connection: Connection) -> int:
        """The number of subjects."""
        with transaction(connection):
            return int(connection.execute(select(func.count()).select_from(self.table)).scalar_one())

    def read(self, connection: Connection, subjects: Sequence[bytes]) -> tuple[list[bytes], np.ndarray]:
        """The hashes of those subjects that have rows, and their rows (m, 6), in one order of the database's.

        Raises `StoreDamagedError` where a row fails its check.
        """
        from streamdp.accounting import admission

        with transaction(connection):
            if connection.dialect.name == "postgresql":
                found = _fetch(
                    connection, "SELECT subject, spend FROM spends WHERE subject = ANY(%s)", (list(subjects),)
                )
            else:
                found = [row for chunk in _chunks(subjects) for row in _fetch(connection, *chunk)]
        hashes = [subject for subject, _ in found]
        packed = b"".join([spend for _, spend in found])
        if len(packed) != _ROW_BYTES * len(found) or any(len(subject) != 16 for subject in hashes):
            raise StoreDamagedError("a row of the ledger is damaged; restore a copy of the database")
        rows = np.frombuffer(packed, dtype="<f8").reshape(-1, admission.ROW).astype(np.float64)
        if not np.array_equal(rows.view(np.uint64)[:, admission.CHECK], self._checks(hashes, rows)):
            raise StoreDamagedError("a row of the ledger is damaged; restore a copy of the database")
        return hashes, rows

    def insert(self, connection: Connection, hashes: Sequence[bytes], rows: np.ndarray) -> None:
        """Insert rows, inside the caller's transaction. Raises `LedgerConflictError` where one is there already."""
        new = sorted(zip(hashes, self._packed(hashes, rows), strict=True))  # in key order, each page is visited once
        if connection.dialect.name == "postgresql":
            statement = (
                "INSERT INTO spends (subject, spend) SELECT * FROM unnest(%s::bytea[], %s::bytea[])"
                " ON CONFLICT (subject) DO NOTHING"
            )
        else:
            statement = "INSERT INTO spends (subject, spend) VALUES (?, ?) ON CONFLICT (subject) DO NOTHING"
        _write(connection, statement, new)

    def update(self, connection: Connection, hashes: Sequence[bytes], before: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows `before`, inside the caller's transaction.

        Raises `LedgerConflictError` where a row is not what it was before.
        """
        old = self._packed(hashes, before)
        changed = sorted(zip(hashes, old, self._packed(hashes, rows), strict=True))
        if connection.dialect.name == "postgresql":
            statement = (
                "UPDATE spends SET spend = change.after"
                " FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[]) AS change (subject, before, after)"
                " WHERE spends.subject = change.subject AND spends.spend = change.before"
            )
        else:
            statement = "UPDATE spends SET spend = ?3 WHERE subject = ?1 AND spend = ?2"
        _write(connection, statement, changed)

    def _packed(self, hashes: Sequence[bytes], rows: np.ndarray) -> list[bytes]:
        from streamdp.accounting import admission

        rows = rows.copy()
        rows.view(np.uint64)[:, admission.CHECK] = self._checks(hashes, rows)
        packed = rows.astype("<f8", copy=False).tobytes()
        return [packed[i : i + _ROW_BYTES] for i in range(0, len(packed), _ROW_BYTES)]

    @staticmethod
    def _checks(hashes: Sequence[bytes], rows: np.ndarray) -> np.ndarray:
        from streamdp.accounting import admission

        keys = np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        return admission.check_words(keys, rows.view(np.uint64))


def _chunks(subjects: Sequence[bytes]) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Statements for SQLite, which takes no arrays."""
    for start in range(0, len(subjects), 1024):
        chunk = list(subjects[start : start + 1024])
        # Lengths of 1, 2, 4, ... 1024 only, filled with a repetition: eleven statements, always prepared.
        chunk += chunk[-1:] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk))
        marks = ",".join("?" * len(chunk))
        yield f"SELECT subject, spend FROM spends WHERE subject IN ({marks})", tuple(chunk)


def _fetch(connection: Connection, statement: str, parameters: tuple[Any, ...]) -> list[tuple[bytes, bytes]]:
    result = connection.exec_driver_sql(statement, parameters)
    return list(result.cursor.fetchall())


def _write(connection: Connection, statement: str, rows: Sequence[tuple[bytes, ...]]) -> None:
    """Write all the rows, or raise `LedgerConflictError`: PostgreSQL takes them as columns, SQLite one by one."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        written = connection.exec_driver_sql(statement, tuple(map(list, zip(*rows, strict=True)))).rowcount
    else:
        written = connection.exec_driver_sql(statement, list(rows)).rowcount
    if written != len(rows):
        raise LedgerConflictError(
            "another worker spent from the same subjects meanwhile: a subject's records should share a partition, so"
            " produce them with the subject as their key"
        )


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """A short transaction for a read, unless the caller's is open."""
    return nullcontext() if connection.in_transaction() else connection.begin()
