"""A ledger that several jobs share: one cap over all of them, and no crash overspends or loses a record."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from streamdp import Ledger
from streamdp.data.records import Shard
from streamdp.database import sqlite
from streamdp.errors import (
    BudgetError,
    ConfigError,
    FencedError,
    LedgerConflictError,
    PrivacyWarning,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreMismatchError,
)
from streamdp.ledger import shared as shared_module
from streamdp.ledger import shared_database, shared_rows
from streamdp.ledger.prepaid import Prepaid, add_charges
from streamdp.ledger.report import export_rows, ledger_status
from streamdp.ledger.shared_database import SharedDatabase
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.interruptions import interrupted
from tests.support.spans import STEPS, Crashed, crash, ending

pytestmark = pytest.mark.slow
ONE, THREE = PureDP(1), PureDP(3)


@pytest.fixture
def people(place: str, tmp_path: Path) -> str:
    """A ledger on a server, or in a file."""
    return place if "://" in place else str(tmp_path / "people.db")


@pytest.fixture
def stores(tmp_path: Path) -> str:
    """The places of stores in files, `%s` for the job."""
    return f"{tmp_path}/%s.db"


def open_store(stores: str, job: str, people: str, cap: Budget = THREE, **more: Any) -> Store:
    where = stores % job if "%s" in stores else stores
    return Store(where, job, "print", cap=cap, ledger=people, **more)


def admit(store: Store, *subjects: str, budget: Budget = ONE) -> list[bool]:
    found: list[bool] = store.ledger.admit_many(subjects, budget).tolist()
    return found


def commit(store: Store, n: int) -> None:
    store.commit({"n": n}, {"row": n}, Counts(learned=n))


def learn_ann(stores: str, people: str, n: int, job: str = "late") -> None:
    """Learn a record of ann, and commit it as the n-th of a job."""
    with open_store(stores, job, people) as store:
        admit(store, "ann")
        commit(store, n)


def spent(people: str, *subjects: str) -> list[float]:
    """What the ledger on disk has of subjects, read by a job that has never charged."""
    with open_store(people + "-reader" if "://" not in people else people, "reader", people) as store:
        return [store.ledger.spent(subject).epsilon for subject in subjects]


def test_one_cap_holds_over_two_jobs(places: tuple[str, str]) -> None:
    stores, people = places
    with open_store(stores, "a", people) as a, open_store(stores, "b", people) as b:
        assert admit(a, "ann", "ann", "bob") == [True] * 3
        commit(a, 3)
        assert admit(b, "ann", "ann", "bob") == [True, False, True]
        commit(b, 3)
        assert admit(a, "ann", "bob", "bob") == [False, True, False]
        commit(a, 6)
    assert spent(people, "ann", "bob", "eve") == [3, 3, 0]


def test_spends_of_two_jobs_at_the_same_time_add_up(places: tuple[str, str]) -> None:
    """Both have read the same rows before either writes, and both fit together: nobody needs to learn again."""
    stores, people = places
    with open_store(stores, "a", people) as a, open_store(stores, "b", people) as b:
        for n in range(1, 4):
            subjects = [f"p{n}", "new", "old"] if n < 3 else ["p3"]
            assert all(admit(a, *subjects[:1], "ann" if n == 1 else "x"))
            assert all(admit(b, *subjects[:1], "ann" if n == 1 else "y"))
            commit(a, n)
            commit(b, n)
    assert spent(people, "ann", "p1", "p2", "p3", "x", "y") == [2, 2, 2, 2, 2, 2]


def test_what_would_be_over_the_cap_together_is_refused_and_learned_again(places: tuple[str, str]) -> None:
    stores, people = places
    with open_store(stores, "a", people) as a, open_store(stores, "b", people) as b:
        assert admit(a, "ann", "ann") == admit(b, "ann", "ann") == [True, True]
        commit(a, 2)
        with pytest.raises(LedgerConflictError, match="roll back to the last commit"):
            commit(b, 2)
        assert b.load() is None
        b.rollback()
        assert admit(b, "ann", "ann") == [True, False]
        commit(b, 2)
    assert spent(people, "ann") == [3]


@pytest.mark.parametrize(
    ("cap", "budgets", "most"),
    [
        (PureDP(3), [PureDP(1), PureDP(0.5)], 3.0),
        (GaussianDP(2), [GaussianDP(0.5), PureDP(1)], 4.0),
        (ApproxDP(3, 1e-3), [ApproxDP(0.5, 1e-5), PureDP(1)], 3.0),
    ],
)
def test_random_spends_of_three_jobs_never_pass_a_cap(
    stores: str, tmp_path: Path, cap: Budget, budgets: list[Budget], most: float
) -> None:
    """An independent count: what each job was granted and committed, over all jobs."""
    rng, people = random.Random(5), str(tmp_path / "people.db")
    jobs = [open_store(stores, name, people, cap) for name in "abc"]
    granted: Counter[str] = Counter()
    waiting: list[Counter[str]] = [Counter(), Counter(), Counter()]
    conflicts = 0
    for step in range(200):
        j = rng.randrange(3)
        if rng.random() < 0.6:
            subjects, budget = [f"p{rng.randrange(8)}" for _ in range(rng.randrange(1, 5))], rng.choice(budgets)
            for subject, yes in zip(subjects, admit(jobs[j], *subjects, budget=budget), strict=True):
                waiting[j][subject] += amount_of(cap, budget) if yes else 0
            continue
        try:
            commit(jobs[j], step + 1)
            granted += waiting[j]
        except LedgerConflictError:
            conflicts += 1
            jobs[j].rollback()
            jobs[j].load()
        waiting[j] = Counter()
    for job in jobs:
        job.close()
    assert conflicts > 2
    assert max(granted.values()) <= most * (1 + 1e-8)
    assert sum(value > most - 1.01 for value in granted.values()) == 8  # all have used up nearly all of it
    with open_store(stores, "reader", people, cap) as store:
        for subject, value in granted.items():
            found = store.ledger.spent(subject)
            total = found.mu_squared + found.pure_mu_squared if isinstance(cap, GaussianDP) else found.epsilon
            assert total == pytest.approx(value, rel=1e-9)


def amount_of(cap: Budget, budget: Any) -> Any:
    """What a cap counts of a budget."""
    if not isinstance(cap, GaussianDP):
        return budget.epsilon
    return budget.mu**2 if isinstance(budget, GaussianDP) else GaussianDP.from_pure(budget).mu ** 2


class Stream:
    """Records of people, learned by a store in spans that may end anywhere, with crashes at named places."""

    def __init__(self, n: int, seed: int) -> None:
        rng = random.Random(seed)
        self.records = [(f"p{rng.randrange(12)}", rng.choice([0.25, 0.5, 1.0])) for _ in range(n)]
        self.expected: list[bool] = []
        spent: dict[str, float] = dict.fromkeys((s for s, _ in self.records), 0.0)
        for subject, amount in self.records:
            fits = spent[subject] + amount <= 3
            self.expected.append(fits)
            spent[subject] += amount if fits else 0
        self.spent = spent

    def learn(self, store: Store, learned: dict[int, bool], to: int, block: int) -> None:
        """Admit from the last commit to a record, in blocks, and commit; decisions are noted if that succeeds."""
        assert store.ledger is not None
        store.rollback()
        found = store.load()
        at = 0 if found is None else found.position["row"]
        decisions = {}
        for start in range(at, to, block):
            part = self.records[start : min(start + block, to)]
            subjects, amounts = [s for s, _ in part], np.array([a for _, a in part])
            for i, yes in enumerate(store.ledger.admit_many(subjects, ONE, amounts).tolist()):
                decisions[start + i] = yes
        try:
            commit(store, to)
        finally:
            after = store.load()
            if after is not None and after.position["row"] == to:
                learned |= decisions


@pytest.mark.parametrize("where", STEPS)
def test_a_crash_at_any_place_neither_overspends_nor_loses_a_record(places: tuple[str, str], where: str) -> None:
    """The same decisions as without a crash, and the same spends, whatever the blocks and the ends of spans are."""
    stores, people = places
    learned: dict[int, bool] = {}
    stream = Stream(120, seed=STEPS.index(where))
    rng = random.Random(9)
    for broken, shorter, longer in ((30, 11, 22), (60, 70, 75), (100, 80, 120)):
        store = open_store(stores, "late", people)
        with ending(where):
            stream.learn(store, learned, broken, rng.randrange(1, 9))
        store.close()
        for to in (shorter, longer):
            with open_store(stores, "late", people) as store:
                if (found := store.load()) is None or found.position["row"] < to:
                    stream.learn(store, learned, to, rng.randrange(1, 30))
    assert learned == dict(enumerate(stream.expected))
    assert spent(people, *stream.spent) == pytest.approx(list(stream.spent.values()))
    assert ledger_status(people).records == sum(stream.expected)


def test_what_is_prepaid_pays_once_and_for_its_subject_only(stores: str, people: str) -> None:
    with open_store(stores, "late", people) as store:
        assert admit(store, "ann", "bob") == [True, True]
        with ending("after the charge"):
            commit(store, 2)
    with open_store(stores, "late", people) as store:
        assert admit(store, "ann", "ann", "eve") == [True] * 3  # another stream than before
        assert admit(store, "bob", budget=PureDP(2)) == [True]  # more than was charged: not prepaid
        commit(store, 4)
        assert spent(people, "ann", "bob", "eve") == [2, 3, 1]
    with open_store(stores, "late", people) as store:  # a rest of one is left for bob
        assert admit(store, "bob", "bob", "ann", "ann") == [True, False, True, False]
        commit(store, 6)
        assert spent(people, "ann", "bob", "eve") == [3, 3, 1]


def test_balances_of_infinite_and_of_several_sums() -> None:
    keys = np.array([[1, 2], [1, 2], [3, 4]], dtype=np.uint64)
    terms = np.array([[0.1, 1e-6, 0, np.inf], [0.2, 1e-6, 0, np.inf], [0, 0, 0.25, 0]])
    packed = add_charges(add_charges(b"", keys[:1], terms[:1]), keys[1:], terms[1:])
    prepaid = Prepaid(packed)
    assert prepaid.of(keys).tolist() == [True] * 3
    assert [pays(prepaid, keys[i], terms[j]) for i, j in ((0, 0), (2, 2), (0, 1), (0, 0), (2, 2))] == [
        *[True] * 3,
        *[False] * 2,
    ]
    assert prepaid.of(keys).tolist() == [False] * 3
    prepaid = Prepaid(packed)
    assert [pays(prepaid, keys[0], terms[1]) for _ in range(2)] == [True, False]  # 0.3 for two records
    with pytest.raises(StoreDamagedError):
        Prepaid(packed[:-1] + bytes([packed[-1] ^ 1]))


def pays(prepaid: Prepaid, key: np.ndarray, term: np.ndarray) -> bool:
    """Whether a balance paid for an admitted record."""
    if (found := prepaid.find(key[None], term)) is not None:
        prepaid.use(found, term)
    return found is not None


def test_an_older_owner_of_a_shard_cannot_charge(people: str, stores: str) -> None:
    """A worker that was paused between its learning and its commit finds the shard claimed, with its balances whole."""
    shards = [Shard("t", 0), Shard("t", 1)]
    with open_store(stores, "late", people, shared=True) as old, open_store(stores, "late", people, shared=True) as new:
        old.claim(shards)
        old.ledger.shard = shards[0]
        assert admit(old, "ann") == [True]
        new.claim(shards[:1])
        new.ledger.shard = shards[0]
        assert admit(new, "ann") == [True]
        with pytest.raises(FencedError) as caught:
            old.commit_parts({shards[0]: part(1), shards[1]: part(1)})
        assert caught.value.shard == shards[0]
        new.commit_parts({shards[0]: part(1)})
        assert spent(people, "ann") == [1]


def test_a_shard_that_changes_hands_takes_its_balances_along(people: str, stores: str) -> None:
    shards = [Shard("t", 0), Shard("t", 1)]
    with open_store(stores, "late", people, shared=True) as old, open_store(stores, "late", people, shared=True) as new:
        old.claim(shards)
        assert new.ledger is not None
        for shard, subject in zip(shards, ("ann", "bob"), strict=True):
            old.ledger.shard = shard
            assert admit(old, subject, subject) == [True, True]
        with ending("after the charge"):
            old.commit_parts({shard: part(2) for shard in shards})
        new.claim(shards[:1])
        new.ledger.shard = shards[0]
        assert admit(new, "ann", "ann", "bob") == [True] * 3  # bob's balance belongs to the other shard
        new.commit_parts({shards[0]: part(3)})
        assert spent(people, "ann", "bob") == [2, 3]


def part(n: int) -> Part:
    return Part({"n": n}, {"offset": n}, Counts(n))


def test_charges_of_a_shard_without_a_commit_stay_prepaid(places: tuple[str, str]) -> None:
    """An estimator that is not at a boundary: another shard's commit charges its open batch, and a crash follows."""
    stores, people = places
    shards = [Shard("t", 0), Shard("t", 1)]
    with open_store(stores, "late", people, shared=True) as store:
        store.claim(shards)
        for shard in shards:
            store.ledger.shard = shard
            assert admit(store, "ann") == [True]
        store.commit_parts({shards[0]: part(1)})
        assert spent(people, "ann") == [2]
    with open_store(stores, "late", people, shared=True) as store:
        store.claim(shards)
        store.ledger.shard = shards[1]
        assert admit(store, "ann") == [True]
        store.commit_parts({shards[1]: part(1)})
        assert spent(people, "ann") == [2]


