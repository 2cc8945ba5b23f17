"""Reasons to doubt a model at the end of a run, from what may be shown of it and from the operator's own counts."""

from collections.abc import Sequence
from typing import Any

from streamdp.estimators.estimator import Estimator
from streamdp.estimators.targets import Regressor
from streamdp.estimators.traps import FAR
from streamdp.learners.user_windows import Windows
from streamdp.reading.doubts import of_model, of_statistics, too_few
from streamdp.runtime.bad_records import dropped
from streamdp.serving.publish import Weight, needs, weights
from streamdp.store.snapshot import Counts
from streamdp.validation.quality import Quality


def doubts(estimator: Any, counts: Counts, quality: Quality | None = None) -> list[str]:
    """List the reasons, as sentences, from the committed state of `estimator`, public numbers and counts.

    `quality`: what private answers say, in the unit of the job; None where that is shown by itself.
    """
    found: list[str] = []
    if (bad := dropped(counts)) is not None:
        found.append(bad)
    if counts.refused and not counts.learned:
        found.append(
            f"nothing was learned: all {counts.refused:,} records that fit the schema were refused, because their "
            "people have spent their caps, or because of their own budgets"
        )
    if getattr(estimator, "cohort", None) is not None and not estimator.finished:
        done, rounds = estimator.batch[2], estimator.phase.steps
        found.append(f"{done} of the cohort's {rounds} rounds are made: the model is not complete")
    statistics = estimator.estimated
    if statistics is not estimator:
        found += of_model(estimator, quality or estimator.quality, judged=quality is None)
    if statistics is not None:
        found += of_statistics(statistics.rows())
    if counts.learned and statistics is not estimator:
        shown = weights(estimator)
        found += (needed := needs(estimator, shown))
        if _expects_one(estimator) and (needed or _is_far(shown) or all(one.settled is None for one in shown)):
            found.append(
                "the target has no declared bounds: the model began at 0, with steps for values between about -1 and 1;"
                " if its values are others, the model may be worse than a constant: declare the bounds of the target"
            )
    return found


def opening(estimator: Estimator) -> str | None:
    """Say how many records the open batch or window of an `estimator` takes; None if it learns each record at once."""
    asked = (2**power + 1 for power in range(1, 25))
    records = next((found for most in asked if (found := estimator.boundary_within(most)) < most), None)
    if records is None:
        return None
    return f"the first batch or window takes {records:,} records, and none of them is learned or shown before its end"


def _expects_one(estimator: Estimator) -> bool:
    """Whether a regressor needs a target of a scale of about 1: it has no bounds, and no large window finds a scale."""
    found = isinstance(estimator.learner, Windows) and too_few(estimator) is None
    return not found and isinstance(estimator, Regressor) and estimator.target is None


def _is_far(shown: Sequence[Weight]) -> bool:
    return max((abs(one.value) for one in shown), default=0.0) > FAR
