"""`streamdp check`: the counts are right, nothing is written, and no value is shown. `run` refuses hopeless data."""

import io
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from streamdp.config.job import make_config
from streamdp.config.prospect import planned, prospect
from streamdp.config.yaml12 import YamlText
from streamdp.reading.doubts import outlook
from streamdp.serving.publish import committed
from tests.support.commands import Quick
from tests.support.paths import ROOT

SECRET = "4711.25"
JOB = """job: people
source: {type: csv, path: people.csv}
schema:
  features: {age: [0, 50], city: [Paris, Lyon, Rome], married: [false, true]}
  target: {column: wage, bounds: [0, 100000]}
model: {estimator: LDPASGDRegressor, budget: eps=1}
"""


def rows() -> str:
    lines = ["age,city,married,wage"]
    for i in range(1000):
        age = "" if i % 10 == 0 else SECRET if i % 5 == 1 else str(i % 50)
        city = "Berlin" if i % 4 == 1 else "Paris" if i % 2 else "Lyon"
        lines.append(f"{age},{city},{['true', 'FALSE'][i % 2]},{'x' if i == 2 else 5000}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_text(rows())
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_counts_by_reason_and_column(job: Path, quick: Quick) -> None:
    before = {path: path.read_bytes() for path in job.iterdir()}
    code, out, err = quick("check", "job.yaml", "--json")
    assert (code, err) == (3, "")
    found = json.loads(out)
    assert "not private" in found["note"]
    missing, unknown = range(0, 1000, 10), range(1, 1000, 4)
    assert found["records"] == 1000
    assert found["fit"] == 1000 - len({*missing, *unknown, 2})
    assert {(d["reason"], d["column"]): d["records"] for d in found["unfit"]} == {
        ("missing", "age"): len(missing),
        ("unknown_category", "city"): len({*unknown} - {*missing}),
        ("not_a_number", "wage"): 1,
    }
    columns = found["columns"]
    assert (columns["age"]["missing"], columns["age"]["outside"]) == (100, 200)
    assert columns["city"]["unknown"] == 250
    assert columns["city"]["seen"] == {"Paris": 250, "Lyon": 500, "Rome": 0}
    assert columns["married"]["seen"] == {"false": 500, "true": 500}
    assert found["plan"]["beats_constant"] == "unlikely"
    assert "351 of the first 1,000 records (35 %) do not fit the schema: unknown category" in found["problems"][0]
    assert "raise source.max_bad_share (0.05)" in found["problems"][0]
    (job / "job.yaml").write_text(JOB.replace("people.csv", "people.csv, max_bad_share: 0.4"))
    assert json.loads(quick.silent("check", "job.yaml", "--json")) == found | {"problems": []}
    (job / "job.yaml").write_text(JOB)
    said = " ".join(found["warnings"])
    assert "'age': 20 % of the values lie outside" in said
    assert "'Rome'" in said
    assert {path: path.read_bytes() for path in job.iterdir()} == before  # no store, no lock, no key


@pytest.mark.parametrize(("model", "told"), [("process", True), ("nobody", True), ("window", False)])
def test_a_target_without_bounds_is_told_where_a_scale_of_one_is_expected(
    job: Path, quick: Quick, model: str, told: bool
) -> None:
    text = JOB.replace(", bounds: [0, 100000]", "").replace("estimator: LDPASGDRegressor", f"trust: {model}")
    (job / "job.yaml").write_text(text)
    _, out, _ = quick("check", "job.yaml", "--json")
    assert any("'wage' has values beyond 10 and no bounds" in said for said in json.loads(out)["warnings"]) == told


@pytest.mark.slow
def test_whether_the_dropped_records_are_like_the_others(job: Path, quick: Quick) -> None:
    """Of the 1,000 people, those of another city are older and oftener married, and earn what the others do."""
    lines = ["age,city,married,wage"]
    for i in range(1000):
        away = i % 4 == 0
        lines.append(f"{i % 20 + 20 * away},{'Berlin' if away else 'Paris'},{i % (2 + 8 * away) == 0},{i % 97}")
    (job / "people.csv").write_text("\n".join(lines) + "\n")
    said = json.loads(quick("check", "job.yaml", "--json")[1])["warnings"]
    (found,) = (sentence for sentence in said if "people like them" in sentence)
    assert "left out 'age' is larger on average, 'married' is more often 'false': the model is not for" in found
    (job / "people.csv").write_text("\n".join(lines[:1] + [line.replace("Berlin", "Paris") for line in lines[1:]]))
    assert "people like them" not in quick("check", "job.yaml")[1]


def test_an_undeclared_text_is_named_if_ten_people_share_it(job: Path, quick: Quick) -> None:
    """The records of one person are not ten people."""
    lines = ["who,age,city,married,wage"]
    for i in range(1000):
        who, city = (0, "Bonn") if i % 4 == 0 else (i, "Oslo" if i % 4 == 1 else "Rome")
        lines.append(f"{who},{i % 50},{city},true,{i}")
    (job / "people.csv").write_text("\n".join(lines) + "\n")
    named = ({"Bonn": 250, "Oslo": 250}, {"Oslo": 250})
    for text, others in zip((JOB, JOB.replace("schema:\n", "schema:\n  subject: who\n")), named, strict=True):
        (job / "job.yaml").write_text(text)
        assert json.loads(quick("check", "job.yaml", "--json")[1])["columns"]["city"]["others"] == others


def test_the_table_shows_the_same_and_no_value(job: Path, quick: Quick) -> None:
    code, out, _ = quick("check", "job.yaml", COLUMNS="120")
    assert code == 3
    assert out.startswith("These counts are read from private records and are not private")
    assert "unlikely to beat the best constant: from about " in out
    assert "city: Lyon 500, Paris 250, Rome 0" in out
    for shown in ("problem: ", "missing", "unknown category", "250", "200"):
        assert shown in out
    for value in (SECRET, "lyon"):
        assert value not in out


def test_ids_and_free_texts_are_told(job: Path, quick: Quick) -> None:
    lines = ["n,city,married,wage"]
    lines += [f"{1000 + 3 * i},{f'text {i}' if i % 3 else 'Paris'},true,{100 * i}" for i in range(200)]
    (job / "people.csv").write_text("\n".join(lines))
    (job / "job.yaml").write_text(JOB.replace("age: [0, 50]", "n: [0, 5000]"))
    out = quick("check", "job.yaml")[1]
    assert "'n': whole numbers that rise from record to record look like an id" in out
    assert "'city': 50 or more different texts that are not declared look like an id or free text" in out
    assert "text 1" not in out


def window_job(job: Path, lines: list[str], subject: str = "", more: str = "") -> None:
    """A job with trust: window that learns the class `wage` of `lines`, with a header, from `age`."""
    (job / "people.csv").write_text("\n".join(lines) + "\n")
    (job / "job.yaml").write_text(
        f"job: half\nsource: {{path: people.csv}}\nschema:\n  features: {{age: [0, 50]}}\n{subject}"
        f"  target: {{column: wage, classes: ['0', '1']}}\nmodel: {{trust: window, budget: eps=1}}\n{more}"
    )


def test_check_knows_that_some_people_of_a_window_only_answer(job: Path, quick: Quick) -> None:
    lines = ["age,wage", *(f"{i % 50},{int(i % 50 > 20 + i % 7)}" for i in range(500))]
    window_job(job, lines, more="validation: {share: 0.5}\n")
    plan = json.loads(quick.output("check", "job.yaml", "--json"))["plan"]
    assert "people on" not in plan["sentence"]
    assert plan["beats_constant"] == "possible"
    assert 500 < plan["likely_from"] < 5000
    assert 100 < plan["decides_from"] < 12_000
    assert f"Validation decides from about {plan['decides_from']:,} records on" in plan["sentence"]
    lines = ["age,wage", *(f"{i % 50},{int(i % 50 == 7)}" for i in range(1800))]
    window_job(job, lines, more="validation: {share: 0.1}\n")
    rare = json.loads(quick.output("check", "job.yaml", "--json"))["plan"]
    assert 12_000 < rare["decides_from"] < 40_000  # 2 % positive


def test_check_says_that_windows_learn_from_people_and_not_from_records(job: Path, quick: Quick) -> None:
    lines = ["who,age,wage", *(f"{i % 2},{i % 50},{int(i % 50 > 20)}" for i in range(1800))]
    window_job(job, lines, subject="  subject: who\n")
    said = " ".join(quick.output("check", "job.yaml").split())
    assert "1,800 of 1,800 records fit the schema (100.0 %). They are of about 2 people." in said
    assert "The model is unlikely to beat the best constant" in said
    verdict = said[said.index("The model is") :]
    assert "people on it is likely" in verdict
    assert "records" not in verdict
    assert json.loads(quick.output("check", "job.yaml", "--json"))["people"] == 2
    assert quick("run", "job.yaml")[0] == 0
    assert "2 users are too few" in quick("run", "job.yaml")[2]


@pytest.mark.parametrize("trust", ["nobody", "process"])
def test_the_plan_counts_the_records_that_a_cap_admits(job: Path, quick: Quick, trust: str) -> None:
    """Records of few people were "likely to beat" a constant, and the cap refused nearly all."""
    lines = ["who,age,wage", *(f"{i % 9},{i % 50},{int(i % 50 > 20)}" for i in range(900)), "9,30,1"]
    window_job(job, lines, subject="  subject: who\n", more="cap: 'eps=2,delta=1e-5'\n")
    (job / "job.yaml").write_text((job / "job.yaml").read_text().replace("trust: window", f"trust: {trust}"))
    assert "10 people, and the cap admits about 19 records of them." in quick.output("plan", "job.yaml")
    found = json.loads(quick.output("check", "job.yaml", "--json"))
    assert (found["admitted"], found["plan"]["records"], found["plan"]["beats_constant"]) == (19, 19, "unlikely")


def test_the_plan_is_of_the_method_that_runs(job: Path, quick: Quick) -> None:
    """Windows of 50 were planned by Newton's 249 people and learned by private ranges, "likely to beat" a constant."""
    lines = ["age,wage", *(f"{i % 50},{int(i % 50 > 20 + i % 7)}" for i in range(9000))]
    window_job(job, lines)
    whole = (job / "job.yaml").read_text()
    small = whole.replace("budget: eps=1", "budget: eps=1, window: 50")
    (job / "job.yaml").write_text(small)
    for command, where in (("check", 1), ("run", 2)):
        found = quick(command, "job.yaml")
        assert found[0] == 2
        assert "window: 50 records are too few: 50 users are too few to learn 2 parameters by newton" in found[where]
    for text, method, alone, found in (
        (whole, "newton", False, "likely"),
        (small.replace("window: 50", "window: 900"), "newton", False, "likely"),
        (small.replace("window: 50", "window: 50, method: private-range"), "private-range", True, "unlikely"),
    ):
        (job / "job.yaml").write_text(text)
        plan = json.loads(quick.output("check", "job.yaml", "--json"))["plan"]
        assert (plan["method"], plan["one_window"], plan["beats_constant"]) == (method, alone, found)
        assert f"The method is {method}." in plan["sentence"]
        assert ("set a larger model.window" in plan["sentence"]) is alone
    assert "50 people of one window, from which alone the model follows, are too few" in quick.output("run", "job.yaml")
    assert "learned by private-range" in quick.output("weights", "half.db")


@pytest.mark.parametrize("trust", ["window", "process"])
def test_a_model_that_is_no_better_than_a_constant_is_shown_nowhere_without_a_doubt(
    job: Path, quick: Quick, trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["age,wage", *(f"{i % 50},{i * 7919 % 11 % 2}" for i in range(9000))]
    window_job(job, lines, more="validation: {share: 0.1}\npublish: m.json\n")
    (job / "job.yaml").write_text((job / "job.yaml").read_text().replace("trust: window", f"trust: {trust}"))
    quick.output("run", "job.yaml")
    said = "the model is no better than the best constant", "it is not known yet whether the model"
    (doubt,) = (doubt for doubt in committed("half.db").doubts if doubt.startswith(said))
    assert doubt in quick.output("weights", "half.db")
    assert doubt in quick.output("statement", "half.db", "--full")
    assert doubt in json.loads((job / "m.json").read_text())["doubts"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"age\n3\n")))
    code, out, err = quick("predict", "half.db")
    assert (code, out.splitlines()[0].startswith("age,prediction")) == (0, True)
    assert doubt in err
    # an error stands alone: it was behind the doubts
    assert quick.error(3, "predict", "half.db", "no.csv") == "streamdp: cannot open no.csv: no such file or directory\n"
    assert quick.error(2, "predict", "half.db", "job.yaml") == "streamdp: job.yaml is a job, expected data\n"
    assert "a file of data" in quick.error(2, "predict", "half.db", "half.db")
    assert quick.error(2, "export", "half.db", "--to", "sql", "--table", " ").startswith("streamdp: --table: expected")


