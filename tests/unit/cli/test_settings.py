"""The options of `streamdp run`, `--set` above all: what job they make, and how mistakes are refused."""

from pathlib import Path
from typing import Any

import pytest

from streamdp.cli.settings import job_config, parse_classes, parse_features
from streamdp.config.job import JobConfig, load_config
from streamdp.errors import ConfigError, SourceError


def options() -> dict[str, Any]:
    """What `--target late --classes a,b --feature x=0:1 --subject who` give."""
    target = {"column": "late", "classes": ["a", "b"], "bounds": None}
    return {
        "job": None,
        "schema": {"target": target, "features": parse_features(["x=0:1"]), "subject": "who"},
        "model": {"budget": None},
        "source": {"follow": None},
    }


def job(*assignments: str, what: str = "data.csv") -> JobConfig:
    return job_config(what, options(), assignments)


def test_options_alone() -> None:
    config = job()
    assert (config.job, config.source.type, config.source.path) == ("data", "csv", "data.csv")
    assert config.model.estimator == "WindowedClassifier"
    assert config.schema_.features == {"x": (0.0, 1.0)}


@pytest.mark.parametrize(
    ("assignment", "place", "value"),
    [
        ("model.eta=0.1", ("model", "eta"), 0.1),
        ("model.eta=1e-3", ("model", "eta"), 0.001),
        ("model.intercept=false", ("model", "intercept"), False),
        ("model.loss=hinge", ("model", "loss"), "hinge"),
        ("model.loss={name: logistic, clip: 2}", ("model", "loss"), {"name": "logistic", "clip": 2}),
        ("model.budget=eps=2", ("model", "budget"), "eps=2"),
        ("model.domain.ball=3", ("model", "domain", "ball"), 3.0),
        ("model.eta=null", ("model", "eta"), None),
        ("commit.records=1000", ("commit", "records"), 1000),
        ("commit={records: 7, seconds: 0.5}", ("commit", "seconds"), 0.5),
        ("cap=eps=3", ("cap",), "eps=3"),
        ("store='1'", ("store",), "1"),
        ("job=no", ("job",), "no"),
        ("schema.budget=spend", ("schema_", "budget"), "spend"),
        ("schema.features.y=[no, yes]", ("schema_", "features"), {"x": (0.0, 1.0), "y": ["no", "yes"]}),
        ("schema.features.y=[-1, 1]", ("schema_", "features"), {"x": (0.0, 1.0), "y": (-1.0, 1.0)}),
        (r"source.delimiter=\t", ("source", "delimiter"), "\t"),
        ("source.delimiter=|", ("source", "delimiter"), "|"),
        ("source.delimiter=,", ("source", "delimiter"), ","),
        ("source.delimiter=' '", ("source", "delimiter"), " "),
        ("source.max_bad_share=null", ("source", "max_bad_share"), None),
        ("source.type=jsonl", ("source", "type"), "jsonl"),
        ("source.follow=true", ("source", "follow"), True),
    ],
)
def test_a_value_is_read_as_in_a_yaml_job(assignment: str, place: tuple[str, ...], value: object) -> None:
    found: Any = job("model.trust=nobody", assignment)
    for name in place:
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_set_and_yaml_give_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "job: data\nsource: {path: data.csv, max_bad_share: null}\n"
        "schema: {features: {x: [0, 1]}, target: {column: late, classes: [a, b]}, subject: who}\n"
        "model: {estimator: LDPSGDClassifier, loss: {name: logistic, clip: 1.5}, alpha: 0.6, domain: {box: [-1, 1]}}\n"
        "commit: {records: 9}\n"
    )
    config = job(
        "model.estimator=LDPSGDClassifier",
        "model.loss.name=logistic",
        "model.loss.clip=1.5",
        "model.alpha=0.6",
        "model.domain={box: [-1, 1]}",
        "commit.records=9",
        "source.max_bad_share=null",
    )
    assert config.located(tmp_path) == load_config(path)
    assert config.fingerprint() == load_config(path).fingerprint()


def test_blanks_around_words_are_left_out() -> None:
    assert parse_classes("no, yes") == ["no", "yes"]
    assert parse_features(["a=no | yes", "b= 0 : 1"]) == {"a": ["no", "yes"], "b": [0.0, 1.0]}


def test_a_mapping_may_be_completed() -> None:
    config = job("model.trust=nobody", "model.loss={name: logistic}", "model.loss.clip=2")
    assert config.model.loss == {"name": "logistic", "clip": 2}


