"""The newcomer's first hour on real data, on some rows of two tasks: a small form of `benchmarks.newcomer`."""

from pathlib import Path

import pytest

from benchmarks.newcomer import draw, messy_hour, play, prepared, tasks

pytestmark = pytest.mark.campaign


def test_one_answer_gives_a_model_near_the_one_without_privacy(tmp_path: Path) -> None:
    """At eps=1, by `init --trust window` and `run`: log loss .44 beside .43 and .66, and .442 at most in 12 draws."""
    task = next(task for task in tasks() if task.name == "insured wives")
    beside = prepared(task, tmp_path)
    error, verdict = draw(tmp_path, beside)
    assert beside.linear < error < 1.1 * beside.linear < beside.constant
    assert verdict == "better"


def test_a_newcomer_gets_a_model_from_each_table(tmp_path: Path) -> None:
    for place, task in enumerate(tasks()):
        folder = tmp_path / str(place)
        folder.mkdir()
        found = play(task, folder)
        assert found["verdict"] == "not worse than the constant", found


@pytest.mark.parametrize("name", ["German shop", "people with many rows"])
def test_a_messy_file_becomes_predictions_and_an_export_without_other_edits(tmp_path: Path, name: str) -> None:
    found = messy_hour(name, tmp_path)
    assert (found["wrong"], found["edits"] <= 3) == (0, True)
    assert found["predicted"] > 0.95
