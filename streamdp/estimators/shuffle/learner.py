"""The learner of the shuffle protocol, and all three parties in one process.

The argument is in `streamdp.estimators.shuffle.estimators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled
from streamdp.aggregation.vector_sum import CALIBRATIONS, MOST_ROUNDS, Calibration, VectorSum
from streamdp.data.floats import floats
from streamdp.data.records import MOST_RECORDS
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, check_choice, check_whole
from streamdp.estimators.divided import DividedModel
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.optim.ac_sa import Phase, rounds_of
from streamdp.optim.planned import Planned, Rounds
from streamdp.optim.user_averages import gradients
from streamdp.optim.walk import Walk
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import ApproxDP, Budget
from streamdp.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from streamdp.data.records import Subject
    from streamdp.optim.record_kernel import RecordKernel

_ROWS = 16_384
"""The most gradients in memory at a time."""
_PLANS = 33
"""The most numbers of rounds that are compared."""
_MANY = 100_000
"""The number of people that the paper's noise is computed for. Another number changes it by rounding only."""


class ShuffleLearner(DividedModel):
    """The learner, and all three parties in one process."""

    shuffled = True
    trust = (
        "the shuffler, which must mix whole batches and show only that, and enough people who follow the protocol; not "
        "the learner. If one process acts as all parties (learn_one, learn_many, learn_arrays), that process until a "
        "batch ends"
    )

    calibration: Calibration
    cohort: Mapping[str, Any] | None
    _people: int | None = None
    _rounds: int | None = None
    _methods = ("newton", "ac-sa", "sgd")
    _rng: Entropy | SeededEntropy

    def _set_up(self) -> None:
        check_choice("calibration", self.calibration, CALIBRATIONS)
        self._rng = entropy(self.seed)
        if self.cohort is not None:
            self._set_up_cohort(self.cohort)
        super()._set_up()
        VectorSum.calibrated(self._budget, 1.0, 1000, 1, self.calibration)  # a budget that cannot be served fails here

    def _set_up_cohort(self, cohort: Mapping[str, Any]) -> None:
        if not isinstance(cohort, Mapping) or not {"people"} <= cohort.keys() <= {"people", "rounds"}:
            raise ConfigError("cohort: expected people, the number of people, and maybe rounds")
        people, rounds = cohort["people"], cohort.get("rounds")
        check_whole("cohort.people", people, 1, 10**9)
        if rounds is not None:
            check_whole("cohort.rounds", rounds, 1, MOST_ROUNDS)
        self._people, self._rounds = int(people), None if rounds is None else int(rounds)
        if self.features is None:
            raise ConfigError("cohort: it needs declared features, because only `absorb` learns")
        if self.method == "newton" or self.calibration == "paper":
            raise ConfigError('cohort: it needs method="ac-sa" or "sgd", and calibration="tight"')
        if self.horizon is not None or self.batch_size is not None or self.strong_convexity:
            raise ConfigError(
                "cohort: leave out horizon, batch_size and strong_convexity: all people are in each round"
            )

    def _usual(self) -> str:
        return super()._usual() if self._people is None else "ac-sa"

    def _walk_from(self, start: np.ndarray) -> Walk:
        if self._people is None:
            return super()._walk_from(start)
        problem = self._problem(start)
        run = rounds_of(problem, self._people, problem.distance, self._noises(self._people, self._rounds))
        return Rounds(problem, start, self._project, run)

    def _sum_of(self, users: int) -> VectorSum:
        size, bound, sensitivity = self._summed
        return VectorSum.calibrated(self._budget, bound, users, size, self.calibration, sensitivity)

    def _allocate(self, p: int) -> None:
        from streamdp.aggregation import kernels as k

        self._summed = size, bound, sensitivity = self._vectors(p)
        self._count_ones: Callable[..., int] = k.count_ones
        self._ones = np.zeros(size + 1, dtype=np.int64)  # the last is the number of people whose noise is in the others
        if self.calibration == "tight":  # the noise of a sum is within 5 % of the Gaussian's
            self._variance = 1.05 * Gaussian(self._budget, bound, sensitivity).variance(size)
        elif self._curvature is not None:  # it hardly depends on the number of people
            self._variance = self._sum_of(_MANY).noise_variance
        super()._allocate(p)

    def _model(self) -> dict[str, Any]:
        model = super()._model() | {"method": self._method, "calibration": self.calibration}
        if self._people is not None:
            # A version that plans other rounds would go on with the noise of its own plan.
            model["plan"] = f"{self._people} people in each of {self.phase.steps} rounds, {model['plan']}"
        return model

    def _noise(self, batch: int) -> float:
        if self.calibration == "paper" and self._curvature is None:
            return self._sum_of(batch).noise_variance / batch**2
        variance: float = self._variance / batch**2
        return variance

    def _begin_phase(self) -> None:
        super()._begin_phase()
        if self._people is None:
            self._params = self._sum_of(self._batch)
        else:
            self._params = self._cohort_sum(self._people, self.phase.steps)

    # -- one process -------------------------------------------------------------------------------------------------

    def _need_no_cohort(self, name: str) -> None:
        if self._people is not None:
            raise ConfigError(f"{name}: a cohort learns from the mixed bits of its people only, by `absorb`")

    def _learn_record(self, x: Mapping[Any, Any], y: Any, budget: Budget | str | None, subject: Subject | None) -> None:
        self._need_no_cohort("learn_one")  # before the ledger is charged and a spend is counted
        super()._learn_record(x, y, budget, subject)

    def _learn_batch(
        self,
        X: np.ndarray,
        y: np.ndarray,
        amounts: np.ndarray | None,
        subjects: Sequence[Subject | None] | None,
    ) -> np.ndarray | None:
        self._need_no_cohort("learn_many, learn_arrays")
        return super()._learn_batch(X, y, amounts, subjects)

    def _open(self) -> None:
        self._need_no_cohort("learn")
        if self._params.users != self._batch:  # an exception, such as Ctrl-C, interrupted the begin of a phase
            self._begin_phase()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        params, rng, point = self._params, self._rng, self._middle
        spec, bound, places, noise, ones = self._spec, params.bound, params.g, params.b, self._ones
        factor = 0.0 if self._curvature is None else self._curvature.factor
        while (done := self._count_ones(spec, point, X, y, bound, places, noise, ones, rng.words, factor)) < len(X):
            rng.refill_for(done)
            X, y = X[done:], y[done:]

    def _record_kernel(self, p: int) -> RecordKernel:
        from streamdp.aggregation.kernels import CountTotal

        params, factor = self._params, 0.0 if self._curvature is None else self._curvature.factor
        return CountTotal(self._spec, self._middle, p, params.bound, params.g, params.b, self._ones, factor)

    def _close(self, records: int) -> np.ndarray:
        params, ones = self._params, self._ones.copy()  # a copy, so that an exception does not leave half of this
        local = LocalRandomizer(params, self._rng)
        while absent := max(0, params.users - int(ones[-1])):  # also people who were counted, but not learned
            people = min(_ROWS, absent)
            ones += np.append(local.counts(np.zeros((people, params.d))).sum(axis=0), people)
        return Analyzer(params).sum_of_counts(ones[:-1], params.users)

    def _empty(self) -> dict[str, np.ndarray]:
        return {"_ones": np.zeros_like(self._ones)}

    # -- three parties -----------------------------------------------------------------------------------------------

    @property
    def batch(self) -> tuple[int, int, int]:
        """The next batch: (epoch, phase, step), or (0, 0, records before it) for Newton's method.

        Raises `NotAvailableError` before the features are known.
        """
        self._need_features("batch")
        return self._walk.place

    @property
    def finished(self) -> bool:
        """Whether all rounds of a cohort are done; False without a cohort."""
        return self._people is not None and isinstance(self._walk, Rounds) and self._walk.finished

    @property
    def randomizer(self) -> ShuffleRandomizer:
        """A person's half for the next batch. Raises `NotAvailableError` before the features are known."""
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        return ShuffleRandomizer(
            self._middle.copy(),
            self._spec.copy(),
            self._loss,
            self._names,
            bool(self.intercept),
            self._params,
            self.batch,
            rng,
            self._curvature,
        )

    def absorb(self, shuffled: Shuffled) -> None:
        """Make one step with the mixed bits of the next batch. Its spend follows from how many people answered.

        The rounds of a cohort have one spend together, which the first one counts: that of the smallest round so far.

        Parameters
        ----------
        shuffled
            The bits of all who answered, mixed by the shuffler.

        Raises `NotAtBoundaryError` if `learn_one` has begun a batch, `SchemaError` for bits that are not of the agreed
        sum, and if there is a ledger, because the bits name no subjects, `BudgetError` if too few answered for any
        guarantee, and `ConfigError` after the last round of a cohort; then nothing changes.
        """
        self._need_features("absorb")
        self._need_subjects(None)
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError("a batch of learn_one is open: call close_batch() first")
            if self.finished:
                raise ConfigError("all rounds of the cohort are done")
            total = Analyzer(self._params).sum(shuffled)
            spent = self._params.guarantee_for(shuffled.users) if shuffled.users < self._params.users else self._budget
            self._count(spent)
            new = shuffled.users if self._people is None else max(0, shuffled.users - self.n_seen)
            self.n_seen += new
            self._move(total, shuffled.users, self._params.users)

    def learn_cohort(self, X: np.ndarray, y: np.ndarray, rounds: int | None = None) -> None:
        """Learn from people who keep their records and answer in every round, from all of them in each.

        It starts at the present estimate, in one process: by AC-SA, on an envelope of a non-smooth loss, or with
        method="sgd" by the paper's averaged gradient descent. The budget is for all rounds together: with "tight" by
        the sum of mu^2; with "paper" each round gets epsilon / (2 sqrt(2 T ln(1 / delta))) and delta / (T + 1). With
        `strong_convexity` the people are divided into ceil(log2 log2 n) groups that are learned one after another, each
        from the output of the last. One record is one person, and no ledger counts it. Another call with the same
        people spends the budget again: the statement says so, and `guarantee` does not count it. Source: Cheu et al.
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
        self._need_no_cohort("learn_cohort")
        self._need_subjects(None)
        self._planned_walk()
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError("a batch is open: call close_batch() first")
            X, y = self._matrix(X), floats("y", y)
            self._check_rows(X, y)
            if not len(X):
                return
            groups = math.ceil(math.log2(max(2.0, math.log2(max(2, len(X)))))) if self.strong_convexity else 1
            distance, lipschitz = self._planned_walk().problem.distance, self._loss.bound
            for rows in np.array_split(np.arange(len(X)), min(groups, len(X))):
                run = self._cohort_run(len(rows), rounds, distance)
                self._descend(X[rows], y[rows], run)
                if self.strong_convexity:  # to the group's own optimum, and from there to that of all people
                    convexity = self.strong_convexity
                    away = math.sqrt(2 * run.excess / convexity) + lipschitz / (convexity * math.sqrt(len(rows)))
                    distance = min(distance, away)

    def _caveats(self, capped: bool) -> list[str]:
        cohorts = "each call of learn_cohort spends the budget anew: k calls with the same people spend k times"
        if self._people is not None and self._features is not None:
            cohorts = (
                f"the budget is for all {self.phase.steps} rounds together in which the same {self._people:,} people "
                "answer, with the noise of the round in which the fewest answered; another cohort of the same people "
                "spends anew"
            )
        return [*super()._caveats(capped), *([] if self._method == "newton" else [cohorts])]

    def _noises(self, users: int, rounds: int | None) -> dict[int, float]:
        """By number of rounds, the variance of the average of a round: of this number, or of all that are compared."""
        several = [rounds] if rounds else sorted({round(t) for t in np.geomspace(1, min(users, MOST_ROUNDS), _PLANS)})
        noises: dict[int, float] = {}
        for t in several:
            try:
                noises[t] = self._cohort_sum(users, t).variance / users**2
            except BudgetError:  # it takes too many bits, and more rounds take more
                if not noises:
                    raise
                break
        return noises

    def _cohort_run(self, users: int, rounds: int | None, distance: float) -> Phase:
        """The plan for one group."""
        return rounds_of(self._planned_walk().problem, users, distance, self._noises(users, rounds))

    def _descend(self, X: np.ndarray, y: np.ndarray, run: Phase) -> None:
        """Learn one group."""
        from streamdp.optim.loops import ENVELOPE

        walk, params = self._planned_walk(), self._cohort_sum(len(X), run.steps)
        sequence = type(walk.sequence)(walk.estimate, self._project)
        self._count(self._budget)
        self.n_seen += len(X)
        local, analyzer = LocalRandomizer(params, self._rng), Analyzer(params)
        spec = self._describe(len(self._names))[0]
        if walk.problem.accelerated and math.isinf(self._beta):
            spec[ENVELOPE] = 1 / run.beta
        for _ in range(run.steps):
            ones = np.zeros(params.d, dtype=np.int64)
            for begin in range(0, len(X), _ROWS):
                part = slice(begin, begin + _ROWS)
                ones += local.counts(gradients(spec, sequence.middle, X[part], y[part])).sum(axis=0)
            sequence.move(analyzer.sum_of_counts(ones, len(X)) / len(X), run.modulus)
        walk.sequence.points[:] = sequence.points[1]
        self._middle = walk.middle

    def _planned_walk(self) -> Planned:
        if self._method == "newton":
            raise ConfigError('learn_cohort: gradient descent over all rounds; it needs method="ac-sa" or "sgd"')
        assert isinstance(self._walk, Planned)
        return self._walk

    def _cohort_sum(self, users: int, rounds: int) -> VectorSum:
        each, calibration, d = self._budget, self.calibration, len(self._ones) - 1
        if calibration == "paper" and rounds > 1:
            assert isinstance(each, ApproxDP)
            epsilon = each.epsilon / (2 * math.sqrt(2 * rounds * math.log(1 / each.delta)))
            each, rounds = ApproxDP(epsilon, each.delta / (rounds + 1)), 1
        loss = self._loss
        return VectorSum.calibrated(each, loss.bound, users, d, calibration, loss.sensitivity, rounds)