def test_all_of_a_job_may_be_set() -> None:
    schema = "schema={target: {column: y}, features: {x: [0, 1]}}"
    config = job_config("data.jsonl", {"model": {}, "source": {"follow": None}}, [schema, "model.method=newton"])
    assert (config.model.estimator, config.source.type) == ("WindowedRegressor", "jsonl")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["model.eta"], "--set 'model.eta': expected KEY=VALUE, such as model.eta=0.1"),
        (["=1"], "--set '': expected KEY=VALUE"),
        (["model..eta=1"], "--set 'model..eta': expected KEY=VALUE"),
        ([".eta=1"], "--set '.eta': expected KEY=VALUE"),
        (["model.eta="], "--set model.eta: expected a value"),
        (["source.delimiter= "], "--set source.delimiter: expected a value; put quotes"),
        (['source.delimiter="'], "--set source.delimiter, line 1, column 2: found unexpected end"),
        (["model.loss={name: huber"], "--set model.loss, line 1"),
        (["model.loss={clip: 1, clip: 2}"], "--set model.loss, line 1, column 11: 'clip' is given twice"),
        (["model.loss={[a]: 1}"], "--set model.loss, line 1, column 2: expected text as a key"),
        (["model.horizon=" + "9" * 5000], "--set model.horizon: not YAML text"),
        (["model.eta=\x00"], "--set model.eta: not YAML text"),
        (["model.eta=1\n---\n2"], "--set model.eta, line 2, column 1: "),
        (["modell.eta=1"], "modell: unknown setting"),
        (["schema.time=5"], "schema.time: expected a mapping of settings, as {column: ..., unit: ...}"),
        (["model.horizon=9"], "model: WindowedClassifier has no horizon"),
        (["schema.subject=x"], "--set schema.subject: the setting is given twice"),
        (["model.eta=1", "model.eta=2"], "--set model.eta: the setting is given twice"),
        (["model.eta=1", "model={eta: 2}"], "--set model: the setting is given twice"),
        (["model.loss=huber", "model.loss.clip=1"], "--set model.loss.clip: model.loss is not a mapping of settings"),
        (["store.path=x", "store=y"], "--set store: the setting is given twice"),
    ],
)
def test_mistakes_name_the_key(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(*assignments)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["hunter2", "[hunter2]", "{a: hunter2}", "'hunter2"])
@pytest.mark.parametrize("key", ["model.eta", "commit.records", "model.nothing", "source.follow"])
def test_values_stay_out_of_messages(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(f"{key}={text}")
    assert key in str(caught.value)
    assert "hunter2" not in str(caught.value)


JOB = """job: late
source: {type: csv, path: data.csv}
schema:
  features: {x: [0, 1]}
  target: {column: late}
model:
  estimator: LDPASGDRegressor
  eta: 0.5
cap:
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(JOB)
    return str(tmp_path / "job.yaml")


def test_set_replaces_settings_of_a_file(file: str, tmp_path: Path) -> None:
    before = load_config(file)
    changed = job_config(file, {"model": {"budget": None}}, ["model.eta=0.1", "commit.records=7", "store=other.db"])
    assert (before.model.eta, changed.model.eta, changed.commit.records) == (0.5, 0.1, 7)
    assert changed.store_path == str(tmp_path / "other.db")  # beside the file, as all its paths
    assert (before.fingerprint() == changed.fingerprint()) is False
    (tmp_path / "job.yaml").write_text(JOB.replace("eta: 0.5", "eta: 0.1"))
    assert load_config(file).fingerprint() == changed.fingerprint()  # as if the file said so


def test_a_data_file_needs_a_target_and_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"cannot open data\.csv: no such file or directory"):
        job_config("data.csv", {}, [])
    Path("data.csv").touch()
    for settings in ({}, {"schema": {"target": {"column": "y"}}}, {"schema": {"features": {"x": [0, 1]}}}):
        with pytest.raises(ConfigError, match=r"`streamdp init data\.csv` writes a job\.yaml for it"):
            job_config("data.csv", settings, ["model.eta=0.1"])
    with pytest.raises(ConfigError, match="schema: expected a mapping"):
        job_config("data.csv", {}, ["schema=3"])


@pytest.mark.parametrize(("key", "mark"), [("decimal", ","), ("delimiter", ";"), ("thousands", "'"), ("comment", "#")])
def test_a_mark_needs_no_quotes_for_yaml_in_a_shell(key: str, mark: str) -> None:
    """Before, `--set source.decimal=,` was no YAML, and the quotes were the shell's."""
    assert getattr(job(f"source.{key}={mark}").source, key) == mark
