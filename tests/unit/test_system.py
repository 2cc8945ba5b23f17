"""What depends on the operating system; and what works, and what is refused, on one without locks, owners and forks."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamdp import system
from tests.support.paths import with_root

WINDOWS = """
import os, sys
sys.modules |= dict.fromkeys(["fcntl", "pwd", "grp", "resource", "termios"])
for name in ("O_NOFOLLOW", "O_CLOEXEC", "register_at_fork", "fork", "geteuid", "getuid", "fdatasync", "pread", "pwrite",
             "fchmod", "getpgid", "killpg"):
    delattr(os, name)
import streamdp
from streamdp.errors import NotAvailableError
from streamdp.runtime.runner import Runner

def refused(make):
    try:
        make()
    except NotAvailableError as error:
        return "locks of files" in str(error)

model = streamdp.LDPASGDRegressor(features={"a": (0, 1)}, target=(0, 2))
for i in range(50):
    model.learn_one({"a": i / 50}, 1.0)
model.save("model.json")
assert streamdp.load("model.json").n_seen == 50
assert streamdp.PanPrivateRegressor(features=["a"], batch_size=10).predict_one({"a": 1}) == 0
from streamdp.store.store import Store
from connectors.letterfile import DeadLetterFile
assert refused(lambda: Store("people.db", "job", "print"))
assert refused(lambda: DeadLetterFile("letters.jsonl"))
assert sorted(os.listdir()) == ["model.json"], os.listdir()
print("works")
"""


@pytest.mark.slow
def test_without_locks_owners_and_forks_models_learn_and_stores_are_refused(tmp_path: Path) -> None:
    """Windows has none of the names that are taken away."""
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS], cwd=tmp_path, env=with_root(), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "works", done.stderr


def test_a_lock_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    ours, theirs = (os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    system.lock(ours)
    for shared in (False, True):
        with pytest.raises(BlockingIOError):
            system.lock(theirs, shared=shared, wait=False)
    system.lock(ours, shared=True)
    system.lock(theirs, shared=True, wait=False)
    system.unlock(ours)
    system.lock(theirs, wait=False)
    os.close(theirs)
    system.lock(ours, wait=False)
    os.close(ours)


def test_files_are_flushed_through_the_drive_where_fsync_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    macos = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda descriptor, command: asked.append(command))
    with (tmp_path / "file").open("wb") as file:
        system.sync(file.fileno())
        monkeypatch.setattr(system, "fcntl", macos)
        system.sync(file.fileno())
        monkeypatch.setattr(system, "fcntl", None)
        monkeypatch.delattr(os, "fdatasync")
        system.sync(file.fileno())
    assert asked == [51]


def test_only_this_user_and_root_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [system.is_trusted(owner) for owner in (0, 1000, 1001)] == [True, True, False]
