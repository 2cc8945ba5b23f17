"""Learning from users and windows as a job: commits where nobody's records are open, crashes, workers, the command."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdp import ApproxDP, PanPrivateRegressor, UserLevelLDPClassifier, UserLevelLDPRegressor, WindowedRegressor
from streamdp.learners.user_windows import WindowWarning
from streamdp.runtime.runner import Runner
from streamdp.serving.snapshots import restore
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from tests.support.commands import streamdp
from tests.support.crashing import Crash, Crashing
from tests.support.memory import BAD, MemorySource
from tests.support.people import FLAGS, rows
from tests.support.plain_method import Plain
from tests.support.records import items
from tests.support.shards import ScriptedShards, found, run_quietly, streams
from tests.support.sizes import some
from tests.support.states import assert_same_states

CAP = ApproxDP(3.0, 1e-4)
MOST = 3
USERS = ["--set", "model.estimator=UserLevelLDPClassifier", "--subject", "who", "--set", "model.items_per_user=4"]


def learner(ledger: Any, window: int = 16, least: int = 3, most: int = 3) -> WindowedRegressor:
    return WindowedRegressor(
        features=["a", "b"], method=Plain(least), items_per_user=most, window=window, ledger=ledger
    )


def of_users(ledger: Any, window: int = 16, most: int = 4) -> UserLevelLDPRegressor:
    return UserLevelLDPRegressor(features=["a", "b"], items_per_user=most, window=window, ledger=ledger)


def replay(
    stream: Sequence[Any], window: int, most: int, reports: int, users: bool
) -> tuple[Counts, Counter[str], set[int]]:
    """By plain Python: counts, spends of each subject of which a cap allows so many, and after how many items nobody's
    records are open. A user whose records are complete reports at once; in a window all wait for its end."""
    learned = refused = left_out = dead = at = 0
    spent: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    boundaries = {0}
    for number, item in enumerate(stream, 1):
        if item is BAD:
            dead += 1
        else:
            who = item[2]
            if who not in sizes and spent[who] == reports:
                refused += 1
            elif sizes.get(who, 0) == most:
                left_out += 1
            else:
                spent[who] += who not in sizes
                learned += 1
                sizes[who] = sizes.get(who, 0) + 1
                if users and sizes[who] == most:
                    del sizes[who]
            at = (at + 1) % window if sizes or users else 0
            if at == 0:
                sizes.clear()
        if not sizes:
            boundaries.add(number)
    return Counts(learned, refused, dead, left_out), spent, boundaries


@pytest.mark.parametrize(
    ("users", "most", "window", "people", "reports"),
    [
        *((True, *case) for case in ((5, 10, 7, 9), (5, 10, 7, 3), (2, 50, 3, 4), (1, 9, 5, 9))),
        *((False, 3, window, people, 3) for window, people in ((16, 7), (10, 3), (25, 9))),
    ],
)
def test_commits_fall_where_nobodys_records_are_open(
    tmp_path: Path, users: bool, most: int, window: int, people: int, reports: int
) -> None:
    """Bad records do not count towards a window, records over the cap do; the run closes the last window."""
    stream = items(200, people, bad_every=10)
    with Store(tmp_path / "a.db", "job", "f", cap=ApproxDP(float(reports), 1e-4)) as store:
        model = of_users(store.ledger, window, most) if users else learner(store.ledger, window, 1, most)
        counts = Runner(MemorySource(stream, ["a", "b"]), model, store, commit_records=5).run()
        spends = {f"s{k}": store.ledger.spent(f"s{k}").records for k in range(people)}
    expected, spent, boundaries = replay(stream, window, most, reports, users)
    assert (counts, spends) == (expected, spent)
    ends = [c.position["index"] for c in Store.history(tmp_path / "a.db")]
    assert set(ends[:-1]) <= boundaries
    assert ends[-1] == 200
    assert len(ends) > 4
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert (snapshot.state["n_users"], snapshot.state["n_seen"]) == (sum(spent.values()), counts.learned)


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


@pytest.mark.parametrize(
    "made",
    [learner, of_users, lambda ledger: PanPrivateRegressor(features=["a", "b"], batch_size=11, ledger=ledger)],
    ids=["window", "users", "batch"],
)
def test_open_records_are_read_again_after_a_crash(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    """As if there had been no crash: the counts and the spends, and without noise the model, bit for bit."""
    stream = items(60, 20)

    def job(name: str, source: MemorySource) -> tuple[Counts, list[int]]:
        with Store(tmp_path / name, "job", "f", cap=CAP) as store:
            counts = Runner(source, made(store.ledger), store, commit_records=4).run()
            return counts, [store.ledger.spent(f"s{k}").records for k in range(20)]

    with pytest.raises(Crash):
        job("a.db", Crashing(stream, ["a", "b"], 40))
    assert 20 < Store.snapshot(tmp_path / "a.db").position["index"] < 40
    again, whole = job("a.db", MemorySource(stream, ["a", "b"])), job("b.db", MemorySource(stream, ["a", "b"]))
    assert again == whole
    if made is learner:
        assert_same_states(Store.snapshot(tmp_path / "a.db"), Store.snapshot(tmp_path / "b.db"))


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


def test_a_stream_sorted_by_people_is_committed_without_waiting_for_a_window(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db", "job", "f") as store:
        learner = UserLevelLDPRegressor(features=["a", "b"], items_per_user=5)
        source = MemorySource([(*item[:2], f"s{i // 5}", None) for i, item in enumerate(items(60, 1))], ["a", "b"])
        Runner(source, learner, store, commit_records=20).run()
    assert [c.counts.learned for c in Store.history(tmp_path / "a.db")] == [20, 40, 60]


def test_a_run_on_the_command_line_and_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(rows(8000, 500))
    options = [
        "--set",
        "model.window=2000",
        "--budget",
        "eps=8,delta=1e-6",
        "--cap",
        "eps=24,delta=1e-5",
        "--set",
        "commit.records=500",
    ]
    code, out, err = streamdp(tmp_path, "run", "data.csv", *FLAGS, *USERS, *options, "--publish", "m.json")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["learned"] == 6000
    history = Store.history(tmp_path / "data.db")
    # in the last window all are over the cap, so nobody is open at any time
    done = [c.counts.learned + c.counts.refused for c in history]
    assert done == [2000, 4000, 6000, 6500, 7000, 7500, 8000]
    snapshot = Store.snapshot(tmp_path / "data.db")
    assert snapshot is not None
    model = restore(snapshot).estimator
    assert isinstance(model, UserLevelLDPClassifier)
    # 500 people with 16 records each in four windows of four: four reports, of which the cap lets three be made
    assert (model.n_users, model.n_seen, model.n_refused) == (1500, 6000, 2000)
    assert model.predict_one({"delay": 0.9}) == "yes"
    code, said, _ = streamdp(tmp_path, "statement", "data.db", "--full")
    assert code == 0
    for words in (
        "user level",
        "any single report of a user",
        "1,500 reports, each on up to 4 records",
        "would pass eps=24",
    ):
        assert words in said
    assert json.loads((tmp_path / "m.json").read_text())["statement"].strip() == said.strip()
