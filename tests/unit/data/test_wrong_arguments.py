"""Schemas, sources, ledgers and stores name what is wrong in what they are given, by typed errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.files import CSVSource, JSONLSource
from connectors.http import HTTPSource
from connectors.recordfile import FileList
from streamdp import Ledger, PureDP, Store
from streamdp.data.records import Shard
from streamdp.data.schema import Schema
from streamdp.errors import ConfigError, StreamDPError
from streamdp.store.snapshot import Counts
from tests.support.memory import MemoryShards, MemorySource

FEATURES = {"a": (0.0, 1.0)}


def schema(**options: Any) -> Schema:
    return Schema(**({"features": FEATURES, "target": "y"} | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": 5}, "features: expected declarations by name, got int"),
        ({"features": [("a", (0, 1))]}, "features: expected declarations by name, got list"),
        ({"features": {"a": [1, 2, 3]}}, "'a': expected non-empty strings as public categories"),
        ({"target_scale": None}, "target_scale: expected a number, got NoneType"),
        ({"target_scale": 10**400}, "target_scale: expected a number that fits a double"),
        ({"classes": np.array(5)}, "expected non-empty strings"),
    ],
    ids=str,
)
def test_a_schema_names_what_is_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StreamDPError, match=words):
        schema(**options)


@pytest.mark.parametrize("raw", [None, 5, "a", [("a", 1)]], ids=str)
def test_a_record_is_a_mapping(raw: Any) -> None:
    for encode in (schema().encode_raw, schema().encode_one):
        with pytest.raises(StreamDPError, match="record: expected a mapping of values by name"):
            encode(raw)


@pytest.mark.parametrize("position", [None, 5, "row", b"", [], {}, {"row": "1"}, {"index": 1.5}, {"records": None}])
def test_a_source_refuses_the_position_of_another(position: Any, tmp_path: Path) -> None:
    for name, line in (("f.csv", "a,y\n1,1\n"), ("f.jsonl", '{"a": 1, "y": 1}\n')):
        (tmp_path / name).write_text(line)
    sources: list[Any] = [
        CSVSource(tmp_path / "f.csv", schema()),
        JSONLSource(tmp_path / "f.jsonl", schema()),
        MemorySource([({"a": 1.0}, 1.0, None, None)], ["a"]),
        HTTPSource(schema(), None, 10, None),
    ]
    for source in sources:
        before = source.position
        with pytest.raises(StreamDPError, match="expected"):
            source.seek(position)
        assert source.position == before
        source.close()


@pytest.mark.parametrize(
    ("most", "timeout"),
    [(None, 0.0), ("1", 0.0), (1.5, 0.0), (-1, 0.0), (True, 0.0), (1, None), (1, "1"), (1, np.nan), (1, np.inf),
        (1, 1e300)],
    ids=str,
)  # fmt: skip
def test_a_poll_takes_a_number_of_records_and_of_seconds(most: Any, timeout: Any, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,y\n1,1\n")
    records: list[Any] = [({"a": 1.0}, 1.0, None, None)]
    sources: list[Any] = [
        CSVSource(tmp_path / "f.csv", schema()),
        FileList([str(tmp_path / "f.csv")], lambda path: CSVSource(path, schema())),
        MemorySource(records, ["a"]),
        MemoryShards({Shard("t", 0): records}, ["a"]),
        HTTPSource(schema(), None, 10, None),
    ]
    for source in sources:
        with pytest.raises(ConfigError, match=r"(max_records|timeout_s): expected a .*number"):
            source.poll(most, timeout)
        source.close()


@pytest.mark.parametrize("shards", [None, 5, "t/0", [None], [("t", 0)], {"t": 0}], ids=str)
def test_a_store_claims_shards(shards: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "job.db", "job", "1", shared=True) as store:
        with pytest.raises(ConfigError, match=r"claim: expected a list of Shard\(topic, partition\)"):
            store.claim(shards)
        assert store.claim([Shard("t", 0)]) == {Shard("t", 0): None}


@pytest.mark.parametrize("path", [None, 5, b"x", "a\0b", "\ud800", ["x"]], ids=repr)
def test_a_path_is_text_that_a_file_can_have(path: Any) -> None:
    acts: list[Callable[[], Any]] = [
        lambda: Store(path, "job", "1"),
        lambda: Store.snapshot(path),
        lambda: Store.history(path),
        lambda: CSVSource(path, schema()),
    ]
    for act in acts:
        with pytest.raises(StreamDPError, match="expected the path of a file"):
            act()


@pytest.mark.parametrize("text", [None, 5, b"x", "a\0", "\ud800", ["x"], np.array([1, 2])], ids=repr)
def test_names_in_a_store_are_text(text: Any, tmp_path: Path) -> None:
    for name in ("job", "fingerprint", "config"):
        given = {"job": "j", "fingerprint": "f", "config": ""} | {name: text}
        with pytest.raises(StreamDPError, match=f"{name}: expected Unicode text"):
            Store(tmp_path / "s.db", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [(5, {"row": 1}, Counts(1)), ({}, None, Counts(1)), ({}, {"row": 1}, 1)], ids=str)
def test_a_wrong_commit_changes_nothing(wrong: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "s.db", "j", "f") as store, pytest.raises(StreamDPError, match="commit: expected"):
        store.commit(*wrong)
    assert Store.history(tmp_path / "s.db") == []


@pytest.mark.parametrize("budget", [None, 5, "eps=1", object()], ids=lambda budget: type(budget).__name__)
def test_a_ledger_wants_a_budget(budget: Any) -> None:
    ledger = Ledger("eps=1")
    with pytest.raises(StreamDPError, match="expected a budget"):
        ledger.admit("ann", budget)
    for amounts in (["secret"], [[1.0]], [10**400]):
        with pytest.raises(StreamDPError, match="amounts") as caught:
            ledger.admit_many(["ann"], PureDP(1.0), amounts)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)
    assert ledger.spent("ann").records == 0
