"""Budgets and guarantees: three frozen value types of budgets, their text form and conversions.

Neighbours. Two streams that differ in one record, which is replaced by any other that fits the schema. A `Guarantee`
says in `neighbours` what exactly is replaced and what is public.

* `PureDP(epsilon)`: (epsilon, 0)-DP.
* `ApproxDP(epsilon, delta)`: (epsilon, delta)-DP (Dwork et al. 2006).
* `GaussianDP(mu)`: mu-GDP (Dong, Roth, Su 2022): as hard to distinguish as N(0, 1) and N(mu, 1).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING

import scipy

from streamdp.errors import BudgetError, NotAvailableError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

SERVICEABLE = (2.0**-20, 2.0**20)
"""The least and the largest epsilon or mu that a mechanism serves, about 1e-6 and 1e6.

Below the range, noise could overflow and rounding would count against the budget. Above it, nothing is protected.
Totals, caps and conversions are not limited.
"""


_LEAST_DELTA = 1e-300
_LARGE_EPSILON, _LARGE_MU, _LARGE_DELTA = 10.0, 3.0, 1e-3


def _positive(name: str, value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        raise BudgetError(f"{name} must be a number, got {type(value).__name__}") from None
    if not (math.isfinite(number) and number > 0):
        raise BudgetError(f"{name} must be positive and finite, got {number}")
    return number


def rounded_up(value: float, digits: int = 6) -> str:
    """A number in this many digits, rounded up: rounding must not make a promise look stronger.

    >>> rounded_up(0.19999999999999996), rounded_up(0.30000000000000004), rounded_up(1e-08)
    ('0.2', '0.300001', '1e-08')
    """
    nearest = f"{value:.{digits}g}"
    if float(nearest) >= value:  # such as 1e-08, whose double is above 10^-8
        return nearest
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)):.{digits}g}"


def _exact(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


class _Text:
    """A budget as text: `str` is exact, for jobs, states and messages; `format`, for people, is `rounded_up`."""

    __slots__: tuple[str, ...] = ()

    def _written(self, number: Callable[[float], str]) -> str:
        return ",".join(f"{name.replace('epsilon', 'eps')}={number(getattr(self, name))}" for name in self.__slots__)

    def __str__(self) -> str:
        return self._written(_exact)

    def __format__(self, spec: str) -> str:
        return format(self._written(rounded_up), spec)


@dataclass(frozen=True, slots=True, order=True)
class PureDP(_Text):
    """(epsilon, 0)-differential privacy. Raises `BudgetError` unless `epsilon` is positive and finite.

    >>> PureDP(1.0)
    PureDP(epsilon=1.0)
    >>> str(PureDP(1.0))
    'eps=1'
    >>> PureDP(1.0) < PureDP(2.0)
    True
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))


