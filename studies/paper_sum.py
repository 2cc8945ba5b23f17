"""The shuffled sum as Cheu, Joseph, Mao and Peng 2022 calibrate it, beside `streamdp.aggregation.binomial`."""

from __future__ import annotations

import math

from streamdp.errors import BudgetError
from streamdp.privacy.guarantees import ApproxDP

_MOST_BITS = 2**40


def fewer_honest(budget: ApproxDP, users: int, honest: int) -> ApproxDP:
    """The guarantee if some users did not follow the protocol (Claim A.8 and Corollary A.9).

    It is for an epsilon up to 1 and at least a third honest users. Raises `BudgetError` for others.
    """
    if honest != users and (budget.epsilon > 1 or 3 * honest < users):
        raise BudgetError("the paper covers fewer honest users for epsilon up to 1 and at least a third of them")
    return ApproxDP(budget.epsilon * users / honest, budget.delta)


def of_a_round(budget: ApproxDP, rounds: int) -> ApproxDP:
    """What each of several rounds with the same people gets of a budget (Theorem 4.9)."""
    return ApproxDP(
        budget.epsilon / (2 * math.sqrt(2 * rounds * math.log(1 / budget.delta))), budget.delta / (rounds + 1)
    )


def paper_parameters(users: int, d: int, budget: ApproxDP, bound: float) -> tuple[int, int]:
    """(g, b) of Cheu et al., Theorem A.6, for 0 < epsilon <= 15 and delta < 1/2.

    g = max(2 Delta2 sqrt n, sqrt d, 4) rounded up, gamma = delta/(d+1), eps_hat = epsilon/(18 sqrt(ln 1/gamma)) and b
    the next integer over 180 g^2 ln(2/gamma)/(eps_hat^2 n). The paper's p = 90 g^2 ln(2/gamma)/(b eps_hat^2 n) is then
    just under 1/2. Fair bits are used, which their Lemma A.1 allows (p <= 1/2) and which only adds noise. g depends on
    the unit of Delta2, and b on g; the variance does not. Here n is `users` and Delta2 is `bound`. Raises `BudgetError`
    outside the range of the theorem or above 2^40 bits.

    >>> paper_parameters(1000, 6, ApproxDP(1.0, 1e-6), 0.5)
    (32, 15488142)
    """
    if not (budget.epsilon <= 15 and budget.delta < 0.5):
        raise BudgetError(f"the paper's calibration serves epsilon up to 15 and delta below 0.5, got {budget}")
    g = math.ceil(max(2 * bound * math.sqrt(users), math.sqrt(d), 4))
    if g >= _MOST_BITS or paper_bits(g, users, d, budget) >= _MOST_BITS:
        raise BudgetError(f"the paper's calibration takes over 2^40 bits a coordinate for {budget}, bound {bound:g}")
    return g, paper_bits(g, users, d, budget)


def paper_bits(g: int, users: int, d: int, budget: ApproxDP) -> int:
    """b of `paper_parameters` for g cells, n users and d coordinates."""
    gamma = budget.delta / (d + 1)
    squared = budget.epsilon**2 / (324 * math.log(1 / gamma))
    return math.floor(180 * float(g) ** 2 * math.log(2 / gamma) / (squared * users)) + 1
