"""Windowed learning as a job: commits between windows, a crash that reads the open window again, workers, commands."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdp import ApproxDP, WindowedRegressor
from streamdp.learners.user_windows import WindowWarning
from streamdp.runtime.runner import Runner
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from tests.support.crashing import Crash, Crashing
from tests.support.memory import BAD, MemorySource
from tests.support.plain_method import Plain
from tests.support.records import items
from tests.support.shards import ScriptedShards, found, run_quietly, streams
from tests.support.sizes import some
from tests.support.states import assert_same_states

CAP = ApproxDP(3.0, 1e-4)
MOST = 3


def learner(ledger: Any, window: int = 16, least: int = 3, most: int = 3) -> WindowedRegressor:
    return WindowedRegressor(
        features=["a", "b"], method=Plain(least), items_per_user=most, window=window, ledger=ledger
    )


def replay(stream: Sequence[Any], window: int, most: int) -> tuple[Counts, Counter[str], set[int]]:
    """By plain Python: counts, windows of each subject, and after how many items no window is open."""
    learned = refused = left_out = dead = at = 0
    spent: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    boundaries = {0}
    for number, item in enumerate(stream, 1):
        if item is BAD:
            dead += 1
        else:
            who = item[2]
            if who not in sizes and spent[who] == MOST:
                refused += 1
            elif sizes.get(who, 0) == most:
                left_out += 1
            else:
                spent[who] += who not in sizes
                learned += 1
                sizes[who] = sizes.get(who, 0) + 1
            at = (at + 1) % window if sizes else 0
            if at == 0:
                sizes.clear()
        if not sizes:
            boundaries.add(number)
    return Counts(learned, refused, dead, left_out), spent, boundaries


@pytest.mark.parametrize(("window", "people"), [(16, 7), (10, 3), (25, 9)])
def test_commits_fall_between_windows(tmp_path: Path, window: int, people: int) -> None:
    """Bad records do not count towards a window, refused ones do; the run closes the last window."""
    stream = items(200, people, bad_every=10)
    with Store(tmp_path / "a.db", "job", "f", cap=CAP) as store:
        counts = Runner(
            MemorySource(stream, ["a", "b"]), learner(store.ledger, window, 1), store, commit_records=5
        ).run()
        spends = {f"s{k}": store.ledger.spent(f"s{k}").records for k in range(people)}
    expected, spent, boundaries = replay(stream, window, 3)
    assert (counts, spends) == (expected, dict(spent))
    ends = [c.position["index"] for c in Store.history(tmp_path / "a.db")]
    assert set(ends[:-1]) <= boundaries
    assert ends[-1] == 200
    assert len(ends) > 4


@pytest.mark.parametrize("features", [["a", "b"], None])
def test_a_job_commits_its_start_if_it_knows_the_features(tmp_path: Path, features: list[str] | None) -> None:
    """So readers see how many records wait in the first window. Without features the first record names them."""
    with Store(tmp_path / "a.db", "job", "f") as store:
        model = WindowedRegressor(features=features, budget="eps=8,delta=1e-6", window=100)
        runner = Runner(MemorySource(items(3, 3), ["a", "b"]), model, store)
        with pytest.warns(WindowWarning, match="3 users are too few"):
            assert (runner.run(), runner.waiting) == (Counts(), 3)
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert (snapshot and (snapshot.counts, snapshot.waiting)) == (features and (Counts(), 3))


def test_the_open_window_is_read_again_after_a_crash(tmp_path: Path) -> None:
    """As if there had been no crash: the model, the counts and the spends, bit for bit."""
    stream = items(60, 6)

    def job(name: str, source: MemorySource) -> tuple[Counts, list[int]]:
        with Store(tmp_path / name, "job", "f", cap=CAP) as store:
            counts = Runner(source, learner(store.ledger), store, commit_records=4).run()
            return counts, [store.ledger.spent(f"s{k}").records for k in range(6)]

    with pytest.raises(Crash):
        job("a.db", Crashing(stream, ["a", "b"], 40))
    crashed = Store.snapshot(tmp_path / "a.db")
    assert crashed.position == {"index": 32}
    again, whole = job("a.db", MemorySource(stream, ["a", "b"])), job("b.db", MemorySource(stream, ["a", "b"]))
    assert again == whole
    one, two = Store.snapshot(tmp_path / "a.db"), Store.snapshot(tmp_path / "b.db")
    assert_same_states(one, two)


def test_records_that_are_refused_before_a_window_are_not_in_it(tmp_path: Path) -> None:
    """A commit among them loses nothing: windows are the same whether a run ended there or not."""
    old: list[Any] = [({"a": 1.0}, 1.0, f"s{k % 2}", None) for k in range(16 * MOST + 6)]
    stream = [*old, *(({"b": 1.0}, 1.0, f"t{k}", None) for k in range(26))]

    def job(name: str, ends: Sequence[int]) -> Snapshot | None:
        for end in ends:
            with Store(tmp_path / name, "job", "f", cap=CAP) as store:
                Runner(MemorySource(stream[:end], ["a", "b"]), learner(store.ledger, 16, 2), store).run()
        return Store.snapshot(tmp_path / name)

    one, two = job("a.db", [len(stream)]), job("b.db", [len(old), len(stream)])
    assert one.counts == two.counts
    assert one.state["n_windows"] == MOST + 2  # of 16 and of 10 newcomers
    assert_same_states(one, two)


def test_a_last_window_with_too_few_users_waits_for_the_next_run(tmp_path: Path) -> None:
    stream = items(50, 6)

    def job(n: int) -> Counts:
        with Store(tmp_path / "a.db", "job", "f") as store:
            return Runner(MemorySource(stream[:n], ["a", "b"]), learner(None, 16, 5), store).run()

    with pytest.warns(WindowWarning, match="5 are needed"):
        assert job(36) == Counts(32, 0, 0)
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert snapshot.position == {"index": 32}
    with pytest.warns(WindowWarning):
        assert job(50).learned == 48  # sixteen more, and again two are left


def work(path: Path, source: ScriptedShards, window: int) -> None:
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        run_quietly(source, lambda: learner(store.ledger, window, 1), store, commit_records=50)


def check_ended(path: Path, given: dict[Any, Sequence[Any]]) -> None:
    """Each record of all shards was counted once, and nobody is over the cap or was forgotten."""
    last = found(path)
    for shard, stream in given.items():
        assert (last[shard].position, last[shard].waiting) == ({"index": len(stream)}, 0)
        counts = last[shard].counts
        assert counts.dead_letters == sum(item is BAD for item in stream)
        assert counts.learned + counts.refused + counts.left_out + counts.dead_letters == len(stream)
    people = {item[2] for stream in given.values() for item in stream if item is not BAD}
    with Store(path, "job", "f", cap=CAP, shared=True) as store:
        assert all(1 <= store.ledger.spent(who).records <= MOST for who in people)


@pytest.mark.parametrize("seed", some(range(3), 0))
def test_a_worker_commits_windows_of_all_its_shards(tmp_path: Path, seed: int) -> None:
    given = streams(2, 600, seed)
    path = tmp_path / "a.db"
    work(path, ScriptedShards(given, seed), 70)
    check_ended(path, given)
    states = [snapshot.state for snapshot in found(path).values() if snapshot.state]
    assert [state["n_windows"] > 4 for state in states] == [True]  # one model


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_workers_read_open_windows_again(tmp_path: Path, seed: int) -> None:
    """After a crash all shards go on from the last window; each record is counted once."""
    given = streams(2, 600, seed)

    def crash() -> None:
        raise Crash

    path = tmp_path / "a.db"
    source = ScriptedShards(given, seed)
    source.events[5 + seed] = crash
    with pytest.raises(Crash):
        work(path, source, 70)
    assert all(snapshot.position["index"] <= 600 for snapshot in found(path).values())
    work(path, ScriptedShards(given, seed + 1), 70)
    check_ended(path, given)
