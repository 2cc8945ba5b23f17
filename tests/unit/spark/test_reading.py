"""The settings of a session, without Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamdp.config.job import make_config
from streamdp.spark import reading
from tests.support.spark import job


class Builder:
    """As much of Spark's builder as `session` needs."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        return self

    def master(self, address: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.mark.parametrize(
    ("master", "settings", "host"),
    [
        ("local[2]", {}, "127.0.0.1"),
        ("local-cluster[2,1,1024]", {}, "127.0.0.1"),
        ("local[2]", {"spark.driver.host": "192.0.2.7"}, "192.0.2.7"),
        ("spark://cluster:7077", {}, None),
        (None, {}, None),
    ],
)
def test_spark_of_one_machine_is_closed_to_others(
    monkeypatch: pytest.MonkeyPatch, master: str | None, settings: dict[str, str], host: str | None
) -> None:
    builder = Builder()
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setattr(reading, "SparkSession", SimpleNamespace(getActiveSession=lambda: None, builder=builder))
    found, ours = reading.session(make_config(job("a.db")), master, settings)
    assert (found, ours) == (builder, True)
    assert builder.settings.get("spark.driver.host") == host
    assert builder.settings.get("spark.driver.bindAddress") == (host and "127.0.0.1")
