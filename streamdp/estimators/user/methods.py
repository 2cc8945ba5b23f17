"""The public methods of the estimators that collect users: functions of an estimator, which its classes take over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.subjects import subject_bytes
from streamdp.errors import SchemaError
from streamdp.estimators.user.randomizer import UserRandomizer
from streamdp.learners.user_answers import UserReport
from streamdp.learners.user_reports import UserReports
from streamdp.learners.user_windows import Windows
from streamdp.privacy.entropy import Entropy, SeededEntropy
from streamdp.windows.records import WindowUsers

if TYPE_CHECKING:
    from streamdp.data.records import Subject


# -- reports -----------------------------------------------------------------------------------------------------------


def close_user(self: Any, subject: Subject) -> None:
    """End the collection of a user's records: the user reports on those that it has. Without any, do nothing.

    Parameters
    ----------
    subject
        The user, as given to `learn_one`.
    """
    with self.learner.rng.lock:
        self.learner.close_user(subject_bytes(subject))


def randomizer(self: Any) -> UserRandomizer:
    """A user's half of the next question. Take a new one for each report, because coordinates take turns.

    A report may be absorbed until its question is closed. Raises `NotAvailableError` before the features are known.
    """
    from streamdp.optim.loops import ENVELOPE

    learner: UserReports = self._learner(UserReports, "randomizer")
    return UserRandomizer(
        learner.middle.copy(),
        float(learner.spec[ENVELOPE]),
        learner.problem.loss,
        self._names,
        learner.problem.intercept,
        learner.mean,
        learner.batch_steps.place,
        learner.coordinate,
        learner.centre.copy(),
        int(learner.plan.items_per_user),
        learner.rng if isinstance(learner.rng, SeededEntropy) else Entropy(),
        learner.units,
        learner.search.ask(),
    )


def absorb(self: Any, report: UserReport, *, subject: Subject | None = None) -> None:
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
    learner: UserReports = self._learner(UserReports, "absorb")
    self._admission.need_subjects((subject,))
    if not isinstance(report, UserReport):
        raise SchemaError(f"report: expected what a randomizer returns, got {type(report).__name__}")
    with self.learner.rng.lock:
        take = learner.taken(report)
        if self._admission.admit_report(self.learner, subject, report.budget, report.private):
            take()


# -- windows -----------------------------------------------------------------------------------------------------------


def take_records(self: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """End the open window without a release and return its raw records, for `users_of`.

    It is for a process that holds a part of the users of a window, while another one calls `learn_users`. The records
    are counted in `n_seen`. Of them, only sums that the other process alone can read may be passed on.
    """
    with self.learner.rng.lock:
        records: tuple[np.ndarray, np.ndarray, np.ndarray] = self.learner.handed_over()
        return records


def learn_users(self: Any, users: WindowUsers, n: int, records: int, refused: int) -> None:
    """Release a window whose records are in other processes: its proof does not ask where the users are.

    Parameters
    ----------
    users
        All users of the window, with at most `items_per_user` records each. Their sums are exact.
    n, records, refused
        How many users there are, how many records they have, and how many were refused.

    Raises `TooFewUsersError`, before anything is counted; `NotAtBoundaryError` if a window is open here, and
    `ConfigError` without `sums_only`.
    """

    def count() -> None:
        self._count_batch()
        self.n_refused += refused

    with self.learner.rng.lock:
        self._learner(Windows, "learn_users").learn_users(users, n, records, count)
