"""The interface of the learners: rows of numbers in, released numbers out.

A learner knows arrays. It knows no names of columns, no records as mappings, no ledger and no River: the estimator
around it packs, admits and counts records before the learner gets them. It is made without columns, so that parameters
can be checked, and begins when the columns are known.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self
from weakref import WeakSet

import numpy as np

from streamdp.errors import BudgetError, ConfigError, NotAvailableError
from streamdp.learners.linear_problem import Columns, LinearProblem
from streamdp.optim.domains import Domain, RealSpace
from streamdp.privacy.entropy import AnyRng
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP
from streamdp.privacy.release import READS, Prepared, Release
from streamdp.privacy.statement import RECORD, Unit
from streamdp.reading.estimates import limits_of
from streamdp.reading.moderation import NO_NOISE, Noise
from streamdp.system import after_fork

if TYPE_CHECKING:
    from streamdp.estimators.packing import RecordLearner
    from streamdp.learners.side_statistics import SideStatistics
    from streamdp.optim.batch_steps import BatchSteps
    from streamdp.optim.record_kernel import RecordKernel

WITH_DELTA = ApproxDP(1.0, 1e-6)
"""The usual budget where one without a delta is of no use."""
NEIGHBOURS = (
    "two streams that differ in one record, replaced by any other that fits the schema (replace-one); not protected, "
    "because public: how many records there are, which of them do not fit the schema and why, the subject and the "
    "budget of each, and so which ones a cap refuses"
)
ONE_BREAK_IN = (
    "the operator while a record passes through memory; afterwards nobody: it protects against one break-in into the "
    "memory of this estimator at any moment, together with everything that was ever saved or served"
)
"""The trust in a pan-private learner."""


class People(Protocol):
    """What a learner asks that charges the reports of people itself."""

    refused: int
    """Records that were refused."""

    def admit_reports(self, people: Sequence[bytes | None], budget: Budget) -> np.ndarray:
        """Charge a report, of this budget, to each of n `people`; the mask (n,) of those within their cap.

        The others are not counted. Only if there is a cap: then the people of records have `slots`.
        """

    def count(self, learner: "Learner", largest: Budget) -> None:
        """Count a spend, before the rows that it is spent on are learned."""


class HeldOutPeople(Protocol):
    """What rows or people say about the model, as one noisy sum for each batch or window."""

    def add(self, X: np.ndarray, y: np.ndarray) -> None:
        """Let rows X (n, p), y (n,) of the open batch say something about the model before it."""

    def users(self, before: int, n: int) -> np.ndarray:
        """The mask (n,) of the `n` users of a window who are held out, after the users of earlier windows, `before`."""

    def say(self, X: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> None:
        """Release what held-out people say. Records are as for `Windows.users_of`, and are overwritten."""


class Learner(ABC):
    """Learns clean rows whose spends are counted; `budget` is what a unit of the guarantee spends by default.

    Subclasses raise `ConfigError` and `BudgetError` for parameters out of range.
    """

    trust: ClassVar[str]
    neighbours: ClassVar[str] = NEIGHBOURS
    unit: ClassVar[Unit] = RECORD
    default_budget: ClassVar[Budget] = PureDP(1.0)
    needs_delta: ClassVar[bool] = False
    """Whether a budget without delta is of no use: a text such as `eps=1` then has the usual delta."""
    default_domain: ClassVar[Domain] = RealSpace()
    commits_at_every_boundary: ClassVar[bool] = False
    """Whether `close` may have to leave a batch open: then every boundary is worth a commit."""
    per_record_budgets: ClassVar[bool] = False
    """Whether each row has its own noise, so that `check`, and `learn` with a budget or amounts, give what they say."""
    any_budget: ClassVar[bool] = False
    """Whether its state goes on with another budget of the same kind, because it knows the noise of what it has."""
    needs_subject: ClassVar[bool] = False
    """Whether the guarantee covers all records of a subject, so that each record must name its subject."""
    scales_columns: ClassVar[bool] = False
    """Whether centres and scales of columns are learned: then a public schema is of use."""
    noisy_from_first: ClassVar[bool] = False
    """Whether what is kept must be private at any moment, so that a sum begins with noise."""
    stays: ClassVar[bool] = False
    """Whether the array that `point` returns, and `ranges`, only changes in place, until the state is replaced."""
    shuffled: ClassVar[bool] = False
    """Whether it can learn from the messages of a separate shuffler."""
    method_name: str | None = None
    """The method that learns, where there are several."""
    log_links: bool = False
    """Whether its steps learn a mean whose logarithm is linear: Newton's do, with scaling."""
    dated: ClassVar[bool] = False
    """Whether targets are times, by which rows may be too late: see `keeps`."""
    batch_steps: "BatchSteps | None" = None
    """What makes the steps, if they are made with the noisy sums of batches; None before the columns are known."""

    def __init__(self, problem: LinearProblem, budget: Budget, rng: AnyRng) -> None:
        if problem.loss.log_link and not self.log_links:
            raise ConfigError(
                f"loss: {problem.loss.name} is learned by Newton's steps alone: use trust process, shuffler or window, "
                "with their usual method and scaling; or loss squared, which learns a mean that is linear"
            )
        self.problem, self.budget, self.rng = problem, budget, rng
        self.columns: Columns | None = None
        self.seen = np.zeros(1, dtype=np.int64)
        """(1,) the number of rows that were learned. Compiled loops count here, together with each step."""
        self.counts: dict[str, int] = {}
        """Further counts, by name, which add up when learners are merged."""
        self.fast: RecordLearner | None = None
        """What the estimator made of `record_kernel`; the learner takes it away when its arrays move."""
        self._shown: tuple[object, np.ndarray] = b"", np.empty(0)  # what a `point` was computed from, and the point
        self.open: Release | None = None
        """The open batch, if rows share one noise; None: each row is a release of its own."""
        self.side: SideStatistics | None = None
        """Statistics that are estimated from the rows that are learned; None: there are none."""
        self.held_out: HeldOutPeople | None = None
        """What is released of rows about the model in batches or windows; None: nothing."""
        self.refusal: str | None = None
        """Why rows cannot be learned here, as the text of an error; None: they can."""
        _live.add(self)

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state)
        _live.add(self)

    def __getstate__(self) -> dict[str, object]:
        """A copy holds the state of the last boundary: what is open is not in it."""
        return self.__dict__ | {"fast": None, "seen": np.array([self.n_released])}

    @property
    def p(self) -> int:
        """The number of columns; 0 before they are known."""
        return 0 if self.columns is None else len(self.columns)

    # -- learning ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, columns: Columns) -> None:
        """Begin with nothing learned."""

    def finds_bounds(self) -> bool:
        """Whether it finds the bounds of its `Columns.private`; there are some."""
        return False

    def estimate(self, side: "SideStatistics") -> None:
        """Estimate `side` statistics of the rows, too."""
        if self.open is not None:
            self.open.sums["side statistics"] = side.learner
        self.side = side

    def check(self, budget: Budget) -> None:
        """Raise `BudgetError` if a row cannot spend this budget of its own: here none can."""
        raise BudgetError(f"{type(self).__name__}: all records spend {self.budget}, and none {budget}")

    @abstractmethod
    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """Learn clean rows X (n, p) and y (n,), whose spends are counted.

        One budget for all (None: the default), or `amounts` (n,) has one number for each row.
        """

    def record_kernel(self) -> "RecordKernel | None":
        """What learns one record as `learn` does, within a batch; None if there is no faster way."""
        return None

    def room_of_kernel(self) -> tuple[np.ndarray, int]:
        """The count of the records of the open batch, the first of an array, and the number of them that ends it.

        It ends the open batch as `end_full` does.
        """
        assert self.open is not None
        return self.open.records, self.pending + self.end_full()

    # -- boundaries --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Rows in memory that must not leave it yet; here those of the open batch."""
        return 0 if self.open is None else self.open.taken

    @property
    def n_released(self) -> int:
        """Rows of which something was released, and so learned: all but those that are pending."""
        return int(self.seen[0]) - self.pending

    @property
    def full(self) -> int:
        """How many rows a full batch has, if there is `open`."""
        raise NotImplementedError

    def left(self, full: int) -> int:
        """How many rows the open batch reads until it ends, at most, if it takes `full` of them and there is `open`."""
        assert self.open is not None
        taken = int(self.open.records[0])
        return max(0, min(full - taken, READS * full - taken - self.open.passed))

    def end_full(self) -> int:
        """End the open batch if it reads no more rows, if there is `open`; an exception may have interrupted that.

        Returns how many it reads, at most, until something ends.
        """
        assert self.open is not None
        while not (left := self.left(self.full)) and self.open.records[0]:
            self.close()
        return left

    def come_to(self, y: np.ndarray) -> int:
        """How many of the next rows, by their targets y, may join the open batch; all, if there is no `open`.

        A batch that cannot take them ends first.
        """
        return len(y) if self.open is None else min(len(y), self.end_full())

    def keeps(self, y: np.ndarray) -> np.ndarray | None:
        """The mask (n,) of the next rows, by their targets y, that are not too late to be learned; None: all."""
        raise NotImplementedError

    @property
    def to_boundary(self) -> int:
        """How many rows to learn until the next boundary, at most; 0 if each row ends at one, or it is not known."""
        return 0

    def boundary_within(self, records: int) -> int:
        """How many of the next `records` rows to learn so as to end at a boundary; all if none is among them."""
        return records

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Come to a boundary now. Without batches there is nothing to do."""

    def discard(self) -> None:  # noqa: B027 - most have nothing to do
        """Discard what is open."""

    def forget(self) -> None:  # noqa: B027 - most have nothing to do
        """Forget in a fork what else a copy has not."""

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def point(self) -> tuple[np.ndarray, bool]:
        """The vector (d,) that predicts, and whether it is for original values, and not for columns: a view.

        It is the same array while its numbers are the same, but for the views of a learner whose array `stays`.
        """

    @property
    def ranges(self) -> np.ndarray | None:
        """The range (2, p) in which each column counts in predictions; None: all of it. It `stays` as the point."""
        return None

    @property
    def unit_table(self) -> np.ndarray | None:
        """The unit table of the columns, if the noise of `point` is known; see `unit_table`."""
        return None

    @property
    def private(self) -> bool:
        """Whether it adds noise, which each learner says for itself. Seeds are not its concern."""
        return False

    def check_identified(self) -> None:
        """Raise `NotAvailableError` if a prior alone divides effects in those of a group and those that all share."""
        if self.columns is not None and self.columns.own:
            raise NotAvailableError("interval: not for a model with per, whose shared and own effects are pooled")

    @property
    def pools(self) -> bool:
        """Whether what groups have of their own is shrunk by its noise."""
        return False

    @property
    def on_border(self) -> bool:
        """Whether theta sits on the border of its domain, up to 1 % of its size: a larger one may hold a better theta.

        False before the columns are known, and without a domain.
        """
        return False

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        """The centre and the spread of a target as far as they are known privately, and half the width of its bounds.

        A spread of 0: not known yet. Here it is not learned: with bounds, it is half their width.
        """
        if self.problem.target is None:
            return 0.0, 1.0, np.inf
        low, high = self.problem.target
        half = high / 2 - low / 2
        return low / 2 + high / 2, half, half

    @property
    def range_of_scale(self) -> tuple[float, float]:
        """Between which numbers the scale of the loss is in `point`, by its smallest one and the domain."""
        least = self.problem.loss.least_scale
        return -math.inf if least is None else least, math.inf

    def limits_around(self, answer: np.ndarray, limits: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """The limits (d, 2) of the parameters that are `shown` (d,), from those around an `answer` (d,)."""
        between = np.repeat([[-math.inf], [math.inf]], len(shown), axis=1)
        between[:, -1:] = np.reshape(self.range_of_scale, (2, 1))
        return limits_of(limits, answer, shown, between)

    @property
    def least_records(self) -> int | None:
        """With fewer records a model is about as good as a constant; None before the first, and if it is not known."""
        if (steps := self.batch_steps) is None or not self.seen[0] or (least := steps.least) is None:
            return None
        return math.ceil(least * steps.flatness)

    @property
    def n_informing(self) -> int:
        """From how many records, reports or people the model follows: those to compare with `least_records`."""
        return self.n_released

    @property
    def determined(self) -> float | None:
        """Which part of what columns may say noise does not hide, as far as was released; None: not known."""
        return None if (steps := self.batch_steps) is None else steps.determined

    @property
    def n_changes(self) -> int:
        """How many changes of the stream were noticed in what was released, which spends nothing; 0: not looked for."""
        return 0 if (steps := self.batch_steps) is None else steps.changes

    @property
    def renewals(self) -> int:
        """How often it dropped what it had learned before: at each change, at a large one several times on its way."""
        return self.n_changes if (steps := self.batch_steps) is None else steps.renewals

    @property
    def last_change(self) -> int | None:
        """The records that were learned when the last change was noticed; None if there was none, or it is not known.

        It is not known for windows, and if shards were merged.
        """
        return None if (steps := self.batch_steps) is None else steps.last_change

    @property
    def noise(self) -> Noise:
        """What `moderation` needs: the variance by noise of a coordinate of `point`, 0 if it is not known."""
        return NO_NOISE

    @property
    def progress(self) -> np.ndarray | None:
        """What tells whether a `noise` still holds, see `unit_table`; None: it always does."""
        return None

    def noise_units(self) -> np.ndarray:
        """The centres and scales (2, p) of columns in the units of `noise`."""
        raise NotImplementedError

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        """What a statement must say; `spent` are the widest budgets, `capped`: whether a ledger has a cap.

        `answers`: whether some records answer about something else, such as the model's error, and are not learned.
        """
        return []

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        """What two learners must share for their states to mean the same."""
        return {}

    @abstractmethod
    def learned(self) -> dict[str, object]:
        """What was learned, as plain values and new arrays."""

    @abstractmethod
    def read(self, state: Mapping[str, object]) -> None:
        """Take over what `learned` returned, in a copy that an error discards.

        Raises `ConfigError` for values out of range; `KeyError`, `TypeError`, `ValueError`, `OverflowError`: no state.
        """

    @property
    def latest(self) -> float:
        """The share of all that it learned from which counts, because it came after the last change that it noticed."""
        return 1.0 if (steps := self.batch_steps) is None else steps.latest

    def keep_latest(self, share: float) -> None:
        """Let about this share of all that it learned from count, the latest: learners of others noticed a change."""
        if self.batch_steps is not None:
            self.batch_steps.keep_latest(share)

    @property
    def weight(self) -> float:
        """By what `merge` weighs this one: here its rows that count, but for those that are pending."""
        return self.n_released * self.latest

    @abstractmethod
    def merge(self, parts: Sequence[Self], average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        """Start from what others of the same model have learned, of disjoint records, with nothing learned here.

        `average` averages one array of each of the `parts` by their weights.
        """


class Collector(Learner):
    """A learner that holds the rows of a subject until a public rule says that they are complete."""

    needs_subject = True

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        """As `Learner.learn`: not here, because rows come with their subjects."""
        raise NotImplementedError

    def take(self, X: np.ndarray, y: np.ndarray, people: Sequence[bytes | None], joined: np.ndarray) -> None:
        """Read clean rows X (n, p), y (n,) of n `people`, each None a subject of its own, if there is `open`.

        Those are taken that have `joined`, (n,), and their spends are counted.
        """
        raise NotImplementedError

    def gather(self, X: np.ndarray, y: np.ndarray, found: Prepared, admission: People) -> np.ndarray | None:
        """Take clean rows X (n, p), y (n,) of the people who were `found`, if there is no `open`.

        Return what became of each, (n,) as `Release.join`, or None if all were taken. `admission` is asked before rows
        are taken.
        """
        raise NotImplementedError


_live: WeakSet[Learner] = WeakSet()


def _as_a_copy() -> None:
    """Discard what is open in a fork, as in a copy: its people are in a release of the parent."""
    learners = list(_live)
    held = [learner for learner in learners if learner.pending]
    for learner in held:
        learner.seen[0] = learner.n_released
    for learner in held:
        learner.discard()
    for learner in learners:
        learner.forget()


after_fork(_as_a_copy)


def share_changes(learners: Sequence[Learner]) -> None:
    """Let learners of disjoint records of one stream forget what was before a change that only others noticed."""
    most = max(learner.renewals for learner in learners)
    share = min(learner.latest for learner in learners if learner.renewals == most)
    for learner in learners:
        if learner.renewals < most:
            learner.keep_latest(share)
