"""The database of a ledger that several jobs share: its key, its one cap, and the caps of single subjects.

It is an SQLite file with its key beside it, or a schema of a PostgreSQL database. A process locks it only for a
transaction: each transaction that writes updates the row of the table `version` first.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

import numpy as np
from sqlalchemy import Connection, insert, select, update

from streamdp.data.records import Subject
from streamdp.database.interface import Database
from streamdp.database.opening import open_database
from streamdp.errors import ConfigError, StoreMismatchError
from streamdp.ledger import places
from streamdp.ledger.caps import check_kinds, own_cap_numbers
from streamdp.ledger.charged import with_caps
from streamdp.ledger.charged_rows import add_charged, read_charged
from streamdp.ledger.check_words import check_words
from streamdp.ledger.ledger_file import create_or_check
from streamdp.ledger.ledger_format import CAPS, LEDGER_FORMAT, VERSION
from streamdp.ledger.periods import Cap, for_all_time, own_cap, parse_cap, same_kind
from streamdp.ledger.rows import CAP, Expected
from streamdp.ledger.spends import spends_in
from streamdp.ledger.sql import transaction
from streamdp.privacy.guarantees import Budget

SCHEMA = ":ledger"
"""The place of a ledger in a PostgreSQL database, where others have the name of a job."""


class SharedDatabase:
    """An open ledger that several jobs share.

    Parameters
    ----------
    url_or_path
        A file, `sqlite:///PATH` or `postgresql://HOST/DATABASE`. A database has at most one ledger.
    cap
        The cap of a new ledger. None: the ledger must exist and have a cap.
    key
        The subject key: 32 to 64 secret bytes. If None, as in `subject_key`.
    accept_loss
        Whether to go on with an SQLite file that has lost commits.

    Attributes
    ----------
    database, connection
        The database, and a connection to it.
    key
        The subject key.

    Raises `StoreError` and its kinds: `StoreMismatchError` for another key, `StoreBusyError` if one process has the
    ledger for itself.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        *,
        cap: Cap | None = None,
        key: bytes | None = None,
        accept_loss: bool = False,
    ) -> None:
        self.database: Database = open_database(url_or_path, SCHEMA)
        self.database.accept_loss = accept_loss
        if cap is None:
            with self.database.reading(LEDGER_FORMAT):  # an operator creates nothing
                pass
        with contextlib.ExitStack() as stack:
            stack.callback(self.database.lock(shared=True).release)
            self.key = create_or_check(self.database, key)
            self.connection = self.database.open_for_writing(LEDGER_FORMAT)
            stack.callback(self.database.close, self.connection)
            with self.database.errors(), self.connection.begin():
                lock(self.connection)
                spends_in(self.connection).checkpoint(self.connection)  # the log of a process that had it alone
                if cap is not None and not read_caps(self.connection):
                    _add_cap(self.connection, cap)
            self._open = stack.pop_all()

    @property
    def cap(self) -> Cap:
        """The cap of all subjects without a cap of their own. Raises `StoreMismatchError` if no job has set one."""
        with self.database.errors(), self.connection.begin():
            caps = read_caps(self.connection)
        if not caps:
            raise StoreMismatchError(f"no job shares {self.database.name} yet, so it has no cap")
        return parse_cap(caps[-1][0])

    def set_cap(self, cap: Cap | str) -> None:
        """Change the cap. Running jobs stop at their last commit, because their statements name the old one.

        Parameters
        ----------
        cap
            A cap of the same kind, or its text.

        Raises `BudgetError` for a malformed cap, and `ConfigError` for another kind.
        """
        cap, before = parse_cap(cap), self.cap
        if not same_kind(cap, before):
            raise ConfigError(f"the cap is {before}, and the new one may differ in its amounts only")
        with self.database.errors(), self.connection.begin():
            lock(self.connection)
            if cap != before:
                _add_cap(self.connection, cap)

    def set_caps(self, caps: Mapping[Subject, Budget | str | None]) -> None:
        """Give subjects their own caps, for all jobs and for good. They are on disk when this returns.

        A subject that has already spent more than its new cap is refused from now on.

        Parameters
        ----------
        caps
            The cap of each subject over all time, or its text. None gives a subject the ledger's cap again.

        Raises `BudgetError` for a cap that is malformed or of another kind and for a ledger whose cap renews and has no
        total, and `SchemaError` for a subject that is not text, bytes or a whole number.
        """
        ledger_cap = self.cap
        cap = for_all_time(ledger_cap)
        numbers = np.array([own_cap_numbers(own, cap) for own in caps.values()]).reshape(-1, 2)
        keys, _ = places.of_people(ledger_cap, list(caps), self.key)
        keys, last = np.unique(keys[::-1], axis=0, return_index=True)  # two spellings of a subject: the last one counts
        numbers = numbers[::-1][last]
        spends = spends_in(self.connection)
        with self.database.errors(), self.connection.begin():
            lock(self.connection)
            next_version(self.connection)
            rows, found = spends.read(self.connection, keys)
            expected = Expected(check_words(keys, rows.view(np.uint64)), ~found)
            rows = rows.copy()
            rows[:, CAP:] = numbers
            check_kinds(cap, rows)
            spends.write(self.connection, np.arange(len(keys)), keys, rows, expected)
            own = frozenset((str(own_cap(one, ledger_cap)), True) for one in caps.values() if one is not None)
            known = read_charged(self.connection)
            add_charged(self.connection, with_caps(known, own) - known)

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._open.close()


def lock(connection: Connection) -> int:
    """Exclude other writers until the end of a transaction that has read nothing yet; return the ledger's version."""
    connection.execute(update(VERSION).values(version=VERSION.c.version))
    return read_version(connection)


def next_version(connection: Connection) -> None:
    """Increase the version, after `lock`, so that others read again what they have in memory."""
    connection.execute(update(VERSION).values(version=VERSION.c.version + 1))


def read_version(connection: Connection) -> int:
    """Return the version of the ledger, which grows with each transaction that changes rows of subjects."""
    with transaction(connection):
        return int(connection.execute(select(VERSION.c.version)).scalar_one())


def read_caps(connection: Connection) -> list[tuple[str, float]]:
    """Return all caps that the ledger has had, oldest first: the text, and since when in seconds since 1970 (UTC)."""
    rows = connection.execute(select(CAPS.c.cap, CAPS.c.since).order_by(CAPS.c.number)).all()
    return [(row.cap, row.since) for row in rows]


def check_cap(connection: Connection, cap: Cap, name: str) -> None:
    """Refuse a job that has another cap than the ledger.

    Parameters
    ----------
    name
        The ledger, for messages.

    Raises `StoreMismatchError`.
    """
    found, _ = read_caps(connection)[-1]
    if parse_cap(found) != cap:
        raise StoreMismatchError(
            f"{name} has the cap {found}, and this job has {cap}; a ledger has one cap for all its jobs: change the"
            " job's, or that of the ledger by streamdp ledger set-cap"
        )


def _add_cap(connection: Connection, cap: Cap) -> None:
    connection.execute(insert(CAPS).values(cap=str(cap), since=time.time()))
