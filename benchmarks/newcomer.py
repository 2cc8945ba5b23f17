"""A newcomer's first hour, played on real data: init, fill in the places, check, run, weights, plot, predict.

`python -m benchmarks.newcomer` (`make newcomer` writes newcomer.md) prints a row for each task; `--quick` takes the
first 2,000 rows only. Bounds and categories are typed in from the meaning of the columns (`real_data.py`). A fifth
of the rows is the public holdout, on which the run itself measures the model beside the best constant.

`--only verdicts` asks how often the run's own verdict is right, in 20 runs of each task: rows in another order each
time, many and few of them, at large and small budgets, so that there are models of both kinds. The truth comes from a
tenth of the rows that the run never sees: a model is worse than the constant if all measures of it are.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.shared.pages import command as measured
from benchmarks.shared.pages import table
from benchmarks.shared.real_data import JOBS, births, read
from streamdp.cli.main import run_command
from streamdp.config.draft import text
from streamdp.config.job import load_config
from streamdp.data.datasets import LATE_MINUTES, _read_flights
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import committed

PAGE = Path(__file__).with_name("newcomer.md")
BIRTHS = 1_000_000
LETTERS = list("אבגדהוזחטיכךלמםנןסעפףצץקרשת")
GERMAN = {
    "carat": "Karat",
    "color": "Farbe",
    "clarity": "Reinheit",
    "depth": "Höhe (%)",
    "table": "Tafel (%)",
    "cut": "Schliff",
}


@dataclass(frozen=True)
class Task:
    """A table, its target with bounds or classes, and what the newcomer declares of some columns."""

    name: str
    table: pl.DataFrame
    target: str
    answer: Any
    declared: dict[str, Any]


def tasks() -> Iterator[Task]:
    """Six tasks: dates and gaps, gaps that are written NA, categories, many classes, other scripts, a million rows."""
    raw = _read_flights().sort("month", "day", "sched_dep_time", maintain_order=True)
    minutes = pl.col("sched_dep_time").cast(pl.String).str.zfill(4)
    departs = pl.format(
        "2013-{}-{}T{}:{}",
        pl.col("month").cast(pl.String).str.zfill(2),
        pl.col("day").cast(pl.String).str.zfill(2),
        minutes.str.slice(0, 2),
        minutes.str.slice(2, 2),
    )
    flights = raw.select(
        departs.alias("departs"), "dep_delay", "distance", "origin", (pl.col("arr_delay") > LATE_MINUTES).alias("late")
    )
    declared = {"dep_delay": [-30, 120], "distance": [0, 5000], "origin": ["EWR", "JFK", "LGA"]}
    yield Task("flights: late?", flights, "late", [False, True], declared)
    stones, bats, wives = (
        JOBS[name]
        for name in (
            "price of a diamond, dollars",
            "runs of a baseball player in a season",
            "is a wife insured by her job?",
        )
    )
    cuts = JOBS["cut of a diamond, five classes"]
    gaps = {
        name: {"bounds": list(bounds), "missing": "zero"} for name, bounds in {"rbi": (0, 200), "sb": (0, 140)}.items()
    }
    baseball = read(bats[0]).with_columns(pl.col(list(gaps)).fill_null("NA"))
    yield from (
        Task(
            "diamonds: price",
            read(stones[0]).rename(GERMAN),
            "price",
            (0, 20_000),
            {GERMAN.get(k, k): v for k, v in stones[3].items()},
        ),
        Task("diamonds: cut", read(cuts[0]), "cut", cuts[2], cuts[3]),
        Task("baseball: runs", baseball, bats[1], bats[2], bats[3] | gaps),
        Task("insured wives", read(wives[0]), wives[1], wives[2], wives[3]),
        Task(
            "births: girl or boy?",
            births(BIRTHS),
            "sex",
            ["F", "M"],
            {
                "sector": ["Jewish", "Muslim", "Christian-Arab", "Druze"],
                "year": [2010, 2024],
                "letters": [1, 12],
                "last": {"categories": LETTERS, "other": True},
            },
        ),
    )


def command(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command in this process: exit code, standard output, standard error."""
    out, err = _Output(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["streamdp", *arguments], io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command()
        out.flush()
        return code, out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]
    finally:
        sys.argv, sys.stdin = before


