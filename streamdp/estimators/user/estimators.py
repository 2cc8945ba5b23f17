"""User-level local learning: one report protects all records of a user that it is made from.

A user averages the gradients of its records at the learner's point and answers one question about the average; from a
batch's mean the learner makes one step. method="asgd": steps that know the noise, without a plan. method="ac-sa":
Bassily, Sun 2023, Algorithm 5, on Algorithms 1 to 3.

Neighbours: all records of one report replaced by any others. Trust: nobody, if users hold `randomizer` and the learner
gets reports (`absorb`); the process, if it collects records. Claim: a report is (epsilon, delta)-DP for all records of
the user that it is made from. Raw records of open users are in memory and nowhere else.

Proof: docs/proofs/user_level.md.
"""

from dataclasses import dataclass
from typing import Literal

from streamdp.data.records import Subject
from streamdp.data.subjects import subject_bytes
from streamdp.errors import SchemaError
from streamdp.estimators.batch_methods import batch, phase
from streamdp.estimators.estimator import Estimator, counted, of_learner
from streamdp.estimators.parameters import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented, given
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.estimators.user.randomizer import UserRandomizer
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.user_answers import UserReport
from streamdp.learners.user_reports import ITEMS, WINDOW, Centre, UserPlan, UserReports
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget
from streamdp.scaling.units import Scaling


