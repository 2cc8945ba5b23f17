"""A release: one sum that is published with one noise, and who is in it.

A learner that sums (a batch, a window, held-out answers, statistics beside a model) lets records join a release before
they are added, and closes it when its noise is drawn. What a record owes follows from the law of the release and from
how many records of its person are in it already.

* The law is that of what a record spends. k records of a person in one release are not k mechanisms but one with k
  times the sensitivity (group privacy): k epsilon for a pure epsilon, so each of them owes epsilon. It is k mu for
  Gaussian noise, where the k-th record would owe (2 k - 1) mu^2, and more than k delta for (epsilon, delta): there a
  further record is left out. It owes nothing.
* If the release protects all records of a person together, it takes up to `most` of them, and they owe once.
* Under a cap that renews, a record owes to its own period. If records of a person owe once, they owe once to each
  period in which they lie, and once to the total.

Claim: for each person and each period, what was charged for a release is the guarantee that it gives to the person's
records of that period; so it is over all time. Proof: docs/proofs/caps.md.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamdp.privacy.guarantees import Budget, PureDP

JOINED, REFUSED, LEFT_OUT = range(3)
"""What became of a record: it is in the release; its person's cap, or its time, did not allow it; or the person has all
records in the release that it may have."""

READS = 2
"""A batch ends at the latest when it has read so many times as many records as it may take: it does not depend on who
comes whether a stream goes on."""

Charge = Callable[[list[int], list[int], list[bool]], Sequence[bool]]
"""Charges records, by their places: which record of its person each is, from 1, and whether it owes to the total, too.
Returns which of them fit their caps."""


@dataclass(frozen=True)
class Prepared:
    """Records that come to a release, in order. A slice or an array of places has a part of them.

    `people` are those of the records, each None a person of its own. `slots` (f, n) are their rows of a `cache` in each
    filter of a cap. If it renews, `timely` (n,) says which have a time that it allows, and `periods` (n,) are theirs.
    """

    people: Sequence[bytes | None]
    cache: Any = None
    slots: Any = None
    timely: np.ndarray | None = None
    periods: np.ndarray | None = None

    def __getitem__(self, part: slice | np.ndarray) -> "Prepared":
        people = self.people[part] if isinstance(part, slice) else [self.people[i] for i in part.tolist()]
        slots = None if self.slots is None else self.slots[:, part]
        if self.timely is None or self.periods is None:
            return Prepared(people, self.cache, slots)
        return Prepared(people, self.cache, slots, self.timely[part], self.periods[part])


class SideSum(Protocol):
    """A sum with noise of its own, of records that are in a release."""

    def close(self) -> None:
        """Release it, and begin the next one."""

    def discard(self) -> None:
        """Forget what it adds up to."""


class Release:
    """The open sum of a learner: what each record of it `spend`s, who is in it, and how many records it has.

    `most`: how many records of a person it takes, which it protects together; None: it protects single records.
    """

    def __init__(self, spend: Budget, most: int | None = None) -> None:
        self._together = most
        self.use(spend)
        self.records = np.zeros(2, dtype=np.int64)
        """(2,) the records that were added, and those that it has `passed`. Compiled loops count here."""
        self.sums: dict[str, SideSum] = {}
        """Further sums of its records, by name: they end with it, and what a record spends covers all."""
        self.close()

    def __deepcopy__(self, memo: dict[int, object]) -> "Release":
        """Return an open release without records: a copy of a learner holds the state of its last boundary."""
        new = memo[id(self)] = Release(self.spend, self._together)
        new.sums = copy.deepcopy(self.sums, memo)
        return new

    def __reduce__(self) -> "tuple[type[Release], tuple[Budget, int | None], dict[str, object]]":
        return Release, (self.spend, self._together), {"sums": self.sums}

    @property
    def taken(self) -> int:
        """Records that were added."""
        return int(self.records[0])

    @taken.setter
    def taken(self, records: int) -> None:
        self.records[0] = records

    @property
    def passed(self) -> int:
        """Records that it has read since the first one, and that are not in it."""
        return int(self.records[1])

    def use(self, spend: Budget) -> None:
        """Let each record `spend` another budget."""
        self.spend = spend
        self.most = self._together or (None if isinstance(spend, PureDP) else 1)
        """How many records of a person may be in it; None: any number, each of which owes."""

    def close(self) -> None:
        """End it: nobody is in it any more. The next record begins another release."""
        self.records[:] = 0
        self.people: dict[bytes, int] = {}
        """How many records each person has in it."""
        self.periods: set[tuple[bytes, int]] = set()
        """The people in it, each with the periods of a renewing cap in which its records lie; none with another cap."""

    def join(
        self, people: Sequence[bytes | None], periods: Sequence[int] | None = None, charge: Charge | None = None
    ) -> np.ndarray:
        """Let records of n `people` join, in order, each None a person of its own; return what became of each, (n,).

        `periods`: those of the records, if a cap renews. `charge`: None without a cap.
        """
        found = np.zeros(len(people), dtype=np.uint8)
        if people.count(None) == len(people):
            return found
        refused: set[tuple[bytes, int]] = set()
        left: Sequence[int] = range(len(people))
        while left:  # once, and once more for each period in which a person with several records was asked
            asked, numbers, totals, again = self._next(people, periods, left, found, refused)
            fit = charge(asked, numbers, totals) if asked and charge is not None else [True] * len(asked)
            for i, fits in zip(asked, fit, strict=True):
                person, period = people[i] or b"", 0 if periods is None else periods[i]
                if not fits:
                    found[i] = REFUSED
                    refused.add((person, period))
                    continue
                self.people[person] = self.people.get(person, 0) + 1
                if period:
                    self.periods.add((person, period))
            left = again
        added = self.records[0] > 0
        since = added | np.logical_or.accumulate(found == JOINED)
        self.records[1] = added * self.records[1] + np.count_nonzero(found * since)
        return found

    def _next(
        self,
        people: Sequence[bytes | None],
        periods: Sequence[int] | None,
        left: Sequence[int],
        found: np.ndarray,
        refused: set[tuple[bytes, int]],
    ) -> tuple[list[int], list[int], list[bool], list[int]]:
        """Of the places that are `left`, those to charge, as for `Charge`, and those to decide afterwards."""
        known, most = self.people, self.most
        asked: list[int] = []
        numbers: list[int] = []
        totals: list[bool] = []
        again: list[int] = []
        begun: dict[bytes, int] = {}
        for i in left:
            if (person := people[i]) is None:
                continue
            n, period = known.get(person, 0) + begun.get(person, 0), 0 if periods is None else periods[i]
            if most is not None and person in begun:
                again.append(i)
            elif most is not None and n >= most:
                found[i] = LEFT_OUT
            elif most is not None and n and (periods is None or (person, period) in self.periods):
                known[person] = n + 1  # the person owes for all of them, and was charged
            elif (person, period) in refused:
                found[i] = REFUSED
            else:
                begun[person] = begun.get(person, 0) + 1
                asked.append(i)
                numbers.append(n + 1 if most is None else 1)
                totals.append(most is None or not n)
        return asked, numbers, totals, again

    def said(self, capped: bool) -> list[str]:
        """What a statement says of a person's further records in one release; `capped`: whether there is a cap."""
        if self.most is None or self._together:
            return []
        if capped:
            return [
                "a further record of a person within a batch is left out, neither learned nor charged, because both "
                "would share its noise"
            ]
        return [
            "spends of a person's records add up so over different batches only: k in one batch share its noise and "
            "spend k mu, not sqrt(k) mu, and k epsilon only at more than k delta; with a ledger one of them is learned"
        ]
