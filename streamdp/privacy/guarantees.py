"""Budgets and guarantees: three frozen value types, their text form, conversions and composition.

Neighbouring streams differ in one record, replaced by any other that fits the schema (`estimators.base.NEIGHBOURS` says
what is public).

* `PureDP(epsilon)`: (epsilon, 0)-DP.
* `ApproxDP(epsilon, delta)`: (epsilon, delta)-DP (Dwork et al. 2006).
* `GaussianDP(mu)`: mu-GDP (Dong, Roth, Su 2022): as hard to tell apart as N(0, 1) and N(mu, 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering

from scipy.special import log_expit, log_ndtr, ndtr, ndtri_exp

from streamdp.errors import BudgetError

SERVICEABLE = (2.0**-20, 2.0**20)
"""The least and the largest epsilon or mu that a mechanism serves, about 1e-6 and 1e6.

Below, noise could leave the doubles and rounding would count against the budget; above, nothing is protected. Totals,
caps and conversions are not limited.
"""


def _positive(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BudgetError(f"{name} must be a number, got {type(value).__name__}") from None
    if not (math.isfinite(number) and number > 0):
        raise BudgetError(f"{name} must be positive and finite, got {number}")
    return number


def _text(value: float) -> str:
    """The shortest text that reads back as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@total_ordering
@dataclass(frozen=True, slots=True)
class PureDP:
    """(epsilon, 0)-differential privacy; epsilon > 0.

    Raises `BudgetError` unless epsilon is positive and finite.

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

    def __lt__(self, other: object) -> bool:
        return self.epsilon < other.epsilon if isinstance(other, PureDP) else NotImplemented

    def __str__(self) -> str:
        return f"eps={_text(self.epsilon)}"


@dataclass(frozen=True, slots=True)
class ApproxDP:
    """(epsilon, delta)-differential privacy; epsilon > 0, 0 < delta < 1.

    Raises `BudgetError` outside these ranges; for delta = 0 use `PureDP`.

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

    def __str__(self) -> str:
        return f"eps={_text(self.epsilon)},delta={_text(self.delta)}"


@total_ordering
@dataclass(frozen=True, slots=True)
class GaussianDP:
    """mu-Gaussian differential privacy; mu > 0.

    Source: Dong, Roth, Su, "Gaussian differential privacy", 2022, Definition 4 and Corollary 1.
    Raises `BudgetError` unless mu is positive and finite.

    >>> str(GaussianDP(0.5))
    'mu=0.5'
    >>> round(GaussianDP(1.0).delta(1.0), 4)
    0.1269
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _positive("mu", self.mu))

    def __lt__(self, other: object) -> bool:
        return self.mu < other.mu if isinstance(other, GaussianDP) else NotImplemented

    def __str__(self) -> str:
        return f"mu={_text(self.mu)}"

    def delta(self, epsilon: float) -> float:
        """The smallest delta such that mu-GDP implies (epsilon, delta)-DP; epsilon >= 0. In [0, 1].

        delta_mu(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) (Dong, Roth, Su 2022, Corollary 1).
        """
        return gdp_delta(self.mu, epsilon)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 such that mu-GDP implies (epsilon, delta)-DP; 0 < delta < 1."""
        delta = _positive("delta", delta)
        if gdp_delta(self.mu, 0.0) <= delta:
            return 0.0
        from scipy.optimize import brentq  # here and below: half of the time that `import streamdp` would take

        high = self.mu**2 / 2 + self.mu * math.sqrt(2 * math.log(1 / delta))  # a Gaussian tail bound
        return float(brentq(lambda e: gdp_delta(self.mu, e) - delta, 0.0, high + 1.0, xtol=1e-13))

    def to_approx(self, delta: float) -> ApproxDP:
        """The (epsilon, delta) guarantee at this delta."""
        return ApproxDP(max(self.epsilon(delta), 5e-324), delta)

    @staticmethod
    def from_approx(guarantee: ApproxDP) -> GaussianDP:
        """The largest mu whose mu-GDP implies the given (epsilon, delta)-DP."""
        from scipy.optimize import brentq

        low, high = 1e-12, 1.0
        while gdp_delta(low, guarantee.epsilon) > guarantee.delta:
            low /= 2
        while gdp_delta(high, guarantee.epsilon) < guarantee.delta:
            high *= 2
        root = brentq(lambda mu: gdp_delta(mu, guarantee.epsilon) - guarantee.delta, low, high, xtol=1e-14, rtol=1e-13)
        mu = float(root)
        while gdp_delta(mu, guarantee.epsilon) > guarantee.delta:  # the root may sit a rounding error too high
            mu *= 1 - 1e-13
        return GaussianDP(mu)

    @staticmethod
    def from_pure(guarantee: PureDP) -> GaussianDP:
        """The smallest mu such that epsilon-DP implies mu-GDP: mu = -2 Phi^-1(1 / (1 + e^eps)).

        The trade-off curve of epsilon-DP is two chords that meet at ((1+e^eps)^-1, (1+e^eps)^-1). The curve G_mu is
        convex, starts and ends where the chords do, and goes through the corner for this mu; so it lies below them.
        """
        return GaussianDP(float(-2 * ndtri_exp(log_expit(-guarantee.epsilon))))  # in logarithms: e^eps may overflow


