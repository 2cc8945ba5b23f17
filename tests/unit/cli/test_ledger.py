"""Jobs that name one database in their YAML, and the commands of `streamdp ledger`."""

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
store: people.db
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


def learned(quick: Quick, job: str) -> tuple[int, int]:
    found = json.loads(quick("status", "people.db", "--job", job, "--json")[1])
    return found["learned"], found["refused"]


def test_a_run_says_that_its_cap_is_lower_than_before(quick: Quick, tmp_path: Path, data: str) -> None:
    """More expected records lower the delta of a cap that is written without one, and refuse all who have spent."""
    text = JOB.replace("LDPASGDClassifier", "PanPrivateClassifier")
    assert quick("run", write(tmp_path, "late", 20, text))[0] == 0
    more = text + "expected_records: 1000000000\n"
    (tmp_path / "data.csv").write_text(rows(600, 50))
    code, _, err = quick("run", write(tmp_path, "late", 20, more))
    assert code == 0
    assert "a person could spend eps=20,delta=2e-07 and now eps=20,delta=2e-09: records of those who have" in err
    assert "(cap: eps=20,delta=2e-07 keeps it)" in err
    assert "keeps it" not in quick("run", "late.yaml")[2]


def test_two_jobs_of_one_database(quick: Quick, tmp_path: Path, data: str) -> None:
    joined = "other jobs, late: one cap, eps=8, holds over all of them"
    code, _, err = quick("run", write(tmp_path, "late"))
    assert (code, "other jobs" in err) == (0, False)
    code, _, err = quick("run", write(tmp_path, "again"))
    assert (code, joined in err) == (0, True)
    assert "other jobs" not in quick("run", "again.yaml")[2]
    assert [learned(quick, job) for job in ("late", "again")] == [(300, 0), (100, 200)]
    for command in ("status", "statement", "weights"):
        assert "holds 2 jobs (again, late): name one with --job" in quick.error(4, command, "people.db")
    assert quick("statement", "people.db", "--job", "late", "--full")[0] == 0
    assert "holds 'again', 'late', and not 'none'" in quick.error(4, "statement", "people.db", "--job", "none")
    out = quick.silent("ledger", "status", "people.db")
    assert "cap:     eps=8 since 20" in out
    assert "people:  50, 0 of them with a cap of their own" in out
    assert "50 spent 90% to 100% of their cap" in out
    assert "job late: 300 records learned, 0 refused, 0 left out, 0 do not fit; last commit 20" in out
    assert "job again: 100 records learned, 200 refused, 0 left out, 0 do not fit; last commit 20" in out
    assert "whole: commit 1, position {" in out
    found = json.loads(quick("ledger", "status", "people.db", "--json")[1])
    assert (found["people"], found["records"], found["spent"]) == (50, 400, [0, 0, 0, 0, 50])
    exported = list(csv.DictReader(io.StringIO(quick("ledger", "export", "people.db")[1])))
    assert {(row["records"], row["epsilon"], row["cap"]) for row in exported} == {("8", "8.0", "")}
    assert len({row["subject_hash"] for row in exported}) == 50
    assert not any(f"p{i}" in out for i in range(50))


def test_statements_say_what_the_cap_covers(quick: Quick, tmp_path: Path, data: str) -> None:
    said = {}
    for job, text in (("capped", JOB), ("free", JOB.replace("cap: eps={cap}\n", ""))):
        assert quick("run", write(tmp_path, job, text=text))[0] == 0
        said[job] = quick("statement", "people.db", "--job", job, "--full")[1]
    over = "refused once the person's total over all jobs with a cap in its database would pass eps=8"
    assert over in said["capped"]
    total = "every job with a cap in its database, and no other, for a person's total"
    alone = "this model alone, and each record as if it was given once"
    assert f"  - this statement covers {total}, and for all else {alone}" in said["capped"]
    assert f"  - this statement covers {alone}" in said["free"]
    assert "jobs" not in said["free"]
    assert "no cap is kept" in said["free"]
    assert "job free: 300 records learned, 0 refused, 0 left out, 0 do not fit" in (
        out := quick("ledger", "status", "people.db")[1]
    )
    assert "it has no cap, and the ledger knows nothing of its people" in out


