"""Records in Parquet, Arrow, gzip, Zstandard, nested JSON and folders are the records of the same CSV file."""

import gzip
import json
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import zstandard
from pyarrow import feather
from pyarrow import parquet as pq

from connectors.bytestream import ByteStream
from connectors.tables import read_texts
from streamdp.config.file import FileSourceConfig
from streamdp.data.records import Batch
from streamdp.data.schema import Schema
from streamdp.data.times import TimeColumn
from streamdp.errors import SchemaError, SourceError

N = 700
SCHEMA = Schema(
    {
        "age": (0, 100),
        "city": ["Paris", "Lyon"],
        "ok": ["false", "true"],
        "h": {"column": "at", "part": "hour", "bounds": (0, 23)},
    },
    "y",
    subject="id",
)


def frame(n: int = N, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    at = np.datetime64("2024-01-01T00:00:00") + rng.integers(0, 10**6, n).astype("timedelta64[s]")
    return pl.DataFrame(
        {
            "age": rng.uniform(0, 100, n),
            "city": [["Paris", "Lyon", "Rome"][(i % 50 == 7 and 2) or i % 2] for i in range(n)],
            "ok": rng.uniform(size=n) > 0.5,
            "at": pl.Series(at.astype("datetime64[ms]")),
            "y": rng.integers(0, 9, n),
            "id": [f"person {i}" for i in range(n)],
        }
    )


def text(data: pl.DataFrame) -> bytes:
    return data.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S")).write_csv().encode()


def nested(data: pl.DataFrame) -> bytes:
    flat = data.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S"))
    return b"".join(json.dumps(row).encode() + b"\n" for row in flat.to_dicts())


def write(folder: Path, kind: str) -> FileSourceConfig:
    data = frame()
    name = {"gzip": "d.csv.gz", "zstd": "d.csv.zst", "frames": "d.csv.zst"}.get(kind, f"d.{kind}")
    path = folder / name
    match kind:
        case "csv":
            path.write_bytes(text(data))
        case "gzip":
            path.write_bytes(gzip.compress(text(data)))
        case "zstd":
            path.write_bytes(zstandard.compress(text(data)))
        case "frames":
            path.write_bytes(b"".join(zstandard.compress(part) for part in (text(data)[:999], text(data)[999:])))
        case "jsonl":
            path.write_bytes(nested(data))
        case "parquet":
            data.write_parquet(path, row_group_size=100)
        case "arrow":
            data.write_ipc(path)
    return FileSourceConfig(type=kind if kind in ("jsonl", "parquet", "arrow") else "csv", path=str(path))


def read(config: FileSourceConfig, size: int = 97, position: Any = None, key: bytes | None = None) -> list[Batch]:
    source = config.build(SCHEMA)
    if key is not None:
        source.recognise(key)
    if position is not None:
        source.seek(position)
    out = []
    while not source.finished:
        out.append(source.poll(size, 0.0))
    source.close()
    return out


def flat(batches: list[Batch]) -> tuple[Any, ...]:
    subjects = [s for b in batches for s in b.subjects or ()]
    dead = [(d.position, d.reason, d.column) for b in batches for d in b.dead]
    return np.concatenate([b.X for b in batches]), np.concatenate([b.y for b in batches]), subjects, dead


KINDS = ["csv", "gzip", "zstd", "frames", "jsonl", "parquet", "arrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_records_in_every_container(tmp_path: Path, kind: str) -> None:
    X, y, subjects, dead = flat(read(write(tmp_path, kind)))
    expected = frame().filter(pl.col("city") != "Rome")
    assert np.allclose(X[:, 0] * 50 + 50, expected["age"])
    assert np.array_equal(X[:, 1], expected["city"] == "Lyon")
    assert np.array_equal(X[:, 2], expected["ok"])
    assert np.allclose((X[:, 3] + 1) * 11.5, expected["at"].dt.hour())
    assert y.tolist() == expected["y"].to_list()
    assert subjects == expected["id"].to_list()
    header = kind in ("csv", "gzip", "zstd", "frames")
    assert dead == [(i + 1 + header, "unknown_category", "city") for i in range(7, N, 50)]


@pytest.mark.parametrize("kind", KINDS)
def test_any_position_can_be_resumed(tmp_path: Path, kind: str) -> None:
    config, key = write(tmp_path, kind), b"k" * 32
    batches = read(config, key=key)
    for k in (0, 3, len(batches) - 1):
        before, after = batches[: k + 1], read(config, 31, batches[k].position, key)
        together = flat([*before, *after])
        for a, b in zip(together, flat(batches), strict=True):
            assert np.array_equal(a, b)


def folder(path: Path, counts: list[int]) -> FileSourceConfig:
    for i, n in enumerate(counts):
        (path / f"{i}.csv").write_bytes(text(frame(n, seed=i)))
    (path / "notes.md").write_text("not data")
    (path / ".hidden.csv").write_text("not data")
    return FileSourceConfig(type="csv", path=str(path))


def test_a_folder_is_its_files_in_order_and_resumes_anywhere(tmp_path: Path) -> None:
    config = folder(tmp_path, [120, 1, 200])
    batches = read(config)
    assert flat(batches)[2] == [
        s for i, n in enumerate([120, 1, 200]) for s in frame(n, i).filter(pl.col("city") != "Rome")["id"]
    ]
    positions = np.concatenate([b.positions for b in batches]).tolist()
    assert sorted(set(positions)) == positions
    for batch, k in zip(batches, range(len(batches)), strict=True):
        rest = read(config, 50, json.loads(json.dumps(batch.position)))
        assert flat([*batches[: k + 1], *rest])[2:] == flat(batches)[2:]
    listed = FileSourceConfig(type="csv", path=[str(tmp_path / f"{i}.csv") for i in range(3)])
    assert flat(read(listed))[2] == flat(batches)[2]


def test_files_may_be_added_at_the_end_only(tmp_path: Path) -> None:
    config = folder(tmp_path, [10, 20])
    end = read(config)[-1].position
    (tmp_path / "2.csv").write_bytes(text(frame(5, seed=9)))
    assert flat(read(config, 50, end))[2] == frame(5, seed=9)["id"].to_list()
    (tmp_path / "0a.csv").write_bytes(text(frame(5)))
    with pytest.raises(SourceError, match="the first 2 files have other names"):
        read(config, 50, end)
    with pytest.raises(SourceError, match="the position of several files"):
        read(config, 50, read(FileSourceConfig(path=str(tmp_path / "0.csv")))[0].position)


def test_files_of_one_name_are_told_by_their_folders(tmp_path: Path) -> None:
    """Before, a list with the newest file first learned records again, and passed new ones over."""
    for year in range(3):
        (tmp_path / "a" / str(year)).mkdir(parents=True)
        (tmp_path / "a" / str(year) / "data.csv").write_bytes(text(frame(5, seed=year)))

    def config(*years: int, under: str = "a") -> FileSourceConfig:
        return FileSourceConfig(path=[str(tmp_path / under / str(year) / "data.csv") for year in years])

    end = read(config(0, 1))[-1].position
    with pytest.raises(SourceError, match="the first 2 files have other names"):
        read(config(2, 1, 0), 50, end)
    (tmp_path / "a").rename(tmp_path / "b")
    assert flat(read(config(0, 1, 2, under="b"), 50, end))[2] == frame(5, seed=2)["id"].to_list()


def test_nested_values_by_path(tmp_path: Path) -> None:
    schema = Schema({"payload.after.age": (0, 100), "kind": {"column": "op.kind", "categories": ["c", "u"]}}, "y")
    records: list[Any] = [
        {"payload": {"after": {"age": 75, "more": [1]}}, "op": {"kind": "u"}, "y": 1},
        {"payload.after.age": 50, "op": {"kind": "c"}, "y": 2},  # a flat key of this name
        {"payload": {"after": None}, "op": {"kind": "c"}, "y": 3},
        {"payload": {"after": {"age": {"x": 1}}}, "op": {"kind": "c"}, "y": 4},
        {"payload": [1], "op": {"kind": "c"}, "y": 5},
    ]
    lines = [json.dumps(record) for record in records]
    lines.append('{"payload": {"after": {"age": 1, "age": 2}}, "op": {"kind": "c"}, "y": 6}')
    (tmp_path / "d.jsonl").write_text("\n".join(lines) + "\n")
    source = FileSourceConfig(type="jsonl", path=str(tmp_path / "d.jsonl"), max_bad_share=None).build(schema)
    batch = source.poll(100, 0.0)
    assert batch.X.tolist() == [[0.5, 1.0], [0.0, 0.0]]
    reasons = [(3, "missing"), (4, "nested"), (5, "missing"), (6, "duplicate_key")]
    assert [(d.position, d.reason) for d in batch.dead] == reasons
    good = pl.DataFrame(records[:1])
    good.write_parquet(tmp_path / "d.parquet")
    table = FileSourceConfig(type="parquet", path=str(tmp_path / "d.parquet")).build(schema).poll(9, 0.0)
    assert table.X.tolist() == [[0.5, 1.0]]


PACKED = zstandard.compress(text(frame()))
DAMAGED = PACKED[:20] + b"\xff" * (len(PACKED) - 20)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv.zst", PACKED[:-20], "ends in the middle of its Zstandard stream"),
        ("d.csv.zst", DAMAGED, "its Zstandard stream cannot be unpacked"),
        ("d.arrow", b"ARROW1 no", "is no arrow file, or is damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    kind: Any = name.split(".")[-1] if not name.endswith("zst") else "csv"
    with pytest.raises(SourceError, match=message):
        read(FileSourceConfig(type=kind, path=str(tmp_path / name)))


def test_a_packed_file_names_the_extra_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.csv.zst").write_bytes(PACKED)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SourceError, match=r"pip install '.\[zstd\]'"):
        read(FileSourceConfig(type="csv", path=str(tmp_path / "d.csv.zst")))


def test_a_table_without_a_column_and_an_empty_folder(tmp_path: Path) -> None:
    frame().rename({"city": "ctiy"}).write_parquet(tmp_path / "d.parquet")
    with pytest.raises(SchemaError, match=r"lacks the declared 'city'; did you mean 'ctiy'\?"):
        read(FileSourceConfig(type="parquet", path=str(tmp_path / "d.parquet")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"has no file that ends in \.parquet"):
        read(FileSourceConfig(type="parquet", path=str(tmp_path / "empty")))


def test_a_column_may_have_the_name_of_a_packed_file(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("BZh1,PK,xz\n1,2,3\n")
    stream, found = ByteStream(str(tmp_path / "data.csv")), b""
    while piece := stream.read(100, 0.0):
        found += piece
    assert found == b"BZh1,PK,xz\n1,2,3\n"


TABLES = ("parquet", "arrow")


def save(table: pa.Table, path: Path, kind: str, **options: Any) -> FileSourceConfig:
    pq.write_table(table, path, **options) if kind == "parquet" else feather.write_feather(table, path, **options)
    return FileSourceConfig(type=kind, path=str(path), max_bad_share=None)


def column(name: str) -> pa.Array:
    noon = [datetime(2024, 1, 31, 20, 45, tzinfo=UTC)]
    zoned = pa.array(noon, pa.timestamp("us", "+05:30"))
    return {
        "offset": zoned,
        "behind": pa.array(noon, pa.timestamp("ms", "-03:30")),
        "zone": pa.array(noon, pa.timestamp("us", "Asia/Kolkata")),
        "nested": pa.StructArray.from_arrays([zoned], ["t"]),
        "decimal256": pa.array([Decimal("1.5")], pa.decimal256(50, 2)),
        "duration": pa.array([timedelta(1)]),
        "dictionary": pa.array(["b"]).dictionary_encode(),
        "large": pa.array(["b"], pa.large_string()),
        "list": pa.array([[1]]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    }[name]


NUMBER = pa.array([50.0])
UNUSED = ["offset", "zone", "nested", "decimal256", "duration", "dictionary", "large", "list", "map"]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("name", UNUSED)
def test_columns_that_are_not_used_are_not_read(tmp_path: Path, kind: str, name: str) -> None:
    config = save(pa.table({"age": NUMBER, "more": column(name), "y": NUMBER}), tmp_path / "d", kind)
    assert config.build(Schema({"age": (0, 100)}, "y")).poll(9, 0.0).X.tolist() == [[0.0]]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(
    ("name", "path", "day", "hour"),
    [("offset", "at", 1, 2), ("behind", "at", 31, 17), ("zone", "at", 1, 2), ("nested", "at.t", 1, 2)],
)
def test_times_of_a_table_are_in_their_zone(
    tmp_path: Path, kind: str, name: str, path: str, day: int, hour: int
) -> None:
    config = save(pa.table({"at": column(name), "y": NUMBER}), tmp_path / "d", kind)
    parts: Any = {part: {"column": path, "part": part, "bounds": (0, 32)} for part in ("day", "hour")}
    batch = config.build(Schema(parts, "y")).poll(9, 0.0)
    assert np.allclose((batch.X + 1) * 16, [[day, hour]])
    assert not batch.dead


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("name", ["offset", "behind", "zone"])
def test_the_time_of_a_record_in_a_table_is_its_moment(tmp_path: Path, kind: str, name: str) -> None:
    config = save(pa.table({"age": NUMBER, "at": column(name), "y": NUMBER}), tmp_path / "d", kind)
    times = config.build(Schema({"age": (0, 100)}, "y", time=TimeColumn("at", "iso"))).poll(9, 0.0).times
    assert times.tolist() == [datetime(2024, 1, 31, 20, 45, tzinfo=UTC).timestamp()]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(
    ("name", "message"), [("decimal256", "'d' has decimals of 50 digits"), ("map", "'d' holds no")]
)
def test_a_type_that_is_not_read_is_named(tmp_path: Path, kind: str, name: str, message: str) -> None:
    config = save(pa.table({"d": column(name), "y": NUMBER}), tmp_path / "d", kind)
    with pytest.raises(SchemaError, match=message):
        config.build(Schema({"d": (0, 100)}, "y"))


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_polars_cannot_read_is_not_called_damaged(tmp_path: Path, kind: str) -> None:
    config = save(pa.Table.from_arrays([NUMBER] * 3, names=["age", "age", "y"]), tmp_path / "d", kind)
    with pytest.raises(SourceError, match="two columns of one name, or a column of a type"):
        config.build(Schema({"age": (0, 100)}, "y")).poll(9, 0.0)


def test_bytes_are_text_and_other_types_are_named(tmp_path: Path) -> None:
    """Before, text that Hive and Impala write as BINARY was refused, and all types by one sentence."""
    table = pa.table(
        {
            "city": pa.array([b"Ulm", "Köln".encode(), b"\xff"], pa.binary()),
            "took": pa.array([1, 2, 3], pa.duration("s")),
            "list": [[1.0], [2.0], [3.0]],
            "uuid": pa.array([UUID(int=0xFF00 + i).bytes for i in range(3)], pa.binary(16)),
            "y": [1.0, 2.0, 3.0],
        }
    )
    pq.write_table(table, tmp_path / "d.parquet")
    config = FileSourceConfig(type="parquet", path=str(tmp_path / "d.parquet"), max_bad_share=None)
    batch = config.build(Schema({"city": ["Ulm", "Köln"]}, "y")).poll(9, 0.0)
    assert batch.X.tolist() == [[0.0], [1.0]]
    assert [(letter.reason, letter.column) for letter in batch.dead] == [("missing", "city")]
    kinds = (("took", "but durations"), ("list", "but lists"), ("uuid", "no text, such as fixed-size binary"))
    for name, said in kinds:
        with pytest.raises(SchemaError, match=f"'{name}' .*{said}"):
            config.build(Schema({name: ["a", "b"]}, "y"))
    with pytest.warns(UserWarning, match="left out") as warned:  # a draft left them out without a word
        assert read_texts(config.path, "parquet", None).columns == ["city", "y"]
    texts = [str(warning.message) for warning in warned]
    assert [
        text.startswith(f"left out: '{name}'") and said in text for text, (name, said) in zip(texts, kinds, strict=True)
    ]
