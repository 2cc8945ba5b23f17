"""Whether spends fit one filter, or that of the period and the total (see `periods`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdp.ledger.admission import all_fit
from streamdp.ledger.caps import cap_numbers, check_counts, spend_numbers
from streamdp.ledger.periods import Cap, budgets_of
from streamdp.ledger.rows import ROW, CapNumbers
from streamdp.ledger.subject_key import period_of
from streamdp.privacy.guarantees import Budget


def fits(cap: Cap, spend: Budget) -> bool:
    """Return whether the first record of a person fits a cap.

    Raises `BudgetError` for a spend that the cap cannot count.
    """
    row, terms = np.zeros((1, ROW)), spend_numbers(spend, None, 1)
    row[:, : terms.shape[1]] = terms
    for bound in budgets_of(cap):
        check_counts(bound, spend)
    return all(all_fit(row, *cap_numbers(bound)) for bound in budgets_of(cap))


def within(keys: np.ndarray, rows: np.ndarray, caps: Sequence[CapNumbers]) -> bool:
    """Return whether no row is over its cap, with `keys` (n, 2) and `rows` (n, ROW).

    Of two filters' caps, the second is for rows without a period.
    """
    if len(caps) == 1:
        return all_fit(rows, *caps[0])
    total = period_of(keys) == 0
    return all_fit(rows[~total], *caps[0]) and all_fit(rows[total], *caps[1])
