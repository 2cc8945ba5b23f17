"""Held-out statistics: what records say about the model's error (see `streamdp.validation`).

Every record meets the model once. It is asked first, and learned then. With `share` the guarantee is the same as
without validation: in batches, each record spends this share of its budget (of mu^2) on its answer and the rest on the
model; else this share of the records answer, with their whole budget, and are not learned. With a budget of its own,
the record spends the sum, which is what counts, caps and guarantee speak of. Under LDP, records that bring budgets of
their own do not answer then, because they allow no more, and nor do the others of their call, which spend the budget of
what is learned alone.

The answers of LDP learners, and those with a budget of their own, are local: each is randomised before anything is kept
of it. So they may be saved at any moment and keep their budget against everybody. With a `share`, learners of batches
and windows release one noisy sum of answers for each batch or window (`held_out`). Not covered: reports of devices and
shuffled messages, which are learned without a question, and users who report under LDP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.estimators.packing import Predictor
from streamdp.estimators.prediction import Prediction
from streamdp.learners.learner import Collector, Learner
from streamdp.learners.side_statistics import divided
from streamdp.learners.user_windows import Windows
from streamdp.privacy.entropy import FreshWords, entropy, fresh_words
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.held_out import HeldOut
from streamdp.validation.plan import CONSTANT, NOTHING, plan_of, questions
from streamdp.validation.quality import UNKNOWN, Quality
from streamdp.validation.tasks import Classes, Task
from streamdp.validation.validator import Validator

_OWN_WORDS = 2**64  # is added to a seed: answers have random words of their own


class HeldOutStatistics:
    """What records say about a model, with a budget for what is learned; `spend` is what a record spends in all.

    `declared`: the parameter `validation` of the estimator. `bounded`: whether the target has declared bounds.

    Raises `ConfigError` for a declaration that does not fit the task.
    """

    def __init__(
        self, declared: Mapping[str, object], task: Task, budget: Budget, bounded: bool, learns: type[Learner]
    ) -> None:
        self._plan, self._task, self._learns = plan_of(declared), task, learns
        self.spend, self.learned, self._budget = self._plan.total(budget), budget, budget
        if self.summed and not issubclass(learns, Windows):
            assert self._plan.share is not None
            trust = "shuffler" if learns.shuffled else "process"
            self.learned, self._budget = divided(budget, 1 - self._plan.share, trust)
        if self.own and issubclass(learns, Collector):
            raise ConfigError('validation: windows hold people back: expected {"share": 0.1}')
        if not isinstance(task, Classes):
            if self._plan.bound is None and not bounded:
                raise ConfigError(
                    "validation: expected a bound, the largest distance of target and prediction that counts, "
                    "because the target has no declared bounds"
                )
        elif self._plan.bound is not None:
            raise ConfigError("validation.bound: it is for numbers; leave it out")

    _latest: Predictor | None = None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_latest"}

    def begin(self, learner: Learner, prediction: Prediction, seed: int | None) -> None:
        """Begin without records, with the seed of the noise, if there is one."""
        self._prediction, self._learner = prediction, learner
        d, seeded = len(learner.point[0]), None if seed is None else int(seed) + _OWN_WORDS
        if self.summed:
            fresh, first = fresh_words(seeded), self._learns.noisy_from_first
            sums = HeldOut(self._plan, self._task, d, fresh, self._budget, first)
            self.validator: Validator = sums
            learner.held_out = self
            if learner.open is not None:
                learner.open.sums["held-out statistics"] = sums
        else:
            words = FreshWords() if isinstance(learner.rng, FreshWords) else entropy(seeded)
            self.validator = Validator(self._plan, self._task, d, words)

    @property
    def own(self) -> bool:
        """Whether answers have a budget of their own. If not, a record that answers is not learned."""
        return self._plan.share is None

    @property
    def takes_records(self) -> bool:
        """Whether records that answer are not learned."""
        return not self.own and self.learned is self.spend

    @property
    def summed(self) -> bool:
        """Whether answers are released as one noisy sum of each batch or window."""
        return not (self.own or self._learns.per_record_budgets)

    @property
    def sums(self) -> HeldOut:
        """The validator, if answers are `summed`."""
        assert isinstance(self.validator, HeldOut)
        return self.validator

    def users(self, before: int, n: int) -> np.ndarray:
        """See `HeldOutPeople.users`."""
        if self._plan.share is None or not self.sums.enough(n * self._plan.share):
            return np.zeros(n, dtype=bool)
        return questions(before, n, self._plan.share, False) != NOTHING

    def keep(self, budget: Budget, amounts: np.ndarray | None) -> np.ndarray:
        """The probabilities of a true bit: of each record, by amounts (n,) of a kind of budget, or one for all."""
        spent = self._plan.budget or budget
        return _truth(spent) if amounts is None or self.own else truth(spent, amounts)

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(
        self, learner: Learner, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None
    ) -> None:
        """As `Learner.learn` of the `learner`; rows say what they are asked before that, or instead."""
        if self.own and (budget is not None or amounts is not None) and learner.per_record_budgets:
            learner.learn(X, y, budget, amounts)
            return
        if self.summed:  # which the learner does itself, batch by batch
            learner.learn(X, y, None, None)
            return
        keep = self.keep(budget or learner.budget, amounts)
        done = 0
        while done < len(X):
            if self.validator.due:
                self._show(learner)
            numbers = self.validator.take(len(X) - done)
            asked, rows = numbers != NOTHING, slice(done, done + len(numbers))
            done, each = rows.stop, None if amounts is None else amounts[rows]
            if asked.any():
                if not self.own:
                    learner.seen[0] += np.count_nonzero(asked)  # before: an exception may lose answers, not counts
                answering = X[rows][asked]
                try:
                    scores = self._predictor().scores(answering)
                    truths = keep[rows][asked] if len(keep) > 1 else keep
                    self.validator.answer(numbers[asked], scores, y[rows][asked], truths)
                finally:
                    answering[:] = 0
            if self.own or not asked.any():
                learner.learn(X[rows], y[rows], budget, each)
            elif not asked.all():
                learner.learn(X[rows][~asked], y[rows][~asked], budget, None if each is None else each[~asked])
        self.validator.allow(self._predictor(), float(self.keep(learner.budget, None)[0]))

    def _predictor(self) -> Predictor:
        """What predicts by the point that records are asked about."""
        point, ranges = self.validator.point, self._learner.ranges
        if self._latest is None or not (self._latest.reads(point) and self._latest.cuts(ranges)):
            self._latest = self._prediction.by(point)
        return self._latest

    def _show(self, learner: Learner) -> None:
        """Ask about the present model from now on."""
        self.validator.begin(self._prediction.estimate(), *learner.place_of_target)

    def add(self, X: np.ndarray, y: np.ndarray) -> None:
        """See `HeldOutPeople.add`: rows say what they are asked about the model before their batch."""
        if not self.sums.begun:
            self._show(self._learner)
            if (steps := self._learner.batch_steps) is not None and not steps.begun:
                self.sums.alone = True  # there is no model yet, and what is said of its start holds for none
        asked = self.sums.take(len(X))
        if (asked != NOTHING).any():
            self._score(asked, X.copy(), y.copy(), np.ones(len(X), dtype=np.int64))
        self.sums.allow(self._predictor(), 1.0)

    def _score(self, asked: np.ndarray, X: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> None:
        """Let people say what they are asked, in arrays as for `HeldOut.add`, which are overwritten."""
        try:
            self.sums.add(asked, self._predictor().scores(X), y, sizes)
        finally:
            X[:] = 0
            y[:] = 0

    def say(self, X: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> None:
        """See `HeldOutPeople.say`: first about the constant."""
        learner = self._learner
        self._show(learner)
        asked = self.sums.take(len(sizes), learns_constant=False)
        first = asked == CONSTANT
        for people in (first, ~first):  # each of them speaks once, whatever they are asked
            self._show(learner)
            if not self.sums.knows_constant():
                asked[people] = CONSTANT
            if people.any():
                rows = np.repeat(people, sizes)
                self._score(asked[people], X[rows], y[rows], sizes[people])
                self.sums.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def quality(self) -> Quality:
        """What was said about the model."""
        found = self.validator.quality()
        batches = self.summed and not self.takes_records and found.verdict != UNKNOWN
        return replace(found, behind=found.recent.answers) if batches else found

    def caveats(self, learner: Learner) -> list[str]:
        """Notes for the statement of a model that a `learner` learns."""
        answers = self.validator.quality().total.answers
        if self.own:
            paid = f"each spent {self._plan.budget} on it beside its gradient or bit, and the spend above has both"
        elif self.summed and self.takes_records:
            whole = f"{answers:,} were held back from what is learned, and one noisy sum of what they say about the "
            return [f"{whole}model's error or the target was released for each window; which ones is public"]
        elif self.summed:
            mine = self.learned
            parts = f"of the spend above, {mine} is the model's and {self._budget} that of answers, which compose"
            return [f"{parts}: one noisy sum of what {answers:,} records said was released for each batch"]
        else:
            paid = "each spent its budget on it in place of a gradient; which ones is public"
        return [f"{answers:,} records answered one randomised question about the model's error or the target: {paid}"]

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        """What two estimators must share for their states to mean the same, under a name."""
        return {"validation": repr(self._plan)}

    def state(self) -> dict[str, object]:
        """What was found, as plain values and new arrays, under a name."""
        return {"answers": self.validator.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises `ConfigError` for numbers out of range."""
        self.validator.load(state["answers"])

    def take_sum(self, parts: Sequence[Self]) -> None:
        """Take over what others have found, of disjoint records."""
        self.validator.take_sum([part.validator for part in parts])


@lru_cache
def _truth(budget: Budget) -> np.ndarray:
    return truth(budget, np.array([amount(budget)]))
