"""The pages of the site: each block of each page runs as it stands. `make docs` builds the site."""

import re
from pathlib import Path

import pytest

from streamdp.config.job import make_config
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.config.yaml12 import YamlText
from tests.support.documents import Shell, blocks, shown
from tests.support.outputs import shape
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
GENERATED = {DOCS / "gallery" / "index.md", DOCS / "reference" / "commands.md"}  # `make docs` writes and checks them
WRITTEN = [path for path in sorted(DOCS.rglob("*.md")) if path not in GENERATED]
PAGES = [path for path in WRITTEN if blocks(path.read_text())]
PITFALLS, SERVICE = DOCS / "pitfalls.md", DOCS / "service.md"
JOB = DOCS / "reference" / "job.md"
SPARK, KAFKA = DOCS / "howto" / "spark.md", DOCS / "howto" / "kafka.md"
RUN = [path for path in PAGES if path not in (PITFALLS, SERVICE, SPARK, KAFKA, JOB)]
"""Pitfalls, Spark, Kafka and the job file have tests of their own; the service's page has a token."""
SAID = {
    "index": ["smoker=yes "],
    "tutorial": ['"learned": 50000', '"holdout": {', "smoker=yes", "(epsilon, delta) = (1, ", "prediction"],
    "case": ["k.A.", "Tarif=premium", "(epsilon, delta) = (1, ", "raise the surcharge", "prediction"],
    "files": ['"learned": 5000'],
    "statistics": ["median charge yes", "mean age", "epsilon = 1", "'no'"],
    "validation": ["the model is better than the best constant"],
    "which_estimator": ["with trust: process", "with trust: window"],
    "budgets": ["refused:      1,000", "eps=2"],
    "resume": ["learned:      20,000"],
    "postgresql": ["learned:      5,000"],
    "devices": ["learned\n" * 20, "epsilon = 1:", "sectors private", "epsilon = 4:"],
    "shuffler": ['"reason": "done"', "(epsilon, delta) = (1, ", "origin=JFK"],
    "batches": ["eps=1"],
    "people": ["10000", "(epsilon, delta)"],
    "operate": ['"reason": "done"', "unknown_category"],
    "transforms": ["log(income) x city=Lyon", "age above 50", "6 ['town 000'"],
    "export": ["wrote people.json"],
    "limits": ["of 1,000 records were learned"],
    "coming_from": ["Accuracy: ", "GaussianDpEvent"],
}

# test_shuffle_kafka, test_service and test_shared_store have small forms of their commands.
SLOW = ["shuffler", "devices", "postgresql"]


def test_every_page_with_examples_is_run() -> None:
    assert {path.stem for path in RUN} == SAID.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.campaign] if path.stem in SLOW else []) for path in RUN],
    ids=lambda path: path.stem,
)
def test_the_examples_of_a_page_run_as_they_stand(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = blocks(path.read_text())
    environment = {}
    if "$DATABASE" in str(found):
        environment["DATABASE"] = request.getfixturevalue("server_database")
    if "streamdp shuffle" in str(found):
        environment["STREAMDP_KAFKA"] = request.getfixturevalue("broker").bootstrap
    folder = tmp_path / "empty"
    folder.mkdir()
    with Shell(folder, environment) as shell:
        out, err = zip(*(shell.run(block) for block in found), strict=True)
    for said in SAID[path.stem]:
        assert said in "".join(out) + "".join(err)
    for printed, below in zip(out, shown(path.read_text()), strict=True):  # `make docs-outputs` writes them again
        assert below is None or shape(below) == shape(printed)


def test_the_example_of_tokens_is_a_setting_of_a_job() -> None:
    (text,) = [code for language, code in blocks(SERVICE.read_text()) if language == "yaml"]
    job = {"job": "x", "source": {"type": "http"}, "model": {"estimator": "LDPASGDClassifier"}}
    schema = {"features": {"a": [0, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}}
    service = YamlText(text.replace("DIGEST", "0" * 64), "service.md").data
    assert make_config({**job, "schema": schema, **service}).job == "x"


def test_the_examples_of_schemas_are_sources_of_jobs() -> None:
    text = next(code for language, code in blocks(KAFKA.read_text()) if language == "yaml")
    model = {"estimator": "LDPASGDClassifier"}
    schema = {"features": {"a": [0, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}}
    other = re.sub(r"(?m)^  schema_registry.*\n", "", text)
    for source in (text, re.sub("# (schemas: schemas/)", r"\1", other), re.sub("# (schemas: {)", r"\1", other)):
        config = make_config({"job": "x", "schema": schema, "model": model, **YamlText(source, "kafka.md").data})
        assert isinstance(config.source, KafkaSourceConfig)
        assert (config.source.schemas is None) == (config.source.schema_registry is not None)
