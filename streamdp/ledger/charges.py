"""Charges that are not committed yet, by the shard whose progress they belong to.

A worker learns several shards over one ledger, and commits a shard as of its last boundary. The transaction of that
commit holds the charges of this shard up to that boundary, and no others: a record whose shard is read again after a
crash has not been charged. What no shard owns belongs to the next commit, whichever it is.
"""

from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple

import numpy as np

from streamdp.ledger.rows import CAP, NOBODY, RECORDS

Owner = Hashable
"""A shard; None for charges that belong to the next commit."""


class Charge(NamedTuple):
    """What some records have added to rows."""

    places: np.ndarray  # (n,) int64, the rows; one may come several times
    sums: np.ndarray  # (n, CAP) or (1, CAP): what each adds to the sums of its row


class Charges:
    """The pending charges of a ledger, and the rows of subjects whose own cap has changed.

    `add` and `close` change it; all else returns new objects, so that an interruption leaves it whole.
    """

    def __init__(self) -> None:
        self._of: dict[Owner, list[Charge]] = {}
        self._closed: dict[Owner, int] = {}  # how many of an owner's come before its last boundary
        self.caps = np.empty(0, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._of) or len(self.caps) > 0

    def add(self, owner: Owner, slots: np.ndarray, terms: np.ndarray) -> None:
        """Note admitted records: `slots` (f, n) are their rows in f filters, and `terms` (n, 4) or (1, 4) are added."""
        there = slots != NOBODY
        sums = np.ones((len(terms), CAP))
        sums[:, :RECORDS] = terms
        self.note(owner, slots[there], sums if len(sums) == 1 else np.broadcast_to(sums, (*slots.shape, CAP))[there])

    def note(self, owner: Owner, places: np.ndarray, sums: np.ndarray) -> None:
        """Note the `sums` (n, CAP) or (1, CAP) by which the rows at `places` (n,) have grown; one may come again."""
        if len(places):
            self._of.setdefault(owner, []).append(Charge(places, sums))

    def close(self, owner: Owner) -> None:
        """Note a boundary: the next commit of the `owner` writes what it was charged until now."""
        if owner in self._of:
            self._closed[owner] = len(self._of[owner])

    def due(self, owners: Collection[Owner] | None) -> "tuple[list[Charge], Charges]":
        """Return the charges that a commit of `owners` writes, None for all, and what is pending after it."""
        found, rest = [], Charges()
        for owner, charges in self._of.items():
            n = len(charges) if owners is None or owner is None else self._closed.get(owner, 0) * (owner in owners)
            found += charges[:n]
            if charges[n:]:
                rest._of[owner] = charges[n:]
                rest._closed[owner] = self._closed.get(owner, 0) - n
        return found, rest

    def without(self, owners: Collection[Owner]) -> "Charges":
        """Return the charges of all other owners; this object, if `owners` have none."""
        if self._of.keys().isdisjoint(owners):
            return self
        rest = Charges()
        rest._of = {owner: charges for owner, charges in self._of.items() if owner not in owners}
        rest._closed, rest.caps = {owner: self._closed.get(owner, 0) for owner in rest._of}, self.caps
        return rest

    def moved(self, slots: np.ndarray) -> "Charges":
        """Return the same charges for rows that are at other places now: `slots` has the new place of each row."""
        moved = Charges()
        moved._of = {
            owner: [Charge(slots[places], sums) for places, sums in charges] for owner, charges in self._of.items()
        }
        moved._closed, moved.caps = dict(self._closed), slots[self.caps]
        return moved

    @property
    def every(self) -> list[Charge]:
        """All of them."""
        return [charge for charges in self._of.values() for charge in charges]


def places_of(charges: Iterable[Charge], size: int, caps: np.ndarray | None = None) -> np.ndarray:
    """Return the rows that are charged, or are among `caps` (k,), ascending; `size` is the number of all rows."""
    marked = np.zeros(size, dtype=np.bool_)
    marked[[] if caps is None else caps] = True
    for places, _ in charges:
        marked[places] = True
    return np.flatnonzero(marked)


def added(charges: Iterable[Charge], places: np.ndarray, size: int) -> np.ndarray:
    """Return what `charges` add to the rows at `places` (m,), which differ, (m, CAP); of `size` rows in all."""
    at, total = np.full(size, len(places)), np.zeros((len(places) + 1, CAP))
    at[places] = np.arange(len(places))
    for charged, sums in charges:
        np.add.at(total, at[charged], sums)
    return total[:-1]
