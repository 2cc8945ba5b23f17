"""job.yaml: what is accepted, what is refused and how, and what the fingerprint covers."""

from pathlib import Path
from typing import Any

import pytest

from streamdp import LDPASGDClassifier, LDPASGDRegressor
from streamdp.config.definition import read_definition
from streamdp.config.job import CommitConfig, load_config, make_config
from streamdp.config.yaml12 import YamlText
from streamdp.errors import ConfigError
from streamdp.runtime.defaults import COMMIT_SECONDS
from tests.support.service import job as calls

JOB = """\
job: late
source:
  path: flights.csv
schema:
  features:
    dep_delay: [-30, 60]
    origin: [EWR, NO, LGA]
  target: {column: late, classes: [false, true]}
  subject: tailnum
model:
  estimator: LDPASGDClassifier
  loss: {name: logistic, clip: 1e0}
  budget: eps=1.0
  eta: 0.3
cap: epsilon=3
publish: out/model.json
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def test_a_job_is_read_as_it_looks(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, JOB))
    assert config.schema_.features == {"dep_delay": (-30.0, 60.0), "origin": ["EWR", "NO", "LGA"]}
    assert config.schema_.target.classes == ["False", "True"]
    assert (config.model.budget, config.cap) == ("eps=1", "eps=3")
    assert config.source.path == str(tmp_path / "flights.csv")
    assert config.store_path == str(tmp_path / "late.db")
    assert config.publish == [str(tmp_path / "out" / "model.json")]
    estimator = config.build_estimator()
    assert isinstance(estimator, LDPASGDClassifier)
    assert (estimator.eta, estimator.features) == (0.3, config.schema_.features)
    assert estimator.feature_names == ("dep_delay", "origin=NO", "origin=LGA")


def test_standard_input_stays_standard_input(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, JOB.replace("flights.csv", '"-"'))).source.path == "-"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("name: logistic", "name: logistc", 12, "model.loss: expected one of squared"),
        ("clip: 1e0", "clp: 1", 12, "model.loss: logistic has the parameters clip"),
        ("clip: 1e0", "clip: high", 12, "model.loss: clip of logistic must be a number"),
        ("{name: logistic, clip: 1e0}", "huber", 10, "model: LDPASGDClassifier: loss must be one of"),
        ("eta: 0.3", "eta: -1", 10, "model: eta: expected a positive"),
        ("LDPASGDClassifier", "SGD", 11, "model.estimator: expected one of LDPASGDClassifier, LDPASGDRegressor"),
        ("eps=1.0", "eps=-1", 13, "model.budget: epsilon must be positive"),
        ("cap: epsilon=3", "cap: eps=0.5", 15, "cap: eps=0.5 is below model.budget"),
        ("eps=1.0", "mu=1", 15, "cap: a cap of eps=3 cannot count"),
        ("[-30, 60]", "[-30, 60, 90]", 6, "schema.features.dep_delay: expected two numbers"),
        ("[-30, 60]", "[-30, 1e999]", 6, "schema.features.dep_delay: expected two numbers [low, high], both finite"),
        ("[EWR, NO, LGA]", "[EWR, 1]", 7, "schema.features.origin: expected two numbers"),
        ("{column: late, classes: [false, true]}", "late", 8, "schema.target: expected a mapping"),
        ("  path: flights.csv", "  path: a\n  keep_payload: true", 2, "source: keep_payload needs dead_letters"),
        ("job: late\n", "job: late\njob: early\n", 2, "'job' is given twice"),
        ("job: late", "job: [late", 2, "expected ',' or ']'"),
        ("out/model.json", "flights.csv", 16, "publish: expected a file of its own, got the same as source.path"),
        ("out/model.json", "./out/../late.db", 16, "publish: expected a file of its own, got the same as store"),
        ("out/model.json", "job.yaml", 16, "publish: expected a file of its own, got the same as the job's file"),
        ("path: flights.csv", "path: a\n  dead_letters: a", 4, "source.dead_letters: expected a file of its own"),
        ("job: late", "store: a.db\nholdout: a.db.key\njob: b", 1, "store.key: expected a file of its own"),
        ("job: late", "job: ../../late", 1, "job: expected a name without /"),
        ("job: late", "job: late\ncommit: {records: 0}", 2, "commit.records: input should be greater"),
    ],
)
def test_a_mistake_is_found_by_its_key_and_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in JOB
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, JOB.replace(old, new, 1)))
    assert f"job.yaml, line {line}" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_public_holdout_is_none_of_the_files_of_a_folder_that_is_learned(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "days" / name).write_text("late\n0\n")
    text = JOB.replace("path: flights.csv", "path: days")
    load_config(write(tmp_path, text + "holdout: 2.csv\n"))
    with pytest.raises(ConfigError, match=r"holdout: expected a file of its own, got the same as source.path"):
        load_config(write(tmp_path, text + "holdout: days/2.csv\n"))


@pytest.mark.parametrize("path", ["days", "[days/1.csv, ./days/1.csv]", "[days/1.csv, days/latest.csv]"])
def test_a_file_is_learned_under_one_name(tmp_path: Path, path: str) -> None:
    """Before, a link to the latest file in its folder let its records count and spend twice."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.csv").write_text("late\n0\n")
    (tmp_path / "days" / "latest.csv").symlink_to("1.csv")
    with pytest.raises(ConfigError, match=r"source.path: expected different files, got one of them again as"):
        load_config(write(tmp_path, JOB.replace("path: flights.csv", f"path: {path}")))


