"""Numbers in a file are read in the notation that the source declares, by every command and in every kind of column."""

import csv
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp.config.checking import inspect
from streamdp.config.file import FileSourceConfig
from streamdp.config.job import JobConfig, make_config
from streamdp.config.schema import SchemaConfig
from streamdp.data.inspection import ColumnCounts
from streamdp.data.notation import Notation
from streamdp.serving import exported
from tests.support.commands import Quick

NOTATIONS: list[tuple[str, str | None]] = [
    (".", None), (",", None), (",", "."), (".", ","), (",", " "), (",", "'"),
]  # fmt: skip
FEATURES: dict[str, Any] = {
    "plain": [0, 3000],
    "gaps": {"bounds": [0, 3000], "missing": "zero"},
    "usual": {"bounds": [0, 3000], "typical": [1500.5, 500], "missing": "typical"},
    "square": {"bounds": [0, 3000], "transform": {"power": 2}, "column": "gaps", "missing": "zero"},
    "level": {"bins": [1000, 2000], "column": "twice"},
    "again": {"bounds": [0, 3000], "column": "twice"},
    "text": ["1.516", "1,516"],  # no number: both are as they are written
}
DATES: dict[str, Any] = {"hour": {"column": "since", "part": "hour", "format": "seconds", "bounds": [0, 23]}}
WRITTEN = ("plain", "gaps", "usual", "twice", "since", "eps", "at", "y")


def in_notation(value: float | None, decimal: str, thousands: str | None) -> str:
    """The text of a number; NA for a gap."""
    if value is None:
        return "NA"
    whole = f"{value:,.3f}".rstrip("0").rstrip(".")
    return whole.replace(",", "T").replace(".", decimal).replace("T", thousands or "")


