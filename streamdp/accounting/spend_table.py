"""The table of spends, and how rows are paged in and out of it by the thousand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, func, select

from streamdp.errors import StoreDamagedError

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

        found: list[tuple[bytes, bytes]] = []
        with transaction(connection):
            for start in range(0, len(subjects), 1024):
                chunk = list(subjects[start : start + 1024])
                # Lengths of 1, 2, 4, ... 1024 only, filled with a repetition: eleven statements, always
                # prepared.
                chunk += chunk[-1:] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk))
                marks = ",".join("?" * len(chunk))
                result = connection.exec_driver_sql(
                    f"SELECT subject, spend FROM spends WHERE subject IN ({marks})", tuple(chunk)
                )
                found += result.cursor.fetchall()
        hashes = [subject for subject, _ in found]
        packed = b"".join([spend for _, spend in found])
        if len(packed) != _ROW_BYTES * len(found) or any(len(subject) != 16 for subject in hashes):
            raise StoreDamagedError("a row of the ledger is damaged; restore a copy of the database")
        rows = np.frombuffer(packed, dtype="<f8").reshape(-1, admission.ROW).astype(np.float64)
        if not np.array_equal(rows.view(np.uint64)[:, admission.CHECK], self._checks(hashes, rows)):
            raise StoreDamagedError("a row of the ledger is damaged; restore a copy of the database")
        return hashes, rows

    def write(self, connection: Connection, hashes: Sequence[bytes], rows: np.ndarray) -> None:
        """Insert or replace rows, inside the caller's transaction."""
        from streamdp.accounting import admission

        if not hashes:
            return
        rows = rows.copy()
        rows.view(np.uint64)[:, admission.CHECK] = self._checks(hashes, rows)
        packed = rows.astype("<f8", copy=False).tobytes()
        spends = [packed[i : i + _ROW_BYTES] for i in range(0, len(packed), _ROW_BYTES)]
        connection.exec_driver_sql(
            "INSERT INTO spends (subject, spend) VALUES (?, ?)"
            " ON CONFLICT (subject) DO UPDATE SET spend = excluded.spend",
            sorted(zip(hashes, spends, strict=True)),  # in key order, each page is visited once
        )

    @staticmethod
    def _checks(hashes: Sequence[bytes], rows: np.ndarray) -> np.ndarray:
        from streamdp.accounting import admission

        keys = np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        return admission.check_words(keys, rows.view(np.uint64))


def transaction(connection: Connection) -> AbstractContextManager[Any]:
    """A short transaction for a read, unless the caller's is open."""
    return nullcontext() if connection.in_transaction() else connection.begin()
