"""Wrong inputs: each gets one sentence that says what is wrong, no traceback and no value of a record."""

import bz2
import gzip
import json
import os
from pathlib import Path

import pytest

from tests.support.commands import Quick

SECRET = "4711.25"
DATA = "age,city,married,when,wage\n" + f"23,Paris,true,2024-01-02,{SECRET}\n54,Lyon,FALSE,2024-01-03,60\n" * 40
JOB = """job: people
source: {type: csv, path: people.csv}
schema:
  features: {age: [0, 120], city: [Paris, Lyon], married: [false, true]}
  target: {column: wage, bounds: [0, 9000]}
model: {estimator: LDPASGDRegressor, budget: eps=1}
"""
CLASSES = (
    JOB.replace("column: wage, bounds: [0, 9000]", "column: married, classes: [false, true]")
    .replace("{age: [0, 120], city: [Paris, Lyon], married: [false, true]}", "{age: [0, 120], city: [Paris, Lyon]}")
    .replace("Regressor", "Classifier")
)


def dated(moment: int) -> bytes:
    """The data, with a column that counts since 1970."""
    header, *lines = DATA.splitlines()
    return "\n".join([header + ",at", *(f"{line},{moment + i}" for i, line in enumerate(lines)), ""]).encode()


JOBS = [  # what is replaced in the job, by what, the exit code, and what the sentence says
    ("job: people\n", "", 2, "job: missing setting"),
    ("job: people", "jbo: people", 2, "did you mean 'job'?"),
    ("bounds: [0, 9000]", "bound: [0, 9000]", 2, "did you mean 'bounds'?"),
    ("csv", "cvs", 2, "shuffle, mixer, http, spark; did you mean 'csv'?"),
    ("csv", "parquet", 3, "is no parquet file"),
    ("csv, ", "arrow, ", 3, "is no arrow file"),
    ("type: csv", "type: jsonl", 3, "none of the first 81 records fits the schema: not json (81); fix"),
    ("people.csv", "array.json", 3, "lacks the declared 'age', 'city', 'married', 'wage'; it looks like JSON"),
    ("csv, path: people.csv", "jsonl, path: array.json", 3, "one JSON array: expected JSON lines, one object on each"),
    ("people.csv", "poeple.csv", 3, "no such file or directory"),
    ("people.csv", "empty_folder", 3, "has no file that ends in .csv"),
    ("path: people.csv", "path: [people.csv, people.csv]", 2, "expected a list of different files"),
    ("path: people.csv", "path: [people.csv], follow: true", 2, "follow is for one CSV or JSONL file"),
    ("csv, path", "csv, delimiter: ab, path", 2, "source.delimiter"),
    ("csv, path", "csv, delimiter: ';', path", 3, "one column if cut at ';': is the delimiter right"),
    ("  features: {age: [0, 120], city: [Paris, Lyon], married: [false, true]}", "  features: {}", 2, "features"),
    ("[0, 120]", "{bounds: [0, 120], typical: [200, 1]}", 2, "typical centre within the bounds"),
    ("[0, 120]", "{bounds: [0, 120], missing: typical}", 2, "missing: typical needs typical"),
    ("[0, 120]", "{bounds: [0, 120], other: true}", 2, "are for categories"),
    ("[0, 120]", "{bounds: [0, 120], part: hour}", 3, "not a date in column 'age'"),
    ("[0, 120]", "{bounds: [0, 120], column: ages}", 3, "did you mean 'age'?"),
    ("age:", "size:", 3, "lacks the declared 'size'"),
    ("[Paris, Lyon]", "['', Lyon]", 2, "non-empty strings"),
    ("[Paris, Lyon]", "[Paris, 2]", 2, "put quotes around a category"),
    ("[Paris, Lyon]", "Paris", 2, "list of categories"),
    ("[Paris, Lyon]", "[0, 1]", 3, "'city' (80); 'city': declare categories"),
    ("married: [false, true]", "age: [0, 1]", 2, "'age' is given twice"),
    ("married: [false, true]", "wage: [0, 1]", 2, "got 'wage' twice"),
    ("column: wage", "column: when", 3, "'when' (80); 'when': declare categories (a target: classes), its gaps"),
    ("bounds: [0, 9000]", "bounds: [9000, 0]", 2, "low < high"),
    ("bounds: [0, 9000]", "classes: [a, b]", 2, "needs a schema.target without classes"),
    ("bounds: [0, 9000]", "scale: 0", 2, "positive, finite target_scale"),
    ("LDPASGDRegressor", "LDPASGDClassifier", 2, "needs a schema.target with classes"),
    ("LDPASGDRegressor", "UserLevelLDPRegressor", 2, "needs schema.subject"),
    ("eps=1", "eps=1,delta=1e-6", 2, 'put quotes around a value with a comma, as budget: "eps=1,delta=1e-6"'),
    ("budget: eps=1", "budget: eps=1, domain: {ball: -1}", 2, "model.domain"),
    ("budget: eps=1}", "budget: eps=1}\nvalidation: {share: 2}", 2, "line 7: validation.share: expected"),
    ("budget: eps=1}", "budget: eps=1}\nholdout: nowhere.csv", 3, "nowhere.csv"),
    ("model: {", "model: [", 2, "line 6"),
    ("features: {age", "subject: nobody\n  features: {age", 3, "lacks the declared 'nobody'"),
    ("features: {age", "subject: age\n  features: {age", 2, "distinct columns"),
    ("eps=1}", "eps=1, trust: noone}", 2, "expected one of nobody, process, window, shuffler"),
    ("estimator: LDPASGDRegressor", "trust: windows", 2, "did you mean 'window'?"),
    ("estimator: LDPASGDRegressor", "trust: window, window: 0", 2, "window: expected a whole number from 1"),
    ("eps=1}", "eps=1}\ncap: 5", 2, "cap: expected eps=E"),
    ("eps=1}", "eps=1}\ncap: eps=5 per week", 2, "expected a cap such as eps=8 per 30 days"),
    ("eps=1}", "eps=1}\nexpected_records: many", 2, "expected_records: expected a whole number"),
    ("eps=1}", "eps=1}\nexpected_records: true", 2, "expected_records: expected a number"),
    ("eps=1}", "eps=1}\ncommit: {seconds: 0_5}", 2, "commit.seconds: expected a number"),
    ("[0, 120]", "{bounds: [0, 120], transform: {power: 0_5}}", 2, "age.transform: expected a number"),
    ("[0, 120]", "{bounds: [0_5, 120]}", 2, "age.bounds: expected a number"),
    ("estimator: LDPASGDRegressor, budget: eps=1}", "budget: eps=1e-320}\ncap: eps=1", 2, "needs schema.subject"),
    ("eps=1}", "eps=1}\nstore: mysql://x/y", 4, "expected a file path, sqlite:///PATH or postgresql://HOST/DATABASE"),
    ("eps=1}", "eps=1}\nstatistics: {m: {mean: wages}}", 2, "did you mean 'wage'?"),
    ("eps=1}", "eps=1}\nstatistics: {m: {avg: wage}}", 2, "one of mean, sum, count"),
    ("eps=1}", "eps=1}\nstatistics: {m: {quantile: 1.5, of: age}}", 2, "a number in (0, 1)"),
    ("eps=1}", "eps=1}\nstatistics: [mean]", 2, "statistics: expected a mapping, as {name: value}"),
    ("eps=1}", "eps=1}\nvalidation: {budget: 1}", 2, "validation.budget: expected eps=E"),
    ("eps=1}", "eps=1}\npublish: {type: webhook, url: nowhere}", 2, "expected an address without a login, as https://"),
    ("eps=1}", "eps=1}\npublish: {type: webhook, url: 'https://h', proxy: h}", 2, "expected the address of a proxy"),
    ("eps=1}", "eps=1}\npublish: {type: ftp}", 2, "expected one of file, postgresql, kafka, webhook"),
    ("path: people.csv", "path: people.csv, encoding: utf-9", 2, "expected a text encoding, such as latin-1"),
    ("path: people.csv", "path: people.csv, decimal: ',', thousands: ','", 2, "differ"),
    ("[0, 120]", "0-120", 2, "expected two numbers [low, high]"),
    ("[0, 120]", "{bounds: private}", 2, "needs trust: window and no domain"),
    ("[0, 120]", "{bounds: [0, 120], transform: exp}", 2, "schema.features.age.transform: expected one of log, asinh"),
    ("[0, 120]", "{bounds: [0, 120], transform: log}", 2, "needs bounds above 0"),
    ("[0, 120]", "{bounds: [0, 120], knots: [200]}", 2, "expected knots between the bounds"),
    ("[0, 120]", "{hash: 0}", 2, "expected the number of buckets, from 2"),
    ("[Paris, Lyon]", "{hash: 32, categories: [Paris, Lyon]}", 2, "expected bounds, or one of categories"),
    ("[Paris, Lyon]", "[Paris, Lyon], x: {product: [age, citi]}", 2, "got 'citi'; did you mean 'city'?"),
    ("[Paris, Lyon]", "[Paris, Lyon], when: {part: weekday}", 2, "'when': expected bounds"),
    ("job: people", "job: 5", 2, "job: expected text: put quotes around it"),
    ("job: people", "job: ''", 2, "job: expected text that is not empty"),
    ("job: people", "job:\tpeople", 2, "indent by blanks"),
    ("people.csv", "people.csv.bz2", 3, "is a bz2 file: unpack it first, or pack it by gzip or Zstandard"),
    ("people.csv", "people.csv.zst", 3, "is named .zst but is not a Zstandard file"),
    ("csv, path: people.csv", "csv, path: people.xlsx", 3, "is a workbook: save its sheet as CSV"),
    ("[0, 120]", "{column: at, part: year, bounds: [2000, 2100]}", 3, "not a date in column 'at' (80)"),
    ("budget: eps=1", "epsilon: 1", 2, "model.epsilon: unknown setting; it is in model: {budget: 'eps=1'}"),
    ("eps=1}", "eps=1}\nbudget: eps=1", 2, "it is in model: {budget: 'eps=1'}"),
    ("job: people", "job: people\nsubject: age", 2, "it is in schema: {features"),
    ("  features", "\tfeatures", 2, "any token: indent by blanks"),
    ("job: people", "job: people: 5", 2, "or put quotes around text with a colon"),
    ("model:", " model:", 2, "begin all keys of a mapping in the same column"),
    (
        "{age: [0, 120], city: [Paris, Lyon], married: [false, true]}",
        "[age]",
        2,
        "bounds or categories by name, as {age:",
    ),
    ("eps=1}", "eps=1}\nstore: people.csv/x.db", 4, "give a store in a folder that this user may write"),
    ("eps=1}", "eps=1}\nstore: no/x.db", 4, "make its folder first"),
    ("eps=1}", "eps=1}\ncap: none", 2, "cap: a job without a cap has no such setting"),
]

