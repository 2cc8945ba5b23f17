"""Who may see raw records, and what follows for a job: its estimator, its delta and its window.

This module owns the table. It reads the settings of a job before they are validated, and adds what is not given.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from streamdp import estimators
from streamdp.errors import BudgetError
from streamdp.estimators.door import Trust, chosen, trust_of
from streamdp.estimators.statistics import need_delta
from streamdp.ledger.periods import Cap, RenewingCap, parse_cap
from streamdp.privacy.guarantees import ApproxDP, Budget, PureDP, parse_budget, with_delta
from streamdp.privacy.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator

STATISTICS = "Statistics"
"""The estimator of a job with statistics, which takes its trust as a parameter."""
ESTIMATORS = tuple(name for name in estimators.__all__ if name.endswith(("Classifier", "Regressor", STATISTICS)))
QUESTION = "Who may see the raw records while they are processed?"
ANSWERS: dict[Trust, str] = {
    "nobody": "each record becomes noise first, as on people's devices (LDP); needs the most records",
    "process": "this process, and nothing stays: it keeps noisy sums only (pan-private)",
    "window": "this process, for a window of people: it holds records until a model is released (windowed)",
    "shuffler": "a shuffler, which mixes the messages of many people (shuffle)",
}
"""What the answers mean."""

NEED_DELTA: tuple[Trust, ...] = ("process", "window", "shuffler")
LEAST_DELTA = 1e-8
"""delta of a job that does not say how many records it expects."""
WHOLE_FILE = 2**20
"""A window of a file ends with the file, or after so many records."""

_ENOUGH, _FAR_APART = 50, 0.36  # targets that say something; of the mean distance from the median, that of the mean


def loss_of_mean(values: np.ndarray, trust: Trust) -> tuple[str, str] | None:
    """Return a loss that learns the mean of targets (n,), and why Huber's does not; None: it does, or they are few.

    The losses of counts were compared by `python -m benchmarks.counts`.
    """
    if len(values) < _ENOUGH:
        return None
    kinds, numbers = np.unique(values, return_counts=True)
    apart = values - np.median(values)
    if 2 * numbers.max() >= len(values) and len(kinds) > 1:
        why = "most values are the same"
    elif abs(np.mean(apart)) > _FAR_APART * np.mean(np.abs(apart)):  # a few huge values do not hide it
        why = "mean and median are far apart"
    else:
        return None
    counts = trust in ("process", "window") and len(kinds) > 2 and np.all((kinds >= 0) & (kinds == np.floor(kinds)))
    return "poisson" if counts else "squared", why


def usual_trust(settings: Mapping[str, object]) -> Trust:
    """Return who sees the raw records of a job, by its settings, if the job does not say so.

    An operator holds a file or a table anyway; but records that answer, or are in statistics, beside being learned are
    in no window. Statistics without a model have the same rule. LDP
    estimators alone allow a budget of each record, and commits after any record, which requests of the service wait
    for. They are also better if pan-private learning has no Newton steps, by the figures of `benchmarks.trust`.
    """
    source, schema = _mapping(settings, "source"), _mapping(settings, "schema")
    kind = source.get("format") if source.get("type") == "spark" else source.get("type")
    window = _mapping(settings, "validation").get("budget") is None and settings.get("statistics") is None
    trust: Trust = "window" if window else "process"
    if kind == "kafka":
        trust = "nobody" if source.get("content") == "reports" else "process"
    elif kind == "shuffle":
        return "shuffler"
    sums = trust == "process" or source.get("type") == "spark"  # Spark adds sums over all people of a window
    unplanned = sums and not _has_newton(_mapping(settings, "model").get("loss"))
    if kind == "http" or schema.get("budget") is not None or unplanned:
        return "nobody"
    return trust


def _has_newton(loss: object) -> bool:
    """Whether a loss, as a job names it, has a bounded curvature; None is the default one."""
    name, clip = (loss.get("name"), loss.get("clip")) if isinstance(loss, Mapping) else (loss, None)
    return name in (None, "huber", "squared", "poisson", "logistic", "softmax") and clip is None


def usual_delta(records: int | None) -> float:
    """Return a delta of at most a tenth of 1 / n and 1e-6, for n expected `records`; None: n is not known.

    >>> usual_delta(50_000), usual_delta(1_200_000), usual_delta(None)
    (1e-06, 1e-08, 1e-08)
    """
    if not isinstance(records, int) or records < 1:
        return LEAST_DELTA
    return float(f"1e-{max(6, math.ceil(math.log10(records)) + 1)}")


def completed(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a job with the estimator, delta and window that its trust model implies.

    What is given stays, and settings that are malformed are left to the validation that follows.
    """
    job = dict(settings)
    model = job["model"] = {} if job.get("model") is None else job["model"]
    if not isinstance(model, Mapping):
        return job
    model = job["model"] = dict(model)
    schema, source = _mapping(job, "schema"), _mapping(job, "source")
    if job.get("statistics") is not None and not _mapping(schema, "target").get("column"):
        return _with_statistics(job, model)
    if model.get("estimator") is None:
        trust = usual_trust(job) if model.get("trust") is None else model["trust"]
        if trust not in get_args(Trust):
            return job
        model["estimator"] = chosen(trust, classes=_mapping(schema, "target").get("classes") is not None)
    if model["estimator"] not in ESTIMATORS or model["estimator"] == STATISTICS:
        return job
    kind: type[Estimator] = getattr(estimators, model["estimator"])
    usual = model.get("budget") is None and isinstance(kind.learns.default_budget, ApproxDP)
    _add_delta(job, model, usual or trust_of(model["estimator"]) in NEED_DELTA)
    if trust_of(model["estimator"]) == "window":
        if schema.get("subject") is None:
            model.setdefault("items_per_user", 1)
        if source.get("type") not in ("kafka", "spark") and not source.get("follow"):
            model.setdefault("window", WHOLE_FILE)
    return job