def test_a_charge_whose_answer_was_lost_is_found_and_not_repeated(people: str, stores: str) -> None:
    with open_store(stores, "late", people) as store:
        assert admit(store, "ann") == [True]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_module.SharedLedger, "_mark_written", crash)
            with pytest.raises(Crashed):
                commit(store, 1)
        with pytest.raises(LedgerConflictError, match="answer"):
            commit(store, 1)
        store.rollback()
        store.load()
        assert admit(store, "ann", "bob") == [True, True]
        commit(store, 2)
    assert spent(people, "ann", "bob") == [1, 1]


def move(folder: Path, name: str, other: str) -> None:
    """Give a store that is closed another name; its files go together."""
    for suffix in ("", ".last"):
        (folder / (name + suffix)).rename(folder / (other + suffix))


def test_a_new_store_of_a_known_job_is_refused(people: str, stores: str, tmp_path: Path) -> None:
    with open_store(stores, "late", people) as store:
        pass  # nothing was charged: a new store harms nobody
    move(tmp_path, "late.db", "other.db")
    learn_ann(stores, people, 1)
    move(tmp_path, "late.db", "charged.db")
    with pytest.raises(StoreMismatchError, match=r"another store of job 'late' has charged 1 records .* another name"):
        open_store(stores, "late", people)
    move(tmp_path, "charged.db", "late.db")
    with pytest.raises(StoreMismatchError, match="does not know this store"):
        open_store(stores, "late", str(tmp_path / "new.db"))
    with open_store(stores, "late", people) as store:
        assert admit(store, "ann", "ann", "ann") == [True, True, False]


