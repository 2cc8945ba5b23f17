"""Whether a model has enough records to predict better than a constant: from their number, budgets and columns only.

`least_records` of a model is the number of records that answered about scale, and of as many gradients as hold the
information I_0 of `optim.steps`, below which a model knows little. The counts of draws that beat a constant, by
multiples of I_0, are in docs/explanations/noise.md.
"""

from __future__ import annotations

from typing import Any

LIKELY = 10.0
"""With so many times I_0 a model is likely to be better than a constant."""


def too_few(model: Any) -> str | None:
    """Return the doubt as a sentence without a full stop; None if there are enough records, or if it is not known.

    Parameters
    ----------
    model
        An estimator.
    """
    least = getattr(model, "least_records", None)
    known = getattr(model, "n_users", model.n_seen)
    if least is None or not known:
        return None
    asked = getattr(model, "n_asked", 0)
    enough = asked + LIKELY * (least - asked)
    if known >= enough:
        return None
    what = "people" if hasattr(model, "n_windows") else "reports" if hasattr(model, "n_users") else "records"
    advice = "or fewer columns, or more budget"
    if known < least:
        return (
            f"{known:,} {what} are too few: their noise hides what the columns tell, and the model is close to a "
            f"constant or worse; it takes at least about {_rounded(least)} {what}, {advice}"
        )
    return (
        f"{known:,} {what} are few: the model may or may not predict better than a constant; from about "
        f"{_rounded(enough)} {what} on that is likely, {advice}"
    )


def _rounded(number: float) -> str:
    """In two digits."""
    return f"{int(float(f'{number:.1e}')):,}"
