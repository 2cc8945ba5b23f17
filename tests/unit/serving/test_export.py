"""Exported models predict what the library predicts, row by row, and leave out the rows that it leaves out."""

import importlib
import json
import math
import runpy
import sqlite3
import sys
import uuid
from base64 import b64encode
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import onnxruntime
import pandas
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

import streamdp
from streamdp import LDPASGDClassifier, WindowedRegressor
from streamdp.cli.main import app
from streamdp.data.columns import Faults
from streamdp.data.dates import part_of
from streamdp.errors import ConfigError, NotAvailableError, SchemaError
from streamdp.serving import exported
from streamdp.serving.export import EXPORTS, Export, exported_model, exports, refusals
from streamdp.serving.predictor import Predicting
from streamdp.serving.publish import committed
from streamdp.serving.snapshots import Model
from tests.support.commands import Quick
from tests.support.exports import COMMON, DATES, HASHED, TARGETS, job, records, targets

Answers = list[tuple[Any, dict[str, float] | None] | None]
NEAR = 1e-9


def learned(tmp_path: Path, features: dict[str, Any], target: str, n: int = 300, **model: Any) -> Model:
    """The committed model of a job on some records."""
    rows = records(n)
    return run_of(tmp_path, rows.with_columns(targets(target, rows)), features, target, **model)


def run_of(tmp_path: Path, rows: pl.DataFrame, features: dict[str, Any], target: str, **model: Any) -> Model:
    """The committed model of a job on these records."""
    rows.write_csv(tmp_path / "rows.csv")
    config = job(features, target, **model).model_dump(mode="json", by_alias=True, exclude_none=True)
    source = {"type": "csv", "path": str(tmp_path / "rows.csv"), "max_bad_share": 0.9}
    config |= {"source": source, "store": str(tmp_path / "j.db")}
    (tmp_path / "job.yaml").write_text(json.dumps(config))
    ran = CliRunner().invoke(app, ["run", str(tmp_path / "job.yaml")])
    assert ran.exit_code == 0, ran.output
    return committed(str(tmp_path / "j.db"))


def of_one_record(model: Any) -> Any:
    """A model that has learned one record: with none there is nothing to export."""
    model.learn_encoded(np.zeros((1, len(model.feature_names))), np.zeros(1))
    model.close_batch()
    return model


def expected(model: Model, rows: pl.DataFrame) -> Answers:
    """What the library predicts for rows: a prediction and the probabilities; None for a row that does not fit."""
    predictor = Predicting(model)
    fit, found, shares = predictor.of(predictor.encode(rows.select(predictor.columns)))
    out: Answers = [None] * len(rows)
    for place, i in enumerate(fit.tolist()):
        more = None if shares is None else dict(zip(predictor.labels, shares[place].tolist(), strict=True))
        out[i] = (found[place], more)
    return out


def same(found: Answers, wanted: Answers, most: float = 0.999) -> None:
    """The same rows, at most so many, have answers, with the same labels, and numbers within `NEAR`.

    It prints their greatest difference.
    """
    known = [one is not None for one in wanted]
    assert 0.2 < sum(known) / len(wanted) <= most
    assert [one is not None for one in found] == known
    (values, shares), (true, true_shares) = (zip(*filter(None, each), strict=True) for each in (found, wanted))
    labels = list(true_shares[0] or {})
    if isinstance(true[0], str):
        assert values == true
        assert all((one or {}).keys() == set(labels) for one in shares)
        values, true = ([[one[label] for label in labels] for one in each] for each in (shares, true_shares))
    numbers, right = np.array(values, dtype=float), np.array(true, dtype=float)
    apart = np.abs(numbers - right) / np.maximum(1, np.abs(right))
    print(f"{len(known):,} rows, {sum(known):,} answers, greatest difference {apart.max(initial=0):.1e}")
    assert np.all(apart <= NEAR)


def by_python(model: Any, rows: pl.DataFrame, tmp_path: Path) -> Answers:
    (tmp_path / "alone.py").write_text(str(EXPORTS["python"].write(exported_model(model), "")), encoding="utf-8")
    alone = runpy.run_path(str(tmp_path / "alone.py"))
    return answered(
        [alone["predict"](row) for row in rows.iter_rows(named=True)],
        [alone["probabilities"](row) for row in rows.iter_rows(named=True)],
    )


