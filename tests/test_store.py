"""The store commits all or nothing, survives SIGKILL, and refuses what is not its own without touching it."""

from __future__ import annotations

import gc
import hashlib
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamdp import store as store_module
from streamdp.encoding import decode_state, encode_state
from streamdp.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreMismatchError,
    StoreVersionError,
)
from streamdp.guarantees import PureDP
from streamdp.store import Counts, Snapshot, Store

CAP = PureDP(1)
STATE: dict[str, Any] = {
    "theta": np.array([0.1, -0.0, 5e-324, 1e308]),
    "n_seen": 3,
    "inner": {"names": ["a", "b"]},
}


def make(path: Path, commits: int = 1, **options: Any) -> None:
    with Store(path, "trips", "print", cap=CAP, config="job: trips", **options) as store:
        assert store.ledger is not None
        for i in range(commits):
            store.ledger.admit_many([f"subject-{i}", "everyone"], PureDP(0.5))
            store.commit(STATE, {"row": i + 1}, Counts(i + 1, 0, 0))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refuses(path: Path, kind: type[StoreError], job: str = "trips", fingerprint: str = "print", **options: Any) -> None:
    """Opening raises and leaves the main file byte for byte what it was."""
    before = digest(path)
    with pytest.raises(kind) as caught:
        Store(path, job, fingerprint, **({"cap": CAP} | options))
    assert type(caught.value) is kind
    assert digest(path) == before


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and (one == two or (one != one and two != two))