FILES: list[tuple[bytes, int, str]] = [  # the data, the exit code, and what the sentence says
    (b"", 3, "expected a header line"),
    (b"\n\n", 3, "lacks the declared"),
    (b'"age\n', 3, "quotes that do not match"),
    (b"\xff\xfe\x00a", 3, "header is not UTF-8"),
    (b"age,city,city,married,wage\n1,Paris,Lyon,true,1\n", 3, "repeats the declared 'city'"),
    (DATA.replace("age,", "Age,").encode(), 3, "did you mean 'Age'?"),
    (DATA.replace(",", ";").encode(), 3, "is the delimiter right (source.delimiter)?"),
    (DATA.replace("23,", ",").replace("54,", ",").encode(), 3, "missing in column 'age'"),
    (DATA.replace("Paris", "Rome").encode(), 3,
        "'city' (40); nothing was learned or spent; 'city': declare its other values"),
    (DATA.replace("true", "x").replace("FALSE", "y").encode(), 3, "unknown category in column 'married'"),
    (DATA.replace(SECRET, "cheap").replace(",60", ",dear").encode(), 3, "not a number in column 'wage'"),
    (DATA.replace("\n2", "\n\xe9", 1).encode("latin-1") + b"\xff\n" * 500, 3,
        "501 of the first 580 records (86 %) do not fit the schema"),
    (gzip.compress(DATA.encode(), mtime=0)[:60], 3, "ends in the middle of its gzip stream"),
    (DATA.encode().partition(b"\n")[0] + b"\n1,2\n3,4\n", 3, "too few fields"),
    (b"PK\x03\x04" + b"x" * 200, 3, "is a zip file: unpack it first"),
    (b"<html><body>not found</body></html>\n" * 3, 3, "it looks like HTML, and not like a header"),
    (DATA.encode("utf-16"), 3, "set source.encoding: utf-16"),
    (DATA.replace("\n", "\r").encode(), 3, "lines end in LF or CRLF, not in CR"),
    (DATA.replace(SECRET, '"4711,25"').encode(), 3, "or source.decimal, source.thousands or"),
    (DATA.replace("Lyon", "Ly\xf6n").encode("latin-1"), 3,
        "not utf8 (40); nothing was learned or spent; set source.encoding"),
    (DATA.replace("when", "gr\xf6\xdfe").encode("latin-1"), 3, "source.encoding: cp1252"),
    ("\n".join(DATA.splitlines()[1:]).encode(), 3, "does the data begin with a line of column names?"),
]  # fmt: skip

