"""The ledger admits exactly what a plain-Python model of the caps admits, keeps no names, and loses no spend."""

import copy
import hashlib
import itertools
import math
import multiprocessing
import os
import pickle
import random
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp import LDPSGDClassifier
from streamdp.data.records import WHOLE
from streamdp.data.subjects import hash_people, subjects_bytes
from streamdp.errors import (
    BudgetError,
    LedgerConflictError,
    NotAvailableError,
    SchemaError,
    StoreDamagedError,
    StoreError,
    StoreMismatchError,
)
from streamdp.ledger import admission, paging, sqlite_pages
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.subject_key import ENVIRONMENT
from streamdp.privacy.composition import Spend
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP, gdp_delta, with_amount
from streamdp.privacy.release import JOINED, REFUSED, Release
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.interruptions import interrupted
from tests.support.kept import commit, kept, paged
from tests.support.sizes import some

pytestmark = pytest.mark.slow

KEY = bytes(range(32))


def hash_of(subject: str | bytes, key: bytes) -> bytes:
    data = subject.encode("utf-8", "surrogatepass") if isinstance(subject, str) else subject
    return hashlib.blake2b(data, digest_size=16, key=key, person=b"streamdp-subject").digest()


def model_fits(spend: Spend, cap: Budget) -> bool:
    """The caps as their docstring states them, computed with `Spend` and `guarantees.gdp_delta`."""
    slack = 1 + 1e-9
    match cap:
        case PureDP(epsilon):
            return spend.epsilon <= epsilon * slack
        case GaussianDP(mu):
            return spend.mu_squared + spend.pure_mu_squared <= (mu * slack) ** 2
        case ApproxDP(epsilon, delta):
            if spend.mu_squared == 0:
                return spend.epsilon <= epsilon * slack and spend.delta <= delta * slack
            alone = spend.epsilon == spend.delta == 0
            return alone and gdp_delta(math.sqrt(spend.mu_squared), epsilon * slack) <= delta * slack


def kinds(cap: Budget) -> list[Budget]:
    match cap:
        case PureDP():
            return [PureDP(1)]
        case GaussianDP():
            return [PureDP(1), GaussianDP(1)]
    return [PureDP(1), GaussianDP(1), ApproxDP(1, 1e-7)]


@given(data=st.data(), cap=st.sampled_from([PureDP(3), GaussianDP(1.5), ApproxDP(3, 1e-5), ApproxDP(8, 0.01)]))
def test_admission_is_the_model_in_order(data: st.DataObject, cap: Budget) -> None:
    model: dict[str | None, Spend] = {}
    refused = 0
    with Ledger(cap) as ledger:
        for _ in range(data.draw(st.integers(1, 6))):
            kind = data.draw(st.sampled_from(kinds(cap)))
            n = data.draw(st.integers(0, 12))
            subjects = data.draw(st.lists(st.sampled_from(["a", "b", "ü", None]), min_size=n, max_size=n))
            amounts = np.array(data.draw(st.lists(st.floats(0.05, 2.0), min_size=n, max_size=n)))
            admitted = ledger.admit_many(subjects, kind, amounts)
            for subject, value, got in zip(subjects, amounts.tolist(), admitted.tolist(), strict=True):
                after = model.get(subject, Spend()) + with_amount(kind, value)
                wanted = subject is None or model_fits(after, cap)
                assert got == wanted
                refused += not wanted
                if wanted and subject is not None:
                    model[subject] = after
        assert ledger.n_subjects == len(model)
        assert ledger.n_refused == refused
        for subject, spend in model.items():
            assert subject is not None
            got_spend = ledger.spent(subject)
            assert got_spend.records == spend.records
            assert (got_spend.epsilon, got_spend.delta) == (spend.epsilon, spend.delta)
            assert got_spend.mu_squared == pytest.approx(spend.mu_squared, rel=1e-12)
            assert got_spend.pure_mu_squared == pytest.approx(spend.pure_mu_squared, rel=1e-9)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 3.0, 40.0, 900.0])
def test_compiled_gdp_delta_is_the_one_of_guarantees(mu: float, epsilon: float) -> None:
    assert admission.gdp_delta(mu * mu, epsilon) == pytest.approx(gdp_delta(mu, epsilon), rel=1e-8, abs=1e-15)


