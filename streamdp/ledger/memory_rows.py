"""The rows of subjects in memory, and their admission: all of a ledger that ends with its process.

`paging.PagedRows` has a database behind them.
"""

import os
import secrets

import numpy as np

from streamdp.errors import StoreError
from streamdp.ledger.admission import admit_in_order
from streamdp.ledger.caps import cap_numbers
from streamdp.ledger.charged import CapHistory, Charged, with_caps
from streamdp.ledger.periods import Cap, budgets_of
from streamdp.ledger.row_cache import RowCache, nothing
from streamdp.ledger.rows import CAP


class MemoryRows:
    """The rows of subjects under a `cap`, in `cache`. A subject takes about 100 bytes.

    `mark` identifies the ledger, `process` is the one that opened it, 0 after `close`, and `charged` are the caps under
    which it charged before; the attribute, also those under which it may have charged since.
    """

    def __init__(self, cap: Cap, mark: str | None = None, charged: Charged = frozenset()) -> None:
        self.process = os.getpid()
        self._cap, self._limits = cap, budgets_of(cap)
        self._caps = [cap_numbers(limit) for limit in self._limits]
        self.cache, self.mark = RowCache(), mark or secrets.token_hex(16)
        self.charged = charged
        self._noted: Cap | None = None  # the cap that was noted last

    @property
    def history(self) -> CapHistory:
        """The caps under which the ledger charged, as far as they were read."""
        return CapHistory({self.mark: self.charged} if self.charged else {})

    def read_history(self) -> None:
        """Read under which caps other workers and jobs have charged since."""

    def charge(self, cap: Cap, own: bool = False) -> None:
        """Note a cap under which something is charged; `own` if it is the cap of a single subject."""
        if own or cap is not self._noted:
            self.charged = with_caps(self.charged, frozenset([(str(cap), own)]))
            self._noted = None if own else cap

    def close(self) -> None:
        """Forget all rows, and read none any more."""
        self.cache, self.process = RowCache(), 0

    def check_process(self) -> None:
        """Raise `StoreError` after `close`, and in a fork of the process: it would grant each cap once more."""
        if not self.process:
            raise StoreError("this ledger is closed")
        if os.getpid() != self.process:
            raise StoreError("this ledger belongs to the process that opened it, and this is a fork of it")

    def refresh(self) -> None:
        """Prepare for `find`."""
        self.check_process()

    def admit(self, slots: np.ndarray, terms: np.ndarray) -> np.ndarray:
        """Admit records in order and return (n,) bool; a refused record adds nothing.

        `slots` (f, n) int64, from `find`, is the row of each record in each filter of the cap; `terms` is (n, 4) or (1,
        4), from `spend_numbers`. An exception at any moment leaves no record admitted, because the mask is not
        returned. It may leave rows that were charged for records that are not learned. This weakens no guarantee.
        """
        cache = self.cache
        admitted = admit_in_order(np.ascontiguousarray(slots), terms, cache.rows, cache.pending, self._caps)
        if self._noted is not self._cap and admitted.any():
            self.charge(self._cap)
        return admitted

    def replace(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """Bring the rows at `slots` (n,), which differ, to `rows` (n, ROW)."""
        self.cache.rows[slots], self.cache.pending[slots] = rows, True

    def set_cap(self, slot: int, numbers: tuple[float, float]) -> None:
        """Give the subject at the place `slot` an own cap, these two `numbers` of its row."""
        self.cache.rows[slot, CAP:], self.cache.pending[slot] = numbers, True

    def holds(self, cache: RowCache) -> bool:
        """Whether places in a `cache` that `find` returned are still those of the same subjects."""
        return cache is self.cache and os.getpid() == self.process

    def find(self, keys: np.ndarray, present: np.ndarray, cache: RowCache | None = None) -> np.ndarray:
        """Return the places (n,) int64 of subjects in a cache, and read the rows that are not there yet.

        `keys` and `present` are those of `hash_people`; None: `self.cache`. Raises `StoreError` if the database cannot
        be read, and `StoreMismatchError` if a subject's own cap is of another kind than the ledger's. Then nothing has
        changed.
        """
        return (cache or self.cache).find(keys, present, self._read)

    def _read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `row_cache.Read`."""
        return nothing(keys)

    @property
    def n_subjects(self) -> int:
        """The number of subjects that have spent something or have their own cap."""
        return int(np.count_nonzero(self.cache.pending))
