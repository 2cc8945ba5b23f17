"""The settings of a session, without Spark."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from streamdp.config.job import make_config
from streamdp.spark import reading
from tests.support.spark import job


class Builder:
    """As much of Spark's builder as `session` needs."""

    def appName(self, name: str) -> Builder:
        return self

    def master(self, address: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.mark.parametrize(
    ("master", "own", "address"),
    [
        ("local[2]", None, "127.0.0.1"),
        ("local-cluster[2,1,1024]", None, "127.0.0.1"),
        ("local[2]", "192.0.2.7", "192.0.2.7"),
        ("spark://cluster:7077", None, None),
        (None, None, None),
    ],
)
def test_spark_of_one_machine_is_closed_to_others(
    monkeypatch: pytest.MonkeyPatch, master: str | None, own: str | None, address: str | None
) -> None:
    environment = {"PYSPARK_PYTHON": "python"} | ({} if own is None else {"SPARK_LOCAL_IP": own})
    monkeypatch.setattr(os, "environ", environment)
    builder = Builder()
    monkeypatch.setattr(reading, "SparkSession", SimpleNamespace(getActiveSession=lambda: None, builder=builder))
    assert reading.session(make_config(job("a.db")), master, {}) == (builder, True)
    assert environment.get("SPARK_LOCAL_IP") == address
