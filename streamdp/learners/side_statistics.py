"""Side statistics: statistics of the rows that a model learns, in one budget with it.

If nobody may see raw records, each record is drawn to the model or to the statistics, and spends its whole budget
there. Otherwise both sum the same batches, each with its own noise, as one release, and the budget is divided between
them.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.entropy import uniform
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, amount

_STATE = "statistics of records"


def divided(budget: Budget, share: float, trust: str) -> tuple[Budget, Budget]:
    """Return what of a record's budget is spent on the model, with this `share` in (0, 1), and what beside it.

    `trust` is as for `Statistics`. Raises `BudgetError` for a budget that is not divided there.

    >>> divided(GaussianDP(1.0), 0.36, "process")
    (GaussianDP(mu=0.6), GaussianDP(mu=0.8))
    """
    match trust, budget:
        case "nobody", _:
            return budget, budget
        case "shuffler", ApproxDP(epsilon, delta):  # its noise is not normal: epsilon and delta are divided
            return ApproxDP(epsilon * share, delta * share), ApproxDP(epsilon * (1 - share), delta * (1 - share))
        case "process", ApproxDP() | GaussianDP():
            mu = (GaussianDP.from_approx(budget) if isinstance(budget, ApproxDP) else budget).mu
            return GaussianDP(mu * math.sqrt(share)), GaussianDP(mu * math.sqrt(1 - share))
    need = "trust process or shuffler, and a budget with a delta or, for process, in mu"
    raise BudgetError(f"a model with statistics or answers beside it: expected {need}, got {trust!r} and {budget}")


class SideStatistics:
    """What a `learner` learns of the rows that a model learns.

    `share`: that of the model, in (0, 1), relative to those of the statistics. `coding`: (k, c) makes what they read of
    the model's first k columns. `target`: how a target becomes a further one: (middle, half) of its bounds, or the
    number of its classes, which are codes; None: it does not.
    """

    takes_records = True

    def __init__(
        self, learner: Any, share: float, coding: np.ndarray, target: tuple[float, float] | int | None, model: str
    ) -> None:
        self.learner = learner
        self._coding = coding
        self._share, self._target, self._model = share, target, model

    def add(self, X: np.ndarray, y: np.ndarray, size: int) -> None:
        """Add rows X (n, p), y (n,) to the open batch of at most `size` rows, which ends with that of the model."""
        rows = self._rows(X, y)
        try:
            self.learner.add(rows, size)
        finally:
            rows[:] = 0

    def draw(
        self, model: Any, X: np.ndarray, y: np.ndarray, amounts: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Learn those of the rows that are drawn; return the others, which the `model` learns, with their amounts.

        Which ones are drawn does not depend on them. A record that spends a budget of its own is learned by the model.
        """
        usual = np.arange(len(X)) if amounts is None else np.flatnonzero(amounts == amount(model.budget))
        drawn = np.zeros(len(X), dtype=bool)
        drawn[usual] = uniform(self.learner.rng.draw(len(usual))) >= self._share
        # Before they are learned: an interruption may lose records, but never a count. Both know the number of all.
        model.seen[0] += np.count_nonzero(drawn)
        self.learner.seen[0] += len(usual) - np.count_nonzero(drawn)
        if drawn.any():
            rows = self._rows(X[drawn], y[drawn])
            try:
                self.learner.learn(rows, y[drawn], None, None)
            finally:
                rows[:] = 0
        return X[~drawn], y[~drawn], None if amounts is None else amounts[~drawn]

    def coded(self, X: np.ndarray) -> np.ndarray:
        """What the statistics read of columns X (n, p) of a model, as a new array, with codes for indicators."""
        return X[:, : len(self._coding)] @ self._coding

    def _rows(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """What the statistics read, as a new array: not the columns of products, which follow the target's."""
        X = self.coded(X)
        if self._target is None:
            return X
        if isinstance(self._target, int):
            return np.column_stack([X, y])
        middle, half = self._target
        return np.column_stack([X, np.clip((y - middle) / half, -1, 1)])

    def caveats(self, learner: Any) -> list[str]:
        """Notes for the statement of a model that a `learner` learns."""
        if learner.open is None:
            return [
                f"each record was drawn to the model, with a probability of {self._share:.3g}, or to the statistics, "
                "by chance and not by what it says, and spent its whole budget there; those with a budget of their own "
                "were learned by the model alone"
            ]
        mine = self.learner.budget
        return [f"of the spend above, {learner.budget} is the model's and {mine} that of the statistics, which compose"]

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        """What two estimators must share for their states to mean the same, under a name."""
        return {"beside": self._model}

    def state(self) -> dict[str, object]:
        """What was found, as plain values and new arrays, under a name."""
        return {_STATE: {"records": np.array([self.learner.weight]), **self.learner.learned()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises `ConfigError` for numbers out of range."""
        records = finite_array(state[_STATE], "records", (1,))
        if records[0] < 0:
            raise ConfigError("state: expected a number of records")
        self.learner.read(state[_STATE])
        self.learner.seen[0] = int(records[0])

    def take_sum(self, parts: Sequence[Self]) -> None:
        """Take over what others have found, of disjoint records."""
        learners = [part.learner for part in parts]
        self.learner.merge(learners, lambda arrays: np.sum(arrays, axis=0))
        self.learner.seen[0] = sum(int(one.weight) for one in learners)
