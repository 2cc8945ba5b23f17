"""A newcomer's first hour, played on real data: init, fill in the places, check, run, weights, predict.

`python -m benchmarks.newcomer` (`make newcomer` writes newcomer.md) prints a row for each task; `--quick` takes the
first 2,000 rows only. Bounds and categories are typed in from the meaning of the columns (`real_data.py`). A fifth
of the rows is the public holdout, on which the run itself measures the model beside the best constant.

`--only draws` takes eight data sets and the default: `init --trust window`, places filled in, and `run`, several
times. A fifth of the rows is a test that the run never sees: there the models stand beside scikit-learn's linear model
of the same loss and the best constant, by that loss, and the run's own verdict beside
the truth. `few` does the same with the first 5,000 rows of each.

`--only messy` takes the twelve made-up files of `shared/messy.py`, as people have them, from the file to a prediction
for each row of a second file and an export, and compares what `predict` and the export say.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import runpy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss

from benchmarks.shared.messy import MESSY, edited, write_two
from benchmarks.shared.pages import command as measured
from benchmarks.shared.pages import table
from benchmarks.shared.real_data import JOBS, births, frame_of, read
from examples.flights import fitted
from streamdp.cli.main import run_command
from streamdp.config.draft import text
from streamdp.config.job import load_config
from streamdp.datasets import LATE_MINUTES, _read_flights
from streamdp.serving.publish import committed

PAGE = Path(__file__).with_name("newcomer.md")
BIRTHS = 1_000_000
LETTERS = list("אבגדהוזחטיכךלמםנןסעפףצץקרשת")
_JOBS = [
    "Professional",
    "Service",
    "Office and Administrative Support",
    "Business/Finance",
    "Production",
    "Sales",
    "Transportation",
    "Construction/Extraction",
    "Installation, Maintenance, and Repair",
    "Armed Forces",
    "Farming, Fishing, and Forestry",
]
_SCHOOLS = ["High School", "Less Than High School", "Junior College", "Bachelor", "Graduate"]
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
        return code, out.buffer.getvalue().decode(errors="surrogateescape"), err.getvalue()  # type: ignore[attr-defined]
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
        elif not re.match(r"    .*:(?: .*)?  # (a number|text)|    .*: (?:\[\"|{hash|{categories)", line):
            lines.append(line)
    return "\n".join([*lines, ""])


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
        job.write_text(fill_in(job.read_text(), task) + "holdout: holdout.csv\n")
        checked = json.loads(_done("check", "job.yaml", "--json"))
        code, out, said = command("run", "job.yaml")
        assert code == 0, said
        measured = json.loads(out.splitlines()[-2])["holdout"]
        weights = json.loads(_done("weights", "data.db", "--json"))
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


def eight() -> Iterator[Task]:
    """Three of the tasks, and five others: a rare class, heavy tails, dates of Europe, a million rows, 500 rows."""
    yield from (task for task in tasks() if task.name in ("flights: late?", "diamonds: price", "insured wives"))
    crashes = frame_of("DAAG", "nassCDS").drop("weight", "caseid", "injSeverity")
    occupants = {
        "dvcat": ["10-24", "1-9km/h", "25-39", "40-54", "55+"],
        "airbag": ["airbag", "none"],
        "seatbelt": ["belted", "none"],
        "frontal": [0, 1],
        "sex": ["f", "m"],
        "ageOFocc": [0, 100],
        "yearacc": [1997, 2002],
        "yearVeh": {"bounds": [1950, 2003], "missing": "zero"},
        "abcat": ["unavail", "deploy", "nodeploy"],
        "occRole": ["driver", "pass"],
        "deploy": [0, 1],
    }
    yield Task("crashes: dead? (4.5 %)", crashes, "dead", ["alive", "dead"], occupants)
    wages = frame_of("stevedata", "gss_wages").drop("occ10").drop_nulls("realrinc")
    people = {
        "year": [1970, 2020],
        "age": {"bounds": [18, 90], "missing": "zero"},
        "prestg10": {"bounds": [0, 100], "missing": "zero"},
        "childs": {"bounds": [0, 8], "missing": "zero"},
        "occrecode": {"categories": _JOBS, "missing": "category"},
        "wrkstat": {"categories": ["Full-Time", "Part-Time"], "other": True, "missing": "category"},
        "gender": ["Male", "Female"],
        "educcat": {"categories": _SCHOOLS, "missing": "category"},
        "maritalcat": {"categories": ["Married", "Never Married"], "other": True, "missing": "category"},
    }
    yield Task("income, heavy tails", wages, "realrinc", (0, 500_000), people)
    stops = frame_of("carData", "MplsStops").drop("idNum", "citationIssued", "vehicleSearch", "neighborhood", "MDC")
    stops = stops.drop_nulls("personSearch").with_columns(
        pl.col("date").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.strftime("%d/%m/%Y %H:%M"),
        pl.col("gender", "race").fill_null("Unknown"),
    )
    drivers = {
        "problem": ["traffic", "suspicious"],
        "race": {"categories": ["Unknown", "Black", "White"], "other": True},
        "gender": ["Unknown", "Female", "Male"],
        "preRace": {"categories": ["Unknown", "Black", "White"], "other": True},
        "lat": [44.85, 45.1],
        "long": [-93.35, -93.15],
        "policePrecinct": {"categories": ["1", "2", "3", "4", "5"]},
    }
    yield Task("police stops, dd/mm/yyyy", stops, "personSearch", ["NO", "YES"], drivers)
    soldiers = frame_of("openintro", "military").head(1_250_000)
    ranks = {
        "grade": ["enlisted", "officer", "warrant officer"],
        "branch": ["army", "navy", "air force", "marine corps"],
        "race": ["white", "black", "asian", "ami/aln", "p/i", "multi", "unk"],
        "rank": [1, 11],
    }
    yield Task("soldiers: a woman?", soldiers, "gender", ["male", "female"], ranks)
    workers = {
        "education": [0, 20],
        "experience": [0, 60],
        "age": [18, 65],
        "ethnicity": ["cauc", "hispanic", "other"],
        "region": ["other", "south"],
        "gender": ["male", "female"],
        "occupation": ["worker", "technical", "services", "office", "sales", "management"],
        "sector": ["other", "manufacturing", "construction"],
        "union": ["no", "yes"],
        "married": ["no", "yes"],
    }
    yield Task("hourly wages, 534 rows", frame_of("AER", "CPS1985"), "wage", (0, 50), workers)


def unrelated(rows: int = 12_500) -> Iterator[Task]:
    """Simulated people whose target is independent of all that is known of them: two classes, rare ones, numbers."""
    rng = np.random.default_rng(4)
    table = pl.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "income": np.round(np.exp(rng.normal(10, 0.6, rows)), 2),
            "region": rng.choice(["north", "south", "west"], rows),
        }
    )
    known: dict[str, Any] = {"age": [18, 90], "income": [0, 200_000], "region": ["north", "south", "west"]}
    for name, share in (("half of them yes", 0.5), ("4 % yes", 0.04)):
        answers = np.where(rng.random(rows) < share, "yes", "no")
        yield Task(f"nothing to learn, {name}", table.with_columns(answer=answers), "answer", ["no", "yes"], known)
    visits = np.round(rng.gamma(2.0, 10.0, rows), 1)
    yield Task("nothing to learn, numbers", table.with_columns(visits=visits), "visits", (0, 200), known)


@dataclass(frozen=True)
class Beside:
    """What a newcomer's model is compared with, on the held-out fifth of a task, by its own loss.

    Of labels it is the log loss, of `loss: squared` the root mean squared error, else the mean absolute error.
    """

    config: Any
    X: np.ndarray
    y: np.ndarray
    constant: float
    linear: float  # scikit-learn's

    def error(self, model: Any) -> float:
        """The error of a model."""
        if self.config.schema_.target.classes is None:
            return _error(self.config, model.predict_encoded(self.X) - self.y)
        return float(log_loss(self.y, model.predict_proba_encoded(self.X)))


def prepared(task: Task, folder: Path, rows: int | None = None) -> Beside:
    """Write the data of a task and the job of `init` in a folder, with one answer and the places filled in."""
    table = task.table.head(rows or task.table.height)
    cut = table.height * 4 // 5
    table[:cut].write_csv(folder / "data.csv")
    table[cut:].write_csv(folder / "test.csv")
    with contextlib.chdir(folder):
        _done("init", "data.csv", "--target", task.target, "--trust", "window")
        job = Path("job.yaml")
        job.write_text(fill_in(job.read_text(), task))
        config = load_config("job.yaml")
        (X, y), (X_test, y_test) = (_arrays(config, f"{part}.csv") for part in ("data", "test"))
    return _beside(config, (X, y), (X_test, y_test))


def _beside(config: Any, learned: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> Beside:
    (X, y), (X_test, y_test) = learned, test
    classes = config.schema_.target.classes is not None
    found = fitted(X, y, classes) if classes or config.model.loss != "squared" else LinearRegression().fit(X, y)
    if classes:
        shares = np.bincount(y.astype(int)) / len(y)
        constant = log_loss(y_test, np.tile(shares, (len(y_test), 1)))
        linear = log_loss(y_test, found.predict_proba(X_test))
    else:
        middle = np.mean(y) if config.model.loss == "squared" else np.median(y)
        constant, linear = (_error(config, guess - y_test) for guess in (middle, found.predict(X_test)))
    return Beside(config, X_test, y_test, float(constant), float(linear))


def _error(config: Any, off: np.ndarray) -> float:
    """The error of predictions that are so far off, by the loss of a job."""
    squared = config.model.loss == "squared"
    return float(np.sqrt(np.mean(off**2)) if squared else np.mean(np.abs(off))) * (config.schema_.target.scale or 1.0)


def _arrays(config: Any, path: str) -> tuple[np.ndarray, np.ndarray]:
    source = config.source.for_file(path).build(config.build_schema())
    batches = []
    while not source.finished:
        batches.append(source.poll(1 << 20, 1.0))
    source.close()
    return np.concatenate([batch.X for batch in batches]), np.concatenate([batch.y for batch in batches])


def draw(folder: Path, beside: Beside) -> tuple[float, str]:
    """Run the job anew; return the error of its model, and its own verdict."""
    with contextlib.chdir(folder):
        for left in Path().glob("data.db*"):
            left.unlink()
        code, said, error = command("run", "job.yaml")
        assert code == 0, error
        model = committed("data.db", None).estimator
    verdict = json.loads(said.splitlines()[-1]).get("validation", "")
    return beside.error(model), next((known for known in SAYS if SAYS[known] in verdict), "none")


SAYS = {"not known": "it is not known yet", "better": "is better than", "no better": "is no better than"}
DRAWS = 12


def right(verdict: str, error: float, constant: float) -> bool:
    """Whether a verdict holds on the test rows: "no better" allows 5 % of the constant's error, as the run does."""
    return error < constant if verdict == "better" else error > 0.95 * constant if verdict == "no better" else True


