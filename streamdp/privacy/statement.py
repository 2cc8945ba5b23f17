"""The guarantee in words, written for the people whose records are learned from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, Guarantee, PureDP, no_budget

_NO_BOUND = 20.0  # e^20 is half a billion


@dataclass(frozen=True)
class Unit:
    """The unit that a guarantee protects, as phrases for sentences."""

    single: str  # completes "the strongest spend of any"
    one: str  # the two neighbours of a comparison: "with one record as with any other in its place"
    other: str
    several: str  # completes "One person, several"


RECORD = Unit("single record", "one record", "any other in its place", "records")
WINDOW = Unit("single user of a window", "the records of one user of a window", "any others in their place", "windows")
REPORT = Unit("single report of a user", "the records of one report", "any others in their place", "reports")


def _up(value: float, digits: int) -> str:
    """A number in this many digits, rounded up: rounding must not make the guarantee look stronger."""
    nearest = f"{value:.{digits}g}"
    if float(nearest) >= value:  # such as 1e-08, whose double is above 10^-8
        return nearest
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)):.{digits}g}"


def in_words(budget: Budget, unit: Unit = RECORD) -> str:
    """One sentence that says what a budget means; numbers are rounded up.

    >>> in_words(PureDP(1.0))
    'epsilon = 1: no output is more than 2.72 times as likely with one record as with any other in its place'
    """
    match budget:
        case PureDP(epsilon):
            if epsilon > _NO_BOUND:
                return f"epsilon = {_up(epsilon, 6)}: gives no useful bound on what an output reveals about {unit.one}"
            return (
                f"epsilon = {_up(epsilon, 6)}: no output is more than {_up(math.exp(epsilon), 3)} times as likely with "
                f"{unit.one} as with {unit.other}"
            )
        case ApproxDP(epsilon, delta):
            e, mass = _up(epsilon, 6), _up(delta, 6)
            return f"(epsilon, delta) = ({e}, {mass}): epsilon = {e} except for a probability mass of {mass}"
        case GaussianDP(mu):
            m = _up(mu, 6)
            return (
                f"mu = {m} (Gaussian DP): as hard to distinguish {unit.one} from {unit.other} as one draw of N(0, 1) "
                f"from one of N({m}, 1); implies epsilon = {_up(budget.epsilon(1e-6), 3)} at delta = 1e-6"
            )
    raise no_budget(budget)


def arithmetic_note(delta: float) -> str:
    """The note on the arithmetic of PrivUnit, with the delta of `arithmetic_delta`.

    >>> arithmetic_note(5.2e-9)
    'PrivUnit is computed in floating-point numbers; if their rounding is counted, it adds a delta of about 6e-09'
    """
    return (
        "PrivUnit is computed in floating-point numbers; if their rounding is counted, it adds a delta of about "
        f"{_up(delta, 1)}"
    )


def statement(
    guarantee: Guarantee,
    *,
    learned: int,
    refused: int,
    left_out: int,
    per_subject: str,
    caveats: tuple[str, ...] = (),
    unit: Unit = RECORD,
) -> str:
    """The statement of an estimator: the guarantee, its neighbours, the trust model and the caveats, which are phrases.

    So is `per_subject`, the guarantee for a person with several records. `learned`, `refused` and `left_out` count
    records; the last are below their cap and spent nothing.
    """
    head = f"Privacy statement after {learned:,} records learned and {refused:,} refused."
    if left_out:
        head = f"Privacy statement after {learned:,} records learned, {refused:,} refused and {left_out:,} left out."
    spend = f"The strongest spend of any {unit.single}:"
    if len(guarantee.budgets) > 1:
        spend = f"Any {unit.single} spends at most one of these:"
    return in_lines(head, guarantee, spend, per_subject, caveats, unit)


def in_lines(
    head: str, guarantee: Guarantee, spend: str, per_subject: str, caveats: Iterable[str], unit: Unit = RECORD
) -> str:
    """A statement about what a guarantee covers, with per_subject and caveats as for `statement`.

    `head`, the first line, says what the statement is about; `spend` is the line before the budgets.
    """
    lines = [head]
    if not guarantee.private:
        lines.append("NOT PRIVATE: nothing is guaranteed.")
    elif not guarantee.budgets:
        lines.append("Nothing has been learned, so nothing has been spent.")
    else:
        lines.append(spend)
        lines += [f"  - {in_words(budget, unit)}." for budget in guarantee.budgets]
    lines.append(f"Neighbours: {guarantee.neighbours}.")
    lines.append(f"Trusted party: {guarantee.trust}.")
    lines.append(f"One person, several {unit.several}: {per_subject}.")
    lines += [f"Note: {caveat}." for caveat in caveats]
    return "\n".join(lines)
