"""What estimators share that collect raw records by subject: their parameters, and how records are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.records import check_record
from streamdp.errors import ConfigError, SchemaError, check_whole, is_number
from streamdp.estimators.user.randomizer import MOST_ITEMS, sensitivity_of_average
from streamdp.estimators.user.target_units import TargetUnits
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget, parse_budget

if TYPE_CHECKING:
    from streamdp.data.records import Subject

ITEMS = 16
WINDOW = 10_000
"""Defaults of `items_per_user` and `window`."""

MOST_WINDOW = 2**31
"""The largest `window`."""


class UserRecords(TargetUnits):
    """Records by subject; a subclass defines `_gather`."""

    needs_subject = True
    method: Any
    items_per_user: int
    window: int
    spread: float | None
    _rng: Entropy | SeededEntropy

    def _set_up(self) -> None:
        check_whole("items_per_user", self.items_per_user, 1, MOST_ITEMS)
        check_whole("window", self.window, 1, MOST_WINDOW)
        if self.spread is not None and not (is_number(self.spread) and 1e-60 <= self.spread < math.inf):
            raise ConfigError(f"spread: expected a finite number of at least 1e-60, or None, got {self.spread!r}")
        self._rng = entropy(self.seed)
        super()._set_up()

    def _spread(self) -> float:
        """The root mean square distance of a user's average gradient from the mean, for plans."""
        usual = self._loss.bound / math.sqrt(self.items_per_user)  # of the average of independent records
        return min(self._loss.bound, usual if self.spread is None else self.spread)

    @property
    def _sensitivity(self) -> float:
        """The largest distance of two users' average gradients."""
        return sensitivity_of_average(self._loss, int(self.items_per_user))

    def learn_one(
        self, x: Mapping[Any, Any], y: Any, *, budget: Budget | str | None = None, subject: Subject | None = None
    ) -> None:
        """Take one record of a subject; a record without a subject is a user of its own.

        If the record completes a report or a window, it is made in this call; for a window that takes as long as its
        method does. A record is refused and counted if its `budget` allows less than the estimator spends, if its
        subject is over its cap, and if a window has as many records of the subject as it takes.

        Parameters
        ----------
        x, y
            The record, as for every estimator.
        budget
            What this record may spend at most; None: any budget.
        subject
            The user: text, bytes or a whole number. None is refused if there is a ledger.

        Raises `SchemaError` for a bad record or subject, `BudgetError` for a budget of another kind, and
        `TooFewUsersError` before the first record if a window cannot have the users that its method needs.
        """
        self._need_subjects((subject,))
        if budget is not None and not self._allowed(parse_budget(budget)):
            self.n_refused += 1
            return
        if self._looks > 0:
            self._compare(x)
        with self._rng.lock:
            target = self._encode_target(y)
            record = self._features or self._adopt(check_record(x))
            try:
                record.pack(x, target)
                _check_subjects([subject])
                self._gather(record.row, record.target, [subject])
            finally:
                try:
                    record.wipe()
                except BaseException:  # such as Ctrl-C at this very place
                    record.wipe()
                    raise

    def _learn_shared(
        self, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None] | None
    ) -> np.ndarray | None:
        people = [None] * len(X) if subjects is None else subjects
        _check_subjects(people)
        self._check_rows(X, y)
        return self._gather(X, y, people)

    def _gather(self, X: np.ndarray, y: np.ndarray, people: Sequence[Subject | None]) -> np.ndarray | None:
        """Take clean records; return the mask (n,) of those that were taken, or None for all."""
        raise NotImplementedError


def _check_subjects(people: Sequence[Subject | None]) -> None:
    kinds = set(map(type, people))
    if bool in kinds or not all(issubclass(kind, (str, bytes, int, np.integer, type(None))) for kind in kinds):
        raise SchemaError("subject: expected text, bytes or a whole number, or None for a user of its own")
