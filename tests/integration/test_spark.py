"""Learning on a real Spark: the model of one process, each record once, no cap exceeded, nothing in the clear."""

import json
import os
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import kafka
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from streamdp.cli.spark import _run as run_spark
from streamdp.config.job import NOTHING, make_config
from streamdp.config.spark import SparkSourceConfig
from streamdp.errors import (
    ConfigError,
    FencedError,
    NothingLearnedError,
    SchemaError,
    SourceError,
    TooFewUsersError,
    TooManyBadRecordsError,
)
from streamdp.learners.user_windows import WindowWarning
from streamdp.runtime.runner import Runner
from streamdp.serving.publish import committed
from streamdp.spark import driver as driver_module
from streamdp.spark import learn, learn_stream, predict, reading, task
from streamdp.spark.driver import Driver
from streamdp.spark.sealing import Seal, seal
from streamdp.spark.task import ClusterUsers, PartitionQuestion
from streamdp.store.reading import sinks
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store
from streamdp.windows import newton
from tests.support.commands import Quick
from tests.support.documents import Shell, blocks
from tests.support.paths import ROOT
from tests.support.spark import (
    PEOPLE,
    SECRET,
    FailsOnce,
    GatherFailsOnce,
    QuestionFailsOnce,
    SumFailsOnce,
    admitted,
    job,
    rows,
    start,
    statistics_job,
)
from tests.support.spark_data import write_csv
from tests.support.states import assert_same_states

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[SparkSession]:
    session = start(folder)
    yield session
    session.stop()


def frame(spark: SparkSession, records: dict[str, list[Any]], parts: int = 1) -> DataFrame:
    return spark.createDataFrame(pa.table(records)).coalesce(parts)


def counted(store: Path | str) -> tuple[int, int, int]:
    counts = committed(str(store)).snapshot.counts
    return counts.learned, counts.refused + counts.left_out, counts.dead_letters


def spent(store: Path, records: dict[str, list[Any]]) -> float:
    """The most that a person has spent, by the ledger of the store."""
    config = make_config(job(store))
    with Store(store, "late", config.fingerprint(), cap="eps=3", config=config.text(), shared=True) as opened:
        return max(opened.ledger.spent(tail).epsilon for tail in set(records["tail"]))


