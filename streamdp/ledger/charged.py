"""Under which caps spends were charged, from which a statement says what a person may have spent.

A cap is a setting, which may change; parts of a model may come from different ledgers, or from none. So a ledger keeps
the caps that were in force while anything was charged, in the transaction of the charges, and a state has those of the
ledgers by which its records were admitted.

Claim: what a subject was charged by one ledger under caps of one kind is at most their largest numbers, because a
record is admitted only if its subject's sums, with all that was charged before, are within the cap of that moment.
Charges by caps of different kinds, and by different ledgers, add up. Not covered: a copy of a ledger that is charged
like the ledger itself. It has the same mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from streamdp.data.floats import flag
from streamdp.errors import ConfigError, StreamDPError
from streamdp.ledger.periods import Cap, loosest, parse_cap, refusals
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import GaussianDP, PureDP

Charged = frozenset[tuple[str, bool]]
"""Caps under which a ledger charged, as text, each with whether it was the cap of a single subject."""


@dataclass(frozen=True, slots=True)
class CapHistory:
    """The caps under which the records of a model were charged."""

    ledgers: Mapping[str, Charged]  # what each ledger charged under, by its mark
    uncapped: bool = False  # whether records were learned without a ledger

    def joined(self, *others: "CapHistory") -> "CapHistory":
        """Return the history of all records of several models."""
        ledgers = dict(self.ledgers)
        for other in others:
            for mark, charged in other.ledgers.items():
                ledgers[mark] = with_caps(ledgers.get(mark, frozenset()), charged)
        return CapHistory(ledgers, any(one.uncapped for one in (self, *others)))

    def state(self) -> dict[str, object]:
        """Return plain values for a state."""
        charged = {mark: [list(cap) for cap in sorted(caps)] for mark, caps in sorted(self.ledgers.items())}
        return {"uncapped": self.uncapped, "charged": charged}

    def bounds(self) -> list[Cap]:
        """Return the caps that bound parts of what a person was charged; the parts add up. Empty without a ledger."""
        return [cap for caps in self.ledgers.values() for cap in loosest(parse_cap(text) for text, _ in sorted(caps))]

    def people(self, cap: Cap | None, over: str, spends: str) -> str:
        """Return what a person with several records may have spent, as a phrase for a statement.

        Without a cap now, or if it is not known, `spends` says how spends of a person compose. One ledger adds up over
        `over`, such as " over all jobs".
        """
        bounds = self.bounds() or ([] if cap is None or self.uncapped else [cap])
        if not bounds:
            return f"no cap is kept, so {spends}"
        if self.uncapped:
            return f"some records were learned without a ledger, so no cap bounds a person's total: {spends}"
        if len(bounds) > 1:
            return f"no one cap bounds a person's total, which is at most what several allow together: {_sum(bounds)}"
        (most,) = bounds
        for_all = [parse_cap(text) for charged in self.ledgers.values() for text, own in charged if not own]
        (usual,) = loosest(for_all or bounds)
        said = refusals(usual, over)
        if usual != most:
            said += f", or {most} for a person with a cap of its own"
        if cap is not None and cap != usual:
            said += f"; this is the largest cap under which a record was charged, and the cap is {cap} now"
        return said


@lru_cache  # each commit asks for the same caps
def with_caps(charged: Charged, more: Charged) -> Charged:
    """Return caps of which none is within another one: of the two sets together, the largest numbers of each kind."""
    if more <= charged:
        return charged
    both = charged | more
    return frozenset(
        (str(cap), own) for own in (False, True) for cap in loosest(parse_cap(t) for t, o in both if o is own)
    )


def read_history(state: Any) -> CapHistory:
    """Return what `CapHistory.state` wrote. Raises `ConfigError` for another state."""
    try:
        ledgers = {
            str(mark): frozenset((str(parse_cap(str(text))), bool(own)) for text, own in caps)
            for mark, caps in state["charged"].items()
        }
        return CapHistory(ledgers, flag(state, "uncapped"))
    except (KeyError, TypeError, ValueError, AttributeError, StreamDPError):
        raise ConfigError("state: expected the caps under which its records were charged") from None


def _sum(bounds: list[Cap]) -> str:
    each = "; ".join(map("{}".format, bounds))
    alike = set(map(type, bounds))
    total = Spend.of(bounds).guarantee() if alike in ({PureDP}, {GaussianDP}) else None  # type: ignore[arg-type]
    return each if total is None else f"{each}; their sum is {total}"
