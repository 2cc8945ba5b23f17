"""The learner of user-level reports: see `estimators`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.aggregation.local_mean import UserMean
from streamdp.data.floats import floats
from streamdp.errors import ConfigError, SchemaError, check_choice
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.bounded import PLANNED_ONLY
from streamdp.estimators.user.asked_units import AskedUnits
from streamdp.estimators.user.collected_users import CollectedUsers
from streamdp.estimators.user.open_users import Users
from streamdp.estimators.user.randomizer import UserRandomizer, UserReport, averages
from streamdp.estimators.user.target_units import place_columns, place_targets
from streamdp.optim.asgd import Asgd, Reports
from streamdp.optim.domains import RealSpace
from streamdp.optim.losses import first_theta, weighted_by_norm
from streamdp.optim.states import finite_array
from streamdp.optim.steps import expected_distance
from streamdp.optim.walk import Walk
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.privacy.mechanisms import PrivUnit
from streamdp.privacy.mechanisms.privunit import arithmetic_delta
from streamdp.privacy.statement import REPORT, Unit, arithmetic_note

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_LARGEST_REPORT = 1e75
_CELLS = 2**22  # the largest size of an array with one row for each user who answers


class UserLearner(CollectedUsers, AskedUnits, BatchedModel):
    """Reporting and learning."""

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
    _unit: ClassVar[Unit] = REPORT
    _counts = ("n_seen", "n_refused", "n_users")
    scales_columns = True

    centre: str
    _methods = ("asgd", "ac-sa")

    def _set_up(self) -> None:
        check_choice("centre", self.centre, ("zero", "asked"))
        super()._set_up()
        UserMean(self._budget, 1.0, 2.0, 1, 1, 1.0)  # a budget that cannot be served is an error now
        self.n_users = 0
        """Reports learned."""

    def _usual(self) -> str:
        planned = self.centre != "zero" or any(getattr(self, n) != usual for n, usual in PLANNED_ONLY.items())
        return "ac-sa" if planned else "asgd"

    def _use(self, method: str) -> None:
        super()._use(method)
        if method != "asgd":
            self._loss, self._domain = self._resolve_loss(), self.domain or self._default_domain
            return
        self._check_unplanned("ac-sa")
        if self.centre != "zero":
            raise ConfigError('centre: only the planned steps ask for it: leave it out, or set method="ac-sa"')
        self._loss = weighted_by_norm(self._loss)
        if self.domain is None:
            self._domain = RealSpace()

    def _spread(self) -> float:
        if self._method != "asgd" or self.spread is not None:
            return super()._spread()
        items = int(self.items_per_user)
        return self._loss.bound * max(1 / items, 0.5 / math.sqrt(items))

    def _walk_from(self, start: np.ndarray) -> Walk:
        if self._method != "asgd":
            return super()._walk_from(start)
        return Asgd(self._reports(), start, self._project, self.batch_size)

    def _reports(self) -> Reports:
        from streamdp.privacy.samplers import INFORMATION

        start = self._project(first_theta(self._loss, self._d, self._bounds is not None))
        reach = math.inf if isinstance(self._domain, RealSpace) else self._reach(start)
        classes = self._index is not None
        far = expected_distance(self._d, self._bounds is not None, classes)
        fine = self._mean_of(1).fine
        information = float(fine.rows(self._d)[0, INFORMATION])
        return Reports(information, fine.bound, self._loss.bound, min(far, reach), classes)

    def _mean_of(self, users: int) -> UserMean:
        if self.centre == "asked":
            return UserMean.planned(self._budget, self._loss.bound, self._sensitivity, self._d, users, self._spread())
        mean = UserMean(
            self._budget, self._loss.bound, self._sensitivity, self._d, users, self._spread(), cut=self._spread()
        )
        return mean.quietest() if self._method == "asgd" else mean

    def _noise(self, batch: int) -> float:
        mean = self._mean_of(batch)  # only answers to the fine question are averaged
        return mean.variance + self._spread() ** 2 * (1 / (batch - mean.coarse) - 1 / batch)

    def _allocate(self, p: int) -> None:
        self._d = self._size(p)
        self._begin_in(self._usual_bounds())
        super()._allocate(p)

    def _begin_phase(self) -> None:
        super()._begin_phase()
        self._mean = self._mean_of(self._batch)
        self._begin_batch()

    def _begin_in(self, bounds: tuple[float, float] | None) -> None:
        super()._begin_in(bounds)
        self._stays, self._predictor = bounds is None and self._columns is None, None
        if isinstance(walk := getattr(self, "_walk", None), Asgd):
            walk.expect(self._reports())

    def _inner(self) -> np.ndarray:
        return self._walk.estimate

    def _walk_of(self, part: Self) -> Walk:
        walk = super()._walk_of(part)
        return walk.mapped(lambda theta: self._inward(part._outward(theta))) if isinstance(walk, Asgd) else walk

    def _start_from(self, numbers: np.ndarray) -> None:
        super()._start_from(self._inward(numbers))

    def _begin_batch(self) -> None:
        mean = self._mean
        self._votes = np.zeros((mean.padded, mean.intervals) if mean.coarse else (0, 0), dtype=np.int64)
        self._centre, self._total = np.zeros(self._d), np.zeros(self._d)
        self._answered = 0

    # -- reporting and learning --------------------------------------------------------------------------------------

    def _report(self, users: Users) -> None:
        """Let complete users answer, one after another."""
        if self._mean.users != self._walk.batch:  # an exception, such as Ctrl-C, interrupted the begin of a phase
            self._begin_phase()
        done = 0
        try:
            while done < len(users):
                turn = users[done : done + self._turn]
                X, y, sizes = self._people.records(turn)
                if (asked := self._question()) is not None:
                    self.n_users += 1
                    self._ask(asked, X, y)
                else:
                    place_targets(y, self._units)
                    place_columns(X, self._column_units)
                    self._answer(averages(self._spec, self._loss, self._middle, X, y, sizes))
                done += len(turn)
        finally:
            self._people.wipe()

    @property
    def _turn(self) -> int:
        """How many users may answer at once: as many as get the same question, within the limit of memory."""
        mean = self._mean
        left = (mean.coarse if self._answered < mean.coarse else mean.users) - self._answered
        return min(left, max(1, self._gradients_ahead), max(1, _CELLS // max(mean.padded, mean.intervals)))

    def _answer(self, vectors: np.ndarray) -> None:
        """Let users with these averages (n, d) answer, at most `_turn` of them."""
        mean = self._mean
        if self._answered < mean.coarse:
            coordinates = (self._answered + np.arange(len(vectors))) % mean.padded
            answers = mean.answer_coarse(vectors, coordinates, mean.signs(self.batch), self._rng)
            np.add.at(self._votes, coordinates, answers)
        else:
            answers = mean.answer_fine(vectors, self._centre, self._rng)
            self._total = np.add.accumulate(np.vstack([self._total, answers]))[-1]  # the same sum as one by one
        self._heard(len(vectors))

    def _heard(self, reports: int) -> None:
        """Count reports that were added to the tallies; after the last one go on to the next question or batch."""
        mean = self._mean
        self.n_users += reports
        if self._columns is not None:
            self._columns.count(reports)
        answered = self._answered + reports
        if answered < mean.users:
            if answered == mean.coarse:
                self._centre = mean.centre(self._votes, mean.signs(self.batch))
            self._answered = answered
        else:
            average = self._centre + self._total / (mean.users - mean.coarse)
            self._begin_batch()
            self._move(average, 1, mean.users)
            self._scale_columns()

    @property
    def least_records(self) -> int | None:
        """Reports that `BoundedModel.least_records` counts, with those that were a bit about target or columns."""
        least = super().least_records
        return None if least is None else self.n_asked + least

    @property
    def batch(self) -> tuple[int, int, int]:
        """The batch of the open question: (epoch, phase, step). Raises `NotAvailableError` without features."""
        self._need_features("batch")
        return self._walk.place

    @property
    def randomizer(self) -> UserRandomizer:
        """A user's half of the next question. Take a new one for each report, because coordinates take turns.

        A report may be absorbed until its question is closed. Raises `NotAvailableError` before the features are known.
        """
        from streamdp.optim.loops import ENVELOPE

        self._need_features("randomizer")
        mean = self._mean
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        coordinate = self._answered % mean.padded if self._answered < mean.coarse else None
        return UserRandomizer(
            self._middle.copy(),
            float(self._spec[ENVELOPE]),
            self._loss,
            self._names,
            bool(self.intercept),
            mean,
            self.batch,
            coordinate,
            self._centre.copy(),
            int(self.items_per_user),
            rng,
            self._units,
            self._question(),
            self._column_units,
        )

    def absorb(self, report: UserReport, *, subject: Subject | None = None) -> None:
        """Apply one report. It counts as one record in `n_seen`, because the number of its records is unknown.

        A report of a subject over its cap is counted in `n_refused`. A learner cannot recognise a forged report.

        Parameters
        ----------
        report
            The answer to the open question.
        subject
            The user, for the ledger.

        Raises `SchemaError` if the report answers another question than the open one, or is no answer to it, or has no
        subject although there is a ledger; then nothing changes.
        """
        self._need_features("absorb")
        self._need_subjects((subject,))
        if not isinstance(report, UserReport):
            raise SchemaError(f"report: expected what a randomizer returns, got {type(report).__name__}")
        with self._rng.lock:
            coarse, asked = self._answered < self._mean.coarse, report.question
            if asked is not None and asked.column >= 0:  # of any batch: a bit has no units
                stale = self._asking_target
            else:
                stale = tuple(report.batch) != self.batch or (report.coordinate is not None) != coarse
                stale = stale or (asked is not None) != self._asking_target
            if stale:
                raise SchemaError("report: it answers a question that is no longer open")
            if not self._answers(report):
                raise SchemaError("report: it is no answer to the open question")
            if not self._admit_report(subject, report.budget, report.private):
                return
            self.n_seen += 1
            if asked is not None:
                self.n_users += 1
                self._take_bit(asked, bool(report.answer[0]))
                return
            if coarse:
                self._votes[report.coordinate] += floats("report", report.answer).astype(np.int64)
            else:
                self._total = self._total + floats("report", report.answer)
            self._heard(1)

    def _answers(self, report: UserReport) -> bool:
        """Whether the report has the form of an answer to the open question."""
        mean, answer, coordinate = self._mean, floats("report", report.answer), report.coordinate
        if (asked := report.question) is not None:
            known = asked.column < 0 or (self._columns is not None and self._columns.asks(asked))
            return known and asked.low < asked.high and answer.shape == (1,) and answer[0] in (0.0, 1.0)
        if coordinate is None:
            return answer.shape == (self._d,) and bool(np.all(np.abs(answer) <= _LARGEST_REPORT))
        named = answer.shape == (mean.intervals,) and bool(np.isin(answer, (0, 1)).all())
        known = isinstance(coordinate, int | np.integer) and 0 <= coordinate < mean.padded
        return named and known and answer.sum() == mean.response.picks

    # -- state -------------------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"users": repr((int(self.items_per_user), self._spread(), self.centre))}

    def _learned(self) -> dict[str, Any]:
        return (
            super()._learned()
            | self._learned_bounds()
            | {
                "window_at": self._people.at,
                "answered": self._answered,
                "votes": self._votes.copy(),
                "centre": self._centre.copy(),
                "total": self._total.copy(),
            }
        )

    def _read(self, state: Mapping[str, Any]) -> None:
        bounds = self._read_bounds(state)
        self._begin_in(bounds)
        self._search, self._columns = self._read_search(state, bounds), self._read_columns(state)
        super()._read(state)
        self._follow_scales(self._walk, self._columns)
        mean = self._mean
        self._votes = finite_array(state, "votes", self._votes.shape).astype(np.int64)
        self._centre, self._total = (finite_array(state, name, (self._d,)) for name in ("centre", "total"))
        window_at, answered = int(state["window_at"]), int(state["answered"])
        if window_at < 0 or not 0 <= answered < mean.users:
            raise ConfigError("state: its counts are out of range")
        self._answered, self._people.at = answered, window_at % self._people.window

    def _caveats(self, capped: bool) -> list[str]:
        caveats = [
            f"there are {self.n_users:,} reports, each on up to {self.items_per_user} records of one user",
            "a record without a subject counts as a user of its own",
            *self._about_scale(),
            *self._about_domain(),
            "after a crash the records since the last commit are reported on again: for an observer who saw the state "
            "before the crash and sees the model after it, these users spend twice",
        ]
        if self._names and isinstance(self._mean.fine, PrivUnit) and not self._mean.pure:
            caveats.append(arithmetic_note(arithmetic_delta(self._budget, self._d)))
        return caveats