def test_values_of_unknown_settings_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, JOB + "password: hunter2\n"))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_files_that_are_no_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"job: \xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "bytes.yaml")
    for text in ("", "just text", "- a\n- b"):
        with pytest.raises(ConfigError, match="expected a job, a mapping"):
            load_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("flights.csv", "other.csv", True),
        ("publish: out/model.json", "commit: {records: 3, seconds: 1}", True),
        ("eps=1.0", "epsilon=1", True),
        ("eps=1.0", "eps=0.5", True),  # every record may bring its own anyway
        ("eps=1.0", "eps=1,delta=1e-6", False),
        ("cap: epsilon=3", "cap: eps=4", True),
        ("cap: epsilon=3", "", True),  # the store says whether it has a cap
        ("[-30, 60]", "[-30, 90]", False),
        ("[EWR, NO, LGA]", "[NO, EWR, LGA]", False),
        ("classes: [false, true]", "classes: [true, false]", False),
        ("clip: 1e0", "clip: 2", False),
        ("ASGD", "SGD", False),
        ("eta: 0.3", "seed: 1", False),
        ("subject: tailnum", "subject: carrier", False),
        ("[-30, 60]", '{bounds: [-30, 60], label: "How late?", unit: minutes, help: Early is negative.}', True),
        ("[EWR, NO, LGA]", '{categories: [EWR, NO, LGA], label: "From where?"}', True),
        ("column: late,", 'column: late, label: "Was it late?",', True),
        ("subject: tailnum", "subject: {column: tailnum, label: The plane}", True),
    ],
)
def test_the_fingerprint_covers_the_model_and_nothing_else(tmp_path: Path, old: str, new: str, same: bool) -> None:
    text = JOB if "delta" not in new else JOB.replace("cap: epsilon=3", "cap: eps=3,delta=1e-5")
    first = load_config(write(tmp_path, text)).fingerprint()
    assert old in text
    assert (load_config(write(tmp_path, text.replace(old, new))).fingerprint() == first) is same


def test_a_seeded_job_never_becomes_a_private_one(tmp_path: Path) -> None:
    prints = [
        load_config(write(tmp_path, JOB.replace("eta: 0.3", seed))).fingerprint()
        for seed in ("seed: 1", "seed: 2", "eta: 0.2")
    ]
    assert prints[0] == prints[1] != prints[2]


def test_a_job_has_a_seed_in_tests_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write(tmp_path, JOB.replace("eta: 0.3", "seed: 1"))
    config = load_config(job)
    assert "NOT PRIVATE" in config.build_estimator().statement()
    monkeypatch.delenv("STREAMDP_TEST_SEEDS")
    with pytest.raises(ConfigError, match="seed is for tests, the model is not private with it"):
        load_config(job)
    assert read_definition(config.text()).model.seed == 1  # what a store has is read, and says that it is not private


def test_the_stored_text_gives_the_same_model_and_no_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, JOB))
    assert str(tmp_path) not in config.text()
    definition = read_definition(config.text())
    assert definition.fingerprint() == config.fingerprint()
    assert definition.build_schema().feature_names == config.build_schema().feature_names


def test_keys_of_messages_are_other_people_than_those_of_a_column(tmp_path: Path) -> None:
    """A job that begins to read people from elsewhere would give each of them a new budget."""
    kafka = JOB.replace("path: flights.csv", "{type: kafka, topic: flights, subject_from: key}")
    keys = load_config(write(tmp_path, kafka))
    values = load_config(write(tmp_path, kafka.replace("_from: key", "_from: value")))
    assert values.fingerprint() == load_config(write(tmp_path, JOB)).fingerprint() != keys.fingerprint()
    assert values.continued(keys.text(), 7, True).fingerprint != keys.fingerprint()
    assert read_definition(keys.text()).fingerprint() == keys.fingerprint()
    spark = JOB.replace("path: flights.csv", "{type: spark, format: kafka, subject_from: key}")
    assert load_config(write(tmp_path, spark)).fingerprint() == keys.fingerprint()


