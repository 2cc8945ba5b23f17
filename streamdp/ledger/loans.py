"""Rows of subjects that go to other machines for one batch of records, and come back with what was admitted there.

Only the ledger that exports the rows commits. A loan holds hashes under a key of its own, so that neither the
subject key nor a subject leaves the process of the ledger. What comes back is checked before it changes a row: every
subject was lent, its spends did not fall, its own cap is the same, and its row is within the cap.
"""

from collections.abc import Sequence

import numpy as np

from streamdp.data.subjects import hash_people
from streamdp.errors import StoreError
from streamdp.ledger.admission import all_fit
from streamdp.ledger.caps import cap_numbers
from streamdp.ledger.charged import Charged
from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.periods import Cap
from streamdp.ledger.rows import CAP
from streamdp.privacy.guarantees import Budget


class Loan:
    """The rows of some subjects. `Ledger.export_rows` makes it; a rollback of the ledger ends it.

    `slots` (n,) int64 are the places of n `people`, of whom several may be the same. The attribute
    `keys` (n, 2) uint64 has their hashes under `key`, 32 to 64 secret bytes of this loan. `mark` and `charged` are
    those of the ledger: the charges of the batch are under its caps, too.
    """

    def __init__(
        self, rows: MemoryRows, slots: np.ndarray, people: Sequence[bytes | None], key: bytes, cap: Budget
    ) -> None:
        self._cache = rows.cache
        self._rows = rows
        self._cap, self.mark, self.charged = cap, rows.mark, rows.charged
        self.keys, _ = hash_people(people, key)
        names = _names(self.keys)
        self._order = np.argsort(names, kind="stable")
        self._names, self._slots = names[self._order], slots[self._order]

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return keys (m, 2) and rows (m, ROW) of the subjects that are `chosen`, (n,) bool. A person is in it once."""
        mine = np.flatnonzero(chosen[self._order])
        _, first = np.unique(self._names[mine], return_index=True)
        found = mine[first]
        return self.keys[self._order[found]], self._cache.rows[self._slots[found]]

    def settle(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Take over the rows (m, ROW) that have changed; the next commit of the ledger writes them.

        `keys` (m, 2) uint64 are hashes under the key of the loan. Raises `StoreError`, and changes nothing, if the rows
        were not lent so, or if one is over its cap.
        """
        names = _names(keys)
        places = np.searchsorted(self._names, names)
        known = places < len(self._names)
        known[known] = self._names[places[known]] == names[known]
        if self._rows.cache is not self._cache or not known.all() or len(np.unique(names)) < len(names):
            raise StoreError("spends came back that were not lent: roll back to the last commit and learn again")
        slots = self._slots[places]
        before = self._cache.rows[slots]
        grown = np.all(rows[:, :CAP] >= before[:, :CAP]) and np.array_equal(rows[:, CAP:], before[:, CAP:])
        if not grown or not all_fit(rows, *cap_numbers(self._cap)):
            raise StoreError("spends came back that are over a cap or less than before: learn again")
        self._rows.replace(slots, rows)
        if len(rows):
            self._rows.charge(self._cap)


class CarriedRows(MemoryRows):
    """The keys (n, 2) and rows (n, ROW) that were lent, and no others, by the ledger with `mark` and `charged`."""

    def __init__(self, cap: Cap, keys: np.ndarray, rows: np.ndarray, mark: str, charged: Charged) -> None:
        super().__init__(cap, mark, charged)
        self.cache.find(keys, np.ones(len(keys), dtype=np.bool_), lambda _: (rows, np.zeros(len(rows), dtype=np.bool_)))

    def _read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Raise `StoreError` for subjects that were not lent: their spends are not known here."""
        raise StoreError(
            "a record came of a subject that was not among the records when they were first read: the source gives"
            " other records when it is read again; write the DataFrame to files first"
        )

    def changed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys (m, 2) and rows (m, ROW) that have changed."""
        places = np.flatnonzero(self.cache.pending[: self.cache.n])
        return self.cache.keys[places], self.cache.rows[places]


def _names(keys: np.ndarray) -> np.ndarray:
    """Hashes as (n,) values that can be sorted."""
    return np.ascontiguousarray(keys).view([("", np.uint64), ("", np.uint64)]).reshape(-1)
