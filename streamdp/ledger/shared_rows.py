"""Rows of subjects that several jobs charge: admitted in memory, compared with the database when they are written.

Spends are sums, so those of two jobs add up in any order. A write takes the ledger's lock. If another process has
written since the rows were read, it reads the rows again and adds its own charges to them. Only if a subject would then
be over its cap is the write refused (`LedgerConflictError`): the job rolls back to its last commit and learns again,
with the rows as they are now. This cannot go on forever, because each refusal needs a new charge by another job of a
subject that is near its cap.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from sqlalchemy import Connection

from streamdp.data.records import Shard
from streamdp.errors import LedgerConflictError
from streamdp.ledger import filters
from streamdp.ledger.check_words import check_words
from streamdp.ledger.paging import PagedRows
from streamdp.ledger.periods import Cap
from streamdp.ledger.prepaid import Prepaid
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import CAP, NOBODY, RECORDS

Charges = tuple[np.ndarray, np.ndarray]
"""The subjects (n,) int64, as places in the rows in memory, and the terms (n, 4) of n charged records."""


class SharedRows(PagedRows):
    """See `paging.PagedRows`.

    Parameters
    ----------
    connection, errors, cap
        As for `PagedRows`.
    version
        Reads the version of the ledger, which grows with every write.
    prepaid
        Reads the balances of a shard.
    """

    def __init__(
        self,
        connection: Connection,
        errors: Callable[[], AbstractContextManager[None]],
        cap: Cap,
        version: Callable[[], int],
        prepaid: Callable[[Shard], Prepaid],
    ) -> None:
        super().__init__(connection, errors, cap, shared=True)
        self._read_version = version
        self._read_prepaid = prepaid
        self._version = -1  # of the ledger when the rows in memory were right
        self._prepaid: dict[Shard, Prepaid] = {}
        self._journal: dict[Shard, list[Charges]] = {}
        self._records: list[np.ndarray] = []

    def refresh(self, shard: Shard) -> None:
        """See `PagedRows.refresh`: read again what others have changed, unless charges are pending."""
        self.read_balances(shard)
        if not self._journal and (version := self._read_version()) != self._version:
            self.cache, self._version = RowCache(), version

    def read_balances(self, shard: Shard) -> None:
        """Read the balances of a shard, unless they are known."""
        if shard not in self._prepaid:
            self._prepaid[shard] = self._read_prepaid(shard)

    def admit(self, slots: np.ndarray, terms: np.ndarray, shard: Shard, earlier: np.ndarray) -> np.ndarray:
        """See `PagedRows.admit`. A record that is prepaid in a filter adds nothing to it."""
        cache, prepaid = self.cache, self._prepaid[shard]
        each = np.broadcast_to(terms, (slots.shape[1], terms.shape[1]))
        paid, admitted = np.zeros(slots.shape, dtype=np.bool_), np.zeros(len(each), dtype=np.bool_)
        by_one = np.any([prepaid.of(keys) for keys in (*cache.keys[slots], *earlier)], axis=0) & (slots[0] != NOBODY)
        by_one = np.isin(slots[-1], slots[-1, by_one])  # all records of a person with a balance, in their order
        others = ~by_one
        admitted[others] = filters.admit(
            cache, slots[:, others], None, terms if len(terms) == 1 else terms[others], self._caps
        )
        for i in np.flatnonzero(by_one).tolist():
            own = cache.keys[slots[:, i], None]
            found = [prepaid.find(keys, each[i]) for keys in (np.concatenate([earlier[:, i], own[0]]), *own[1:])]
            paid[:, i] = [key is not None for key in found]
            one = slice(i, i + 1)
            admitted[i] = paid[:, i].all() or filters.admit(cache, slots[:, one], paid[:, one], each[one], self._caps)
            if admitted[i]:
                for key in filter(None, found):
                    prepaid.use(key, each[i])
        charged = admitted & ~paid & (slots != NOBODY)
        for of_one, mine in zip(slots, charged, strict=True):
            if mine.any():
                self._journal.setdefault(shard, []).append((of_one[mine], each[mine]))
        self._records.append(each[charged[0]])
        return admitted

    def prepaid_periods(self, shard: Shard) -> list[int]:
        """See `PagedRows.prepaid_periods`."""
        return self._prepaid[shard].periods

    def balances(self, shard: Shard) -> Prepaid | None:
        """The balances of a shard. None if nothing was admitted from it since they were last forgotten."""
        return self._prepaid.get(shard)

    @property
    def journal(self) -> dict[Shard, Charges]:
        """The charges that are not written yet, by shard."""
        return {
            shard: (np.concatenate([slots for slots, _ in parts]), np.concatenate([terms for _, terms in parts]))
            for shard, parts in self._journal.items()
        }

    @property
    def records(self) -> np.ndarray:
        """The terms (n, 4) of the n records that were charged since the last write, each once."""
        return np.concatenate([np.empty((0, RECORDS)), *self._records])

    def write_at(self, connection: Connection, version: int, oldest: int) -> None:
        """Write the rows that have changed, inside the caller's transaction, which excludes other writers.

        Parameters
        ----------
        version
            The version of the ledger before this write.
        oldest
            See `PagedRows.write_pending`.

        Raises `LedgerConflictError` if a subject would be over its cap because of what others have written.
        """
        if version != self._version:
            self._add_to_others(connection)
        super().write_pending(connection, oldest)

    def _add_to_others(self, connection: Connection) -> None:
        """Replace the rows that have changed by those of the database with the pending charges added."""
        cache = self.cache
        changed = np.flatnonzero(cache.pending[: cache.n])
        if len(changed) == 0:
            return
        charges = np.zeros((cache.n, CAP))
        for slots, terms in self.journal.values():
            np.add.at(charges[:, :RECORDS], slots, terms)
            np.add.at(charges[:, RECORDS], slots, 1)
        keys = cache.keys[changed]
        fresh, found = self._spends.read(connection, keys)
        rows = fresh.copy()
        rows[:, :CAP] += charges[changed]
        if not filters.within(keys, rows, self._caps):
            raise LedgerConflictError(
                "another job or worker has spent from the same people at the same time, and both spends together are"
                " over a cap: roll back to the last commit and learn again"
            )
        cache.rows[changed] = rows
        cache.checks[changed] = check_words(keys, fresh.view(np.uint64))
        cache.absent[changed] = ~found

    def mark_written(self, before: int, after: int) -> None:
        """Note that the transaction of `write_at` is on disk.

        Parameters
        ----------
        before, after
            The version of the ledger before and after it.
        """
        self.mark_committed()
        if before != self._version:  # rows that this write did not touch may be old
            self.cache = RowCache()
        self._journal, self._records, self._version = {}, [], after
        for balances in self._prepaid.values():
            balances.changed = False

    def rollback(self) -> None:
        """See `PagedRows.rollback`. The next admissions read the balances again."""
        super().rollback()
        self._journal, self._records, self._prepaid, self._version = {}, [], {}, -1

    def forget(self, shard: Shard) -> None:
        """Read the balances of a shard again before its next admission."""
        self._prepaid.pop(shard, None)