@dataclass(frozen=True, slots=True)
class ApproxDP(_Text):
    """(epsilon, delta)-differential privacy. Use `PureDP` for delta = 0.

    Raises `BudgetError` unless `epsilon` is positive and finite, and 0 < `delta` < 1.

    >>> str(ApproxDP(1.0, 1e-6))
    'eps=1,delta=1e-06'
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _positive("delta", self.delta))
        if self.delta >= 1:
            raise BudgetError(f"delta must be below 1, got {self.delta}")


@dataclass(frozen=True, slots=True, order=True)
class GaussianDP(_Text):
    """mu-Gaussian differential privacy.

    Raises `BudgetError` unless `mu` is positive and finite. Source: Dong, Roth, Su, "Gaussian differential privacy",
    2022, Definition 4 and Corollary 1.

    >>> str(GaussianDP(0.5))
    'mu=0.5'
    >>> round(GaussianDP(1.0).delta(1.0), 4)
    0.1269
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _positive("mu", self.mu))

    def delta(self, epsilon: float) -> float:
        """The smallest delta in [0, 1] such that mu-GDP implies (epsilon, delta)-DP, for an `epsilon` of at least 0.

        delta_mu(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) (Dong, Roth, Su 2022, Corollary 1).
        """
        return gdp_delta(self.mu, epsilon)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 such that mu-GDP implies (epsilon, delta)-DP.

        Raises `BudgetError` for a `delta` that is not finite, or below 1e-300, where doubles lose digits.
        """
        delta = _positive("delta", delta)
        if delta < _LEAST_DELTA:
            raise BudgetError(f"delta must be at least {_LEAST_DELTA:g}, got {delta:g}")
        if gdp_delta(self.mu, 0.0) <= delta:
            return 0.0
        high = self.mu**2 / 2 + self.mu * math.sqrt(2 * math.log(1 / delta))  # a Gaussian tail bound
        return nearest(lambda e: gdp_delta(self.mu, e) <= delta, 0.0, high + 1.0)

    def to_approx(self, delta: float) -> ApproxDP:
        """The (epsilon, delta) guarantee that mu-GDP implies at this `delta`, with the errors of `epsilon`."""
        return ApproxDP(max(self.epsilon(delta), 5e-324), delta)

    @staticmethod
    def from_approx(guarantee: ApproxDP) -> "GaussianDP":
        """The largest mu whose mu-GDP implies the (epsilon, delta)-DP of `guarantee`, up to rounding errors.

        Raises `BudgetError` if it is below 1e-300.
        """

        def holds(mu: float) -> bool:
            """Also if each of the two terms of delta has rounding errors, which matter if both are nearly the same."""
            ratio = min(guarantee.epsilon / mu, 1e9)
            rounding = 2.0**-48 * (1 + ratio**2) * float(scipy.special.ndtr(mu / 2 - guarantee.epsilon / mu))
            return gdp_delta(mu, guarantee.epsilon) + rounding <= guarantee.delta

        mu = 1.0
        while not holds(mu):
            mu /= 2
            if mu < _LEAST_DELTA:
                raise BudgetError(f"no mu-GDP with mu from {_LEAST_DELTA:g} on implies {guarantee}")
        while holds(2 * mu):
            mu *= 2
        return GaussianDP(nearest(holds, 2 * mu, mu))

    @staticmethod
    def from_pure(guarantee: PureDP) -> "GaussianDP":
        """The smallest mu such that the epsilon-DP of `guarantee` implies mu-GDP: mu = -2 Phi^-1(1 / (1 + e^eps)).

        Proof: docs/proofs/noise.md, as for a noisy bit.
        """
        logarithm = scipy.special.log_expit(-guarantee.epsilon)  # e^eps may overflow
        return GaussianDP(float(-2 * scipy.special.ndtri_exp(logarithm)))


Budget = PureDP | ApproxDP | GaussianDP


def nearest(holds: Callable[[float], bool], no: float, yes: float) -> float:
    """The double nearest to `no` at which `holds`; it does at `yes`, not at `no`. scipy.optimize takes .2 s to load."""
    while (middle := (no + yes) / 2) not in (no, yes):
        if holds(middle):
            yes = middle
        else:
            no = middle
    return yes


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta_mu(epsilon) of mu-GDP, as `GaussianDP.delta`, for epsilon >= 0.

    The second term is computed from logarithms, so it never overflows.
    """
    first = scipy.special.ndtr(-epsilon / mu + mu / 2)
    second = math.exp(min(0.0, epsilon + scipy.special.log_ndtr(-epsilon / mu - mu / 2)))
    return float(max(0.0, first - second))


FORMS = {PureDP: "eps=E", ApproxDP: "eps=E,delta=D", GaussianDP: "mu=M"}


