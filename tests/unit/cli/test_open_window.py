"""A file that ends within a window: run and status say how many records wait, and the next run reads them again."""

import io
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from streamdp.config.file import FileSourceConfig
from streamdp.config.job import NOTHING, load_config
from streamdp.data.records import WHOLE
from streamdp.errors import NotAvailableError
from streamdp.runtime.display import RunnerDisplay
from streamdp.serving.predict_file import predict_file
from streamdp.serving.publish import committed
from streamdp.serving.snapshots import restore
from tests.support.commands import Quick

JOB = """
job: late
source: {type: csv, path: rows.csv}
schema:
  features: {a: [0, 1]}
  target: {column: y, bounds: [0, 1]}
  subject: who
model: {estimator: WindowedRegressor, budget: "eps=8,delta=1e-6", window: 100}
"""
MODEL = 'trust: process, budget: "eps=8,delta=1e-6", batch_size: 300'


def test_the_last_event_and_status_count_the_records_of_an_open_window(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    rows = [f"{i % 7 / 7:.3f},{i % 5 / 5},p{i % 100}" for i in range(300)]
    for size, waiting in ((3, {"waiting": 3}), (203, {"waiting": 3}), (300, {})):
        (tmp_path / "rows.csv").write_text("\n".join(["a,y,who", *rows[:size]]) + "\n")
        code, out, said = quick("run", "job.yaml")
        assert code == 0, said
        end = json.loads(out.splitlines()[-1])
        learned = size - waiting.get("waiting", 0)
        assert (code, end["event"], end["learned"]) == (0, "end", learned)
        assert {name: value for name, value in end.items() if name == "waiting"} == waiting
        assert ("3 users are too few" in said) == bool(waiting)
        found = json.loads(quick("status", "late.db", "--json")[1])
        assert (found["learned"], found["waiting"]) == (learned, size - learned)
        for command in (
            ("export", "job.yaml", "--to", "json"),
            ("weights", "late.db"),
            ("weights", "late.db", "--json"),
        ):
            code, out, said = quick(*command)
            assert (code, "nothing is learned yet" in said, out == "") == (6 * (not learned), not learned, not learned)
        predicted, rows_to_predict = io.BytesIO(), FileSourceConfig(path=str(tmp_path / "rows.csv"))
        with nullcontext() if learned else pytest.raises(NotAvailableError, match="nothing is learned yet"):
            predict_file(committed(str(tmp_path / "late.db")), rows_to_predict, predicted)
        assert len(predicted.getvalue().splitlines()) == (size + 1 if learned else 0)


@pytest.mark.parametrize("trust", ["window", "process", "nobody"])
def test_a_followed_file_says_what_it_waits_for_and_status_shows_a_job_that_runs(
    place: str, tmp_path: Path, quick: Quick, trust: str
) -> None:
    """The run was silent until its first window ended, and status said that there is nothing to show (6)."""
    text = JOB.replace('estimator: WindowedRegressor, budget: "eps=8,delta=1e-6", window: 100', f"trust: {trust}")
    text = text.replace("path: rows.csv", "path: rows.csv, follow: true")
    (tmp_path / "job.yaml").write_text(f"store: {json.dumps(place)}{text}")
    rows = [f"{i % 7 / 7:.3f},{i % 5 / 5},p{i % 100}" for i in range(50)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y,who", *rows]) + "\n")
    with load_config(tmp_path / "job.yaml").open_store(NOTHING) as store:  # it runs, and has no commit yet
        store.note_waiting({WHOLE: 7})
        shown = json.loads(quick.output("status", place, "--json"))
        assert (shown["job"], shown["commits"], shown["committed_at"], shown["learned"]) == ("late", 0, None, 0)
        assert shown["waiting"] == 7
        waits = [doubt for doubt in shown["doubts"] if "the first batch or window takes" in doubt]
        assert len(waits) == (trust != "nobody")
        assert all(doubt.endswith("before its end; 7 wait") for doubt in waits)
        assert "commits:      0" in quick.output("status", place)
        assert "no commit yet" in quick.error(6, "weights", place)
    code, _, said = quick("run", "job.yaml", "--max-records", "50")
    assert code == 0, said
    assert ("rows.csv is followed: the first batch or window takes" in said) == (trust != "nobody")


def test_a_run_shows_no_answers_of_a_batch_that_is_open_at_its_commit(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash these people would answer again: they would be shown twice, and be charged once."""
    text = JOB.replace('estimator: WindowedRegressor, budget: "eps=8,delta=1e-6", window: 100', MODEL)
    (tmp_path / "job.yaml").write_text(text + 'validation: {budget: "eps=4,delta=1e-6"}\ncommit: {records: 400}\n')
    rows = [f"{i % 7 / 7:.3f},{i % 5 / 5},p{i}" for i in range(3000)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y,who", *rows]) + "\n")
    shown, kept = [], []
    monkeypatch.setattr(RunnerDisplay, "judged", lambda self, quality: shown.append(quality))
    monkeypatch.setattr(RunnerDisplay, "committed", lambda self, snapshot, _: kept.append(restore(snapshot).quality))
    assert quick("run", "job.yaml")[0] == 0
    assert shown == kept
    assert shown[-1].total.answers > 0