def test_an_old_copy_of_a_store_is_told_and_charges_again(people: str, stores: str, tmp_path: Path) -> None:
    learn_ann(stores, people, 1)
    copies = {path: path.read_bytes() for path in tmp_path.glob("late.db*")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_ann(stores, people, 2)
    for path, content in copies.items():
        path.write_bytes(content)
    with pytest.warns(PrivacyWarning, match="old copy, and the records after its last commit are learned and charged"):
        learn_ann(stores, people, 2)
    assert spent(people, "ann") == [3]


def test_a_copy_from_before_the_last_start_is_told_also_after_a_crash(people: str, stores: str, tmp_path: Path) -> None:
    """One commit old, and the ledger does not know of that commit: what it has charged must not pay once more."""
    learn_ann(stores, people, 1)
    copies = {path: path.read_bytes() for path in tmp_path.glob("late.db*")}
    with open_store(stores, "late", people) as store:
        admit(store, "ann")
        with ending("after the commit"):
            commit(store, 2)
    for path, content in copies.items():
        path.write_bytes(content)
    with pytest.warns(PrivacyWarning, match="old copy, and the records after its last commit are learned and charged"):
        store = open_store(stores, "late", people)
    with store:
        assert admit(store, "ann", "ann") == [True, False]
        commit(store, 2)
    assert spent(people, "ann") == [3]


def test_a_claim_that_fails_in_the_store_loses_no_balance(people: str, stores: str) -> None:
    with open_store(stores, "late", people) as store:
        admit(store, "ann")
        with ending("after the charge"):
            commit(store, 1)
    real = shared_module.SharedLedger.claim
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_module.SharedLedger, "claim", lambda *a: (real(*a), crash()))
            with pytest.raises(Crashed):
                open_store(stores, "late", people)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_store(stores, "late", people) as store:
            assert admit(store, "ann") == [True]
            commit(store, 1)
    assert spent(people, "ann") == [1]