def answered(values: list[Any], shares: list[dict[str, float] | None]) -> Answers:
    return [None if v is None else (v, s) for v, s in zip(values, shares, strict=True)]


def of_query(names: list[str], found: list[tuple[Any, ...]]) -> Answers:
    start = names.index("prediction")
    labels = [name.removeprefix("probability of ") for name in names[start + 1 :]]
    ordered = sorted(found)
    return answered(
        [row[start] for row in ordered],
        [dict(zip(labels, row[start + 1 :], strict=True)) if labels else None for row in ordered],
    )


def by_duckdb(model: Any, rows: pl.DataFrame) -> Answers:
    return of_duckdb(exported_model(model), rows)


def of_duckdb(document: dict[str, Any], rows: pl.DataFrame) -> Answers:
    with duckdb.connect() as database:
        database.execute("CREATE TABLE people AS SELECT * FROM rows")
        query = database.execute(str(EXPORTS["sql"].write(document, "people")))
        return of_query([column[0] for column in query.description or ()], query.fetchall())


def by_sqlite(model: Any, rows: pl.DataFrame) -> Answers:
    return of_sqlite(exported_model(model), rows)


def of_sqlite(document: dict[str, Any], rows: pl.DataFrame) -> Answers:
    with sqlite3.connect(":memory:") as database:
        kinds = (f'"{name}" {"text" if kind == pl.String else "real"}' for name, kind in rows.schema.items())
        database.execute(f"CREATE TABLE people ({', '.join(kinds)})")
        database.executemany(f"INSERT INTO people VALUES ({', '.join('?' * rows.width)})", rows.rows())
        query = database.execute(str(EXPORTS["sql"].write(document, "people")))
        return of_query([column[0] for column in query.description], query.fetchall())


def by_postgres(model: Any, rows: pl.DataFrame, url: str) -> Answers:
    return of_postgres(exported_model(model), rows, url)


def of_postgres(document: dict[str, Any], rows: pl.DataFrame, url: str) -> Answers:
    import psycopg

    table = f"people_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url.replace("+psycopg", "")) as connection, connection.cursor() as cursor:
        kinds = ", ".join(
            f'"{name}" {"text" if kind == pl.String else "double precision" if kind == pl.Float64 else "bigint"}'
            for name, kind in rows.schema.items()
        )
        cursor.execute(f"CREATE TEMPORARY TABLE {table} ({kinds})")  # type: ignore[arg-type]
        with cursor.copy(f"COPY {table} FROM STDIN") as copy:  # type: ignore[arg-type]
            for row in rows.rows():
                copy.write_row(row)
        cursor.execute(str(EXPORTS["sql"].write(document, table)))  # type: ignore[arg-type]
        return of_query([column.name for column in cursor.description or ()], cursor.fetchall())


def by_onnx(model: Any, rows: pl.DataFrame) -> Answers:
    session = onnxruntime.InferenceSession(EXPORTS["onnx"].write(exported_model(model), ""))
    given = {}
    for one in session.get_inputs():
        column = rows[one.name]
        text = one.type == "tensor(string)"
        values = column.fill_null("").to_numpy().astype(object) if text else column.fill_null(math.nan).to_numpy()
        given[one.name] = values.reshape(-1, 1)
    found = session.run(None, given)
    values = [None if v == "" or v != v else v for v in found[0][:, 0].tolist()]
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    shares: list[Any] = [None] * len(values)
    if len(found) > 1:
        shares = [dict(zip(classes, row, strict=True)) for row in found[1].tolist()]
    return answered(values, shares)


def write_folder(model: Any, folder: Path) -> dict[str, Any]:
    """The folder for mlflow, and its MLmodel."""
    files = EXPORTS["mlflow"].write(exported_model(model), "")
    assert isinstance(files, dict)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    description: dict[str, Any] = yaml.safe_load(files["MLmodel"])
    return description


