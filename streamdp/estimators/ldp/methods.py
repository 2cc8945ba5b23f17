"""The public methods of the estimators of local reports: functions of an estimator, which its classes take over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.estimators.ldp.randomizer import Randomizer
from streamdp.learners.local_intervals import settling as settling_of
from streamdp.learners.local_reports import Answer, LocalReports, Report
from streamdp.privacy.entropy import Entropy, SeededEntropy

if TYPE_CHECKING:
    from streamdp.data.records import Subject


def randomizer(self: Any) -> Randomizer:
    """The local half for the next record. `learn_one` is `absorb(randomizer(x, y))`, but for bits.

    Reports have no questions about pairs of columns and about the class.

    Raises `NotAvailableError` before the features are known.
    """
    learner: LocalReports = self._learner(LocalReports, "randomizer")
    features = self.features if isinstance(self.features, Mapping) else self._names
    problem = learner.problem
    return Randomizer(
        learner.arrays.state[0].copy(),
        problem.loss,
        features,
        problem.intercept,
        self.learner.budget,
        learner.mechanism,
        learner.question(),
        learner.rng if isinstance(learner.rng, SeededEntropy) else Entropy(),
        max(2, problem.outputs),
    )


def absorb(self: Any, report: Report | Answer, *, subject: Subject | None = None) -> None:
    """Apply one report. The guarantee takes over the report's budget.

    A gradient that was made for older scales is counted and not learned. A learner cannot recognise a forged report: a
    malicious client can move theta by a step times any vector with coordinates up to 1e15 bounds, and a scale by any
    bit.

    Parameters
    ----------
    report
        A noisy gradient (d,) or a noisy bit, with its budget.
    subject
        The person, for the ledger. A report of a subject over its cap is counted in `n_refused`.

    Raises `SchemaError` if it is not a finite vector of the right length, an answer about no column that is scaled, or
    without a subject although there is a ledger, and `NotAvailableError` before the features are known.
    """
    learner: LocalReports = self._learner(LocalReports, "absorb")
    self._admission.need_subjects((subject,))
    take = learner.taken(report)
    with self.learner.rng.lock:
        if self._admission.admit_report(self.learner, subject, report.budget, report.private):
            take()


def unresolved(self: Any) -> list[str]:
    """Columns that may be spread by any amount below 1/64 of half their declared bounds, as far as bits show.

    The scale of such a column is too large by an unknown factor. Gradients have less information about its coefficient:
    it may stay at 0 however many records come, and it has no interval. Columns of which nearly all values are the same
    belong to them.
    """
    return [] if self._features is None else [self._names[j] for j in self.learner.arrays.units.unresolved]


def interval(self: Any, level: float = 0.95) -> np.ndarray:
    """Return the (d, 2) confidence limits of theta from its path (see `streamdp.reading.intervals`); nothing is spent.

    A row is NaN where the parameter is not settled: theta has not moved around its value for long enough, and an
    interval would say no more than what was expected of the parameter. More records settle it. So is a coefficient of a
    column that is `unresolved`: narrower bounds settle it.
    Coverage is asymptotic, and needs a well-specified, identified model. Intervals are wide where neither the path nor
    bits about pairs of columns (`pair_bits`) exclude that two columns are correlated. With clock="records" there are
    none before the steps add up to five expected relaxation times.

    Parameters
    ----------
    level
        The confidence, above 0 and below 1.

    Raises `NotAvailableError` before the second record, after `merged`, for alpha below 1/2 or 1 and for a schema with
    `per`; `ConfigError` for another level.
    """
    return settling(self, level)[0]


def settles_at(self: Any) -> np.ndarray:
    """Return (d,) about how many records in all give most such parameters an interval; NaN if not yet known.

    An extrapolation: with n records theta moves for a number of relaxation times that grows as n^(1 - alpha). A
    parameter has an interval if it moved for `intervals.LEAST_TIMES`, and the information grew by
    `unit_table.SHORTEST`.

    Raises `NotAvailableError` before the second record and after `merged`.
    """
    return settling(self)[1]


def settling(self: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return `interval` and `settles_at` together, in the time of one of them.

    Parameters
    ----------
    level
        As for `interval`.

    Raises the errors of `interval`.
    """
    learner = self._learner(LocalReports, "interval")
    learner.check_identified()
    return settling_of(learner, level)