@pytest.mark.parametrize(
    ("cap", "spend", "n"),
    [(PureDP(3), PureDP(0.1), 30), (GaussianDP(1), GaussianDP(0.1), 100), (ApproxDP(3, 3e-6), ApproxDP(0.1, 1e-7), 30)],
)
def test_a_cap_holds_as_many_spends_as_arithmetic_says(cap: Budget, spend: Budget, n: int) -> None:
    ledger = Ledger(cap)
    assert ledger.admit_many(["a"] * (n + 1), spend).tolist() == [True] * n + [False]


def test_an_approx_cap_counts_gaussian_spends_or_the_others_by_the_first() -> None:
    cap = ApproxDP(2, 1e-6)
    ledger, mu = Ledger(cap), GaussianDP.from_approx(cap).mu
    assert not ledger.admit("a", GaussianDP(mu * 1.0001))  # a refused spend decides nothing
    assert ledger.admit_many(["a", "b", "b"], PureDP(0.5)).all()
    assert ledger.admit_many(["a", "c"], GaussianDP(mu * 0.7)).tolist() == [False, True]
    assert ledger.admit_many(["a", "b", "c"], ApproxDP(1.5, 1e-6)).tolist() == [True, False, False]
    assert ledger.admit_many(["c", "c"], GaussianDP(mu * 0.71)).tolist() == [True, False]
    assert ledger.admit_many(["a", "b", "c"], PureDP(0.01)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("cap", "budget"), [(PureDP(3), ApproxDP(1, 1e-6)), (PureDP(3), GaussianDP(1)), (GaussianDP(3), ApproxDP(1, 1e-6))]
)
def test_a_kind_the_cap_cannot_count_raises_before_anything_changes(cap: Budget, budget: Budget) -> None:
    ledger = Ledger(cap)
    with pytest.raises(BudgetError):
        ledger.admit_many(["a", "b"], budget)
    assert ledger.spent("a") == Spend()
    assert ledger.n_subjects == ledger.n_refused == 0


@pytest.mark.parametrize("amounts", [[1.0, 0.0], [1.0, -1.0], [1.0, math.inf], [1.0]])
def test_bad_amounts_raise_before_anything_changes(amounts: list[float]) -> None:
    ledger = Ledger("eps=3")
    with pytest.raises(BudgetError):
        ledger.admit_many(["a", "b"], PureDP(1), np.array(amounts))
    with pytest.raises(SchemaError, match="float"):
        ledger.admit_many(["a", 7.5], PureDP(1))
    assert ledger.n_subjects == 0


def test_missing_amounts_are_the_budgets_own_and_extremes_fit_no_cap() -> None:
    ledger = Ledger("mu=2")
    assert ledger.admit_many(["a", "a"], GaussianDP(2), np.array([math.nan, 0.1])).tolist() == [True, False]
    assert not ledger.admit("b", GaussianDP(1e200))
    assert not ledger.admit("b", PureDP(800))
    assert ledger.admit("b", PureDP(1e-17))


def test_without_a_subject_nobody_is_charged() -> None:
    ledger = Ledger("eps=1")
    assert ledger.admit_many([None] * 5, PureDP(1)).all()
    assert ledger.n_subjects == 0


@pytest.mark.parametrize(
    ("cap", "own", "spend", "n", "own_n"),
    [
        (PureDP(3), PureDP(1), PureDP(0.5), 6, 2),
        (PureDP(1), PureDP(2), PureDP(0.5), 2, 4),
        (GaussianDP(2), GaussianDP(3), GaussianDP(1), 4, 9),
        (GaussianDP(2), GaussianDP(1.5), PureDP(0.4), 16, 9),
        (ApproxDP(3, 3e-6), ApproxDP(1, 2e-6), ApproxDP(0.5, 1e-6), 3, 2),
        (ApproxDP(3, 1e-6), ApproxDP(3, 1e-9), ApproxDP(0.5, 1e-7), 6, 0),
    ],
)
def test_a_subject_may_have_a_cap_of_its_own(
    tmp_path: Path, cap: Budget, own: Budget, spend: Budget, n: int, own_n: int
) -> None:
    """Caps survive commits and openings, from the log and from the pages."""
    path = tmp_path / "spends.db"
    with kept(cap, path) as ledger:
        ledger.set_cap("own", str(own))
        assert ledger.spent("own") == Spend()
        assert ledger.admit_many(["own", "other"], spend).tolist() == [own_n > 0, True]
    for _ in range(2):
        with kept(cap, path) as ledger:
            assert (ledger.cap_of("own"), ledger.cap_of("other"), ledger.cap_of("new")) == (own, cap, cap)
            assert ledger.n_subjects == 2
    with kept(cap, path) as ledger:
        admitted = ledger.admit_many(["own", "other"] * 20, spend)
        assert (admitted[::2].sum(), admitted[1::2].sum()) == (own_n - (own_n > 0), n - 1)
    with kept(cap, path) as ledger:
        ledger.set_cap("own", None)
        ledger.set_cap("other", own)
        assert (ledger.cap_of("own"), ledger.cap_of("other")) == (cap, own)
        again = ledger.admit_many(["own", "other"] * 20, spend)
        assert (again[::2].sum(), again[1::2].sum()) == (max(0, n - own_n), max(0, own_n - n))