COMMANDS = [  # the arguments, the exit code, and what the sentence says
    ("check", 2, "Missing argument"),
    ("check nowhere.yaml", 2, "nowhere.yaml: no such file or directory"),
    ("check people.csv", 2, "people.csv: expected a job, a mapping of settings; `streamdp init DATA` writes one"),
    ("run job.yaml --target wage", 2, "holds the whole job"),
    ("run people.csv --target wage --feature age", 2, "expected COLUMN=LOW:HIGH or COLUMN=A|B|C"),
    ("run people.csv --target wage --feature age=0:x", 2, "expected two numbers as LOW:HIGH"),
    ("run people.csv --target wage --feature age=0:9 --budget 1", 2, "model.budget"),
    ("run people.csv --target wage --feature age=0:9 --set schema.subject=''", 3, "header lacks the declared ''"),
    ("run https://127.0.0.1/a.csv --target a --feature b=0:1", 3, "got another URL: a run that is interrupted"),
    ("init -o new.yaml https://127.0.0.1/people.csv", 3,
        "got another URL: a run that is interrupted must find the same records again; download"),
    ("init -o new.yaml people.csv --target wgae", 2, "did you mean 'wage'?"),
    ("init -o new.yaml people.csv --subject nobody", 2, "the data have no column 'nobody'"),
    ("init -o new.yaml empty.csv", 3, "expected a header line"),
    ("init -o new.yaml header.csv", 3, "has no records"),
    ("init -o new.yaml empty_folder", 3, "has no file"),
    ("weights nowhere.db", 4, "nowhere.db"),
    ("statement empty_folder", 4, "is a folder: expected the file of a store"),
    ("statement pipe", 4, "is no regular file: expected the file of a store"),
    ("run deep.yaml", 2, "deep.yaml: not YAML text"),
    ("chekc job.yaml", 2, "No such command 'chekc'"),
    ("predict people.csv people.csv", 4, "expected a store, such as late.db, or its job"),
    ("plan", 2, "expected a JOB.YAML, or --loss, --parameters and --budget"),
    ("check store.db", 2, "store.db is a store, which a run makes: give the job that it is of"),
    ("plan piped.yaml", 2, "cannot be counted beforehand: expected --records N"),
    ("plan --loss hubr --parameters 3 --budget eps=1 --records 100", 2, "did you mean 'huber'?"),
    ("plan --loss huber --parameters 3 --budget 1 --records 100", 2, "--budget: expected eps=E"),
    ("ledger status nowhere.db", 4, "there is no such store"),
    ("run people.csv", 2, "`streamdp init people.csv` writes a job.yaml for it"),
    ("run people.csv --target wage --feature age=0_5:9", 2, "expected two numbers as LOW:HIGH"),
    ("run people.csv --target wage --feature age=0:9 --trust noone", 2, "expected one of nobody, process"),
    ("run people.csv --target wage --target-bounds 0-9 --feature age=0:9", 2,
        "--target-bounds: expected two numbers as"),
    ("run people.csv --target wage --feature age=0:9 --cap eps=1", 2, "needs schema.subject"),
    ("run people.csv --target wage --feature age=0:9 --budget eps=1,delta=2", 2, "delta must be below 1"),
    ("run people.csv --target city --feature age=0:9 --classes Paris", 2, "expected two or more classes as A,B"),
    ("shuffle randomize job.yaml people.csv", 2, "expected a job with a source of type: shuffle"),
    ("init people.csv -o job.yaml", 2, "exists already; choose another file with -o"),
    ("init -o new.yaml people.csv --trust everybody", 2, "--trust: expected one of nobody"),
    ("init -o new.yaml people.csv --target wage --subject wage", 2, "expected another column than --target"),
    ("init -o new.yaml job.yaml", 2, "job.yaml is a job, expected data; `streamdp check job.yaml`"),
    ("init -o new.yaml page.csv", 3, "first line looks like HTML; expected a line of column names"),
    ("init -o new.yaml lines.csv", 3, "first line looks like JSON; expected a line of column names"),
    ("init nowhere.csv", 3, "cannot open nowhere.csv: no such file or directory"),  # beside a job.yaml
    ("init -o new.yaml", 2, "expected a data file, or --topic"),
    ("init -o new.yaml people.csv --topic t", 2, "expected a data file or --topic, got both"),
    ("init -o new.yaml store.db", 2, "store.db is a store, which a run makes: give a file of data"),
    ("init -o new.yaml people.csv --delimiter ;;", 2, "--delimiter: expected one ASCII character, got ';;'"),
    ("init -o no/new.yaml people.csv", 2, "cannot write no/new.yaml: there is no folder no"),
    ("run job.yaml --set model.etta=1", 2, "job.yaml with --set: model.etta: unknown setting; did you mean 'eta'?"),
    ("run job.yaml --set source.decimal=x", 2, "source.decimal: expected one of '.', ','"),
    ("plan --loss huber --parameters 3 --budget eps=1 --set model.eta=1", 2, "--set changes a JOB.YAML"),
    ("plan job.yaml --loss huber", 2, "give --records and --set alone with it"),
    ("run job.yaml --set store=sqlite:x", 2, "store: expected a file, sqlite:///PATH or"),
    ("ledger nowhere.db", 2, "No such command 'nowhere.db'. Expected one of export, set-cap, status."),
    ("validate job.yaml", 2, "Use streamdp check."),
    (f"status postgres://u:{SECRET}@127.0.0.1:1/x", 4, "127.0.0.1/x (streamdp) does not answer"),
    ("weights job.yaml", 4, "there is no such store: `streamdp run` makes that of a job"),
    ('check job.yaml --set source={"type":"kafka","topic":"t","brokers":"h:x"}', 2, "HOST:PORT[,HOST:PORT], got 'h:x'"),
    ("run job.yaml --epsilon 1", 2, "Use --budget eps=1."),
]  # fmt: skip

