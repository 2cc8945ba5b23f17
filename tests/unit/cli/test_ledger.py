"""Jobs that name one ledger in their YAML, and the commands of `streamdp ledger`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.commands import Quick
from tests.support.people import rows

pytestmark = pytest.mark.slow
JOB = """job: {job}
source: {{path: data.csv}}
schema:
  features: {{delay: [-1, 1]}}
  target: {{column: late, classes: ["no", "yes"]}}
  subject: who
model: {{estimator: LDPASGDClassifier, budget: eps=1}}
cap: eps={cap}
ledger: people.db
"""


def write(folder: Path, job: str, cap: float = 8, text: str = JOB) -> str:
    (folder / f"{job}.yaml").write_text(text.format(job=job, cap=cap))
    return f"{job}.yaml"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """300 records of 50 people, so six of each."""
    text = rows(300, 50)
    (tmp_path / "data.csv").write_text(text)
    return text


def test_two_jobs_of_one_ledger(quick: Quick, tmp_path: Path, data: str) -> None:
    assert quick("run", write(tmp_path, "late"))[0] == 0
    assert quick("run", write(tmp_path, "again"))[0] == 0
    learned = {job: json.loads(quick("status", f"{job}.db", "--json")[1]) for job in ("late", "again")}
    assert [(found["learned"], found["refused"]) for found in learned.values()] == [(300, 0), (100, 200)]
    assert not (tmp_path / "late.db.key").exists()
    out = quick.silent("ledger", "status", "people.db")
    assert "cap:     eps=8 since 20" in out
    assert "people:  50, of whom 0 have a cap of their own" in out
    assert "50 spent 90% to 100% of their cap" in out
    assert "job late: 300 records charged, in sum epsilon 300; last 20" in out
    assert "whole: commit 1, position {" in out
    found = json.loads(quick("ledger", "status", "people.db", "--json")[1])
    assert (found["people"], found["records"], found["spent"]) == (50, 400, [0, 0, 0, 0, 50])
    exported = list(csv.DictReader(io.StringIO(quick("ledger", "export", "people.db")[1])))
    assert {(row["records"], row["epsilon"], row["cap"]) for row in exported} == {("8", "8.0", "")}
    assert len({row["subject_hash"] for row in exported}) == 50
    assert not any(f"p{i}" in out for i in range(50))


def test_statements_say_what_the_cap_covers(quick: Quick, tmp_path: Path, data: str) -> None:
    alone = JOB.replace("ledger: people.db\n", "")
    uncapped = alone.replace("cap: eps={cap}\n", "")
    said = {}
    for job, text in (("shared", JOB), ("alone", alone), ("uncapped", uncapped)):
        assert quick("run", write(tmp_path, job, text=text))[0] == 0
        said[job] = quick("statement", f"{job}.db")[1]
    over = "records with a subject are refused once the person's total over all jobs of its ledger would pass eps=8"
    assert over in said["shared"]
    total = "every job and pass that charges the ledger for a person's total"
    alone = "this model alone, and each record as if it was given once; it does not cover further models"
    assert f"Note: this statement covers {total}, and for all else {alone}" in said["shared"]
    for job in ("alone", "uncapped"):
        assert f"Note: this statement covers {alone}" in said[job]
        assert "jobs" not in said[job]
    assert "no cap is kept" in said["uncapped"]


def test_the_cap_is_changed_for_all_jobs_or_for_people(quick: Quick, tmp_path: Path, data: str) -> None:
    quick("run", write(tmp_path, "late"))
    code, out, err = quick("run", write(tmp_path, "more", cap=9))
    assert (code, out) == (4, "")
    assert "people.db has the cap eps=8, and this job has eps=9; a ledger has one cap for all its jobs" in err
    assert not (tmp_path / "more.db").exists()
    assert quick("ledger", "set-cap", "people.db", "eps=9")[:2] == (0, "the cap is eps=9\n")
    assert quick("run", "more.yaml")[0] == 0
    assert json.loads(quick("status", "more.db", "--json")[1])["learned"] == 150
    assert "people.db has the cap eps=9, and this job has eps=8" in quick.error(4, "run", "late.yaml")
    assert "--accept-budget" in quick.error(2, "run", write(tmp_path, "late", cap=9))
    assert quick("run", "late.yaml", "--accept-budget")[0] == 0
    assert "8" in quick("ledger", "status", "people.db")[1].splitlines()[1]
    assert (
        "until 300 records were learned, the default budget was eps=1 and the cap eps=8"
        in (quick("statement", "late.db")[1])
    )


def test_caps_of_people_come_from_standard_input(
    quick: Quick, tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick("run", write(tmp_path, "late"))
    monkeypatch.setattr("sys.stdin", io.StringIO("p1\r\np2\n\nnobody\n"))
    assert quick("ledger", "set-cap", "people.db", "eps=6", "--subjects")[:2] == (0, "3 people have the cap eps=6\n")
    quick("run", write(tmp_path, "again"))
    assert json.loads(quick("status", "again.db", "--json")[1])["learned"] == 2 * 48
    found = json.loads(quick("ledger", "status", "people.db", "--json")[1])
    assert (found["people"], found["own_caps"]) == (51, 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("p1\n"))
    assert quick("ledger", "set-cap", "people.db", "none", "--subjects")[0] == 0
    assert json.loads(quick("ledger", "status", "people.db", "--json")[1])["own_caps"] == 2


def test_mistakes_with_a_ledger(quick: Quick, tmp_path: Path, data: str) -> None:
    for arguments in (["status", "none.db"], ["set-cap", "none.db", "eps=1"], ["export", "none.db"]):
        code, out, err = quick("ledger", *arguments)
        assert (code, out, "none.db: No such file" in err) == (4, "", True)
    assert not list(tmp_path.glob("none.db*"))
    quick("run", write(tmp_path, "late"))
    for arguments, code, said in (
        (["status", "late.db"], 4, "not a streamdp ledger"),
        (["status", "postgresql://"], 4, "expected a file path"),
        (["set-cap", "people.db", "mu=1"], 2, "differ in its amounts only"),
        (["set-cap", "people.db", "none"], 2, "a ledger needs a cap"),
        (["set-cap", "people.db", "much"], 5, "eps="),
    ):
        found = quick("ledger", *arguments)
        assert (found[0], found[1]) == (code, "")
        assert said in found[2]
    for path in tmp_path.glob("late.db*"):
        path.unlink()
    err = quick.error(4, "run", "late.yaml")
    assert "another store of job 'late' has charged 300 records" in err
    assert "give this job another name" in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cap: eps={cap}\n", "", "ledger: needs cap, the total that a subject may spend over all jobs of the ledger"),
        ("ledger: people.db", "ledger: x.db", "ledger: expected a file of its own, got the same as store"),
        ("ledger: people.db", "ledger: x.db.key", "ledger: expected a file of its own, got the same as store.key"),
        ("ledger: people.db", "ledger: data.csv", "ledger: expected a file of its own, got the same as source.path"),
        ("ledger: people.db", "ledger: ''", "ledger: "),
    ],
)
def test_mistakes_in_a_job(quick: Quick, tmp_path: Path, data: str, old: str, new: str, said: str) -> None:
    assert said in quick.error(2, "run", write(tmp_path, "x", text=JOB.replace(old, new)))
    assert (tmp_path / "data.csv").read_text() == data


def test_a_job_cannot_change_between_a_ledger_of_its_own_and_a_shared_one(
    quick: Quick, tmp_path: Path, data: str
) -> None:
    alone = JOB.replace("ledger: people.db\n", "")
    quick("run", write(tmp_path, "x", text=alone))
    assert "ledger was not set and is shared" in quick.error(4, "run", write(tmp_path, "x"))
