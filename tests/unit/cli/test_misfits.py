"""A wrong schema costs no budget, and its correction goes on in the same store, which keeps what people have spent."""

import json
from pathlib import Path

import pytest

from streamdp.config.job import load_config
from streamdp.store.report import ledger_status
from streamdp.store.store import Store
from tests.support.commands import Quick, streamdp

SECRET = "Atlantis"
JOB = """job: late
source: {path: people.csv}
schema:
  features: {age: [0, 50], city: [Paris, Lyon]}
  target: {column: late, classes: [false, true]}
  subject: person
model: {trust: process, budget: "eps=1,delta=1e-6"}
cap: eps=2,delta=1e-5
"""
RIGHT = JOB.replace("Lyon]", f"Lyon, {SECRET}]")
OPTIONS = ["--target", "late", "--classes", "False,True", "--feature", "age=0:50", "--feature", "city=Paris|Lyon"]


def rows(n: int) -> str:
    cities = ("Paris", "Lyon", SECRET)
    lines = [f"p{i},{i % 50},{cities[i % 3]},{['true', 'FALSE'][i % 2]}" for i in range(n)]
    return "\n".join(["person,age,city,late", *lines]) + "\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_text(rows(3000))
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_the_first_records_decide_before_anything_is_written(job: Path, quick: Quick) -> None:
    said = quick.error(3, "run", "job.yaml")
    assert "1,000 of the first 3,000 records (33 %) do not fit the schema: unknown category in column 'city'" in said
    assert "'city': declare its other values, or other: true" in said
    assert SECRET not in said
    assert {path.name for path in job.iterdir()} == {"people.csv", "job.yaml"}
    (job / "job.yaml").write_text(RIGHT)
    assert quick("run", "job.yaml")[0] == 0
    assert ledger_status(job / "late.db").records == 3000


@pytest.mark.slow
def test_standard_input_decides_before_its_first_commit(job: Path) -> None:
    code, _, said = streamdp(job, "run", "-", *OPTIONS, "--subject", "person", "--cap", "eps=3", stdin=rows(3000))
    assert code == 3
    assert "standard input: " in said
    assert "unknown category in column 'city'" in said
    assert ledger_status(job / "stdin.db").people == 0
    assert Store.snapshot(job / "stdin.db").counts.learned == 0


def test_a_correction_goes_on_in_the_same_store_and_says_what_was_spent(job: Path, quick: Quick) -> None:
    assert quick("run", "job.yaml", "--set", "source.max_bad_share=null")[0] == 0
    (job / "job.yaml").write_text(RIGHT)
    said = quick.error(4, "run", "job.yaml")
    assert "begin a new model by --new-model: it keeps what people have spent, and they spend again" in said
    code, out, said = quick("run", "job.yaml", "--new-model")
    assert code == 0
    learned = "this job learned 2,000 records with eps=1,delta=1e-06 (trust: process)"
    former = f"{learned}: these spends are kept, this model spends again"
    assert former in said
    assert json.loads(out.splitlines()[-1])["learned"] == 3000
    found = ledger_status(job / "late.db")
    assert (found.people, found.records, found.spent) == (3000, 5000, (0, 1000, 0, 0, 2000))
    assert former in quick.output("statement", "late.db", "--full")
    said = quick("run", "job.yaml", "--new-model")[2]
    assert (former in said, "the model goes on: schema and model are as before" in said) == (False, True)
    wider = RIGHT.replace("[0, 50]", "[0, 60]")
    (job / "job.yaml").write_text(wider)
    out = quick("run", "job.yaml", "--new-model")[1]
    assert '"learned": 1000, "refused": 2000' in out  # the others have spent their caps
    assert ledger_status(job / "late.db").spent[-1] == 3000
    assert "2,000 records with eps=1,delta=1e-06 (trust: process), 3,000 records with eps=1" in quick.output(
        "statement", "late.db", "--full"
    )


def test_no_worker_may_hold_a_job_whose_model_is_replaced(job: Path, quick: Quick) -> None:
    from streamdp.config.job import Accepted
    from streamdp.errors import StoreBusyError

    assert quick("run", "job.yaml", "--set", "source.max_bad_share=null")[0] == 0
    before = load_config(job / "job.yaml")
    (job / "job.yaml").write_text(RIGHT)
    after = load_config(job / "job.yaml")
    with before.open_store(Accepted(), shared=True), pytest.raises(StoreBusyError):
        after.open_store(Accepted(model=True), shared=True)
    with after.open_store(Accepted(model=True), shared=True) as store:
        assert "2,000 records" in store.notes[0]
        assert store.ledger.n_subjects == 2000


def test_models_that_learned_stay_in_the_statement_whatever_comes_between(job: Path) -> None:
    from streamdp.config.definition import read_definition

    first = load_config(job / "job.yaml")
    (job / "job.yaml").write_text(RIGHT)
    second = load_config(job / "job.yaml").continued(first.text(), 7, True, True)
    (job / "job.yaml").write_text(RIGHT.replace("[0, 50]", "[0, 60]"))
    third = load_config(job / "job.yaml").continued(second.config, 0, False)
    found = read_definition(third.config)
    assert [(old.learned, old.ended) for old in found.promises] == [(7, True), (0, True)]
    assert "this job learned 7 records" in found.limits(0)[-1]
    assert not third.replaced
