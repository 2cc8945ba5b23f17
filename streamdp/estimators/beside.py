"""Statistics of the records that a model learns, in one budget with it.

If nobody may see raw records, each record is drawn to the model or to the statistics, and spends its whole budget
there. Otherwise both sum the same batches, each with its own noise, and the budget is divided between them.

Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from streamdp.data.floats import finite_array
from streamdp.errors import ConfigError
from streamdp.estimators.second_use import SecondUse
from streamdp.learners.learner import Learner
from streamdp.privacy.entropy import uniform
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, amount

_STATE = "statistics of records"


def divided(budget: Budget, share: float, trust: str) -> tuple[Budget, Budget]:
    """Return what of a record's budget is spent on the model, with this `share` in (0, 1), and what on statistics.

    `trust` is as for `Statistics`.

    >>> divided(GaussianDP(1.0), 0.36, "process")
    (GaussianDP(mu=0.6), GaussianDP(mu=0.8))
    """
    if trust == "nobody":
        return budget, budget
    if trust not in ("process", "shuffler"):
        raise ConfigError(f"statistics beside a model: expected trust process, nobody or shuffler, got {trust!r}")
    if trust == "shuffler":  # its noise is not normal: epsilon and delta are divided
        assert isinstance(budget, ApproxDP)
        both = [ApproxDP(budget.epsilon * part, budget.delta * part) for part in (share, 1 - share)]
        return both[0], both[1]
    mu = (GaussianDP.from_approx(budget) if isinstance(budget, ApproxDP) else budget).mu  # type: ignore[union-attr]
    return GaussianDP(mu * math.sqrt(share)), GaussianDP(mu * math.sqrt(1 - share))


class Beside(SecondUse):
    """The statistics beside a model.

    `statistics`: a `Statistics`, with a budget that is divided between them and the model; they learn nothing by
    themselves. `share`: the share of the model, relative to those of the statistics. `target`: how a target becomes
    further columns of the statistics: (middle, half) of its bounds, or the number of its classes; None: it does not.
    """

    learns_only, takes_records = False, True

    def __init__(self, statistics: Any, share: float, target: tuple[float, float] | int | None) -> None:
        self._given = statistics, share, target
        super().__init__(statistics.record_budget)
        self._target = target
        self._share = share / (share + math.fsum(one.share for one in statistics.declared))
        self.of_model, mine = divided(self.spend, self._share, statistics.trust)
        self.statistics = statistics.clone({"budget": mine})
        own = 0 if target is None else target - 1 if isinstance(target, int) else 1
        self._read = statistics.read_columns - own

    def clone(self) -> Self:
        """Return one that has learned nothing."""
        return type(self)(*self._given)

    @property
    def learner(self) -> Any:
        """What learns the statistics."""
        return self.statistics.learner

    @property
    def private(self) -> bool:  # type: ignore[override]
        found: bool = self.statistics.private
        return found

    def check(self, X: np.ndarray, y: np.ndarray) -> None:
        """See `SecondUse.check`: the noise of sums is for columns such as records give. The target's always are."""
        self.statistics.check_columns(X[:, : self._read])

    def learn(
        self, learner: Learner, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None
    ) -> None:
        """See `SecondUse.learn`. A record that spends a budget of its own is learned by the model alone."""
        if learner.per_record_budgets and budget is not None:
            learner.learn(X, y, budget, amounts)
            return
        if learner.per_record_budgets and amounts is not None:
            own = amounts != amount(self.spend)
            learner.learn(X[own], y[own], None, amounts[own])
            if own.all():
                return
            X, y = X[~own], y[~own]
        columns = self._columns(X, y)
        try:
            if learner.open is None:
                self._draw(learner, columns, X, y)
                return
            while len(X):
                room = learner.come_to(y)  # which may end the batch of the model
                if not learner.pending:
                    self.learner.close()
                self.learner.batch_of_model = learner.full
                learner.learn(X[:room], y[:room], None, None)
                self.learner.learn(columns[:room], y[:room], None, None)
                if not learner.pending:
                    self.learner.close()
                X, y, columns = X[room:], y[room:], columns[room:]
        finally:
            columns[:] = 0

    def _columns(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The columns that the statistics read, as a new array: not those of products, which follow the target's."""
        X = X[:, : self._read]
        if self._target is None:
            return X.copy()
        if isinstance(self._target, int):
            return np.column_stack([X, y[:, None] == np.arange(1, self._target)])
        middle, half = self._target
        return np.column_stack([X, np.clip((y - middle) / half, -1, 1)])

    def _draw(self, learner: Learner, columns: np.ndarray, X: np.ndarray, y: np.ndarray) -> None:
        """Let each record be learned by one of both, which does not depend on the record."""
        words = self.learner.rng.draw(len(X))
        drawn = uniform(words) >= self._share
        # Before they are learned: an interruption may lose records, but never a count. Both know the number of all.
        learner.seen[0] += np.count_nonzero(drawn)
        self.learner.seen[0] += np.count_nonzero(~drawn)
        if drawn.any():
            self.learner.learn(columns[drawn], y[drawn], None, None)
        if not drawn.all():
            learner.learn(X[~drawn], y[~drawn], None, None)

    def close(self, learner: Learner) -> None:
        self.learner.close()

    def discard(self) -> None:
        self.learner.discard()

    def caveats(self, learner: Learner) -> list[str]:
        if learner.open is None:
            return [
                f"each record was drawn to the model, with a probability of {self._share:.3g}, or to the statistics, "
                "by chance and not by what it says, and spent its whole budget there; those with a budget of their own "
                "were learned by the model alone"
            ]
        mine = self.statistics.record_budget
        return [f"of the spend above, {learner.budget} is the model's and {mine} that of the statistics, which compose"]

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, Any]:
        return {"beside": repr((self._share, self.statistics.model_dict()))}

    def state(self) -> dict[str, Any]:
        return {_STATE: {"records": np.array([self.learner.weight]), **self.learner.learned()}}

    def load(self, state: Mapping[str, Any]) -> None:
        records = finite_array(state[_STATE], "records", (1,))
        if records[0] < 0:
            raise ConfigError("state: expected a number of records")
        self.learner.read(state[_STATE])
        self.learner.seen[0] = int(records[0])

    def take_sum(self, parts: Sequence[Self]) -> None:
        learners = [part.learner for part in parts]
        self.learner.merge(learners, lambda arrays: np.sum(arrays, axis=0))
        self.learner.seen[0] = sum(int(one.weight) for one in learners)
