"""Charges of a shard that no committed state has used: they pay for records of the same subjects later.

Claim: over all attempts, the sums that were charged for a subject are at least those of the records that something
visible was learned from.

Proof: each attempt starts at the last commit of its shard. Its charges are on disk before its state is committed, and
only a committed state leaves memory. If the attempt ends without a commit, nothing that its charges paid for was shown,
so they are a balance from which the next attempts may pay for records of the same subject. `use` takes what it pays off
the balance. So charges are always at least what committed states have used, and the balance. If an attempt commits
before it has come as far as the one before, the rest of the balance remains.

With a cap that renews, the balances are of subjects in periods and over all time, and the same holds for each row. A
record without a time of its own that is learned again in a later period is paid from the period in which it was charged
first: that one is its period. Only an admitted record uses balances: one whose period is full leaves the balance of its
subject's total to the later record that was charged there. So an attempt that reads the same records, each of the same
amount, admits what the attempt before it has charged.

No positions are needed: the next attempt may read the records in other blocks and commit at other places, and records
for which no balance is left are charged. A decision by position would be wrong if the source had changed: it would
admit a subject that was never charged.
"""

from __future__ import annotations

import numpy as np

from streamdp.ledger import page_codec
from streamdp.ledger.admission import TOLERANCE
from streamdp.ledger.rows import CAP, RECORDS, ROW
from streamdp.ledger.subject_key import period_of


class Prepaid:
    """The balances of subjects.

    Parameters
    ----------
    packed
        What `add_charges` or `pack` returned; empty for no balance.
    oldest
        With a cap that renews, the oldest period in which a record may still be admitted: balances of older ones are
        dropped. None for another cap.

    Attributes
    ----------
    changed
        Whether the ledger may have other remaining balances on disk.
    periods
        With a cap that renews, the periods of the balances.

    Raises `StoreDamagedError` if the check fails.
    """

    def __init__(self, packed: bytes, oldest: int | None = None) -> None:
        keys, rows = _unpack(packed)
        self.changed, self.periods = len(keys) > 0, []
        if oldest is not None:
            found = period_of(keys)
            kept = (found == 0) | (found >= oldest)
            keys, rows, self.periods = keys[kept], rows[kept], np.unique(found[kept & (found > 0)]).tolist()
        self._left = {key.tobytes(): row[:CAP].copy() for key, row in zip(keys, rows, strict=True)}

    periods: list[int]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Return which subjects have a balance, (n,) bool.

        Parameters
        ----------
        keys
            (n, 2) uint64, the hashes of the subjects.
        """
        if not self._left:
            return np.zeros(len(keys), dtype=np.bool_)
        return np.array([key.tobytes() in self._left for key in keys], dtype=np.bool_)

    def find(self, keys: np.ndarray, term: np.ndarray) -> bytes | None:
        """Return the first of some subjects whose balance pays for a record; None if there is none.

        Parameters
        ----------
        keys
            (n, 2) uint64, the hashes of the subjects.
        term
            (4,), what the record adds to the four sums of a `Spend`.
        """
        for key in map(np.ndarray.tobytes, keys):
            left = self._left.get(key)
            if left is not None and left[RECORDS] >= 1 and np.all(term <= left[:RECORDS] * (1 + TOLERANCE)):
                return key
        return None

    def use(self, key: bytes, term: np.ndarray) -> None:
        """Take what an admitted record adds off a balance that `find` has returned.

        Parameters
        ----------
        key
            The subject.
        term
            As for `find`.
        """
        left, self.changed = self._left[key], True
        finite = np.isfinite(term)  # an infinite sum stays so: each record of the subject adds infinity to it
        left[:RECORDS][finite] -= term[finite]
        left[RECORDS] -= 1
        if left[RECORDS] == 0:
            del self._left[key]

    def pack(self) -> bytes:
        """Return the balances that remain; empty for none."""
        if not self._left:
            return b""
        keys = np.frombuffer(b"".join(self._left), dtype=np.uint64).reshape(-1, 2)
        rows = np.zeros((len(keys), ROW))
        rows[:, :CAP] = np.maximum(0.0, list(self._left.values()))
        return page_codec.pack(0, keys, rows)


def add_charges(packed: bytes, keys: np.ndarray, terms: np.ndarray) -> bytes:
    """Return packed balances with some charges added.

    Parameters
    ----------
    packed
        The balances before; empty for none.
    keys
        (n, 2) uint64, the hash of the subject of each record that was charged.
    terms
        (n, 4), what each record added to the four sums of a `Spend`.
    """
    before, balances = _unpack(packed)
    charges = np.zeros((len(keys), ROW))
    charges[:, :RECORDS], charges[:, RECORDS] = terms, 1
    every = np.concatenate([before, keys])
    unique, place = np.unique(every, axis=0, return_inverse=True)
    rows = np.zeros((len(unique), ROW))
    np.add.at(rows, place.reshape(-1), np.concatenate([balances, charges]))
    return page_codec.pack(0, unique, rows) if len(unique) else b""


def _unpack(packed: bytes) -> tuple[np.ndarray, np.ndarray]:
    return page_codec.unpack([0], [packed]) if packed else (np.empty((0, 2), dtype=np.uint64), np.empty((0, ROW)))
