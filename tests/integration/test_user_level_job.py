"""User-level learning as a job: commits where no user is open, a crash that reads open users again, the commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamdp import ApproxDP, UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.runtime.runner import Runner
from streamdp.serving.snapshots import restore
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.commands import streamdp
from tests.support.crashing import Crash, Crashing
from tests.support.memory import BAD, MemorySource
from tests.support.people import FLAGS, rows
from tests.support.records import items

USERS = ["--set", "model.estimator=UserLevelLDPClassifier", "--subject", "who", "--set", "model.items_per_user=4"]


def replay(stream: list[Any], most: int, window: int, reports: int) -> tuple[Counts, dict[str, int], set[int]]:
    """By plain Python: counts, reports of each subject of which a cap lets so many be made, and after how many items no
    user is open."""
    learned = refused = dead = at = 0
    spent: dict[str, int] = {}
    sizes: dict[str, int] = {}
    boundaries = set()
    for number, item in enumerate(stream, 1):
        if item is BAD:
            dead += 1
        else:
            who = item[2]
            if who not in sizes and spent.get(who, 0) == reports:
                refused += 1
            else:
                if who not in sizes:
                    spent[who] = spent.get(who, 0) + 1
                learned += 1
                sizes[who] = sizes.get(who, 0) + 1
                if sizes[who] == most:
                    del sizes[who]
            at = (at + 1) % window
            if at == 0:
                sizes.clear()
        if not sizes:
            boundaries.add(number)
    return Counts(learned, refused, dead), spent, boundaries


@pytest.mark.parametrize(
    ("most", "window", "people", "reports"), [(5, 10, 7, 9), (5, 10, 7, 3), (2, 50, 3, 4), (1, 9, 5, 9)]
)
def test_commits_fall_where_no_user_is_open(tmp_path: Path, most: int, window: int, people: int, reports: int) -> None:
    """Bad records do not count towards a window, records over the cap do; the run closes the last window."""
    stream = items(200, people, bad_every=10)
    with Store(tmp_path / "a.db", "job", "f", cap=ApproxDP(float(reports), 1e-4)) as store:
        learner = UserLevelLDPRegressor(features=["a", "b"], items_per_user=most, window=window, ledger=store.ledger)
        counts = Runner(MemorySource(stream, ["a", "b"]), learner, store, commit_records=5).run()
        spends = {f"s{k}": store.ledger.spent(f"s{k}").records for k in range(people)}
    expected, spent, boundaries = replay(stream, most, window, reports)
    assert (counts, spends) == (expected, spent)
    ends = [c.position["index"] for c in Store.history(tmp_path / "a.db")]
    assert set(ends[:-1]) <= boundaries
    assert ends[-1] == 200
    assert len(ends) > 5
    snapshot = Store.snapshot(tmp_path / "a.db")
    assert (snapshot.state["n_users"], snapshot.state["n_seen"]) == (sum(spent.values()), counts.learned)


def test_open_users_are_read_again_after_a_crash(tmp_path: Path) -> None:
    """The commit lies before the first record of every user that was open when the process died, the spends too."""
    stream = items(60, 6)

    def job(source: MemorySource) -> tuple[Counts, list[int]]:
        with Store(tmp_path / "a.db", "job", "f", cap=ApproxDP(9.0, 1e-4)) as store:
            learner = UserLevelLDPRegressor(features=["a", "b"], items_per_user=4, window=16, ledger=store.ledger)
            counts = Runner(source, learner, store, commit_records=4).run()
            return counts, [store.ledger.spent(f"s{k}").records for k in range(6)]

    with pytest.raises(Crash):
        job(Crashing(stream, ["a", "b"], 40))
    crashed = Store.snapshot(tmp_path / "a.db")
    assert (crashed.counts.learned, crashed.position) == (32, {"index": 32})
    assert crashed.state["n_users"] == 12  # two windows of six people with up to three records
    counts, spends = job(MemorySource(stream, ["a", "b"]))
    assert counts == Counts(60, 0, 0)
    assert spends == [4] * 6  # four windows, a report in each: none is counted twice
    last = Store.snapshot(tmp_path / "a.db")
    assert last.state["n_users"] == 24


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