def test_people_who_come_again_are_told_of_windows(job: Path, quick: Quick) -> None:
    """Of batches: they learn one record of a person in each. `run` counts the others apart from what a cap refuses."""
    lines = ["who,age,wage", *(f"{i % 9},{i % 50},{int(i % 50 > 20)}" for i in range(1800))]
    said = "the first 1,800 records are of 9 people: in a batch, one record of a person is learned"
    for trust, told in (("process", True), ("window", False)):
        window_job(job, lines, subject="  subject: who\n", more="cap: 'eps=999,delta=0.1'\n")
        (job / "job.yaml").write_text((job / "job.yaml").read_text().replace("trust: window", f"trust: {trust}"))
        assert (said in " ".join(quick.output("check", "job.yaml").split())) is told
        if told:
            _, out, err = quick("run", "job.yaml")
            end = json.loads(out.splitlines()[-1])
            assert (end["refused"], end["learned"] + end["left_out"]) == (0, 1800)
            assert 9 <= end["learned"] < 200
            assert said in err
            status = json.loads(quick.output("status", "half.db", "--json"))
            assert (status["left_out"], status["refused"]) == (end["left_out"], 0)
            assert f"0 refused and {end['left_out']:,} left out" in quick.output("statement", "half.db", "--full")
    lines = ["who,age,wage", *(f"{i},{i % 50},{int(i % 50 > 20)}" for i in range(900))]
    window_job(job, lines, subject="  subject: who\n", more="cap: 'eps=999,delta=0.1'\n")
    (job / "job.yaml").write_text((job / "job.yaml").read_text().replace("trust: window", "trust: process"))
    assert "records are of" not in quick.output("check", "job.yaml")


