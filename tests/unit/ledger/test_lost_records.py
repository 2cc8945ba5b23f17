"""Two jobs in one database, stopped at any step of their commits: each record that the caps have room for is learned.

The expected number is counted from the input alone. All records spend one. So a person's records fill each period, or
the total, in whatever order the jobs come and whatever they learn again.
"""

import random
from collections import Counter

import pytest

from streamdp.data.records import WHOLE
from streamdp.data.subjects import Dated
from streamdp.errors import LedgerConflictError
from streamdp.ledger.periods import DAY
from streamdp.privacy.guarantees import PureDP
from streamdp.store.report import ledger_status
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.crashes import STEPS, Crashed, break_at

pytestmark = pytest.mark.slow
NOON = 20_000 * DAY + DAY / 2
TOTAL, IN_A_DAY = 5, 2
CAPS = {"plain": f"eps={TOTAL}", "renewing": f"eps={IN_A_DAY} per 1 day, late 9 days, total eps={TOTAL}"}
Records = list[tuple[str, int] | None]


class Job:
    """One job and what its committed states have learned, by person and day."""

    def __init__(self, place: str, name: str, cap: str, records: Records) -> None:
        self.name, self.cap, self.records = name, cap, records
        self.learned: list[bool] = []
        self.store = Store(place, name, "f", cap=cap)
        assert self.store.ledger is not None
        self.ledger = self.store.ledger
        self.ledger.moments.clock = lambda: NOON

    def learn(self, size: int, block: int) -> None:
        """Learn the next records in blocks and commit them. A record that cannot be read asks for nothing."""
        self.store.rollback()
        found = self.store.load()
        begin = 0 if found is None else found.position["row"]
        end = min(begin + size, len(self.records))
        decided = []
        for start in range(begin, end, block):
            part = [one for one in self.records[start : min(start + block, end)] if one is not None]
            if part:
                people = [Dated(who, NOON - day * DAY) if "per" in self.cap else who for who, day in part]
                decided += self.ledger.admit_many(people, PureDP(1)).tolist()
        try:
            self.store.commit({"n": end}, {"row": end}, Counts(learned=sum(self.learned) + sum(decided)))
        finally:
            after = self.store.load()
            if end > begin and after is not None and after.position["row"] == end:
                self.learned += decided

    @property
    def ended(self) -> bool:
        found = self.store.load()
        return found is not None and found.position["row"] == len(self.records)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize(
    "seed", [9, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(40) if seed != 9)]
)
def test_no_record_is_lost_at_any_step(place: str, cap: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    records: Records = [(f"p{rng.randrange(5)}", rng.randrange(1, 5)) for _ in range(60)]
    for start in range(0, 60, 15):
        records[start : start + 4] = [None] * 4
    jobs = [Job(place, name, CAPS[cap], records) for name in ("a", "b")]
    while not all(job.ended for job in jobs):
        job = rng.choice(jobs)
        with monkeypatch.context() as patch:
            if broken := rng.random() < 0.6:
                break_at(patch, rng.choice(STEPS))
            try:
                job.learn(rng.randrange(1, 12), rng.randrange(1, 6))
            except LedgerConflictError:
                pass
            except Crashed:
                assert broken
        if broken and rng.random() < 0.5:  # else the same owner goes on, as after a refused commit
            job.store.claim([WHOLE])
    there: dict[str, Counter[int]] = {}
    for who, day in filter(None, records):
        there.setdefault(who, Counter())[day] += 2  # of each job one
    most = {
        who: min(TOTAL, sum(n if cap == "plain" else min(IN_A_DAY, n) for n in days.values()))
        for who, days in there.items()
    }
    learned: Counter[str] = Counter()
    for job in jobs:
        asked = [one for one in records if one is not None]
        learned.update(who for (who, _), yes in zip(asked, job.learned, strict=True) if yes)
    assert learned == most
    assert {who: jobs[0].ledger.spent(who).records for who in most} == most
    for job in jobs:
        job.store.close()
    found = ledger_status(place, now=NOON)
    assert {job.job: job.learned for job in found.jobs} == {job.name: sum(job.learned) for job in jobs}
    assert found.records == sum(most.values())