def _with_statistics(job: dict[str, object], model: dict[str, object]) -> dict[str, object]:
    """The settings of a job with statistics; calls would wait for the end of a window."""
    if model.setdefault("estimator", STATISTICS) != STATISTICS:
        return job
    if model.get("trust") is None:
        model["trust"] = "process" if _mapping(job, "source").get("type") in ("kafka", "http", "spark") else "window"
    declared, features = _mapping(job, "statistics"), _mapping(_mapping(job, "schema"), "features")
    _add_delta(job, model, need_delta(model["trust"], declared, features))
    return job


def _mapping(settings: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = settings.get(key)
    return found if isinstance(found, Mapping) else {}


def _add_delta(job: dict[str, Any], model: dict[str, Any], needs: bool) -> None:
    """Add delta to a budget without one, if the learner needs it, and to a cap: one of k budgets has k times theirs."""
    given = "eps=1" if model.get("budget") is None else model["budget"]
    try:
        budget = parse_budget(given)
        cap = None if job.get("cap") is None else parse_cap(job["cap"])
    except BudgetError:
        return
    mechanism = MECHANISMS.get(str(model.get("mechanism")))
    needs |= mechanism is not None and PureDP not in mechanism.serves
    if needs:
        budget = with_delta(given, usual_delta(job.get("expected_records")))
    model["budget"] = str(budget)
    if cap is not None and isinstance(budget, ApproxDP):
        job["cap"] = str(_counting(cap, budget))


def _counting(cap: Cap, budget: ApproxDP) -> Cap:

    def filled(limit: Budget) -> Budget:
        if not isinstance(limit, PureDP):
            return limit
        times = max(1.0, min(limit.epsilon / budget.epsilon * (1 + 1e-9), 1e300) // 1)
        return ApproxDP(limit.epsilon, min(float(f"{times * budget.delta:.12g}"), 0.5))

    if not isinstance(cap, RenewingCap):
        return filled(cap)
    return replace(cap, budget=filled(cap.budget), total=None if cap.total is None else filled(cap.total))
