"""Files to publish to: one that cannot be written is a warning, and is tried again, as other sinks are."""

import errno
import json
import threading
from pathlib import Path

import pytest

from connectors.sinks import Message
from streamdp.database import durable
from streamdp.serving import publish
from streamdp.serving.publish import FileSink, Outlet
from tests.support.commands import Quick
from tests.support.waiting import wait_until

FLAGS = ["--target", "y", "--target-bounds", "0:1", "--feature", "x=0:1", "--trust", "process", "--budget", "eps=1"]
REASONS = {
    errno.ENOSPC: "No space left on device",
    errno.EIO: "Input/output error",
    errno.EDQUOT: "Disk quota exceeded",
}


@pytest.mark.parametrize("code", REASONS)
def test_a_run_goes_on_if_the_disk_of_a_published_file_is_full(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    full = True
    really = durable.os.replace

    def replace(draft: str, path: str) -> None:
        if full and Path(path).name == "model.json":
            raise OSError(code, REASONS[code])
        really(draft, path)

    monkeypatch.setattr(durable.os, "replace", replace)
    (tmp_path / "data.csv").write_text("x,y\n" + "0.5,0.5\n" * 100)
    flags = [*FLAGS, "--publish", "model.json", "--set", "commit.records=10"]
    status, _, err = quick("run", "data.csv", *flags)
    assert status == 0, err
    assert err.count(f"cannot publish to model.json, trying again: {REASONS[code]}") == 1
    assert "model.json does not have commit" in err
    shown = json.loads(quick.output("status", "data.db", "--json"))
    assert [(one["name"], one["commit"], one["reason"]) for one in shown["sinks"]] == [("model.json", 0, REASONS[code])]
    assert list(tmp_path.glob(".model*")) == []
    full = False
    assert "publish" not in "".join(quick("run", "data.csv", *flags)[1:])
    assert json.loads((tmp_path / "model.json").read_text())["counts"]["learned"] == shown["learned"] == 100


def test_a_file_that_can_be_written_again_gets_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_WAIT_S", 0.01)
    path, told, noted = tmp_path / "gone" / "model.json", [], []
    sending = Outlet(str(path), told.append, lambda name, sent, reason: noted.append((sent[0], reason)))
    for commit in range(1, 4):
        sending.offer(Message("j", commit, float(commit), b'{"commit": %d}' % commit))
    wait_until(lambda: len(told) == 1)
    path.parent.mkdir()
    wait_until(lambda: len(told) == 2)
    sending.close()
    assert json.loads(path.read_text()) == {"commit": 3}
    assert path.stat().st_mode & 0o777 == 0o644
    assert noted[0][1] == "No such file or directory"
    assert noted[-1] == (3, "")


def test_workers_that_publish_to_one_file_leave_the_later_commit(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    mine, theirs = FileSink(str(path)), FileSink(str(path))

    def message(commit: int, at: float, job: str = "j") -> Message:
        return Message(job, commit, at, json.dumps({"job": job, "commit": commit, "committed_at": at}).encode())

    threads = [
        threading.Thread(target=sink.send, args=[message(commit, float(commit))])
        for commit in range(20, 0, -1)
        for sink in (mine, theirs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert json.loads(path.read_text())["commit"] == 20
    mine.send(message(2, 21.0))  # a store that was made anew
    assert json.loads(path.read_text())["commit"] == 2
    mine.send(message(1, 3.0, "other"))
    assert json.loads(path.read_text())["job"] == "other"
    for text in ("", "[]", '{"job": "j", "commit": "9", "committed_at": 99}'):
        path.write_text(text)
        mine.send(message(1, 1.0))
        assert json.loads(path.read_text())["commit"] == 1