def content(path: Path) -> bytes:
    """The bytes of a file; none if Spark has deleted it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def holding(text: str, *places: Path) -> set[Path]:
    """The files of Spark and of jobs with a text. CSV files are what a test wrote itself. A folder may go meanwhile."""
    files = [Path(at, name) for place in places for at, _, names in os.walk(place) for name in names]
    return {path for path in files if path.is_file() and path.suffix != ".csv" and text.encode() in content(path)}


NO_BUDGETS = job("")["schema"] | {"budget": None}


def learned_from_a_file(settings: dict[str, Any], records: dict[str, list[Any]], folder: Path) -> Snapshot:
    """What a file runner commits for a job of Spark."""
    write_csv(folder / "a.csv", records)
    settings = settings | {"source": {"path": str(folder / "a.csv")}, "store": str(folder / "file.db")}
    config = make_config(settings)
    with config.open_store(NOTHING) as store:
        source = config.source.build(config.build_schema())
        Runner(source, config.build_estimator(store.ledger), store).run()
    return committed(settings["store"]).snapshot


def assert_same(ours: Snapshot, theirs: Snapshot) -> None:
    assert ours.counts == theirs.counts
    assert_same_states(ours, theirs)


def test_one_shard_learns_exactly_what_a_file_runner_learns(spark: SparkSession, tmp_path: Path) -> None:
    """With the noise of a seed, every number of the state is the same: order, admission, noise and steps are."""
    records = rows(2000)
    model = {"estimator": "LDPASGDClassifier", "budget": "eps=1", "seed": 3}
    settings = job(tmp_path / "spark.db", model=model, source={"type": "spark", "shards": 1})
    counts = learn(frame(spark, records), settings)
    assert counts == Counts(*admitted(records, 3.0))
    assert_same(committed(settings["store"]).snapshot, learned_from_a_file(settings, records, tmp_path))


@pytest.mark.campaign
def test_a_run_that_learns_nothing_is_an_error(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "a.csv", records := rows(300))
    source = {"type": "spark", "format": "csv", "path": str(tmp_path / "a.csv"), "options": {"header": True}}
    features = job("")["schema"]["features"] | {"origin": ["Oslo", "Rome"]}
    settings = job(tmp_path / "a.db", source=source, schema=job("")["schema"] | {"features": features})
    count = len(records["origin"])
    with pytest.raises(TooManyBadRecordsError, match=rf"'origin' \({count}\); nothing was learned or spent"):
        run_spark(make_config(settings), None, {}, "whole", NOTHING)
    config = make_config(settings | {"source": source | {"max_bad_share": None}})
    with pytest.raises(NothingLearnedError, match=rf"{count} do not fit \(.*unknown_category origin: {count}\)"):
        run_spark(config, None, {}, "whole", NOTHING)
    assert "done" not in capsys.readouterr().err
    assert counted(tmp_path / "a.db") == (0, 0, count)


@pytest.mark.campaign
def test_an_open_batch_of_users_is_closed_with_the_data(spark: SparkSession, tmp_path: Path) -> None:
    records = rows(1500)
    model = {"estimator": "UserLevelLDPClassifier", "budget": "eps=1,delta=1e-6", "seed": 3, "items_per_user": 2}
    settings = job(tmp_path / "spark.db", model=model, schema=NO_BUDGETS, cap="eps=3,delta=1e-4")
    settings["source"] = {"type": "spark", "shards": 1}
    counts = learn(frame(spark, records), settings)
    assert counts.refused
    assert_same(committed(settings["store"]).snapshot, learned_from_a_file(settings, records, tmp_path))


def batched(store: Path | str, estimator: str, shards: int, **more: Any) -> dict[str, Any]:
    model = {"estimator": estimator, "budget": "eps=1,delta=1e-6", "batch_size": 400, "seed": 3} | more
    return job(store, model=model, schema=NO_BUDGETS, source={"type": "spark", "shards": shards})


def questions(monkeypatch: pytest.MonkeyPatch) -> list[type[PartitionQuestion]]:
    """The questions that are asked from now on; the worker of the second one is killed."""
    asked: list[type[PartitionQuestion]] = []

    def question(*arguments: Any) -> PartitionQuestion:
        asked.append(QuestionFailsOnce if len(asked) == 1 else PartitionQuestion)
        return asked[-1](*arguments)

    monkeypatch.setattr(task, "PartitionQuestion", question)
    return asked


@pytest.mark.campaign
def test_batches_on_executors_are_those_of_one_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cap, dead letters, tasks that fail and workers that are killed: all numbers are the file runner's.

    Each origin is a group with effects of its own. First the driver's call ends in the middle of a batch of Spark:
    nothing of it is kept. The batch is repeated with another number of partitions.
    """
    records = rows(1500)
    settings = batched(tmp_path / "spark.db", "PanPrivateClassifier", 1, batch_size=60) | {"cap": "eps=3,delta=1e-4"}
    groups = NO_BUDGETS["features"] | {"origin": {"categories": ["EWR", "JFK"], "per": True}}
    settings["schema"] = NO_BUDGETS | {"features": groups}
    with monkeypatch.context() as broken:
        opened = iter(range(4))
        real = Seal.open
        broken.setattr(Seal, "open", lambda self, sealed: real(self, sealed if next(opened) < 2 else sealed[1:]))
        with pytest.raises(SourceError, match="was changed on its way"):
            learn(frame(spark, records, 3), settings)
    assert not Store.snapshots(settings["store"])
    monkeypatch.setattr(driver_module, "Gather", GatherFailsOnce)
    asked = questions(monkeypatch)
    counts = learn(frame(spark, records), settings)
    assert counts.left_out
    assert counts.dead_letters == records["origin"].count("XXX")
    assert len(asked) == 5  # 97 people with 3 records each, once in a batch
    assert_same(committed(settings["store"]).snapshot, learned_from_a_file(settings, records, tmp_path))
    model = committed(settings["store"])
    assert {"origin=EWR x delay", "origin=JFK x delay"} <= model.estimator.weights.keys()
    assert "people must trust the driver's memory, too" in model.statement()


def dies(snapshots: object) -> None:
    raise OSError("the driver is killed here")