def test_one_cap_for_all_jobs(people: str, stores: str, tmp_path: Path) -> None:
    with open_store(stores, "a", people) as store:
        admit(store, "ann")
        commit(store, 1)
        with pytest.raises(StoreMismatchError, match=r"has the cap eps=3, and this job has eps=4; .* set-cap"):
            open_store(stores, "b", people, PureDP(4))
        operator = SharedDatabase(people)
        with pytest.raises(ConfigError, match="differ in its amounts only"):
            operator.set_cap("mu=1")
        operator.set_cap("eps=4")
        operator.close()
        admit(store, "ann")
        with pytest.raises(StoreMismatchError, match="has the cap eps=4"):
            commit(store, 2)
        store.rollback()
    with open_store(stores, "a", people, PureDP(4)) as store:
        assert admit(store, *["ann"] * 4) == [True] * 3 + [False]
    assert [cap for cap, _ in ledger_status(people).caps] == ["eps=3", "eps=4"]
    with pytest.raises(ConfigError, match="needs a cap"):
        Store(tmp_path / "c.db", "c", "print", ledger=people)


def test_caps_of_subjects_hold_for_all_jobs(places: tuple[str, str]) -> None:
    stores, people = places
    with open_store(stores, "a", people) as a, open_store(stores, "b", people) as b:
        for n, subject in enumerate(("bob", "ann"), 1):  # the second commit leaves the rows in memory
            assert admit(b, subject) == [True]
            commit(b, n)
        a.set_caps({"ann": "eps=1", "Jose\u0301": "eps=2", "Jos\u00e9": "eps=1"})
        assert admit(b, "ann", "Jos\u00e9", "Jos\u00e9") == [False, True, False]
        with pytest.raises(StoreError, match=r"use Store\.set_caps"):
            b.ledger.set_cap("ann", "eps=2")
        with pytest.raises(BudgetError, match="must be PureDP"):
            a.set_caps({"ann": "mu=1"})
        commit(b, 5)
        a.set_caps({"ann": None})
        assert admit(a, *["ann"] * 3) == [True, True, False]


