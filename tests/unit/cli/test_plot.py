"""`streamdp plot` draws what is committed, in three formats; `weights` names baselines."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tests.support.commands import Quick

JOB = """job: late
source: {type: csv, path: d.csv}
schema:
  features: {delay: [-30, 60], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: [false, true]}
model: {estimator: LDPASGDClassifier, budget: eps=1}
commit: {records: 500}
holdout: holdout.csv
"""


@pytest.fixture
def trained(tmp_path: Path, quick: Quick) -> Path:
    rng = np.random.default_rng(0)
    delays = rng.uniform(-30, 60, 2_500)
    origins = rng.choice(["EWR", "JFK", "LGA"], 2_500)
    lines = [f"{delay:.1f},{origin},{delay > 10}" for delay, origin in zip(delays, origins, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["delay,origin,late", *lines]) + "\n")
    (tmp_path / "holdout.csv").write_text("\n".join(["delay,origin,late", *lines[:100]]) + "\n")
    (tmp_path / "job.yaml").write_text(JOB)
    out = quick.output("run", "job.yaml")
    (tmp_path / "run.jsonl").write_text(out)
    return tmp_path


def test_weights_name_their_baselines(trained: Path, quick: Quick) -> None:
    out = quick("weights", "late.db")[1].splitlines()
    assert out[0].startswith("delay")
    assert "beside" not in out[0]
    assert all(line.endswith("beside origin=EWR") for line in out[1:3])
    rows = json.loads(quick("weights", "late.db", "--json")[1])
    assert [row.get("baseline") for row in rows] == [None, "origin=EWR", "origin=EWR", None]


def test_commands_that_read_a_store_take_the_job_that_names_it(trained: Path, quick: Quick) -> None:
    for command in (["status"], ["statement"], ["weights", "--json"], ["export", "--to", "json"]):
        assert quick(*command, "job.yaml") == quick(*command, "late.db")
    assert quick("weights", "job.yaml", "--job", "other")[0] == 4
    assert "a model and no statistics" in quick.error(6, "stats", "job.yaml")
    assert quick("ledger", "status", "job.yaml") == quick("ledger", "status", "late.db")
    assert "none.yaml" in quick.error(2, "weights", "none.yaml")


@pytest.mark.slow
def test_pictures_in_three_formats(trained: Path, quick: Quick) -> None:
    for name in ("error.png", "error.svg", "error.html"):
        code, out, err = quick("plot", "job.yaml", "-o", name, "--log", "run.jsonl")
        assert (code, out, err) == (0, "", f"streamdp: wrote {name}\n")
    pixels = matplotlib.image.imread(trained / "error.png")
    assert pixels.shape[0] > 500
    assert np.std(pixels) > 0.05  # not empty
    ET.parse(trained / "error.svg")
    page = (trained / "error.html").read_text()
    assert "epsilon = 1" in page
    found = json.loads(quick("status", "late.db", "--json")[1])["doubts"]
    assert found
    assert all(doubt in page for doubt in found)
    assert "<script" not in page
    assert not re.search(r'(src|href)="http', page)  # it loads nothing


def test_the_picture_has_the_measures_of_the_run_if_they_are_given(trained: Path, quick: Quick) -> None:
    from streamdp.serving.plots import draw, measured
    from streamdp.serving.publish import committed
    from streamdp.store.store import Store

    lines = (trained / "run.jsonl").read_text().splitlines()
    errors = measured(["no json", "{}", *lines])
    assert [n for n, _ in errors["accuracy"]] == [500, 1000, 1500, 2000, 2500]
    model, history = committed(str(trained / "late.db")), Store.history(trained / "late.db")
    assert len(draw(model, history, errors, 0.95).axes) == 3
    figure = draw(model, history, {}, 0.95)
    assert len(figure.axes) == 2
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["delay", "origin=JFK", "origin=LGA"]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [500, 1000, 1500, 2000, 2500]


def test_the_axes_of_one_commit_have_whole_numbers(trained: Path) -> None:
    from streamdp.serving.plots import draw
    from streamdp.serving.publish import committed
    from streamdp.store.store import Store

    history = Store.history(trained / "late.db")[-1:]
    figure = draw(committed(str(trained / "late.db")), history, {"accuracy": [(2500, 0.9)]}, 0.95)
    figure.canvas.draw()
    for axis, at, high in ((figure.axes[1], 2500, 0.9), (figure.axes[2], 1, 2500)):
        low, right = axis.get_xlim()
        shown = [tick for tick in axis.get_xticks() if low <= tick <= right]
        assert at in shown
        assert all(tick == int(tick) for tick in shown)
        assert axis.get_ylim()[0] <= 0 < high <= axis.get_ylim()[1]


def test_what_cannot_be_drawn(trained: Path, quick: Quick) -> None:
    assert quick("plot", "job.yaml", "-o", "x.pdf")[::2] == (
        2,
        "streamdp: x.pdf: expected a file that ends in .png, .svg or .html\n",
    )
    assert quick("plot", "job.yaml", "-o", "no/x.png")[0] == 4
    assert quick("plot", "job.yaml", "--log", "nowhere.jsonl")[0] == 2


def test_names_are_drawn_as_they_are(tmp_path: Path, quick: Quick) -> None:
    """Two signs of dollars began a formula, which ended in an error; a legend left out names with a first _."""
    names = ["$\\frac{", "_none", "a$b$c", "<script>"]
    (tmp_path / "d.csv").write_text("\n".join(["x", *(names * 100)]) + "\n")
    schema = {"features": {"x": {"categories": names}}}
    job = {"job": "j", "source": {"type": "csv", "path": "d.csv"}, "schema": schema}
    job |= {"statistics": {"of $\\bad{$": {"count": "x"}, "h": {"proportion": "x"}}, "model": {"trust": "process"}}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    quick.output("run", "job.yaml")
    for name in ("p.svg", "p.html", "p.png"):
        assert quick("plot", "job.yaml", "-o", name)[0] == 0
    page = (tmp_path / "p.html").read_text()
    assert "<script" not in page
    for name in (*names, "of $\\bad{$"):
        assert escape(name) in page  # a picture of paths has each text as a comment