def test_what_is_committed_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    with Store(path, "trips", "print") as store:
        assert store.load() is None
        assert store.ledger is None
        before = time.time()
        store.commit(STATE, {"row": 7, "file": "ü"}, Counts(5, 1, 2))
        snapshot = store.load()
        assert snapshot is not None
        assert equal(snapshot.state, STATE)
        assert snapshot.position == {"row": 7, "file": "ü"}
        assert (snapshot.counts, snapshot.seq) == (Counts(5, 1, 2), 1)
        assert before <= snapshot.committed_at <= time.time()
    with Store(f"sqlite:///{path}", "trips", "print", config="new text") as store:
        store.commit({}, {}, Counts(6, 1, 2))
    final = Store.snapshot(path)
    assert final is not None
    assert (final.seq, final.config, final.job, final.fingerprint) == (2, "new text", "trips", "print")
    assert [commit.counts.learned for commit in Store.history(path)] == [5, 6]
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays(
        st.sampled_from([np.float64, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    number=st.floats(),
    text=st.text(),
)
def test_states_round_trip_bit_for_bit(array: np.ndarray, number: float, text: str) -> None:
    state = {"array": array, "reversed": array.T, "number": number, text: [text, None, True, {"deep": array}]}
    state.pop("__array__", None)
    assert equal(decode_state(encode_state(state)), state)


def test_states_of_anything_else_are_refused_before_writing(tmp_path: Path) -> None:
    with Store(tmp_path / "job.db", "trips", "print") as store:
        for value in (
            object(),
            b"bytes",
            np.array(["text"]),
            np.zeros(2, np.float32),
            {1: 2},
            {"__array__": "<f8"},
        ):
            with pytest.raises(StoreError, match=r"state\['bad'\]"):
                store.commit({"bad": value}, {}, Counts())
        with pytest.raises(StoreError, match="position"):
            store.commit({}, {"row": object()}, Counts())
        assert store.load() is None


def test_spends_are_committed_with_the_state_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    make(path)
    with Store(path, "trips", "print", cap=CAP) as store:
        assert store.ledger is not None
        assert store.ledger.admit("everyone", PureDP(0.5))
        with pytest.raises(StoreError, match=r"Store\.commit"):
            store.ledger.commit()
    with Store(path, "trips", "print", cap=CAP) as store:  # closed without a commit: never happened
        assert store.ledger is not None
        assert store.ledger.spent("everyone").epsilon == 0.5
        assert store.ledger.n_subjects == 2
    with pytest.raises(StoreError, match="closed"):
        store.ledger.admit("nobody yet", PureDP(0.5))


def test_a_full_disk_keeps_the_last_snapshot_and_the_commit_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    make(path)
    big = {"theta": np.random.default_rng(0).normal(size=50_000)}
    with Store(path, "trips", "print", cap=CAP) as store:
        assert store.ledger is not None
        store.ledger.admit("late", PureDP(0.5))
        driver: Any = store._connection.connection.driver_connection
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        driver.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            store.commit(big, {"row": 2}, Counts(2))
        kept = Store.snapshot(path)
        assert kept is not None
        assert equal(kept.state, STATE)
        driver.execute("PRAGMA max_page_count = 100000")
        store.commit(big, {"row": 2}, Counts(2))
        loaded = store.load()
        assert loaded is not None
        assert loaded.seq == 2
    with Store(path, "trips", "print", cap=CAP) as store:
        assert store.ledger is not None
        assert store.ledger.spent("late").records == 1


def test_history_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY", 5)
    make(tmp_path / "job.db", commits=8)
    assert [commit.seq for commit in Store.history(tmp_path / "job.db")] == [4, 5, 6, 7, 8]
    assert [commit.position for commit in Store.history(tmp_path / "job.db", limit=2)] == [
        {"row": 7},
        {"row": 8},
    ]


def test_other_jobs_fingerprints_caps_and_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    make(path)
    refuses(path, StoreMismatchError, job="other")
    refuses(path, StoreMismatchError, fingerprint="other")
    refuses(path, StoreMismatchError, cap=None)
    refuses(path, StoreMismatchError, key=bytes(32))
    (tmp_path / "job.db.key").rename(tmp_path / "elsewhere")
    refuses(path, StoreMismatchError)
    assert not (tmp_path / "job.db.key").exists()
    Store(tmp_path / "free.db", "trips", "print").close()
    refuses(tmp_path / "free.db", StoreMismatchError)
    assert b"subject-0" not in path.read_bytes()


@pytest.mark.parametrize("url", ["mysql://host/database", "postgresql://host", "sqlite://", "://"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(StoreError):
        Store(url, "trips", "print")


def test_newer_formats_are_refused_even_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    make(path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 4")  # in the log, as long as this connection is open
    assert digest(path)
    refuses(path, StoreVersionError)
    other.close()
    refuses(path, StoreVersionError)
    with pytest.raises(StoreVersionError):
        Store.snapshot(path)


def make_older(path: Path, version: int) -> None:
    """Take a file of format 3 back: format 2 had one shard, and format 1 no history."""
    columns = "seq, committed_at, learned, refused, dead, position"
    old = sqlite3.connect(path)
    old.executescript(
        f"CREATE TABLE snapshot AS SELECT {columns}, state, checksum FROM shards; DROP TABLE shards;"
        f"CREATE TABLE old AS SELECT {columns} FROM commits; DROP TABLE commits; ALTER TABLE old RENAME TO commits;"
        + ("DROP TABLE commits;" if version == 1 else "")
        + f"PRAGMA user_version = {version};"
    )
    old.close()


@pytest.mark.parametrize(("version", "kept"), [(1, [3]), (2, [1, 2, 3])])
def test_older_formats_are_migrated(tmp_path: Path, version: int, kept: list[int]) -> None:
    path = tmp_path / "job.db"
    make(path, commits=3)
    make_older(path, version)
    assert Store.history(path) == []
    before = Store.snapshot(path)
    refuses(path, StoreMismatchError, job="other")  # no migration for those who have no business here
    with Store(path, "trips", "print", cap=CAP) as store:
        after = store.load()
        assert isinstance(before, Snapshot)
        assert isinstance(after, Snapshot)
        assert (after.seq, after.position) == (before.seq, before.position)
        assert [commit.seq for commit in Store.history(path)] == kept
        store.commit({}, {"row": 4}, Counts(4))
        assert store.ledger is not None
        assert store.ledger.spent("everyone").records == 2
    assert [commit.seq for commit in Store.history(path)] == [*kept, 4]


def test_a_failing_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.db"
    make(path)
    make_older(path, 1)

    def half(connection: Any) -> None:
        store_module._add_commits(connection)
        raise RuntimeError

    monkeypatch.setitem(store_module.MIGRATIONS, 1, half)
    with pytest.raises(RuntimeError):
        Store(path, "trips", "print", cap=CAP)
    monkeypatch.undo()
    make(path)


def test_files_that_are_no_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    for content in (b"x", b"SQLite format 3\0", random.Random(1).randbytes(5000)):
        path.write_bytes(content)
        refuses(path, StoreDamagedError)
    path.unlink()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE mine (x)")
    foreign.close()
    refuses(path, StoreDamagedError)
    with pytest.raises(StoreError):
        Store.snapshot(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()
    with pytest.raises(StoreError):
        Store(tmp_path / "no" / "directory.db", "trips", "print")


def test_an_empty_file_was_cut_and_a_log_without_its_database_is_damage(tmp_path: Path) -> None:
    """To take either for new would give every subject its whole cap once more."""
    path = tmp_path / "job.db"
    make(path)
    os.truncate(path, 0)
    refuses(path, StoreDamagedError)
    path.unlink()
    (tmp_path / "job.db-wal").write_bytes(b"frames")
    with pytest.raises(StoreDamagedError):
        make(path)


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    """Cut the file or change bytes: it is refused with a typed error, or the snapshot is what it was."""
    path, copy = tmp_path / "job.db", tmp_path / "copy.db"
    make(path, commits=20)
    shutil.copy(tmp_path / "job.db.key", tmp_path / "copy.db.key")
    whole = path.read_bytes()
    rng = random.Random(2)
    refused = 0
    for trial in range(150):
        damaged = bytearray(whole)
        if trial % 10 == 0:
            del damaged[rng.randrange(1, len(whole)) :]
        else:
            for _ in range(rng.choice([1, 1, 30])):
                damaged[rng.choice([rng.randrange(len(whole)), rng.randrange(200)])] ^= 1 << rng.randrange(8)
        for leftover in ("-wal", "-shm"):
            Path(f"{copy}{leftover}").unlink(missing_ok=True)
        copy.write_bytes(damaged)
        try:
            store = Store(copy, "trips", "print", cap=CAP)
        except StoreError:
            assert copy.read_bytes() == damaged
            refused += 1
            continue
        with store:
            snapshot = store.load()
            assert snapshot is not None
            assert equal(snapshot.state, STATE)
            assert (snapshot.position, snapshot.counts) == ({"row": 20}, Counts(20))
    assert refused > 30


def test_a_damaged_snapshot_fails_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    for change in (
        "learned = 9",
        "position = '{}'",
        "state = '{}'",
        "state = x'00ff'",
        "committed_at = 'then'",
    ):
        path.unlink(missing_ok=True)
        make(path)
        other = sqlite3.connect(path)
        other.execute(f"UPDATE shards SET {change}")
        other.commit()
        other.close()
        refuses(path, StoreDamagedError)
        with pytest.raises(StoreDamagedError):
            Store.snapshot(path)


WRITER = """
import sys
import numpy as np
from streamdp.guarantees import PureDP
from streamdp.store import Counts, Store
with Store(sys.argv[1], "trips", "print", cap=PureDP(1e9)) as store:
    last = store.load()
    done = last.counts.learned if last else 0
    print("open", flush=True)
    while True:
        subjects = [f"s{i % 97}" for i in range(done, done + 50)]
        assert store.ledger.admit_many(subjects, PureDP(1)).all()
        done += 50
        store.commit({"theta": np.full(3000, float(done))}, {"row": done}, Counts(done))
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_sigkill_loses_no_commit_and_counts_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    rng = random.Random(3)
    reached = 0
    for _ in range(4):
        process = start_writer(path)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreBusyError):
            Store(path, "trips", "print", cap=CAP)
        time.sleep(rng.uniform(0.05, 0.4))
        running = Store.snapshot(path)  # readers need no lock
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with Store(path, "trips", "print", cap=CAP) as store:
            last = store.load()
            if last is None:
                continue
            done = last.counts.learned
            assert done >= max(reached, 0 if running is None else running.counts.learned)
            reached = done
            assert last.position == {"row": done}
            assert last.state["theta"].tolist() == [float(done)] * 3000
            assert store.ledger is not None
            for i in range(97):
                assert store.ledger.spent(f"s{i}").records == math.ceil((done - i) / 97)
    assert reached > 0


def test_two_stores_in_one_process_are_refused_and_a_dropped_one_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    store = Store(path, "trips", "print")
    with pytest.raises(StoreBusyError):
        Store(path, "trips", "print")
    store.close()
    store.close()
    dropped = Store(path, "trips", "print")
    del dropped
    gc.collect()
    Store(path, "trips", "print").close()


def test_a_crash_while_creating_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    (tmp_path / "job.db.new").write_bytes(b"half a database")
    (tmp_path / "job.db.new-journal").write_bytes(b"half a journal")
    make(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.db", "job.db.key", "job.db.lock"]
