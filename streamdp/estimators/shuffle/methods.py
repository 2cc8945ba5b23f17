"""The public methods of the shuffle estimators: functions of an estimator, which its classes take over."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamdp.aggregation.shuffled_sum import Shuffled
from streamdp.data.floats import floats
from streamdp.data.records import MOST_RECORDS
from streamdp.errors import check_whole
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.learners.shuffle import ShuffleBatches
from streamdp.privacy.entropy import Entropy, SeededEntropy


def randomizer(self: Any) -> ShuffleRandomizer:
    """A person's half for the next batch. Raises `NotAvailableError` before the features are known."""
    learner = self._learner(ShuffleBatches, "randomizer")
    rng = learner.rng if isinstance(learner.rng, SeededEntropy) else Entropy()
    problem = learner.problem
    return ShuffleRandomizer(
        learner.middle.copy(),
        learner.spec.copy(),
        problem.loss,
        self._names,
        problem.intercept,
        learner.params,
        learner.batch_steps.place,
        rng,
        learner.curvature,
    )


def absorb(self: Any, shuffled: Shuffled) -> None:
    """Make one step with the mixed bits of the next batch. Its spend follows from how many people answered.

    The rounds of a cohort have one spend together, which the first one counts: that of the smallest round so far.

    Parameters
    ----------
    shuffled
        The bits of all who answered, mixed by the shuffler.

    Raises `NotAtBoundaryError` if `learn_one` has begun a batch, `SchemaError` for bits that are not of the agreed sum,
    and if there is a ledger, because the bits name no subjects, `BudgetError` if too few answered for any guarantee,
    and `ConfigError` after the last round of a cohort; then nothing changes.
    """
    learner = self._learner(ShuffleBatches, "absorb")
    self._admission.need_subjects(None)
    with self.learner.rng.lock:
        spent, take = learner.taken(shuffled)
        self._count(spent)
        take()


def learn_cohort(self: Any, X: np.ndarray, y: np.ndarray, rounds: int | None = None) -> None:
    """Learn from people who keep their records and answer in every round, from all of them in each.

    It starts at the present estimate, in one process: by AC-SA, on an envelope of a non-smooth loss, or with
    method="sgd" by the paper's averaged gradient descent. The budget is for all rounds together, by the sum
    of mu^2. With `strong_convexity` the people are divided into ceil(log2 log2 n) groups that are learned one after
    another, each from the output of the last. One record is one person, and no ledger counts it. Another call with the
    same people spends the budget again: the statement says so, and `guarantee` does not count it. Source: Cheu et al.
    2022, Algorithm 5 and Theorem 4.9; the plan is in `streamdp.optim.ac_sa`.

    Parameters
    ----------
    X, y
        (n, p) floats and (n,) targets, as for `learn_arrays`.
    rounds
        T >= 1. None: the fewest, up to n, whose bound on the excess loss is within a tenth of the least.

    Raises `NotAtBoundaryError` within a batch, `SchemaError` for bad records and if there is a ledger, and
    `ConfigError` for bad rounds and with method="newton", before anything is spent.
    """
    if rounds is not None:
        check_whole("rounds", rounds, 1, MOST_RECORDS)
    self.learner.need_no_cohort("learn_cohort")
    self._admission.need_subjects(None)
    self.learner.check_cohort()
    with self.learner.rng.lock:
        self.learner.need_boundary()
        X, y = self._matrix(X), floats("y", y)
        self._check_rows(X, y)
        if len(X):
            self.learner.learn_cohort(X, y, rounds, self._count_batch)
