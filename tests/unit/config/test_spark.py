"""Jobs that Spark learns: what is refused, and that paths and secrets are treated as in other jobs."""

from pathlib import Path
from typing import Any

import pytest

from streamdp.config.job import load_config, make_config
from streamdp.errors import ConfigError
from tests.support.commands import Quick

SCHEMA = {"features": {"a": [0, 1]}, "target": {"column": "y", "bounds": [0, 1]}, "subject": "who"}


WINDOWED = {"estimator": "WindowedRegressor", "budget": "eps=8,delta=1e-6"}


def job(**more: Any) -> dict[str, Any]:
    model = {"estimator": "LDPSGDRegressor", "budget": "eps=1"}
    return {"job": "j", "schema": SCHEMA, "model": model, "source": {"type": "spark"}} | more


def source(**settings: Any) -> dict[str, Any]:
    return job(source={"type": "spark", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (job(model=WINDOWED | {"method": "private-range"}), "model: a source of type: spark needs method: newton"),
        (job(model=WINDOWED | {"loss": "quantile"}), "model: a source of type: spark needs method: newton"),
        (job(model={"estimator": "PanPrivateRegressor"}, validation={"share": 0.1}),
            "validation: on Spark, LDP* estimators only"),
        (job(model={"trust": "process"}, statistics={"m": {"mean": "a"}}),
            "statistics: on Spark, statistics beside a model need trust: nobody"),
        (job(schema={"features": SCHEMA["features"]}, model={"trust": "window"}, statistics={"m": {"mean": "a"}}),
            "model: statistics of a window on Spark need a budget with a delta"),
        (job(schema={"features": {"t": {"text": 4}}}, model={"trust": "window", "budget": "eps=1,delta=1e-6"},
            statistics={"w": {"heavy_hitters": "t"}}),
            "model: statistics of a window on Spark need a budget with a delta and no texts"),
        (job(cap="eps=8 per 30 days"), "cap: a job on Spark counts over all time"),
        (job(commit={"records": 5}), "commit: each batch of Spark is one commit"),
        (source(stream=True), "a stream needs checkpoint"),
        (source(checkpoint="c"), "a stream needs checkpoint"),
        (source(trigger={"available_now": True}), "trigger needs stream"),
        (source(trigger={"available_now": True, "processing_time": "1 s"}, stream=True, checkpoint="c"), "not both"),
        (source(subject_from="value"), "subject_from is for format: kafka"),
        (source(shards=0), "shards"),
        (source(dead_letters="d"), "dead_letters"),
        (source(options={"kafka.sasl.jaas.config": "a password"}), "a secret must be"),
        (source(options={"password": "s3cret"}), "a secret must be"),
    ],
)  # fmt: skip
def test_what_spark_cannot_do_is_refused_with_its_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(settings)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_paths_start_from_the_folder_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(
        "job: j\nschema: {features: {a: [0, 1]}, target: {column: y, bounds: [0, 1]}}\n"
        "model: {estimator: LDPSGDRegressor}\n"
        "source: {type: spark, format: parquet, path: data, stream: true, checkpoint: notes,"
        " options: {p: {env: SDP_X}}}\n"
    )
    monkeypatch.setenv("SDP_X", "value")
    config = load_config(tmp_path / "job.yaml")
    assert (config.source.path, config.source.checkpoint) == (str(tmp_path / "data"), str(tmp_path / "notes"))
    assert config.source.client_options() == {"p": "value"}
    bucket = load_config(tmp_path / "job.yaml", [(("source", "path"), "s3a://bucket/data")])
    assert bucket.source.path == "s3a://bucket/data"


def test_other_commands_name_the_one_for_spark(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "job: j\nschema: {features: {a: [0, 1]}, target: {column: y, bounds: [0, 1]}}\n"
        "model: {estimator: LDPSGDRegressor}\nsource: {type: spark}\n"
    )
    code, _, said = quick("run", "job.yaml")
    assert code == 2
    assert "streamdp spark run" in said
    code, _, said = quick("check", "job.yaml")
    assert code == 2
    assert "check reads files" in said
    (tmp_path / "a.csv").write_text("a,y\n1,1\n")
    code, _, said = quick("spark", "run", "job.yaml", "--set", "source={type: csv, path: a.csv}")
    assert code == 2
    assert "source of type: spark" in said
    code, _, said = quick("spark", "run", "job.yaml", "--conf", "nothing")
    assert code == 2
    assert "KEY=VALUE" in said
