"""Reasons to doubt a model at the end of a run, from what may be shown of it and from the operator's own counts."""

from __future__ import annotations

from typing import Any

from streamdp.runtime.bad_records import dropped
from streamdp.serving.publish import unsettled, weights
from streamdp.store.snapshot import Counts

_LOOSE = 16.0
_LIKELY = 3.0  # times `least_records`: see `prospect.chance`


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
    if (few := _too_few(estimator)) is not None:
        found.append(few)
    if counts.learned:
        needed = unsettled(weights(estimator))
        if needed is not None:
            found.append(needed)
    return found


def _too_few(estimator: Any) -> str | None:
    """Whether the model has too few records to be better than a constant, by budget, columns and their number."""
    least = getattr(estimator, "least_records", None)
    known = getattr(estimator, "n_users", estimator.n_seen)
    if least is None or known >= _LIKELY * least:
        return None
    what = "reports" if hasattr(estimator, "n_users") else "records"
    advice = "or fewer columns, or more budget"
    if known < least:
        return (
            f"{known:,} {what} are too few: their noise hides what the columns tell, and the model is close to a "
            f"constant or worse; it takes at least about {_rounded(least)} {what}, {advice}"
        )
    return (
        f"{known:,} {what} are few: the model may or may not predict better than a constant; from about "
        f"{_rounded(_LIKELY * least)} {what} on that is likely, {advice}"
    )


def _rounded(number: float) -> str:
    """In two digits."""
    return f"{int(float(f'{number:.1e}')):,}"
