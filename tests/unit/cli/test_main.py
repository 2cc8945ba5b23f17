"""The `streamdp` command as a user types it: what it prints, its exit codes, and that no error shows a value."""

import csv
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamdp.runtime.learning import total
from streamdp.serving.snapshots import restore
from streamdp.store.store import Store
from tests.support import kafka_job
from tests.support.commands import Command, Quick, environment, streamdp
from tests.support.kafka_job import SECRET
from tests.support.sizes import some

pytestmark = pytest.mark.slow

SCHEMA = ["--target", "late", "--classes", "False,True", "--feature", "delay=-30:60", "--feature", "origin=EWR|JFK"]
FLAGS = [*SCHEMA, "--trust", "nobody"]
PAN = [*SCHEMA, "--trust", "process"]
PEOPLE = ["--subject", "tail", "--set", "schema.budget=eps", "--cap", "eps=3"]
rows = partial(kafka_job.rows, people=997)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "data.csv").write_text(rows(5000))
    shutil.copy(folder / "data.csv", folder / "holdout.csv")
    flags = [
        *FLAGS,
        *PEOPLE,
        "--publish",
        "model.json",
        "--set",
        "holdout=holdout.csv",
        "--set",
        "source.dead_letters=dead.jsonl",
    ]
    code, out, err = streamdp(folder, "run", "data.csv", *flags, "--set", "commit.records=2000")
    assert code == 0
    measured = json.loads(out.splitlines()[-2])["holdout"]  # at this epsilon 5,000 records teach nothing
    assert err == (f"streamdp: warning: {measured['warning']}\n" if "warning" in measured else "")
    (folder / "out.jsonl").write_text(out)
    return folder