def parse_budget(text: str | Budget) -> Budget:
    """Read a budget from `text`: `eps=1`, `eps=1,delta=1e-6` or `mu=0.5`; `epsilon` is another name of `eps`.

    A budget is returned unchanged. Raises `BudgetError` for anything else.

    >>> parse_budget("eps=1,delta=1e-6")
    ApproxDP(epsilon=1.0, delta=1e-06)
    """
    if isinstance(text, PureDP | ApproxDP | GaussianDP):
        return text
    expected = "expected {}, {} or {}".format(*FORMS.values())
    if not isinstance(text, str):
        raise BudgetError(f"{expected}, got {type(text).__name__}")
    parts: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = item.partition("=")
        name = {"epsilon": "eps"}.get(name.strip().lower(), name.strip().lower())
        try:
            value = float(number if number.isascii() and "_" not in number else "")  # Python reads 0_5 as 5
        except ValueError:
            raise BudgetError(f"{expected}, got {text!r}") from None
        if not equals or name in parts:
            raise BudgetError(f"{expected}, got {text!r}")
        parts[name] = value
    match sorted(parts):
        case ["eps"]:
            return PureDP(parts["eps"])
        case ["delta", "eps"]:
            return PureDP(parts["eps"]) if parts["delta"] == 0 else ApproxDP(parts["eps"], parts["delta"])
        case ["mu"]:
            return GaussianDP(parts["mu"])
    raise BudgetError(f"{expected}, got {text!r}")


def with_delta(given: str | Budget, delta: float) -> Budget:
    """Return a budget for what needs a delta: a text that says nothing of it gets this `delta`.

    Raises `BudgetError` for a text with delta=0, and as `parse_budget`.
    """
    budget = parse_budget(given)
    if not (isinstance(given, str) and isinstance(budget, PureDP)):
        return budget
    if "delta" in given.lower():
        raise BudgetError(f"budget: expected a delta above 0, such as {delta:g}, got 0: this has no pure epsilon")
    return ApproxDP(budget.epsilon, delta)


def no_budget(found: object) -> BudgetError:
    """The error for what is `found` where a budget is expected: the end of each dispatch by kinds of budgets."""
    return BudgetError(f"expected PureDP, ApproxDP or GaussianDP, got {type(found).__name__}")


def amount(budget: Budget) -> float:
    """The size of a budget: mu of a GaussianDP, else epsilon."""
    return budget.mu if isinstance(budget, GaussianDP) else budget.epsilon


def about_delta(budgets: Iterable[Budget], records: int) -> list[str]:
    """What a statement over so many `records` says of the largest delta that was spent, if it is too large."""
    delta = max((budget.delta for budget in budgets if isinstance(budget, ApproxDP)), default=0.0)
    said = f"nothing is promised with the probability delta, and it is above 1/n of these n = {records:,} records"
    return [said] if delta * records > 1 else []


def weakness(budget: Budget, records: int | None = None) -> str | None:
    """Return a sentence if a budget protects little, also among so many `records`, if that is known; else None."""
    match budget:
        case PureDP(amount) | ApproxDP(amount, _) if amount > _LARGE_EPSILON:
            usual = "usual are eps=1 to eps=10"
        case GaussianDP(amount) if amount > _LARGE_MU:
            usual = "usual are mu=0.2 to mu=2"
        case ApproxDP(_, delta) if records is not None and delta * records > 1:
            usual = (
                f"its delta is above 1 / n for n = {records:,} records, so that even a release of one of them as it is"
                " may keep it; usual is a delta of at most a tenth of 1 / n"
            )
        case ApproxDP(_, delta) if delta > _LARGE_DELTA:
            most = rounded_up(delta)
            usual = f"with the probability {most} nothing is promised; usual is a delta below 1 / records, such as 1e-6"
        case _:
            return None
    return f"a budget of {budget} protects a record very little: {usual}"


def with_amount(budget: Budget, value: float) -> Budget:
    """A budget of the same kind and delta with another value of epsilon or mu. Raises `BudgetError` out of range."""
    if not isinstance(budget, _Text):
        raise no_budget(budget)
    kind: Callable[..., Budget] = type(budget)
    return kind(value, *astuple(budget)[1:])


