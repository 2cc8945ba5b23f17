"""What to expect of a job before it runs: the planned error, and whether the model is likely to beat a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from streamdp.config.definition import Definition
from streamdp.config.model import build_loss
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators.few_records import LIKELY
from streamdp.learners.local_reports import LocalReports
from streamdp.learners.user_windows import Windows
from streamdp.optim.losses import Loss, loss_for
from streamdp.optim.steps import EACH
from streamdp.privacy import samplers
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import calibrated, mechanism_for

_POSSIBLE = 0.3

VERDICTS = {
    "likely": "The model is likely to beat the best constant.",
    "possible": "The model may or may not beat the best constant.",
    "unlikely": "The model is unlikely to beat the best constant: use more records, fewer columns or more budget.",
}


@dataclass(frozen=True)
class Prospect:
    """The plan of `optim.planner` for a job."""

    records: int
    columns: int  # the number of encoded features
    error: float | None  # the root mean squared error of theta on the planner's reference model; None for windows
    # whether such a model has a smaller loss on fresh records than the best constant
    beats_constant: Literal["likely", "possible", "unlikely"]


def chance(
    loss: str | Loss, columns: int, budget: Budget | str, records: int, mechanism: str = "auto"
) -> Literal["likely", "possible", "unlikely"]:
    """Say whether a model of an LDP learner beats the best constant, by the information of all reports over I_0.

    The arguments `loss`, `budget`, `records` and `mechanism` are as for `planner.plan_error`; `columns` has no
    intercept. I_0 is the information below which a model knows little (see `optim.steps`). In `benchmarks/learning.md`
    simulated models with less than 0.3 of it are about as good as a constant or worse. With `LIKELY` times as much
    nearly all draws are better (docs/explanations/noise.md). Where the columns explain little of the target, it takes
    more.
    """
    loss, budget = loss_for(loss), parse_budget(budget)
    d = loss.size(columns + 1)
    made: Any = mechanism_for(mechanism, budget)
    rows = calibrated(made, budget, loss.bound, loss.sensitivity).rows(d)
    share = records * float(rows[0, samplers.INFORMATION]) / (EACH * d)
    return "likely" if share > LIKELY else "possible" if share > _POSSIBLE else "unlikely"


def prospect(job: Definition, records: int) -> Prospect | None:
    """Plan a job of which so many `records` fit the schema.

    Returns None if there is no plan for the estimator or the loss, or if there are no records.
    """
    if records and issubclass(job.model.kind.learns, Windows):
        return _of_windows(job, records)
    if records < 1 or not issubclass(job.model.kind.learns, LocalReports):
        return None
    from streamdp.optim.planner import plan_error

    columns = len(job.build_schema().feature_names)
    classes = job.schema_.target.classes
    default = "huber" if classes is None else "logistic" if len(classes) == 2 else "softmax"
    loss = default if job.model.loss is None else build_loss(job.model.loss)
    mechanism = job.model.mechanism or "auto"
    try:
        error = plan_error(loss, columns, job.model.budget, records, mechanism)
    except (ConfigError, BudgetError):
        return None
    return Prospect(records, columns, error, chance(loss, columns, job.model.budget, records, mechanism))


def _of_windows(job: Definition, records: int) -> Prospect | None:
    """The prospect of one window of all records, each of another person."""
    estimator = job.build_estimator()
    estimator.state_dict()  # which needs the columns
    if (least := estimator.least_records) is None:
        return None
    beats: Literal["likely", "possible", "unlikely"] = (
        "likely" if records > LIKELY * least else "possible" if records >= least else "unlikely"
    )
    return Prospect(records, len(job.build_schema().feature_names), None, beats)