def test_run_prints_a_line_a_commit_and_a_last_one(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "out.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["commit", "commit", "commit", "end"]
    assert [line["learned"] + line["refused"] + line["dead_letters"] for line in lines] == [2000, 4000, 5100, 5100]
    assert lines[-1]["dead_letters"] == 100
    assert lines[-1]["refused"] > 0
    assert lines[-1]["reason"] == "done"
    assert {"accuracy", "log_loss"} <= lines[-2]["holdout"].keys()
    assert "public" in lines[-2]["holdout"]["note"]
    published = json.loads((trained / "model.json").read_text())
    assert published["counts"] == {key: lines[-1][key] for key in ("learned", "refused", "dead_letters", "left_out")}
    assert "holdout" in published
    assert "epsilon = 1" in published["statement"]
    assert "eps=3" in published["statement"]
    assert len((trained / "dead.jsonl").read_text().splitlines()) == 100


def test_no_file_that_a_run_leaves_shows_a_value(trained: Path) -> None:
    for path in trained.iterdir():
        if path.name not in ("data.csv", "holdout.csv"):
            assert SECRET.encode() not in path.read_bytes(), path.name
            assert b"t996" not in path.read_bytes(), path.name


def test_status_statement_weights(trained: Path, quick: Quick) -> None:
    assert "do not fit:   100" in quick.output("status", "data.db", folder=trained)
    status = json.loads(quick("status", "data.db", "--json", folder=trained)[1])
    assert status["learned"] + status["refused"] + status["dead_letters"] == 5100
    assert status["cap"] == "eps=3"
    assert "refused once the person's total over all jobs with a cap in its database would pass eps=3" in quick.output(
        "statement", "data.db", folder=trained
    )
    out = quick.output("weights", "data.db", folder=trained)
    assert [line.split()[0] for line in out.splitlines()][:3] == ["delay", "origin=JFK", "(intercept)"]
    found = json.loads(quick("weights", "data.db", "--json", "--level", "0.9", folder=trained)[1])
    settled = [weight["settled"] for weight in found]
    assert settled == ["not settled" not in line for line in out.splitlines()[:3]] == ["low" in w for w in found]
    assert all(weight["low"] < weight["high"] for weight in found if weight["settled"])
    assert ("weights have no interval yet" in out) == (not all(settled))
    assert ("95 % intervals" in out) == any(settled)  # where there is none it was said, too


def test_a_statement_is_short_and_full_on_request(trained: Path, quick: Quick) -> None:
    """Whom to trust, what may be known, until when; the rest has headings. It was a wall of notes."""
    short, full = (quick.silent("statement", "data.db", *more, folder=trained) for more in ([], ["--full"]))
    assert full.startswith(short.rstrip("\n") + "\n\nNeighbours:\n  - ")
    starts = (
        "Privacy statement",
        "Who must be trusted: ",
        "What can be known of any single",
        "  - epsilon",
        "Until when",
    )
    assert all(line.startswith(start) for line, start in zip(short.splitlines(), starts, strict=True))
    headings = [line for line in full.splitlines()[len(starts) :] if line and not line.startswith("  - ")]
    assert {"Neighbours:", "People:", "What this covers:"} <= set(headings)
    assert short.rstrip("\n") in quick.output("status", "data.db", folder=trained)


def test_weights_status_and_statement_doubt_a_model_of_few_records(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "data.csv").write_text(rows(300))
    quick.output("run", "data.csv", *FLAGS, *PEOPLE, folder=tmp_path)
    doubt = "too few: their noise hides the signal of the columns, and the model is close to a constant or worse"
    for command in (["weights"], ["status"], ["statement", "--full"]):
        assert doubt in " ".join(quick.output(*command, "data.db", folder=tmp_path).split()), command


def test_predictions_are_those_of_the_committed_weights(trained: Path) -> None:
    text = 'id,origin,delay,note\n1,JFK,15,"a, b"\n2,EWR,60,\n3,XXX,1,\n4,EWR\n5,EWR,x,\n6,EWR,1e9,\n'
    code, out, err = streamdp(trained, "predict", "data.db", stdin=text)
    assert code == 0
    assert err.startswith(
        "streamdp: 3 of 6 rows do not fit the schema and have no prediction: unknown category in column"
    )
    table = list(csv.DictReader(io.StringIO(out)))
    assert [row["id"] for row in table] == list("123456")
    assert table[0]["note"] == "a, b"
    assert [row["prediction"] for row in table[2:5]] == ["", "", ""]
    snapshot = Store.snapshot(trained / "data.db")
    theta, model = snapshot.state["state"][1], restore(snapshot).estimator
    for row, x in ((0, [15.0, 1.0]), (1, [60.0, 0.0]), (5, [60.0, 0.0])):  # as in the file, within the bounds
        score = np.dot(theta[:2], x) + theta[2]
        given = float(table[row]["prediction_True"])
        p = model.predict_proba_one({"delay": x[0], "origin": "JFK" if x[1] else "EWR"})["True"]
        assert given == pytest.approx(p, rel=1e-5)
        assert 0 < np.log(given / (1 - given)) / score <= 1  # the noise of theta brings it nearer to a half
        assert table[row]["prediction"] == str(bool(score > 0))


def test_bytes_that_are_not_utf8_go_through(trained: Path) -> None:
    code, out, _ = streamdp(trained, "predict", "data.db", stdin=b"delay,origin,note\n1,EWR,\xff\n1,\xfe,x\n")
    assert code == 3, "no row has a prediction"
    lines = out.encode(errors="surrogateescape").split(b"\n")
    assert lines[1].startswith(b"1,EWR,\xff,")
    assert lines[2] == b"1,\xfe,x,,,"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "data.csv", *PAN, "--set", "model.eta=0.1"], 2, "PanPrivateClassifier has no eta"),
        (["run", "data.csv", *PAN, "--subject", "tail", "--cap", "mu=3"], 2, "cannot count ApproxDP"),
        (["run", "data.csv", *FLAGS, "--set", "model.batch_size=9"], 2, "LDPASGDClassifier has no batch_size"),
        (["run", "data.csv", *FLAGS, "--stdin", "new"], 2, "standard input"),
        (["run", "data.csv", "--target", "origin", "--feature", "delay=-30:60"], 3, "none of the first 5,100 records"),
        (["run", "data.csv", *FLAGS, "--store", "d.db", "--publish", "d.db"], 2, "publish: expected a file of its own"),
        (["run", "data.csv", *FLAGS, "--feature", "delay=0:1"], 2, "--feature: a column is given twice"),
        (["run", "/dev", *FLAGS], 3, "/dev has no file that ends in .csv"),
        (["run", "", *FLAGS], 2, "expected a .yaml job, a data file"),
        (["export", "data.db", "--to", "json", "-o", "no/x.json"], 2, "cannot write no/x.json: there is no folder no"),
        (["export", "data.db", "--to", "mlflow", "-o", "data.csv/x"], 2, "cannot write data.csv/x: not a directory"),
        (
            ["plan", "--loss", "huber", "--parameters", "100000", "--budget", "eps=1", "--error", "1"],
            2,
            "d: expected 1 to",
        ),
        (["plan", "--loss", "huber", "--parameters", "0"], 2, "equal to 1. Try --help."),
        (["status"], 2, "Missing argument 'JOB.YAML|STORE'. Try --help."),
    ],
)
def test_mistakes(trained: Path, tmp_path: Path, arguments: list[str], code: int, message: str, quick: Quick) -> None:
    shutil.copy(trained / "data.csv", tmp_path)
    shutil.copy(trained / "data.db", tmp_path)
    if arguments[0] == "run" and len(arguments) > 1:
        arguments = [*arguments, "--job", "other"] if arguments[1].endswith(".csv") else arguments
    got, _, err = quick(*arguments)
    assert got == code, err
    assert message in err
    assert err.startswith("streamdp: ")
    assert err.count("\n") == 1
    assert SECRET not in err


