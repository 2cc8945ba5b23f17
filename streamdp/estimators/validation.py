"""Which records answer about the model's error, and when: private progressive validation (see `streamdp.validation`).

Every record meets the model once. It is asked first, and learned then. With `share` it does one of both, so that the
guarantee is the same as without validation. With a budget of its own, the record spends the sum, which is what counts,
caps and guarantee speak of. Records that bring budgets of their own do not answer then, because they allow no more.

The answers of LDP learners, and those with a budget of their own, are local: each is randomised before anything is kept
of it. So they may be saved at any moment and keep their budget against everybody. With a `share`, learners of batches
and windows hold the records back that are asked, and release one noisy sum of them for each batch or window
(`held_out`). Not covered: reports of devices and shuffled messages, which are learned without a question, and users
who report under LDP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from streamdp.errors import ConfigError
from streamdp.learners.learner import Collector, Learner
from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget, amount
from streamdp.privacy.mechanisms.response import truth
from streamdp.validation.held_out import HeldOut
from streamdp.validation.plan import NOTHING, plan_of, questions
from streamdp.validation.quality import Quality
from streamdp.validation.tasks import Classes, Task
from streamdp.validation.validator import Validator

_OWN_WORDS = 2**64
"""What is added to a seed: answers have random words of their own."""


class Questions(NamedTuple):
    """What the next records are asked.

    Parameters
    ----------
    numbers
        (n,), as `Validator.take` returns them.
    asked
        (n,) bool: which of them are asked anything.
    """

    numbers: np.ndarray
    asked: np.ndarray


class Validation:
    """The answers of records about a model.

    Parameters
    ----------
    declared
        The parameter `validation` of the estimator.
    task
        What is predicted.
    budget
        What a record spends on what is learned.
    bounded
        Whether the target has declared bounds.
    learns
        The kind of the learner.

    Raises `ConfigError` for a declaration that does not fit the task.
    """

    def __init__(
        self, declared: Mapping[str, Any], task: Task, budget: Budget, bounded: bool, learns: type[Learner]
    ) -> None:
        self._plan, self._task, self._budget, self._learns = plan_of(declared), task, budget, learns
        if self.own and issubclass(learns, Collector):
            raise ConfigError('validation: windows hold people back: expected {"share": 0.1}')
        self.spend = self._plan.total(budget)
        """All that a record spends: on what is learned, and on its answer."""
        if not isinstance(task, Classes):
            if self._plan.bound is None and not bounded:
                raise ConfigError(
                    "validation: expected a bound, the largest distance of target and prediction that counts, "
                    "because the target has no declared bounds"
                )
        elif self._plan.bound is not None:
            raise ConfigError("validation.bound: it is for numbers; leave it out")

    def __repr__(self) -> str:
        return repr(self._plan)

    def begin(self, d: int, rng: Entropy | SeededEntropy | FreshWords, seed: int | None) -> None:
        """Begin without answers.

        Parameters
        ----------
        d
            The number of parameters of the model.
        rng, seed
            The estimator's source of noise, whose kind the answers share, and its seed.
        """
        seeded = None if seed is None else int(seed) + _OWN_WORDS
        if self.holds_out:
            fresh = FreshWords() if seeded is None else SeededEntropy(seeded)
            first = self._learns.noisy_from_first
            self.validator: Validator = HeldOut(self._plan, self._task, d, fresh, self._budget, first)
        else:
            words = FreshWords() if isinstance(rng, FreshWords) else entropy(seeded)
            self.validator = Validator(self._plan, self._task, d, words)

    @property
    def own(self) -> bool:
        """Whether answers have a budget of their own. If not, a record that answers is not learned."""
        return self._plan.share is None

    @property
    def holds_out(self) -> bool:
        """Whether records that are asked are held back, for one noisy sum of each batch or window."""
        return not (self.own or self._learns.per_record_budgets)

    @property
    def sums(self) -> HeldOut:
        """The validator, if it `holds_out`."""
        assert isinstance(self.validator, HeldOut)
        return self.validator

    def held_out(self, first: int, people: int) -> np.ndarray:
        """The mask (n,) of the people of a window who are held out.

        Parameters
        ----------
        first
            How many people were in earlier windows.
        people
            n.
        """
        if self._plan.share is None or not self.sums.enough(people * self._plan.share):
            return np.zeros(people, dtype=bool)
        held: np.ndarray = questions(first, people, self._plan.share, False) != NOTHING
        return held

    def keep(self, budget: Budget, amounts: np.ndarray | None) -> np.ndarray:
        """The probabilities of a true bit: of each record, or one for all.

        Parameters
        ----------
        budget, amounts
            What the records spend: one budget, or amounts (n,) of its kind.
        """
        spent = self._plan.budget or budget
        return truth(spent, np.array([amount(spent)]) if amounts is None or self.own else amounts)

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether the model that is asked about is to be replaced by the present one: see `show`."""
        return self.validator.due

    def show(self, point: np.ndarray, place: tuple[float, float, float]) -> None:
        """Ask about this model from now on.

        Parameters
        ----------
        point
            (d,), as the estimator predicts with it.
        place
            The learner's `place_of_target`.
        """
        self.validator.begin(point, *place)

    @property
    def point(self) -> np.ndarray:
        """(d,) the model that is asked about."""
        return self.validator.point

    def take(self, records: int) -> Questions:
        """What the next records are asked; maybe fewer than there are, because `due` comes first."""
        numbers = self.validator.take(records)
        return Questions(numbers, numbers != NOTHING)

    def answer(self, questions: Questions, scores: np.ndarray, y: np.ndarray, keep: np.ndarray) -> None:
        """Let the records that are asked answer.

        Parameters
        ----------
        questions
            What `take` returned, for n records.
        scores, y
            (k, K) and (k,) of the k records that are asked: the linear predictors, and the targets.
        keep
            What `keep` returned, for the n records or for all.
        """
        each = keep if len(keep) > 1 else np.broadcast_to(keep, len(questions.numbers))
        self.validator.answer(questions.numbers[questions.asked], scores, y, each[questions.asked])

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def quality(self) -> Quality:
        """What the answers say."""
        return self.validator.quality()

    def caveats(self) -> list[str]:
        """What was spent on answers; notes for the statement."""
        answers = self.validator.quality().total.answers
        if self.own:
            paid = f"each spent {self._plan.budget} on it beside its gradient or bit, and the spend above has both"
        elif self.holds_out:
            whole = f"{answers:,} were held back from what is learned, and one noisy sum of what they say about the "
            return [f"{whole}model's error or the target was released for each batch or window; which ones is public"]
        else:
            paid = "each spent its budget on it in place of a gradient; which ones is public"
        return [f"{answers:,} records answered one randomised question about the model's error or the target: {paid}"]

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The answers, as plain values and new arrays."""
        return self.validator.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises `ConfigError` for numbers out of range."""
        self.validator.load(state)

    def take_sum(self, parts: Sequence[Self]) -> None:
        """Take over the answers of others, of disjoint records."""
        self.validator.take_sum([part.validator for part in parts])
