"""Several jobs in one database: one cap over all of them, whatever the order of their commits, and after crashes."""

import itertools
import json
import random
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from streamdp.errors import (
    BudgetError,
    ConfigError,
    LedgerConflictError,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
)
from streamdp.ledger.sqlite_pages import SpendPages
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP
from streamdp.store.operator import set_cap, set_caps
from streamdp.store.report import export_rows, ledger_status
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.crashes import STEPS, ending
from tests.support.interruptions import interrupted

ONE, THREE = PureDP(1), PureDP(3)


def open_job(place: Any, job: str, cap: Budget | None = THREE, **more: Any) -> Store:
    return Store(place, job, "print", cap=cap, **more)


def admit(store: Store, *subjects: str, budget: Budget = ONE) -> list[bool]:
    found: list[bool] = store.ledger.admit_many(subjects, budget).tolist()
    return found


def connection_of(store: Store) -> Any:
    return store._connection


def commit(store: Store, n: int) -> None:
    store.commit({"n": n}, {"row": n}, Counts(learned=n))


def spent(place: Any, *subjects: str, cap: Budget = THREE) -> list[float]:
    """What the database has of subjects, read by a job that has never charged."""
    with open_job(place, "reader", cap) as store:
        return [store.ledger.spent(subject).epsilon for subject in subjects]


def test_the_notes_and_errors_of_many_jobs_name_a_few(tmp_path: Path) -> None:
    """A service of 200 jobs printed 200 KB of names."""
    place = tmp_path / "a.db"
    for n in range(40):
        with open_job(place, f"a-job-with-a-name-{n}") as store:
            assert len("".join(store.notes)) < 500
    (note,) = store.notes
    assert "a-job-with-a-name-0" in note
    assert " and 30 more: one cap" in note
    with pytest.raises(StoreMismatchError) as refused:
        open_job(place, "b", ONE)
    assert len(str(refused.value)) < 1000
    with pytest.raises(StoreError, match=r"holds 40 jobs \(a-job.* and 31 more\)"):
        Store.snapshots(place)
    with pytest.raises(StoreMismatchError, match=" and 31 more, and not 'b'"):
        Store.snapshots(place, "b")