@pytest.mark.parametrize("group", [[], ["ledger"]])
def test_a_group_without_a_command_shows_its_help(group: list[str], quick: Quick) -> None:
    code, out, err = quick(*group)
    assert (code, out) == (2, "")
    assert err == quick(*group, "--help")[1]


@pytest.mark.parametrize("name", ["source.dead_letters", "publish", "holdout"])
def test_a_run_that_fails_before_it_learns_leaves_no_store(
    trained: Path, tmp_path: Path, quick: Quick, name: str
) -> None:
    shutil.copy(trained / "data.csv", tmp_path)
    quick.error(4 if name == "publish" else 3, "run", "data.csv", *FLAGS, *PEOPLE, "--set", f"{name}=none/data.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_a_store_that_lost_commits_goes_on_only_if_the_user_says_so(
    trained: Path, tmp_path: Path, quick: Quick
) -> None:
    for name in ("data.csv", "data.db.key", "data.db.last"):
        shutil.copy(trained / name, tmp_path)
    run = ["run", "data.csv", *FLAGS, *PEOPLE]
    for arguments in (run, [*run, "--accept-budget"]):
        err = quick.error(4, *arguments)
        assert "data.db is missing but" in err
        assert "--accept-loss" in err
    assert not (tmp_path / "data.db").exists()
    assert quick(*run, "--accept-loss", "--publish", "model.json")[0] == 0
    for _ in range(2):
        said = quick("statement", "data.db", "--full")[1]
        assert "the store lost commits, and the operator went on, once" in said
        assert "Every spend and every cap above may hold 2 times over" in said
        assert quick(*run)[0] == 0  # a later run does not forget it
    assert "lost commits" in json.loads((tmp_path / "model.json").read_text())["statement"]


def test_a_replaced_file_is_refused(trained: Path, tmp_path: Path, quick: Quick) -> None:
    """It has the same header and more records, so that its positions are all there."""
    for file in trained.glob("data.*"):
        shutil.copy(file, tmp_path)
    header, first, *others = (tmp_path / "data.csv").read_text().splitlines(keepends=True)
    (tmp_path / "data.csv").write_text("".join([header, *others, first, *others]))
    assert "data.csv begins with other records" in quick.error(3, "run", "data.csv", *FLAGS, *PEOPLE)


def test_another_configuration_is_refused(trained: Path, quick: Quick) -> None:
    err = quick.error(4, "run", "data.csv", *FLAGS, *PEOPLE, "--set", "model.eta=0.7", folder=trained)
    assert "another configuration of job 'data': model.eta was not set and is 0.7; restore" in err


def test_sigterm_commits_and_readers_and_a_second_run_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(rows(3000))
    flags = ["--set", "source.follow=true", "--set", "commit.records=100", "--set", "commit.seconds=0.2"]

    def counted() -> int:
        return total(Store.snapshot(tmp_path / "data.db").counts)

    with Command(tmp_path, None, "run", "data.csv", *FLAGS, *PEOPLE, *flags) as command:
        command.until(lambda: command.of("commit"))
        code, _, err = streamdp(tmp_path, "run", "data.csv", *FLAGS, *PEOPLE)
        assert code == 4
        assert "in use" in err
        assert streamdp(tmp_path, "status", "data.db")[0] == 0
        assert streamdp(tmp_path, "predict", "data.db", stdin="delay,origin\n1,EWR\n")[0] == 0
        command.until(lambda: counted() == 3060)
        with (tmp_path / "data.csv").open("a") as file:
            file.write("1,EWR,True,t5,\n" * 10)
        command.until(lambda: counted() == 3070)
        command.process.terminate()
        assert command.end() == 0
    last = command.events[-1]
    assert (last["event"], last["reason"]) == ("end", "stopped")
    assert last["learned"] == Store.snapshot(tmp_path / "data.db").counts.learned


