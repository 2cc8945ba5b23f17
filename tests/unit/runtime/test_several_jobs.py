"""Two jobs on the same people at the same time: one cap over both, nothing charged in vain, no record lost.

One job runs within a callback of the other, so that their commits meet in the same order in every run.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamdp import LDPASGDRegressor, PureDP
from streamdp.errors import LedgerConflictError
from streamdp.ledger.stored import StoredLedger
from streamdp.runtime.defaults import FIRST_S
from streamdp.runtime.learning import total
from streamdp.runtime.runner import AGAIN, Progress, Runner
from streamdp.store.report import ledger_status
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.clock import FakeClock
from tests.support.memory import BAD, MemorySource
from tests.support.records import items

CAP = PureDP(6)
PEOPLE = 13


def open_store(folder: Path, job: str) -> Store:
    return Store(folder / "people.db", job, "f", cap=CAP)


def runner(store: Store, stream: list[Any], **options: Any) -> Runner:
    model = LDPASGDRegressor(features=["a", "b"], budget="eps=1", ledger=store.ledger, seed=5)
    return Runner(MemorySource(stream, ["a", "b"]), model, store, **options)


@pytest.fixture
def conflicts(monkeypatch: pytest.MonkeyPatch) -> list[LedgerConflictError]:
    """The commits that were refused because of another job."""
    seen: list[LedgerConflictError] = []
    real = StoredLedger.write_pending

    def write_pending(*arguments: Any) -> None:
        try:
            real(*arguments)
        except LedgerConflictError as error:
            seen.append(error)
            raise

    monkeypatch.setattr(StoredLedger, "write_pending", write_pending)
    return seen


def beside(run: Callable[[], object]) -> Callable[[Progress], None]:
    """Return what calls `run` after each part of a stream, but not after one that is learned again: others wait."""
    most = [0]

    def on_progress(progress: Progress) -> None:
        if total(progress.counts) > most[0]:
            most[0] = total(progress.counts)
            run()

    return on_progress


def test_two_runs_at_once_share_the_cap(tmp_path: Path, conflicts: list[LedgerConflictError]) -> None:
    """Each record is learned or refused once, and what the ledger has is what both have learned."""
    stream = items(100, PEOPLE, bad_every=10)
    with open_store(tmp_path, "a") as a, open_store(tmp_path, "b") as b:
        second = runner(b, stream, commit_records=7)
        first = runner(a, stream, commit_records=10, on_progress=beside(lambda: second.run(9)))
        one, two = first.run(), second.run()
    good = Counter(item[2] for item in stream if item is not BAD)
    assert total(one) == total(two) == 100
    assert one.learned + two.learned == sum(min(6, 2 * n) for n in good.values())
    assert min(one.learned, two.learned, one.refused, two.refused) > 0
    assert conflicts  # else nothing was learned again here
    found = ledger_status(tmp_path / "people.db")
    assert {job.job: job.learned for job in found.jobs} == {"a": one.learned, "b": two.learned}
    assert found.records == one.learned + two.learned
    with open_store(tmp_path, "reader") as store:
        assert {s: store.ledger.spent(s).records for s in good} == {s: min(6, 2 * n) for s, n in good.items()}


def test_a_job_with_large_commits_is_not_kept_from_them(place: str, conflicts: list[LedgerConflictError]) -> None:
    """Another job committed during each large commit, so that each of these was refused, until the cap was spent.

    Now that job waits while the refused records are learned again, and the next large commit is not refused.
    """
    told, waiting = list[str](), list[threading.Thread]()
    with Store(place, "large", "f", cap=PureDP(50)) as store, Store(place, "hasty", "f", cap=PureDP(50)) as other:

        def spend() -> None:
            other.rollback()
            if other.ledger.admit("s0", PureDP(1)):
                with contextlib.suppress(LedgerConflictError):
                    other.commit({}, {"row": len(waiting)}, Counts(learned=len(waiting) + 1))

        def on_progress(progress: Progress) -> None:
            if not conflicts:
                for _ in range(15):
                    spend()
            elif not progress.committed.learned and not (waiting and waiting[-1].is_alive()):
                waiting.append(threading.Thread(target=spend))
                waiting[-1].start()
                waiting[-1].join(0.3)  # it comes to its end only if nobody holds it back

        large = runner(store, items(40, 1), on_progress=on_progress, on_waiting=told.append)
        counts = large.run()
        for thread in waiting:
            thread.join()
        assert told == [AGAIN]
        assert (counts.learned, counts.refused) == (35, 5)
        assert waiting  # else nobody was held back
        store.rollback()
        assert store.ledger.spent("s0").records == 50


def test_a_job_that_learns_again_for_long_commits_before_it_gives_way(
    tmp_path: Path, conflicts: list[LedgerConflictError]
) -> None:
    clock, stream = FakeClock(), items(40, 1)
    with open_store(tmp_path, "a") as a, open_store(tmp_path, "b") as b:
        second = runner(b, stream)

        def on_progress(progress: Progress) -> None:
            if conflicts:
                clock.sleep(FIRST_S)
            elif total(progress.counts) == 40:
                second.run()

        first = runner(a, stream, commit_records=40, commit_seconds=1e9, on_progress=on_progress, clock=clock)
        first.source.poll = partial(lambda poll, most, timeout: poll(min(most, 10), timeout), first.source.poll)
        first.run()
    assert [total(commit.counts) for commit in Store.history(tmp_path / "people.db", job="a")] == [10, 40]


@pytest.mark.slow
def test_a_conflict_before_the_first_commit_begins_anew(tmp_path: Path, conflicts: list[LedgerConflictError]) -> None:
    stream = items(40, 1)
    with open_store(tmp_path, "a") as a, open_store(tmp_path, "b") as b:
        second = runner(b, stream)
        first = runner(a, stream, on_progress=beside(second.run))
        assert (first.run().learned, second.run().learned) == (0, 6)
    assert len(conflicts) == 1
