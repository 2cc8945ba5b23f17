"""The learner of user-level reports, and the one who collects records for users that hold none: see `user_level`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.aggregation.local_mean import UserMean
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.bounded import DEFAULT_BUDGET
from streamdp.estimators.user.open_users import OpenUsers, Users
from streamdp.estimators.user.randomizer import UserRandomizer, UserReport, averages
from streamdp.estimators.user.records import UserRecords
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import PrivUnit
from streamdp.privacy.statement import REPORT, Unit

if TYPE_CHECKING:
    from streamdp.data.records import Subject

_LARGEST_REPORT = 1e75
_CELLS = 2**22  # of the arrays with a row for each user who answers


class UserLearner(UserRecords, BatchedModel):
    """Collecting, reporting and learning. `_taken` counts the raw records of open users, which are in `_people`."""

    trust = (
        "nobody, where users keep their records and send reports; otherwise the process that calls learn_one, which "
        "holds a user's records until they are reported on, and forgets them"
    )
    neighbours = (
        "user level: two streams that differ in all records of one report of one user, replaced by any others that fit "
        "the schema (replace-one); public and not protected are how many records there are, which of them do not fit "
        "the schema and why, whose each is, what budget it brings, when it comes, and so which records make a "
        "report and which ones are refused"
    )
    _unit: ClassVar[Unit] = REPORT

    window_seconds: float | None
    centre: str

    def _set_up_users(self, budget: Budget | str | None) -> None:
        self._check_users()
        if self.window_seconds is not None and not self.window_seconds > 0:
            raise ConfigError(f"window_seconds: expected a positive number, or None, got {self.window_seconds!r}")
        if self.centre not in ("zero", "asked"):
            raise ConfigError(f'centre: expected "zero" or "asked", got {self.centre!r}')
        self._rng: Any = entropy(self.seed)
        self._people = OpenUsers(self.items_per_user, self.window, self.window_seconds)
        self.n_users = 0
        """Reports learned."""
        spend = DEFAULT_BUDGET if budget is None else parse_budget(budget)
        UserMean(spend, 1.0, 2.0, 1, 1, 1.0)  # what cannot be served is an error now
        self._set_up_batches(spend)

    def _mean_of(self, users: int) -> UserMean:
        if self.centre == "asked":
            return UserMean.planned(self._budget, self._loss.bound, self._sensitivity, self._d, users, self._spread())
        return UserMean(
            self._budget, self._loss.bound, self._sensitivity, self._d, users, self._spread(), cut=self._spread()
        )

    def _noise(self, batch: int) -> float:
        mean = self._mean_of(batch)  # only those who answer the fine question are averaged
        return mean.variance + self._spread() ** 2 * (1 / (batch - mean.coarse) - 1 / batch)

    def _allocate(self, p: int) -> None:
        self._d = self._loss.size(p + int(self.intercept), self._outputs())
        super()._allocate(p)

    def _begin_phase(self) -> None:
        super()._begin_phase()
        self._mean = self._mean_of(self.phase.batch)
        self._begin_batch()

    def _begin_batch(self) -> None:
        mean = self._mean
        self._answered = 0
        self._votes = np.zeros((mean.padded, mean.intervals) if mean.coarse else (0, 0), dtype=np.int64)
        self._centre, self._total = np.zeros(self._d), np.zeros(self._d)

    # -- collecting --------------------------------------------------------------------------------------------------

    @property
    def to_boundary(self) -> int:
        """How many records to learn until the window ends, at the latest, and no user is open; 0 where none is."""
        return 0 if self.at_boundary else self._people.room

    def boundary_within(self, records: int) -> int:
        """How many of the next `records` to learn so as to end with a window; all where none ends among them."""
        left, window = self._people.room, self._people.window
        return records if left > records else left + (records - left) // window * window

    def _gather(self, X: np.ndarray, y: np.ndarray, people: Sequence[Subject | None]) -> np.ndarray | None:
        admitted = self._admit(people)
        if admitted is not None:
            self.n_refused += int(np.count_nonzero(~admitted))
        if len(X) and (admitted is None or admitted.any()):
            self._count(self._budget)
        begin = 0
        while begin < len(X):
            part = slice(begin, begin + self._people.room)
            mask = None if admitted is None else admitted[part]
            self.n_seen += len(X[part]) if mask is None else int(np.count_nonzero(mask))
            complete = self._people.take(X[part], y[part], people[part], mask)
            self._taken = self._people.held
            self._report(complete)
            begin = part.stop
        if self._people.late:
            self._finish()
        return admitted

    def _admit(self, subjects: Sequence[Subject | None]) -> np.ndarray | None:
        """Ask the ledger for every report that begins here, before anything changes, so that it may be repeated where
        the ledger raises. The mask (n,) of the records that it admits, or None for all.
        """
        if self.ledger is None:
            return None
        begun, report = self._people.begun(subjects)
        mask: np.ndarray = np.append(self.ledger.admit_many(begun, self._budget), True)[report]
        return None if mask.all() else mask

    def _finish(self) -> None:
        """Close all users, and the window."""
        users = self._people.close()
        self._taken = 0
        self._report(users)

    def close_user(self, subject: Subject) -> None:
        """A marker: this user's records are complete, and it reports on those that it has. Nothing happens without."""
        with self._rng.lock:
            users = self._people.close_user(subject)
            self._taken = self._people.held
            self._report(users)

    # -- reporting and learning --------------------------------------------------------------------------------------

    def _report(self, users: Users) -> None:
        """Users answer in turn."""
        done = 0
        while done < len(users):
            turn = users[done : done + self._turn]
            self._answer(averages(self._spec, self._loss, self._middle, *self._people.records(turn)))
            done += len(turn)

    @property
    def _turn(self) -> int:
        """How many users may answer at once: they are asked the same question."""
        mean = self._mean
        left = (mean.coarse if self._answered < mean.coarse else mean.users) - self._answered
        return min(left, max(1, _CELLS // max(mean.padded, mean.intervals)))

    def _answer(self, vectors: np.ndarray) -> None:
        """At most `_turn` users with these averages (n, d) answer."""
        mean = self._mean
        if self._answered < mean.coarse:
            coordinates = (self._answered + np.arange(len(vectors))) % mean.padded
            answers = mean.answer_coarse(vectors, coordinates, mean.signs(self.batch), self._rng)
            np.add.at(self._votes, coordinates, answers)
        else:
            answers = mean.answer_fine(vectors, self._centre, self._rng)
            self._total = np.add.accumulate(np.vstack([self._total, answers]))[-1]  # as if one by one
        self._heard(len(vectors))

    def _heard(self, reports: int) -> None:
        """So many more reports are in the tallies; go on to the next question or batch where these were the last."""
        mean = self._mean
        self._answered += reports
        self.n_users += reports
        if self._answered == mean.coarse:
            self._centre = mean.centre(self._votes, mean.signs(self.batch))
        if self._answered >= mean.users:
            self._move(self._centre + self._total / (mean.users - mean.coarse))
            self._begin_batch()

    @property
    def batch(self) -> tuple[int, int, int]:
        """Which batch is being asked: (epoch, phase, step)."""
        self._need_features("batch")
        return self._epoch, self._phase_number, self._walk.step

    @property
    def randomizer(self) -> UserRandomizer:
        """A user's half of the question that comes next. A report on it may be absorbed until its question is closed:
        hand out a new one for each report, as coordinates take turns.
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
        )

    def absorb(self, report: UserReport, *, subject: Subject | None = None) -> None:
        """Take up one report, by whomever made; in `n_seen` it counts as one record, for more is not known of it.

        A report of a `subject` over its cap is counted in `n_refused`. Raises `SchemaError` where it answers another
        question than the open one or is no answer to it; then nothing changes. A learner cannot tell a forged report.
        """
        self._need_features("absorb")
        with self._rng.lock:
            coarse = self._answered < self._mean.coarse
            if tuple(report.batch) != self.batch or (report.coordinate is not None) != coarse:
                raise SchemaError("report: it answers a question that is no longer open")
            if not self._answers(report):
                raise SchemaError("report: it is no answer to the open question")
            if self.ledger is not None and subject is not None and not self.ledger.admit(subject, report.budget):
                self.n_refused += 1
                return
            self._count(report.budget)
            self._tainted |= not report.private
            self.n_seen += 1
            if coarse:
                self._votes[report.coordinate] += np.asarray(report.answer, dtype=np.int64)
            else:
                self._total = self._total + report.answer
            self._heard(1)

    def _answers(self, report: UserReport) -> bool:
        """Whether the report has the form of an answer to the open question."""
        mean, answer, coordinate = self._mean, np.asarray(report.answer), report.coordinate
        if answer.dtype.kind not in "buif":
            return False
        if coordinate is None:
            return answer.shape == (self._d,) and bool(np.all(np.abs(answer) <= _LARGEST_REPORT))
        named = answer.shape == (mean.intervals,) and bool(np.isin(answer, (0, 1)).all())
        known = isinstance(coordinate, int | np.integer) and 0 <= coordinate < mean.padded
        return named and known and answer.sum() == mean.response.picks

    # -- state -------------------------------------------------------------------------------------------------------

    def _empty(self) -> dict[str, Any]:
        return {}  # a copy of `_people` is empty by itself

    def _discard(self) -> None:
        self._people.close()
        self._taken = 0

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"users": repr((int(self.items_per_user), self._spread(), self.centre))}

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, text and arrays, with the reports of the unfinished batch. No generator is in it.

        Raises `NotAtBoundaryError` while a user is open: a raw record is never in it.
        """
        with self._rng.lock:
            return super().state_dict() | {
                "n_users": self.n_users,
                "window_at": self._people.at,
                "answered": self._answered,
                "votes": self._votes.copy(),
                "centre": self._centre.copy(),
                "total": self._total.copy(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; the records of open users are forgotten.

        Raises `ConfigError`, changing nothing, where it is of another model, plan or format, or out of range.
        """
        try:
            trial = self.clone({"features": list(self._names or state["features"]), "ledger": None})
            BatchedModel.load_state_dict(trial, state)
            tallies = {name: np.array(state[name]) for name in ("votes", "centre", "total")}
            counts = int(state["n_users"]), int(state["window_at"]), int(state["answered"])
        except KeyError as missing:
            raise ConfigError(f"state: lacks {missing}") from None
        for name, tally in tallies.items():
            mine = getattr(trial, "_" + name)
            if tally.shape != mine.shape or tally.dtype.kind not in "if" or not np.isfinite(tally).all():
                raise ConfigError(f"state: expected finite {name} of shape {mine.shape}, got {tally.shape}")
        if min(counts) < 0 or counts[0] > 10**18 or counts[2] >= trial._mean.users:
            raise ConfigError("state: its counts are out of range")
        with self._rng.lock:
            super().load_state_dict(state)
            self.n_users, self._answered = counts[0], counts[2]
            self._people.at = counts[1] % self._people.window
            self._votes = tallies["votes"].astype(np.int64)
            self._centre, self._total = tallies["centre"].astype(float), tallies["total"].astype(float)

    def merged(self, *others: Self) -> Self:
        """As for every estimator that learns in batches; the reports of unfinished batches and the records of open
        users are left out.
        """
        result = super().merged(*others)
        result.n_users = sum(part.n_users for part in (self, *others))
        return result

    def _caveats(self) -> list[str]:
        caveats = [
            f"there are {self.n_users:,} reports, each on up to {self.items_per_user} records of one user",
            "a record without a subject counts as a user of its own",
            f"theta is kept in {self._domain}",
            "after a crash the records since the last commit are reported on again: whoever saw the state before the "
            "crash and sees the model after it has seen these users spend twice",
        ]
        if self._names and isinstance(self._mean.fine, PrivUnit):
            delta = self._d * 2.0**-32
            caveats.append(
                f"PrivUnit is computed in doubles; who counts the arithmetic adds a delta of about {delta:.1g}"
            )
        return caveats