def test_a_run_that_learns_nothing_is_no_success(tmp_path: Path) -> None:
    flags = ["run", "-", "--store", "s.db", "--set", "source.type=jsonl", "--set", "source.max_bad_share=null"]
    flags += ["--target", "late", "--target-bounds", "0:1", "--feature", "dealy=0:1"]
    for begins in (0, 500):  # also a run that goes on
        text = '{"delay": 0.25, "late": 1}\n' * 500
        code, out, err = streamdp(tmp_path, *flags, "--stdin", "new", stdin=text)
        assert (code, json.loads(out.splitlines()[-1])["dead_letters"]) == (3, begins + 500)
        assert "warning: none of the first " in err
        assert (
            "nothing was learned in this run: 500 records do not fit the schema: missing in column 'dealy' (500)" in err
        )
        assert "0.25" not in err


def test_a_run_that_stops_for_too_many_bad_records_leaves_no_store(
    tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first records can be checked before the store is opened only if they can be read twice."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"delay": 0.25, "late": 1}\n' * 200)))
    flags = ["--set", "source.type=jsonl", "--target", "late", "--target-bounds", "0:1", "--feature", "dealy=0:1"]
    assert "200 of the first 200 records" in quick.error(3, "run", "-", *flags, *PEOPLE)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}


def test_standard_input_is_resumed_only_as_its_user_says(tmp_path: Path) -> None:
    flags = ["run", "-", *FLAGS, "--store", "s.db"]
    text = rows(1000)
    part = "".join(text.splitlines(keepends=True)[:500])

    def learned() -> Any:
        snapshot = Store.snapshot(tmp_path / "s.db")
        return snapshot.counts.learned + snapshot.counts.dead_letters

    assert streamdp(tmp_path, *flags, stdin=part)[0] == 0
    assert learned() == 499
    code, _, err = streamdp(tmp_path, *flags, stdin=text)
    assert code == 3
    assert "--stdin new" in err
    assert "--stdin replay" in err
    for other in ("".join(part.splitlines(keepends=True)[:400]), text.replace("\n", ",\n", 1)):
        code, _, err = streamdp(tmp_path, *flags, "--stdin", "replay", stdin=other)
        assert code == 3
        assert "not the input" in err
    assert learned() == 499
    assert streamdp(tmp_path, *flags, "--stdin", "replay", stdin=text)[0] == 0
    assert learned() == 1020
    assert streamdp(tmp_path, *flags, "--stdin", "new", stdin=text)[0] == 0
    assert learned() == 2040


def test_a_file_that_was_not_published_is_made_good_and_no_commit_is_printed_twice(
    trained: Path, tmp_path: Path, quick: Quick
) -> None:
    for name in ("data.csv", "data.db", "data.db.key"):
        shutil.copy(trained / name, tmp_path)
    flags = [*FLAGS, *PEOPLE, "--publish", "model.json"]
    out = quick.output("run", "data.csv", *flags)
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["end"]
    published = json.loads((tmp_path / "model.json").read_text())
    assert published["commit"] == 4  # the first one has the place of the dead letters


def test_fields_of_any_length_and_tabs(trained: Path) -> None:
    text = f"delay\torigin\tnote\n1\tEWR\t{'a' * 200_000}\n"
    code, out, err = streamdp(trained, "predict", "data.db", "--set", r"source.delimiter=\t", stdin=text)
    assert (code, err) == (0, "")
    assert len(out.splitlines()[1].split("\t")) == 6


def test_predict_reads_text_as_run_does(trained: Path) -> None:
    plain = "delay,origin\n1.5,EWR\n-1000,EWR\n"
    other = "# exported\ndelay;origin;Flughäfen\n1,5;EWR;é\n-1.000,0;EWR;é\n".encode("cp1252")
    form = ["delimiter=;", "encoding=cp1252", "comment='#'", "decimal=','", "thousands=."]
    options = [part for setting in form for part in ("--set", f"source.{setting}")]
    _, expected, _ = streamdp(trained, "predict", "data.db", stdin=plain)
    code, out, err = streamdp(trained, "predict", "data.db", *options, stdin=other)
    out = out.replace(",", ".")  # predictions are written as the numbers of the file are
    assert (code, err) == (0, "")
    assert [line.split(";")[-3:] for line in out.splitlines()[1:]] == [
        line.split(",")[-3:] for line in expected.splitlines()[1:]
    ]


