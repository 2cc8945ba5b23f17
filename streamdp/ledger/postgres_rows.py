"""Spends in a PostgreSQL database: a table with one row for each subject, read and written in bulk.

The table has the keyed hash of a subject and its packed spend: the numbers of its row (see `rows`) as little-endian
float64, without the last two if the subject has the ledger's cap, and a 64-bit check word over them and the hash. That
is 48 bytes, or 64 with a cap. One packed column is used instead of eight because the conversion of 10,000 rows of eight
columns to Python objects and back costs more than the search for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamdp.database.interface import Connection
from streamdp.ledger.check_words import check_words
from streamdp.ledger.ledger_rows import read_version
from streamdp.ledger.rows import CAP, RECORDS, ROW
from streamdp.ledger.sql import damaged, transaction

_SUMS = 8 * RECORDS
"""The bytes of a packed spend before its number of records."""
_INSERT = (
    "INSERT INTO spends (subject, spend) SELECT * FROM unnest(%s::bytea[], %s::bytea[])"
    " ON CONFLICT (subject) DO NOTHING"
)
_UPDATE = (
    "UPDATE spends SET spend = new.spend"
    " FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[]) AS new (subject, spend, kept)"
    " WHERE spends.subject = new.subject"
    f" AND substring(spends.spend FROM {_SUMS + 1} FOR octet_length(spends.spend) - {_SUMS + 8}) = new.kept"
)
"""A row is written if its number of records and its own cap are those that the writer knows."""


class SpendRows:
    """The head of this module describes the table. There is no log."""

    excludes = False

    def version(self, connection: Connection) -> int:
        """See `SpendPages.version`."""
        with transaction(connection):
            return read_version(connection)

    def count(self, connection: Connection) -> int:
        """See `SpendPages.count`."""
        with transaction(connection):
            ((n,),) = connection.fetch("SELECT count(*) FROM spends")
        return int(n)

    def every(self, connection: Connection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """See `SpendPages.every`."""
        last = b""
        while found := connection.fetch(
            "SELECT subject, spend FROM spends WHERE subject > %s ORDER BY subject LIMIT 65536", (last,)
        ):
            yield unpack(found)
            last = found[-1][0]

    def read(self, connection: Connection, keys: np.ndarray, *, hold: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """See `SpendPages.read`."""
        subjects, query = _hashes(keys), "SELECT subject, spend FROM spends WHERE subject = ANY(%s)"
        if hold:
            query += " ORDER BY subject FOR NO KEY UPDATE"  # in one order, so that two writers do not wait in a circle
        with transaction(connection):
            found = connection.fetch(query, (subjects,))
        rows, there = np.zeros((len(keys), ROW)), np.zeros(len(keys), dtype=np.bool_)
        if found:
            place = {subject: i for i, subject in enumerate(subjects)}
            places = [place[subject] for subject, _ in found]
            rows[places], there[places] = unpack(found)[1], True
        return rows, there

    def enter(self, connection: Connection) -> int:
        """See `SpendPages.enter`."""
        return read_version(connection)

    def write(
        self, connection: Connection, keys: np.ndarray, rows: np.ndarray, before: np.ndarray, there: np.ndarray
    ) -> bool:
        """See `SpendPages.write`. Rows that are there come first, as in `read`: two writers must not wait in a circle.

        Sorted by subject for the same reason, and so that each page is visited once.
        """
        subjects, spends, kept = _hashes(keys), _packed(keys, rows), _kept(before)
        order = sorted(range(len(subjects)), key=subjects.__getitem__)
        known, new = [i for i in order if there[i]], [i for i in order if not there[i]]
        connection.change("SAVEPOINT attempt")
        written = 0
        if known:
            values = [subjects[i] for i in known], [spends[i] for i in known], [kept[i] for i in known]
            written += connection.change(_UPDATE, values)
        if new:
            first = [subjects[i] for i in new], [spends[i] for i in new]
            written += connection.change(_INSERT, first)
        if written < len(order):
            connection.change("ROLLBACK TO SAVEPOINT attempt")
        return written == len(order)

    def delete_before(self, connection: Connection, period: int) -> None:
        """See `SpendPages.delete_before`."""
        connection.change(
            "DELETE FROM spends WHERE substring(subject FROM 13) > %s AND substring(subject FROM 13) < %s",
            (bytes(4), period.to_bytes(4, "big")),
        )

    def checkpoint(self, connection: Connection) -> None:
        """See `SpendPages.checkpoint`. Nothing to do: there is no log."""


def unpack(found: Sequence[tuple[Any, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return keys (n, 2) uint64 and rows (n, ROW) float64 of `found`: n pairs of a hash and a packed spend.

    Raises `StoreDamagedError` if a spend fails its check.
    """
    with_cap, without = 8 * ROW + 8, 8 * CAP + 8
    wide = [
        spend if len(spend) == with_cap else spend[:-8] + bytes(with_cap - without) + spend[-8:] for _, spend in found
    ]
    packed = b"".join(wide)
    if len(packed) != with_cap * len(found) or any(len(subject) != 16 for subject, _ in found):
        raise damaged()
    words = np.frombuffer(packed, dtype="<u8").reshape(len(found), -1).astype(np.uint64)
    keys = np.frombuffer(b"".join([subject for subject, _ in found]), dtype="<u8").reshape(-1, 2).astype(np.uint64)
    rows = np.ascontiguousarray(words[:, :-1]).view(np.float64)
    if not np.array_equal(words[:, -1], check_words(keys, rows.view(np.uint64))):
        raise damaged()
    return keys, rows


def _packed(keys: np.ndarray, rows: np.ndarray) -> list[bytes]:
    words = np.ascontiguousarray(rows).view(np.uint64)
    wide = np.column_stack([words, check_words(keys, words)]).astype("<u8")
    size = 8 * wide.shape[1]
    packed = wide.tobytes()
    spends = [packed[i : i + size] for i in range(0, len(packed), size)]
    bare = (rows[:, CAP] == 0).tolist()
    at = 8 * CAP
    return [spend[:at] + spend[-8:] if short else spend for spend, short in zip(spends, bare, strict=True)]


def _kept(rows: np.ndarray) -> list[bytes]:
    """What `_UPDATE` compares of rows (m, ROW): the number of records, and the own cap of those who have one."""
    packed = np.ascontiguousarray(rows[:, RECORDS:]).astype("<f8").tobytes()
    size = 8 * (ROW - RECORDS)
    bare = (rows[:, CAP] == 0).tolist()
    return [packed[i * size : i * size + (8 * (CAP - RECORDS) if bare[i] else size)] for i in range(len(bare))]


def _hashes(keys: np.ndarray) -> list[bytes]:
    packed = keys.astype("<u8").tobytes()
    return [packed[i : i + 16] for i in range(0, len(packed), 16)]