Budget = PureDP | ApproxDP | GaussianDP


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta_mu(epsilon) of mu-GDP; both factors of the second term are in logarithms, so it never overflows."""
    first = ndtr(-epsilon / mu + mu / 2)
    second = math.exp(min(0.0, epsilon + log_ndtr(-epsilon / mu - mu / 2)))
    return float(max(0.0, first - second))


def parse_budget(text: str | Budget) -> Budget:
    """Read a budget from text: `eps=1`, `eps=1,delta=1e-6` or `mu=0.5` (`epsilon` works for `eps`).

    A budget object is returned as it is. Raises `BudgetError` for anything else.

    >>> parse_budget("eps=1,delta=1e-6")
    ApproxDP(epsilon=1.0, delta=1e-06)
    """
    if isinstance(text, PureDP | ApproxDP | GaussianDP):
        return text
    expected = "expected eps=E, eps=E,delta=D or mu=M"
    if not isinstance(text, str):
        raise BudgetError(f"{expected}, got {type(text).__name__}")
    parts: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = item.partition("=")
        name = {"epsilon": "eps"}.get(name.strip().lower(), name.strip().lower())
        try:
            value = float(number)
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


def amount(budget: Budget) -> float:
    """The number that grows with a budget of one kind: epsilon, or mu."""
    return budget.mu if isinstance(budget, GaussianDP) else budget.epsilon


def with_amount(budget: Budget, value: float) -> Budget:
    """A budget of the same kind (and delta) with another epsilon or mu."""
    match budget:
        case PureDP():
            return PureDP(value)
        case ApproxDP(_, delta):
            return ApproxDP(value, delta)
        case GaussianDP():
            return GaussianDP(value)


def check_serviceable(budget: Budget) -> None:
    """Raise `BudgetError` for an epsilon or mu outside `SERVICEABLE`."""
    least, largest = SERVICEABLE
    if not least <= amount(budget) <= largest:
        raise BudgetError(f"an epsilon or mu from {least:.3g} to {largest:.3g} can be served, got {budget}")


@dataclass(frozen=True, slots=True)
class Spend:
    """What one subject has spent so far, kept as three sums that compose exactly.

    `epsilon` and `delta` add over PureDP and ApproxDP spends (basic composition), `mu_squared` adds over GaussianDP
    spends (Dong, Roth, Su 2022, Corollary 2). `pure_mu_squared` is the GDP view of the PureDP spends, for GDP caps.

    >>> Spend.of([PureDP(1), PureDP(0.5)]).guarantee()
    PureDP(epsilon=1.5)
    >>> Spend.of([GaussianDP(3), GaussianDP(4)]).guarantee()
    GaussianDP(mu=5.0)
    """

    epsilon: float = 0.0
    delta: float = 0.0
    mu_squared: float = 0.0
    pure_mu_squared: float = 0.0
    records: int = 0

    @staticmethod
    def of(budgets: Iterable[Budget]) -> Spend:
        """The spend of a sequence of budgets."""
        total = Spend()
        for budget in budgets:
            total = total + budget
        return total

    def __add__(self, budget: Budget) -> Spend:
        epsilon, delta, mu_squared, pure_mu_squared = spend_terms(budget)
        return Spend(
            self.epsilon + epsilon,
            self.delta + delta,
            self.mu_squared + mu_squared,
            self.pure_mu_squared + pure_mu_squared,
            self.records + 1,
        )

    def guarantee(self, delta: float = 1e-6) -> Budget | None:
        """The composed guarantee: of one kind where the spends were, else (epsilon, delta) by `dp_accounting`'s PLD.

        `delta` is the total delta of a mixed answer; it must be above the sum of the deltas spent. Basic composition
        of the ApproxDP part with the PLD of the rest; None where nothing was spent.
        """
        if self.records == 0:
            return None
        if self.mu_squared == 0:
            return ApproxDP(self.epsilon, self.delta) if self.delta else PureDP(self.epsilon)
        if self.epsilon == 0:
            return GaussianDP(math.sqrt(self.mu_squared))
        if delta <= self.delta:
            raise BudgetError(f"delta must be above the {self.delta:g} already spent, got {delta:g}")
        return ApproxDP(_mixed_epsilon(self, delta - self.delta), delta)


def spend_terms(budget: Budget) -> tuple[float, float, float, float]:
    """What a budget adds to (epsilon, delta, mu_squared, pure_mu_squared) of a `Spend`."""
    match budget:
        case PureDP(epsilon):
            return epsilon, 0.0, 0.0, GaussianDP.from_pure(budget).mu ** 2
        case ApproxDP(epsilon, delta):
            return epsilon, delta, 0.0, math.inf  # no GDP guarantee follows from (epsilon, delta)
        case GaussianDP(mu):
            return 0.0, 0.0, mu**2, 0.0
    raise BudgetError(f"expected PureDP, ApproxDP or GaussianDP, got {type(budget).__name__}")


def _mixed_epsilon(spend: Spend, delta: float) -> float:
    """Epsilon at `delta` of pure (and approximate) spends together with Gaussian ones.

    One randomized response of the summed epsilon dominates the pure part (Kairouz, Oh, Viswanath 2015); its privacy
    loss distribution is composed with the Gaussian's by dp-accounting.
    """
    from dp_accounting.pld import common, privacy_loss_distribution

    pure = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(spend.epsilon, 0.0), value_discretization_interval=1e-3
    )
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(
        1 / math.sqrt(spend.mu_squared), value_discretization_interval=1e-3
    )
    return float(pure.compose(gaussian).get_epsilon_for_delta(delta))


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What was achieved: the largest budget of one record, one per kind, with relation and trust model.

    `budgets` holds at most one `PureDP`, one `ApproxDP` (largest epsilon, largest delta) and one `GaussianDP`; it is
    empty before the first record, and where `private` is False (seeded or without noise) it promises nothing.
    """

    budgets: tuple[Budget, ...]
    neighbours: str
    trust: str
    private: bool = True

    def __str__(self) -> str:
        if not self.private:
            return "not private"
        return "; ".join(map(str, self.budgets)) or "nothing spent"


def widest(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """Parallel composition over disjoint records: the largest budget of each kind (Shi et al. 2025, Proposition 1).

    >>> widest([PureDP(1), PureDP(2), ApproxDP(1, 1e-6), ApproxDP(0.5, 1e-5)])
    (PureDP(epsilon=2.0), ApproxDP(epsilon=1.0, delta=1e-05))
    """
    found: dict[type, Budget] = {}
    for budget in budgets:
        old = found.get(type(budget))
        if old is None:
            found[type(budget)] = budget
        elif isinstance(budget, ApproxDP) and isinstance(old, ApproxDP):
            found[ApproxDP] = ApproxDP(max(old.epsilon, budget.epsilon), max(old.delta, budget.delta))
        elif amount(budget) > amount(old):
            found[type(budget)] = budget
    return tuple(found[kind] for kind in (PureDP, ApproxDP, GaussianDP) if kind in found)