@dataclass(eq=False, repr=False, kw_only=True)
class _UserLevel(Estimator):
    """User-level local learning.

    Guarantee: each report has `budget`, against everyone who sees it and any state, for neighbours that differ in all
    records of that report (user level). A subject with several reports spends in each; a ledger caps the sum. Source:
    Bassily, Sun 2023, Algorithms 1 to 3 and 5, Theorems 3.2 and 4.3; the proof, and what is corrected in them,
    are docs/proofs/user_level.md and local_mean.md there.

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Parameters
    ----------
    budget
        What each report spends: ApproxDP or GaussianDP (Gaussian noise), or PureDP (PrivUnit, less noise here);
        ApproxDP(1, 1e-6) if None. Text such as "mu=1" is accepted.
    window
        From 1 to 2^31: after this many records of the stream, all users report on the records that they have.
    window_seconds
        A positive number: all users also report in the first call that learns when a user was open for so long; None:
        no limit of time.
    method
        "asgd": averaged SGD whose steps know the noise; no horizon, domain or plan is needed. "ac-sa": the accelerated
        steps of the paper, planned from `horizon`, `domain`, `smoothness` and `strong_convexity`. "auto": "ac-sa" if
        one of these but the domain is set, or centre="asked", else "asgd".
    domain
        The set that theta is projected to: an `L2Ball` or a bounded `Box`. If None, all of R^d with "asgd", and
        L2Ball(5) with "ac-sa", whose steps are planned from its size.
    spread
        The root mean square distance of a user's average gradient from the mean of all users', if it is known from
        public data; at least 1e-60. If None, bound max(1/m, 1 / (2 sqrt(m))) with "asgd", and bound / sqrt(m) with
        "ac-sa". Averages are cut to it, see the module. It matters for accuracy only.
    batch_size
        Reports of a batch, from 1 to 10^18. If None, batches grow with "asgd", and "ac-sa" takes the size with the
        least error bound (see `ac_sa`).
    horizon
        ... Not with method="asgd": a `ConfigError`.
    smoothness
        ... Not with method="asgd": a `ConfigError`.
    strong_convexity
        ... Not with method="asgd": a `ConfigError`.
    centre
        "zero": averages are cut to a ball around zero, with the spread as its radius. "asked": if it reduces the noise,
        some users are asked where the averages lie, as in the paper, and the averages of the others are cut around that
        point. It matters for accuracy only, see the module.
    ledger
        A `Ledger` that caps what each subject spends, one budget for each report; None: no cap.
    scaling
        "private": columns and targets with declared bounds are centred and scaled by what some users answer in place of
        a gradient (see `search`); "declared": the target by the middle and half the width of its bounds, columns
        not; "none"; None: "private" if there are bounds, an intercept and no domain, `smoothness` or
        `strong_convexity`, with method="asgd"; with "ac-sa" "declared".
    features
        ... Or bounds (low, high), a list of categories or {"bounds": (low, high), "typical": (centre, spread)} by
        feature: then records come raw, and weights are in original units.
    loss
        A name or a `Loss`: {losses}.
        With "ac-sa" a non-smooth loss is replaced by its Moreau envelope. Another one that clips gradients needs
        `smoothness`.
    """

    items_per_user: int = ITEMS
    window: int = WINDOW
    window_seconds: float | None = None
    spread: float | None = None
    centre: Centre = "zero"
    horizon: int | None = None
    batch_size: int | None = None
    smoothness: float | None = None
    strong_convexity: float = 0.0
    method: Literal["auto", "asgd", "ac-sa"] = "auto"
    scaling: Scaling | None = None
    learns = UserReports
    n_users = counted("n_users", "Reports learned.")
    n_asked = of_learner(UserReports, "n_asked")
    batch = property(batch)
    phase = property(phase)

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: Rng) -> UserReports:
        return UserReports(problem, budget, rng, given(UserPlan, self))

    @property
    def randomizer(self) -> UserRandomizer:
        """A user's half of the next question. Take a new one for each report, because coordinates take turns.

        A report may be absorbed until its question is closed. Raises `NotAvailableError` before the features are known.
        """
        from streamdp.optim.loops import ENVELOPE

        learner: UserReports = self._learner(UserReports, "randomizer")
        return UserRandomizer(
            learner.middle,
            float(learner.spec[ENVELOPE]),
            mean=learner.mean,
            batch=learner.batch_steps.place,
            coordinate=learner.coordinate,
            centre=learner.centre,
            items=int(learner.plan.items_per_user),
            units=learner.units,
            question=learner.search.ask(),
            **self._on_device,
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
        if not isinstance(report, UserReport):
            raise SchemaError(f"report: expected what a randomizer returns, got {type(report).__name__}")
        self._take_report(report, subject)

    def close_user(self, subject: Subject) -> None:
        """End the collection of a user's records: the user reports on those that it has. Without any, do nothing.

        Parameters
        ----------
        subject
            The user, as given to `learn_one`.
        """
        with self.learner.rng.lock:
            assert isinstance(self.learner, UserReports)
            self.learner.close_user(subject_bytes(subject))


@documented(losses=REGRESSION_LOSSES, unit="report", units="of the centre and spread that `scaling` gives")
@dataclass(eq=False, repr=False)
class UserLevelLDPRegressor(Regressor, _UserLevel):
    """Regression from locally private reports, one on all records of a user.

    Examples
    --------
    >>> model = UserLevelLDPRegressor(features=["a", "b"], items_per_user=2)
    >>> for subject in ("ann", "bob", "ann"):
    ...     model.learn_one({"a": 1.0, "b": -1.0}, 0.5, subject=subject)
    >>> model.n_seen, model.n_users, str(model.guarantee), model.at_boundary  # ann has reported, bob is open
    (3, 1, 'eps=1,delta=1e-06', False)
    """


@documented(losses=CLASSIFICATION_LOSSES, unit="report", units="of the centre and spread that `scaling` gives")
@dataclass(eq=False, repr=False)
class UserLevelLDPClassifier(Classifier, _UserLevel):
    """Classification from locally private reports, one on all records of a user.

    Examples
    --------
    >>> model = UserLevelLDPClassifier(features=["a", "b"], items_per_user=2)
    >>> for subject in ("ann", "bob", "ann"):
    ...     model.learn_one({"a": 1.0, "b": -1.0}, True, subject=subject)
    >>> model.n_seen, model.n_users, str(model.guarantee), model.at_boundary  # ann has reported, bob is open
    (3, 1, 'eps=1,delta=1e-06', False)
    """
