"""SIGKILL at random instants of two jobs that charge one ledger at the same time, each in a process of its own.

The state that a job commits is its own count of what it has learned of each person. After each kill, no person has more
learned than charged, or more charged than the cap. At the end, the charges are those that follow from the input alone:
each record spends one, so a person has spent the number of its records in both jobs, or the cap.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamdp.privacy.guarantees import PureDP
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.kills import Fork, repeat

JOBS = ("late", "delay")
CAP, SUBJECTS, BLOCK = 4, 2000, 400


def records(job: str, start: int, end: int) -> list[str]:
    """The people of the records of a job."""
    found: list[str] = []
    for block in range(start // BLOCK, (end - 1) // BLOCK + 1):
        rng = random.Random(f"{job} {block}")
        found += [f"p{int(SUBJECTS * rng.random() ** 2)}" for _ in range(BLOCK)]
    return found[start % BLOCK :][: end - start]


def open_store(places: tuple[str, str], job: str) -> Store:
    stores, people = places
    return Store(stores % job if "%s" in stores else stores, job, "f", cap=PureDP(CAP), ledger=people)


def learn(store: Store, rng: random.Random) -> None:
    """Learn and commit one span of any length, in blocks of any size, from the last commit."""
    assert store.ledger is not None
    store.rollback()
    found = store.load()
    at, counts = (0, Counts()) if found is None else (found.position["record"], found.counts)
    learned = Counter({} if found is None else found.state)
    refused, end = counts.refused, at + rng.randrange(1, 900)
    for start in range(at, end, step := rng.randrange(30, 500)):
        people = records(store.job, start, min(start + step, end))
        admitted = store.ledger.admit_many(people, PureDP(1)).tolist()
        learned.update(person for person, yes in zip(people, admitted, strict=True) if yes)
        refused += admitted.count(False)
    store.commit(dict(learned), {"record": end}, Counts(end - refused, refused))


def learn_until_killed(places: tuple[str, str], job: str, tell: Callable[[], None]) -> None:
    rng = random.Random()
    with open_store(places, job) as store:
        repeat(partial(learn, store, rng), tell)


def kill_many(places: tuple[str, str], kills: int, seed: int) -> None:
    rng = random.Random(seed)
    positions = dict.fromkeys(JOBS, 0)
    for job in JOBS:  # loads what it needs
        with open_store(places, job) as store:
            learn(store, rng)
    for _ in range(0, kills, len(JOBS)):
        running = {job: Fork(partial(learn_until_killed, places, job)) for job in JOBS}
        for job in rng.sample(JOBS, len(JOBS)):
            running[job].kill(rng.choice((0, 1, 2, 4)), rng.uniform(0, 0.05))
        check(places, positions, exact=False)
    for job in JOBS:
        with open_store(places, job) as store:
            for _ in range(6):  # what was charged for a state that was never committed is used now
                learn(store, rng)
    check(places, positions, exact=True)
    print(f"\n{kills} kills, records learned or refused by job: {positions}")
    assert min(positions.values()) > 100 * kills


def check(places: tuple[str, str], positions: dict[str, int], exact: bool) -> None:
    learned: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for job in JOBS:
        stores, _ = places
        snapshot = Store.snapshot(stores % job if "%s" in stores else stores, job)
        assert snapshot is not None
        assert snapshot.position["record"] >= positions[job]
        positions[job] = snapshot.position["record"]
        learned.update({person: int(n) for person, n in snapshot.state.items()})
        there.update(records(job, 0, positions[job]))
    spent = charged(places, sorted(there))
    assert all(learned[person] <= spent[person] <= CAP for person in there)
    if exact:
        assert spent == learned == Counter({person: min(CAP, n) for person, n in there.items()})
        assert sum(n > CAP for n in there.values()) > 100


def charged(places: tuple[str, str], people: list[str]) -> Counter[str]:
    with open_store(places, "reader") as store:
        ledger: Any = store.ledger
        ledger.prepare(people)
        return Counter({person: ledger.spent(person).records for person in people})


@pytest.mark.slow
@pytest.mark.parametrize("places", ["files", "one server"], indirect=True)
def test_four_kills(places: tuple[str, str]) -> None:
    kill_many(places, 4, seed=1)


@pytest.mark.campaign
def test_fifty_kills(places: tuple[str, str]) -> None:
    kill_many(places, 50, seed=2)