@pytest.mark.parametrize("setting", ["source.path=x", "model.eta=1", "source.encoding=klingon", "source.decimal=;"])
def test_predict_takes_no_other_settings(trained: Path, setting: str) -> None:
    code, _, err = streamdp(trained, "predict", "data.db", "--set", setting, stdin="delay,origin\n")
    assert code == 2
    assert err.count("\n") == 1
    assert "source." in err


def test_a_run_without_privacy_says_so_and_takes_a_tab(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "data.csv").write_text(rows(100).replace(",", "\t"))
    flags = [*FLAGS, "--set", "model.mechanism=none", "--set", r"source.delimiter=\t"]
    assert "NOT private" in quick.error(0, "run", "data.csv", *flags)


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, quick: Quick) -> None:
    """Before the run has its handlers, and several times within it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a shell's background

    def interrupt(*_: Any) -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    (tmp_path / "data.csv").write_text(rows(100))
    place = "streamdp.cli.run._resume" if times == 1 else "streamdp.runtime.display.RunnerDisplay.progress"
    monkeypatch.setattr(place, interrupt)
    try:
        code, _, err = quick("run", "data.csv", *FLAGS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (130, "streamdp: interrupted; what was committed is kept\n")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    some(
        [
            ("run data.csv $FLAGS > /dev/full", 1, "cannot write standard output: no space left on device"),
            ("run data.csv $FLAGS >&-", 2, "standard output is closed"),
            ("run - $FLAGS <&-", 3, "standard input is closed"),
            ("predict data.db <&-", 3, "standard input is closed"),
            ("--version > /dev/full", 1, "cannot write standard output: no space left on device"),
            ("status data.db > /dev/full", 1, "cannot write standard output: no space left on device"),
        ],
        0,
        1,
        2,
    ),
)
def test_standard_streams_that_are_closed_or_full(
    trained: Path, tmp_path: Path, command: str, code: int, message: str
) -> None:
    shutil.copy(trained / "data.csv", tmp_path)
    if not command.startswith("run"):
        shutil.copy(trained / "data.db", tmp_path)
    command = command.replace("$FLAGS", shlex.join(FLAGS))
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m streamdp {command}"],
        cwd=tmp_path,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(f"streamdp: {message}")
    assert done.stderr.count("\n") == 1


def test_version_help_and_plan(tmp_path: Path, quick: Quick) -> None:
    out = quick.output("--version")
    assert out.startswith("streamdp ")
    assert "Exit codes" in quick.output("--help")
    plan = ["plan", "--loss", "huber", "--parameters", "5", "--budget", "eps=1"]
    records = quick.output(*plan, "--error", "0.1").split()[0].replace(",", "")
    out = quick.output(*plan, "--records", records)
    assert float(out.split()[1]) == pytest.approx(0.1, rel=0.01)
    assert "likely to beat the best constant" in out
    many = quick.output("plan", "--loss", "huber", "--parameters", "50", "--budget", "eps=1", "--records", "10000")
    assert "unlikely to beat the best constant" in many


def test_an_unexpected_error_does_not_quote_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Quick
) -> None:
    def explode(*_: Any) -> Any:
        raise ValueError(f"could not convert {SECRET}")

    monkeypatch.setattr("streamdp.cli.run.job_config", explode)
    err = quick.error(1, "run", "data.csv")
    assert "unexpected ValueError at test_main.py:" in err
    assert SECRET not in err


def test_another_package_of_the_name_connectors_is_named(monkeypatch: pytest.MonkeyPatch, quick: Quick) -> None:
    """It was an unexpected ModuleNotFoundError."""

    def shadowed(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'connectors.csvgrammar'", name="connectors.csvgrammar")

    monkeypatch.setattr("streamdp.cli.run.job_config", shadowed)
    monkeypatch.setitem(sys.modules, "connectors", SimpleNamespace(__file__="/other/connectors/__init__.py"))
    said = quick.error(1, "run", "data.csv")
    assert "another package named connectors is in the place of streamdp's: /other/connectors/__init__.py" in said


def test_a_store_on_a_read_only_file_system_is_read(trained: Path) -> None:
    """SQLite cannot make the files there that it reads a write-ahead log with."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0"'
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, mount, trained], check=False).returncode:
        pytest.skip("this system does not let tests mount a folder")
    done = subprocess.run(
        [*unshare, f'{mount} && touch new 2>/dev/null; exec "$1" -m streamdp status data.db', trained, sys.executable],
        env=environment(None),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "learned:" in done.stdout
    assert not (trained / "new").exists()


def test_a_model_that_is_worse_than_a_constant_is_told_wherever_it_is_shown(tmp_path: Path, quick: Quick) -> None:
    (tmp_path / "data.csv").write_text("x,y\n" + "".join(f"{x},{x}\n" for x in (-1.0, 1.0) * 200))
    (tmp_path / "public.csv").write_text("x,y\n" + "".join(f"{x},{-x}\n" for x in (-1.0, 1.0) * 200))
    flags = ["--target", "y", "--target-bounds=-1:1", "--feature", "x=-1:1", "--budget", "eps=20"]
    flags += ["--publish", "model.json"]
    code, out, err = quick("run", "data.csv", *flags, "--set", "holdout=public.csv")
    assert code == 0
    assert "warning: on the public holdout, the model is worse than the best constant: mean absolute error" in err
    assert json.loads(out.splitlines()[0])["holdout"]["warning"] in err
    doubt, shown = "on the public holdout, the model is worse than the best constant", ("status", "weights")
    for command in shown:
        assert doubt in quick.output(command, "data.db")
    assert doubt in quick("predict", "data.db", "public.csv")[2]
    assert doubt in json.loads((tmp_path / "model.json").read_text())["doubts"]
    (tmp_path / "like.csv").write_text((tmp_path / "data.csv").read_text())
    quick.output("run", "data.csv", *flags, "--set", "holdout=like.csv")  # the same commit, on another holdout
    for command in shown:
        assert doubt not in quick.output(command, "data.db")


def test_a_run_says_whether_the_model_is_any_good(tmp_path: Path, quick: Quick) -> None:
    """Without a holdout: from private answers, whose budget the statement and the cap count."""
    lines = [f"{i % 20},{i % 20 > 9},p{i % 300}" for i in range(6000)]
    (tmp_path / "data.csv").write_text("x,y,who\n" + "\n".join(lines + ["bad,True,p1"] * 600) + "\n")
    options = ["--target", "y", "--classes", "False,True", "--feature", "x=0:20", "--subject", "who"]
    options += ["--set", "validation.budget=eps=4", "--budget", "eps=4", "--cap", "eps=80", "--publish", "model.json"]
    options += ["--trust", "nobody", "--set", "source.max_bad_share=null"]
    code, out, err = quick("run", "data.csv", *options)
    assert code == 0
    end = json.loads(out.splitlines()[-1])
    assert (end["learned"], end["refused"]) == (3000, 3000)  # ten records of each person: a record spends 8 of 80
    sentence = end["validation"]
    assert sentence.startswith("the model is better than the best constant (log loss ")
    assert err == ""  # the sentence is in the last line of the output, and was here, too
    assert out.count(sentence) == 1
    assert "600 of 6,600 rows (9 %) were dropped" in end["doubts"][0]
    assert sentence in quick("status", "data.db")[1]
    status = json.loads(quick("status", "data.db", "--json")[1])
    assert status["validation"]["verdict"] == "better"
    assert status["guarantee"] == "eps=8"
    assert "each spent eps=4 on it" in quick("statement", "data.db", "--full")[1]
    published = json.loads((tmp_path / "model.json").read_text())
    assert published["validation"]["sentence"] == sentence
    assert "holdout" not in published


def test_a_weight_of_a_wide_column_is_no_row_of_zeros(tmp_path: Path, quick: Quick) -> None:
    """One dollar changes little: `-0.0000 [-0.0000, +0.0000]` said nothing of it."""
    incomes = [i * 7919 % 200_000 for i in range(5_000)]
    lines = (f"{income},{income + i * 104_729 % 160_000 >= 180_000}" for i, income in enumerate(incomes))
    (tmp_path / "data.csv").write_text("\n".join(["income,rich", *lines]) + "\n")
    flags = ("--feature", "income=0:200000", "--target", "rich", "--classes", "False,True", "--budget", "eps=8")
    quick.output("run", "data.csv", *flags, folder=tmp_path)
    line = quick.output("weights", "data.db", folder=tmp_path).splitlines()[0]
    found = json.loads(quick.output("weights", "data.db", "--json", folder=tmp_path))[0]
    assert found["low"] < found["value"] < found["high"] < 1e-3
    shown = [float(part.strip("[],")) for part in line.split()[1:4]]
    assert shown == pytest.approx([found["value"], found["low"], found["high"]], rel=0.05)
