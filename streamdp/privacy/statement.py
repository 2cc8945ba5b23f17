"""The guarantee in words, written for the people whose records are learned from."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, Guarantee, PureDP, no_budget, rounded_up

_NO_BOUND = 20.0  # e^20 is half a billion


@dataclass(frozen=True)
class Unit:
    """The unit that a guarantee protects, as phrases for sentences."""

    single: str  # completes "what can be known of any"
    one: str  # the two neighbours of a comparison: "with one record as with any other in its place"
    other: str
    several: str  # completes "One person, several"


RECORD = Unit("single record", "one record", "any other in its place", "records")
WINDOW = Unit("single user of a window", "the records of one user of a window", "any others in their place", "windows")
REPORT = Unit("single report of a user", "the records of one report", "any others in their place", "reports")


def _times(epsilon: float, unit: Unit) -> str:
    if epsilon > _NO_BOUND:
        return f"gives no useful bound on what an output reveals about {unit.one}"
    times = rounded_up(math.exp(epsilon), 3)
    return f"no output is more than {times} times as likely with {unit.one} as with {unit.other}"


def in_words(budget: Budget, unit: Unit = RECORD) -> str:
    """One sentence that says what a budget means; numbers are rounded up.

    >>> in_words(PureDP(1.0))
    'epsilon = 1: no output is more than 2.72 times as likely with one record as with any other in its place'
    """
    match budget:
        case PureDP(epsilon):
            return f"epsilon = {rounded_up(epsilon)}: {_times(epsilon, unit)}"
        case ApproxDP(epsilon, delta):
            e, mass = rounded_up(epsilon), rounded_up(delta)
            return f"(epsilon, delta) = ({e}, {mass}): {_times(epsilon, unit)}, except for a probability of {mass}"
        case GaussianDP(mu):
            m = rounded_up(mu)
            return (
                f"mu = {m} (Gaussian DP): as hard to distinguish {unit.one} from {unit.other} as one draw of N(0, 1) "
                f"from one of N({m}, 1); implies epsilon = {rounded_up(budget.epsilon(1e-6), 3)} at delta = 1e-6"
            )
    raise no_budget(budget)


def arithmetic_note(delta: float) -> str:
    """The note on the arithmetic of PrivUnit, with the delta of `arithmetic_delta`.

    >>> arithmetic_note(5.2e-9).partition("; ")[2]
    'if their rounding is counted, it adds a delta of about 6e-09, and n times that to what n shuffled reports promise'
    """
    return (
        "PrivUnit is computed in floating-point numbers; if their rounding is counted, it adds a delta of about "
        f"{rounded_up(delta, 1)}, and n times that to what n shuffled reports promise"
    )


def statement(
    head: str,
    guarantee: Guarantee,
    per_subject: str,
    notes: Mapping[str, Iterable[str]],
    unit: Unit = RECORD,
    spend: str = "",
    limits: Iterable[str] = (),
) -> str:
    """The statement of a guarantee: `brief`, an empty line, and notes, which are phrases, under their headings.

    `head`, the first line, says what it is about, `per_subject` what holds for a person with several records, and
    `spend` of what the spends are, if it is not the unit. `limits` are phrases that weaken the promise.
    """
    lines = [head, f"Who must be trusted: {guarantee.trust}."]
    if not guarantee.private:
        lines.append("NOT PRIVATE: nothing is guaranteed.")
    elif not guarantee.budgets:
        lines.append("Nothing has been learned, so nothing has been spent.")
    else:
        most = "at most one of these" if len(guarantee.budgets) > 1 else "at most"
        lines.append(f"What can be known of any {spend or unit.single}, {most}:")
        lines += [f"  - {in_words(budget, unit)}." for budget in guarantee.budgets]
    lines.append(f"Until when: for ever, whatever else is known. One person, several {unit.several}: {per_subject}.")
    return with_notes("\n".join(lines), {"Neighbours": [guarantee.neighbours]} | dict(notes), limits)


def with_notes(
    said: str, notes: Mapping[str, Iterable[str]], limits: Iterable[str] = (), more: Iterable[str] = ()
) -> str:
    """A statement with further notes, which are phrases, each list under its heading.

    `limits`, phrases, and `more`, sentences, are in `brief`.
    """
    short, *rest = said.split("\n\n")
    said = "\n\n".join(["\n".join([short, *more, *(f"Limit: {limit}." for limit in limits)]), *rest])
    sections = {heading: "".join(f"\n  - {note}." for note in listed) for heading, listed in notes.items()}
    return "".join([said, *(f"\n\n{heading}:{listed}" for heading, listed in sections.items() if listed)])


def brief(said: str) -> str:
    """What a user and a lawyer need of a statement: whom to trust, what one person's data can change, until when."""
    return said.partition("\n\n")[0]
