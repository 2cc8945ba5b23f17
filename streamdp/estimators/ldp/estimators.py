"""LDP-SGD and LDP-ASGD: noise on every record's answer, a budget for every record.

LDP-SGD answers with the last iterate; LDP-ASGD with an average of all, which is better and has confidence intervals.
Source: Shi, Xie, Jiang, Kong, He 2025, equation 3.2 and section 3, Theorems 1 to 6.

Neighbours: replace one record. Trust: nobody, if the local half (`Randomizer`) runs on the person's side; otherwise the
process that calls `learn_one`. Claim: each record has its own budget, against everyone who sees any state. Every state
is as private as the last, so it may be saved after any record.

Proof: docs/proofs/local_reports.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamdp.data.records import Subject
from streamdp.estimators.estimator import Estimator, of_learner
from streamdp.estimators.ldp.randomizer import Randomizer
from streamdp.estimators.parameters import CLASSIFICATION_LOSSES, documented
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.local_intervals import settling as settling_of
from streamdp.learners.local_reports import Answer, LocalReports, Report
from streamdp.optim.steps import Clock, Steps
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget, PureDP
from streamdp.privacy.mechanisms import Mechanism, MechanismName, mechanism_for
from streamdp.scaling.units import Scaling


@dataclass(eq=False, repr=False, kw_only=True)
class _Reports(Estimator):
    """Local reports.

    Guarantee: each record has its own budget, against everyone who sees any state, for neighbours that differ in that
    record. Source: Shi et al. 2025, eq. 3.2, Theorems 1, 3 and 5; the proof is docs/proofs/local_reports.md.

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Parameters
    ----------
    budget
        What a record without a budget of its own may spend; PureDP(1) if None. Text such as "eps=1" is accepted. With
        mechanism="gaussian" it is ApproxDP(1, 1e-6) if None, and such a text has a delta of 1e-6.
    mechanism
        "auto" (PrivUnit for PureDP, Gaussian for ApproxDP and GaussianDP), "laplace", "gaussian", "privunit", "none"
        (NOT private, for comparisons), or a `Mechanism` class.
    eta
        A multiplier of the step sizes, 0 < eta <= 1e6; with clock="records" the steps are eta i^-alpha.
    alpha
        The decay of the step sizes; 0 <= alpha <= 1.
    domain
        The set that theta is projected to: an `L2Ball`, a `Box`, or None for all of R^d. A domain excludes private
        scaling, because the units of theta change with the scales.
    features
        The declared public schema: the names of the features, or bounds (low, high), a list of categories or {"bounds":
        (low, high), "typical": (centre, spread)} by feature. With the latter, records come raw, and weights are in
        original units. If None, the names of the first record are taken, sorted.
    clock
        "information": steps and average know the noise of each report; "records": they count records, as in the paper
        (see `steps`).
    scaling
        "private": columns and targets with declared bounds are centred and scaled by what some records answer in place
        of a gradient; "declared": by the typical values of the schema; "none"; None: "private" if there are bounds, an
        intercept and no domain, else "none".
    target
        The public bounds (low, high) of the target, which is clipped to them; None: no bounds.
    loss
        A name or a `Loss`: {losses}.
    """

    mechanism: MechanismName | type[Mechanism] = "auto"
    eta: float = 1.0
    alpha: float = 0.6
    clock: Clock = "information"
    scaling: Scaling | None = None
    validation: Mapping[str, object] | None = None
    averaged: ClassVar[bool] = False
    learns = LocalReports
    n_asked = of_learner(LocalReports, "n_asked")
    n_paired = of_learner(LocalReports, "n_paired")

    @property
    def _needs_delta(self) -> bool:
        return PureDP not in mechanism_for(self.mechanism, PureDP(1.0)).serves

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: Rng) -> LocalReports:
        return LocalReports(
            problem,
            budget,
            rng,
            mechanism=self.mechanism,
            steps=Steps(self.eta, self.alpha, self.clock),
            scaling=self.scaling,
            averaged=self.averaged,
            change=self.change,
        )

    @property
    def randomizer(self) -> Randomizer:
        """The local half for the next record. `learn_one` is `absorb(randomizer(x, y))`, but for bits.

        Reports have no questions about pairs of columns and about the class.

        Raises `NotAvailableError` before the features are known.
        """
        learner: LocalReports = self._learner(LocalReports, "randomizer")
        theta, asked = learner.arrays.state[0].copy(), learner.question()
        return Randomizer(theta, budget=learner.budget, mechanism=learner.mechanism, question=asked, **self._on_device)

    @property
    def takes_reports(self) -> bool:
        """See `Estimator.takes_reports`: not with statistics beside the model, which take some of the records."""
        return self._side_of is None

    def absorb(self, report: Report | Answer, *, subject: Subject | None = None) -> None:
        """Apply one report. The guarantee takes over the report's budget.

        A gradient that was made for older scales is counted and not learned. A learner cannot recognise a forged
        report: a malicious client can move theta by a step times any vector with coordinates up to 1e15 bounds, and a
        scale by any bit.

        Parameters
        ----------
        report
            A noisy gradient (d,) or a noisy bit, with its budget.
        subject
            The person, for the ledger. A report of a subject over its cap is counted in `n_refused`.

        Raises `SchemaError` if it is not a finite vector of the right length, an answer about no column that is scaled,
        or without a subject although there is a ledger, and `NotAvailableError` before the features are known.
        """
        self._take_report(report, subject)


class _Average(_Reports):
    """The answer is an average.

    Guarantee: each record has its own budget, against everyone who sees any state, for neighbours that differ in that
    record. Source: Shi et al. 2025, section 3, Theorems 2, 4 and 6; the proof is docs/proofs/local_reports.md.

    Raises `ConfigError` and `BudgetError` for parameters out of range.
    """

    averaged = True

    @property
    def unresolved(self) -> list[str]:
        """Columns that may be spread by any amount below 1/64 of half their declared bounds, as far as bits show.

        The scale of such a column is too large by an unknown factor. Gradients have less information about its
        coefficient: it may stay at 0 however many records come, and it has no interval. Columns of which nearly all
        values are the same belong to them.
        """
        if self._features is None:
            return []
        return [self._names[j] for j in self._learner(LocalReports, "unresolved").arrays.units.unresolved]

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Return the (d, 2) confidence limits of theta from its path (`streamdp.reading.intervals`); nothing is spent.

        A row is NaN where the parameter is not settled: theta has not moved around its value for long enough, and an
        interval would say no more than what was expected of the parameter. More records settle it. So is a coefficient
        of a column that is `unresolved`: narrower bounds settle it. Coverage is asymptotic, and needs a well-specified,
        identified model. Intervals are wide where neither the path nor bits about pairs of columns (`pair_bits`)
        exclude that two columns are correlated. With clock="records" there are none before the steps add up to five
        expected relaxation times.

        Parameters
        ----------
        level
            The confidence, above 0 and below 1.

        Raises `NotAvailableError` before the second record, after `merged`, for alpha below 1/2 or 1 and for a schema
        with `per`; `ConfigError` for another level.
        """
        return self.settling(level)[0]

    def settles_at(self) -> np.ndarray:
        """Return (d,) about how many records in all give most such parameters an interval; NaN if not yet known.

        An extrapolation: with n records theta moves for a number of relaxation times that grows as n^(1 - alpha). A
        parameter has an interval if it moved for `intervals.LEAST_TIMES`, and the information grew by
        `unit_table.SHORTEST`.

        Raises `NotAvailableError` before the second record and after `merged`.
        """
        return self.settling()[1]

    def settling(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return `interval` and `settles_at` together, in the time of one of them.

        Parameters
        ----------
        level
            As for `interval`.

        Raises the errors of `interval`.
        """
        learner = self._learner(LocalReports, "interval")
        learner.check_identified()
        (limits, records), theta = settling_of(learner, level), self.theta
        return learner.limits_around(theta, limits, theta), records


@documented(losses='"huber", "squared" or "quantile"')
@dataclass(eq=False, repr=False)
class LDPSGDRegressor(Regressor, _Reports):
    """Regression by LDP-SGD: the last iterate.

    Examples
    --------
    >>> model = LDPSGDRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee)
    (1, 'eps=1')
    """


@documented(losses='"huber", "squared" or "quantile"')
@dataclass(eq=False, repr=False)
class LDPASGDRegressor(Regressor, _Average):
    """Regression by LDP-ASGD: the averaged iterate.

    Examples
    --------
    >>> model = LDPASGDRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5)
    >>> model.n_seen, str(model.guarantee)
    (1, 'eps=1')
    """


@documented(losses=CLASSIFICATION_LOSSES)
@dataclass(eq=False, repr=False)
class LDPSGDClassifier(Classifier, _Reports):
    """Classification by LDP-SGD: the last iterate.

    Examples
    --------
    >>> model = LDPSGDClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee)
    (1, 'eps=1')
    """


@documented(losses=CLASSIFICATION_LOSSES)
@dataclass(eq=False, repr=False)
class LDPASGDClassifier(Classifier, _Average):
    """Classification by LDP-ASGD: the averaged iterate.

    Examples
    --------
    >>> model = LDPASGDClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True)
    >>> model.n_seen, str(model.guarantee)
    (1, 'eps=1')
    """