def draws(tasks: Iterable[Task], rows: int | None, times: int) -> str:
    """The table of some draws of each of the tasks, from the first rows, or all of them."""
    lines, counts = [], Counter[str]()
    for task in tasks:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            beside = prepared(task, Path(name), rows)
            found = [draw(Path(name), beside) for _ in range(times)]
        errors = np.array([error for error, _ in found])
        said = Counter(verdict for _, verdict in found)
        wrong = sum(not right(verdict, error, beside.constant) for error, verdict in found)
        counts.update(said)
        counts.update(wrong=wrong, runs=len(found))
        learned = min(len(task.table), rows or len(task.table)) * 4 // 5
        numbers = [f"{value:.4g}" for value in (beside.constant, beside.linear, np.median(errors), errors.max())]
        cells = [task.name, f"{learned:,}", *numbers, f"{np.median(errors) / beside.linear:.3f}"]
        cells += [
            f"{(errors < beside.constant).sum()} of {len(errors)}",
            ", ".join(f"{n} {v}" for v, n in said.items()),
        ]
        lines.append([*cells, str(wrong), f"{(time.process_time() - began) / len(found):.0f}"])
        print(" | ".join(lines[-1]), flush=True)
    head = ["data", "rows learned", "constant", "scikit-learn", "streamdp, median", "worst", "median / scikit-learn"]
    text = table([*head, "beats the constant", "its verdicts", "wrong ones", "seconds of processor a draw"], lines)
    given = counts["runs"] - counts["none"]
    sentence = (
        f"{given - counts['wrong']} of {given} verdicts are not wrong; {counts['not known']} of them are not known."
    )
    return f"{text}\n\n{sentence}"