@pytest.mark.campaign
@pytest.mark.parametrize("trust", ["process", "nobody", "shuffler"])
def test_statistics_of_a_stream_count_each_record_once_whatever_dies(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Quick, trust: str
) -> None:
    """Every task fails once, and the driver dies between a commit and the note of Spark; then the command goes on."""
    data, store, before = tmp_path / "data", tmp_path / "a.db", holding(SECRET, folder)
    data.mkdir()
    monkeypatch.setattr(driver_module, "ShardTask", FailsOnce)
    monkeypatch.setattr(driver_module, "SumTask", SumFailsOnce)
    delta = ("", "") if trust == "nobody" else (",delta=1e-6", ",delta=1e-3")
    source = job("")["source"] | {"format": "csv", "path": str(data), "stream": True, "options": {"header": True}}
    source |= {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"available_now": True}}
    settings = statistics_job(store, trust, cap=f"eps=64{delta[1]}", source=source)
    settings["model"]["budget"] = f"eps=8{delta[0]}"
    config = make_config(settings)
    write_csv(data / "1.csv", rows(600))
    learner = learn_stream(reading.read(spark, config), config, publish=[dies])
    with learner, pytest.raises(SourceError, match="OSError"):
        learner.wait()
    write_csv(data / "2.csv", rows(600, first=600))
    run_spark(config, None, {}, "whole", NOTHING)
    learned, dead = 8 * PEOPLE, 24  # each person has 12 or more records, of which the cap admits 8
    assert counted(store) == (learned, 1200 - learned, dead)
    model = committed(str(store))
    assert model.estimator.n_seen == learned
    found = {
        (row["statistic"], row["group"] or row["item"]): row
        for row in json.loads(quick.output("stats", str(store), "--json"))
    }
    assert found["origins", "EWR"]["value"] + found["origins", "JFK"]["value"] == pytest.approx(learned, abs=150)
    assert found["delay", "EWR"]["low"] < 15 < found["delay", "EWR"]["high"]
    assert ("it opens a sum over the records of each machine" in model.statement()) == (trust != "nobody")
    assert holding(SECRET, folder, tmp_path) <= before


def windowed(store: Path | str, **more: Any) -> dict[str, Any]:
    model: dict[str, Any] = {"estimator": "WindowedClassifier", "budget": "eps=8,delta=1e-6", "items_per_user": 2}
    model |= {"window": 10_000, "seed": 3}
    source = {"type": "spark", "shards": 2}
    return job(store, model=model, schema=NO_BUDGETS, cap="eps=8,delta=1e-6", source=source) | more


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds of a window, here and in the file runner; each is a job of Spark, and all are alike."""
    monkeypatch.setattr(newton, "NewtonSteps", partial(newton.NewtonSteps, rounds=4))


def people(n: int, first: int = 0, each: int = 3) -> dict[str, list[Any]]:
    """n records of `n / each` people and some bad ones; a person has a record in every part of the data."""
    records = rows(n, first)
    count = len(records["tail"]) // each
    return records | {"tail": [f"u{first + i % count}" for i in range(len(records["tail"]))]}


@pytest.mark.campaign
def test_a_window_on_several_executors_is_that_of_one_process(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_rounds: None
) -> None:
    """Two parts, tasks that fail once, a cap: all numbers are the file runner's, and no sum left in the clear."""
    records, settings, before = people(3000), windowed(tmp_path / "spark.db"), holding(SECRET, folder)
    monkeypatch.setattr(driver_module, "Gather", GatherFailsOnce)
    questions(monkeypatch)
    sums: list[np.ndarray] = []
    real = ClusterUsers.curvatures
    monkeypatch.setattr(ClusterUsers, "curvatures", lambda self, *a: sums.append(total := real(self, *a)) or total)
    first = learn(frame(spark, records, 2), settings)
    bad = records["origin"].count("XXX")
    assert first.dead_letters == bad
    assert first.learned + first.refused + first.left_out == 3000
    assert len(sums) == 4
    theirs = learned_from_a_file(settings, records, tmp_path)
    assert_same(committed(settings["store"]).snapshot, theirs)
    assert not any(total.any() for total in sums)  # overwritten
    assert learn(frame(spark, records, 2), settings) == first
    again = Counts(first.learned, first.refused + 3000, 2 * bad, first.left_out)  # all people are over their cap
    assert learn(frame(spark, records, 2), settings, name="again") == again
    with pytest.raises(TooFewUsersError, match="too small"):
        learn(frame(spark, people(30, 5000)), settings, name="few")
    assert counted(settings["store"]) == (again.learned, again.refused + again.left_out, again.dead_letters)
    assert holding(SECRET, folder, tmp_path) <= before
    assert holding("SparkListenerJobEnd", folder)  # the event log can be searched