def test_the_cap_is_changed_for_all_jobs_or_for_people(quick: Quick, tmp_path: Path, data: str) -> None:
    quick("run", write(tmp_path, "late"))
    code, out, err = quick("run", write(tmp_path, "more", cap=9))
    assert (code, out) == (4, "")
    assert "people.db has the cap eps=8, and this job has eps=9. A database has one cap for all its jobs (late)" in err
    assert "say --accept-budget" in quick.error(2, "ledger", "set-cap", "people.db", "eps=9")
    assert quick("ledger", "set-cap", "people.db", "eps=9", "--accept-budget")[:2] == (0, "the cap is eps=9\n")
    assert quick("run", "more.yaml")[0] == 0
    assert learned(quick, "more") == (150, 150)
    assert "people.db has the cap eps=9, and this job has eps=8" in quick.error(4, "run", "late.yaml")
    assert "--accept-budget" in quick.error(2, "run", write(tmp_path, "late", cap=9))
    assert quick("run", "late.yaml", "--accept-budget")[0] == 0
    assert "8" in quick("ledger", "status", "people.db")[1].splitlines()[1]
    assert (
        "until 300 records were learned, the default budget was eps=1 and the cap eps=8"
        in (quick("statement", "people.db", "--job", "late", "--full")[1])
    )


def test_jobs_of_all_trusts_share_a_cap_with_a_delta(quick: Quick, tmp_path: Path, data: str) -> None:
    window = JOB.replace("{{estimator: LDPASGDClassifier, budget: eps=1}}", "{{trust: window, budget: eps=1}}")
    quick("run", write(tmp_path, "late"))
    err = quick.error(4, "run", write(tmp_path, "held", text=window))
    assert "(late): this one is of another kind; begin all jobs in a new database with cap: eps=8,delta=8e-08" in err
    new = ("--set", "store=new.db", "--set", "cap=eps=8,delta=8e-08")
    assert [quick("run", job, *new)[0] for job in ("late.yaml", "held.yaml")] == [0, 0]
    few = write(tmp_path, "few", text=window.replace("eps=1", "eps=0.5"))
    err = quick.error(4, "run", few, "--set", "store=new.db")
    assert "write cap: eps=8,delta=8e-08 in this one, or change that of the database by streamdp ledger set-cap" in err
    assert quick("run", few, *new)[0] == 0


def test_caps_of_people_come_from_standard_input(
    quick: Quick, tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick("run", write(tmp_path, "late"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffp1\r\np2\n\nnobody\np2\n"))
    said = "3 people have the cap eps=6; 1 of them have no records here: is it how the job writes its subjects?\n"
    assert quick("ledger", "set-cap", "people.db", "eps=6", "--subjects")[:2] == (0, said)
    quick("run", write(tmp_path, "again"))
    assert learned(quick, "again") == (2 * 48, 204)
    found = json.loads(quick("ledger", "status", "people.db", "--json")[1])
    assert (found["people"], found["own_caps"]) == (51, 3)
    for larger in ("none", "eps=7"):
        monkeypatch.setattr("sys.stdin", io.StringIO("p1\n"))
        err = quick.error(2, "ledger", "set-cap", "people.db", larger, "--subjects")
        assert "a larger cap is a weaker promise to 1 of these people: say --accept-budget" in err
    assert json.loads(quick("ledger", "status", "people.db", "--json")[1])["own_caps"] == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("p1\n"))
    found = quick("ledger", "set-cap", "people.db", "none", "--subjects", "--accept-budget")
    assert found[:2] == (0, "1 people have the cap none\n")
    assert json.loads(quick("ledger", "status", "people.db", "--json")[1])["own_caps"] == 2


def test_mistakes_with_a_ledger(quick: Quick, tmp_path: Path, data: str) -> None:
    for arguments in (["status", "none.db"], ["set-cap", "none.db", "eps=1"], ["export", "none.db"]):
        code, out, err = quick("ledger", *arguments)
        assert (code, out, "none.db: there is no such store" in err) == (4, "", True)
    assert not list(tmp_path.glob("none.db*"))
    quick("run", write(tmp_path, "late"))
    for arguments, code, said in (
        (["status", "data.csv"], 4, "not an SQLite database"),
        (["status", "postgresql://"], 4, "expected a file path"),
        (["set-cap", "people.db", "mu=1"], 2, "differ in its amounts only"),
        (["set-cap", "people.db", "none"], 2, "needs a cap"),
        (["set-cap", "people.db", "much"], 5, "eps="),
    ):
        found = quick("ledger", *arguments)
        assert (found[0], found[1]) == (code, "")
        assert said in found[2]