_DRAWN = 5  # runs of each messy file


def messy_hour(name: str, folder: Path) -> dict[str, Any]:
    """From one of the messy files to predictions and an export, by the commands that a newcomer types."""
    began = time.process_time()
    messy, (file, new) = MESSY[name], write_two(name, folder)
    with contextlib.chdir(folder):
        _done("init", file, "--target", messy.target)
        places = command("check", "job.yaml")[1].splitlines()
        job = Path("job.yaml")
        job.write_text(edited(job.read_text(), messy.edits))
        checked = json.loads(_done("check", "job.yaml", "--json"))
        said = [*checked["warnings"], *checked["problems"]]
        _done("run", "job.yaml")
        code, out, unfit = command("predict", "job.yaml", new)
        assert code == 0, unfit
        Path(f"out_{file}").write_bytes(out.encode(errors="surrogateescape"))
        _done("export", "job.yaml", "--to", "python", "-o", "model.py")
        config = load_config("job.yaml")
        learned, test = (_arrays(config, path) for path in (file, new))
        model = committed(config.store_path, config.job).estimator
        predicted = _shown(config, f"out_{file}", config.schema_.target.classes)
        alone = runpy.run_path("model.py")["predict"]
        exported = [alone(row) for row in _rows(config, f"out_{file}")]
        for draw in range(_DRAWN - 1):
            _done("run", "job.yaml", "--set", f"store={draw}.db")
        others = [committed(f"{draw}.db", config.job).estimator for draw in range(_DRAWN - 1)]
    beside = _beside(config, learned, test)
    errors = [beside.error(one) for one in (model, *others)]
    known = [value for value in predicted if value is not None]
    return {
        "file": name,
        "edits": len(places),
        "fit": checked["fit"] / checked["records"],
        "predicted": len(known) / len(predicted),
        "wrong": sum(not _equal(a, b) for a, b in zip(predicted, exported, strict=True)) + (len(known) != len(test[0])),
        "constant": beside.constant,
        "linear": beside.linear,
        "error": float(np.median(errors)),
        "worst": max(errors),
        "said": said,
        "seconds": time.process_time() - began,
    }