def by_mlflow(model: Any, rows: pl.DataFrame, folder: Path) -> Answers:
    """As mlflow does it; `tests/campaigns/test_exported.py` does it with mlflow."""
    description = write_folder(model, folder)
    flavor, signature = description["flavors"]["python_function"], description["signature"]
    kinds = {one["name"]: one["type"] for one in json.loads(signature["inputs"])}
    columns = list(kinds)
    sys.path.insert(0, str(folder / flavor["code"]))
    try:
        loaded = importlib.import_module(flavor["loader_module"])._load_pyfunc(str(folder / flavor["data"]))
    finally:
        sys.path.pop(0)
    frame = pandas.DataFrame(rows.to_dict(as_series=False), index=range(7, 7 + len(rows)))
    for name, kind in kinds.items():  # mlflow refuses a number for a text
        assert (kind == "double") == pandas.api.types.is_numeric_dtype(frame[name])
    found = loaded.predict(frame[columns])
    assert list(found.index) == list(frame.index)
    assert list(found.columns) == [one["name"] for one in json.loads(signature["outputs"])]
    return of_frame(found)


def of_frame(found: Any) -> Answers:
    labels = [str(name).removeprefix("probability of ") for name in found.columns[1:]]
    values = [None if value != value else value for value in found["prediction"].tolist()]
    shares = [dict(zip(labels, row, strict=True)) if labels else None for row in found.iloc[:, 1:].to_numpy().tolist()]
    return answered(values, shares)


def each_way(model: Any, rows: pl.DataFrame, folder: Path, url: str | None = None) -> list[Answers]:
    """In Python, in two or three databases, as a graph and by mlflow."""
    found = [by_python(model, rows, folder), by_duckdb(model, rows), by_sqlite(model, rows), by_onnx(model, rows)]
    return [
        *found,
        by_mlflow(model, rows, folder / "folder"),
        *([] if url is None else [by_postgres(model, rows, url)]),
    ]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("number", {}),
    ("log", {}),
    ("two", {}),
    ("two", {"loss": "hinge"}),
    ("three", {}),
    ("number", {"trust": "process"}),
    ("count", {"trust": "process", "loss": "poisson"}),
    ("two", {"trust": "process", "intercept": False}),
]


@pytest.mark.parametrize("count", [200, pytest.param(100_000, marks=pytest.mark.campaign)])
@pytest.mark.parametrize(("target", "model"), CASES, ids=str)
def test_each_language_predicts_what_the_library_predicts(
    target: str, model: dict[str, Any], count: int, tmp_path: Path, postgres: Any
) -> None:
    committed_model, rows = learned(tmp_path, COMMON, target, **model), records(count)
    wanted = expected(committed_model, rows)
    for found in each_way(committed_model, rows, tmp_path, postgres.url):
        same(found, wanted)


