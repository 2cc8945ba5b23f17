"""The learner of the shuffle protocol, and all three parties in one process.

Proof: docs/proofs/shuffle.md.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from streamdp.aggregation.shuffled_sum import Analyzer, Shuffled
from streamdp.aggregation.vector_sum import MOST_ROUNDS, VectorSum
from streamdp.errors import BudgetError, ConfigError, check_whole
from streamdp.learners.batches import Batches, BatchPlan, Vectors
from streamdp.learners.linear_problem import LinearProblem
from streamdp.optim.ac_sa import rounds_of
from streamdp.optim.batch_steps import BatchSteps
from streamdp.optim.planned import Rounds
from streamdp.optim.record_kernel import RecordKernel
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Gaussian

_PLANS = 33
"""The most numbers of rounds that are compared."""


class Cohort(NamedTuple):
    """The same number of people answer in several rounds; `rounds` None: planned."""

    people: int
    rounds: int | None


def cohort_of(declared: object) -> Cohort:
    """The cohort that is `declared`. Raises `ConfigError` for anything but people and maybe rounds."""
    if not isinstance(declared, Mapping) or not {"people"} <= declared.keys() <= {"people", "rounds"}:
        raise ConfigError("cohort: expected people, the number of people, and maybe rounds")
    people, rounds = declared["people"], declared.get("rounds")
    check_whole("cohort.people", people, 1, 10**9)
    if rounds is not None:
        check_whole("cohort.rounds", rounds, 1, MOST_ROUNDS)
    return Cohort(int(people), None if rounds is None else int(rounds))


class ShuffleBatches(Batches):
    """The learner, and all three parties in one process; without a cohort each record is in one batch."""

    private = shuffled = True
    trust = (
        "the shuffler, which must mix whole batches and show only that, and enough people who follow the protocol; not "
        "the learner. If one process acts as all parties (learn_one, learn_many, learn_arrays), that process until a "
        "batch ends"
    )
    methods = ("newton", "ac-sa", "sgd")
    rng: Rng
    params: VectorSum

    def __init__(
        self, problem: LinearProblem, budget: Budget, rng: Rng, plan: BatchPlan, *, cohort: Cohort | None
    ) -> None:
        self.cohort = cohort
        if cohort is not None:
            if plan.method == "newton":
                raise ConfigError('cohort: it needs method="ac-sa" or "sgd"')
            if plan.horizon is not None or plan.batch_size is not None or plan.strong_convexity:
                raise ConfigError(
                    "cohort: leave out horizon, batch_size and strong_convexity: all people are in each round"
                )
        super().__init__(problem, budget, rng, plan)
        if cohort is not None:
            self.refusal = "learn_one, learn_many, learn_arrays: a cohort learns only from its mixed bits, by `absorb`"
        VectorSum.calibrated(budget, 1.0, 1000, 1)  # a budget that cannot be served fails here

    def _usual(self) -> str:
        return super()._usual() if self.cohort is None else "ac-sa"

    def _begin_steps(self, start: np.ndarray) -> BatchSteps:
        if self.cohort is None:
            return super()._begin_steps(start)
        problem = self._planning(start)
        run = rounds_of(problem, self.cohort.people, problem.distance, self.noises(*self.cohort))
        return Rounds(problem, start, self.region.project, run)

    def _sums(self, vectors: Vectors) -> None:
        from streamdp.aggregation import kernels as k

        self._vectors = size, bound, sensitivity = vectors
        self._count_ones: Callable[..., int] = partial(k.count_ones, factor=self.factor)
        self._ones = np.zeros(size + 1, dtype=np.int64)  # the last is the number of people whose noise is in the others
        # The noise of a sum is within 5 % of the Gaussian's.
        self._variance = 1.05 * Gaussian(self.budget, bound, sensitivity).variance(size)

    @property
    def total(self) -> np.ndarray:
        """See `Batches.total`: the number of ones of each coordinate, and of people."""
        return self._ones

    def model(self) -> dict[str, object]:
        model = super().model() | {"method": self.method}
        if self.cohort is not None:  # whose people share one budget among all rounds
            model["budget"] = str(self.budget)
            # A version that plans other rounds would go on with the noise of its own plan.
            model["plan"] = f"{self.cohort.people} people in each of {self._rounds()} rounds, {model['plan']}"
        return model

    def _noise(self, batch: int) -> float:
        return self._variance / batch**2

    def _begin_phase(self) -> None:
        super()._begin_phase()
        if self.cohort is None:
            size, bound, sensitivity = self._vectors
            self.params = VectorSum.calibrated(self.budget, bound, self.full, size, sensitivity)
        else:
            self.params = self.cohort_sum(self.cohort.people, self._rounds())

    # -- one process -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.params.users != self.full:  # an exception, such as Ctrl-C, interrupted the begin of a phase
            self._begin_phase()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        numbers = self.params.bound, self.params.g, self.params.b, self._ones
        self.rng.serve(lambda X, y, words: self._count_ones(self.spec, self.middle, X, y, *numbers, words), X, y)

    def record_kernel(self) -> RecordKernel | None:
        from streamdp.aggregation.kernels import CountTotal

        if not self.open.taken:  # a batch must be opened first
            return None
        params = self.params
        return CountTotal(self.spec, self.middle, self.p, params.bound, params.g, params.b, self._ones, self.factor)

    def _close(self, records: int) -> np.ndarray:
        return Analyzer(self.params).closed(self._ones, self.rng)

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        return state if self.columns is None else state | {"_ones": np.zeros_like(self._ones)}

    def go(self, place: tuple[int, int, int]) -> None:
        self.batch_steps.go(place)
        if self.finished:
            raise ConfigError("all rounds are done")
        self._begin_phase()

    # -- three parties -----------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether all rounds of a cohort are done; False without a cohort."""
        return self.cohort is not None and isinstance(self.batch_steps, Rounds) and self.batch_steps.finished

    def taken(self, shuffled: Shuffled) -> tuple[Budget, Callable[[], None]]:
        """Check the mixed bits of the next batch; return their spend, and what takes them in when it is counted.

        Raises as `absorb` does.
        """
        self.need_boundary()
        if self.finished:
            raise ConfigError("all rounds of the cohort are done")
        params = self.params
        total = Analyzer(params).sum(shuffled)
        spent = params.guarantee_for(shuffled.users) if shuffled.users < params.users else self.budget
        seen = int(self.seen[0])
        new = shuffled.users if self.cohort is None else max(0, shuffled.users - seen)

        def take() -> None:
            self.seen[0] += new
            self.batch_steps.missing = self.batch_steps.place[2] + params.users - int(self.seen[0])
            self.move(total, shuffled.users, params.users)

        return spent, take

    def noises(self, users: int, rounds: int | None) -> dict[int, float]:
        """By number of rounds, the variance of the average of a round: of this number, or of all that are compared."""
        several = [rounds] if rounds else sorted({round(t) for t in np.geomspace(1, min(users, MOST_ROUNDS), _PLANS)})
        noises: dict[int, float] = {}
        for t in several:
            try:
                noises[t] = self.cohort_sum(users, t).variance / users**2
            except BudgetError:  # it takes too many bits, and more rounds take more
                if not noises:
                    raise
                break
        return noises

    def _rounds(self) -> int:
        """The number of rounds of a cohort."""
        assert isinstance(self.batch_steps, Rounds)
        return self.batch_steps.phase.steps

    def cohort_sum(self, users: int, rounds: int) -> VectorSum:
        """The sum over `users` of a cohort in each of so many `rounds`, which share the budget."""
        loss, d = self.problem.loss, len(self._ones) - 1
        return VectorSum.calibrated(self.budget, loss.bound, users, d, loss.sensitivity, rounds)

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        found = super().caveats(spent, capped, answers)
        if self.cohort is not None and self.columns is not None:
            found.append(
                f"the budget is for all {self._rounds()} rounds together in which the same {self.cohort.people:,} "
                "people answer, with the noise of the round in which the fewest answered; another cohort of the same "
                "people spends anew"
            )
        return found
