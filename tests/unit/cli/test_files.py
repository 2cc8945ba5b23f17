"""Files as they are found: half written, packed, in other encodings; what a run learns of them, and what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from streamdp.cli.settings import file_like
from streamdp.runtime.display import RunnerDisplay
from streamdp.serving.predict_file import predict_file
from streamdp.serving.publish import committed
from tests.support.commands import Quick

JOB = """job: people
source: {type: csv, path: people.csv}
schema: {features: {age: [0, 120]}, target: {column: wage, bounds: [0, 100]}}
model: {estimator: LDPASGDRegressor, budget: eps=1}
"""
LINES = "age,wage\n" + "23,40.5\n54,60\n" * 20


def events(out: str, kind: str) -> list[dict]:
    return [event for line in out.splitlines() if (event := json.loads(line))["event"] == kind]


def test_the_first_half_of_a_last_line_is_reported_and_the_whole_line_learned(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "people.csv").write_text(LINES + "30,9")
    said = f"the last record of {tmp_path}/people.csv has no end (its newline or a closing quote is missing)"
    assert any(said in warning for warning in json.loads(quick.output("check", "job.yaml", "--json"))["warnings"])
    code, out, err = quick("run", "job.yaml")
    assert (code, err.count(said), err.count("trust: process")) == (0, 1, 1)  # LDP on raw records
    assert said in events(out, "waiting")[0]["message"]
    assert events(out, "end")[0]["learned"] == 40
    assert json.loads(quick.output("status", "people.db", "--json"))["waiting"] == 1
    with open(tmp_path / "people.csv", "a") as file:
        file.write("7.5\n")
    out = quick.output("run", "job.yaml")
    assert [event["learned"] for event in events(out, "end")] == [41]
    assert events(out, "waiting") == []
    assert json.loads(quick.output("status", "people.db", "--json"))["waiting"] == 0


def test_a_run_names_what_a_record_spends_in_all(tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table at a terminal named `model.budget`, without what the answers of `validation` spend."""
    shown: list[object] = []
    kept = "streamdp.runtime.display.RunnerDisplay"
    monkeypatch.setattr(kept, lambda share, facts, following: shown.append(facts) or RunnerDisplay(share))
    (tmp_path / "job.yaml").write_text(JOB + "validation: {budget: eps=0.5}\n")
    (tmp_path / "people.csv").write_text(LINES)
    quick.output("run", "job.yaml")
    assert shown == [{"spends": "a record: eps=1.5 (trust: nobody)"}]


def test_a_last_line_without_its_end_is_passed_over_if_a_later_file_follows(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("people.csv", "people"))
    (tmp_path / "people").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "people" / name).write_text(LINES + "30,9")
    code, out, err = quick("run", "job.yaml")
    assert code == 0
    assert f"the last record of {tmp_path}/people/1.csv, {tmp_path}/people/2.csv has no end" in err
    assert events(out, "end")[0]["learned"] == 80
    (tmp_path / "people" / "2.csv").write_text(LINES + "30,97\n")
    assert events(quick.output("run", "job.yaml"), "end")[0]["learned"] == 81


@pytest.mark.parametrize(
    "arguments",
    [
        [b"run", b"people.csv", b"--target", b"wage", b"--feature", b"\xff=0:1"],
        [b"run", b"people.csv", b"--target", b"wage", b"--feature", b"age=0:1", b"--store", b"\xff.db"],
        [b"init", b"people.csv", b"-o", b"\xff.yaml"],
        [b"status", b"\xff.db"],
    ],
)
def test_arguments_that_are_not_utf8_are_refused(tmp_path: Path, arguments: list[bytes]) -> None:
    (tmp_path / "people.csv").write_text(LINES)
    command = [os.fsencode(sys.executable), b"-m", b"streamdp", *arguments]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert found.returncode == 2
    assert b"is not UTF-8 text: expected arguments" in found.stderr
    assert b"\\udcff" in found.stderr
    assert os.listdir(os.fsencode(tmp_path)) == [b"people.csv"]


