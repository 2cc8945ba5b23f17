"""SIGKILL at random instants of jobs with a cap: what they learned follows from the input alone.

The state that a job commits is its own count of what it has learned of each person, in each period if the cap renews.

* A job alone in its database has a cap that renews. The clock goes with the position, so that periods end and are
  deleted all the time, and the counts are those of a plain replay with both filters.
* Two jobs learn in one database at the same time, each in a process of its own. The clock stands still. After each
  kill, every person was charged what was learned, and no more than the cap. At the end, a person has spent the number
  of its records in both jobs, or the cap; in each period, if the cap renews. If it does not, some people have caps of
  their own, which the jobs set.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from streamdp.data.subjects import Dated, Subject, subjects_bytes
from streamdp.ledger import paging, sqlite_pages
from streamdp.ledger.periods import Cap, RenewingCap
from streamdp.privacy.guarantees import PureDP
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.kills import Fork, repeat

LENGTH, START = 3600, 1_760_000_400
MOST, TOTAL, SUBJECTS, PERIODS = 3, 12, 60, 8
ALONE = RenewingCap(PureDP(MOST), LENGTH, 2 * LENGTH, LENGTH, PureDP(TOTAL))
RENEWING = RenewingCap(PureDP(MOST), LENGTH, 9 * LENGTH, LENGTH)
FOR_ALL_TIME = PureDP(MOST)
PER_PERIOD = 400
"""How many records the clock of a job alone takes for a period."""
Record = tuple[str, int | None]
"""The person and the time; None for a cap that does not renew."""


def place_of(person: str, time: int | None) -> str:
    """What a job counts under: a person, or a person in a period."""
    return person if time is None else f"{person} {time // LENGTH}"


def subject(person: str, time: int | None) -> Subject:
    return person if time is None else Dated(person, time)


class Jobs:
    """The jobs that are killed: one alone, or two, in the database at `place`."""

    def __init__(self, cap: Cap, place: str) -> None:
        self.cap, self.place = cap, place
        self.names = ("alone",) if cap == ALONE else ("late", "delay")
        self._positions = dict.fromkeys(self.names, 0)
        every = range(0, SUBJECTS * PERIODS, 5) if cap == FOR_ALL_TIME else ()
        self.own = {f"p{i}": (-2, 2)[i % 2] for i in every}
        """By how much the cap of some people is another one."""

    def open(self, job: str) -> Store:
        return Store(self.place, job, "f", cap=self.cap)

    def clock(self, at: int) -> float:
        return START + LENGTH * at / PER_PERIOD if self.cap == ALONE else float(START)

    def record(self, job: str, at: int) -> Record:
        """A record whose time is admissible whenever its span begins, at most 900 records before it."""
        rng = random.Random(f"{job} {at}")
        person = f"p{int(SUBJECTS * (1 if self.cap == RENEWING else PERIODS) * rng.random() ** 2)}"
        if self.cap == FOR_ALL_TIME:
            return person, None
        return person, int(self.clock(at)) - rng.randrange(int((1.9 if self.cap == ALONE else PERIODS) * LENGTH))

    def most(self, place: str) -> int:
        """How many records the cap allows at a place."""
        return MOST + self.own.get(place, 0)

    def learn(self, store: Store, rng: random.Random) -> None:
        """Learn and commit one span of any length, in blocks of any size, from the last commit."""
        store.rollback()
        found, ledger = store.load(), store.ledger
        at, counts = (0, Counts()) if found is None else (found.position["record"], found.counts)
        learned = Counter({} if found is None else found.state)
        refused, end = counts.refused, at + rng.randrange(1, 300)
        while at < end:
            block = [self.record(store.job, i) for i in range(at, min(end, at + rng.randrange(10, 60)))]
            ledger.moments.clock = partial(self.clock, at)
            for person in {person for person, _ in block} & self.own.keys():
                ledger.set_cap(person, PureDP(self.most(person)))
            admitted = ledger.admit_many([subject(*one) for one in block], PureDP(1)).tolist()
            learned.update(place_of(*one) for one, yes in zip(block, admitted, strict=True) if yes)
            refused += admitted.count(False)
            at += len(block)
        store.commit(dict(learned), {"record": end}, Counts(end - refused, refused))

    def learn_until_killed(self, job: str, tell: Callable[[], None]) -> None:
        small()
        rng = random.Random()
        with self.open(job) as store:
            repeat(partial(self.learn, store, rng), tell)

    def committed(self) -> tuple[Counter[str], dict[str, Record]]:
        """What the jobs have learned, by place, and the records that they have read, by job and number."""
        learned, there = Counter[str](), dict[str, Record]()
        for job in self.names:
            snapshot = Store.snapshot(self.place, job)
            assert snapshot.position["record"] >= self._positions[job]
            self._positions[job] = snapshot.position["record"]
            learned.update({place: int(n) for place, n in snapshot.state.items()})
            there |= {f"{job} {i}": self.record(job, i) for i in range(self._positions[job])}
        return learned, there

    def check(self, last: bool = False) -> None:
        learned, there = self.committed()
        if self.cap == ALONE:
            self._check_alone(learned, list(there.values()), last)
            return
        moments = {place_of(*one): one for one in there.values()}
        with self.open("reader") as store:
            ledger = store.ledger
            ledger.moments.clock = lambda: START
            ledger.prepare(subjects_bytes([subject(*moment) for moment in moments.values()]))  # reads all rows at once
            spent = Counter({place: ledger.spent(*moment).records for place, moment in moments.items()})
            assert all(ledger.cap_of(who) == PureDP(self.most(who)) for who in moments.keys() & self.own.keys())
        assert spent == learned
        assert all(n <= self.most(place) for place, n in spent.items())
        if last:
            wanted = Counter(place_of(*one) for one in there.values())
            assert spent == Counter({place: min(self.most(place), n) for place, n in wanted.items()})
            assert sum(n > MOST for n in wanted.values()) > 50

    def _check_alone(self, learned: Counter[str], records: list[Record], last: bool) -> None:
        """What one job has learned is what both filters admit of its records."""
        expected, total = Counter[str](), Counter[str]()
        for person, time in records:
            if expected[place_of(person, time)] < MOST and total[person] < TOTAL:
                expected[place_of(person, time)] += 1
                total[person] += 1
        assert learned == expected
        if last:
            assert len(records) > 6 * PER_PERIOD  # periods were deleted
            assert sum(n == MOST for n in expected.values()) > 20
            assert max(total.values()) == TOTAL

    def kill_many(self, kills: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in ((paging, "LOGGED_ROWS"), (paging, "KEPT_SUBJECTS"), (sqlite_pages, "PAGE_ROWS")):
            monkeypatch.setattr(module, name, getattr(module, name))  # undone after the test
        small()
        rng = random.Random(seed)
        for job in self.names:  # loads what it needs
            with self.open(job) as store:
                self.learn(store, rng)
        for _ in range(0, kills, len(self.names)):
            running = [Fork(partial(self.learn_until_killed, job)) for job in self.names]
            for fork in rng.sample(running, len(running)):
                fork.kill(rng.choice((0, 1, 2, 4)), rng.uniform(0, 0.05))
            self.check()
        for job in self.names:
            with self.open(job) as store:
                for _ in range(12):
                    self.learn(store, rng)
        self.check(last=True)
        print(f"\n{kills} kills, records learned or refused by job: {self._positions}")


def small() -> None:
    paging.LOGGED_ROWS, paging.KEPT_SUBJECTS, sqlite_pages.PAGE_ROWS = 500, 300, 12


@pytest.mark.campaign
@pytest.mark.parametrize("cap", [ALONE, FOR_ALL_TIME, RENEWING], ids=str)
def test_fifty_kills(place: str, cap: Cap, monkeypatch: pytest.MonkeyPatch) -> None:
    Jobs(cap, place).kill_many(50, 2, monkeypatch)
