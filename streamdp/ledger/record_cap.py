"""One cap on each record over all estimators of a model: the filter beneath `account(model, cap=...)`.

Assumptions. Between `open` and `close`, the estimators that hold a `RecordCap` are given one record only, as it is or
transformed, in the thread that opened it. No other call gives them this record, except under the same name. What else
the model does with the record is not in the claim: how often and by whom it is learned is public, as the number of
records of each estimator is.

Neighbours. Two streams that differ in one record, replaced by any other.

Claim. All that the estimators release is, together, as private for this record as the cap says.

Proof. Each time an estimator learns the record, fresh noise answers for it, and the estimator asks for that spend
before. So the estimators are mechanisms that answer for the record one after another, each chosen by what was released
before, and their spends are admitted by the privacy filter that `caps` proves for the records of one subject: epsilons
and deltas add up, mu^2 add up. A second copy of the record would share the noise of its batch, and the spends of copies
in one batch do not compose so. Estimators with batches refuse it by `token`; those that protect users count both copies
as one user, by the same token, if the record has no subject. Clones and copies hold the same `RecordCap`, so that a
wrapper gains nothing by copying. An estimator that is asked while no record is open raises, so that nothing is learned
without a cap; so does one in a fork of the process, which would spend the rest of the record's cap once more.

A share. With `shares`, a record that may spend less, spends at most this part of the cap each time. It is a constant,
so it depends on no record.
"""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any, NoReturn

import numpy as np

from streamdp.data.records import MOST_RECORDS, Subject
from streamdp.data.subjects import subject_bytes
from streamdp.errors import ConfigError, NotAvailableError, check_whole
from streamdp.ledger.admission import admit_in_order
from streamdp.ledger.caps import cap_numbers, check_counts, spend_numbers
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.rows import ROW
from streamdp.privacy.entropy import forks
from streamdp.privacy.guarantees import Budget, GaussianDP, amount, parse_budget, with_amount

_NAMELESS = np.zeros(1, dtype=np.int64)


class _Open(threading.local):
    """The open record of each thread: its token, its process, its name, and what it has spent, if it has no name."""

    token: bytes | None = None
    forks: int
    name: bytes | None = None
    row: np.ndarray


class RecordCap:
    """What each record may spend in all estimators that hold this object. Copies are the same object.

    Parameters
    ----------
    cap
        The cap, or its text.
    shares
        Into how many equal spends the cap is divided: epsilon by this number, mu by its root. None: spends stay as
        they are.

    Raises `BudgetError` for a malformed cap and `ConfigError` for malformed shares.
    """

    def __init__(self, cap: Budget | str, shares: int | None = None) -> None:
        self.cap = cap = parse_budget(cap)
        self._share = math.inf
        if shares is not None:
            check_whole("shares", shares, 1, MOST_RECORDS)
            self._share = amount(cap) / (math.sqrt(shares) if isinstance(cap, GaussianDP) else shares)
        self._numbers = cap_numbers(cap)
        self._ledger = Ledger(cap)  # of the records that have names
        self._tokens = itertools.count()
        self._open = _Open()

    def open(self, name: Subject | None) -> None:
        """Begin a record in this thread.

        Parameters
        ----------
        name
            The name of the record, by which it is known again: text, bytes or a whole number. None: it is never given
            again.

        Raises `SchemaError` for a malformed name.
        """
        here, known = self._open, subject_bytes(name)
        here.token = None
        here.name, here.row, here.forks = known, np.zeros((1, ROW)), forks()
        here.token = b"\0record %d" % next(self._tokens) if known is None else b"\0named " + known

    def close(self) -> None:
        """End the record of this thread."""
        self._open.token = None

    @property
    def token(self) -> bytes:
        """What tells the open record from all others, for estimators that note who is in a batch.

        Raises `ConfigError` if no record is open in this thread, and in a fork that was made while it was open.
        """
        here = self._open
        if here.token is None or here.forks != forks():
            raise ConfigError("this estimator is in an account with a cap: give its records to the account's learn_one")
        return here.token

    def scaled(self, budget: Budget | str | None, usual: Budget) -> Budget | str | None:
        """Return a budget of at most one share; the same if it is small enough or of another kind than the cap.

        Parameters
        ----------
        budget
            The record's own budget, or its text; None: it spends `usual`.
        usual
            What a record without a budget of its own spends.
        """
        spend = usual if budget is None else parse_budget(budget)
        alike = isinstance(spend, GaussianDP) == isinstance(self.cap, GaussianDP)
        return with_amount(spend, self._share) if alike and amount(spend) > self._share else budget

    def admit(self, budget: Budget) -> bool:
        """Return whether the open record may spend a budget. If so, the budget is spent.

        Raises `ConfigError` if no record is open in this thread, `BudgetError` for a kind that the cap cannot count.
        """
        here = self._open
        if self.token and here.name is not None:
            return self._ledger.admit(here.name, budget)
        check_counts(self.cap, budget)
        terms, changed = spend_numbers(budget, None, 1), np.zeros(1, dtype=bool)
        return bool(admit_in_order(_NAMELESS, terms, here.row, changed, *self._numbers)[0])

    def __copy__(self) -> RecordCap:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordCap:
        return self

    def __reduce__(self) -> NoReturn:
        raise NotAvailableError("an account with a cap cannot be pickled: two copies would each grant the cap")
