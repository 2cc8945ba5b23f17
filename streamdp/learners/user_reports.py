"""The learner of user-level reports. Proof: docs/proofs/user_level.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from streamdp.aggregation.local_mean import UserMean
from streamdp.data.floats import finite_array, floats, whole_array
from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError, SchemaError, check_choice, check_whole, is_number
from streamdp.learners.learner import WITH_DELTA, Collector, People
from streamdp.learners.linear_problem import PLANNED_ONLY, USUAL, Columns, LinearProblem, Region, check_unplanned
from streamdp.learners.open_users import OpenUsers, Users
from streamdp.learners.user_answers import MOST_ITEMS, UserReport, averages, is_within, sensitivity_of_average
from streamdp.optim.asgd import Asgd, Reports
from streamdp.optim.batch_steps import BatchSteps
from streamdp.optim.domains import RealSpace
from streamdp.optim.losses import first_theta, weighted_by_norm
from streamdp.optim.planned import Planned
from streamdp.optim.steps import expected_distance
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import PrivUnit
from streamdp.privacy.mechanisms.privunit import arithmetic_delta
from streamdp.privacy.mechanisms.response import chance_of_truth, respond
from streamdp.privacy.release import JOINED, REFUSED, Prepared
from streamdp.privacy.statement import REPORT, Unit, arithmetic_note
from streamdp.reading.change import OnChange, follows
from streamdp.scaling.search import UnitSearch
from streamdp.scaling.units import Scaling, Units, free_units, rebase, scaling_of

ITEMS = 16
WINDOW = 10_000
MOST_WINDOW = 2**31
_LARGEST_REPORT = 1e75
_CELLS = 2**22  # the largest size of an array with one row for each user who answers


Centre = Literal["zero", "asked"]
"""Around what a user's average gradient is cut."""


@dataclass(frozen=True)
class UserWindow:
    """How records are collected by user, and other parameters that learners of users share: see the estimators."""

    items_per_user: int
    window: int
    spread: float | None
    scaling: Scaling | None
    change: OnChange | None
    smoothness: float | None
    strong_convexity: float

    def __post_init__(self) -> None:
        check_whole("items_per_user", self.items_per_user, 1, MOST_ITEMS)
        check_whole("window", self.window, 1, MOST_WINDOW)
        if self.spread is not None and not (is_number(self.spread) and 1e-60 <= self.spread < math.inf):
            raise ConfigError(f"spread: expected a finite number of at least 1e-60, or None, got {self.spread!r}")

    def spread_for(self, bound: float) -> float:
        """The spread for plans, of gradients with a bound: if it is not known, as of independent records."""
        usual = bound / math.sqrt(self.items_per_user)
        return min(bound, usual if self.spread is None else self.spread)


@dataclass(frozen=True)
class UserPlan(UserWindow):
    """The parameters of user-level reports; see the estimators."""

    method: str
    centre: Centre
    window_seconds: float | None
    horizon: int | None
    batch_size: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("centre", self.centre, get_args(Centre))
        check_choice("method", self.method, ("auto", "asgd", "ac-sa"))
        if self.scaling is not None:
            check_choice("scaling", self.scaling, get_args(Scaling), " or None")
        if (seconds := self.window_seconds) is not None and not (is_number(seconds) and seconds > 0):
            raise ConfigError(f"window_seconds: expected a positive number, or None, got {seconds!r}")
        for name, value in (("horizon", self.horizon), ("batch_size", self.batch_size)):
            if value is not None:
                check_whole(name, value, 1, MOST_RECORDS)


