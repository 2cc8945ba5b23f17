"""Composition of budgets: the total spend of one subject, and the largest spend over disjoint records."""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from streamdp.errors import BudgetError
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, no_budget, rounded_up


@dataclass(frozen=True, slots=True)
class Spend:
    """The total spend of one subject: sums over a number of records.

    epsilon and delta are summed over PureDP and ApproxDP spends (basic composition), mu^2 over GaussianDP spends (Dong,
    Roth, Su 2022, Corollary 2). `pure_mu_squared` is the sum of mu^2 over PureDP spends converted to GDP, for caps in
    mu; inf if there is an ApproxDP spend.

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
    def of(budgets: Iterable[Budget]) -> "Spend":
        """The total spend of budgets, one for each record."""
        total = Spend()
        for budget in budgets:
            total = total + budget
        return total

    def __add__(self, budget: Budget) -> "Spend":
        epsilon, delta, mu_squared, pure_mu_squared = spend_terms(budget)
        return Spend(
            self.epsilon + epsilon,
            self.delta + delta,
            self.mu_squared + mu_squared,
            self.pure_mu_squared + pure_mu_squared,
            self.records + 1,
        )

    def guarantee(self, delta: float = 1e-6) -> Budget | None:
        """The composed guarantee; None if nothing was spent.

        Spends of PureDP and ApproxDP compose to their sums, spends of GaussianDP to GaussianDP. A mixture is composed
        to (epsilon, delta) by `dp_accounting`, with basic composition of the deltas spent, and `delta` in total.
        Raises `BudgetError` if a mixture has spent `delta` or more.
        """
        if self.records == 0:
            return None
        if self.mu_squared == 0:
            return ApproxDP(self.epsilon, self.delta) if self.delta else PureDP(self.epsilon)
        if self.epsilon == 0:
            return GaussianDP(math.sqrt(self.mu_squared))
        if delta <= self.delta:
            raise BudgetError(f"delta must be above the {rounded_up(self.delta)} already spent, got {delta:g}")
        return ApproxDP(_mixed_epsilon(self, delta - self.delta), delta)


def spend_terms(budget: Budget) -> tuple[float, float, float, float]:
    """The terms that a budget adds to (epsilon, delta, mu_squared, pure_mu_squared) of a `Spend`.

    Raises `BudgetError` if it is not a budget.
    """
    match budget:
        case PureDP(epsilon):
            return epsilon, 0.0, 0.0, GaussianDP.from_pure(budget).mu ** 2
        case ApproxDP(epsilon, delta):
            return epsilon, delta, 0.0, math.inf  # no GDP guarantee follows from (epsilon, delta)
        case GaussianDP(mu):
            return 0.0, 0.0, mu**2, 0.0
    raise no_budget(budget)


_LARGEST_EPSILON, _LARGEST_MU = 50.0, 10.0


def _mixed_epsilon(spend: Spend, delta: float) -> float:
    """Epsilon at `delta` of the summed epsilon together with the Gaussian spends.

    It is at most their sum (basic composition). Where one of them is so large that a distribution of the loss would not
    fit into memory, the sum is returned; there, little can be gained. Otherwise one randomized response of the summed
    epsilon dominates these spends (Kairouz, Oh, Viswanath 2015), and dp-accounting composes its privacy loss
    distribution with that of the Gaussian spends.
    """
    mu = math.sqrt(spend.mu_squared)
    added = spend.epsilon + GaussianDP(mu).epsilon(delta)
    if spend.epsilon > _LARGEST_EPSILON or mu > _LARGEST_MU:
        return added
    from dp_accounting.pld import common, privacy_loss_distribution

    pure = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(spend.epsilon, 0.0), value_discretization_interval=1e-3
    )
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    return min(added, float(pure.compose(gaussian).get_epsilon_for_delta(delta)))


def widest(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """Parallel composition over disjoint records: the largest budget of each kind (Shi et al. 2025, Proposition 1).

    >>> widest([PureDP(1), PureDP(2), ApproxDP(1, 1e-6), ApproxDP(0.5, 1e-5)])
    (PureDP(epsilon=2.0), ApproxDP(epsilon=1.0, delta=1e-05))
    """
    found: dict[type, Budget] = {}
    for budget in budgets:
        kind: Any = type(budget)
        found[kind] = kind(*map(max, astuple(found.get(kind, budget)), astuple(budget)))
    return tuple(found[kind] for kind in (PureDP, ApproxDP, GaussianDP) if kind in found)
