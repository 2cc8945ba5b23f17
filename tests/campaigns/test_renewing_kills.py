"""SIGKILL at random instants of jobs whose cap renews: what they learned follows from the input alone.

The state that a job commits is its own count of what it has learned of each person in each period. With a ledger in the
store, the clock goes with the position, so that periods end and are deleted all the time, and the counts are those of a
plain replay with both filters. With a ledger that two jobs share, the clock stands still, and a person has learned in
each period the number of its records in both jobs, or the cap.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamdp.data.subjects import Dated
from streamdp.ledger import paging, sqlite_pages
from streamdp.ledger.periods import RenewingCap
from streamdp.privacy.guarantees import PureDP
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.kills import Fork, repeat

LENGTH, START = 3600, 1_760_000_400
MOST, TOTAL, SUBJECTS = 3, 12, 60
ALONE = RenewingCap(PureDP(MOST), LENGTH, 2 * LENGTH, LENGTH, PureDP(TOTAL))
SHARED = RenewingCap(PureDP(MOST), LENGTH, 9 * LENGTH, LENGTH)
PER_PERIOD = 400
"""How many records the clock of a job with a ledger of its own takes for a period."""


def clock(job: str, at: int) -> float:
    return START + LENGTH * at / PER_PERIOD if job == "alone" else START


def record(job: str, at: int) -> tuple[str, int]:
    """The person and the time of a record: admissible whenever its span begins, at most 900 records before it."""
    rng = random.Random(f"{job} {at}")
    person = f"p{int(SUBJECTS * 8 * rng.random() ** 2) if job == 'alone' else int(SUBJECTS * rng.random() ** 2)}"
    if job == "alone":
        return person, int(clock(job, at)) - rng.randrange(int(1.9 * LENGTH))
    return person, START - rng.randrange(8 * LENGTH)


def open_store(places: tuple[str, str | None], job: str) -> Store:
    cap = SHARED if places[1] else ALONE
    stores = places[0] % job if "%s" in places[0] else places[0]
    return Store(stores, job, "f", cap=cap, ledger=places[1])


def learn(store: Store, rng: random.Random) -> None:
    """Learn and commit one span of any length, in blocks of any size, from the last commit."""
    store.rollback()
    found, ledger = store.load(), store.ledger
    assert ledger is not None
    at, counts = (0, Counts()) if found is None else (found.position["record"], found.counts)
    learned = Counter({} if found is None else found.state)
    refused, end = counts.refused, at + rng.randrange(1, 300)
    while at < end:
        block = [record(store.job, i) for i in range(at, min(end, at + rng.randrange(10, 60)))]
        ledger.moments.clock = lambda at=at: clock(store.job, at)  # type: ignore[misc]
        admitted = ledger.admit_many([Dated(*one) for one in block], PureDP(1)).tolist()
        learned.update(f"{p} {t // LENGTH}" for (p, t), yes in zip(block, admitted, strict=True) if yes)
        refused += admitted.count(False)
        at += len(block)
    store.commit(dict(learned), {"record": end}, Counts(end - refused, refused))


def learn_until_killed(places: tuple[str, str | None], job: str, tell: Callable[[], None]) -> None:
    small()
    rng = random.Random()
    with open_store(places, job) as store:
        repeat(partial(learn, store, rng), tell)


def small() -> None:
    paging.LOGGED_ROWS, sqlite_pages.PAGE_ROWS = 500, 12


def replay(end: int) -> Counter[str]:
    """What a job alone has learned of its first records, by both filters."""
    learned: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for person, time in (record("alone", i) for i in range(end)):
        place = f"{person} {time // LENGTH}"
        if learned[place] < MOST and total[person] < TOTAL:
            learned[place] += 1
            total[person] += 1
    return learned


def check_alone(places: tuple[str, str | None]) -> int:
    snapshot = Store.snapshot(places[0] % "alone" if "%s" in places[0] else places[0], "alone")
    assert snapshot is not None
    end: int = snapshot.position["record"]
    learned = replay(end)
    assert {place: int(n) for place, n in snapshot.state.items()} == +learned
    return end


def check_shared(places: tuple[str, str | None], jobs: tuple[str, ...], exact: bool) -> int:
    learned: Counter[str] = Counter()
    there: Counter[str] = Counter()
    end = 0
    for job in jobs:
        snapshot = Store.snapshot(places[0] % job if "%s" in places[0] else places[0], job)
        assert snapshot is not None
        learned.update({place: int(n) for place, n in snapshot.state.items()})
        there.update(f"{p} {t // LENGTH}" for p, t in (record(job, i) for i in range(snapshot.position["record"])))
        end += snapshot.position["record"]
    with open_store(places, "reader") as store:
        ledger: Any = store.ledger
        ledger.moments.clock = lambda: START
        moments = {place: (place.split()[0], int(place.split()[1]) * LENGTH) for place in there}
        ledger.prepare([Dated(*moment) for moment in moments.values()])  # reads all rows at once
        spent = Counter({place: ledger.spent(*moment).records for place, moment in moments.items()})
    assert all(learned[place] <= spent[place] <= MOST for place in there)
    if exact:
        assert spent == learned == Counter({place: min(MOST, n) for place, n in there.items()})
        assert sum(n > MOST for n in there.values()) > 50
    return end


def kill_many(places: tuple[str, str | None], kills: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((paging, "LOGGED_ROWS"), (sqlite_pages, "PAGE_ROWS")):
        monkeypatch.setattr(module, name, getattr(module, name))  # undone after the test
    small()
    rng, jobs = random.Random(seed), ("alone",) if places[1] is None else ("late", "delay")
    for job in jobs:  # loads what it needs
        with open_store(places, job) as store:
            learn(store, rng)
    for _ in range(0, kills, len(jobs)):
        running = [Fork(partial(learn_until_killed, places, job)) for job in jobs]
        for fork in rng.sample(running, len(running)):
            fork.kill(rng.choice((0, 1, 2, 4)), rng.uniform(0, 0.05))
        check_alone(places) if places[1] is None else check_shared(places, jobs, exact=False)
    for job in jobs:
        with open_store(places, job) as store:
            for _ in range(12):  # what was charged for a state that was never committed is used now
                learn(store, rng)
    if places[1] is None:
        end = check_alone(places)
        learned = replay(end)
        assert end > 6 * PER_PERIOD  # periods were deleted
        assert sum(n == MOST for n in learned.values()) > 20
        assert max(Counter(place.split()[0] for place in learned.elements()).values()) == TOTAL
    else:
        end = check_shared(places, jobs, exact=True)
    print(f"\n{kills} kills, {end} records learned or refused")


@pytest.fixture
def alone(place: str) -> tuple[str, None]:
    """A job with a ledger of its own."""
    return place, None


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_four_kills_of_a_job_alone(alone: tuple[str, None], monkeypatch: pytest.MonkeyPatch) -> None:
    kill_many(alone, 4, 1, monkeypatch)


@pytest.mark.slow
def test_four_kills_of_two_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_many((f"{tmp_path}/%s.db", f"{tmp_path}/people.db"), 4, 1, monkeypatch)


@pytest.mark.campaign
def test_fifty_kills_of_a_job_alone(alone: tuple[str, None], monkeypatch: pytest.MonkeyPatch) -> None:
    kill_many(alone, 50, 2, monkeypatch)


@pytest.mark.campaign
def test_fifty_kills_of_two_jobs(places: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    kill_many(places, 50, 2, monkeypatch)
