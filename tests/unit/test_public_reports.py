"""Reports about projects nearby, tried here: docs/reference/public_reports.md has the list and the outcomes."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml

from connectors.avrorows import AvroDecoder
from connectors.avroschemas import parsed
from streamdp import GaussianDP, LDPASGDRegressor, LDPSGDClassifier, Ledger, PanPrivateClassifier, PureDP
from streamdp.client import Client, Device
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.data.times import TimeColumn
from streamdp.errors import ConfigError, SchemaError
from tests.support.commands import Quick


def read(kind: Any, path: Path, schema: Schema) -> list[Batch]:
    source = FileSourceConfig(type=kind, path=str(path), max_bad_share=None).build(schema)
    out = []
    while not source.finished:
        out.append(source.poll(10**6, 0.0))
    source.close()
    return out


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["d[1]", "d*", "d?", "[!a]", "d{1,2}", "~x", "a=5"])
def test_a_file_with_a_pattern_in_its_name_is_that_file(tmp_path: Path, kind: str, name: str) -> None:
    """pola-rs/polars#24608. An Arrow file was not found, or the rows of others were learned with its own."""
    frame = pl.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    folder = tmp_path / name
    folder.mkdir()
    for other in (name, "d1", "d2"):
        path = str(folder / f"{other}.{kind}")
        frame.write_parquet(path) if kind == "parquet" else frame.write_ipc(path)
    (batch,) = read(kind, folder / f"{name}.{kind}", Schema({"a": (0, 10)}, "y"))
    assert batch.y.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("token", ["abc\n", " abc", "", "a b", "abc\r\nX: y"])
def test_a_token_that_no_header_may_have_is_named_at_once(token: str) -> None:
    """depictio/depictio#104, openai/openai-python#961. It was said that the service does not answer, after retries."""
    for make in (lambda: Client("http://127.0.0.1:1", token), lambda: Device("http://127.0.0.1:1", "job", token=token)):
        with pytest.raises(ConfigError, match="token: expected ASCII text without blanks and line ends") as caught:
            make()
        assert "abc" not in str(caught.value)


def test_numbers_with_a_decimal_comma_are_read(tmp_path: Path, quick: Quick) -> None:
    """pola-rs/polars#26685. With --public, each number became a class without a word."""
    (tmp_path / "eu.csv").write_text("age;pay;town;code\n23;1.234,5;Bonn;1,2,3\n54;60,25;Ulm;4,5\n33;7;Ulm;6\n")
    assert quick("init", "eu.csv", "--public", "--target", "pay")[0] == 0
    written = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (written["source"]["decimal"], written["source"]["thousands"]) == (",", ".")
    assert written["schema"]["target"]["bounds"] == [0, 1240]  # rounded outwards
    (tmp_path / "us.csv").write_text("age,pay\n23,4.5\n54,60\n")
    assert "comma" not in quick("init", "us.csv", "-o", "us.yaml")[2]


def test_parts_of_a_cap_that_are_no_exact_doubles_fill_it_and_no_more() -> None:
    """opendp/opendp#2131, w3c/attribution#77."""
    for cap, budget, times in (
        ("eps=1", PureDP(0.1), 10),
        ("eps=1", PureDP(1 / 11), 11),
        ("eps=1", PureDP(1 / 3), 3),
        ("mu=1", GaussianDP(0.1), 100),
    ):
        with Ledger(cap) as ledger:
            assert [ledger.admit("ann", budget) for _ in range(times + 1)] == [True] * times + [False]
            assert not ledger.admit("ann", type(budget)(2.0**-10))


def test_a_prediction_changes_nothing() -> None:
    """online-ml/river#499."""
    one, other = (LDPASGDRegressor(features=["a"], seed=1) for _ in range(2))
    for i in range(50):
        one.learn_one({"a": i / 50}, 0.2)
        other.predict_one({"a": 2e5})
        other.learn_one({"a": i / 50}, 0.2)
    assert np.array_equal(one.theta, other.theta)