class _Output(io.TextIOWrapper):
    """Standard output in memory; `predict` asks for another encoding."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")


def fill_in(draft: str, task: Task) -> str:
    """The draft with the places filled in; lines of columns that the newcomer does not use are deleted."""
    lines = []
    for line in draft.splitlines():
        place = next((name for name in task.declared if line.startswith(f"    {text(name)}:")), None)
        if place is not None:
            lines.append(f"    {text(place)}: {json.dumps(task.declared[place], ensure_ascii=False)}")
        elif re.match(r"    (bounds|classes):", line):
            key = "bounds" if isinstance(task.answer, tuple) else "classes"
            lines.append(f"    {key}: {json.dumps(task.answer, ensure_ascii=False)}")
        elif not re.match(r"    .*:  # (a number|text)", line):
            lines.append(line.replace("budget: eps=1", "budget: eps=4"))
    return "\n".join([*lines, "holdout: holdout.csv", ""])


def play(task: Task, folder: Path, rows: int | None = None) -> dict[str, Any]:
    """Play one task in a folder and return what the newcomer sees. Raises AssertionError for a command that fails."""
    began = time.process_time()
    table = task.table.head(rows or task.table.height)
    cut = table.height * 4 // 5
    table[:cut].write_csv(folder / "data.csv")
    table[cut:].write_csv(folder / "holdout.csv")
    with contextlib.chdir(folder):
        _done("init", "data.csv", "--target", task.target)
        job = folder / "job.yaml"
        code, places, _ = command("check", "job.yaml")
        assert code == 2, places
        job.write_text(fill_in(job.read_text(), task))
        checked = json.loads(_done("check", "job.yaml", "--json"))
        code, out, said = command("run", "job.yaml")
        assert code == 0, said
        (folder / "run.jsonl").write_text(out)
        measured = json.loads(out.splitlines()[-2])["holdout"]
        weights = json.loads(_done("weights", "data.db", "--json"))
        _done("plot", "job.yaml", "-o", "model.html", "--log", "run.jsonl")
        code, predicted, said = command("predict", "data.db", stdin=(folder / "holdout.csv").read_text())
        assert code == 0, said
    answers = [row["prediction"] for row in csv.DictReader(io.StringIO(predicted))]
    return {
        "task": task.name,
        "records": checked["records"],
        "fit": checked["fit"],
        "places": len(places.splitlines()),
        "plan": (checked["plan"] or {}).get("beats_constant", "no plan"),
        "weights": len(weights),
        "predicted": sum(map(bool, answers)),
        "measured": {name: value for name, value in measured.items() if isinstance(value, float)},
        "verdict": "worse than the constant" if "warning" in measured else "not worse than the constant",
        "seconds": round(time.process_time() - began, 1),
    }


SETTINGS = [(budget, rows) for budget in ("eps=4", "eps=0.5") for rows in (20_000, 1_000)]


def verdict(task: Task, folder: Path, seed: int) -> dict[str, Any]:
    """Run one draft of a task on rows of a random order; return the run's verdict beside the truth."""
    budget, rows = SETTINGS[seed % len(SETTINGS)]
    table = task.table.sample(fraction=1.0, shuffle=True, seed=seed)
    tenth = table.height // 10
    parts = {"data": table[2 * tenth :].head(rows), "holdout": table[:tenth], "test": table[tenth : 2 * tenth]}
    for name, part in parts.items():
        part.write_csv(folder / f"{name}.csv")
    with contextlib.chdir(folder):
        _done("init", "data.csv", "--target", task.target)
        job = Path("job.yaml")
        job.write_text(fill_in(job.read_text(), task).replace("budget: eps=4", f"budget: {budget}"))
        measured = json.loads(_done("run", "job.yaml").splitlines()[-2])["holdout"]
        job.write_text(job.read_text().replace("holdout.csv", "test.csv"))
        truth = Holdout(load_config("job.yaml")).measure(committed("data.db", None).estimator)
    said, true = "warning" in measured, "warning" in truth
    return {"task": task.name, "budget": budget, "rows": parts["data"].height, "said_worse": said, "worse": true}


def _done(*arguments: str) -> str:
    code, out, said = command(*arguments)
    assert code == 0, f"{arguments}: {said}"
    return out


def first_hours(rows: int | None) -> str:
    """The section with a row for each task."""
    shown = []
    for task in tasks():
        with tempfile.TemporaryDirectory() as folder:
            found = play(task, Path(folder), rows)
        print(json.dumps(found, ensure_ascii=False), flush=True)
        measures = ", ".join(f"{name} {value:.4g}" for name, value in found["measured"].items())
        cells = [found["task"], f"{found['records']:,}", f"{found['fit']:,}", found["places"], found["weights"]]
        cells += [found["plan"], found["verdict"], measures, found["seconds"]]
        shown.append([str(cell) for cell in cells])
    head = ["task", "records", "fit", "places to fill in", "weights", "better than the constant? by the plan"]
    return table([*head, "by the run", "measures on the holdout", "seconds of processor"], shown)


def verdicts(runs: int) -> str:
    """The section that counts right verdicts."""
    found = []
    for task in tasks():
        for seed in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                found.append(verdict(task, Path(folder), seed))
            print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    lines = []
    for name in [*dict.fromkeys(row["task"] for row in found), "all"]:
        mine = [row for row in found if name in (row["task"], "all")]
        worse, right = (sum(row["worse"] for row in mine), sum(row["said_worse"] == row["worse"] for row in mine))
        lines.append([name, str(len(mine)), str(worse), str(right)])
    return table(["task", "runs", "models worse than the constant", "right verdicts"], lines)


PARTS: dict[str, Callable[[bool], str]] = {
    "played": lambda quick: first_hours(2_000 if quick else None),
    "verdicts": lambda quick: verdicts(1 if quick else 20),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    measured(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