def test_caps_are_of_the_ledgers_kind(tmp_path: Path) -> None:
    path = tmp_path / "spends.db"
    with kept("mu=2", path) as ledger:
        for bad in ("eps=1", "eps=1,delta=1e-6", "mu=0", "two"):
            with pytest.raises(BudgetError):
                ledger.set_cap("a", bad)
        with pytest.raises(SchemaError):
            ledger.set_cap(None, "mu=1")
        assert ledger.n_subjects == 0
        ledger.set_cap("a", "mu=1")
        ledger.rollback()
        assert ledger.cap_of("a") == GaussianDP(2)
        ledger.set_cap("a", "mu=1")
    with kept("eps=2", path) as ledger:
        with pytest.raises(StoreMismatchError, match="kind"):
            ledger.admit_many(["b", "a"], PureDP(1))
        assert ledger.admit_many(["b", "b", "b"], PureDP(1)).tolist() == [True, True, False]


def test_subjects_are_hashed_under_the_key() -> None:
    rng = random.Random(4)
    subjects = ["a" * n for n in range(300)] + ["ü" * n for n in range(140)] + ["\udce9", None, "person-1", b"x", b""]
    for key in (KEY, rng.randbytes(64), rng.randbytes(33)):
        hashes, there = hash_people(subjects_bytes(subjects), key)
        assert there.tolist() == [subject is not None for subject in subjects]
        for got, subject in zip(hashes, subjects, strict=True):
            assert subject is None or got.astype("<u8").tobytes() == hash_of(subject, key)
    assert hash_people([], KEY)[0].shape == (0, 2)


@pytest.mark.parametrize("shared", some([False, True], 1))
def test_pages_and_log_are_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """Random commits, rollbacks, caps and openings, with small pages and a small cache, against plain Python."""
    monkeypatch.setattr(paging, "KEPT_SUBJECTS", 700)
    monkeypatch.setattr(paging, "LOGGED_ROWS", 900)
    monkeypatch.setattr(sqlite_pages, "PAGE_ROWS", 8)
    monkeypatch.setattr(sqlite_pages, "_CHUNK", 16)
    rng = random.Random(6)
    spent, caps = {}, {}
    for _ in range(4):
        with Store(tmp_path / "job.db", "job", "print", cap=PureDP(9), shared=shared) as store:
            if shared:
                store.claim([WHOLE])
            ledger = store.ledger
            assert ledger is not None
            for i in range(8):
                before = dict(spent), dict(caps)
                people = [f"p{rng.randrange(5000)}" for _ in range(rng.choice([3, 400]))]
                amounts = [rng.choice([0.5, 2.0]) for _ in people]
                for person in rng.sample(people, 2):
                    caps[person] = rng.choice([1.0, 12.0])
                    ledger.set_cap(person, PureDP(caps[person]))
                admitted = ledger.admit_many(people, PureDP(1), np.array(amounts))
                for person, amount, got in zip(people, amounts, admitted.tolist(), strict=True):
                    assert got == (spent.get(person, 0) + amount <= caps.get(person, 9.0))
                    spent[person] = spent.get(person, 0) + amount * got
                if rng.random() < 0.3:
                    store.rollback()
                    spent, caps = before
                else:
                    store.commit({}, {"row": i}, Counts())
                    assert ledger._rows.cache.n <= paging.KEPT_SUBJECTS
            if rng.random() < 0.5:
                assert ledger.n_subjects == len(spent)
    with Store(tmp_path / "job.db", "job", "print", cap=PureDP(9)) as store:
        ledger = store.ledger
        assert ledger.n_subjects == len(spent) > 2000
        assert all(ledger.spent(person).epsilon == total for person, total in spent.items())
        assert all(ledger.cap_of(person) == PureDP(cap) for person, cap in caps.items())


