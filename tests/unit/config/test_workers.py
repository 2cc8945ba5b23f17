"""What is said of the workers of a topic, each of which learns a model of its own records."""

from pathlib import Path

from streamdp.config.checking import apart, few_workers
from streamdp.config.job import JobConfig, load_config
from streamdp.config.prospect import prospect

JOB = """
job: trips
source: {type: kafka, topic: trips, brokers: "127.0.0.1:1"}
schema:
  features: {a: [0, 1], b: [0, 1]}
  target: {column: y, bounds: [0, 1]}
model: {trust: process, budget: "eps=1,delta=1e-6"}
store: trips.db
"""


def job(folder: Path, text: str = JOB) -> JobConfig:
    (folder / "job.yaml").write_text(text)
    return load_config(folder / "job.yaml")


def test_records_are_enough_for_some_workers(tmp_path: Path) -> None:
    topic = job(tmp_path)
    plan = prospect(topic, 100_000)
    least = plan.likely_from
    assert "enough for 3 workers" in few_workers(topic, prospect(topic, 3 * least))[0]
    assert "enough for 1 worker," in few_workers(topic, prospect(topic, least // 2))[0]
    assert few_workers(topic, prospect(topic, 100 * least)) == []
    files = job(tmp_path, JOB.replace('kafka, topic: trips, brokers: "127.0.0.1:1"', "csv, path: trips.csv"))
    assert few_workers(files, prospect(files, 3 * least)) == []


def test_workers_that_learned_too_few_records_each_are_told(tmp_path: Path) -> None:
    topic = job(tmp_path)
    plan = prospect(topic, 100_000)
    assert "start fewer workers" in apart(topic, 12, 12 * plan.likely_from // 10)[0]
    assert apart(topic, 12, 13 * plan.likely_from) == apart(topic, 1, 10) == []
