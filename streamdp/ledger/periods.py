"""Caps that renew: each subject may spend a budget in each period, and perhaps a total over all time.

A cap is a `Budget` for all time, or a `RenewingCap`. Period p has the times from p L up to (p + 1) L, in seconds since
1970 (UTC), for the length L. A record counts in the period of its own time, or, if it has none, of the moment at which
it is admitted. The spends of a subject in a period are a row of the ledger of their own, under a hash of the subject
and the period; the total is a row under a hash of the subject alone. A record is admitted only if it fits both, and
refused if its time is more than `late` before or more than `ahead` after the moment at which it is admitted. Rows of
periods that ended more than `late` and one period before the moment may go.

Claims: the records of a subject in one period have the guarantee of the cap, those in any span of length L at most
twice as much (sqrt(2) M), and over all time that of the total. Proof: docs/proofs/caps.md.
"""

import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from streamdp.errors import BudgetError
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, no_budget, parse_budget

MINUTE, HOUR, DAY = 60, 3600, 86_400
_UNITS = {"second": 1, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY}
_LONGEST = 100 * 366 * DAY

_LENGTH = r"(\d{1,12})\s*([a-z]+?)s?"
_GRAMMAR = re.compile(
    rf"(?P<budget>.+?)\s+per\s+(?P<per>{_LENGTH})(\s*,\s*late\s+(?P<late>{_LENGTH}))?"
    rf"(\s*,\s*ahead\s+(?P<ahead>{_LENGTH}))?(\s*,\s*total\s+(?P<total>.+))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RenewingCap:
    """A budget for each subject in each period of `length` seconds, and perhaps a total over all time.

    The guarantee is at the head of this module. A period lasts a minute to a century. A record's time may be up to
    `late` seconds before and `ahead` seconds after the moment at which it is admitted. Raises `BudgetError` for numbers
    out of range, and for a total of another kind than the budget.

    >>> str(RenewingCap(PureDP(8), 30 * DAY, total=PureDP(40)))
    'eps=8 per 30 days, late 7 days, ahead 1 hour, total eps=40'
    """

    budget: Budget
    length: int
    late: int = 7 * DAY
    ahead: int = HOUR
    total: Budget | None = None

    def __post_init__(self) -> None:
        if not MINUTE <= self.length <= _LONGEST:
            raise BudgetError("per: expected a period from 1 minute to 36600 days")
        if not (0 <= self.late <= _LONGEST and 0 <= self.ahead <= _LONGEST):
            raise BudgetError("late, ahead: expected at most 36600 days")
        if self.total is not None and type(self.total) is not type(self.budget):
            raise BudgetError(f"total: expected a cap of the same kind as {self.budget}, got {self.total}")

    def __str__(self) -> str:
        limits = f"late {in_units(self.late)}, ahead {in_units(self.ahead)}"
        total = "" if self.total is None else f", total {self.total!s}"
        return f"{self.budget!s} per {in_units(self.length)}, {limits}{total}"

    def codes(self, times: np.ndarray) -> np.ndarray:
        """Return the number of the period of each time, from 1, (n,) int64; times are seconds since 1970, 0 or more."""
        return np.floor_divide(times, self.length).astype(np.int64) + 1

    def timely(self, times: np.ndarray, now: float) -> np.ndarray:
        """Return which times are within the limits at the present, `now`, (n,) bool; all in seconds since 1970."""
        return (times >= max(0.0, now - self.late)) & (times <= now + self.ahead)

    def oldest(self, now: float) -> int:
        """Return the number of the oldest period to keep at the present, `now`, in seconds since 1970 (UTC)."""
        return int(max(0.0, now - self.late) // self.length)

    def in_span(self) -> Budget:
        """Return what a subject may spend in any span of the length of a period: twice the sums of the budget."""
        match self.budget:
            case PureDP(epsilon):
                return PureDP(min(2 * epsilon, sys.float_info.max))
            case ApproxDP(epsilon, delta):
                return ApproxDP(min(2 * epsilon, sys.float_info.max), min(2 * delta, math.nextafter(1.0, 0.0)))
            case GaussianDP(mu):
                return GaussianDP(math.sqrt(2) * mu)
        raise no_budget(self.budget)

    @property
    def forged(self) -> int:
        """How many periods false times may reach within a span of the length of a period, by the clock."""
        return -(-(self.late + self.ahead) // self.length) + 2


Cap = Budget | RenewingCap
"""A cap for all time, or one that renews."""


class Moments:
    """The clock of a ledger. All times are in seconds since 1970 (UTC).

    `clock` returns the time of the machine, and `committed_at` is that of the last commit; 0 if it is not known.
    """

    def __init__(self, cap: Cap) -> None:
        self._cap = cap
        self.clock: Callable[[], float] = time.time
        self.committed_at = 0.0

    def begin(self, committed_at: float) -> None:
        """Note the time of the last commit before this start, `committed_at`; 0 if there was none.

        Warns if the clock is so far behind it that records with true times are too late.
        """
        self.committed_at = committed_at
        if isinstance(self._cap, RenewingCap) and committed_at - self._cap.late > self.clock():
            until = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=committed_at - self._cap.late)
            warnings.warn(
                f"this clock is behind the last commit: until {until:%Y-%m-%d %H:%M} UTC, records with true times are"
                " too late. Set the clock, if it is wrong now; if it was wrong at that commit, see docs/pitfalls.md,"
                " A cap that renews",
                stacklevel=2,
            )

    def now(self) -> float:
        """Return the time, or that of the last commit if the clock was set back."""
        return max(self.clock(), self.committed_at)

    def commit(self, committed_at: float) -> tuple[float, int]:
        """Return the time of the commit that comes now, and before which period it deletes rows; 0 for none.

        It deletes only if a period has ended since the last commit, `committed_at`. The caller writes the time in the
        same transaction.
        """
        self.committed_at = max(committed_at, self.committed_at)
        now = self.now()
        if not isinstance(self._cap, RenewingCap):
            return now, 0
        oldest = self._cap.oldest(now)
        return now, oldest if oldest > self._cap.oldest(committed_at) else 0


def parse_cap(text: str | Cap) -> Cap:
    """Read a cap from text; a cap is returned unchanged.

    The text is a budget, as `parse_budget` reads it; or one with its period: `eps=8 per 30 days`, and then, each if it
    is wanted and in this order, `, late 7 days`, `, ahead 1 hour` and `, total eps=40`. Units are seconds, minutes,
    hours, days and weeks. Raises `BudgetError` for anything else.

    >>> parse_cap("eps=8 per 30 days").length
    2592000
    """
    if isinstance(text, RenewingCap):
        return text
    if not isinstance(text, str) or not re.search(r"\sper\s", text, re.IGNORECASE):
        return parse_budget(text)
    found = _GRAMMAR.fullmatch(text.strip())
    if found is None:
        raise BudgetError(
            f"expected a cap such as eps=8 per 30 days, late 7 days, ahead 1 hour, total eps=40; got {text!r}"
        )
    limits = {name: whole_seconds(found[name]) for name in ("late", "ahead") if found[name] is not None}
    total = None if found["total"] is None else parse_budget(found["total"])
    return RenewingCap(parse_budget(found["budget"]), whole_seconds(found["per"]), **limits, total=total)


def whole_seconds(text: str) -> int:
    """Read a length of time, such as `7 days`, as seconds.

    `text`: a whole number of seconds, minutes, hours, days or weeks.

    Raises `BudgetError` for anything else.

    >>> whole_seconds("7 days")
    604800
    """
    found = re.fullmatch(_LENGTH, text.strip(), re.IGNORECASE) if isinstance(text, str) else None
    number, unit = ("0", "") if found is None else found.groups()
    if unit.lower() not in _UNITS:
        raise BudgetError(f"expected a number of {', '.join(f'{unit}s' for unit in _UNITS)}; got {text!r}")
    return int(number) * _UNITS[unit.lower()]


def in_units(seconds: int) -> str:
    """Return whole seconds in words, in the largest unit up to days that gives a whole number.

    >>> in_units(7 * DAY)
    '7 days'
    """
    for name in ("day", "hour", "minute", "second"):
        if seconds % _UNITS[name] == 0 and (seconds or name == "second"):
            number = seconds // _UNITS[name]
            return f"{number} {name}" + ("" if number == 1 else "s")
    raise AssertionError("a second divides every whole number")


def budgets_of(cap: Cap) -> tuple[Budget, ...]:
    """Return the budgets that a record must fit: that of its period, and the total if there is one; or the only one."""
    if not isinstance(cap, RenewingCap):
        return (cap,)
    return (cap.budget,) if cap.total is None else (cap.budget, cap.total)


def for_all_time(cap: Cap) -> Budget:
    """Return the cap over all time, of which subjects may have their own.

    Raises `BudgetError` for a cap that renews and has no total.
    """
    if not isinstance(cap, RenewingCap):
        return cap
    if cap.total is None:
        raise BudgetError(f"the cap {cap} has no total, so there is none for a single subject; use a cap with a total")
    return cap.total


def own_cap(own: Budget | str, cap: Cap) -> Cap:
    """Return all that holds for a subject with a cap of its own, `own`, over all time."""
    own = parse_budget(own)
    return replace(cap, total=own) if isinstance(cap, RenewingCap) else own


def same_kind(one: Cap | None, other: Cap | None) -> bool:
    """Return whether two caps, or none, differ in their amounts only, so that the same rows count for both."""
    return _kind(one) == _kind(other)


def _kind(cap: Cap | None) -> tuple[object, ...]:
    if isinstance(cap, RenewingCap):
        return type(cap.budget), cap.length, cap.late, cap.ahead, cap.total is None
    return (type(cap),)


def loosest(caps: Iterable[Cap]) -> tuple[Cap, ...]:
    """Return one cap of each kind, with the largest numbers that a cap of this kind has.

    >>> [str(cap) for cap in loosest(map(parse_cap, ["eps=1", "mu=2", "eps=3"]))]
    ['eps=3', 'mu=2']
    """
    found: dict[tuple[object, ...], Cap] = {}
    for cap in caps:
        found[_kind(cap)] = _larger(found.get(_kind(cap), cap), cap)
    return tuple(found.values())


def _larger(one: Any, other: Any) -> Any:
    """The largest numbers of two caps of a kind, or of two budgets of one."""
    if not isinstance(one, RenewingCap):
        return None if one is None else type(one)(*map(max, astuple(one), astuple(other)))
    return replace(one, budget=_larger(one.budget, other.budget), total=_larger(one.total, other.total))


def allows_more(cap: Cap, than: Cap) -> bool:
    """Return whether a cap has a larger amount than another one of the same kind."""
    new, old = (sum(map(astuple, budgets_of(one)), ()) for one in (cap, than))
    return any(a > b for a, b in zip(new, old, strict=True))


def refusals(cap: Cap, over: str = "") -> str:
    """Return which records a cap refuses, as a phrase for a statement; `over` is such as " over all jobs"."""
    head = f"records with a subject are refused once the person's total{over}"
    if not isinstance(cap, RenewingCap):
        return f"{head} would pass {cap}"
    phrase = f"{head} in one period of {in_units(cap.length)} would pass {cap.budget}"
    return phrase if cap.total is None else f"{phrase}, or over all time {cap.total}"


def promises(cap: Cap, several: str = "records") -> list[str]:
    """Return what a cap that renews promises to `several` reports or records, as phrases; none for another cap."""
    if not isinstance(cap, RenewingCap):
        return []
    length = in_units(cap.length)
    total = "has no bound" if cap.total is None else "is bounded by the total"
    of_several = f"{several} count in each period in which they have records of the person"
    return [
        *([] if several == "records" else [of_several]),
        f"periods of {length} follow one another from 1970-01-01T00:00Z; a record counts in the period of its own time,"
        " which is public, or of the moment at which it is learned if it has none",
        f"in any span of {length}, wherever it begins, the {several} of a person spend at most the budgets of two"
        f" periods, {cap.in_span()} together; what a person spends over all time {total}",
        f"a record whose time is more than {in_units(cap.late)} past or more than {in_units(cap.ahead)} ahead is not"
        f" learned; a sender of false times can spend the budgets of at most {cap.forged} periods in {length} by the"
        " clock",
    ]