@pytest.mark.campaign
def test_a_stream_of_windows_goes_on_after_one_that_is_too_small(
    spark: SparkSession, tmp_path: Path, few_rounds: None
) -> None:
    data, store = tmp_path / "data", tmp_path / "a.db"
    data.mkdir()
    parts = [people(30, 5000), people(1500)]
    for number, part in enumerate(parts):
        write_csv(data / f"{number}.csv", part)
        os.utime(data / f"{number}.csv", (number + 1, number + 1))
    source = spark.readStream.schema("delay string, origin string, late string, tail string, eps string")
    stream = source.option("header", True).option("maxFilesPerTrigger", 1).csv(str(data))
    checkpoint = str(tmp_path / "checkpoint")
    settings = windowed(store)
    settings["model"] |= {"scaling": "none"}
    learner = learn_stream(stream, settings, checkpoint=checkpoint, trigger={"availableNow": True})
    with learner, pytest.warns(WindowWarning, match="records are refused"):
        assert learner.wait()
    model: Any = committed(str(store))
    assert (model.estimator.n_windows, model.estimator.n_users) == (1, 500)
    assert "each batch of Spark is a window" in model.statement()
    counts = model.snapshot.counts
    assert (counts.learned, counts.refused, counts.left_out) == (1000, 20, 500 + 10)
    assert counts.dead_letters == sum(part["origin"].count("XXX") for part in parts)