def test_what_a_job_reads_is_not_older_than_the_version_that_it_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job tries to commit just after the log was moved to the table. Before: its spends were overwritten."""
    path = tmp_path / "people.db"
    with open_job(path, "a") as a, open_job(path, "b") as b:
        assert admit(a, "ann", "x")
        commit(a, 2)
        assert admit(b, "ann") == [True]
        commit(b, 1)
        connection_of(b).fetch("PRAGMA busy_timeout = 0")
        assert admit(b, "ann") == [True]
        checkpoint, waits = SpendPages.checkpoint, []

        def then_commit(pages: SpendPages, connection: Any) -> None:
            checkpoint(pages, connection)
            if connection is connection_of(a) and not waits:
                waits.append(True)
                try:
                    commit(b, 2)
                except StoreError:  # it must wait
                    waits.append(True)

        with monkeypatch.context() as patch:
            patch.setattr(SpendPages, "checkpoint", then_commit)
            assert len(admit(a, "ann", "ann", "ann")) == 3
        if len(waits) == 2:
            commit(b, 2)
        try:
            commit(a, 5)
        except LedgerConflictError:
            a.rollback()
    assert len(waits) == 2
    assert spent(path, "ann") == [3]


@pytest.mark.parametrize(
    ("cap", "budgets", "most"),
    [
        (PureDP(3), [PureDP(1), PureDP(0.5)], 3.0),
        pytest.param(GaussianDP(2), [GaussianDP(0.5), PureDP(1)], 4.0, marks=pytest.mark.slow),
        pytest.param(ApproxDP(3, 1e-3), [ApproxDP(0.5, 1e-5), PureDP(1)], 3.0, marks=pytest.mark.slow),
    ],
)
def test_random_spends_of_three_jobs_never_pass_a_cap(
    place: str, cap: Budget, budgets: list[Budget], most: float
) -> None:
    """An independent count: what each job was granted and committed, over all jobs."""
    rng = random.Random(5)
    jobs = [open_job(place, name, cap) for name in "abc"]
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
    with open_job(place, "reader", cap) as store:
        for subject, value in granted.items():
            found = store.ledger.spent(subject)
            total = found.mu_squared + found.pure_mu_squared if isinstance(cap, GaussianDP) else found.epsilon
            assert total == pytest.approx(value, rel=1e-9)


def amount_of(cap: Budget, budget: Any) -> Any:
    """What a cap counts of a budget."""
    if not isinstance(cap, GaussianDP):
        return budget.epsilon
    return budget.mu**2 if isinstance(budget, GaussianDP) else GaussianDP.from_pure(budget).mu ** 2


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_commit_leaves_state_and_spends_or_neither(place: str, step: str) -> None:
    with open_job(place, "b") as other:
        with open_job(place, "a") as store, ending(step):
            admit(store, "ann", "bob")
            commit(store, 2)
        assert admit(other, "ann") == [True]
        commit(other, 1)
        with open_job(place, "a") as store:
            done = store.load() is not None
            assert done == (step == "after the commit")
            if not done:
                assert admit(store, "ann", "bob", "bob") == [True] * 3
                commit(store, 3)
    assert spent(place, "ann", "bob") == ([2, 1] if done else [2, 2])


def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(place: str) -> None:
    with open_job(place, "a") as store, open_job(place, "b") as other:
        admit(store, "ann")
        with ending("after the commit"):
            commit(store, 1)
        admit(other, "ann")
        commit(other, 1)
        commit(store, 1)
        assert admit(store, "ann", "ann") == [True, False]
        commit(store, 2)
    assert spent(place, "ann") == [3]
    assert len(Store.history(place, job="a")) == 2


def test_one_cap_for_all_jobs(place: str) -> None:
    with open_job(place, "a") as store:
        admit(store, "ann")
        commit(store, 1)
    with open_job(place, "a", PureDP(3.5)) as store:  # alone in its database
        with open_job(place, "b", PureDP(3.5)) as other:
            commit(other, 1)
        with pytest.raises(StoreMismatchError, match=r"has the cap eps=3.5, and this job has eps=4.*set-cap"):
            open_job(place, "c", PureDP(4))
        with pytest.raises(ConfigError, match="differ in its amounts only"):
            set_cap(place, "mu=1")
        admit(store, "ann")
        set_cap(place, "eps=4", accept=True)
        for _ in range(2):
            with pytest.raises(StoreMismatchError, match=r"is eps=4 now, and this job has eps=3\.5"):
                commit(store, 2)
        store.rollback()
        with pytest.raises(StoreMismatchError, match=r"is eps=4 now, and this job has eps=3\.5"):
            admit(store, "ann")
    with open_job(place, "a", PureDP(4)) as store:
        assert admit(store, *["ann"] * 4) == [True] * 3 + [False]
    assert [cap for cap, _ in ledger_status(place).caps] == ["eps=3", "eps=3.5", "eps=4"]


def test_caps_of_subjects_hold_for_all_jobs(place: str) -> None:
    with open_job(place, "a") as a, open_job(place, "b") as b:
        for n, subject in enumerate(("bob", "ann"), 1):  # the second commit leaves the rows in memory
            assert admit(b, subject) == [True]
            commit(b, n)
        a.set_caps({"ann": "eps=1", "Jose\u0301": "eps=2", "Jos\u00e9": "eps=1"})
        assert admit(b, "ann", "Jos\u00e9", "Jos\u00e9") == [False, True, False]
        with pytest.raises(BudgetError, match="must be PureDP"):
            a.set_caps({"eve": "eps=1", "ann": "mu=1"})
        assert a.ledger.cap_of("eve") == THREE
        commit(b, 5)
        a.set_caps({"ann": None})
        assert admit(a, *["ann"] * 3) == [True, True, False]
        with pytest.raises(StoreError, match="wait"):
            a.set_caps({"ann": "eps=1"})


def test_a_cap_that_is_lowered_after_the_admission_refuses_the_charge(place: str) -> None:
    with open_job(place, "a") as a:
        assert admit(a, "ann", "ann") == [True, True]
        set_caps(place, {"ann": "eps=1"})
        with pytest.raises(LedgerConflictError):
            commit(a, 2)
        a.rollback()
        assert admit(a, "ann", "ann") == [True, False]
        commit(a, 2)


def test_all_jobs_need_one_key(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_job(place, "a").close()
    monkeypatch.setenv("STREAMDP_SUBJECT_KEY", "66" * 32)
    with pytest.raises(StoreMismatchError, match="not the subject key"):
        open_job(place, "b")
    assert [job.job for job in ledger_status(place).jobs] == ["a"]


def test_a_job_without_a_cap_beside_one_with_a_cap(place: str) -> None:
    open_job(place, "free", None).close()
    with pytest.raises(StoreMismatchError, match=r"no job in .* has a cap"):
        ledger_status(place)
    with open_job(place, "a") as a, open_job(place, "free", None) as free:
        assert a.notes == []
        assert admit(a, "ann") == [True]
        commit(free, 7)
        commit(a, 1)
    found = {job.job: (job.capped, job.learned) for job in ledger_status(place).jobs}
    assert found == {"a": (True, 1), "free": (False, 7)}


@pytest.mark.parametrize("jobs", [["a", "b", "c", "d"], ["a"] * 4], ids=["jobs", "workers"])
def test_all_that_begin_at_the_same_time_share_one_new_database(place: str, jobs: list[str]) -> None:
    def begin(job: str) -> list[str]:
        with open_job(place, job, shared=True) as store:
            assert admit(store, "ann")
            return [name for note in store.notes for name in note.partition("jobs, ")[2].partition(":")[0].split(", ")]

    with ThreadPoolExecutor(4) as pool:
        joined = list(pool.map(begin, jobs))
    assert sorted(map(len, joined)) == ([0, 1, 2, 3] if len(set(jobs)) > 1 else [0] * 4)  # those that were before it
    assert [job.job for job in ledger_status(place).jobs] == sorted(set(jobs))


def test_status_and_export_count_people_and_name_none(place: str) -> None:
    with pytest.raises(StoreError):
        ledger_status(place)
    with open_job(place, "late") as a, open_job(place, "delay") as b:
        admit(a, *(f"p{i}" for i in range(10)), "p0", "p0")
        commit(a, 12)
        admit(b, "p1", "p1", budget=PureDP(0.7))
        admit(b, "p2", "p2", budget=PureDP(0.5))
        commit(b, 4)
        a.set_caps({"p3": "eps=1", "p4": "eps=0.5"})
        found = ledger_status(place)
    assert (found.people, found.own_caps, found.records) == (10, 2, 16)
    # 1/3 for six of them; p2 has 2/3, p1 2.4/3, p0 all, p3 all of its own cap, p4 more than that.
    assert found.spent == (0, 5, 1, 1, 3)
    assert {job.job: job.learned for job in found.jobs} == {"late": 12, "delay": 4}
    assert found.jobs[1].shards == {"whole": (1, json.dumps({"row": 12}))}
    _, *rows = export_rows(place)
    assert sorted(row[2] for row in rows) == pytest.approx([1] * 7 + [2, 2.4, 3])
    assert {row[5] for row in rows} == {"", "eps=1", "eps=0.5"}
    assert all(len(bytes.fromhex(row[0])) == 16 for row in rows)


@pytest.mark.parametrize("cap", [GaussianDP(2), ApproxDP(2, 1e-3)])
def test_the_share_of_a_cap_is_that_of_its_largest_sum(
    tmp_path: Path, cap: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mu of a cap was searched for again for each person: a page took seconds of 20,000 people."""
    people, mu_of, searched = tmp_path / "people.db", GaussianDP.from_approx, list[Budget]()
    whole = cap if isinstance(cap, GaussianDP) else GaussianDP.from_approx(cap)
    with open_job(people, "a", cap) as store:
        assert all(admit(store, "ann", budget=GaussianDP(0.8 * whole.mu)))
        assert all(admit(store, "bob", budget=whole))
        if isinstance(cap, ApproxDP):
            assert all(admit(store, "eve", budget=ApproxDP(0.1, 0.3e-3)))
        commit(store, 3)
    monkeypatch.setattr(GaussianDP, "from_approx", lambda found: searched.append(found) or mu_of(found))
    assert ledger_status(people).spent == ((0, 0, 0, 1, 1) if isinstance(cap, GaussianDP) else (0, 1, 0, 1, 1))
    assert searched == [cap] * isinstance(cap, ApproxDP)


