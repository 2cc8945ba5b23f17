"""The learner of shuffle-private SGD and AC-SA, and all three parties in one process.

The argument is in `streamdp.estimators.shuffle.estimators`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamdp.aggregation.shuffled_sum import Analyzer, Calibration, LocalRandomizer, Shuffled, VectorSum
from streamdp.errors import ConfigError, NotAtBoundaryError
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.linear import gradients
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.optim.ac_sa import Accelerated, Averaged
from streamdp.optim.losses import Softmax
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import ApproxDP
from streamdp.privacy.mechanisms import Gaussian

_METHODS: dict[str, type[Accelerated]] = {"agd": Accelerated, "sgd": Averaged}
_ROWS = 16_384
"""The most gradients in memory at a time."""


class ShuffleLearner(BatchedModel):
    """The learner, and all three parties in one process."""

    shuffled = True
    trust = (
        "the shuffler, which must mix whole batches and show only that, and enough people who follow the protocol; not "
        "the learner. If one process acts as all parties (learn_one, learn_many, learn_arrays), that process until a "
        "batch ends"
    )

    method: str
    calibration: Calibration
    _rng: Entropy | SeededEntropy

    def _set_up(self) -> None:
        if self.method not in _METHODS:
            raise ConfigError(f"method: expected one of {', '.join(_METHODS)}, got {self.method!r}")
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration: expected tight or paper, got {self.calibration!r}")
        self._walk_kind = _METHODS[self.method]
        self._rng = entropy(self.seed)
        super()._set_up()
        VectorSum.calibrated(self._budget, 1.0, 1000, 1, self.calibration)  # a budget that cannot be served fails here

    def _sum_of(self, users: int, d: int, rounds: int = 1) -> VectorSum:
        loss = self._loss
        return VectorSum.calibrated(self._budget, loss.bound, users, d, self.calibration, loss.sensitivity, rounds)

    def _allocate(self, p: int) -> None:
        from streamdp.aggregation import kernels as k

        self._count_ones = k.count_ones_of_classes if isinstance(self._loss, Softmax) else k.count_ones
        self._ones = np.zeros(self._size(p), dtype=np.int64)
        if self.calibration == "tight":
            gaussian = Gaussian(self._budget, self._loss.bound, self._loss.sensitivity)
            self._gaussian = gaussian.variance(len(self._ones))  # the noise of a sum is within 5 % of it
        super()._allocate(p)

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"method": self.method, "calibration": self.calibration}

    def _noise(self, batch: int) -> float:
        if self.calibration == "paper":
            return self._sum_of(batch, len(self._ones)).noise_variance / batch**2
        variance: float = 1.05 * self._gaussian / batch**2
        return variance

    def _begin_phase(self) -> None:
        super()._begin_phase()
        self._params = self._sum_of(self.phase.batch, len(self._ones))

    # -- one process -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._params.users != self._batch:  # an exception, such as Ctrl-C, interrupted the begin of a phase
            self._begin_phase()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        params, rng, point = self._params, self._rng, self._middle
        spec, bound, places, noise, ones = self._spec, params.bound, params.g, params.b, self._ones
        while (done := self._count_ones(spec, point, X, y, bound, places, noise, ones, rng.words)) < len(X):
            rng.refill_for(done)
            X, y = X[done:], y[done:]

    def _close(self, records: int) -> np.ndarray:
        absent = self.phase.batch - records
        if absent:
            self._add_absent(absent)
        return Analyzer(self._params).sum_of_counts(self._ones, self.phase.batch) / self.phase.batch

    def _add_absent(self, people: int) -> None:
        local = LocalRandomizer(self._params, self._rng)
        for begin in range(0, people, _ROWS):
            self._ones += local.counts(np.zeros((min(_ROWS, people - begin), len(self._ones)))).sum(axis=0)

    def _empty(self) -> dict[str, np.ndarray]:
        return {"_ones": np.zeros_like(self._ones)}

    # -- three parties -----------------------------------------------------------------------------------------------

    @property
    def batch(self) -> tuple[int, int, int]:
        """The next batch: (epoch, phase, step). Raises `NotAvailableError` before the features are known."""
        self._need_features("batch")
        return self._epoch, self._phase_number, self._walk.step

    @property
    def randomizer(self) -> ShuffleRandomizer:
        """A person's half for the next batch. Raises `NotAvailableError` before the features are known."""
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        names, point = self._names, self._middle.copy()
        return ShuffleRandomizer(
            point, self._spec.copy(), self._loss, names, bool(self.intercept), self._params, self.batch, rng
        )

    def absorb(self, shuffled: Shuffled) -> None:
        """Make one step with the mixed bits of the next batch. Its spend follows from how many people answered.

        Parameters
        ----------
        shuffled
            The bits of all who answered, mixed by the shuffler.

        Raises `NotAtBoundaryError` if `learn_one` has begun a batch, `SchemaError` for bits that are not of the agreed
        sum, and `BudgetError` if too few answered for any guarantee; then nothing changes.
        """
        self._need_features("absorb")
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError("a batch of learn_one is open: call close_batch() first")
            total = Analyzer(self._params).sum(shuffled)
            spent = self._params.guarantee_for(shuffled.users) if shuffled.users < self._params.users else self._budget
            self._count(spent)
            self.n_seen += shuffled.users
            self._move(total / shuffled.users)

    def learn_cohort(self, X: np.ndarray, y: np.ndarray, rounds: int = 100) -> None:
        """Learn from people who keep their records and answer in every round: gradient descent over all of them.

        It starts at the present estimate and runs in one process. The budget is for all rounds together: with "tight"
        by the sum of mu^2; with "paper" each round gets epsilon / (2 sqrt(2 T ln(1 / delta))) and delta / (T + 1). With
        `strong_convexity` the people are divided into ceil(log2 log2 n) groups that are learned one after another, each
        from the output of the last. The ledger is not asked: one record is one person. Source: Cheu et al. 2022,
        Algorithm 5 and Theorem 4.9.

        Parameters
        ----------
        X, y
            (n, p) floats and (n,) targets, as for `learn_arrays`.
        rounds
            T >= 1.

        Raises `NotAtBoundaryError` within a batch, `SchemaError` for bad records and `ConfigError` for bad rounds,
        before anything is spent.
        """
        if not isinstance(rounds, int | np.integer) or rounds < 1:
            raise ConfigError("rounds: expected a whole number of at least 1")
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError("a batch is open: call close_batch() first")
            X, y = self._matrix(X), np.ascontiguousarray(y, dtype=float)
            self._check_rows(X, y)
            groups = math.ceil(math.log2(max(2.0, math.log2(max(2, len(X)))))) if self.strong_convexity else 1
            distance, lipschitz = self._problem.distance, self._loss.bound
            for rows in np.array_split(np.arange(len(X)), min(groups, len(X))):
                excess = self._descend(X[rows], y[rows], int(rounds), distance)
                if self.strong_convexity:
                    excess += lipschitz**2 / (self.strong_convexity * len(rows))
                    distance = min(distance, math.sqrt(2 * excess / self.strong_convexity))

    def _descend(self, X: np.ndarray, y: np.ndarray, rounds: int, distance: float) -> float:
        """Learn one group, up to the average of the iterates; return the bound on its excess loss over the group."""
        params = self._cohort_sum(len(X), rounds)
        noise = params.variance / len(X) ** 2
        size = math.sqrt(self._loss.bound**2 + noise)
        walk = Averaged(self._walk.points[1], self._project)
        self._count(self._budget)
        self.n_seen += len(X)
        local, analyzer = LocalRandomizer(params, self._rng), Analyzer(params)
        spec = self._describe(len(self._names))[0]  # of the loss, not of its envelope
        for _ in range(rounds):
            ones = np.zeros_like(self._ones)
            for begin in range(0, len(X), _ROWS):
                part = slice(begin, begin + _ROWS)
                ones += local.counts(gradients(spec, self._loss, walk.middle, X[part], y[part])).sum(axis=0)
            walk.move(analyzer.sum_of_counts(ones, len(X)) / len(X), size * math.sqrt(rounds) / distance)
        self._walk.points[:] = walk.points[1]
        self._middle = self._walk.middle
        return distance * size / math.sqrt(rounds)

    def _cohort_sum(self, users: int, rounds: int) -> VectorSum:
        d = len(self._ones)
        if self.calibration == "tight" or rounds == 1:
            return self._sum_of(users, d, rounds)
        assert isinstance(self._budget, ApproxDP)
        epsilon = self._budget.epsilon / (2 * math.sqrt(2 * rounds * math.log(1 / self._budget.delta)))
        each = ApproxDP(epsilon, self._budget.delta / (rounds + 1))
        return VectorSum.calibrated(each, self._loss.bound, users, d, "paper", self._loss.sensitivity)
