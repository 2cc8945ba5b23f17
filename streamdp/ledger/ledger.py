"""What each subject has spent, and a cap on it: a record is admitted, or refused before anything is learned.

`Ledger` decides, over rows in memory. The ledger of a `Store` is that of its database, for all jobs there, so that
spends, state and position are committed together (`stored`); another ledger ends with its process.
"""

import secrets
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np

from streamdp.data.subjects import Dated, Subject, hash_people, hash_start, subjects_bytes
from streamdp.errors import BudgetError, NotAvailableError, SchemaError
from streamdp.ledger.caps import (
    cap_numbers,
    cap_of_numbers,
    check_counts,
    own_cap_numbers,
    shared_numbers,
    spend_numbers,
)
from streamdp.ledger.charged import CapHistory
from streamdp.ledger.loans import Loan
from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.periods import Cap, Moments, RenewingCap, budgets_of, for_all_time, own_cap, parse_cap
from streamdp.ledger.rows import CAP, NOBODY
from streamdp.ledger.subject_gate import SubjectGate
from streamdp.ledger.subject_key import KEY_BYTES
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.release import JOINED, REFUSED, Prepared, Release


class Ledger(AbstractContextManager["Ledger"]):
    """The spends of every subject under a cap: one cap for all, or a subject's own (`set_cap`).

    The cap bounds the sums of a `Spend` over the admitted records of a subject; a cap that renews, such as
    `eps=8 per 30 days`, those over its records in each period (`periods` has the grammar and the promise). A record is
    in the period of its own time if its subject is `Dated`, and else in that of the moment. A record whose time is too
    late or too far ahead is refused.

    * `PureDP(E)`: epsilon <= E. Only PureDP spends.
    * `GaussianDP(M)`: mu_squared + pure_mu_squared <= M^2. PureDP spends count as the GDP that they imply
      (`GaussianDP.from_pure`). ApproxDP spends raise, because (epsilon, delta) implies no GDP.
    * `ApproxDP(E, D)`: epsilon <= E and delta <= D for PureDP and ApproxDP spends; gdp_delta(sqrt(mu_squared), E) <= D
      for GaussianDP spends. The first spend of a subject decides which of the two holds, and a spend of the other kind
      is refused, because the mix would be no filter. `GaussianDP.from_approx(cap)` promises the same, and counts PureDP
      and GaussianDP spends together.

    Each comparison has a relative slack of 1e-9, because sums of floats are rounded. A record without a subject (None)
    is always admitted. Then the promise holds per record and not per person.

    Assumption: what a record may spend is public, so it must not depend on the values of its subject's records. It may
    depend on everything that was released before (fully adaptive composition), because each cap is a privacy filter for
    each subject (`caps` has the proofs).

    Subjects are stored as keyed hashes only (see `subject_key`). Of caps, those are stored under which something was
    charged, so that a statement names the largest one (see `charged`).

    `copy` and `deepcopy` (River's `clone`) return the same ledger, so that clones share the cap. Pickling raises
    `NotAvailableError`, and a fork of the process cannot use the ledger. Threads may share it: `lock` is held
    while spends change.

    - `cap`: a cap or its text, such as `"eps=3"` or `"eps=8 per 30 days, total eps=40"`.

    It ends with its process: its rows are in memory, about 100 bytes for each subject. For spends that are kept, open a
    `Store` with a cap, give its `ledger` to models, and let `Store.commit` write the spends with their states.

    Its attributes:

    - `of_database`: whether this is the ledger of a database of jobs (`Store`), so that the cap holds over all of them.
    - `moments`: the clock by which a cap renews.

    Raises `BudgetError` for a malformed cap.

    >>> from streamdp.privacy.guarantees import PureDP
    >>> ledger = Ledger("eps=3")
    >>> [ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(2)), ledger.admit("ann", PureDP(1))]
    [True, False, True]
    >>> ledger.spent("ann").guarantee()
    PureDP(epsilon=3.0)
    """

    of_database = False

    def __init__(self, cap: Cap | str) -> None:
        cap = parse_cap(cap)
        self._begin(cap, secrets.token_bytes(KEY_BYTES), MemoryRows(cap))

    @classmethod
    def over(cls, rows: Any, cap: Cap, key: bytes) -> Self:
        """Return the ledger over `rows` of subjects, which are those of the `cap`, with the subject key `key`."""
        ledger = cls.__new__(cls)
        cls._begin(ledger, cap, key, rows)
        return ledger

    def _begin(self, cap: Cap, key: bytes, rows: MemoryRows) -> None:
        self.cap = cap
        self._key = key
        self._rows = rows
        self.moments = Moments(cap)
        self._filters = budgets_of(cap)
        self._last: tuple[Budget | None, np.ndarray] = (
            None,
            np.empty(0),
        )  # the last spend of all records of a call, as `_terms`
        self.lock = threading.RLock()
        self.n_refused = 0

    def set_cap(self, subject: Subject, cap: Budget | str | None) -> None:
        """Give a `subject` its own cap. The next commit of a store writes it, with the spends.

        `cap` is of the same kind as the ledger's, or its text; if the ledger's renews, it is the subject's total. None
        gives the subject the ledger's cap again. A subject that has spent more is refused from now on.

        Raises `BudgetError` for a malformed cap, one of another kind, and for a ledger whose cap renews and has no
        total; and the other errors of `admit_many`.
        """
        numbers = own_cap_numbers(cap, for_all_time(self.cap))
        with self.lock:
            self._rows.refresh()
            slot = self._slot(subject)
            if cap is not None:  # first: after an exception between these lines, a statement names no smaller cap
                self._rows.charge(own_cap(cap, self.cap), own=True)
            self._rows.set_cap(slot, numbers)

    def cap_of(self, subject: Subject) -> Budget:
        """Return the cap that holds for a `subject`, over all time.

        Raises `BudgetError` for a ledger whose cap renews and has no total.
        """
        cap = for_all_time(self.cap)
        most, most_delta = self._row(subject)[CAP:]
        return cap_of_numbers(most, most_delta) if most else cap

    def admit(self, subject: Subject | None, budget: Budget) -> bool:
        """Return whether a `subject` (None: a record without one) may spend a `budget`. If so, it is spent.

        See `admit_many`.
        """
        return bool(self.admit_many([subject], budget)[0])

    def admit_many(
        self, subjects: Sequence[Subject | None], budget: Budget, amounts: np.ndarray | None = None
    ) -> np.ndarray:
        """Admit records in order and return (n,) bool. A refused record spends nothing; a later smaller one may fit.

        `subjects` are those of n records, None for a record without one. `amounts` (n,) float64 is the epsilon or mu of
        each record, of the kind of `budget` and with its delta. A record without one (NaN, or None for all) spends the
        budget.

        Raises `BudgetError` for a kind that the cap cannot count and for amounts that are not positive and finite,
        `SchemaError` for a subject that is not text, bytes or a whole number, and `StoreError` if the database cannot
        be read. Then nothing was spent.
        """
        if not isinstance(budget, Budget):
            raise BudgetError(f"expected a budget, got {type(budget).__name__}")
        with self.lock:
            found: np.ndarray = self.join(budget, self.prepare(subjects), amounts) == JOINED
        return found

    def join(self, release: Release | Budget, found: Prepared, amounts: np.ndarray | None = None) -> np.ndarray:
        """Let n records that were `found` join a `release`, in order; return what became of each, (n,).

        See `Release.join`. A budget: each record is a release of its own, which spends it, or one of `amounts`; see
        `admit_many`. Each record is charged what it owes; one whose time the cap does not allow is refused. Raises the
        errors of `admit_many`.
        """
        spend = release if isinstance(release, Budget) else release.spend
        with self.lock:
            known, terms = self._last
            if amounts is not None or spend is not known:
                terms = self._terms(spend, amounts, len(found.people))
            if not self._rows.holds(found.cache):  # another thread has admitted or committed in between
                found = self.prepare(found.people)
            at: Any = slice(None)
            if found.timely is not None:
                at = np.flatnonzero(found.timely)
                terms = terms if len(terms) == 1 else terms[at]
            mine = found if found.timely is None else found[at]
            outcome = np.full(len(found.people), REFUSED, dtype=np.uint8)
            if isinstance(release, Budget):
                outcome[at] = np.where(self._rows.admit(mine.slots, terms), JOINED, REFUSED)
            else:
                periods = None if mine.periods is None else mine.periods.tolist()
                outcome[at] = release.join(mine.people, periods, partial(self._charge, spend, terms, mine.slots))
            self.n_refused += int(np.count_nonzero(outcome == REFUSED))
        return outcome

    def _terms(self, spend: Budget, amounts: np.ndarray | None, n: int) -> np.ndarray:
        """What n records add to the sums of their rows."""
        for cap in self._filters:
            check_counts(cap, spend)
        terms = spend_numbers(spend, amounts, n)
        if amounts is None:
            self._last = spend, terms
        return terms

    def _charge(
        self,
        spend: Budget,
        terms: np.ndarray,
        slots: np.ndarray,
        places: list[int],
        numbers: list[int],
        totals: list[bool],
    ) -> list[bool]:
        """See `Charge`, for records with these rows (f, n) in the filters of the cap, and the terms of a first one."""
        mine = slots[:, places]
        if len(mine) > 1:
            mine[1, ~np.array(totals, dtype=bool)] = NOBODY
        if max(numbers) > 1:
            terms = shared_numbers(spend, np.array(numbers))
        return self._rows.admit(mine, terms).tolist()

    @property
    def has_gates(self) -> bool:
        """Whether `gate` may be asked: no database has more rows, and the cap does not renew."""
        return type(self._rows) is MemoryRows and not isinstance(self.cap, RenewingCap)

    def gate(self, spend: Budget, release: Release | None) -> SubjectGate:
        """Return what admits single records that `spend` this, into an open `release` or each by itself."""
        terms, cap = self._terms(spend, None, 1)[0], cap_numbers(self._filters[0])
        return SubjectGate(self._rows, self.lock, hash_start(self._key), terms, cap, release)

    def prepare(self, subjects: Sequence[Subject | None]) -> Prepared:
        """Read the spends of n `subjects`, so that `join` cannot fail because of the database; return what it takes.

        Their records may join in several parts. Raises the errors of `admit_many`.
        """
        with self.lock:
            self._rows.refresh()
            people = subjects_bytes(subjects)
            if not isinstance(self.cap, RenewingCap):
                slots = self._rows.find(*hash_people(people, self._key))[None]
                return Prepared(people, self._rows.cache, slots)
            moment = self.moments.now()
            times = np.array([one.time if isinstance(one, Dated) else moment for one in people], dtype=np.float64)
            timely = self.cap.timely(times, moment)
            periods = self.cap.codes(np.where(timely, times, 0.0))
            of_filters = (periods, np.zeros_like(periods))[: len(self._filters)]
            keys, present = zip(*(hash_people(people, self._key, codes) for codes in of_filters), strict=True)
            slots = self._rows.find(np.concatenate(keys), np.concatenate(present)).reshape(len(of_filters), -1)
            return Prepared(people, self._rows.cache, slots, timely, periods)

    def export_rows(self, subjects: Sequence[Subject], key: bytes) -> Loan:
        """Return the rows of `subjects`, with which another process admits their records (see `loans`).

        `key`: 32 to 64 secret bytes for the hashes of the loan; not the subject key.

        Raises `NotAvailableError` for a cap that renews; the errors of `admit_many`.
        """
        if isinstance(self.cap, RenewingCap):
            raise NotAvailableError("only spends under a cap that does not renew can be lent")
        with self.lock:
            found = self.prepare(subjects)
            return Loan(self._rows, found.slots[0], found.people, key, self.cap)

    @property
    def history(self) -> CapHistory:
        """The caps under which anything was charged: all before it was opened, and by this object since."""
        return self._rows.history

    def read_history(self) -> None:
        """Read for `history` under which caps other workers and jobs have charged since. Raises as `commit`."""
        with self.lock:
            self._rows.read_history()

    @property
    def n_subjects(self) -> int:
        """How many subjects have spent something or have their own cap; with a cap that renews, how many rows."""
        return self._rows.n_subjects

    def spent(self, subject: Subject, time: float | None = None) -> Spend:
        """Return what a `subject` has spent, including admissions that are not committed yet.

        With a cap that renews, `time` is in the period in question, in seconds since 1970 (UTC). None: over all time.

        Raises `BudgetError` without a time, for a ledger whose cap renews and has no total.
        """
        epsilon, delta, mu_squared, pure_mu_squared, records, *_ = self._row(subject, time)
        return Spend(epsilon, delta, mu_squared, pure_mu_squared, int(records))

    def _row(self, subject: Subject, time: float | None = None) -> list[float]:
        with self.lock:
            self._rows.refresh()
            slot = self._slot(subject, time)  # first, because it may replace the arrays
            row: list[float] = self._rows.cache.rows[slot].tolist()
        return row

    def _slot(self, subject: Subject, time: float | None = None) -> int:
        if subject is None:
            raise SchemaError("None has no spends and no cap; a subject must be str, bytes or a whole number")
        periods = None
        if isinstance(self.cap, RenewingCap):
            if time is None:
                for_all_time(self.cap)  # raises if there is no total
            periods = np.zeros(1, dtype=np.int64) if time is None else self.cap.codes(np.array([time]))
        return int(self._rows.find(*hash_people(subjects_bytes([subject]), self._key, periods))[0])

    def close(self) -> None:
        """End it: it admits nothing any more. Idempotent. The ledger of a store ends with the store."""
        if not self.of_database:
            self._rows.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __copy__(self) -> "Ledger":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "Ledger":
        return self

    def __reduce__(self) -> NoReturn:
        raise NotAvailableError(
            "a ledger cannot be pickled: two copies would each grant the cap; pickle with ledger=None"
        )

    def __repr__(self) -> str:
        return f"Ledger({str(self.cap)!r})"