GERMAN = DATA.replace(",", ";").replace(".", ",")
YEAR = "{{column: at, part: year, bounds: [2000, 2100], format: {}}}".format
RIGHT = [  # what is replaced in the job, by what, the data, and a warning or nothing
    ("csv, path", "csv, delimiter: ';', decimal: ',', path", GERMAN.encode(), ""),
    ("csv, path", "csv, encoding: utf-16, path", DATA.encode("utf-16"), ""),
    ("csv, path", "csv, path", b"\xef\xbb\xbf" + DATA.encode(), ""),
    ("csv, path", "csv, skip_lines: 1, path", b"exported by hand\n" + DATA.encode(), ""),
    ("csv, path", "csv, comment: '#', path", b"# by hand\n" + DATA.encode(), ""),
    ("age: [0, 120]", f"year: {YEAR('seconds')}", dated(1_700_000_000), ""),
    ("age: [0, 120]", f"year: {YEAR('milliseconds')}", dated(1_700_000_000_000), ""),
    ("age: [0, 120]", f"year: {YEAR('days')}", dated(19_675), ""),
    (
        "eps=1}",
        "eps=1}\nexpected_records: 9",
        DATA.encode(),
        "80 records were learned, and expected_records is 9. If the",
    ),
    ("eps=1", "eps=100", DATA.encode(), "a budget of eps=100 protects a record very little"),
    ("csv", "csv", DATA.encode().partition(b"\n")[0] + b"\n", "people.csv: there are no records"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_bytes(dated(1_700_000_000))
    (tmp_path / "people.csv.bz2").write_bytes(bz2.compress(DATA.encode()))
    (tmp_path / "people.csv.zst").write_bytes(gzip.compress(DATA.encode()))
    (tmp_path / "people.xlsx").write_bytes(b"PK\x03\x04")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "piped.yaml").write_text(JOB.replace("people.csv", "'-'"))
    (tmp_path / "store.db").write_bytes(b"SQLite format 3\0\x10\x00\x01\x01\xff")
    (tmp_path / "header.csv").write_text("age,city\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "array.json").write_text(f'[{{"age": 23, "wage": {SECRET}}},\n {{"age": 54, "wage": 60}}]\n')
    (tmp_path / "deep.yaml").write_text("job: " + "[" * 1000)
    (tmp_path / "page.csv").write_text("<html>\n" * 9)
    (tmp_path / "lines.csv").write_text('{"age": 1}\n' * 9)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def refused(quick: Quick, arguments: str, code: int, said: str) -> None:
    found, out, err = quick(*arguments.split())
    lines = [line for line in err.splitlines() if not line.startswith("streamdp: warning: ")]
    assert found == code, err
    assert len(lines) == 1, err
    assert lines[0].startswith("streamdp: ")
    assert said in lines[0]
    assert "unexpected" not in err.replace("unexpected argument", "")
    assert SECRET not in out + err


@pytest.mark.parametrize(("old", "new", "code", "said"), JOBS)
def test_wrong_jobs(folder: Path, quick: Quick, old: str, new: str, code: int, said: str) -> None:
    assert old in JOB
    (folder / "job.yaml").write_text(JOB.replace(old, new, 1))
    refused(quick, "run job.yaml", code, said)


def test_check_lists_all_wrong_settings_and_other_commands_say_the_first(folder: Path, quick: Quick) -> None:
    wrong = "jbo: x\nsource: {type: csv}\nschema: {features: {a: 5, b: [0, x]}, target: {name: y}}\nmodel: {task: r}\n"
    (folder / "job.yaml").write_text(wrong)
    found = [
        "line 1: jbo: unknown setting; did you mean 'job'?",
        "line 2: source.path: missing setting",
        "line 3: schema.features.a: expected two numbers",
        "line 3: schema.features.b: expected two numbers",
        "line 3: schema.target.column: missing setting",
        "line 3: schema.target.name: unknown setting",
        "line 4: model.task: unknown setting",
    ]
    code, out, _ = quick("check", "job.yaml")
    assert code == 2
    for line, said in zip(out.splitlines(), found, strict=True):
        assert line.startswith(f"job.yaml, {said}")
    assert json.loads(quick("check", "job.yaml", "--json")[1])["problems"] == out.splitlines()
    refused(quick, "run job.yaml", 2, "did you mean 'job'?; 6 more: `streamdp check` lists them")
    (folder / "job.yaml").write_text(JOB)
    said = "job.yaml with --set: model.etta: unknown setting; did you mean 'eta'?\n"
    assert quick("check", "job.yaml", "--set", "model.etta=1") == (2, said, "")


@pytest.mark.parametrize(("data", "code", "said"), FILES)
def test_wrong_files(folder: Path, quick: Quick, data: bytes, code: int, said: str) -> None:
    (folder / "people.csv").write_bytes(data)
    refused(quick, "run job.yaml", code, said)


@pytest.mark.parametrize(("arguments", "code", "said"), COMMANDS)
def test_wrong_commands(folder: Path, quick: Quick, arguments: str, code: int, said: str) -> None:
    refused(quick, arguments, code, said)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("[no, yes]", "column 'married' (80); 'married': declare all its classes, written as in the data"),
        ("[false]", "two or more distinct public categories"),
        ("true", "schema.target.classes"),
    ],
)
def test_wrong_labels(folder: Path, quick: Quick, classes: str, said: str) -> None:
    (folder / "job.yaml").write_text(CLASSES.replace("[false, true]", classes))
    refused(quick, "run job.yaml", 3 if "column" in said else 2, said)


