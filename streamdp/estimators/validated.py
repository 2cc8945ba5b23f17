"""Estimators whose records may answer about the model's error: private progressive validation (see `validation`).

Every record meets the model once. It is asked first, and learned then. With `share` it does one of both, so that the
guarantee is the same as without validation. With a budget of its own, the record spends the sum, which is what counts,
caps and guarantee speak of. Records that bring budgets of their own do not answer then, because they allow no more.

The answers are local: each is randomised before anything is kept of it. So they may be saved at any moment and keep
their budget against everybody, also in estimators that trust an operator or a shuffler for their gradients. There, sums
with one noise for a batch would have less noise; they are not offered. Not covered: reports of devices and shuffled
messages, which are learned without a question, and estimators that protect users and not records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.estimators.features import Features
from streamdp.estimators.linear import LinearModel
from streamdp.estimators.packing import RecordLearner
from streamdp.privacy.entropy import FreshWords, entropy
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.plan import NOTHING, Plan, plan_of
from streamdp.validation.quality import Quality
from streamdp.validation.tasks import Classes
from streamdp.validation.validator import Validator

if TYPE_CHECKING:
    from streamdp.optim.record_kernel import RecordKernel

_OWN_WORDS = 2**64
"""What is added to a seed: answers have random words of their own."""


class ValidatedModel(LinearModel):
    """A linear model with the parameter `validation`."""

    validation: Mapping[str, Any] | None = None
    _plan: Plan | None
    _validator: Validator | None = None

    def _set_up(self) -> None:
        self._plan = None if self.validation is None else plan_of(self.validation)
        super()._set_up()
        self._spend = self._budget
        if self._plan is not None:
            self._spend = self._plan.total(self._budget)
            if not isinstance(self._target_task(), Classes):
                if self._plan.bound is None and self._target_bounds() is None:
                    raise ConfigError(
                        "validation: expected a bound, the largest distance of target and prediction that counts, "
                        "because the target has no declared bounds"
                    )
            elif self._plan.bound is not None:
                raise ConfigError("validation.bound: it is for numbers; leave it out")

    @property
    def record_budget(self) -> Budget:
        """All that a record without a budget of its own spends: on what is learned, and on its answer."""
        return self._spend

    def _declare(self, declared: Sequence[Any] | Mapping[Any, Any]) -> Features:
        features = super()._declare(declared)
        try:
            if self._plan is not None:
                fresh = isinstance(self._rng, FreshWords)
                rng = FreshWords() if fresh else entropy(None if self.seed is None else int(self.seed) + _OWN_WORDS)
                self._validator = Validator(self._plan, self._target_task(), len(self._estimate()), rng)
        except BaseException:
            self._features = None  # otherwise records would be learned that are not asked
            raise
        return features

    def _place_of_target(self) -> tuple[float, float, float]:
        """The centre and the spread of a target as far as they are known privately, and half the width of its bounds.

        A spread of 0: not known yet. Here it is not learned: with bounds, it is half their width.
        """
        if (bounds := self._target_bounds()) is None:
            return 0.0, 1.0, np.inf
        low, high = bounds
        half = high / 2 - low / 2
        return low / 2 + high / 2, half, half

    @property
    def looseness(self) -> float | None:
        """How many times half the width of the target's declared bounds is its unit, where that is learned privately.

        None before it is known, and for estimators that do not learn it.
        """
        if self._features is None:
            return None
        _, scale, half = self._place_of_target()
        return half / scale if scale > 0 and np.isfinite(half) else None

    @property
    def near_bound(self) -> float | None:
        """The bound of the target within half a unit of its learned centre; None if neither is, or if unknown."""
        if self.looseness is None:
            return None
        centre, unit, _ = self._place_of_target()
        return next((bound for bound in self._target_bounds() or () if abs(bound - centre) < unit / 2), None)

    # -- learning ---------------------------------------------------------------------------------------------------

    def _meet(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        validator, plan = self._validator, self._plan
        if validator is None or plan is None:
            self._learn_rows(X, y, budget, amounts)
            return
        if plan.budget is not None and self.per_record_budgets and (budget is not None or amounts is not None):
            self._learn_rows(X, y, budget, amounts)
            return
        keep = self._keep(plan, budget, amounts)
        done = 0
        while done < len(X):
            if validator.due:
                validator.begin(self._estimate(), *self._place_of_target())
            questions = validator.take(len(X) - done)
            rows = slice(done, done + len(questions))
            done = rows.stop
            asked = questions != NOTHING
            some = asked.any()
            if some:
                if plan.share is not None:
                    self._seen[0] += np.count_nonzero(asked)  # before: an exception may lose answers, but no count
                told = X[rows][asked]
                try:
                    each = keep[rows] if len(keep) > 1 else np.broadcast_to(keep, len(questions))
                    predicted = self._decided(self._scores(told, validator.point)).astype(float)
                    validator.answer(questions[asked], predicted, y[rows][asked], each[asked])
                finally:
                    told[:] = 0
            if plan.share is None or not some:
                self._learn_rows(X[rows], y[rows], budget, None if amounts is None else amounts[rows])
            elif not asked.all():
                more = None if amounts is None else amounts[rows][~asked]
                self._learn_rows(X[rows][~asked], y[rows][~asked], budget, more)

    def _quickly(self) -> RecordLearner | None:
        features = self._features
        if self._validator is not None or features is None or features.packer is None:
            return None
        return RecordLearner(features.packer, self._index, self._record_kernel(len(features.names)))

    def _record_kernel(self, p: int) -> RecordKernel:
        """What learns one record of p features as `_learn_rows` does, within a batch."""
        raise NotImplementedError

    def _keep(self, plan: Plan, budget: Budget | None, amounts: np.ndarray | None) -> np.ndarray:
        """The probabilities of a true bit: of each record, or one for all."""
        spent = plan.budget or budget or self._budget
        return truth(spent, np.array([amount(spent)]) if amounts is None or plan.budget is not None else amounts)

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def quality(self) -> Quality | None:
        """What private answers tell about the model; it spends nothing. None without `validation`.

        Errors are in the unit of the target that was given to `learn_one`.
        """
        return None if self._validator is None else self._validator.quality()

    def _about_validation(self) -> list[str]:
        if self._plan is None or self._validator is None:
            return []
        answers = self._validator.quality().total.answers
        if self._plan.share is None:
            paid = f"each spent {self._plan.budget} on it beside its gradient or bit, and the spend above has both"
        else:
            paid = "each spent its budget on it in place of a gradient; which ones is public"
        return [f"{answers:,} records answered one randomised question about the model's error or the target: {paid}"]

    # -- state ------------------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        return super()._model() | ({} if self._plan is None else {"validation": repr(self._plan)})

    def _learned_beside(self) -> dict[str, Any]:
        return {} if self._validator is None else {"answers": self._validator.state()}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        if self._validator is not None:
            self._validator.load(state["answers"])

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        if self._validator is not None:
            found = [part._validator for part in parts]  # noqa: SLF001 - the same class
            self._validator.take_sum([validator for validator in found if validator is not None])