@pytest.mark.parametrize(
    "options",
    [
        {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
        {"use_deprecated_int96_timestamps": True},
        {"version": "1.0"},
        {"version": "2.6"},
    ],
    ids=["ms under a schema of ns", "INT96", "us", "ns"],
)
def test_moments_have_their_unit(tmp_path: Path, options: dict[str, Any]) -> None:
    """apache/arrow-rs#1459, ray-project/deltacat#73."""
    at = pd.date_range("2020-01-01 07:00", periods=3, freq="h").astype("datetime64[ns]")
    pd.DataFrame({"at": at, "time": at, "y": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "d", **options)
    hour: Any = {"h": {"column": "at", "part": "hour", "bounds": (0, 24)}}
    (batch,) = read("parquet", tmp_path / "d", Schema(hour, "y", time=TimeColumn("time", "iso")))
    assert ((batch.X.ravel() + 1) * 12).tolist() == [7.0, 8.0, 9.0]
    assert batch.times.tolist() == [moment.timestamp() for moment in at.tz_localize("UTC")]


LABELS = [
    pd.Series([1, 0, 1], dtype="Int64"),
    pd.Series([1, 0, 1], dtype="int64[pyarrow]"),
    pd.Series(["u", "v", "u"], dtype="string"),
    pd.Series(["u", "v", "u"], dtype="category"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("y", LABELS, ids=[str(y.dtype) for y in LABELS])
def test_nullable_types_of_pandas(y: pd.Series) -> None:
    """scikit-learn/scikit-learn#25953, #34538."""
    columns = {"a": pd.array([1, 2, 3], "Int64"), "b": pd.array([True, False, True], "boolean")}
    X = pd.DataFrame(columns | {"c": pd.array(["p", "q", "p"], "string")})
    for kind in (LDPSGDClassifier, PanPrivateClassifier):
        features: Any = {"a": (0, 5), "b": [False, True], "c": ["p", "q"]}
        model: Any = kind(features=features, classes=sorted(set(y)))
        model.learn_many(X, y)
        assert model.n_seen == 3
        gap = y.copy()
        gap[1] = None
        with pytest.raises(SchemaError, match="expected one of the 2 declared classes"):
            model.learn_many(X, gap)
        with pytest.raises(SchemaError, match="column 'a': missing"):
            model.learn_many(X.assign(a=pd.array([1, None, 3], "Int64")), y)
        assert model.n_seen == 3


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name} | field for name, field in fields.items()]}


OLD = {"type": "enum", "name": "Old", "symbols": ["a", "b", "c"]}
NEW = {"type": "enum", "name": "New", "aliases": ["Old"], "symbols": ["a", "b"], "default": "a"}


def test_symbols_and_fields_of_avro_that_were_renamed_or_are_new(tmp_path: Path) -> None:
    """hamba/avro#340, fastavro/fastavro#323 and #225."""
    was = record(bad={"type": OLD}, h={"type": record(mid={"type": "double"}) | {"name": "H"}}, t={"type": "double"})
    inner = record(id={"type": "double", "aliases": ["mid"]}, new={"type": "double", "default": 3.0})
    now = record(
        e={"type": NEW, "aliases": ["bad"]}, h={"type": inner | {"name": "G", "aliases": ["H"]}}, t={"type": "double"}
    )
    (tmp_path / "now.avsc").write_text(json.dumps(now))
    decoder = AvroDecoder(tmp_path / "now.avsc", writers={1: parsed("was", [json.dumps(was)])})
    raw: list[bytes | None] = []
    for symbol in "abc":
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(was), {"bad": symbol, "h": {"mid": 2.0}, "t": 1.0})
        raw.append(b"\0\0\0\0\1" + out.getvalue())
    schema = Schema({"e": ["a", "b"], "h.id": (0, 4), "h.new": (0, 4)}, "t")
    batch = decoder(raw, np.arange(3), {}, schema)
    assert batch.X.tolist() == [[0.0, 0.0, 0.5], [1.0, 0.0, 0.5], [0.0, 0.0, 0.5]]