def implies(one: Budget, other: Budget) -> bool:
    """Return whether everything that has the guarantee of `one` has that of `other`, for what is known to follow.

    >>> implies(PureDP(1), ApproxDP(1, 1e-6)), implies(GaussianDP(0.1), PureDP(1))
    (True, False)
    """
    match one, other:
        case (PureDP(), PureDP() | ApproxDP()):
            return one.epsilon <= other.epsilon
        case (ApproxDP(), ApproxDP()):
            return one.epsilon <= other.epsilon and one.delta <= other.delta
        case (PureDP(), GaussianDP(mu)):
            return GaussianDP.from_pure(one).mu <= mu
        case (GaussianDP(mu), GaussianDP()):
            return mu <= other.mu
        case (GaussianDP(mu), ApproxDP(epsilon, delta)):
            return gdp_delta(mu, epsilon) <= delta
    return False  # no pure epsilon follows from the others, and no mu from epsilon and delta


def check_serviceable(budget: Budget) -> None:
    """Raise `BudgetError` if epsilon or mu is outside `SERVICEABLE`."""
    least, largest = SERVICEABLE
    if not least <= amount(budget) <= largest:
        raise BudgetError(f"expected an epsilon or mu from {least:.3g} to {largest:.3g}, got {budget}")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee achieved: the largest budget of one record of each kind, the neighbours and the trust model.

    Parameters
    ----------
    budgets
        At most one `PureDP`, one `ApproxDP` (largest epsilon, largest delta) and one `GaussianDP`. Empty before the
        first record.
    neighbours
        What is replaced by what, and what is public; a phrase.
    trust
        Which party must be trusted; a phrase.
    private
        False for an estimator with a seed or without noise. Then nothing is guaranteed, whatever `budgets` holds.
    """

    budgets: tuple[Budget, ...]
    neighbours: str
    trust: str
    private: bool = True

    def dp_event(self) -> "DpEvent":
        """The guarantee as an event of dp-accounting, for its accountants of `NeighboringRelation.REPLACE_ONE`.

        * not private: `NonPrivateDpEvent()`
        * nothing spent: `NoOpDpEvent()`
        * PureDP(epsilon): `RandomizedResponseDpEvent(2 / (1 + e^epsilon), 2)`
        * GaussianDP(mu): `GaussianDpEvent(1 / mu)`
        * several budgets: `ComposedDpEvent` of their events. Their composition covers each of them.

        Under REPLACE_ONE, no accountant returns less than what the guarantee implies; why: docs/proofs/noise.md. Two
        uses of the event of PureDP understate epsilon: REPLACE_SPECIAL, and `PLDAccountant.compose(event, count)` of
        dp-accounting 0.6.0, which ignores the count: compose `ComposedDpEvent([event] * count)`. For GaussianDP,
        PLDAccountant with REPLACE_ONE returns the epsilon of 2 mu: too large, but safe. For the exact one of GaussianDP
        budgets alone, use REPLACE_SPECIAL, or `GaussianDP.epsilon`.

        Raises `NotAvailableError` if there is an ApproxDP budget: dp-accounting has no event for it. Add its epsilon
        and delta to those of the other events (basic composition).

        >>> Guarantee((GaussianDP(0.5),), "one record", "nobody").dp_event()
        GaussianDpEvent(noise_multiplier=2.0)
        """
        from dp_accounting import dp_event

        if not self.private:
            return dp_event.NonPrivateDpEvent()
        events = [_event(budget) for budget in self.budgets]
        if not events:
            return dp_event.NoOpDpEvent()
        return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)

    def __str__(self) -> str:
        if not self.private:
            return "not private"
        return "; ".join(map("{}".format, self.budgets)) or "nothing spent"


def _event(budget: Budget) -> "DpEvent":
    """The event of one budget (see `Guarantee.dp_event`)."""
    from dp_accounting import dp_event

    match budget:
        case PureDP(epsilon):
            return dp_event.RandomizedResponseDpEvent(2 * float(scipy.special.expit(-epsilon)), 2)
        case GaussianDP(mu):
            return dp_event.GaussianDpEvent(1 / mu)
    raise NotAvailableError(f"dp-accounting has no event for {budget}: add its epsilon and delta to the others")