@pytest.mark.slow
def test_a_name_in_a_folder_that_is_not_utf8_is_read_and_printed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("people.csv", "people"))
    (tmp_path / "people").mkdir()
    with open(os.fsencode(tmp_path / "people") + b"/\xff.csv", "w") as file:
        file.write(LINES + "30,9")
    command = [sys.executable, "-m", "streamdp", "check", "job.yaml"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr
    assert b"40 of 40 records fit" in found.stdout
    assert b"\\udcff.csv has no end" in found.stdout


@pytest.mark.parametrize("name", ["data.csv", "data.jsonl", "data.parquet", "data.arrow"])
def test_predict_reads_and_writes_the_format_of_the_file(tmp_path: Path, quick: Quick, name: str) -> None:
    """Before, only CSV on standard input, with commas between fields and points in numbers."""
    frame = pl.DataFrame({"x": [float(i % 10) for i in range(300)], "y": [float(i % 10) for i in range(300)]})
    path, out = tmp_path / name, tmp_path / f"out.{name.partition('.')[2]}"
    if name == "data.csv":
        path.write_text("x;y\n" + "".join(f"{x};{y}\n".replace(".", ",") for x, y in frame.iter_rows()))
    else:
        {"jsonl": frame.write_ndjson, "parquet": frame.write_parquet, "arrow": frame.write_ipc}[path.suffix[1:]](path)
    more = """, delimiter: ";", decimal: ",\"""" if name == "data.csv" else ""
    (tmp_path / "job.yaml").write_text(
        f"job: r\nsource: {{type: {path.suffix[1:]}, path: {name}{more}}}\n"
        "schema: {features: {x: [0, 9]}, target: {column: y, bounds: [0, 9]}}\n"
        "model: {trust: nobody, budget: eps=8}\n"
    )
    assert quick("run", "job.yaml")[0] == 0
    model = committed(str(tmp_path / "r.db"))
    with out.open("wb") as file:
        found = predict_file(model, file_like(str(path), model.definition.written, ()), file)
    assert (found.rows, found.unfit.total()) == (300, 0)
    if name == "data.csv":
        assert re.fullmatch(r"0,0;0,0;-?[0-9]+,[0-9]+", out.read_text().splitlines()[1])
        return
    written = {"jsonl": pl.read_ndjson, "parquet": pl.read_parquet, "arrow": pl.read_ipc}[path.suffix[1:]](out)
    assert written.columns == ["x", "y", "prediction"]
    assert written.get_column("prediction").n_unique() == 10


def test_a_file_of_which_no_row_fits_is_an_error(tmp_path: Path, quick: Quick) -> None:
    """Before, 12,000 rows without a prediction were exit 0."""
    (tmp_path / "data.csv").write_text("x,y\n" + "1,2\n" * 200)
    (tmp_path / "job.yaml").write_text(
        "job: r\nsource: {path: data.csv}\n"
        "schema: {features: {x: [0, 9]}, target: {column: y, bounds: [0, 9]}}\n"
        "model: {trust: nobody, budget: eps=8}\n"
    )
    assert quick("run", "job.yaml")[0] == 0
    (tmp_path / "other.csv").write_text("x\n" + "1;2\n" * 5)
    code, _, said = quick("predict", "job.yaml", "other.csv")
    assert (code, "5 of 5 rows do not fit the schema and have no prediction" in said) == (3, True)


def test_a_row_with_other_numbers_of_fields_does_not_shift_its_empty_prediction(tmp_path: Path, quick: Quick) -> None:
    """Before, the last field of a longer row stood in the column of the prediction."""
    (tmp_path / "people.csv").write_text(LINES)
    (tmp_path / "job.yaml").write_text(JOB)
    assert quick("run", "job.yaml")[0] == 0
    (tmp_path / "other.csv").write_text("age,wage\n23,40\n23,40,7,8\n23\n")
    out = quick.output("predict", "job.yaml", "other.csv")
    fitting, *others = out.splitlines()[1:]
    assert fitting.startswith("23,40,")
    assert float(fitting.split(",")[2])
    assert others == ["23,40,", "23,,"]
