"""SIGKILL at random times of a process that admits on disk: no subject exceeds its cap, no committed spend is lost.

The expected spends after each batch are replayed in plain Python, without the library. Log, pages and cache are small,
so that some kills happen while pages are written or split.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streamdp.data.records import WHOLE
from streamdp.ledger import paging, sqlite_pages
from streamdp.privacy.guarantees import PureDP
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.kills import Fork

CAP, SUBJECTS, RECORDS = 3.0, 4000, 400


def batch(number: int) -> tuple[list[str], list[float], dict[str, float]]:
    """Subjects, the amounts that they would spend, and caps that are set before."""
    rng = random.Random(number)
    people = [f"p{int(SUBJECTS * rng.random() ** 2)}" for _ in range(RECORDS)]
    amounts = [rng.choice([0.25, 0.5, 1.5]) for _ in people]
    return people, amounts, {rng.choice(people): rng.choice([1.0, 2.0, 4.0]) for _ in range(3)}


class Replay:
    def __init__(self) -> None:
        self.n = 0
        self.spent: dict[str, float] = {}
        self.caps: dict[str, float] = {}

    def go_to(self, n: int) -> None:
        while self.n < n:
            people, amounts, caps = batch(self.n)
            self.caps |= caps
            for person, amount in zip(people, amounts, strict=True):
                before = self.spent.setdefault(person, 0.0)
                if before + amount <= self.caps.get(person, CAP):
                    self.spent[person] = before + amount
            self.n += 1


def small() -> None:
    paging.LOGGED_ROWS, paging.KEPT_SUBJECTS = 3000, 3000
    sqlite_pages.PAGE_ROWS = 12


def spend_on(path: Path, shared: bool, tell: Callable[[], None]) -> None:
    """Admit and commit until the process is killed."""
    small()
    with Store(path, "kills", "print", cap=PureDP(CAP), shared=shared) as store:
        if shared:
            store.claim([WHOLE])
        found = store.load()
        number = 0 if found is None else found.position["batch"]
        while True:
            people, amounts, caps = batch(number)
            for person, cap in caps.items():
                store.ledger.set_cap(person, PureDP(cap))
            store.ledger.admit_many(people, PureDP(1), np.array(amounts))
            number += 1
            store.commit({}, {"batch": number}, Counts(number * RECORDS))
            tell()


def check(path: Path, replay: Replay, least: int, most: int | None = None) -> int:
    """Assert that the disk has the replay at the committed position, and return that position."""
    with Store(path, "kills", "print", cap=PureDP(CAP)) as store:
        found = store.load()
        n = 0 if found is None else int(found.position["batch"])
        assert n >= least
        replay.go_to(n)
        people = list(replay.spent)
        for person in people if most is None else random.Random(n).sample(people, min(most, len(people))):
            spent, cap = store.ledger.spent(person).epsilon, store.ledger.cap_of(person)
            assert spent == replay.spent[person]
            assert cap == PureDP(replay.caps.get(person, CAP))
            assert spent <= max(4.0, CAP)
        assert store.ledger.n_subjects == len(replay.spent)
    return n


def kill_many(path: Path, kills: int, seed: int) -> None:
    small()
    rng, replay = random.Random(seed), Replay()
    with Store(path.with_name("first.db"), "kills", "print", cap=PureDP(CAP)) as store:  # loads what it needs
        for _ in range(9):
            store.ledger.admit_many([f"p{i}" for i in range(RECORDS)], PureDP(0.1))
            store.commit({}, {"batch": 0}, Counts())
        store.rollback()
        store.ledger.spent("p0")
    n = landed = 0
    for _ in range(kills):
        commits, after_s, shared = rng.choice((0, 1, 2, 5)), rng.uniform(0, 0.05), rng.random() < 0.3
        Fork(partial(spend_on, path, shared)).kill(commits, after_s)
        if path.exists():
            before, n = n, check(path, replay, n, 200)
            landed += n > before
    assert check(path, replay, n) == n
    assert landed >= kills / 3
    assert sum(spent == replay.caps.get(person, CAP) for person, spent in replay.spent.items()) > 100
    print(f"\n{kills} kills, {landed} after a commit of their run, {n} commits, {len(replay.spent)} subjects")


@pytest.mark.campaign
def test_fifty_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch)
    kill_many(tmp_path / "kills.db", 50, seed=2)


def keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo `small` in this process after the test."""
    for module, name in ((paging, "LOGGED_ROWS"), (paging, "KEPT_SUBJECTS"), (sqlite_pages, "PAGE_ROWS")):
        monkeypatch.setattr(module, name, getattr(module, name))