def test_what_is_prepared_is_admitted_without_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = paged("eps=1")
    people = [b"p%d" % i for i in range(20)]
    ledger.admit_many(people, PureDP(0.5))
    rows: Any = ledger._rows
    connection = rows._connection
    found, release = ledger.prepare([*people, b"new", None, *people]), Release(PureDP(0.5))
    monkeypatch.setattr(rows, "_connection", SimpleNamespace(closed=True))
    for part in (slice(0), slice(7), slice(7, 7), slice(7, 20)):
        assert (ledger.join(release, found[part]) == JOINED).all()
    assert ledger.join(release, found[20:]).tolist() == [JOINED, JOINED] + 20 * [REFUSED]
    with pytest.raises(StoreError, match="closed"):
        ledger.admit("p99", PureDP(0.5))
    monkeypatch.setattr(rows, "_connection", connection)
    assert ledger.n_pending == 21
    assert not ledger.admit_many(people, PureDP(0.5)).any()


def test_what_was_prepared_charges_the_same_people_if_another_thread_commits_before_it_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit removes all rows from memory, so that their places are those of other people."""
    ledger = paged("eps=1")
    ledger.admit("xia", PureDP(0.5))
    found = ledger.prepare([b"ann", b"bob"])
    monkeypatch.setattr(paging, "KEPT_SUBJECTS", 0)
    commit(ledger)
    assert ledger.admit_many(["zoe", "yan", "wim"], PureDP(1)).all()
    assert (ledger.join(Release(PureDP(0.5)), found) == JOINED).all()
    spent = [ledger.spent(person).epsilon for person in ("ann", "bob", "zoe", "yan")]
    assert spent == [0.5, 0.5, 1, 1]


@pytest.mark.no_cover  # it is a tracer itself
@pytest.mark.parametrize(
    ("most_logged", "step"), [(0, 5), *(pytest.param(most, 1, marks=pytest.mark.campaign) for most in (0, 10**6))]
)
def test_an_interruption_anywhere_loses_no_spend(monkeypatch: pytest.MonkeyPatch, most_logged: int, step: int) -> None:
    """At lines in turn of a call that finds new and old subjects, grows the cache, reads, admits and commits: at every
    fifth one, and in the campaign at each."""
    monkeypatch.setattr(paging, "LOGGED_ROWS", most_logged)
    old, new = [f"p{i}" for i in range(40)], [f"p{i}" for i in range(1200)]
    paged("eps=1").admit_many(new, PureDP(0.5))  # loads what it needs
    for at in itertools.count(0, step):
        ledger = paged("eps=1")
        ledger.admit_many(old[:30], PureDP(0.5))
        commit(ledger)
        if at % 2:
            ledger.rollback()  # all is read again
        ledger.admit_many(old[20:], PureDP(0.5))

        def learn(ledger: Ledger = ledger) -> None:
            ledger.admit_many(new, PureDP(0.25))
            commit(ledger)

        lines = interrupted(learn, at, "ledger")
        try:
            commit(ledger)
        except LedgerConflictError:  # the earlier commit was written, then interrupted
            ledger.rollback()
        assert not ledger.admit_many(old[20:30], PureDP(0.25)).any()
        for times in range(5):
            admitted = ledger.admit_many([*old, *new], PureDP(0.25))
            assert not admitted[20:30].any()
            assert not admitted.any() or times < 4
        commit(ledger)
        ledger.rollback()
        assert all(ledger.spent(person).epsilon == 1.0 for person in new[:60])
        assert not ledger.admit_many(new, PureDP(0.25)).any()
        assert ledger.n_subjects == len(new)
        if lines <= at:
            break
    assert at > 50


def test_clones_share_the_ledger_and_pickling_is_refused() -> None:
    ledger = Ledger("eps=1")
    assert copy.deepcopy({"ledger": ledger})["ledger"] is ledger
    assert copy.copy(ledger) is ledger
    with pytest.raises(NotAvailableError):
        pickle.dumps(ledger)


def test_a_ledger_is_closed_once() -> None:
    ledger = Ledger("eps=1")
    ledger.close()
    ledger.close()
    with pytest.raises(StoreError, match="closed"):
        ledger.admit("a", PureDP(1))


@pytest.mark.parametrize("table", ["spend_log", "spend_pages"])
def test_a_changed_bit_in_a_spend_is_noticed(tmp_path: Path, table: str) -> None:
    path = tmp_path / "spends.db"
    with kept("eps=1", path, KEY) as ledger:
        ledger.admit("a", PureDP(1))
    if table == "spend_pages":
        with kept("eps=1", path, KEY) as ledger:
            assert ledger.n_subjects == 1  # this moves the log to the pages
    database = sqlite3.connect(path)
    ((spend,),) = database.execute(f"SELECT spends FROM {table}").fetchall()
    assert len(spend) == 56
    for bit in range(0, 8 * len(spend), 5):
        changed = bytearray(spend)
        changed[bit // 8] ^= 1 << bit % 8
        database.execute(f"UPDATE {table} SET spends = ?", [bytes(changed)])
        database.commit()
        with kept("eps=1", path, KEY) as ledger, pytest.raises(StoreDamagedError):
            ledger.admit("a", PureDP(1))
    database.close()


def test_a_key_that_others_may_know_or_give_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    place, key = tmp_path / "spends.db", tmp_path / "spends.db.key"
    Store(place, "job", "1", cap="eps=1").close()
    for mode in (0o640, 0o604, 0o620, 0o666):
        key.chmod(mode)
        with pytest.raises(StoreError, match="mode to 600"):
            Store(place, "job", "1", cap="eps=1")
    key.chmod(0o400)
    Store(place, "job", "1", cap="eps=1").close()
    with monkeypatch.context() as patch:
        real = os.fstat
        patch.setattr(os, "fstat", lambda file: SimpleNamespace(st_mode=real(file).st_mode, st_uid=os.geteuid() + 1))
        with pytest.raises(StoreError, match="another user"):
            Store(place, "job", "1", cap="eps=1")


@pytest.mark.parametrize("single", [False, True])
def test_threads_with_clones_share_one_cap(single: bool) -> None:
    """The compiled admission of rows runs without the interpreter's lock."""
    people = [f"p{i}" for i in range(2_000 if single else 20_000)]
    ledger = Ledger("eps=100")
    clones = [LDPSGDClassifier(features=["a"], ledger=ledger, budget="eps=10").clone() for _ in range(2)]
    X, y = np.zeros((len(people), 1)), np.zeros(len(people))
    begun = threading.Barrier(2)

    def learn(model: LDPSGDClassifier) -> int:
        for _ in range(10):
            begun.wait()
            if not single:
                model.learn_encoded(X, y, subjects=people)
            for person in people if single else ():
                model.learn_one({"a": 0.5}, True, subject=person)
        return model.n_seen

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(learn, clones)) == 10 * len(people)
    assert {ledger.spent(person).epsilon for person in people} == {100.0}
    assert ledger.n_refused == 10 * len(people)


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_subject_does_not_say_itself_who_it_is(kind: Any) -> None:
    """A subclass of text or bytes has the same spends as the text, whatever its own methods return."""

    class Other(kind):
        def encode(self, *_: Any, **__: Any) -> bytes:
            return os.urandom(8)

        def __bytes__(self) -> bytes:
            return os.urandom(8)

        __hash__ = kind.__hash__

        def __eq__(self, other: object) -> bool:
            return False

    ledger = Ledger("eps=1")
    me = Other("ann") if kind is str else Other(b"ann")
    assert [ledger.admit(me, PureDP(1)) for _ in range(3)] == [True, False, False]
    assert not ledger.admit("ann", PureDP(1))


@pytest.mark.slow
def test_a_spawned_process_cannot_be_given_the_ledger() -> None:
    """It would grant the cap again."""
    spawn = multiprocessing.get_context("spawn")
    with Ledger("eps=1") as ledger, spawn.Pool(1) as pool:
        assert ledger.admit("ann", PureDP(1))
        with pytest.raises(NotAvailableError, match="pickled"):
            pool.apply(repr, (ledger,))
