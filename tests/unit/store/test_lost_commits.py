"""A store that has lost commits is recognised, refused, and goes on only if the user says so."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdp.database import last_commit
from streamdp.database.last_commit import LastCommit, LastCommitFile
from streamdp.errors import StoreDamagedError, StoreError, StoreLostError, StreamDPError
from streamdp.privacy.guarantees import PureDP
from streamdp.store.reading import begun
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

CAP = PureDP(100)
COMMITS = 12
SUBJECTS = [f"{i}-{j}" for i in range(COMMITS) for j in range(3)]


def learn(store: Store, commits: int) -> None:
    last = store.load()
    done = 0 if last is None else last.counts.learned
    for i in range(done, done + commits):
        store.ledger.admit_many([*SUBJECTS[3 * i : 3 * i + 3], "all"], PureDP(1))
        store.commit({"theta": [float(i)] * 200}, {"row": i + 1}, Counts(i + 1))


def open_store(path: Path, **options: Any) -> Store:
    return Store(path, "trips", "print", cap=CAP, **options)


def crashed(folder: Path, checkpointed: int | None = None) -> Path:
    """The files as a crash leaves them, after `COMMITS` commits; the log was moved after so many of them."""
    live = folder / "live" / "job.db"
    live.parent.mkdir()
    with open_store(live) as store:
        learn(store, checkpointed or 0)
        if checkpointed is not None:
            store._connection.driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        learn(store, COMMITS - (checkpointed or 0))
        shutil.copytree(live.parent, folder / "crashed")
    return folder / "crashed" / "job.db"


def content(path: Path) -> tuple[Any, ...]:
    with open_store(path) as store:
        snapshot = store.load()
        spent = [store.ledger.spent(subject).records for subject in [*SUBJECTS, "all"]]
        return snapshot.seq, snapshot.position, snapshot.counts, snapshot.state, spent


WHOLE = (COMMITS, {"row": COMMITS}, Counts(COMMITS), {"theta": [COMMITS - 1.0] * 200}, [1] * 3 * COMMITS + [COMMITS])


@pytest.mark.parametrize("checkpointed", [None, 7])
@pytest.mark.slow
def test_damage_to_any_file_is_refused_or_harmless(tmp_path: Path, checkpointed: int | None) -> None:
    """Flip a bit of a file, cut it, or delete it. Without the number of the last commit, damage to the log lost all."""
    whole = crashed(tmp_path, checkpointed).parent
    names = ["job.db", "job.db-wal", "job.db.key", "job.db.last", "job.db-wal"]
    rng, found = random.Random(4), Counter[str]()
    for trial in range(50):
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(whole, work)
        name = names[trial % len(names)]
        damaged = bytearray((work / name).read_bytes())
        match rng.choice(["flip", "flip", "cut", "delete"]):
            case "flip":
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                (work / name).write_bytes(damaged)
            case "cut":
                (work / name).write_bytes(damaged[: rng.randrange(len(damaged))])
            case _:
                (work / name).unlink()
        try:
            after = content(work / "job.db")
        except StreamDPError as error:
            found[type(error).__name__] += 1
        else:
            assert after == WHOLE, name
            found["harmless"] += 1
    assert found["StoreLostError"] > 10
    assert found["harmless"] > 5


def older(path: Path) -> None:
    copy = path.with_name("copy.db")
    with open_store(copy, key=bytes.fromhex((path.parent / "job.db.key").read_text())) as store:
        learn(store, 3)
    copy.replace(path)
    path.with_name("job.db-wal").unlink()
    path.with_name("job.db-shm").unlink()


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.with_name("job.db-wal").unlink(),
    lambda path: path.with_name("job.db-wal").write_bytes(b""),
    lambda path: [path.unlink(), path.with_name("job.db-wal").unlink()],
    lambda path: [path.unlink(), path.with_name("job.db-wal").unlink(), path.with_name("job.db.last").unlink()],
    older,
]


@pytest.mark.parametrize("damage", range(len(DAMAGES)))
@pytest.mark.slow
def test_a_loss_is_accepted_by_the_user_only_and_is_never_forgotten(tmp_path: Path, damage: int) -> None:
    path = crashed(tmp_path)
    DAMAGES[damage](path)
    for _ in range(2):
        with pytest.raises(StoreLostError, match="--accept-loss"):
            open_store(path)
    if path.exists() and path.with_name("job.db.last").exists():
        with pytest.raises(StoreLostError):  # its statement would be too small
            Store.snapshot(path)
    with open_store(path, accept_loss=True) as store:
        assert store.losses == 1
        learn(store, 1)
    for accept in (False, True):  # to accept again what is whole changes nothing
        with open_store(path, accept_loss=accept) as store:
            assert store.losses == 1
    path.unlink()
    with pytest.raises(StoreLostError):
        open_store(path)
    with open_store(path, accept_loss=True) as store:
        assert store.losses == 2


def test_a_loss_is_known_of_a_job_that_does_not_run_again(tmp_path: Path) -> None:
    path, copied = tmp_path / "job.db", tmp_path / "copy.db"
    for job in ("other", "trips", "trips"):
        shutil.copy(path, copied) if path.exists() else None
        with Store(path, job, "print") as store:
            assert store.commit({"theta": [0.5]}, {}, Counts(1)).losses == 0
    copied.replace(path)
    Store(path, "trips", "print", accept_loss=True).close()
    assert (Store.snapshot(path, "other").losses, begun(path, "other").losses) == (1, 1)


def test_a_crash_before_the_number_is_written_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    last = path.with_name("job.db.last")
    with open_store(path) as store:
        learn(store, 3)
        before = last.read_bytes()
        learn(store, 1)
    last.write_bytes(before)
    with open_store(path) as store:
        assert store.losses == 0
        learn(store, 1)
    assert last.read_bytes() != before


def test_a_commit_whose_number_cannot_be_written_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is repeated, finds that the database has the commit, and writes the number."""
    path = tmp_path / "job.db"
    file = LastCommitFile(str(path))
    with open_store(path) as store:
        learn(store, 1)
        before = file.read()

        def fails(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(LastCommitFile, "write", fails)
            for _ in range(2):
                with pytest.raises(StoreError, match="No space left"):
                    store.commit({}, {"row": 2}, Counts(2))
        assert file.read() == before
        store.commit({}, {"row": 2}, Counts(2))
        assert file.read() == LastCommit(before.number + 1)
        assert [commit.seq for commit in Store.history(path)] == [1, 2]


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_that_a_removed_file_has(tmp_path: Path, replaced: bool) -> None:
    """Before, a service went on and answered; its records and their spends were in no file."""
    path = tmp_path / "job.db"
    with open_store(path) as store:
        learn(store, 2)
        shutil.copy(path, tmp_path / "copy")
        path.unlink()
        if replaced:
            (tmp_path / "copy").rename(path)
        with pytest.raises(StoreError, match="removed or replaced while it was open"):
            learn(store, 1)
    assert replaced or not path.exists()


def test_the_file_keeps_the_newest_of_several_workers_and_survives_a_write_that_is_cut_off(tmp_path: Path) -> None:
    file = LastCommitFile(str(tmp_path / "job.db"))
    assert file.read() is None
    for number in (4, 7, 6, 5):
        file.write(LastCommit(number))
    assert file.read() == LastCommit(7)
    file.write(LastCommit(8))
    whole = Path(file.path).read_bytes()
    assert file.read() == LastCommit(8)
    Path(file.path).write_bytes(b"9 0 0123" + whole[8:])
    assert file.read() == LastCommit(7)
    Path(file.path).write_bytes(b"9 0 0123")
    with pytest.raises(StoreDamagedError):
        file.read()


def test_the_log_is_moved_into_the_database_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.db"
    for seconds, moved in ((1e9, False), (0.0, True)):
        monkeypatch.setattr(last_commit, "CHECKPOINT_S", seconds)
        with open_store(path) as store:
            learn(store, 1)
            last = store.load()
            alone = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)  # without the log
            (row,) = alone.execute("SELECT learned FROM shards").fetchall() or [(0,)]
            alone.close()
            assert (row == (last.counts.learned,)) is moved


def test_a_crash_after_the_key_was_made_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "job.db"
    open_store(path).close()
    path.rename(path.with_name("job.db.new"))
    path.with_name("job.db.last").unlink()
    with open_store(path) as store:
        assert store.losses == 0


def test_a_read_during_the_first_commit_of_another_process_finds_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: jobs that began at the same time in one file found its last commit damaged, now and then."""
    file, newest, read = LastCommitFile(str(tmp_path / "job.db")), last_commit.newest, []
    Path(file.path).touch()

    def then_written(descriptor: int) -> LastCommit | None:
        found = newest(descriptor)
        if not read:
            read.append(found)
            file.write(LastCommit(1))
        return found

    monkeypatch.setattr(last_commit, "newest", then_written)
    assert (file.read(), read) == (LastCommit(1), [None])