def test_retries_count_once_and_nothing_is_left_in_the_clear(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task learns and fails once, and the batch is then sent again under its name: one draw is committed."""
    records, before = rows(1500), holding(SECRET, folder)
    opened: list[bytes] = []
    real = Seal.open
    monkeypatch.setattr(Seal, "open", lambda self, sealed: opened.append(sealed) or real(self, sealed))
    monkeypatch.setattr(driver_module, "ShardTask", FailsOnce)
    first = learn(frame(spark, records, 2), job(tmp_path / "a.db"))
    assert (first.learned, first.refused, first.dead_letters) == admitted(records, 3.0)
    assert len(opened) == 2  # of four results, two shards
    assert learn(frame(spark, records, 2), job(tmp_path / "a.db")) == first
    assert len(opened) == 2
    assert spent(tmp_path / "a.db", records) <= 3 * (1 + 1e-9)
    statement = committed(str(tmp_path / "a.db")).statement()
    assert "learned on Spark" in statement
    assert "NOT PRIVATE" not in statement.upper()
    assert holding(SECRET, folder, tmp_path) <= before
    assert holding("SparkListenerJobEnd", folder)  # the event log can be searched


def test_a_stream_goes_on_where_it_was_committed_whatever_dies(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies between the commit and the note of Spark, and a file comes: each record counts once."""
    data, store, notes = tmp_path / "data", tmp_path / "a.db", str(tmp_path / "checkpoint")
    data.mkdir()
    write_csv(data / "1.csv", rows(600))
    source = spark.readStream.schema("delay string, origin string, late string, tail string, eps string")
    stream = source.option("header", True).option("maxFilesPerTrigger", 1).csv(str(data))
    now = {"availableNow": True}
    learner = learn_stream(stream, job(store), checkpoint=notes, trigger=now, publish=[dies])
    with learner, pytest.raises(SourceError, match="OSError"):
        learner.wait()
    every = rows(600)
    assert counted(store) == admitted(every, 3.0)
    more = rows(600, first=600)
    write_csv(data / "2.csv", more)
    with learn_stream(stream, job(store), checkpoint=notes, trigger=now) as learner:
        assert learner.wait()
        every = {name: every[name] + more[name] for name in every}
        learned, refused, dead = admitted(every, 3.0)
        assert learner.counts == Counts(learned, refused, dead)
        assert learner.dead_letters == {"unknown_category origin": dead}
    assert spent(store, every) <= 3 * (1 + 1e-9)


def test_people_are_told_apart_as_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    """Spellings of one person share a cap, although Spark sees different texts."""
    spellings = ["7", "+7", "007", " 7"] * 10
    n = len(spellings)
    records = {"delay": [1.5] * n, "origin": ["EWR"] * n, "late": [True, False] * (n // 2), "tail": spellings}
    schema = job("")["schema"] | {"subject": {"column": "tail", "type": "integer"}, "budget": None}
    settings = job(tmp_path / "a.db", schema=schema, source={"type": "spark", "shards": 3})
    assert learn(frame(spark, records, 2), settings) == Counts(3, n - 3, 0)
    accents = ["\u00e9", "e\u0301"] * 10
    m = len(accents)
    people = {**{name: values[:m] for name, values in records.items()}, "tail": accents}
    text = job(tmp_path / "b.db", schema=schema | {"subject": "tail"}, source={"type": "spark", "shards": 3})
    assert learn(frame(spark, people, 2), text) == Counts(3, m - 3, 0)


def test_whole_numbers_of_spark_are_exact_and_floats_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    n = 8
    schema = job("")["schema"] | {"budget": None}
    records = {"delay": [1.5] * n, "origin": ["EWR"] * n, "late": [True, False] * (n // 2), "tail": ["x"] * n}
    people = frame(spark, records, 1).drop("tail")
    settings = job(tmp_path / "a.db", schema=schema, source={"type": "spark", "shards": 2})
    for kind in ("double", "decimal(10,2)"):
        with pytest.raises(SchemaError, match="'tail' is a column of floats: store the ids as integers or text"):
            learn(people.selectExpr("*", f"cast(7 as {kind}) as tail"), settings)
    two = people.selectExpr(
        "*", "cast(100000000000000000001 + (monotonically_increasing_id() % 2) as decimal(38,0)) as tail"
    )
    assert learn(two, settings) == Counts(6, 2, 0)  # two people, of whom each may have three records


@pytest.mark.campaign
def test_keys_of_a_topic_name_people_without_frames_and_quotes(spark: SparkSession) -> None:
    frames = [b"\0" + number.to_bytes(4, "big") + b'"ann"' for number in (5, 6, 7)]
    keys = [*frames, b'"ann"', b"ann", b"\0\0\0\0\x09100000000000000000001", b"100000000000000000001", b"\xff", None]
    settings: Any = SparkSourceConfig.model_validate({"type": "spark", "format": "kafka"})
    value = json.dumps({"delay": 1.5, "origin": "EWR", "late": True}).encode()
    topic = spark.createDataFrame([(key, value) for key in keys], "key binary, value binary")
    schema = job("")["schema"] | {"budget": None}
    found = (
        reading._messages(topic, make_config(job("a.db", schema=schema)), settings).toArrow().column("tail").to_pylist()
    )
    assert found == [*[b"ann"] * 5, *[b"100000000000000000001"] * 2, b"\xff", None]


def test_predictions_are_those_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    records = rows(300)
    learn(frame(spark, records), job(tmp_path / "a.db"))
    model: Any = committed(str(tmp_path / "a.db"))
    found = predict(frame(spark, records, 2).drop("late"), tmp_path / "a.db").toArrow().to_pydict()
    for delay, origin, answer, share in zip(
        found["delay"], found["origin"], found["prediction"], found["prediction_True"], strict=True
    ):
        if origin == "XXX":
            assert answer is share is None
        else:
            x = {"delay": float(delay), "origin": origin}
            assert answer == model.estimator.predict_one(x)
            assert share == pytest.approx(model.estimator.predict_proba_one(x)["True"], abs=1e-12)
    with pytest.raises(SchemaError, match="two columns of the name"):
        predict(frame(spark, records), tmp_path / "a.db", column="late")
    given = ["delay", "origin", "prediction", "", "a`b"]
    other = predict(frame(spark, records, 2).toDF(*given), tmp_path / "a.db", column="p")
    assert set(other.columns) == {*given, "p", "p_True", "p_False"}
    assert [row["p"] for row in other.select("p").collect()] == found["prediction"]


def test_what_cannot_be_learned_is_refused_and_leaves_the_store_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    records = frame(spark, rows(100))
    store = tmp_path / "a.db"
    with pytest.raises(SchemaError):
        learn(records.drop("origin"), job(store))
    assert not store.exists()
    learn(records, job(store))
    before = counted(store)
    with pytest.raises(SchemaError, match="'origin'; did you mean 'Origin'"):
        learn(records.withColumnRenamed("origin", "Origin"), job(store), name="b")
    broken = records.selectExpr("delay", "origin", "late", "tail", "string(1 / (length(tail) - length(tail))) as eps")
    with pytest.raises(SourceError, match="Spark could not learn the batch") as caught:
        learn(broken, job(store), name="b")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(ConfigError, match="2 shards"):
        learn(records, job(store, source={"type": "spark", "shards": 3}), name="b")
    with pytest.raises(ConfigError, match="is no stream"):
        learn_stream(records, job(store), checkpoint=str(tmp_path / "c"))
    assert counted(store) == before


@pytest.mark.campaign
def test_a_topic_is_learned_by_the_command_into_postgresql(
    spark: SparkSession, broker: Any, make_topic: Any, server_database: str, quick: Quick, tmp_path: Path
) -> None:
    """Spark's own connector; messages that are no JSON."""
    topic = make_topic(2)
    producer, every = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap), rows(400)
    for values in zip(*every.values(), strict=True):
        record = dict(zip(every, values, strict=True))
        producer.send(topic, key=record.pop("tail").encode(), value=json.dumps(record).encode())
    for bad in (b"no json", b'"text"', b"\xff\xfe", None):
        producer.send(topic, key=b"t1", value=bad)
    producer.close()
    schema = job("")["schema"] | {"budget": None}
    source = {
        "type": "spark",
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"},
        "stream": True,
        "checkpoint": "checkpoint",
        "trigger": {"available_now": True},
        "shards": 2,
    }
    url = server_database.replace("+psycopg", "")
    publish = {"type": "postgresql", "url": url, "table": "published"}
    (tmp_path / "job.yaml").write_text(json.dumps(job(server_database, schema=schema, source=source, publish=publish)))
    code, _, said = quick("spark", "run", "job.yaml", STREAMDP_SUBJECT_KEY="5a" * 32)
    assert code == 0, said
    learned, refused, dead = admitted(every | {"eps": [""] * len(every["eps"])}, 3.0)
    snapshot = committed(server_database, "late").snapshot
    assert snapshot.counts == Counts(learned, refused, dead + 4)
    with psycopg.connect(url) as connection:
        ((found, seq),) = connection.execute("SELECT document, commit FROM published ORDER BY commit DESC LIMIT 1")
    assert (seq, found["counts"]["learned"]) == (snapshot.seq, learned)
    (sink,) = sinks(server_database, "late")
    assert (sink.commit, sink.reason) == (snapshot.seq, "")
    assert "missing delay: 4, unknown_category origin: 8" in said


def test_the_page_runs_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = [b for b in blocks((ROOT / "docs/howto/spark.md").read_text()) if b.language == "python"]
    (folder := tmp_path / "page").mkdir()
    with Shell(folder, {}) as shell:
        said, _ = shell.run(block)
    assert "Counts(learned=5000, refused=0, dead_letters=0, left_out=0)" in said
    assert "prediction" in said


def test_a_second_driver_fences_the_first(spark: SparkSession, tmp_path: Path) -> None:
    records, config = frame(spark, rows(100)), make_config(job(tmp_path / "a.db"))
    first = Driver(spark, config, NOTHING)
    second = Driver(spark, config, NOTHING)
    second.learn(records, {"frames": ["whole"]})
    with pytest.raises(FencedError):
        first.learn(records, {"frames": ["whole"]})
    assert counted(tmp_path / "a.db") == admitted(rows(100), 3.0)
    first.close()
    second.close()


def test_a_result_opens_once_for_its_attempt_only() -> None:
    mine, other = Seal(), Seal()
    sealed = seal(b"state", mine.public)
    assert mine.open(sealed) == b"state"
    assert b"state" not in sealed
    for wrong in (sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1]), b""):
        with pytest.raises(SourceError):
            mine.open(wrong)
    with pytest.raises(SourceError):
        other.open(sealed)
    with pytest.raises(TypeError):
        pickle.dumps(mine)