@pytest.mark.parametrize(
    ("old", "new", "counted"),
    [
        ("eta: 0.3", "eta: 0.2", True),
        ("eta: 0.3\ncap: epsilon=3", "eta: 0.2\ncap: eps=3 per 30 days", False),
        ("column: late, classes: [false, true]}\n", "column: late, classes: [true, false]}\n", True),
        ("subject: tailnum", "subject: carrier", False),
        ("subject: tailnum", "subject: {column: tailnum, type: integer}", False),
        ("eta: 0.3\ncap: epsilon=3", "eta: 0.2\ncap: eps=2", False),
    ],
)
def test_the_cap_of_a_new_model_bounds_what_it_counts_only(tmp_path: Path, old: str, new: str, counted: bool) -> None:
    assert old in JOB
    first = load_config(write(tmp_path, JOB))
    second = load_config(write(tmp_path, JOB.replace(old, new)))
    terms = second.continued(first.text(), 7, True, True)
    said = f"the cap {second.cap} {'bounds' if counted else 'does not bound'} a person's total over all of them"
    assert said in terms.replaced
    assert said in read_definition(terms.config).limits(0)[-1]


def test_a_cap_that_changes_after_a_new_model_bounds_no_total(tmp_path: Path) -> None:
    first = load_config(write(tmp_path, JOB))
    second = load_config(write(tmp_path, JOB.replace("eta: 0.3", "eta: 0.2")))
    third = load_config(write(tmp_path, JOB.replace("eta: 0.3\ncap: epsilon=3", "eta: 0.2\ncap: eps=2")))
    terms = third.continued(second.continued(first.text(), 7, True, True).config, 9, True)
    assert (
        "the cap eps=2 does not bound a person's total over all of them" in read_definition(terms.config).limits(0)[-1]
    )


def test_a_store_on_a_server_is_no_path(tmp_path: Path) -> None:
    url = "postgresql://host/database"
    assert load_config(write(tmp_path, JOB + f"store: {url}\n")).store_path == url


def test_domains_and_regression() -> None:
    settings = {
        "job": "r",
        "source": {"path": "a.csv"},
        "schema": {"features": {"x": [0, 1]}, "target": {"column": "y", "bounds": [0, 9], "scale": 9}},
        "model": {"estimator": "LDPASGDRegressor", "domain": {"ball": 2}},
    }
    assert isinstance(make_config(settings).build_estimator(), LDPASGDRegressor)
    settings["model"] = {"estimator": "LDPASGDRegressor", "domain": {"ball": 2, "box": [0, 1]}}
    with pytest.raises(ConfigError, match=r"model\.domain: expected ball: R, or box"):
        make_config(settings)


@pytest.mark.parametrize(
    "kind",
    ["LDPASGDRegressor", "WindowedRegressor", "UserLevelLDPRegressor", "PanPrivateRegressor", "ShuffleRegressor"],
)
def test_bounds_reach_the_estimator_those_of_the_target_in_its_scale(kind: str) -> None:
    target = {"column": "y", "bounds": [0, 90], "scale": 9}
    schema = {"features": {"x": [0, 1]}, "target": target, "subject": "who"}
    settings = {"job": "r", "source": {"path": "a.csv"}, "schema": schema, "model": {"estimator": kind}}
    estimator: Any = make_config(settings).build_estimator()
    assert (estimator.target, estimator.features) == ((0, 10), {"x": (0.0, 1.0)})


@pytest.mark.parametrize(
    ("text", "value"),
    [("no", "no"), ("010", "010"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("1e-6", 1e-6), ("-3", -3),
        ("true", True), ("~", None), ("", None), ("'1'", "1"), ("+.5", 0.5)],
)  # fmt: skip
def test_yaml_scalars_are_what_they_look_like(text: str, value: object) -> None:
    read = YamlText(f"a: {text}", "x").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_several_shards_of_calls_need_a_store_on_a_server(tmp_path: Path) -> None:
    source = {"type": "http", "shards": 4}
    with pytest.raises(ConfigError, match=r"source.*PostgreSQL"):
        calls(tmp_path, source=source)
    assert calls(tmp_path, source=source, store="postgresql://localhost/jobs").source.most_shards == 4
    assert calls(tmp_path, source={"type": "http", "shards": 1}).source.most_shards == 1
    reports = {"type": "kafka", "content": "reports", "topic": "reports"}
    assert calls(tmp_path, source=reports).source.most_shards == 1
    with pytest.raises(ConfigError, match="shards"):
        calls(tmp_path, source=reports | {"shards": 2})


def test_a_record_is_published_within_a_second_by_default() -> None:
    """A message was in a published model after 4.6 s, because jobs committed every 5 s."""
    assert CommitConfig().seconds == COMMIT_SECONDS == 1.0