def test_windows_of_statistics_are_not_advised_to_be_windows(job: Path, quick: Quick) -> None:
    schema, lines = (
        "schema: {features: {age: [0, 50]}, subject: who}",
        ["who,age", *(f"{i % 9},{i % 50}" for i in range(90))],
    )
    (job / "half.csv").write_text("\n".join(lines) + "\n")
    more = "statistics: {m: {mean: age}}\nmodel: {budget: 'eps=1,delta=1e-6'}\ncap: 'eps=9,delta=1e-5'\n"
    (job / "job.yaml").write_text(f"job: half\nsource: {{type: csv, path: half.csv}}\n{schema}\n{more}")
    said = quick.output("check", "job.yaml")
    assert "90 records are of 9 people" in " ".join(said.split())
    assert "items_per_user" not in said


@pytest.mark.parametrize("trust", ["process", "window", "shuffler", "nobody"])
def test_records_of_one_class_have_a_plan_without_a_verdict(job: Path, quick: Quick, trust: str) -> None:
    (job / "one.csv").write_text("x,y\n" + "0.5,no\n" * 1500)
    schema = {"features": {"x": [0, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}}
    given = {"source": {"type": "csv", "path": "one.csv"}, "schema": schema, "validation": {"share": 0.1}}
    text = {"job": "one", **given, "model": {"trust": trust, "budget": "eps=1"}}
    (job / "one.yaml").write_text(json.dumps(text))
    assert "1,500 of 1,500 records fit" in quick.output("check", "one.yaml")
    assert "Validation decides" not in quick.output("plan", "one.yaml")


def test_a_rare_class_needs_the_records_that_run_found_missing() -> None:
    """`check` said "likely" of 1.2 million records, 1.1 % positive, where `run` said that 3.5 million were missing."""
    usual = planned("logistic", 20, "eps=1", 1_200_000)
    rare = planned("logistic", 20, "eps=1", 1_200_000, shares=[0.989, 0.011])
    assert usual.beats_constant == "likely"
    assert rare.beats_constant != "likely"
    assert 3_000_000 < rare.likely_from < 40_000_000
    assert f"from about {rare.likely_from:,} records" in rare.sentence


@pytest.mark.parametrize(
    ("loss", "columns", "budget", "share"),
    [("huber", 1, 1, None), ("huber", 4, 2, 0.5), ("logistic", 5, 1, None), ("quantile", 3, 1, 0.3)],
)
def test_a_plan_counts_the_reports_that_are_bits_about_units(
    loss: str, columns: int, budget: float, share: float | None
) -> None:
    """`check` said "likely" of 13 to 40 % fewer records than the model says it of. Seeded."""
    classes = loss == "logistic"
    bounds: dict[str, object] = {"classes": ["0", "1"]} if classes else {"bounds": [-10, 10]}
    job = make_config(
        {
            "job": "units",
            "source": {"path": "none.csv"},
            "schema": {"features": {f"x{i}": [-3, 3] for i in range(columns)}, "target": {"column": "y", **bounds}},
            "model": {"trust": "nobody", "budget": f"eps={budget}", "loss": loss, "seed": 1},
            **({} if share is None else {"validation": {"share": share}}),
        }
    )
    plan = prospect(job, 1000)
    assert plan is not None
    model, rng, n = job.build_estimator(), np.random.default_rng(1), 0
    while n < 3 * plan.likely_from:
        X = rng.normal(size=(more := max(1, plan.likely_from // 50), columns))
        z = X.sum(axis=1) + rng.normal(size=more)
        model.learn_arrays(X, np.where(z > 0, "1", "0") if classes else z)
        n += more
        if outlook(model.n_seen, model.least_records, model.n_asked)[0] == "likely":
            break
    assert 0.85 < n / plan.likely_from < 1.2


def test_blanks_around_declared_values_are_told(job: Path, quick: Quick) -> None:
    """A header may have them, and so may numbers."""
    data = job / "people.csv"
    assert "blanks around" not in quick("check", "job.yaml")[1]
    data.write_text(data.read_text().replace(",", ", "))
    code, out, _ = quick("check", "job.yaml")
    assert code == 3
    said = " ".join(out.split())
    assert "'city': 75 % of the values are declared ones with blanks around them" in said
    assert "'city': 100 % of the values are not declared" not in said  # that of 75 % was said again
    assert "no record has" not in said
    data.write_text(rows().replace("Paris", "1.0").replace("Lyon", "2.0"))
    (job / "job.yaml").write_text(JOB.replace("[Paris, Lyon, Rome]", "['1', '2']"))
    said = " ".join(quick("check", "job.yaml")[1].split())
    assert "of the values are declared ones with blanks around them, or with .0 behind, as 1.0 for 1" in said


def test_the_schema_accepts_the_jobs_of_the_project_and_refuses_mistakes(quick: Quick) -> None:
    schema = json.loads(quick("schema")[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    jobs = [job for text in texts for job in text.split("<<'YAML'\n")[1:]]
    found = [YamlText(text.split("\nYAML\n")[0], "a page").data for text in jobs]
    assert len(found) >= 5
    for job in [*found, YamlText(JOB, "job").data]:
        validator.validate(job)
    for wrong in (JOB.replace("model:", "modle:"), JOB.replace("LDPASGDRegressor", "Ridge")):
        assert not validator.is_valid(YamlText(wrong, "job").data)


def test_the_forms_of_data_in_the_documents_are_declarations() -> None:
    text = (ROOT / "docs" / "howto" / "files.md").read_text().split("```yaml\n")[1].partition("```")[0]
    settings = {"job": "x", "model": {"estimator": "LDPASGDRegressor"}}
    schema = make_config(YamlText(text, "files").data | settings).build_schema()
    person = {
        "age": None,
        "city": "Rome",
        "member": True,
        "wage": "1",
        "payload": {"after": {"departs": "2024-01-01T05:00"}},
    }
    assert schema.encode_one(person)[0]["city=(other)"] == 1


@pytest.mark.slow
def test_a_job_that_learned_nothing_goes_on_with_a_corrected_schema(job: Path, quick: Quick) -> None:
    wrong = JOB.replace("csv, path", "csv, max_bad_share: null, path")
    right = wrong.replace("Rome", "Berlin")
    (job / "people.csv").write_text("age,city,married,wage\n" + "5,Berlin,true,1\n" * 9 + "6,Paris,true,2\n" * 5)
    (job / "job.yaml").write_text(wrong)
    assert quick("check", "job.yaml")[0] == 0  # what may be null is no place to fill in
    assert quick("run", "job.yaml", "--max-records", "9")[0] == 3
    assert json.loads(quick("status", "people.db", "--json")[1])["dead_letters"] == 9
    (job / "job.yaml").write_text(right)
    assert quick("run", "job.yaml")[0] == 0
    status = json.loads(quick("status", "people.db", "--json")[1])
    assert (status["learned"], status["dead_letters"]) == (14, 0)  # the nine get another chance, and count once
    (job / "job.yaml").write_text(wrong)
    code, _, err = quick("run", "job.yaml")
    assert code == 4  # now something was learned
    assert "was created by another configuration" in err


@pytest.mark.parametrize(
    ("delta", "more", "why"),
    [
        ("0.5", "", "above 1 / n for n = 1,000 records"),
        ("0.002", "", "above 1 / n for n = 1,000 records"),
        ("0.0004", "expected_records: 3000\n", "above 1 / n for n = 3,000 records"),
        ("0.0004", "", ""),
    ],
)
def test_a_delta_above_one_over_the_records_is_said_by_every_command(
    tmp_path: Path, quick: Quick, delta: str, more: str, why: str
) -> None:
    """`check` and `plan` said nothing, and `run` compared a delta with 0.001 and never with 1 / n."""
    (tmp_path / "people.csv").write_text("a,y\n" + "".join(f"{i % 50},{i % 7}\n" for i in range(1000)))
    (tmp_path / "job.yaml").write_text(
        "job: j\nsource: {type: csv, path: people.csv}\n"
        "schema: {features: {a: [0, 50]}, target: {column: y, bounds: [0, 10]}}\n"
        f'model: {{trust: window, budget: "eps=1,delta={delta}"}}\n{more}'
    )
    found = json.loads(quick.output("check", "job.yaml", "--json"))["warnings"]
    assert [why in sentence for sentence in found if "very little" in sentence] == [True] * bool(why)
    code, _, said = quick("run", "job.yaml")
    assert (code, said.count("protects a record very little")) == (0, bool(why))
    records = "3000" if more else "1000"
    budget = f"eps=1,delta={delta}"
    code, _, said = quick("plan", "--loss", "huber", "--parameters", "2", "--budget", budget, "--records", records)
    assert code == 0
    assert (why in said, "very little" in said) == (True, bool(why))
    for command in (("status", "j.db"), ("export", "job.yaml", "--to", "json"), ("statement", "j.db")):
        code, out, said = quick(*command)
        assert (code, said) == (0, "")  # they set no budget
    assert ("is above 1/n of these n = 1,000 records" in out) == (float(delta) > 0.001)


def test_undeclared_values_that_ten_records_share_are_named(job: Path, quick: Quick) -> None:
    lines = ["city", *["Berlin"] * 12, *["Roma"] * 9]
    more = "".join(f"30,{city},true,5000\n" for city in lines[1:])
    (job / "people.csv").write_text("age,city,married,wage\n" + "30,Paris,true,5000\n" * 100 + more)
    warnings = json.loads(quick("check", "job.yaml", "--json")[1])["warnings"]
    (said,) = [warning for warning in warnings if "not declared" in warning]
    assert "('Berlin' 12)" in said
    assert "Roma" not in said


def test_check_says_what_export_will_refuse(job: Path, quick: Quick) -> None:
    """Before, it was said after the budget was spent."""
    (job / "people.csv").write_text("age,city,married,wage\n" + "30,Paris,true,5000\n" * 100)
    (job / "job.yaml").write_text(JOB.replace("city: [Paris, Lyon, Rome]", "city: {hash: 8}"))
    warnings = json.loads(quick.output("check", "job.yaml", "--json"))["warnings"]
    assert any(
        warning.startswith("no export to sql: 'city' is hashed, which SQL cannot do; use python")
        for warning in warnings
    ), warnings
    assert quick("run", "job.yaml")[0] == 0
    assert quick("export", "job.yaml", "--to", "sql")[0] == 2


def test_a_plan_takes_all_from_a_job(job: Path, quick: Quick) -> None:
    found = quick.output("plan", "job.yaml", "--records", "1000000")
    options = ("--loss", "huber", "--parameters", "4", "--budget", "eps=1", "--records", "1000000")
    assert found.splitlines()[:2] == quick.output("plan", *options).splitlines()[:2]


def test_a_plan_without_a_number_counts_the_source(job: Path, quick: Quick) -> None:
    """It said that `check` counts them, and ended with 2."""
    (job / "people.csv").write_text("age,city,married,wage\n" + "30,Paris,true,5000\n" * 4000)
    counted, *plan = quick.output("plan", "job.yaml").splitlines()
    assert counted.startswith("4,000 records of the source fit the schema. These counts")
    assert "not private" in counted
    assert plan == quick.output("plan", "job.yaml", "--records", "4000").splitlines()
    assert plan[-1] in quick.output("check", "job.yaml")
    assert not (job / "people.db").exists()
    (job / "people.csv").write_text("age,city,married,wage\nold,Paris,true,5\n")
    assert "none of the first 1 records fits" in quick.error(2, "plan", "job.yaml")
    (job / "piped.yaml").write_text(JOB.replace("people.csv", "'-'"))
    assert "cannot be counted beforehand: expected --records N for piped.yaml" in quick.error(2, "plan", "piped.yaml")


def test_a_plan_of_people_says_how_many_it_counted(job: Path, quick: Quick) -> None:
    """It named the records alone, and planned for the people; expected records were taken for people."""
    (job / "people.csv").write_text(
        "age,city,married,wage,person\n" + "".join(f"{i % 40},Paris,true,5000,p{i % 120}\n" for i in range(600))
    )
    model = "model: {trust: window, window: 500, budget: 'eps=1,delta=1e-6'}"
    people = JOB.replace("schema:\n", "schema:\n  subject: person\n").replace(JOB[JOB.index("model:") :], model)
    (job / "job.yaml").write_text(f"{people}\nexpected_records: 600\n")
    counted, *plan = quick.output("plan", "job.yaml").splitlines()
    assert counted.startswith("600 records of the source fit the schema. They are of about 120 people. ")
    assert plan == quick.output("plan", "job.yaml", "--records", "120").splitlines()