def test_the_right_inputs_run(folder: Path, quick: Quick) -> None:
    for job in (JOB, CLASSES):
        (folder / "job.yaml").write_text(job.replace("job: people", f"job: p{len(job)}"))
        assert quick("run", "job.yaml")[0] == 0
        refused(quick, f"weights p{len(job)}.db --level 2", 2, "level: expected a number above 0 and below 1")


@pytest.mark.parametrize(("old", "new", "data", "said"), RIGHT)
def test_what_may_look_wrong_and_runs(folder: Path, quick: Quick, old: str, new: str, data: bytes, said: str) -> None:
    assert old in JOB
    (folder / "job.yaml").write_text(JOB.replace(old, new, 1))
    (folder / "people.csv").write_bytes(data)
    code, _, err = quick("run", "job.yaml")
    assert (code, said in err) == (0, True), err


def test_nan_in_json_is_a_gap(folder: Path, quick: Quick) -> None:
    lines = (f'{{"age": {"NaN" if i % 2 else 3}, "wage": {i}}}\n' for i in range(40))
    (folder / "people.jsonl").write_text("".join(lines))
    features = "{age: [0, 120], city: [Paris, Lyon], married: [false, true]}"
    job = JOB.replace("csv, path: people.csv", "jsonl, path: people.jsonl")
    (folder / "job.yaml").write_text(job.replace(features, "{age: {bounds: [0, 120], missing: zero}}"))
    assert quick("run", "job.yaml")[0] == 0
