"""What a run shows: the same facts as JSON lines and as a table on a terminal."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from streamdp.data.records import Shard
from streamdp.runtime.display import RunnerDisplay, WorkerDisplay
from streamdp.runtime.runner import Progress
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.validation.quality import UNKNOWN, Quality, Stretch
from streamdp.validation.sums import Estimate

HOLDOUT = {"accuracy": 0.75, "log_loss": 0.5, "rows": 10}
A, B = Shard("t", 0), Shard("t", 1)


def snapshot(seq: int, learned: int) -> Snapshot:
    return Snapshot("job", "f", "", seq, 1000.0 + seq, Counts(learned, 2, 1), {}, {})


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Without times, which depend on the machine."""
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in found:
        assert line.pop("seconds") >= 0
        assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
        assert line.pop("records_per_second", 0) >= 0
    return found


def drawn(display: RunnerDisplay) -> list[list[str]]:
    """The words of each row."""
    console = Console(file=io.StringIO(), width=120)
    console.print(display.table())
    return [line.split() for line in console.file.getvalue().splitlines()]


def terminal(monkeypatch: pytest.MonkeyPatch, name: str = "stdout") -> io.StringIO:
    """Standard output or error, as a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True)
    monkeypatch.setattr(sys, name, file)
    return file


def run_of_a_runner(display: RunnerDisplay) -> None:
    display.resumed(snapshot(4, 100))
    display.committed(snapshot(4, 100), HOLDOUT)
    display.progress(Progress(Counts(1500, 2, 1), Counts(1400, 2, 1)))
    display.committed(snapshot(5, 1400), HOLDOUT)


def test_a_runner_in_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with RunnerDisplay() as display:
        run_of_a_runner(display)
        display.committed(snapshot(6, 1500), None)
        display.finished(Counts(1500, 2, 1), "done")
    assert lines(capsys) == [
        {
            "event": "commit",
            "learned": 1400,
            "refused": 2,
            "dead_letters": 1,
            "left_out": 0,
            "commit": 5,
            "committed_at": 1005.0,
        }
        | {"holdout": HOLDOUT},
        {
            "event": "commit",
            "learned": 1500,
            "refused": 2,
            "dead_letters": 1,
            "left_out": 0,
            "commit": 6,
            "committed_at": 1006.0,
        },
        {"event": "end", "learned": 1500, "refused": 2, "dead_letters": 1, "left_out": 0, "reason": "done"},
    ]


def test_a_runner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = terminal(monkeypatch)
    with RunnerDisplay() as display:
        run_of_a_runner(display)
        rows = drawn(display)
        assert ["learned", "1,500"] in rows
        assert ["committed", "1,403"] in rows
        assert ["holdout", "log", "loss", "(public)", "0.5000"] in rows
        assert rows[0][:2] == ["state", "running,"]
        display.finished(Counts(1600, 2, 1), "stopped")
        assert drawn(display)[0][:2] == ["state", "stopped,"]
    assert "learned" in file.getvalue()
    assert "{" not in file.getvalue()


def test_a_terminal_shows_the_share_the_spends_and_what_to_do_next(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    with RunnerDisplay(lambda: 0.25, {"spends": "a record: eps=1"}, "streamdp weights late.db") as display:
        run_of_a_runner(display)
        assert ["done", "25", "%"] in drawn(display)
        assert ["spends", "a", "record:", "eps=1"] in drawn(display)
        assert not any(row[0] == "next" for row in drawn(display))
        display.finished(Counts(1600, 2, 1), "done")
        assert ["next", "streamdp", "weights", "late.db"] in drawn(display)


def run_of_a_worker(display: WorkerDisplay) -> None:
    display.metrics(9100)
    display.assigned({A: Counts(), B: Counts(7, 0, 0)})
    display.on_retry("store", "no answer")
    display.committed({A: Part({}, {"index": 9}, Counts(1234, 2, 3))}, 0.01)
    display.measured(snapshot(5, 1400), HOLDOUT)


def test_a_worker_in_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkerDisplay(lambda positions: dict.fromkeys(positions, 5)) as display:
        run_of_a_worker(display)
        display.measured(snapshot(5, 1400), None)
        display.finished(1239, "done")
    counts = {"learned": 1234, "refused": 2, "dead_letters": 3, "left_out": 0}
    assert lines(capsys) == [
        {"event": "metrics", "url": "http://127.0.0.1:9100/metrics"},
        {"event": "assigned", "shards": ["t/0", "t/1"]},
        {"event": "store", "message": "no answer"},
        {"event": "commit", "commit_seconds": 0.01, "shards": {"t/0": counts | {"position": {"index": 9}, "lag": 5}}},
        {"event": "holdout", "learned": 1400, "refused": 2, "dead_letters": 1, "left_out": 0, "holdout": HOLDOUT},
        {"event": "end", "records": 1239, "reason": "done"},
    ]


def test_a_worker_ends_with_a_warning_if_many_records_do_not_fit() -> None:
    with WorkerDisplay(lambda positions: {}) as display:
        assert display.conclusions() == []
        display.assigned({A: Counts(95, 9, 5), B: Counts()})
        assert display.conclusions() == []
        display.committed({B: Part({}, {"index": 9}, Counts(0, 0, 20))}, 0.01)
        (said,) = display.conclusions()
    assert said.startswith("warning: 25 of 129 rows (19 %) were dropped because they do not fit the schema")


def test_a_worker_prints_the_same_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = terminal(monkeypatch)
    with WorkerDisplay(lambda positions: {}) as display:
        run_of_a_worker(display)
    assert [json.loads(line)["event"] for line in file.getvalue().splitlines()] == [
        *("metrics", "assigned", "store", "commit", "holdout")
    ]


def test_private_validation_and_drift_in_json_lines_and_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Estimate(None, None, None)
    empty = Stretch(0, nothing, nothing, nothing)
    calm = Quality("error rate", 1.0, empty, empty, UNKNOWN, 0, None)
    risen = replace(calm, drifts=1, last_drift=1300)

    def shown(display: RunnerDisplay | WorkerDisplay) -> None:
        display.judged(calm)
        display.judged(risen)
        display.judged(risen)

    with RunnerDisplay() as display:
        shown(display)
        display.committed(snapshot(5, 1400), None)
        display.finished(Counts(1400, 0, 0), "done", ["theta sits on the border"])
    drift, commit, end = lines(capsys)
    assert (drift["event"], drift["records"], drift["drifts"]) == ("drift", 1300, 1)
    assert commit["validation"]["verdict"] == UNKNOWN
    assert end["validation"] == risen.sentence()
    assert end["doubts"] == ["theta sits on the border"]
    assert display.conclusions() == []  # the last line has it
    terminal(monkeypatch, "stderr")
    assert "the stream has changed" in display.conclusions()[0]
    with WorkerDisplay(lambda positions: {}) as worker:
        shown(worker)
        worker.finished(5, "done")
    found = lines(capsys)
    assert [line["event"] for line in found] == ["validation", "drift", "validation", "validation", "end"]
    terminal(monkeypatch)
    assert any("(private)" in row for row in drawn(display))
    assert any("doubt" in row for row in drawn(display))
