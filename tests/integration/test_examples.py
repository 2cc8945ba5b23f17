"""The jobs and scripts of `examples` that need no server, on few records."""

import json
from pathlib import Path

import pytest

from examples import trust
from streamdp.datasets import flights
from tests.support.commands import Quick
from tests.support.paths import ROOT
from tests.support.sizes import some

JOBS = ("late", "delay", "late-pan", "late-shuffle", "late-user-level", "late-windowed")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flights") / "train.csv"
    rows = flights()[:9000]
    rows[:8000].write_csv(path)
    rows[8000:].write_csv(path.with_name("holdout.csv"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", some(JOBS, 0, 3, 5))
def test_an_example_of_a_job_learns(name: str, stream: Path, tmp_path: Path, quick: Quick) -> None:
    changes = [
        f"source.path={stream}",
        f"holdout={stream.with_name('holdout.csv')}",
        f"store={tmp_path / 'job.db'}",
        "publish=null",
    ]
    changes += [f"source.dead_letters={tmp_path / 'dead.jsonl'}"]
    if name in ("late-user-level", "late-windowed"):
        changes.append("model.window=4000")
    job = str(ROOT / "examples" / f"{name}.yaml")
    code, out, err = quick("run", job, *(word for change in changes for word in ("--set", change)))
    assert code == 0, err
    end = json.loads(out.splitlines()[-1])
    assert end["reason"] == "done"
    assert end["learned"] > 3000
    assert "origin=JFK" in quick("weights", str(tmp_path / "job.db"))[1]


def test_each_job_of_the_examples_is_run() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.yaml")}
    assert found - {"late-kafka", "late-service", "late-spark"} == set(JOBS)  # these are run by make


def test_the_kinds_of_trust(capsys: pytest.CaptureFixture[str]) -> None:
    trust.main(people=1_000, each=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("accuracy")[0].strip() for line in lines] == [
        "nobody is trusted",
        "the operator, while a record passes",
        "a shuffler",
        "nobody, for a person",
        "the operator, for a person",
    ]
    assert all("eps=" in line for line in lines)
