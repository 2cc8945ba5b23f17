"""Reasons to doubt a model, from what it released and public numbers only: few records, wide bounds, a border.

Newton's steps know which part of what columns say their noise hides. Before they do, and for others, `least_records`
tells: below it noise is larger than what columns say. In batches and windows it is N_0 of docs/proofs/curvature.md and
ten records for each column, which are too few without noise, too, all times the `flatness` of a rare class. In reports
it is the number that answered about scale, and of as many gradients as hold the information I_0 of `optim.steps`,
times the square of the `rarity`. What an operator's counts add: `streamdp.serving.doubts`.

All is post-processing of what the learner's page in docs/proofs says is released, so nothing is spent.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

LIKELY = 3.0
"""With so many times `least_records` a model is likely to be better than a constant, whatever the trust: of the models
of `python -m benchmarks.least_records` more than nine in ten are."""
Outlook = Literal["likely", "possible", "unlikely"]
ON_BORDER = "the coefficients lie on the border of their domain: a larger domain may hold better ones"
_CLEAR, _HIDDEN = 0.5, 0.1
"""From which part on of what columns say that noise does not hide a model is not doubted, and below which it is close
to a constant. `python -m benchmarks.ordinary` counts what both say about tables as people have them."""
BINS = 1024
"""Of a quantile between the declared bounds."""
_LOOSE, _RESOLVED = 16.0, 50.0  # `LDP*` resolves spreads down to 1/64 of half the width


def outlook(records: float, least: float, asked: int = 0) -> tuple[Outlook, float]:
    """Return whether a model of so many `records` is likely to beat a constant, and from how many on that is likely.

    `least` are `least_records`, of which `asked` answered about scale.
    """
    enough = asked + LIKELY * (least - asked)
    return "likely" if records >= enough else "possible" if records >= least else "unlikely", enough


def too_few(model: Any) -> str | None:
    """Return the doubt about a model without a full stop; None if it has records enough, or if it is not known."""
    known, determined = model.learner.n_informing, model.learner.determined
    if not known:
        return None
    what = "people" if hasattr(model, "n_windows") else "reports" if hasattr(model, "n_users") else "records"
    if known < getattr(model, "n_users", known):
        what = f"{what} of one window, from which alone the model follows,"
    advice = "or fewer columns, or more budget"
    if determined is not None:
        return _hidden(determined, known, what, advice)
    if (least := model.least_records) is None:
        return None
    found, enough = outlook(known, least, getattr(model, "n_asked", 0))
    if found == "likely":
        return None
    if found == "unlikely":
        return (
            f"{known:,} {what} are too few: their noise hides the signal of the columns, and the model is close to a "
            f"constant or worse; it takes at least about {rounded(least):,} {what}, {advice}"
        )
    return (
        f"{known:,} {what} are few: the model may or may not predict better than a constant; from about "
        f"{rounded(enough):,} {what} on that is likely, {advice}"
    )


def _hidden(determined: float, known: int, what: str, advice: str) -> str | None:
    """The doubt about a model that follows from so many `known` records, if noise hides much of what columns say."""
    if determined >= _CLEAR:
        return None
    if determined < _HIDDEN:
        return (
            f"{known:,} {what} are too few, or the columns say little: of what they say, noise hides more than "
            f"{1 - _HIDDEN:.0%}, so the model is close to a constant or worse; it takes more {what}, {advice}"
        )
    enough = rounded(known * math.sqrt((1 - determined) / determined))  # the squared error falls like 1 / n^2
    return (
        f"{known:,} {what} are few: noise hides about {1 - determined:.0%} of what the columns say, and the model may "
        f"be little better than a constant; from about {enough:,} {what} on it hides less than half, {advice}"
    )


def of_model(model: Any, quality: Any, *, judged: bool = False) -> list[str]:
    """Return the doubts about a model from what it released, and from private answers about its `quality`, or None.

    They are shown wherever the model or its predictions are, without a full stop. `judged`: whether what `quality` says
    is shown beside them, by itself.
    """
    better = quality is not None and quality.verdict == "better"
    looseness, near = getattr(model, "looseness", None), getattr(model, "near_bound", None)
    found = [
        ON_BORDER if model.on_border else None,
        None if better else loose(looseness, near) or unseen(getattr(model.learner, "tolerated", None)),
        None if better else too_few(model),
        unpooled(model.learner),
        None if quality is None or better or judged else quality.sentence(),
    ]
    return [doubt for doubt in found if doubt is not None]


def unpooled(learner: Any) -> str | None:
    """Return the doubt about groups with effects of their own (`per`) if this `learner` does not shrink them."""
    if learner.pools or learner.columns is None or not learner.columns.own:
        return None
    return (
        "what groups have of their own (per) is not shrunk by its noise here: if groups hardly differ, the model is "
        "worse than without per; a holdout or validation shows it, and trust: process, shuffler and window shrink"
    )


def of_statistics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the doubts about statistics, of which `rows` are the numbers: those not known, and those at a bound.

    No number of records is named: what is not known has a count below `estimates.KNOWN` times the deviation of its
    noise, so the released numbers do not exclude that no record is in it.
    """
    found = sum(row["value"] is None for row in rows)
    unknown = (
        f"{found} of {len(rows)} numbers are not known yet: nothing was released, or the noise hides how many records "
        "they are about, which may be none, so how many more are needed is not known either; a larger share of the "
        "budget or fewer groups need fewer"
    )
    at_bounds = dict.fromkeys(row["doubt"] for row in rows if "doubt" in row)
    return [*([unknown] if found else []), *at_bounds]


