"""Admission against one filter, or against that of the period and the total (see `periods`).

An exception at any moment leaves no record admitted, because the mask is not returned. It may leave rows that were
charged for records that are not learned. This weakens no guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdp.ledger.admission import admit_in_order, all_fit
from streamdp.ledger.caps import cap_numbers, check_counts, spend_numbers
from streamdp.ledger.periods import Cap, budgets_of
from streamdp.ledger.row_cache import RowCache
from streamdp.ledger.rows import NOBODY, ROW, CapNumbers
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


def admit(cache: RowCache, slots: np.ndarray, terms: np.ndarray, caps: Sequence[CapNumbers]) -> np.ndarray:
    """Admit records in order and return (n,) bool. A refused record adds to no row.

    `cache` is changed in place. `slots` (f, n) int64 is the row of each record in each of f filters, one or two, with
    their caps; `NOBODY` for a record that a filter always admits. `terms` is (n, 4) or (1, 4), from `spend_numbers`.
    """
    charged = np.ascontiguousarray(slots)
    if len(caps) == 1:
        return admit_in_order(charged[0], terms, cache.rows, cache.pending, *caps[0])
    places = np.unique(charged[charged != NOBODY])
    before = cache.rows[places]
    admitted = admit_in_order(charged[0], terms, cache.rows, cache.pending, *caps[0])
    first = np.flatnonzero(admitted)
    each = terms if len(terms) == 1 else terms[first]
    fits = admit_in_order(charged[1, first], each, cache.rows, cache.pending, *caps[1])
    if not fits.all():
        # Of subjects with a record that fits its period and not the total, later records are decided again.
        mixed = np.isin(slots[1], slots[1, first[~fits]])
        own = np.isin(places, charged[:, mixed])
        cache.rows[places[own]] = before[own]
        for i in np.flatnonzero(mixed):
            one = terms if len(terms) == 1 else terms[i : i + 1]
            admitted[i] = _admit_one(cache, charged[:, i], one, caps)
    return admitted


def _admit_one(cache: RowCache, slots: np.ndarray, terms: np.ndarray, caps: Sequence[CapNumbers]) -> bool:
    before = cache.rows[slots[0]].copy()
    if not admit_in_order(slots[:1], terms, cache.rows, cache.pending, *caps[0])[0]:
        return False
    fits = bool(admit_in_order(slots[1:], terms, cache.rows, cache.pending, *caps[1])[0])
    if not fits and slots[0] != NOBODY:
        cache.rows[slots[0]] = before
    return fits


def within(keys: np.ndarray, rows: np.ndarray, caps: Sequence[CapNumbers]) -> bool:
    """Return whether no row is over its cap, with `keys` (n, 2) and `rows` (n, ROW).

    Of two filters' caps, the second is for rows without a period.
    """
    if len(caps) == 1:
        return all_fit(rows, *caps[0])
    total = period_of(keys) == 0
    return all_fit(rows[~total], *caps[0]) and all_fit(rows[total], *caps[1])
