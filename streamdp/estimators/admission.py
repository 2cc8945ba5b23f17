"""Admission: what records may spend, which of them are learned, and what was spent.

A record is admitted by its budget, by the cap of its subject, and, where the records of a batch share one noise, as the
only one of its subject in the batch. Its spend is counted before it is learned, so that an exception at any moment
leaves a state in which every spend is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.subjects import subject_bytes, subjects_bytes
from streamdp.errors import BudgetError, ConfigError, PrivacyWarning, SchemaError
from streamdp.estimators.traps import warn_if_large, warn_of_pipeline
from streamdp.learners.learner import Learner
from streamdp.ledger.charged import CapHistory
from streamdp.ledger.periods import budgets_of
from streamdp.privacy.composition import widest
from streamdp.privacy.guarantees import FORMS, Budget, GaussianDP, amount, with_amount

if TYPE_CHECKING:
    from streamdp.data.records import Subject
    from streamdp.ledger.ledger import Ledger

_CLONES = (
    "several clones of one private estimator learn: if they learn the same records, each counts its own spends only, "
    "and together they spend more. streamdp.account(model).statement() says what. For several classes, one "
    "LDPASGDClassifier(classes=[...]) spends once"
)

Learn = Callable[[np.ndarray, np.ndarray, np.ndarray | None], None]


class Admission:
    """Budgets, caps and counts of one estimator. A copy has no clones."""

    ledger: Ledger | None = None
    budget: Budget  # what a record spends on what is learned
    spend: Budget  # and with its answer, in all
    _clones: list[int] | None = None
    """How many of the clones and the estimator itself learn, shared by them. None: it was not cloned."""

    def __init__(self) -> None:
        self.refused = 0  # records, for the cap of their subject or for their budget
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

    def joins(self, learner: Learner, subject: Subject | None, spend: Budget, y: np.ndarray) -> bool:
        """Whether a record with target y (1,) is admitted: by the ledger, and as its subject's only one in a batch."""
        if self.ledger is None:
            return True
        if self._once(learner) and subject is not None:
            batch: Any = learner.open
            learner.come_to(y)
            batch.joining = {subject_bytes(subject) or b""}
            if batch.joining & batch.members:
                return False
        return self.ledger.admit(subject, spend)

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

    def _once(self, learner: Learner) -> bool:
        """Whether a subject may have one record in the open batch only: there is one, and spends in it do not add up.

        Where they add up, that is epsilons. A cap that adds up squares of mu counts k records in one release as sqrt(k)
        mu, and they are k mu.
        """
        if (batch := learner.open) is None or self.ledger is None:
            return False
        return not batch.repeats or any(isinstance(cap, GaussianDP) for cap in budgets_of(self.ledger.cap))

    # -- rows --------------------------------------------------------------------------------------------------------

    def allowed(self, amounts: np.ndarray) -> np.ndarray:
        """The mask (n,) of the amounts that allow what all records spend."""
        found: np.ndarray = amounts >= amount(self.spend)
        return found

    def admit(
        self,
        learner: Learner,
        X: np.ndarray,
        y: np.ndarray,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
        learn: Learn,
    ) -> np.ndarray | None:
        """Admit, count and learn clean rows X (n, p), y (n,) whose budgets, of these `amounts` (n,), are allowed.

        Returns the mask (n,) of those that were learned, or None for all.
        """
        if self.ledger is not None and subjects is not None:
            if self._once(learner):
                return self._admit_once(learner, X, y, subjects, learn)
            mask = self.ledger.admit_many(subjects, self._default(amounts), amounts)
            if not mask.all():
                self.refused += len(mask) - int(np.count_nonzero(mask))
                self._learn_counted(learner, X[mask], y[mask], None if amounts is None else amounts[mask], learn)
                return mask
        elif learner.open is not None:
            learner.open.joining = frozenset()
        self._learn_counted(learner, X, y, amounts, learn)
        return None

    def _learn_counted(
        self, learner: Learner, X: np.ndarray, y: np.ndarray, amounts: np.ndarray | None, learn: Learn
    ) -> None:
        if len(X):
            spend = self._default(amounts)
            self.count(learner, spend if amounts is None else with_amount(spend, float(amounts.max())))
            learn(X, y, amounts)

    def _admit_once(
        self, learner: Any, X: np.ndarray, y: np.ndarray, subjects: Sequence[Subject | None], learn: Learn
    ) -> np.ndarray | None:
        """As `admit`, with a ledger: each subject once within a batch."""
        assert self.ledger is not None
        members = subjects_bytes(subjects)
        self.ledger.prepare(subjects)  # what may fail comes first, when nothing of this is learned or spent
        done, learned = 0, np.ones(len(X), dtype=bool)
        while done < len(X):  # part by part, because refused records do not fill a batch
            part = slice(done, done + learner.come_to(y[done:]))
            done, mask, met = part.stop, learned[part], set(learner.open.members)
            for i, member in enumerate(members[part]):
                if member is not None:
                    mask[i] = member not in met
                    met.add(member)
            mask[mask] = self.ledger.admit_many(
                [m for m, new in zip(members[part], mask, strict=True) if new], self._default(None), prepared=True
            )
            self.refused += int(np.count_nonzero(~mask))
            if mask.any():
                learner.open.joining = {m for m, new in zip(members[part], mask, strict=True) if new and m is not None}
                self._learn_counted(learner, X[part][mask], y[part][mask], None, learn)
        return None if learned.all() else learned

    def _default(self, amounts: np.ndarray | None) -> Budget:
        """What a record spends by default, or the kind of what records with budgets of their own spend."""
        return self.spend if amounts is None else self.budget

    # -- spends ------------------------------------------------------------------------------------------------------

    def counts(self, spend: Budget) -> bool:
        """Whether this very budget was the last one that was counted, so that it need not be counted again."""
        return spend is self._counted

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
            if amount(largest) > max(map(amount, self.spent), default=0.0):
                warn_if_large(largest)
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
