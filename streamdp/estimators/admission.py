"""Admission: what records may spend, which of them are learned, and what was spent.

A record is admitted by its budget and by the cap of its subject. Where records share one noise, it joins their
release, which knows who is in it and what a record owes (`privacy.release`). Its spend is counted before it is learned,
so that an exception at any moment leaves a state in which every spend is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.records import Subject
from streamdp.data.subjects import subjects_bytes
from streamdp.errors import BudgetError, ConfigError, PrivacyWarning, SchemaError
from streamdp.estimators.traps import warn_if_weak, warn_of_pipeline
from streamdp.learners.learner import Collector, Learner
from streamdp.ledger.charged import CapHistory
from streamdp.privacy.composition import widest
from streamdp.privacy.guarantees import FORMS, ApproxDP, Budget, amount, parse_budget, with_amount
from streamdp.privacy.release import JOINED, LEFT_OUT, REFUSED, Prepared

if TYPE_CHECKING:
    from streamdp.estimators.held_out_statistics import HeldOutStatistics
    from streamdp.ledger.ledger import Ledger

_CLONES = (
    "several clones of one private estimator learn: if they learn the same records, each counts its own spends only, "
    "and together they spend more. streamdp.account(model).statement() says what. For several classes, one "
    "LDPASGDClassifier(classes=[...]) spends once"
)


class Admission:
    """Budgets, caps and counts of one estimator. A copy has no clones."""

    ledger: Ledger | None = None
    budget: Budget  # what a record spends on what is learned
    spend: Budget  # and with its answer, in all
    _clones: list[int] | None = None
    """How many of the clones and the estimator itself learn, shared by them. None: it was not cloned."""

    def __init__(self) -> None:
        self.refused = 0  # records, for the cap of their subject or for their budget
        self.left = np.zeros(1, dtype=np.int64)
        """(1,) the records that are `left_out`. Compiled loops count here."""
        self.spent: tuple[Budget, ...] = ()  # the widest
        self.tainted = False  # whether something was learned without privacy, elsewhere or before
        self._history, self._charges = CapHistory({}), False  # the second: whether its ledger admitted records of it
        self._counted: Budget | None = None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_clones"}

    @property
    def left_out(self) -> int:
        """Records that owe nothing: their person has others in the release, or they are too late."""
        return int(self.left[0])

    @left_out.setter
    def left_out(self, n: int) -> None:
        self.left[0] = n

    def use(self, ledger: Ledger | None) -> None:
        """Take another ledger, or none. Under which caps records were charged until now stays known.

        Raises `ConfigError` for one that is none.
        """
        if ledger is not None and not hasattr(ledger, "admit_many"):
            raise ConfigError(f"ledger: expected a Ledger or None, got {type(ledger).__name__}")
        self._history, self._charges, self._counted = self.history, False, None
        self.ledger = ledger

    def share_clones(self, other: Admission) -> None:
        """Let a clone, `other`, be counted with this one when it learns."""
        self._clones = other._clones = self._clones or [int(bool(self.spent))]

    def keep_clones(self, before: Admission) -> None:
        """Take the place of the admission `before` of the same estimator."""
        self._clones = before._clones

    # -- single records ----------------------------------------------------------------------------------------------

    def need_subjects(self, subjects: Sequence[Subject | None] | None) -> None:
        """Raise `SchemaError` if there is a ledger and a record without a subject, which no cap would limit."""
        if self.ledger is not None and (subjects is None or None in subjects):
            raise SchemaError(
                f"subject: the ledger's cap {self.ledger.cap} needs the subject of each record: pass `subject` to "
                "learn_one or `subjects` to learn_arrays, also through each pipeline and wrapper"
            )

    def allows(self, budget: Budget) -> bool:
        """Whether a record with its own budget allows what all records spend. Raises `BudgetError` for another kind."""
        mine = self.spend
        if type(budget) is not type(mine):
            form = FORMS[type(mine)]
            raise BudgetError(f"expected {form}, the kind that all records of this estimator spend, got {budget}")
        return all(getattr(budget, name) >= getattr(mine, name) for name in budget.__dataclass_fields__)

    def spend_of(self, learner: Learner, text: Budget | str) -> Budget | None:
        """What a record with a budget of its own spends; None if it allows less than all spend, which is counted.

        Raises `BudgetError` for a budget that cannot be served.
        """
        own = parse_budget(text)
        if learner.per_record_budgets:
            learner.check(own)
            return own
        if not self.allows(own):
            self.refused += 1
            return None
        return self.spend

    def admit_report(self, learner: Learner, subject: Subject | None, budget: Budget, private: bool) -> bool:
        """Ask the ledger for a report and count its budget; False if it is refused, which is counted, too.

        `private` says whether it was made with noise of the operating system.
        """
        if self.ledger is not None and not self.ledger.admit(subject, budget):
            self.refused += 1
            return False
        self.count(learner, budget)
        self.tainted |= not private
        return True

    # -- rows --------------------------------------------------------------------------------------------------------

    def allowed(self, amounts: np.ndarray) -> np.ndarray:
        """The mask (n,) of the amounts that allow what all records spend."""
        return amounts >= amount(self.spend)

    def admit(
        self,
        learner: Learner,
        held_out: HeldOutStatistics | None,
        X: np.ndarray,
        y: np.ndarray,
        spend: Budget,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
        own: Budget | None = None,
    ) -> np.ndarray | None:
        """Admit, count and learn clean rows X (n, p), y (n,) whose budgets are allowed.

        They `spend` this, or `amounts` (n,) of its kind; `own`: the budget that a record brings. `held_out`: what asks
        them first; None: nothing. Returns what became of each, (n,) as `Release.join`, or None if
        all were learned.
        """
        ledger, n, done = self.ledger, len(X), 0
        if ledger is None and not isinstance(learner, Collector):
            self._learn(learner, held_out, X, y, spend, amounts, own)
            return None
        people, found, outcome = subjects or [None] * n, None, np.zeros(n, dtype=np.uint8)
        if isinstance(learner, Collector) and learner.open is None:
            return learner.gather(X, y, self._prepare(people), self)
        while done < n:
            part = slice(done, done + learner.come_to(y[done:]))
            if found is None:  # what may fail comes before anything of the records is learned or spent
                found = self._prepare(people) if ledger is None else ledger.prepare(people)
            mine, each = found if part.stop - done == n else found[part], None if amounts is None else amounts[part]
            release: Any = learner.open or spend
            outcome[part] = became = release.join(mine.people) if ledger is None else ledger.join(release, mine, each)
            joined = became == JOINED
            done, every = part.stop, bool(joined.all())
            if not every:
                self.note(became)
            if isinstance(learner, Collector):
                if joined.any() and spend is not self._counted:
                    self.count(learner, spend)
                learner.take(X[part], y[part], mine.people, joined)
                continue
            rows: Any = part if every else np.flatnonzero(joined) + part.start
            self._learn(learner, held_out, X[rows], y[rows], spend, None if amounts is None else amounts[rows], own)
            if not every and learner.open is not None:
                learner.end_full()  # a batch ends also if it has read enough records that are not in it
        return outcome if outcome.any() else None

    def note(self, outcome: np.ndarray) -> None:
        """Count the records that are not learned, by what became of each, (n,)."""
        self.refused += int(np.count_nonzero(outcome == REFUSED))
        self.left_out += int(np.count_nonzero(outcome == LEFT_OUT))

    def _learn(
        self,
        learner: Learner,
        held_out: HeldOutStatistics | None,
        X: np.ndarray,
        y: np.ndarray,
        spend: Budget,
        amounts: np.ndarray | None,
        own: Budget | None,
    ) -> None:
        """Count and learn rows, as for `admit`, that are in their releases."""
        if not len(X):
            return
        largest = spend if amounts is None else with_amount(spend, float(amounts.max()))
        if largest is not self._counted:
            self.count(learner, largest)
        if held_out is None:
            learner.learn(X, y, own, amounts)
        else:
            held_out.learn(learner, X, y, own, amounts)

    def _prepare(self, subjects: Sequence[Subject | None]) -> Prepared:
        """See `Ledger.prepare`."""
        return Prepared(subjects_bytes(subjects)) if self.ledger is None else self.ledger.prepare(subjects)

    def admit_reports(self, people: Sequence[bytes | None], budget: Budget) -> np.ndarray:
        """See `People.admit_reports`."""
        assert self.ledger is not None
        return self.ledger.admit_many(people, budget)

    # -- spends ------------------------------------------------------------------------------------------------------

    def count(self, learner: Learner, largest: Budget) -> None:
        """Count a spend, before the records that it is spent on are learned."""
        if largest is self._counted:  # most records bring no budget of their own
            return
        self._charges = self.ledger is not None
        if self._clones is not None and not self.spent:
            self._clones[0] += 1
            if self._clones[0] == 2:
                warnings.warn(_CLONES, PrivacyWarning, stacklevel=4)
        if not (self._charges or self._history.uncapped):
            self._history = self._history.joined(CapHistory({}, uncapped=True))
        if not self.spent:
            warn_of_pipeline()
        known = (self.spend, *self.spent)
        if amount(largest) > max(map(amount, known)) or _delta(largest) > max(map(_delta, known)):
            warn_if_weak(largest)
        learner.fast = None
        self.spent = widest((*self.spent, largest))
        self._counted = largest

    @property
    def history(self) -> CapHistory:
        """The caps under which the records learned so far were charged."""
        charged = self._charges and self.ledger is not None
        return self._history.joined(self.ledger.history) if charged and self.ledger is not None else self._history

    def begin(self, spent: Iterable[Budget], history: CapHistory, tainted: bool) -> None:
        """Go on from what was spent elsewhere or before, under the caps of a `history`, `tainted` or not."""
        self.spent, self._counted = widest(spent), None
        self._history, self._charges = history, False
        self.tainted = tainted


def _delta(budget: Budget) -> float:
    return budget.delta if isinstance(budget, ApproxDP) else 0.0
