"""Shuffle-private SGD and AC-SA: nobody but a shuffler stands between the people and the learner.

For each batch of b people the learner shows a point `middle`; each person's device takes the gradient there, randomises
it into bits (`shuffling.LocalRandomizer`) and sends them to a shuffler, which mixes the bits of the whole batch; the
learner gets the mixed bits, estimates the average gradient from them and makes one step (`acceleration`):
Cheu, Joseph, Mao, Peng 2022, Algorithms 3 (method="sgd") and 4 (method="agd"), on P_vec (Algorithms 1 and 2), and
Algorithm 5 (`learn_cohort`: the same people answer in several rounds). The paper prints theta + eta g in 3 and 5; it
is theta - eta g.

The argument. Neighbours: replace one record. Whom to trust: the shuffler, and people enough of whom follow the
protocol; not the learner. A batch's mixed bits are (epsilon, delta)-DP (`binomial_sum`, where the proof is, with the
sensitivity that `losses` derives). A record is in one batch only. What the learner computes from the mixed bits, and
every later point it shows, is post-processing: a guarantee for the whole transcript, by parallel composition over
batches. In `learn_cohort` the rounds compose. Where fewer people answer than were planned for, there is less noise:
the spend of that batch is what those who answered get (`VectorSum.guarantee_for`, their Claim A.8), and it is counted.

In three processes: a device holds `randomizer`, a `shuffling.Shuffler` mixes, and the learner calls `absorb`
(`protocol` does that over Kafka, with what crashes do). In one:
`learn_one` and its kin play all three, so the process has to be trusted with raw records and unfinished batches; it
keeps only how many ones each coordinate has, which is all that mixed bits say, and adds the noise of absent people
itself when a batch is closed early.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.aggregation.shuffled_sum import Analyzer, Calibration, LocalRandomizer, Shuffled, VectorSum
from streamdp.errors import ConfigError, NotAtBoundaryError, SchemaError
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.bounded import DEFAULT_BUDGET
from streamdp.estimators.linear import LinearClassifier, LinearRegressor, gradients
from streamdp.optim.ac_sa import Accelerated, Averaged
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss, Softmax
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import ApproxDP, Budget, parse_budget
from streamdp.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

_METHODS: dict[str, type[Accelerated]] = {"agd": Accelerated, "sgd": Averaged}
_ROWS = 16_384
"""Gradients that are in memory at a time."""


@dataclass(frozen=True)
class ShuffleRandomizer:
    """A person's half for one batch: where to take the gradient, and how to make bits of it. Holds nothing of anyone.

    Parameters
    ----------
    point
        (d,), where the gradient is taken; it may come from anywhere.
    spec
        The loss and its envelope, as numbers for the compiled loops (`kernels`).
    loss, features, intercept
        As the learner has them.
    params
        The agreed sum: a `VectorSum` that does not keep its budget cannot be made, and one whose bound or sensitivity
        are not the loss's is refused. `budget` is for the caller to compare with what was promised.
    batch
        Which batch the bits are for: (epoch, phase, step) of the learner. Bits of one batch go into no other.

    Raises `ConfigError` for a point that is no parameter vector of this loss.
    """

    point: np.ndarray
    spec: np.ndarray
    loss: Loss
    features: tuple[Any, ...]
    intercept: bool
    params: VectorSum
    batch: tuple[int, int, int]
    rng: Entropy | SeededEntropy = field(default_factory=Entropy, repr=False, compare=False)

    def __post_init__(self) -> None:
        point = np.array(self.point, dtype=float)
        self.loss.check_theta(point, len(self.features) + bool(self.intercept))
        if (self.params.d, self.params.bound) != (len(point), self.loss.bound):
            raise ConfigError("the agreed sum is not of gradients of this loss: its length or its bound differ")
        assert self.params.sensitivity is not None, "a VectorSum fills it in"
        if self.params.sensitivity < min(self.loss.sensitivity, 2 * self.loss.bound) * (1 - 1e-9):
            raise ConfigError("the agreed sum is not of gradients of this loss: it has noise for a smaller sensitivity")
        object.__setattr__(self, "point", point)

    def messages(self, x: Mapping[Any, Any], y: float) -> np.ndarray:
        """The packed bits (d, w) of one record: x by feature name, y a number (for classifiers the class's index).

        Raises `SchemaError` where a value is not a finite number or y is no class.
        """
        try:
            row = np.array([[x.get(name, 0.0) for name in self.features]], dtype=float)
            target = np.array([y], dtype=float)
        except (TypeError, ValueError):
            raise SchemaError("x, y: expected numbers") from None
        if not (np.isfinite(row).all() and np.isfinite(target).all()):
            raise SchemaError("x, y: expected finite numbers, got NaN or an infinity")
        return self.messages_of(row, target)[0]

    def messages_of(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The packed bits (n, d, w) of n people's records X (n, p), y (n,). Raises `SchemaError` for y that is no
        class.
        """
        self.loss.check_targets(y, max(2, len(self.point) // (len(self.features) + bool(self.intercept))))
        return LocalRandomizer(self.params, self.rng).messages(gradients(self.spec, self.loss, self.point, X, y))


class _Shuffle(BatchedModel):
    """The learner, and all three parties in one process."""

    shuffled = True
    trust = (
        "the shuffler, which must mix whole batches and show only that, and enough people who follow the protocol; not "
        "the learner. Where one process plays all parties (learn_one and its kin), that process until a batch ends"
    )

    method: str
    calibration: Calibration

    def _set_up_shuffle(self, budget: Budget | str | None) -> None:
        if self.method not in _METHODS:
            raise ConfigError(f"method: expected one of {', '.join(_METHODS)}, got {self.method!r}")
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration: expected tight or paper, got {self.calibration!r}")
        self._walk_kind = _METHODS[self.method]
        self._rng = entropy(self.seed)
        spend = DEFAULT_BUDGET if budget is None else parse_budget(budget)
        VectorSum.calibrated(spend, 1.0, 1000, 1, self.calibration)  # what cannot be served is an error now
        self._set_up_batches(spend)

    def _sum_of(self, users: int, d: int, rounds: int = 1) -> VectorSum:
        loss = self._loss
        return VectorSum.calibrated(self._budget, loss.bound, users, d, self.calibration, loss.sensitivity, rounds)

    def _allocate(self, p: int) -> None:
        from streamdp.aggregation import kernels as k

        self._count_ones = k.count_ones_of_classes if isinstance(self._loss, Softmax) else k.count_ones
        self._ones = np.zeros(self._loss.size(p + int(self.intercept), self._outputs()), dtype=np.int64)
        if self.calibration == "tight":
            gaussian = Gaussian(self._budget, self._loss.bound, self._loss.sensitivity)
            self._gaussian = gaussian.variance(len(self._ones))  # which the noise of a sum comes within 5 % of
        super()._allocate(p)

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"method": self.method, "calibration": self.calibration}

    def _noise(self, batch: int) -> float:
        if self.calibration == "paper":
            return self._sum_of(batch, len(self._ones)).noise_variance / batch**2
        return 1.05 * self._gaussian / batch**2

    def _begin_phase(self) -> None:
        super()._begin_phase()
        self._params = self._sum_of(self.phase.batch, len(self._ones))

    # -- one process -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._params.users != self._batch:  # an exception, such as Ctrl-C, came while a phase began
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
        """Which batch comes next: (epoch, phase, step)."""
        self._need_features("batch")
        return self._epoch, self._phase_number, self._walk.step

    @property
    def randomizer(self) -> ShuffleRandomizer:
        """A person's half for the batch that comes next."""
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        names, point = self._names, self._middle.copy()
        return ShuffleRandomizer(
            point, self._spec.copy(), self._loss, names, bool(self.intercept), self._params, self.batch, rng
        )

    def absorb(self, shuffled: Shuffled) -> None:
        """One step with the mixed bits of the batch that comes next.

        What the batch spends follows from how many people answered. Raises `NotAtBoundaryError` where `learn_one` has
        begun
        a batch, `SchemaError` for bits that are not of the agreed sum, `BudgetError` where so few answered that nothing
        can be promised; then nothing changes.
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

        Cheu et al. 2022, Algorithm 5 and Theorem 4.9, from the present estimate, in one process. The budget is for all
        rounds together: with "tight" by the sum of mu^2, with "paper" each round gets epsilon / (2 sqrt(2 T ln(1 /
        delta))) and delta / (T + 1). With `strong_convexity` the people are divided into ceil(log2 log2 n) groups that
        are learned one after another, each from nearer. The subjects' ledger is not asked: one record is one person.

        Parameters
        ----------
        X, y
            (n, p) floats and (n,) targets, as for `learn_arrays`.
        rounds
            T >= 1.

        Raises `NotAtBoundaryError` within a batch, `SchemaError` for bad records, before anything is spent.
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
        """One group: leaves the average of the iterates; returns the bound on its excess over the group's own loss."""
        params = self._cohort_sum(len(X), rounds)
        noise = params.variance / len(X) ** 2
        size = math.sqrt(self._loss.bound**2 + noise)
        walk = Averaged(self._walk.points[1], self._project)
        self._count(self._budget)
        self.n_seen += len(X)
        local, analyzer = LocalRandomizer(params, self._rng), Analyzer(params)
        spec = self._describe(len(self._names))[0]  # of the loss itself, not its envelope
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


_PARAMETERS = """

    Parameters
    ----------
    loss
        A name or a `Loss`: {losses}. A non-smooth one is replaced by its Moreau envelope with "agd".
    budget
        What every record spends, an ApproxDP with epsilon up to 100; ApproxDP(1, 1e-6) when None.
    method
        "agd" (AC-SA) or "sgd" (averaged, the baseline).
    calibration
        "tight" or "paper": how much noise people add, see `binomial_sum`.
    domain
        Where theta is kept: `L2Ball` or a bounded `Box`; L2Ball(5) when None. Steps are planned from its size.
    features
        The declared public schema: feature names. Without it the names of the first record are taken, sorted.
    intercept
        Whether to add a constant 1 to x.
    ledger
        A `Ledger` that caps what each subject spends.
    seed
        For tests only: reproducible noise, and a statement that says "not private".
    horizon
        How many records the stream will have; batches and steps are planned for it. None: in epochs, of 1024 records
        and then each of twice as many. Either way learning may go on beyond it.
    batch_size
        Records of a batch; None: what minimises the error bound, see `acceleration`.
    smoothness
        The loss's smoothness constant, where you know a smaller one than the loss does.
    strong_convexity
        lambda >= 0 of the expected loss, where you know one: learning goes in phases then.{classes}

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Guarantee: each record has `budget`, against everyone who sees what the shuffler forwards and all that follows from
    it, for neighbours that differ in that record; more where fewer people answer than were planned for (`guarantee`
    says how much). Source: Cheu, Joseph, Mao, Peng 2022, Algorithms 1 to 5, Theorems 4.1 to 4.9; the argument is in
    `streamdp.estimators.shuffle`.

    Examples
    --------
    >>> model = {example}
    >>> model.learn_one({{"a": 1.0, "b": -1.0}}, {y})
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """


class ShuffleRegressor(_Shuffle, LinearRegressor):
    __doc__ = "Regression from shuffled gradients." + _PARAMETERS.format(
        losses='"huber", "squared" or "quantile"',
        classes="",
        example='ShuffleRegressor(features=["a", "b"])',
        y="0.5",
    )

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        method: str = "agd",
        calibration: Calibration = "tight",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.method = method
        self.calibration = calibration
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.horizon = horizon
        self.batch_size = batch_size
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self._set_up_shuffle(budget)


class ShuffleClassifier(_Shuffle, LinearClassifier):
    __doc__ = "Classification from shuffled gradients." + _PARAMETERS.format(
        losses='"logistic", "softmax" or "hinge"',
        classes="\n    classes\n        The public labels; (False, True) when None. Others raise `SchemaError`.",
        example='ShuffleClassifier(features=["a", "b"])',
        y="True",
    )

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        method: str = "agd",
        calibration: Calibration = "tight",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.method = method
        self.calibration = calibration
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.horizon = horizon
        self.batch_size = batch_size
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self.classes = classes
        self._set_up_classes()
        self._set_up_shuffle(budget)