def _equal(one: Any, other: Any) -> bool:
    return bool(np.isclose(one, other, rtol=1e-6)) if isinstance(one, float) and other is not None else one == other


def _rows(config: Any, path: str) -> list[dict[str, Any]]:
    """The rows of a file that `predict` wrote, with numbers as Python writes them."""
    source = config.source
    if source.type == "parquet":
        return pl.read_parquet(path).to_dicts()
    if source.type == "jsonl":
        lines = map(json.loads, Path(path).read_text().splitlines())
        return [dict(_flat(line)) for line in lines]
    frame = pl.read_csv(path, separator=source.delimiter or ",", infer_schema=False)
    if source.notation is not None:
        frame = frame.with_columns(source.notation.usual(frame[c]).alias(c) for c in frame.columns)
    return frame.to_dicts()


def _flat(item: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        yield from _flat(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]


def _shown(config: Any, path: str, classes: Any) -> list[Any]:
    """The predictions in a file; None for a row that has none."""
    found = [row["prediction"] for row in _rows(config, path)]
    return [None if value in (None, "") else value if classes else float(value) for value in found]


def messy() -> str:
    """The section with a row for each messy file."""
    lines = []
    for name in MESSY:
        with tempfile.TemporaryDirectory() as folder:
            found = messy_hour(name, Path(folder))
        print(json.dumps(found, ensure_ascii=False), flush=True)
        numbers = [f"{found[key]:.4g}" for key in ("constant", "linear", "error", "worst")]
        shares = [f"{100 * found[key]:.1f} %" for key in ("fit", "predicted")]
        lines.append([name, str(found["edits"]), *shares, str(found["wrong"]), *numbers, f"{found['seconds']:.0f}"])
    head = ["file", "edits", "records that fit", "new rows with a prediction", "wrong numbers", "constant"]
    return table([*head, "scikit-learn", "streamdp, median", "worst", "seconds of processor"], lines)


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


PARTS: dict[str, Callable[[bool], str]] = {
    "messy": lambda _: messy(),
    "played": lambda quick: first_hours(2_000 if quick else None),
    "draws": lambda quick: draws(eight(), 5_000 if quick else None, 2 if quick else DRAWS),
    "few": lambda quick: draws(eight(), 5_000, 1 if quick else 6),
    "nothing": lambda quick: draws(unrelated(), 5_000 if quick else None, 1 if quick else 2 * DRAWS),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with --write save."""
    measured(__file__, PARTS, arguments, quick=True)


if __name__ == "__main__":
    main()