def at_bound(
    numbers: Sequence[float], place: tuple[float, float], widths: tuple[float, float] | None
) -> Literal[-1, 1] | None:
    """Return whether a mean, or a quantile, is at the lower bound (-1) or the upper one (1); None: at neither.

    `widths` are those of the first and the last bin of a quantile, over half the width of the bounds; None: a mean.

    `numbers` are the value and its limits, and bounds are middle -/+ half of `place`. If a mean is within 1/32 of the
    width of a bound, at least half of the values are within 1/16 (Markov's inequality), as for the target of a model
    (`loose`). A quantile is at a bound if it is in the first or last bin. Limits beyond 1/8 hide where a value is.
    """
    middle, half = place
    value, low, high = ((number - middle) / half for number in numbers)
    first, last = (1 / _LOOSE, 1 / _LOOSE) if widths is None else widths
    if 1 - value <= last and 1 - low <= 4 / _LOOSE:
        return 1
    return -1 if 1 + value <= first and 1 + high <= 4 / _LOOSE else None


def outside(what: str, column: str, bound: float, above: bool, share: float | None) -> str:
    """Return the doubt about `what` is at a `bound` of a column: values may lie above it, or below.

    `share`: how many of the values lie there, if what is at the bound is a quantile; None: a mean or a sum.
    """
    most = "most values" if share is None else f"at least {100 * share:.4g} % of the values"
    where = "above" if above else "below"
    return (
        f"{what} is at the bound {bound:.12g} of {column!r}, as far as was released: {most} may lie {where} it, where "
        f"they are clipped to it, and `streamdp check` counts those; declare wider bounds of {column!r}, unless no "
        f"value can lie {where} this one"
    )


def outer_bin(
    what: str, column: str, bins: Sequence[tuple[float, float]], numbers: Sequence[Sequence[float]], above: bool
) -> str | None:
    """Return the doubt about the first of the `bins` within the bounds of a column, or the last one (`above`).

    `numbers` are the count of each bin and its limits. By these, a bin in doubt is more than twice as dense as the one
    beside it; None: it is not.
    """
    at, inner = (-1, -2) if above else (0, 1)
    width, beside = (high - low for low, high in (bins[at], bins[inner]))
    if not numbers[at][1] * beside > 2 * max(numbers[inner][2], 0.0) * width:
        return None
    where = "above" if above else "below"
    return (
        f"the {'last' if above else 'first'} bin of {what} within the bounds is more than twice as dense as the one "
        f"beside it, as far as was released: values {where} the bounds of {column!r}, which `streamdp check` counts, "
        f"or {where} the edges are counted in it; declare wider ones, unless no value can lie {where} these"
    )


def unresolved(names: list[str]) -> str | None:
    """Return the doubt about the columns of these names that have no scale; None if there are none."""
    if not names:
        return None
    return (
        f"the declared bounds of {', '.join(map(repr, names))} may be 50 times as wide as the spread of the values,"
        " or any number of times more, or nearly all values are the same, as far as these were learned: such a "
        "weight may stay near 0, and it has no interval; narrower bounds need fewer records"
    )


def loose(looseness: float | None, near: float | None) -> str | None:
    """Return the doubt about a target whose bounds are `looseness` times as wide as its spread; None if they are not.

    Most values lie near the bound `near`, if that is not None. A `looseness` of None is not known.
    """
    if looseness is None or looseness <= _LOOSE:
        return None
    if near is not None:
        return (
            f"most values of the target lie near its bound {near:g}, as far as these were learned, or beyond it, where "
            "they are clipped to it: `streamdp check` counts those; values need bounds around them, as narrow as can "
            "be. If most of them are the same, as for rare claims, a constant may be better: a holdout shows it"
        )
    return (
        f"the declared bounds of the target are {min(looseness, _RESOLVED):,.0f} times as wide as the spread of most "
        "of its values or more, as far as these were learned: narrower bounds need fewer records, and a holdout tells "
        "whether a constant is better"
    )


def unseen(tolerated: float | None) -> str | None:
    """Return the doubt about a target of which nothing shows how wide its bounds are, if they may matter.

    A constant may have a smaller loss if they are more than about `tolerated` times as wide as the target's spread.
    """
    if tolerated is None or tolerated >= _RESOLVED:
        return None
    return (
        "nothing that was released shows how wide the bounds of the target are: if they are more than about "
        f"{tolerated:,.0f} times as wide as the spread of most of its values, a constant may be better; narrower "
        "bounds and more people help, and a holdout or validation tells"
    )


def rounded(number: float) -> int:
    """Return a number of records in two digits, as it is shown if it is estimated."""
    return int(float(f"{number:.1e}"))