def records(n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    found = []
    for i in range(n):
        numbers: dict[str, Any] = {name: round(float(rng.uniform(-100, 3100)), 3) for name in WRITTEN[:4]}
        numbers |= {"since": 1_763_000_000 + 1234 * i, "eps": 1.25, "at": 1_763_000_000.5 + i}
        numbers["y"] = numbers["plain"] + 10
        for place, name in enumerate(("gaps", "usual")):
            if i % 10 == place:
                numbers[name] = None
        found.append(numbers | {"text": ("1.516", "1,516")[i % 2]})
    return found


def written(rows: list[dict[str, Any]], decimal: str, thousands: str | None) -> str:
    out = io.StringIO()
    table = csv.writer(out, delimiter=";", lineterminator="\n")
    table.writerow([*WRITTEN, "text"])
    for row in rows:
        table.writerow([*(in_notation(row[name], decimal, thousands) for name in WRITTEN), row["text"]])
    return out.getvalue()


def job(folder: Path, decimal: str, thousands: str | None) -> dict[str, Any]:
    """A job without noise on the records in a notation, of which some are no numbers."""
    name = f"{NOTATIONS.index((decimal, thousands))}"
    (folder / f"{name}.csv").write_text(written(records(400), decimal, thousands) + "1x;1;1;1;1;1;1;1;1.516\n")
    return {
        "job": name,
        "store": str(folder / f"{name}.db"),
        "source": {
            "type": "csv", "path": str(folder / f"{name}.csv"), "delimiter": ";",
            "decimal": decimal, "thousands": thousands,
        },
        "schema": {
            "features": FEATURES, "target": {"column": "y", "bounds": [0, 4000]}, "budget": "eps",
            "missing_values": ["NA"],
        },
        "model": {"trust": "nobody", "mechanism": "none", "budget": "eps=1"},
    }  # fmt: skip


def read(config: JobConfig) -> dict[str, np.ndarray | None]:
    """All numbers of the records, also times and parts of dates, which the model has not."""
    assert isinstance(config.source, FileSourceConfig)
    more = {"features": FEATURES | DATES, "time": {"column": "at", "unit": "seconds"}}
    schema = SchemaConfig.model_validate(config.schema_.model_dump() | more).build()
    with closing(config.source.build(schema)) as source:
        batch = source.poll(10_000, 1.0)
    assert [(letter.reason, letter.column) for letter in batch.dead] == [("not_a_number", "plain")]
    return {"X": batch.X, "y": batch.y, "budgets": batch.budgets, "times": batch.times}


def counted(config: JobConfig) -> tuple[int, dict[str, ColumnCounts]]:
    """What `check` counts."""
    found = inspect(config)
    return found.fit, found.columns_found


@pytest.mark.parametrize("marks", [NOTATIONS[2], NOTATIONS[4]], ids=str)
def test_six_notations_are_the_same_numbers_to_check_run_predict_and_export(
    marks: tuple[str, str | None], tmp_path: Path, quick: Quick
) -> None:
    usual, other = (job(tmp_path, *notation) for notation in (NOTATIONS[0], marks))
    one, two = read(make_config(usual)), read(make_config(other))
    for name, values in one.items():
        assert values is not None
        assert np.array_equal(values, two[name]), name
    assert one["X"].shape == (400, 9)  # type: ignore[union-attr]
    fit, counts = counted(make_config(usual))
    assert (fit, counts["gaps"].missing, counts["gaps"].outside > 5) == (400, 40, True)
    assert counted(make_config(other)) == (fit, counts)

    documents, predicted = [], []
    for settings in (usual, other):
        path = tmp_path / f"{settings['job']}.yaml"
        path.write_text("# a job\n" + json.dumps(settings))
        assert "400" in quick.output("run", str(path))
        documents.append(json.loads(quick.output("export", str(path), "--to", "json")))
        code, out, said = quick("predict", str(path), settings["source"]["path"])
        assert (code, "1 of 401 rows do not fit the schema" in said) == (0, True)
        mark, shown = settings["source"]["decimal"], [line.split(";")[-1] for line in out.splitlines()]
        assert mark in shown[1], "a prediction is written as the numbers of the file are"
        predicted.append([text.replace(mark, ".") for text in shown])
    assert documents[0] == documents[1]
    assert predicted[0] == predicted[1]
    for row, text in zip(records(400), predicted[1][1:], strict=False):
        raw = {name: "NA" if value is None else value for name, value in row.items()}
        assert exported.predict(raw, documents[1]) == pytest.approx(float(text))


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        ((",", None), "1.5"), ((",", "."), "1.5"), ((",", "."), "1.5163"), ((".", ","), "1,5"), ((",", " "), "1.516"),
        ((",", "."), "1,516.5"), ((",", "'"), "1.516"), ((".", ","), "12,34,56"),
    ],
    ids=str,
)  # fmt: skip
def test_a_number_in_another_notation_is_refused(marks: tuple[str, str | None], text: str) -> None:
    found = Notation(*marks).numbers(pl.Series([text, "NA", "", None]))
    assert found.to_list() == ["?", "NA", "", None]
    assert Notation(*marks).usual(pl.Series([text])).to_list() == [text]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("CHF 1'234.50", "1234.50"), ("-CHF 12", "-12"), ("CHF -12", "-12"), ("12.5 %", "12.5"), ("12.5%", "12.5"),
        (" Fr.1\u2019000 ", "1000"), ("1'234.5", "1234.5"), ("CHF", "CHF"), ("12 CHF/h", "?"), ("12 $", "?"),
        ("1e5 CHF", "1e5"), ("% of 5", "?"),
    ],
    ids=str,
)  # fmt: skip
def test_units_beside_numbers_are_passed_over(text: str, number: str) -> None:
    found = Notation(".", "'", ("CHF", "Fr.", "%")).numbers(pl.Series([text, None]))
    assert [found[0].strip(), found[1]] == [number, None]


def test_groups_of_india_are_numbers() -> None:
    assert Notation(".", ",").numbers(pl.Series(["12,34,567.5", "1,00,000"])).to_list() == ["1234567.5", "100000"]


@pytest.mark.parametrize("unit", ["", "1", "-", "a b", ",", "."])
def test_a_unit_that_could_be_part_of_a_number_is_refused(unit: str, quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        json.dumps(job(tmp_path, ".", None) | {"source": {"path": "0.csv", "units": [unit]}})
    )
    assert "units: expected texts without digits" in quick.error(2, "run", "job.yaml")