def test_another_process_waits_for_a_transaction_only(place: str) -> None:
    """Between two commits the ledger is not locked: a program of its own can write to it."""
    with open_job(place, "a") as store:
        admit(store, "ann")
        if "://" in place:
            with psycopg.connect(place) as other:
                other.execute("UPDATE streamdp.ledger SET version = version")
        else:
            file = sqlite3.connect(place, timeout=0)
            file.execute("UPDATE ledger SET version = version")
            file.commit()
            file.close()
        commit(store, 1)


def test_a_database_that_another_writes_for_long_is_unavailable(tmp_path: Path) -> None:
    """The commit may be repeated, and counts once."""
    path = tmp_path / "people.db"
    with open_job(path, "a") as store:
        admit(store, "ann")
        connection_of(store).fetch("PRAGMA busy_timeout = 0")
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            commit(store, 1)
        other.close()
        commit(store, 1)
    assert spent(path, "ann") == [1]


def interrupt_spans(folder: Path, step: int) -> int:
    """Interrupt the admission and the commit of a span at each `step`-th line; returns how many interruptions.

    After each, the span is learned again from the last commit. Another job charges the same people in between, so that
    rows are read again when they are written.
    """
    path, n, spans, interruptions = folder / "people.db", 0, 0, 0
    generous = PureDP(1e6)
    with open_job(path, "a", generous) as a, open_job(path, "b", generous) as b:
        assert a.ledger is not None

        def learn(to: int) -> None:
            a.rollback()
            found = a.load()
            if found is None or found.position["row"] < to:
                admit(a, *["ann", "bob"][: to - (0 if found is None else found.position["row"])])
                before = b.load()
                admit(b, "ann")
                commit(b, 1 + (0 if before is None else before.position["row"]))
                commit(a, to)

        for after in itertools.count(0, step):
            n, spans = n + 2, spans + 1
            if interrupted(lambda to=n: learn(to), after) <= after:  # type: ignore[misc]
                break
            interruptions += 1
            b.rollback()
            learn(n)
            assert a.ledger.spent("bob").records == spans
            by_job = {job.job: job.learned for job in ledger_status(path).jobs}
            assert a.ledger.spent("ann").records == spans + by_job["b"]
            assert by_job["a"] == 2 * spans
    return interruptions


@pytest.mark.slow
def test_an_interruption_at_some_lines_charges_nothing_twice(tmp_path: Path) -> None:
    assert interrupt_spans(tmp_path, 61) > 4


@pytest.mark.campaign
def test_an_interruption_anywhere_charges_nothing_twice(tmp_path: Path) -> None:
    assert interrupt_spans(tmp_path, 1) > 250
