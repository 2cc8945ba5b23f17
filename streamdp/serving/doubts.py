"""Reasons to doubt a model at the end of a run, from what may be shown of it and from the operator's own counts."""

from __future__ import annotations

from typing import Any

from streamdp.estimators.few_records import too_few
from streamdp.runtime.bad_records import dropped
from streamdp.serving.publish import unsettled, weights
from streamdp.store.snapshot import Counts

_LOOSE = 16.0


def doubts(estimator: Any, counts: Counts) -> list[str]:
    """List the reasons, as sentences. What they say follows from the state, public numbers and counts.

    Parameters
    ----------
    estimator
        The model as it was committed.
    """
    found = []
    if (bad := dropped(counts)) is not None:
        found.append(bad)
    if getattr(estimator, "on_border", False):
        found.append("theta sits on the border of its domain: a larger domain may hold a better theta")
    if (loose := getattr(estimator, "looseness", None)) is not None and loose > _LOOSE:
        found.append(
            f"the declared bounds of the target are about {loose:,.0f} times as wide as most of its values, as far as "
            "these were learned: narrower bounds need fewer records, and a holdout tells whether a constant is better; "
            "values beyond the bounds are clipped to them, and `streamdp check` counts these"
        )
    if (few := too_few(estimator)) is not None:
        found.append(few)
    if counts.learned:
        needed = unsettled(weights(estimator))
        if needed is not None:
            found.append(needed)
    return found
