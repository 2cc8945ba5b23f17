"""Lent spends: another process decides as the ledger would, and nothing comes back that the ledger would not admit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.errors import NotAvailableError, StoreError
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.loans import CarriedRows
from streamdp.ledger.periods import Cap, parse_cap
from streamdp.ledger.rows import CAP
from streamdp.privacy.guarantees import PureDP
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

KEY = b"k" * 32
CAP_TEXT = "eps=3"


def carried(ledger: Ledger, people: list[str], chosen: np.ndarray | None = None) -> tuple[CarriedRows, Ledger, object]:
    loan = ledger.export_rows(people, KEY)
    cap: Cap = parse_cap(CAP_TEXT)
    lent = loan.rows(np.ones(len(people), dtype=np.bool_) if chosen is None else chosen)
    rows = CarriedRows(cap, *lent, loan.mark, loan.charged)
    return rows, Ledger.over(rows, cap, KEY), loan


records = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "\u00e9", "e\u0301", "eve"]), st.sampled_from([0.5, 1.0, 2.0])),
    max_size=30,
)


@given(st.lists(records, min_size=1, max_size=4))
@pytest.mark.slow
def test_lent_rows_admit_what_the_ledger_admits(batches: list[list[tuple[str, float]]]) -> None:
    with Ledger(CAP_TEXT) as here, Ledger(CAP_TEXT) as lender:
        lender.set_cap("eve", "eps=1")
        here.set_cap("eve", "eps=1")
        for batch in batches:
            people = [subject for subject, _ in batch]
            amounts = np.array([amount for _, amount in batch])
            rows, there, loan = carried(lender, sorted(set(people)))
            expected = here.admit_many(people, PureDP(1), amounts)
            np.testing.assert_array_equal(there.admit_many(people, PureDP(1), amounts), expected)
            loan.settle(*rows.changed())
            for subject in set(people):
                assert lender.spent(subject) == here.spent(subject)


def test_a_subject_that_was_not_lent_is_not_admitted_as_new() -> None:
    with Ledger(CAP_TEXT) as lender:
        _, there, _ = carried(lender, ["ann", "bob"], np.array([True, False]))
        with pytest.raises(StoreError, match="not among the records"):
            there.admit_many(["ann", "bob"], PureDP(1))
        assert there.admit("ann", PureDP(3))


def test_what_comes_back_is_checked_and_changes_nothing_if_it_is_wrong() -> None:
    with Ledger(CAP_TEXT) as lender:
        lender.admit("ann", PureDP(1))
        rows, there, loan = carried(lender, ["ann", "bob"])
        assert there.admit("ann", PureDP(1))
        keys, good = rows.changed()
        over, less, own = good.copy(), good.copy(), good.copy()
        over[:, 0], less[:, 0], own[:, CAP] = 3.1, 0.5, 9.0
        for wrong in (over, less, own):
            with pytest.raises(StoreError):
                loan.settle(keys, wrong)
        with pytest.raises(StoreError, match="not lent"):
            loan.settle(keys + np.uint64(1), good)
        with pytest.raises(StoreError, match="not lent"):
            loan.settle(np.concatenate([keys, keys]), np.concatenate([good, good]))
        assert lender.spent("ann").epsilon == 1
        loan.settle(keys, good)
        assert lender.spent("ann").epsilon == 2


def test_a_rollback_ends_a_loan_and_a_commit_keeps_it(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db", "late", "1", cap=CAP_TEXT) as store:
        assert store.ledger is not None
        rows, there, loan = carried(store.ledger, ["ann"])
        there.admit("ann", PureDP(2))
        store.rollback()
        with pytest.raises(StoreError):
            loan.settle(*rows.changed())
        rows, there, loan = carried(store.ledger, ["ann"])
        there.admit("ann", PureDP(2))
        loan.settle(*rows.changed())
        store.commit({}, {"row": 1}, Counts(1))
    with Store(tmp_path / "a.db", "late", "1", cap=CAP_TEXT) as store:
        assert store.ledger.spent("ann").epsilon == 2


def test_what_is_lent_holds_neither_subjects_nor_the_hashes_of_the_store() -> None:
    with Ledger(CAP_TEXT) as lender:
        lender.admit("ann", PureDP(1))
        first, second = lender.export_rows(["ann"], KEY), lender.export_rows(["ann"], b"q" * 32)
        stored = lender._rows.cache.keys[0]
        assert not np.array_equal(first.keys[0], second.keys[0])
        assert not np.array_equal(first.keys[0], stored)


def test_a_cap_that_renews_is_not_lent() -> None:
    with Ledger("eps=3 per 30 days") as ledger, pytest.raises(NotAvailableError):
        ledger.export_rows(["ann"], KEY)
