"""Admission: what records may spend, which of them are learned, and what was spent.

A record is admitted by its budget and by the cap of its subject. Where records share one noise, it joins their
release, which knows who is in it and what a record owes (`privacy.release`). Its spend is counted before it is learned,
so that an exception at any moment leaves a state in which every spend is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.subjects import subjects_bytes
from streamdp.errors import BudgetError, ConfigError, PrivacyWarning, SchemaError
from streamdp.estimators.traps import warn_if_weak, warn_of_pipeline
from streamdp.learners.learner import Learner
from streamdp.ledger.charged import CapHistory
from streamdp.privacy.composition import widest
from streamdp.privacy.guarantees import FORMS, ApproxDP, Budget, amount, with_amount
from streamdp.privacy.release import JOINED, LEFT_OUT, REFUSED, Release

if TYPE_CHECKING:
    from streamdp.data.records import Subject
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
        self.left_out = 0  # records that owe nothing: their person has others in the release, or they are too late
        self.spent: tuple[Budget, ...] = ()  # the widest
        self.tainted = False  # whether something was learned without privacy, elsewhere or before
        self._history, self._charges = CapHistory({}), False  # the second: whether its ledger admitted records of it
        self._counted: Budget | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_clones"}

    def use(self, ledger: Ledger | None) -> None:
        """Take another ledger, or none. Under which caps records were charged until now stays known."""
        self._history, self._charges, self._counted = self.history, False, None
        self.ledger = ledger

    def check_ledger(self) -> None:
        """Raise `ConfigError` for a ledger that is none."""
        if self.ledger is not None and not hasattr(self.ledger, "admit_many"):
            raise ConfigError(f"ledger: expected a Ledger or None, got {type(self.ledger).__name__}")

    def share_clones(self, other: Admission) -> None:
        """Let a clone, `other`, be counted with this one when it learns."""
        self._clones = other._clones = self._clones or [int(bool(self.spent))]

    def keep_clones(self, before: Admission) -> None:
        """Take the place of the admission `before` of the same estimator."""
        self._clones = before._clones

    # -- single records ----------------------------------------------------------------------------------------------

    def need_subjects(self, subjects: Iterable[Subject | None] | None) -> None:
        """Raise `SchemaError` if there is a ledger and a record without a subject, which no cap would limit."""
        if self.ledger is not None and (subjects is None or any(subject is None for subject in subjects)):
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
        found: np.ndarray = amounts >= amount(self.spend)
        return found

    def prepare(self, people: Sequence[bytes | None]) -> Any:
        """Do what may fail, when nothing of the records of `people` is learned or spent; return what `join` takes."""
        return people if self.ledger is None else self.ledger.prepare(people)

    def join(self, release: Release, found: Any) -> np.ndarray:
        """Let records that were `found`, or a slice of them, join a release; return what became of each, (n,).

        Those that are not in it are counted. See `privacy.release` for the values.
        """
        outcome = release.join(found) if self.ledger is None else self.ledger.join(release, found)
        self.refused += int(np.count_nonzero(outcome == REFUSED))
        self.left_out += int(np.count_nonzero(outcome == LEFT_OUT))
        return outcome

    def admit(
        self,
        learner: Learner,
        learn: Callable[[np.ndarray, np.ndarray, Budget | None, np.ndarray | None], None],
        X: np.ndarray,
        y: np.ndarray,
        spend: Budget,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
        own: Budget | None = None,
    ) -> np.ndarray | None:
        """Admit, count and learn clean rows X (n, p), y (n,) whose budgets are allowed.

        They `spend` this, or `amounts` (n,) of its kind; `own`: the budget that a record brings.
        `learn` is as `Learner.learn`. Returns what became of each, (n,) as `join`, or None if all were learned.
        """

        def take(part: slice, outcome: np.ndarray | None = None) -> None:
            rows = part if outcome is None or not outcome.any() else np.flatnonzero(outcome == JOINED) + part.start
            if len(taken := X[rows]):
                each = None if amounts is None else amounts[rows]
                self.count(learner, spend if each is None else with_amount(spend, float(each.max())))
                learn(taken, y[rows], own, each)

        done, n = 0, len(X)
        if self.ledger is None or subjects is None:
            take(slice(0, n))
            return None
        if learner.open is None:  # each record is a release of its own
            fits: np.ndarray = self.ledger.admit_many(subjects, spend, amounts)
            self.refused += int(np.count_nonzero(~fits))
            outcome = np.where(fits, JOINED, REFUSED)
            take(slice(0, n), outcome)
            return outcome if outcome.any() else None
        found, outcome = self.prepare(subjects_bytes(subjects)), np.zeros(n, dtype=np.uint8)
        while done < n:
            part = slice(done, done + learner.come_to(y[done:]))
            done, outcome[part] = part.stop, self.join(learner.open, found[part])
            take(part, outcome[part])
            learner.end_full()  # a batch ends also if it has read enough records that are not in it
        return outcome if outcome.any() else None

    # -- spends ------------------------------------------------------------------------------------------------------

    def count(self, learner: Learner, largest: Budget) -> None:
        """Count a spend, before the records that it is spent on are learned."""
        self._charges = self.ledger is not None
        if self._clones is not None and not self.spent:
            self._clones[0] += 1
            if self._clones[0] == 2:
                warnings.warn(_CLONES, PrivacyWarning, stacklevel=4)
        if not (self._charges or self._history.uncapped):
            self._history = self._history.joined(CapHistory({}, uncapped=True))
        if not self.spent:
            warn_of_pipeline()
        if largest is not self._counted:  # most records bring no budget of their own
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


class Gathered:
    """What a learner that collects rows by subject asks for some of them: see `People`."""

    def __init__(self, admission: Admission, learner: Learner) -> None:
        self._learner, self._admission, self._ledger = learner, admission, admission.ledger
        self.prepare, self.join = admission.prepare, admission.join

    def users(self, people: Sequence[bytes | None]) -> tuple[list[tuple[bytes, int] | None], np.ndarray | None]:
        """See `People.users`."""
        found = None if self._ledger is None else self._ledger.periods(people)
        timely = None if self._ledger is None else np.ones(len(people), dtype=bool)
        timely, periods = (timely, repeat(0)) if found is None else (found[0], found[1].tolist())
        return [None if p is None else (p, period) for p, period in zip(people, periods, strict=False)], timely

    def admit(self, people: Sequence[bytes | None]) -> np.ndarray:
        """See `People.admit`."""
        assert self._ledger is not None
        return self._ledger.admit_many(people, self._learner.budget)

    def refuse(self, records: int) -> None:
        """See `People.refuse`."""
        self._admission.refused += records

    def count(self) -> None:
        """See `People.count`."""
        self._admission.count(self._learner, self._learner.budget)
