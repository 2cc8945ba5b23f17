"""Each run of the speed benchmark has a line, and a slowdown is said."""

from dataclasses import replace
from pathlib import Path

from benchmarks.shared.track import run_of, runs, track


def test_a_slowdown_is_said_beside_the_newest_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    first = run_of("0.1.0", "a", {"learn": 4.0, "predict": 2.0}, {"files": 100.0, "old": 1.0})
    assert track(first, path) == []
    assert track(replace(first, date="2026-12-01T00:00:00", beside={"learn": 2.0}, rates={"files": 99.0}), path) == [
        f"warning: slower: learn: 0.50 times the speed of {first.date[:10]} ({first.commit})",
        f"files: 0.99 times the speed of {first.date[:10]} ({first.commit})",
    ]
    other = replace(first, machine="b", beside={"learn": 2.1, "predict": 1.0}, rates={"files": 1.0})
    assert (
        track(other, path)
        == [  # of another machine, rates without a rival say nothing
            f"warning: slower: predict: 0.50 times the speed of {first.date[:10]} ({first.commit})",
            f"learn: 1.05 times the speed of 2026-12-01 ({first.commit})",
        ]
    )
    assert [run.machine for run in runs(path)] == ["a", "a", "b"]
    assert len(first.commit) == 9
