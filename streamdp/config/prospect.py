"""What to expect of a job before it runs: the planned error, and whether the model is likely to beat a constant."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streamdp.config.definition import Definition
from streamdp.config.http import HTTPSourceConfig
from streamdp.config.model import build_loss
from streamdp.config.shuffle import MixerSourceConfig, ShuffledConfig
from streamdp.config.trust import usual_delta
from streamdp.errors import BudgetError, ConfigError
from streamdp.learners import alike
from streamdp.learners.alike import USUAL
from streamdp.learners.batches import Batches
from streamdp.learners.local_reports import LocalReports
from streamdp.learners.user_windows import Windows
from streamdp.optim.losses import Loss, loss_for
from streamdp.optim.steps import EACH, rarity
from streamdp.privacy import samplers
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP, parse_budget
from streamdp.privacy.mechanisms import calibrated, mechanism_for
from streamdp.privacy.shuffled_reports import local_epsilon
from streamdp.reading.doubts import Outlook, outlook, rounded

if TYPE_CHECKING:
    from streamdp.config.job import JobConfig

_VERDICTS: dict[Outlook, str] = {
    "likely": "The model is likely to beat the best constant.",
    "possible": "The model may or may not beat the best constant; from about {:,} {} on that is likely.",
    "unlikely": "The model is unlikely to beat the best constant: from about {:,} {} on it is likely, or with "
    "fewer columns or more budget.",
}
_ONE_WINDOW = " It learns from each window alone, so that those of one window count: set a larger model.window."
_DECIDES = " Validation decides from about {:,} {} on if the model's error is 30 % below that of the constant."
_BOUNDS = " Bounds that are private cost 5 % of the mu^2 of a window that finds them, which takes about {:,} people."
_GAIN = 0.3
_OF_COLUMNS, _BEGIN, _OF_TARGET = 0.15, 30.0, 72.0
"""Which part of LDP reports are bits about columns, from which information for each on, and how much that of the bits
about a target is as a rule: docs/proofs/local_reports.md, which question."""


@dataclass(frozen=True)
class Prospect:
    """The plan of `optim.planner` for a job."""

    records: int
    columns: int  # the number of encoded features
    error: float | None  # the root mean squared error of theta on the planner's reference model; None for windows
    # whether such a model has a smaller loss on fresh records than the best constant
    beats_constant: Outlook
    likely_from: int  # about how many records make that likely
    people: bool = False  # whether it is people who count, and no records
    method: str | None = None  # the method that will learn, where there are several
    decides_from: int | None = (
        None  # about how many records validation needs for a verdict, see `_GAIN`; None: not known
    )
    one_window: bool = False  # whether the records of one window alone count, because the method keeps none of others
    bounds_from: int | None = (
        None  # from about how many users of a window on it finds `bounds: private`; None: none are
    )

    @property
    def counted(self) -> str:
        """What is counted: people, however many records each has, or records."""
        return "people" if self.people else "records"

    @property
    def sentence(self) -> str:
        """Whether the model is likely to beat the best constant, in words."""
        verdict = _VERDICTS[self.beats_constant].format(self.likely_from, self.counted)
        verdict += "" if self.method is None else f" The method is {self.method}."
        if self.decides_from is not None:
            verdict += _DECIDES.format(self.decides_from, self.counted)
        if self.bounds_from is not None:
            verdict += _BOUNDS.format(self.bounds_from)
        return verdict + _ONE_WINDOW * self.one_window


def planned(
    loss: str | Loss,
    columns: int,
    budget: Budget | str,
    records: int,
    mechanism: str = "auto",
    shares: Sequence[float] = (),
    asked: tuple[int, bool] | None = None,
) -> Prospect:
    """Say whether a model of an LDP learner beats the best constant, by the information of all reports over I_0.

    The arguments `loss`, `budget`, `records` and `mechanism` are as for `planner.plan_error`; `columns` has no
    intercept, and `shares` are those of the classes, if they are known: I_0 grows as one of them becomes rare, as it
    does while a model learns. I_0 is the information below which a model knows little (see `optim.steps`). Where the
    columns explain little of the target, it takes more. `doubts.outlook` decides for models that have learned, too.
    `asked`: of how many columns some reports tell the scale, and whether of the target; None: of all with bounds.

    Raises what `plan_error` raises.
    """
    from streamdp.optim.planner import plan_error

    error = plan_error(loss, columns, budget, records, mechanism)
    loss, budget = loss_for(loss), parse_budget(budget)
    d = loss.size(columns + 1)
    made: object = mechanism_for(mechanism, budget)
    rows = calibrated(made, budget, loss.bound, loss.sensitivity).rows(d)
    least = EACH * d * loss.effort * _rare(shares) ** 2 / float(rows[0, samplers.INFORMATION])
    of_columns, of_target = asked or (columns, not loss.of_classes)
    bit = (2 * float(rows[0, samplers.KEEP]) - 1) ** 2  # its information
    target, begin = of_target * _OF_TARGET / bit, of_columns * _BEGIN / bit
    share = _OF_COLUMNS * bool(of_columns)
    found, enough = outlook(records - target - share * max(records - begin, 0.0), least)
    enough = max(enough + target, (enough + target - share * begin) / (1 - share))
    return Prospect(records, columns, error, found, rounded(enough))


def cheaper(job: "JobConfig") -> str | None:
    """Say what LDP costs a job whose raw records this process sees anyway, as a sentence; None if it is not known."""
    model = job.model
    if model.kind.learns is not LocalReports or job.schema_.budget is not None or model.mechanism == "none":
        return None
    columns, budget = len(job.build_schema().feature_names), parse_budget(model.budget)
    records, delta = job.expected_records or USUAL, usual_delta(job.expected_records)
    return alike.cheaper(_loss_of(job), columns, budget, records, model.mechanism or "auto", delta)


def shuffled(job: "JobConfig", records: int) -> str | None:
    """Say what a shuffler of a job's reports, of which there are so many `records`, promises, as a sentence.

    Returns None for a job that takes no reports, or reports that do not spend a pure epsilon.
    """
    spend = parse_budget(job.model.budget)
    reports = isinstance(job.source, HTTPSourceConfig | MixerSourceConfig) and job.build_estimator().takes_reports
    if not (reports and isinstance(spend, PureDP) and records > 1):
        return None
    given = job.shuffled or ShuffledConfig(people=min(1000, records), delta=usual_delta(records))
    allowed = local_epsilon(spend.epsilon, given.people, given.delta)
    return (
        f"If people trust a shuffler that shows the reports of {given.people:,} people at once, reports of {spend} "
        f"promise {given.of(spend)}, and reports of eps={math.floor(100 * allowed) / 100:g} would promise "
        f"{ApproxDP(spend.epsilon, given.delta)}."
    )


def counts_people(job: Definition) -> bool:
    """Whether the learner of a job learns from people, however many records each has."""
    return issubclass(job.model.kind.learns, Windows) and job.schema_.subject is not None


def prospect(job: Definition, records: int, shares: Sequence[float] = ()) -> Prospect | None:
    """Plan a job of which so many `records` fit the schema, or for windows people; `shares` are those of its classes.

    Returns None if there is no plan for the estimator or the loss, or if there are no records.
    """
    learns = job.model.kind.learns
    if records < 1 or not issubclass(learns, Windows | Batches | LocalReports):
        return None
    if issubclass(learns, LocalReports) and job.statistics is not None:
        return None  # they take some of the reports
    columns, estimator = len(job.build_schema().feature_names), job.build_estimator()
    estimator.state_dict()  # which needs the columns
    learner, validation = estimator.learner, job.validation
    answer = None if validation is None else validation.share
    # which part learns; the others only answer about the model's error, and `least` of batches counts them
    learn = 1.0 if isinstance(learner, Batches) else 1.0 - (answer or 0.0)
    if not isinstance(learner, LocalReports):
        least = learner.batch_steps.least if isinstance(learner, Batches) else learner.least_records
        if least is None:
            return None
        known = records
        if isinstance(learner, Windows):
            known = learner.informing(records, math.ceil(records / learner.plan.window))
        found, enough = outlook(learn * known, least * _rare(shares))
        likely, held_out, decides = rounded(enough / learn), estimator.held_out, None
        if held_out is not None and answer is not None and max(shares, default=0.0) < 1:  # of one class nothing decides
            decides = rounded(held_out.sums.decides(_GAIN, shares) / (answer if held_out.takes_records else 1.0))
        bounds = rounded(learner.bounds_from) if isinstance(learner, Windows) and learner.bounds_from else None
        more = (counts_people(job), learner.method_name, decides, known < records, bounds)
        return Prospect(records, columns, None, found, likely, *more)
    target = learner.arrays.units.scaled(columns)
    asked = len(learner.arrays.units.summary) - target, target
    given = _loss_of(job), columns, job.model.budget, max(1, int(learn * records)), job.model.mechanism or "auto"
    try:
        plan = planned(*given, shares, asked)
    except (ConfigError, BudgetError):
        return None
    return replace(plan, records=records, likely_from=rounded(plan.likely_from / learn))


def _rare(shares: Sequence[float]) -> float:
    return rarity(np.log(np.maximum(shares, 1e-9))) if 0.5 < max(shares, default=0.0) < 1 else 1.0


def _loss_of(job: Definition) -> str | Loss:
    classes = job.schema_.target.classes
    default = "huber" if classes is None else "logistic" if len(classes) == 2 else "softmax"
    return default if job.model.loss is None else build_loss(job.model.loss)