class UserReports(Collector):
    """Collects the records of users, lets complete users answer, and learns from the answers.

    The raw records of open users are in `people` and nowhere else.
    """

    trust = (
        "nobody, if users keep their records and send reports; otherwise the process that calls learn_one, which "
        "holds a user's records until they are reported on, and then deletes them"
    )
    neighbours = (
        "user level: two streams that differ in all records of one report of one user, replaced by any others that fit "
        "the schema (replace-one); not protected, because public: how many records there are, which of them do not fit "
        "the schema and why, the subject, the budget and the time of each, and so which records make a report and "
        "which ones are refused"
    )
    unit: ClassVar[Unit] = REPORT
    default_budget: ClassVar[Budget] = WITH_DELTA
    default_domain = USUAL
    private = any_budget = True
    scales_columns = True
    rng: Rng
    batch_steps: BatchSteps
    mean: UserMean
    """How the answers of the next batch are made and averaged."""
    spec: np.ndarray

    def __init__(self, problem: LinearProblem, budget: Budget, rng: Rng, plan: UserPlan) -> None:
        region = Region.planned(problem, plan.smoothness, plan.strong_convexity)
        planned = plan.centre != "zero" or any(getattr(plan, n) != usual for n, usual in PLANNED_ONLY.items())
        usual = "ac-sa" if planned else "asgd"
        self.plan, self.given = plan, problem
        self.method = self.method_name = usual if plan.method == "auto" else plan.method
        self.follows = follows(plan.change, None if self.method == "asgd" else f'with method="{self.method}"')
        if self.method == "asgd":
            check_unplanned(vars(plan), "ac-sa")
            if plan.centre != "zero":
                raise ConfigError('centre: only the planned steps ask for it: leave it out, or set method="ac-sa"')
            domain = problem.domain if problem.given_domain else RealSpace()
            problem = replace(problem, loss=weighted_by_norm(problem.loss), domain=domain)
        super().__init__(problem, budget, rng)
        self.region = replace(region, problem=problem)
        self.people = OpenUsers(plan.items_per_user, plan.window, plan.window_seconds)
        self.counts = {"n_users": 0}
        UserMean(budget, 1.0, 2.0, 1, 1, 1.0)  # a budget that cannot be served is an error now

    # -- set-up ------------------------------------------------------------------------------------------------------

    def begin(self, columns: Columns) -> None:
        self.columns = columns
        self.spec, box = self.problem.described(len(columns))
        self._d = box.shape[1]
        self.search = self._search_of(columns)
        self.batch_steps = self._begin_steps()
        self._begin_phase()

    def _search_of(self, columns: Columns) -> UnitSearch:
        plan, problem = self.plan, self.problem
        needs = free_units(problem.intercept, problem.given_domain, plan.smoothness, plan.strong_convexity)
        steps = {'method="asgd", because the planned steps count all users': self.method == "asgd"}
        usual, bounded = "private" if self.method == "asgd" else "declared", problem.target is not None
        bounds = bounded or bool(columns.numeric.any())
        scaling = scaling_of(plan.scaling, usual, bounds, {"declared": needs, "private": needs | steps})
        private, target = scaling == "private", None if scaling == "none" else problem.target
        typical = columns.typical if private else {}
        keep = chance_of_truth(self.budget)
        return UnitSearch(columns.numeric & private, typical, target, private, keep, problem.intercept, problem.outputs)

    @property
    def units(self) -> Units:
        """The units in which theta is learned."""
        return self.search.units

    def _begin_steps(self) -> BatchSteps:
        plan, problem, region = self.plan, self.problem, self.region
        start = region.project(problem.loss.start(self._d))
        if self.method == "asgd":
            return Asgd(self._reports(), start, region.project, plan.batch_size)
        bounds = region.planning(start, self.p, self._noise, self._spread)
        return Planned(bounds, start, region.project, plan.horizon, plan.batch_size)

    def _reports(self) -> Reports:
        from streamdp.privacy.samplers import INFORMATION

        loss, bounded, classes = self.problem.loss, self.search.bounds is not None, self.problem.classes > 0
        reach = self.region.reach(self.region.project(first_theta(loss, self._d, bounded)))
        fine = self.mean_of(1).fine
        information = float(fine.rows(self._d)[0, INFORMATION])
        far = expected_distance(self._d, bounded, classes)
        curvature = self.problem.curvature(self.p) / fine.bound if self.follows else 0.0
        numbers = information, fine.bound, loss.bound, min(far, reach)
        return Reports(*numbers, classes, loss.least_scale is not None, curvature)

    @property
    def _spread(self) -> float:
        """The root mean square distance of a user's average gradient from the mean, for plans."""
        bound, items = self.problem.loss.bound, int(self.plan.items_per_user)
        if self.method != "asgd" or self.plan.spread is not None:
            return self.plan.spread_for(bound)
        return bound * max(1 / items, 0.5 / math.sqrt(items))

    def mean_of(self, users: int) -> UserMean:
        """The private mean over so many `users`."""
        loss, spread = self.problem.loss, self._spread
        sensitivity = sensitivity_of_average(loss, int(self.plan.items_per_user))
        if self.plan.centre == "asked":
            return UserMean.planned(self.budget, loss.bound, sensitivity, self._d, users, spread)
        mean = UserMean(self.budget, loss.bound, sensitivity, self._d, users, spread, cut=spread)
        return mean.quietest() if self.method == "asgd" else mean

    def _noise(self, batch: int) -> float:
        mean = self.mean_of(batch)  # only answers to the fine question are averaged
        return mean.variance + self._spread**2 * (1 / (batch - mean.coarse) - 1 / batch)

    @property
    def middle(self) -> np.ndarray:
        """Where gradients are taken (d,), as a new array."""
        return self.batch_steps.middle

    def _begin_phase(self) -> None:
        """Prepare for the next batches: called when their size changes, and when the steps go to another batch."""
        from streamdp.optim.loops import ENVELOPE

        self.spec[ENVELOPE] = self.batch_steps.envelope
        self.mean = self.mean_of(self.batch_steps.batch)
        self._begin_batch()

    def _begin_batch(self) -> None:
        mean = self.mean
        self._votes = np.zeros((mean.padded, mean.intervals) if mean.coarse else (0, 0), dtype=np.int64)
        self.centre, self.total = np.zeros(self._d), np.zeros(self._d)
        self.answered = 0

    # -- collecting --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self.people.held

    @property
    def to_boundary(self) -> int:
        return self.people.room

    def boundary_within(self, records: int) -> int:
        """See `Learner.boundary_within`: only ends of windows are planned boundaries."""
        left, window = self.people.room, self.people.window
        return records if left > records else left + (records - left) // window * window

    def gather(self, X: np.ndarray, y: np.ndarray, found: Prepared, admission: People) -> np.ndarray | None:
        """See `Collector.gather`. The ledger is asked for every report that begins here, before anything changes."""
        if not self.people.room:  # an exception, such as Ctrl-C, interrupted the end of a window
            self.close()
        people, periods = found.people, repeat(0) if found.periods is None else found.periods.tolist()
        users = [None if p is None else (p, period) for p, period in zip(people, periods, strict=False)]
        admitted = None
        if found.slots is not None:
            timely = np.ones(len(X), dtype=bool) if found.timely is None else found.timely
            begun, report = self.people.begun(users, timely)
            fit = admission.admit_reports([people[i] for i in begun], self.budget)
            admitted = np.append(fit, True)[report] & timely
            admission.refused += int(np.count_nonzero(~admitted))
            admitted = None if admitted.all() else admitted
        if len(X) and (admitted is None or admitted.any()):
            admission.count(self, self.budget)
        begin = 0
        while begin < len(X):
            part = slice(begin, begin + self.people.room)
            mask = None if admitted is None else admitted[part]
            self.seen[0] += len(X[part]) if mask is None else int(np.count_nonzero(mask))
            self._report(self.people.take(X[part], y[part], users[part], mask))
            begin = part.stop
        if self.people.late:
            self.close()
        return None if admitted is None else np.where(admitted, JOINED, REFUSED)

    def close(self) -> None:
        self._report(self.people.close())

    def close_user(self, subject: bytes | None) -> None:
        """Let a user, the subject, report on the records that it has, if there are any."""
        self._report(self.people.close_user(subject))

    def discard(self) -> None:
        self.people.close()
        self.people.wipe()

    # -- reporting ---------------------------------------------------------------------------------------------------

    def _report(self, users: Users) -> None:
        """Let complete users answer, one after another."""
        if self.mean.users != self.batch_steps.batch:  # an exception, such as Ctrl-C, interrupted the begin of a phase
            self._begin_phase()
        done = 0
        try:
            while done < len(users):
                turn = users[done : done + self._turn]
                X, y, sizes = self.people.records(turn)
                if (asked := self.search.ask()) is not None:
                    self.counts["n_users"] += 1
                    truth = is_within(asked, X, y, self.search.bounds)
                    self.search.take(asked, respond(truth, chance_of_truth(self.budget), self.rng))
                else:
                    units = self.units
                    units.place_targets(y)
                    units.place_columns(X)
                    self._answer(averages(self.spec, self.problem.loss, self.middle, X, y, sizes))
                done += len(turn)
        finally:
            self.people.wipe()

    @property
    def _turn(self) -> int:
        """How many users may answer at once: as many as get the same question, within the limit of memory."""
        mean = self.mean
        left = (mean.coarse if self.answered < mean.coarse else mean.users) - self.answered
        return min(left, max(1, self.search.wait), max(1, _CELLS // max(mean.padded, mean.intervals)))

    def _answer(self, vectors: np.ndarray) -> None:
        """Let users with these averages (n, d) answer, at most `_turn` of them."""
        mean = self.mean
        if self.answered < mean.coarse:
            coordinates = (self.answered + np.arange(len(vectors))) % mean.padded
            answers = mean.answer_coarse(vectors, coordinates, mean.signs(self.batch_steps.place), self.rng)
            np.add.at(self._votes, coordinates, answers)
        else:
            answers = mean.answer_fine(vectors, self.centre, self.rng)
            self.total = np.add.accumulate(np.vstack([self.total, answers]))[-1]  # the same sum as one by one
        self._heard(len(vectors))

    def _heard(self, reports: int) -> None:
        """Count reports that were added to the tallies; after the last one go on to the next question or batch."""
        mean = self.mean
        self.counts["n_users"] += reports
        self.search.count(reports)
        answered = self.answered + reports
        if answered < mean.users:
            if answered == mean.coarse:
                self.centre = mean.centre(self._votes, mean.signs(self.batch_steps.place))
            self.answered = answered
        else:
            average = self.centre + self.total / (mean.users - mean.coarse)
            self._begin_batch()
            before = self.batch_steps.place[:2], self.batch_steps.batch
            self.batch_steps.move(average, 1, mean.users)
            if (self.batch_steps.place[:2], self.batch_steps.batch) != before:
                self._begin_phase()
            self._take_since()
            self._scale_columns()

    def _scale_columns(self) -> None:
        steps = self.batch_steps
        if not isinstance(steps, Asgd) or (found := self.search.rescaled(steps.information)) is None:
            return
        search, restart = found
        old, new = self.units, search.units
        if not np.array_equal(old.columns, new.columns):
            steps = steps.mapped(lambda theta: rebase(theta, old, new))
            steps.carry(search.arrays, self.search.arrays.table)
            self._follow(steps, search)
        if restart:
            steps.forget()
        # All on one line: an exception, such as Ctrl-C, must not leave theta in other units than the columns.
        self.search, self.batch_steps = search, steps

    def _take_since(self) -> None:
        """Take over where the progress of columns began, which a change of the stream moves."""
        if isinstance(self.batch_steps, Asgd) and self.search.searched[1]:
            self.search.since[:] = self.problem.blocks(self.batch_steps.since, self.p)[0, :-1]

    def _follow(self, steps: BatchSteps, search: UnitSearch) -> None:
        """Set where the progress of columns began."""
        if isinstance(steps, Asgd) and search.searched[1]:
            blocks = self.problem.blocks(since := np.zeros(self._d), self.p)
            blocks[:, :-1] = search.since
            steps.since = since

    # -- reports of devices ------------------------------------------------------------------------------------------

    @property
    def coordinate(self) -> int | None:
        """The coordinate that the open coarse question asks the next user about; None for the fine question."""
        return self.answered % self.mean.padded if self.answered < self.mean.coarse else None

    def taken(self, report: UserReport) -> Callable[[], None]:
        """Check a report, and return what takes it in, for when its spend is counted. Raises as `absorb` does."""
        coarse, asked = self.answered < self.mean.coarse, report.question
        if asked is not None and asked.column != self.p:  # of any batch: a bit about a column has no units
            stale = self.search.asking_target
        else:
            stale = tuple(report.batch) != self.batch_steps.place or (report.coordinate is not None) != coarse
            stale = stale or (asked is not None) != self.search.asking_target
        if stale:
            raise SchemaError("report: it answers a question that is no longer open")
        answer = floats("report", report.answer)
        if not self._answers(report, answer):
            raise SchemaError("report: it is no answer to the open question")

        def take() -> None:
            self.seen[0] += 1
            if asked is not None:
                self.counts["n_users"] += 1
                self.search.take(asked, bool(answer[0]))
                return
            if coarse:
                self._votes[report.coordinate] += answer.astype(np.int64)
            else:
                self.total = self.total + answer
            self._heard(1)

        return take

    def _answers(self, report: UserReport, answer: np.ndarray) -> bool:
        """Whether the report has the form of an answer to the open question."""
        mean, coordinate = self.mean, report.coordinate
        if (asked := report.question) is not None:
            known = self.search.arrays.scaled(asked.column) and asked.low < asked.high
            return known and answer.shape == (1,) and bool(answer[0] in (0.0, 1.0))
        if coordinate is None:
            return answer.shape == (self._d,) and bool(np.all(np.abs(answer) <= _LARGEST_REPORT))
        named = answer.shape == (mean.intervals,) and bool(np.isin(answer, (0, 1)).all())
        known = isinstance(coordinate, int | np.integer) and 0 <= coordinate < mean.padded
        return named and known and bool(answer.sum() == mean.response.picks)

    # -- what was released -------------------------------------------------------------------------------------------

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        estimate, units = self.batch_steps.estimate, self.search.arrays
        state = estimate.tobytes() + units.table.tobytes() + units.summary.tobytes()
        if self._shown[0] != state:
            self._shown = state, self.units.outward(estimate)
        return self._shown[1], False

    @property
    def place_of_target(self) -> tuple[float, float, float]:
        if not self.search.searched[0]:
            return 0.0, 1.0, np.inf
        units, (_, _, half) = self.units, super().place_of_target
        return units.centre, 0.0 if self.search.asking_target else units.scale, half

    @property
    def n_asked(self) -> int:
        """Reports that were one bit about the centre and the spread of target or columns, and not a gradient."""
        return 0 if self.columns is None else self.search.asked

    @property
    def n_informing(self) -> int:
        return self.counts["n_users"]

    @property
    def least_records(self) -> int | None:
        """Reports below which a model is about as good as a constant, with those that were a bit; None if not known."""
        least = super().least_records
        return None if least is None else self.n_asked + least

    @property
    def on_border(self) -> bool:
        return self.columns is not None and self.region.on_border(self.batch_steps.estimate)

    def caveats(self, spent: Sequence[Budget], capped: bool, answers: bool) -> list[str]:
        begun, reports, scale, domain = self.columns is not None, self.counts["n_users"], [], []
        if begun and any(self.search.searched):
            scale = [
                f"of the reports, {self.n_asked:,} spent their budget on one bit about the centre and the spread of "
                "the target or of a column, and the others on a gradient; which ones is public"
            ]
        if begun:
            named = ", in units of the target's bounds," * (self.search.bounds is not None)
            domain = self.region.caveats(self.batch_steps.estimate, named)
        caveats = [
            f"there are {reports:,} reports, each on up to {self.plan.items_per_user} records of one user; the method "
            f"is {self.method}",
            "a record without a subject counts as a user of its own",
            *scale,
            *domain,
            "after a crash the records since the last commit are reported on again: for an observer who saw the state "
            "before the crash and sees the model after it, these users spend twice",
        ]
        if begun and isinstance(self.mean.fine, PrivUnit) and not self.mean.pure:
            caveats.append(arithmetic_note(arithmetic_delta(self.budget, self._d)))
        return caveats

    # -- state -------------------------------------------------------------------------------------------------------

    def model(self) -> dict[str, object]:
        plan, place = self.plan, self.region.text
        horizon, size = (None if n is None else int(n) for n in (plan.horizon, plan.batch_size))
        planned: tuple[object, ...] = (horizon, size, self.region.beta(self.p), self.region.convexity, place)
        if self.method == "asgd":
            planned = ("asgd", size, place, self.problem.loss.weighting)
        return {
            "loss": repr(self.given.loss),
            "plan": repr(planned),
            "users": repr((int(self.plan.items_per_user), self._spread, plan.centre)),
            "scaling": repr((self.search.bounds, self.search.searched)),
        }

    def learned(self) -> dict[str, object]:
        return (
            self.batch_steps.learned()
            | self.search.learned()
            | {
                "budget": str(self.budget),
                "window_at": self.people.at,
                "answered": self.answered,
                "votes": self._votes.copy(),
                "centre": self.centre.copy(),
                "total": self.total.copy(),
            }
        )

    def read(self, state: Mapping[str, Any]) -> None:
        self.search.read(state)
        if other := state["budget"] != str(self.budget):  # answers with another noise do not add up to one average
            state = {**self.batch_steps.planned_anew(state), "answered": 0}
        self.batch_steps.read(state, lambda theta: self.region.check_theta(theta, self.p))
        self._begin_phase()
        self._follow(self.batch_steps, self.search)
        if not other:
            self._votes = whole_array(state, "votes", self._votes.shape)
            self.centre, self.total = (finite_array(state, name, (self._d,)) for name in ("centre", "total"))
        window_at, answered = int(state["window_at"]), int(state["answered"])
        if window_at < 0 or not 0 <= answered < self.mean.users:
            raise ConfigError("state: its counts are out of range")
        self.answered, self.people.at = answered, window_at % self.people.window

    def keep_latest(self, share: float) -> None:
        super().keep_latest(share)
        self._take_since()

    def merge(self, parts: "Sequence[UserReports]", average: Callable[[Sequence[np.ndarray]], np.ndarray]) -> None:
        self.search.merge([part.search for part in parts])
        self._follow(self.batch_steps, self.search)
        if any(part.weight for part in parts):
            found = self.units.inward(average([part.point[0] for part in parts]))
            self.batch_steps.estimate[:] = self.region.project(found)
        sequences: list[Any] = [part._mapped_to(self.units) for part in parts]  # noqa: SLF001 - the same class
        self.batch_steps.merge(sequences, self.batch_steps.estimate.copy())
        self._begin_phase()

    def _mapped_to(self, units: Units) -> BatchSteps:
        steps, own, project = self.batch_steps, self.units, self.region.project
        return steps.mapped(lambda theta: project(rebase(theta, own, units))) if isinstance(steps, Asgd) else steps