@pytest.mark.parametrize("target", ["number", "log"])
def test_predictions_are_cut_to_the_bounds_of_the_target(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow bounds, beyond which nearly all predictions would be."""
    model, rows = learned(tmp_path, COMMON, target), records(200)
    monkeypatch.setattr(type(model.estimator), "_target_bounds", lambda _: (0.1, 0.11))
    wanted = expected(model, rows)
    numbers = np.array([value for value, _ in filter(None, wanted)]) / (model.definition.schema_.target.scale or 1.0)
    low, high = np.exp([0.1, 0.11]) if target == "log" else (0.1, 0.11)
    assert np.all((numbers > low - 1e-9) & (numbers < high + 1e-9))
    assert np.mean(np.isclose(numbers, low) | np.isclose(numbers, high)) > 0.8
    for found in each_way(model, rows, tmp_path):
        same(found, wanted)


@pytest.mark.parametrize("target", ["number", "three"])
def test_columns_are_cut_to_their_ranges_in_every_way_out(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow ranges, also of products: of what was learned they are wider."""
    model, rows = learned(tmp_path, COMMON, target, 3000, trust="process"), records(100)
    plain, prediction = expected(model, rows), model.estimator.prediction
    assert prediction is not None
    ranges = np.tile([[-0.3], [0.2]], len(model.estimator.feature_names))
    ranges[:, 0] = -math.inf, math.inf
    monkeypatch.setattr(type(model.estimator.learner), "ranges", ranges)
    prediction.predictor = prediction._latest = None
    wanted = expected(model, rows)
    assert sum(a != b for a, b in zip(plain, wanted, strict=True)) > 50
    assert exported_model(model)["ranges"][:2] == [[None, None], [-0.3, 0.2]]
    for found in each_way(model, rows, tmp_path):
        same(found, wanted)


def test_all_dates_of_one_model_in_python_and_sql(tmp_path: Path, postgres: Any) -> None:
    rows = records(200)
    model = learned(tmp_path, COMMON | DATES, "number")
    wanted = expected(model, rows)
    same(by_python(model, rows, tmp_path), wanted)
    same(by_mlflow(model, rows, tmp_path / "folder"), wanted)
    same(by_duckdb(model, rows), wanted)
    same(by_sqlite(model, rows), wanted)
    same(by_postgres(model, rows, postgres.url), wanted)


def test_sqlite_has_texts_in_columns_of_numbers(tmp_path: Path) -> None:
    """Its own import makes texts of all values; a text that is no number is not read as 0."""
    model = learned(tmp_path, {"plain": [-1, 1], "age": {"bounds": [18, 100], "missing": "zero"}}, "number")
    written = [("0.5", "30"), ("0.5", ""), ("0.5", "NA"), ("abc", "30"), ("0.5x", "30"), ("", "30")]
    wanted = expected(model, pl.DataFrame(written, schema=["plain", "age"], orient="row"))
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE people (plain TEXT, age REAL)")
        database.executemany("INSERT INTO people VALUES (?, ?)", written)
        found = database.execute(str(EXPORTS["sql"].write(exported_model(model), "people"))).fetchall()
    assert [row[2] is None for row in found] == [False] * 3 + [True] * 3 == [one is None for one in wanted]
    assert [row[2] for row in found[:3]] == pytest.approx([one[0] for one in wanted[:3] if one is not None])


@pytest.mark.parametrize("named", [True, False], ids=["names", "schema"])
def test_a_saved_model_is_exported_with_its_statement(named: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X, path = rng.uniform(-1, 1, (500, 2)), str(tmp_path / "m")
    features: Any = ["a", "b"] if named else {"a": (-1, 1), "b": (-1, 1)}
    model = LDPASGDClassifier(features=features, seed=1)
    model.learn_encoded(X, (X[:, 0] > 0).astype(float))
    model.save(path)
    shown = CliRunner().invoke(app, ["export", path, "--to", "json"])
    document = json.loads(shown.stdout)
    assert document["statement"] == model.statement()
    ran = CliRunner().invoke(app, ["export", path, "--to", "python", "-o", str(tmp_path / "alone.py")])
    assert ran.exit_code == 0, ran.output
    alone = runpy.run_path(str(tmp_path / "alone.py"))
    for a, b in X[:50].tolist():
        assert alone["predict"]({"a": a, "b": b}) == model.predict_one({"a": a, "b": b})
        wanted = model.predict_proba_one({"a": a, "b": b})
        assert alone["probabilities"]({"a": a, "b": b}) == pytest.approx(wanted, abs=NEAR)
    for name in ("sql", "onnx"):
        written = EXPORTS[name].write(exported_model(streamdp.load(path)), "people")
        assert (written if isinstance(written, bytes) else written.encode()).count(b"NOT PRIVATE") >= 1


def test_a_folder_for_mlflow_is_new_and_has_the_statement(tmp_path: Path) -> None:
    model, folder = LDPASGDClassifier(features=[0, "b"], seed=1), tmp_path / "folder"
    model.learn_one({0: -0.5, "b": 1.0}, False)
    model.save(str(tmp_path / "m"))
    command = ["export", str(tmp_path / "m"), "--to", "mlflow"]
    assert CliRunner().invoke(app, [*command, "-o", str(folder)]).exit_code == 0
    description = yaml.safe_load((folder / "MLmodel").read_text())
    assert description["metadata"]["statement"] == model.statement()
    assert json.loads(description["signature"]["outputs"])[0] == {
        "name": "prediction",
        "type": "boolean",
        "required": True,
    }
    rows = pl.DataFrame({"0": [-1.0, 0.5], "b": [0.0, 1.0]})
    wanted = [model.predict_one({0: a, "b": b}) for a, b in rows.rows()]
    assert [one and one[0] for one in by_mlflow(model, rows, tmp_path / "other")] == wanted
    for refused in (command, [*command, "-o", str(folder)]):
        ran = CliRunner().invoke(app, refused)
        assert ran.exit_code != 0
        assert "expected a new folder" in ran.output + str(ran.exception)


def test_classes_of_one_text_and_gaps_that_are_written_as_numbers() -> None:
    """A scorer of SQL or ONNX predicted from -999 as from a value."""
    classifier = of_one_record(LDPASGDClassifier(features={"a": (-1, 1)}, classes=[1, "1"], seed=1))
    with pytest.raises(ConfigError, match="two classes have the same text"):
        exported_model(classifier)
    declared = {"a": {"bounds": [-1, 1], "missing": "zero"}}
    document = exported_model(of_one_record(job(declared, "number").build_estimator()))
    document["inputs"][0]["blanks"] = ["-999"]  # as by missing_values
    for language in ("sql", "onnx"):
        with pytest.raises(ConfigError, match="'a' may have a missing value that is written as a number"):
            EXPORTS[language].write(document, "people")
    assert "-999" in str(EXPORTS["json"].write(document, ""))


def test_the_json_document_fits_its_published_schema() -> None:
    import jsonschema

    from tests.support.paths import ROOT

    schema = json.loads((ROOT / "docs" / "reference" / "exported-model.schema.json").read_text())
    for target in TARGETS:
        document = exported_model(of_one_record(job(COMMON | DATES | HASHED, target).build_estimator()))
        jsonschema.validate(json.loads(str(EXPORTS["json"].write(document, ""))), schema)


def test_windows_are_exported_and_a_model_that_has_learned_nothing_is_not() -> None:
    model = WindowedRegressor(features={"a": (0, 1)}, target=(0, 10), window=300, seed=1)
    with pytest.raises(NotAvailableError, match="nothing is learned yet: learn records first"):
        exported_model(model)
    model.learn_arrays(np.linspace(0, 1, 200)[:, None], np.linspace(0, 10, 200))
    with pytest.raises(NotAvailableError, match=r"200 records wait in an open .* which ends after 100 more"):
        exported_model(model)
    model.close_batch()
    assert exported_model(model)["outputs"][0]["weights"] != [0.0]


def test_an_export_is_added_by_one_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command and `streamdp check` knew the languages by name."""

    def names(document: Any, table: str) -> str:
        if len(document["inputs"]) > 1:
            raise ConfigError("export: expected one feature")
        return str(document["inputs"][0]["name"])

    monkeypatch.setitem(exports(), "names", Export(names))
    model = LDPASGDClassifier(features=["a"], seed=1)
    model.learn_one({"a": 0.5}, True)
    model.save(str(tmp_path / "m"))
    assert CliRunner().invoke(app, ["export", str(tmp_path / "m"), "--to", "names"]).stdout == "a"
    assert "no export to names: expected one feature" in refusals(job({"a": [0, 1], "b": [0, 1]}, "number"))
    monkeypatch.setitem(exports(), "names", Export(names, "no_such_package"))
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "m"), "--to", "names"])
    assert "names needs the extra no_such_package" in str(ran.exception)
    assert "no export to names: expected one feature" in refusals(job({"a": [0, 1], "b": [0, 1]}, "number"))
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "m"), "--to", "nome"])
    assert "expected one of json, python" in str(ran.exception)


def test_names_that_an_export_adds_are_refused_by_the_command_in_every_format(tmp_path: Path, quick: Quick) -> None:
    """ONNX ended with 1 and an internal name, and SQL wrote two columns of one name."""
    for k, (name, target) in enumerate(
        [("prediction", "y"), ("Probabilities", "y"), ("probability of true", "y"), ("streamdp:x", "y"),
         ("a", "prediction")]
    ):  # fmt: skip
        (tmp_path / "rows.csv").write_text(f'"{name}",{target}\n' + "0.5,true\n0.25,false\n" * 20)
        settings = {
            "job": f"j{k}",
            "store": str(tmp_path / f"{k}.db"),
            "source": {"type": "csv", "path": str(tmp_path / "rows.csv")},
            "schema": {"features": {name: [0, 1]}, "target": {"column": target, "classes": ["true", "false"]}},
            "model": {"trust": "nobody"},
        }
        (tmp_path / "job.yaml").write_text(json.dumps(settings))
        quick.output("run", "job.yaml")
        for language in EXPORTS:
            code, _, said = quick("export", f"{k}.db", "--to", language, "-o", "out")
            assert (code, "name" in said) == (2, True), (language, name, said)
            assert not (tmp_path / "out").exists()


def test_names_that_postgresql_cuts_to_one_are_no_sql() -> None:
    """It reads 63 bytes of a name: a query had two columns of one name, or read one column for two."""
    long = "a" * 63
    for features, classes in (([long + "1", long + "2"], None), (["a", "b"], [long + "1", long + "2"])):
        model = LDPASGDClassifier(features=features, classes=classes, seed=1)
        document = exported_model(of_one_record(model))
        with pytest.raises(ConfigError, match="are one in PostgreSQL, which reads 63 bytes"):
            EXPORTS["sql"].write(document, "people")
        assert EXPORTS["json"].write(document, "")


@pytest.mark.parametrize(
    "name", ["prediction", "Prediction", "probabilities", "probability of True", "streamdp:v0", "", " "]
)
def test_a_column_with_a_name_that_an_export_adds_is_exported_in_no_format(name: str) -> None:
    model = LDPASGDClassifier(features=[name, "b"], seed=1)
    model.learn_one({name: 1.0, "b": 0.5}, True)
    with pytest.raises(ConfigError, match="name"):
        exported_model(model)


KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    **{f"{name} ({kind})": ({name: COMMON[name]}, set()) for name, kind in (
        ("income", "log"), ("debt", "asinh"), ("area", "power"), ("age", "knots"), ("children", "bins"),
        ("month", "cyclic"), ("plain", "bounds"), ("member", "flag"),
    )},
    "city (categories per)": ({"plain": [-1, 1], "city": COMMON["city"]}, set()),
    "product": ({"plain": [-1, 1], "month": [1, 12], "both": {"product": ["plain", "month"]}}, set()),
    "bounds: private": ({"plain": {"bounds": "private"}}, set()),
    **{f"{name} (date)": ({name: declared}, {"onnx"}) for name, declared in DATES.items()},
    "street (hash)": ({"plain": [-1, 1], **HASHED}, {"onnx", "sql"}),
    "week of the year": ({"log": DATES["log"] | {"format": "%Y-W%W-%u"}}, set(EXPORTS)),
    "nested path": ({"plain": {"bounds": [-1, 1], "column": "a.b"}}, {"sql"}),
}  # fmt: skip
"""Features of each kind, and the languages that cannot say them."""


@pytest.mark.parametrize("kind", KINDS)
def test_each_language_predicts_from_each_kind_of_column_or_check_refuses_it(
    kind: str, tmp_path: Path, postgres: Any
) -> None:
    """Months had no names; six pieces of a date beside products were too much for SQLite."""
    features, without = KINDS[kind]
    private = kind == "bounds: private"
    more = {"trust": "window", "budget": "eps=8,delta=1e-6", "window": 4000} if private else {}
    said = refusals(job(features, "number", **more))
    named = (
        set(EXPORTS)
        if "no model of this job can be exported" in " ".join(said)
        else {
            language
            for sentence in said
            for language in sentence.partition(": ")[0].removeprefix("no export to ").split(" and ")
        }
    )
    assert named == without
    assert all("; use " in sentence or ": declare " in sentence for sentence in said if "path" not in sentence)
    built = of_one_record(job(features, "number").build_estimator()) if without else None
    for language in without:
        with pytest.raises(ConfigError, match="export: "):
            EXPORTS[language].write(exported_model(built), "people")
    if without & {"json", "python"} or "path" in kind:
        return
    model, rows = learned(tmp_path, features, "number", 4000 if private else 300, **more), records(200)
    wanted = expected(model, rows)
    assert len({one[0] for one in wanted if one is not None}) > 1
    answers = {
        "python": lambda: [by_python(model, rows, tmp_path)],
        "mlflow": lambda: [by_mlflow(model, rows, tmp_path / "folder")],
        "sql": lambda: [by_duckdb(model, rows), by_sqlite(model, rows), by_postgres(model, rows, postgres.url)],
        "onnx": lambda: [by_onnx(model, rows)],
    }
    for language in answers.keys() - without:
        for found in answers[language]():
            same(found, wanted, most=1)


ISO = ["2024-02-29", "2024-02-03 04:05:06", "2024-02-03T04:05:06,5Z", "2024-02-03T23:05+01", "04:05:06.7-0130", "04:05"]
ISO += ["2024-02-03T", "2024-02-03T04", "2024-02-03T04:05:", "2024-02-03T04:05:6", "2024-02-03T04:05Z1", "04:05.5"]
ISO += [
    "2024-02-03T04:05:06.",
    "2024-02-03T04:05+1",
    "2024-02-03T04:05+01:",
    "2024-02-03T04:05-013",
    "04:05ZZ",
    "24:00",
]
FORMATS = {
    "": ISO,
    "%F %T.%f": ["2024-01-02 03:04:05.123", "2024-01-02 03:04:05.", "2024-01-02 03:04:05"],
    "%Y-%m-%dT%H:%M:%S%.fZ": ["2024-01-02T03:04:05.123Z", "2024-01-02T23:04:05Z", "2024-01-02T03:04:05.Z"],
    "%F %T%.3f": ["2024-01-02 03:04:05.123", "2024-01-02 03:04:05.12", "2024-01-02 03:04:05"],
    "%Y%m%d%H%M%S%3f": ["20240102030405123", "2024010203040512"],
    "%F %T%z": ["2024-01-02 03:04:05+01:00", "2024-01-02 23:04:05-0130", "2024-01-02 03:04:05Z",
                "2024-02-30 03:04:05+0100", "2024-01-02 03:04:05+0060"],
    "%F %T%#z": ["2024-01-02 03:04:05+01", "2024-01-02 23:04:05-0130", "2024-01-02 03:04:05Z", "2024-01-02 03:04:05"],
    "%d/%b/%Y:%H:%M:%S %z": ["10/Oct/2000:13:55:36 -0700", "1/may/2000:13:55:36 +00:00", "10/Okt/2000:13:55:36 -0700"],
    "%a %b %e %H:%M:%S %Z %Y": ["Mon Jan  1 03:00:05 CET 2024", "mon jan 1 3:0:5 A 2024", "Tue Jan 1 03:00:05 Z 2024"],
    "%A, %B %d, %Y": ["Monday, January 01, 2024", "Mon, JAN 1, 2024", "Mon, Janu 1, 2024", "Tuesday, January 01, 2024"],
    "%Y-%j": ["2024-032", "2024-366", "2023-366", "2024-0", "2024-60", "2023-60", "2023-365"],
    "%c": ["Mon Jan  1 00:00:05 2024"],
    "%s": ["0", "1700000000"],
    "%r": ["11:00:05 PM", "12:00:05 am", "13:00:00 PM"],
    "%H:%M%z": ["23:30+0100", "23:30"],
    "%-d.%-m.%Y": ["1.2.2024", "01. 2.2024", "1 .2.2024", "31.4.2024", "1.2.24"],
    "%d%%%m%%%Y %k:%M": ["1%2%2024 9:05", "01%12%2024 13:05"],
}  # fmt: skip
"""Formats of dates, and texts of which some are in them."""


@pytest.mark.parametrize("form", FORMATS)
def test_exports_read_formats_of_dates_as_a_run_does(form: str, postgres: Any) -> None:
    """Fractions of a second, offsets from UTC, weekdays and days of the year were exported in no language."""
    texts, answers = FORMATS[form], 0
    rows = pl.DataFrame({"id": range(len(texts)), "x": texts})
    for part in ("year", "month", "day", "weekday", "hour", "minute"):
        wanted = part_of(rows["x"], part, form or None, False, Faults(len(texts))).to_list()
        if wanted == [None] * len(texts):  # no such part is in it
            continue
        config = job({"x": {"format": form or None, "part": part, "bounds": [-9999, 9999]}}, "number")
        document = exported_model(of_one_record(config.build_estimator())) | {"cut": None, "ranges": None, "scale": 1.0}
        document["columns"][0]["kind"] = "as it is"
        document["outputs"] = [{"label": None, "intercept": 0.0, "weights": [1.0]}]
        given = rows.with_columns(pl.col("x").cast(pl.Float64)) if form == "%s" else rows
        assert [exported.predict(row, document) for row in given.iter_rows(named=True)] == wanted
        for by in (of_duckdb, of_sqlite, lambda *both: of_postgres(*both, postgres.url)):
            assert [None if one is None else one[0] for one in by(document, given)] == wanted
        answers += sum(value is not None for value in wanted)
    assert answers


def test_decimals_in_base64_are_texts_in_python_and_numbers_in_a_table_or_a_graph(
    tmp_path: Path, postgres: Any
) -> None:
    """They were exported in no language. A database, and who calls a graph, have them as numbers."""
    rng = np.random.default_rng(2)
    whole = [*rng.integers(-30_000, 30_000, 300).tolist(), 0, -1, 127, 128, -128, -129, 2**70, -(2**70)]
    numbers = [None, *(k / 100 for k in whole)]
    texts = [
        None,
        *(b64encode(k.to_bytes((8 + (k + (k < 0)).bit_length()) // 8, "big", signed=True)).decode() for k in whole),
    ]
    declared = {"amount": {"bounds": [-200, 200], "decimal": 2, "missing": "zero"}, "plain": [-1, 1]}
    rows = pl.DataFrame(
        {"id": range(len(texts)), "amount": texts, "plain": 0.5, "y": [(k or 0) / 100 for k in numbers]}
    )
    assert refusals(job(declared, "number")) == []
    model = run_of(tmp_path, rows, declared, "number")
    foreign = rows.head(4).with_columns(amount=pl.Series(["AB==", "12.5", " AQ==", "A"]))
    wanted, given = expected(model, pl.concat([rows, foreign])), rows.with_columns(amount=pl.Series(numbers))
    assert [one is not None for one in wanted] == [True] * len(rows) + [False] * 4
    same(by_python(model, pl.concat([rows, foreign]), tmp_path), wanted, most=1)
    same(by_mlflow(model, pl.concat([rows, foreign]), tmp_path / "folder"), wanted, most=1)
    for found in (
        by_duckdb(model, given),
        by_sqlite(model, given),
        by_postgres(model, given, postgres.url),
        by_onnx(model, given),
    ):
        same(found, wanted[: len(rows)], most=1)


ODD_TIMES = ["04:05", "2024-02-29T04:05:06", "2024-02-03T04", "2024-02-03 04:05+01", "2024-02-30T04:05", "20240203"]
ODD_TIMES += [
    "2024-W05-3",
    "0405",
    "04",
    "24:00",
    "2024-02-03T04:05:06,5Z",
    "2024-02-03T04:05\n",
    "\u0662024-02-03",
    "",
]


@pytest.mark.parametrize("part", ["day", "hour"])
def test_odd_times_and_texts_of_numbers_are_read_in_python_as_in_a_run(part: str) -> None:
    features = {"x": [0, 9], "when": {"cyclic": part}, "flag": ["false", "true"]}
    model = of_one_record(streamdp.LDPASGDRegressor(features=features, target=(0, 1)))
    document = exported_model(model)
    base = {"x": 1.0, "when": "2024-02-03T04:05", "flag": "true"}
    odd = [{"when": text} for text in ODD_TIMES] + [{"x": text} for text in ("5_0", "\u0665", " 5 ", "1e1")]
    for change in [*odd, {"flag": np.True_}, {"flag": True}, {"flag": "True"}]:
        try:
            wanted = model.encoder.encode_raw(base | change)
        except SchemaError:
            wanted = None
        found = exported.encode(base | change, document)
        assert (found is None) == (wanted is None), change
        assert found is None or found == pytest.approx(list(wanted)), change


def test_check_says_what_onnx_refuses_before_its_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who installed it after the budget was spent was refused then."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert refusals(job({"weekday": DATES["weekday"]}, "number")) == [
        "no export to onnx: 'weekday' is a date, which ONNX cannot read; use sql, python, mlflow or json"
    ]
    assert refusals(job({"plain": [-1, 1]}, "number")) == []


def test_nested_records_have_predictions_in_python(tmp_path: Path) -> None:
    """Each had none: the exported code looked for one key with dots."""
    config = job({"age": {"column": "who.age", "bounds": [0, 100]}, "plain": [-1, 1]}, "number")
    model = of_one_record(config.build_estimator())
    (tmp_path / "alone.py").write_text(str(EXPORTS["python"].write(exported_model(model), "")), encoding="utf-8")
    predict = runpy.run_path(str(tmp_path / "alone.py"))["predict"]
    wanted = predict({"who.age": 40, "plain": 0.5})
    assert isinstance(wanted, float)
    assert predict({"who": {"age": 40}, "plain": 0.5}) == wanted
    for flaw in ({"who": {}}, {"who": None}, {"who": 40}, {}):
        assert predict({"plain": 0.5} | flaw) is None
