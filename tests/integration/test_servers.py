"""The servers that the other tests rely on: they answer, they refuse, and they keep what they promised to keep."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from servers.postgres import Postgres
from servers.process import Process, ServerError, free_ports
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S, wait_until


def test_postgres_flushes_each_commit(postgres: Postgres) -> None:
    """`unit/store/test_store.py` kills a server."""
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_a_failure_to_start_shows_the_log(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "print('no such setting'); raise SystemExit(3)"], tmp_path / "log")
    with pytest.raises(ServerError, match="status 3:\nno such setting"):
        process.wait_until(lambda: False, "it", PATIENCE_S)


def test_no_two_processes_get_the_same_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has not begun to listen."""
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    program = "import sys; from pathlib import Path; from servers.process import free_ports as f\n"
    program += "print(f(Path(sys.argv[1]), ['a'])['a'], flush=True); input()"
    command = [sys.executable, "-c", program, str(folders[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        theirs = int(other.stdout.readline())
        drawn = iter([theirs, theirs, *range(20_000, 32_000)])
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        first, second = free_ports(folders[0], ["a", "b"]).values()
        assert len({first, second, theirs}) == 3
        other.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_no_server_outlives_its_parent(tmp_path: Path) -> None:
    program = """
import sys, threading, time
from pathlib import Path
from servers.process import Process
def start():
    print(Process(["sleep", "60"], Path(sys.argv[1])).pid, flush=True)
thread = threading.Thread(target=start)  # a thread that ends does not take the server along
thread.start()
thread.join()
print("ended", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        server = int(parent.stdout.readline())
        assert parent.stdout.readline() == b"ended\n"
        state = Path(f"/proc/{server}/stat")
        wait_until(lambda: " (sleep) " in state.read_text())  # first it is the program that starts it
        parent.send_signal(signal.SIGKILL)

    def gone() -> bool:
        try:
            return ") Z " in state.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(gone)