def test_a_cap_that_is_lowered_after_the_admission_refuses_the_charge(people: str, stores: str) -> None:
    with open_store(stores, "a", people) as a:
        assert admit(a, "ann", "ann") == [True, True]
        operator = SharedDatabase(people)
        operator.set_caps({"ann": "eps=1"})
        operator.close()
        with pytest.raises(LedgerConflictError):
            commit(a, 2)
        a.rollback()
        assert admit(a, "ann", "ann") == [True, False]
        commit(a, 2)


def test_all_jobs_need_one_key(people: str, stores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(stores, "a", people).close()
    assert not (tmp_path / "a.db.key").exists()
    if "://" not in people:
        assert (tmp_path / "people.db.key").stat().st_mode & 0o077 == 0
    monkeypatch.setenv("STREAMDP_SUBJECT_KEY", "66" * 32)
    with pytest.raises(StoreMismatchError, match="not the subject key"):
        open_store(stores, "b", people)
    assert not (tmp_path / "b.db").exists()


def test_a_store_keeps_the_ledger_that_it_was_created_with(stores: str, tmp_path: Path) -> None:
    people, path = str(tmp_path / "people.db"), tmp_path / "a.db"
    learn_ann(stores, people, 1, "a")
    with pytest.raises(StoreMismatchError):
        Store(path, "a", "print", cap=PureDP(3))
    with Store(tmp_path / "own.db", "own", "print", cap=PureDP(3)) as store:
        admit(store, "ann")
        commit(store, 1)
    with pytest.raises(StoreMismatchError, match="does not know this store"):
        open_store(stores, "own", people)


def test_a_ledger_of_a_program_becomes_one_of_jobs_and_back(
    stores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its spends may still be in its log."""
    path = tmp_path / "people.db"
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
    with Ledger("eps=3", path=path) as ledger:
        assert ledger.admit("ann", PureDP(2))
        with pytest.raises(StoreBusyError):
            open_store(stores, "a", str(path))
    with pytest.raises(StoreMismatchError, match="no job shares"):
        ledger_status(path)
    with open_store(stores, "a", str(path)) as store:
        assert admit(store, "ann", "ann") == [True, False]
        commit(store, 2)
        with pytest.raises(StoreBusyError):
            Ledger("eps=3", path=path)
    with Ledger("eps=4", path=path) as ledger:
        assert ledger.spent("ann").epsilon == 3
        assert ledger.admit("ann", PureDP(1))
        ledger.commit()
    assert spent(str(path), "ann") == [4]


def test_status_and_export_count_people_and_name_none(people: str, stores: str) -> None:
    with pytest.raises(StoreError):
        ledger_status(people)
    with open_store(stores, "late", people) as a, open_store(stores, "delay", people) as b:
        admit(a, *(f"p{i}" for i in range(10)), "p0", "p0")
        commit(a, 12)
        admit(b, "p1", "p1", budget=PureDP(0.7))
        admit(b, "p2", "p2", budget=PureDP(0.5))
        commit(b, 4)
        a.set_caps({"p3": "eps=1", "p4": "eps=0.5"})
        found = ledger_status(people)
    assert (found.people, found.own_caps, found.records) == (10, 2, 16)
    # 1/3 for six of them; p2 has 2/3, p1 2.4/3, p0 all, p3 all of its own cap, p4 more than that.
    assert found.spent == (0, 5, 1, 1, 3)
    assert {job.job: (job.records, round(job.epsilon, 9)) for job in found.jobs} == {
        "late": (12, 12.0),
        "delay": (4, 2.4),
    }
    assert found.jobs[1].shards == {"whole": (1, json.dumps({"row": 12}))}
    _, *rows = export_rows(people)
    assert sorted(row[2] for row in rows) == pytest.approx([1] * 7 + [2, 2.4, 3])
    assert {row[5] for row in rows} == {"", "eps=1", "eps=0.5"}
    assert all(len(bytes.fromhex(row[0])) == 16 for row in rows)


@pytest.mark.parametrize("cap", [GaussianDP(2), ApproxDP(2, 1e-3)])
def test_the_share_of_a_cap_is_that_of_its_largest_sum(stores: str, tmp_path: Path, cap: Budget) -> None:
    people = str(tmp_path / "people.db")
    whole = cap if isinstance(cap, GaussianDP) else GaussianDP.from_approx(cap)
    with open_store(stores, "a", people, cap) as store:
        assert all(admit(store, "ann", budget=GaussianDP(0.8 * whole.mu)))
        assert all(admit(store, "bob", budget=whole))
        if isinstance(cap, ApproxDP):
            assert all(admit(store, "eve", budget=ApproxDP(0.1, 0.3e-3)))
        commit(store, 3)
    assert ledger_status(people).spent == ((0, 0, 0, 1, 1) if isinstance(cap, GaussianDP) else (0, 1, 0, 1, 1))


def test_another_process_waits_for_a_transaction_only(people: str, stores: str) -> None:
    """Between two commits the ledger is not locked: a program of its own can write to it."""
    with open_store(stores, "a", people) as store:
        admit(store, "ann")
        if "://" in people:
            with psycopg.connect(people) as other:
                other.execute('UPDATE "streamdp_:ledger".version SET version = version')
        else:
            other = sqlite3.connect(people, timeout=0)
            other.execute("UPDATE version SET version = version")
            other.commit()
            other.close()
        commit(store, 1)


def test_prepared_records_are_admitted_without_the_database(stores: str, tmp_path: Path) -> None:
    """Learners of batches prepare first, because admitting must not fail within a batch."""
    with open_store(stores, "a", str(tmp_path / "people.db")) as store:
        store.ledger.prepare(["ann", "bob", "ann"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_rows.SharedRows, "refresh", crash)
            patch.setattr(shared_database, "read_version", crash)
            assert admit(store, "ann") == [True]
            assert admit(store, "bob", "ann") == [True, True]
        commit(store, 3)


def interrupt_spans(folder: Path, step: int) -> int:
    """Interrupt the admission and the commit of a span at each `step`-th line; returns how many interruptions.

    After each, the span is learned again from the last commit. Another job charges the same people in between, so that
    rows are read again when they are written.
    """
    people, n, spans, interruptions = str(folder / "people.db"), 0, 0, 0
    generous = PureDP(1e6)
    with (
        open_store(f"{folder}/%s.db", "a", people, generous) as a,
        open_store(f"{folder}/%s.db", "b", people, generous) as b,
    ):

        def learn(to: int) -> None:
            a.rollback()
            found = a.load()
            if found is None or found.position["row"] < to:
                admit(a, *["ann", "bob"][: to - (0 if found is None else found.position["row"])])
                admit(b, "ann")
                commit(b, spans)
                commit(a, to)

        for after in itertools.count(0, step):
            n, spans = n + 2, spans + 1
            if interrupted(lambda to=n: learn(to), after) <= after:
                break
            interruptions += 1
            b.rollback()
            learn(n)
            assert a.ledger.spent("bob").records == spans
            by_job = {job.job: job.records for job in ledger_status(people).jobs}
            assert a.ledger.spent("ann").records == spans + by_job["b"]
            assert by_job["a"] == 2 * spans
    return interruptions


def test_an_interruption_at_some_lines_of_a_span_charges_nothing_twice(tmp_path: Path) -> None:
    assert interrupt_spans(tmp_path, 61) > 7


@pytest.mark.campaign
def test_an_interruption_at_any_line_of_a_span_charges_nothing_twice(tmp_path: Path) -> None:
    assert interrupt_spans(tmp_path, 1) > 460
