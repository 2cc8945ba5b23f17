"""What callers send is read in one way if its meaning is certain, and in another one if not: both agree."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from connectors.httpcall import CallRecords
from streamdp.config.schema import SchemaConfig
from streamdp.data.schema import Schema
from streamdp.service.features import RecordReader
from streamdp.service.schemas import LearnCall, PredictCall

TARGETS: list[Any] = [
    "True",
    "true",
    "t",
    "yes",
    "1",
    1,
    0,
    True,
    False,
    1.5,
    -0.0,
    1e308,
    10**400,
    2**60,
    "x",
    "",
    None,
]
SUBJECTS: list[Any] = [
    "ann",
    "",
    None,
    7,
    10**20,
    10**350,
    "7",
    "007",
    "1.0",
    "1e+20",
    "a.b",
    "a+b",
    "é",
    "a\n1.0\nb",
    -0,
]


@pytest.mark.parametrize(
    "declared",
    [
        {"target": {"column": "y", "classes": ["False", "True"]}, "subject": "s"},
        {"target": {"column": "y", "classes": ["x", "1"]}, "subject": {"column": "s", "type": "integer"}},
        {"target": {"column": "y", "bounds": [-1, 1], "scale": 2.0}, "subject": "s"},
        {"target": {"column": "y"}},
        {"target": {"column": "y", "classes": ["False", "True"]}, "missing_values": ["x", "1"]},
    ],
)
def test_records_are_the_same_read_as_scalars_or_as_columns(
    declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(product(TARGETS, SUBJECTS))
    reader = RecordReader(SchemaConfig.model_validate({"features": {"a": [0, 1]}} | declared))
    positions = np.arange(len(pairs))
    every = CallRecords(np.zeros((len(pairs), 1)), *map(list, zip(*pairs, strict=True)), [None] * len(pairs))
    plain = 0
    for i in range(len(pairs)):
        rows = CallRecords(every.X[:1], every.targets[i : i + 1], every.subjects[i : i + 1], [None])
        found = reader.complete(rows, positions[:1], {})
        with monkeypatch.context() as patch:
            patch.setattr(Schema, "encode_plain", lambda *given: None)
            exact = reader.complete(rows, positions[:1], {})
        assert found.dead == exact.dead, pairs[i]
        np.testing.assert_array_equal(found.y, exact.y, strict=True)
        np.testing.assert_array_equal(np.signbit(found.y), np.signbit(exact.y))
        assert found.subjects == exact.subjects, pairs[i]
        assert (found.features, found.position) == (exact.features, exact.position)
        assert np.isnan(found.budgets).all()  # type: ignore[arg-type]
        assert found.times is None
        plain += not found.dead
    assert plain > 10


RECORDS: list[list[Any]] = [
    [{"x": {"a": 1}, "y": "True", "subject": "ann"}, {"x": {}, "y": None, "subject": 7}],
    [{"x": {"a": 1}, "budget": 1.0}, {"x": {"a": 1}, "budget": None}],
    [{"x": {"a": 1}, "budget": 1}],
    [{"x": {"a": 1}, "id": 7}],
    [{"x": {"a": 1}}, {"y": 1.5}],
    [{"x": None}],
    [{"x": [1]}],
    [{"x": {"a": 1}, "z": 1}],
    [{"x": {"a": 1}, "subject": True}],
    [{"x": {"a": 1}, "subject": 1.0}],
    [{"y": {}}],
    [{}],
    [],
    [1],
    [{"x": {}}, None],
]


@pytest.mark.parametrize("records", RECORDS)
def test_what_is_taken_without_validation_passes_it_unchanged(records: list[Any]) -> None:
    for kind in (LearnCall, PredictCall):
        if kind.takes(records):
            validated = kind.model_validate({"records": records}).records
            assert validated == records
            assert [list(map(type, record.values())) for record in validated] == [
                list(map(type, record.values())) for record in records
            ]


def test_plain_records_are_taken() -> None:
    assert [LearnCall.takes(records) for records in RECORDS[:4]] == [True, True, False, False]
    assert PredictCall.takes([{"a": 1}, {}])
