"""A job with statistics: run, stats, publish, serve, and what such a job does not have."""

import json
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest

from streamdp.config.job import load_config
from streamdp.errors import ConfigError
from streamdp.service.schemas import StatisticsAnswer
from tests.support.commands import Quick
from tests.support.service import client
from tests.support.sizes import some

JOB = """job: charges
source: {type: csv, path: people.csv}
schema:
  features: {charge: [0, 100], region: [north, south]}
statistics:
  median: {quantile: 0.5, of: charge}
  people: {count: region}
model: {budget: eps=1}
commit: {records: 700}
publish: found.json
"""
ROWS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{c:.2f},{r}" for c, r in zip(rng.gamma(2, 10, ROWS), rng.choice(["north", "south"], ROWS), strict=True)]
    rows[5], rows[100] = "x,north", "1,east"
    (tmp_path / "people.csv").write_text("\n".join(["charge,region", *rows]) + "\n")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.mark.parametrize("trust", some(["window", "process"], 1))
def test_a_job_estimates_statistics_and_shows_them_everywhere(folder: Path, quick: Quick, trust: str) -> None:
    if trust != "window":  # the usual one of a file
        (folder / "job.yaml").write_text(JOB.replace("eps=1", f"eps=1, trust: {trust}"))
    assert "plan" not in quick.output("check", "job.yaml")
    assert '"learned": 19998' in quick("run", "job.yaml")[1]
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    assert [(row["statistic"], row["item"]) for row in rows] == [
        ("median", None),
        ("people", "north"),
        ("people", "south"),
    ]
    assert 15 < rows[0]["low"] < rows[0]["value"] < rows[0]["high"] < 19  # the median of the law is 16.8
    assert rows[1]["value"] + rows[2]["value"] == pytest.approx(19_998, abs=1000)
    assert json.loads((folder / "found.json").read_text())["statistics"] == rows
    text = quick.output("stats", "charges.db")
    assert text.startswith("median        ")
    assert "95 % intervals" in text
    statement = quick.output("statement", "charges.db", "--full")
    assert ("1e-08" in statement) == (trust == "process")
    assert ("until its release" in statement) == (trust == "window")
    assert "streamdp stats" in quick.error(6, "weights", "charges.db")
    assert "streamdp stats" in quick.error(6, "predict", "charges.db")
    assert "streamdp stats" in quick.error(6, "export", "charges.db", "--to", "json")
    with client(load_config(folder / "job.yaml")) as http:
        found = http.get("/v1/models/charges/statistics").json()
        StatisticsAnswer.model_validate(found)
        assert found["statistics"] == rows
        for ask in (http.get("/v1/models/charges/weights"), http.post("/v1/models/charges/predict", json={})):
            assert ask.status_code == HTTPStatus.NOT_FOUND
            assert "statistics" in ask.json()["detail"]


@pytest.mark.parametrize("wrong", ["mean: charges", "mean: [charge]", "count: charge", "mean: charge, by: [region]"])
def test_a_wrong_declaration_is_shown_by_its_line(folder: Path, quick: Quick, wrong: str) -> None:
    """A list was an unexpected TypeError, and the others were said to be of the model, in line 1."""
    (folder / "job.yaml").write_text(JOB.replace("count: region", wrong))
    assert "job.yaml, line 5: statistics: 'people': " in quick.error(2, "run", "job.yaml")


BESIDE = JOB.replace("south]}\n", "south]}\n  target: {column: cost, bounds: [0, 200]}\n").replace(
    "charge}\n", "charge}\n  cost: {mean: cost, by: region}\n"
)
"""A model and statistics of the same records, also of the target."""


def with_costs(folder: Path) -> None:
    """Add the target: twice the charge, and noise."""
    rng = np.random.default_rng(1)
    lines = (folder / "people.csv").read_text().splitlines()
    costs = [
        f"{line},{2 * float(line.split(',')[0]) + noise:.2f}" if line[0] != "x" else f"{line},1"
        for line, noise in zip(lines[1:], rng.normal(0, 3, ROWS), strict=True)
    ]
    (folder / "people.csv").write_text("\n".join(["charge,region,cost", *costs]) + "\n")


@pytest.mark.parametrize("trust", some(["process", "nobody"], 0))
def test_a_model_and_statistics_learn_the_same_records_and_are_shown_everywhere(
    folder: Path, quick: Quick, trust: str
) -> None:
    with_costs(folder)
    (folder / "job.yaml").write_text(BESIDE.replace("budget: eps=1", f"budget: eps=4, share: 2, trust: {trust}"))
    assert ("no plan for this model" in quick.output("check", "job.yaml")) == (trust == "nobody")
    code, out, err = quick("run", "job.yaml")
    assert (code, '"learned": 19998' in out) == (0, True), err
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    named = {(row["statistic"], row["group"], row["item"]): row for row in rows}
    assert named["median", None, None]["value"] == pytest.approx(16.8, abs=2)
    assert named["cost", "north", None]["value"] == pytest.approx(40, abs=6)  # of the target
    people = named["people", None, "north"]["value"] + named["people", None, "south"]["value"]
    assert people == pytest.approx(19_998, abs=1500)  # of all records, also of those that the model learned
    weights = {
        weight["name"]: weight["value"] for weight in json.loads(quick.output("weights", "charges.db", "--json"))
    }
    assert weights["charge"] == pytest.approx(2, abs=0.4)
    published = json.loads((folder / "found.json").read_text())
    assert published["statistics"] == rows
    assert [weight["value"] for weight in published["weights"]] == list(weights.values())
    statement = quick.output("statement", "charges.db", "--full")
    said = "or to the statistics" if trust == "nobody" else "of the spend above"
    assert said in statement
    assert "the others on a gradient;" not in statement
    with client(load_config(folder / "job.yaml")) as http:
        assert http.get("/v1/models/charges/statistics").json()["statistics"] == rows
        assert len(http.get("/v1/models/charges/weights").json()["weights"]) == len(weights)
        asked = {"records": [{"charge": 10, "region": "north"}]}
        assert http.post("/v1/models/charges/predict", json=asked).json()["predictions"][0] == pytest.approx(20, abs=8)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model: {", "validation: {share: 0.1}\nmodel: {", "leave one of them out"),
        ("model: {", "model: {trust: window, items_per_user: 1, ", "need trust: process"),
        ("model: {", "model: {every: 1 day, ", "has no every"),
        ("model: {", "model: {estimator: Statistics, ", "another estimator with one"),
        ("  target:", "  budget: eps\n  target:", "schema.budget"),
        ("model: {", "model: {estimator: UserLevelLDPRegressor, ", "schema.subject"),
        ("200]}", "200], transform: log}", "bounds above 0"),
        ("of: charge}", "of: costs}", "declared feature"),
    ],
)
def test_a_wrong_job_of_a_model_and_statistics_is_refused_in_words(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "job.yaml").write_text(BESIDE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        load_config(folder / "job.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("statistics:\n", "model2:\n", "model2"),
        ("budget: eps=1", "share: 2", "share is for a model"),
        ("budget: eps=1", "window: 100", "Statistics has no window"),
        ("budget: eps=1", "eta: 2", "Statistics has no eta"),
        ("budget: eps=1", "loss: squared", "loss and domain are for models"),
        ("job: charges", "job: charges\nvalidation: {share: 0.1}", "validation, loss and domain"),
        ("budget: eps=1", "estimator: PanPrivateRegressor", "statistics"),
        ("{type: csv, path: people.csv}", "{type: kafka, content: reports, topic: r}", "need a model or statistics"),
    ],
)
def test_a_wrong_job_is_refused_in_words(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "job.yaml").write_text(JOB.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        load_config(folder / "job.yaml")


def test_calls_are_in_no_window(folder: Path) -> None:
    text = JOB.replace("{type: csv, path: people.csv}", "{type: http}").replace("publish: found.json\n", "")
    (folder / "job.yaml").write_text(text)
    assert load_config(folder / "job.yaml").model.trust == "process"
    (folder / "job.yaml").write_text(text.replace("eps=1", "eps=1, trust: window"))
    with pytest.raises(ConfigError, match=r"end; write trust: process"):
        load_config(folder / "job.yaml")


def test_a_job_without_target_and_statistics_names_the_target(folder: Path) -> None:
    before, _, after = JOB.partition("statistics:")
    (folder / "job.yaml").write_text(before + after[after.index("model:") :])
    with pytest.raises(ConfigError, match="target"):
        load_config(folder / "job.yaml")


@pytest.mark.slow
def test_a_job_finds_the_frequent_texts_of_an_open_domain(folder: Path, quick: Quick) -> None:
    """Others than these two, which are a third each, are all different."""
    texts = [("tea", "coffee", f"r{i}")[i % 3] for i in range(ROWS)]
    texts[7] = ""
    lines = (folder / "people.csv").read_text().splitlines()
    (folder / "people.csv").write_text(
        "".join(f"{line},{text}\n" for line, text in zip(lines, ["drink", *texts], strict=True))
    )
    text = JOB.replace("south]}", "south], drink: {text: 6}}").replace(
        "charge}\n", "charge}\n  drinks: {heavy_hitters: drink, share: 4}\n"
    )
    (folder / "job.yaml").write_text(text.replace("eps=1", "eps=6, trust: nobody, seed: 1"))
    assert '"learned": 19997, "refused": 0, "dead_letters": 3' in quick("run", "job.yaml")[1]
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    found = {row["item"]: row for row in rows if row["statistic"] == "drinks"}
    assert found.keys() == {"tea", "coffee"}
    assert all(row["low"] < ROWS / 3 < row["high"] for row in found.values())
    (folder / "job.yaml").write_text(text.replace("eps=1", "eps=1, trust: process"))
    with pytest.raises(ConfigError, match="nobody"):
        load_config(folder / "job.yaml")
    (folder / "job.yaml").write_text(text.replace("text: 6}}", "text: 6}}\n  target: {column: t, bounds: [0, 1]}"))
    with pytest.raises(ConfigError, match="open domain"):
        load_config(folder / "job.yaml")


@pytest.mark.slow
def test_a_job_has_a_series_by_day(folder: Path, quick: Quick) -> None:
    """A record of the far future is dead, because it would end the window of the present."""
    lines = (folder / "people.csv").read_text().splitlines()
    days = [f"2026-01-{1 + i // 7000:02d}T12:00:00Z" for i in range(ROWS)]
    days[7] = "2999-01-01"
    dated = [lines[0] + ",at", *(f"{row},{day}" for row, day in zip(lines[1:], days, strict=True))]
    (folder / "people.csv").write_text("\n".join(dated) + "\n")
    text = JOB.replace("south]}\n", "south]}\n  time: {column: at, unit: iso}\n").replace(
        "eps=1", "eps=1, every: 1 day"
    )
    (folder / "job.yaml").write_text(text)
    assert '"learned": 19997' in quick("run", "job.yaml")[1]
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    assert [row["window"] for row in rows[::3]] == [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
    people = [rows[i + 1]["value"] + rows[i + 2]["value"] for i in (0, 3, 6)]
    assert people == pytest.approx([7000, 7000, 6000], abs=600)
    assert all(13 < row["low"] < row["value"] < row["high"] < 21 for row in rows[::3])
    assert quick.output("stats", "charges.db").startswith("2026-01-01T00:00:00Z median ")
    (folder / "job.yaml").write_text(text.replace(", every: 1 day", ""))
    with pytest.raises(ConfigError, match="every"):
        load_config(folder / "job.yaml")


def test_a_job_has_days_of_a_declared_zone(folder: Path, quick: Quick) -> None:
    """From 22:00 UTC on it is the next day in Berlin, in summer."""
    lines = (folder / "people.csv").read_text().splitlines()
    at = [f"2026-07-0{day}T{clock}:00Z" for day in (1, 2) for clock in ("21:45", "22:15")]
    rows = [f"{row},{at[i % 4]}" for i, row in enumerate(lines[1:2001])]
    (folder / "people.csv").write_text("\n".join([f"{lines[0]},at", *rows]) + "\n")
    text = JOB.replace("south]}\n", "south]}\n  time: {column: at, unit: iso}\n")
    zoned = text.replace("eps=1", "eps=1, every: 1 day, zone: Europe/Berlin")
    (folder / "job.yaml").write_text(zoned)
    quick("run", "job.yaml")
    found = json.loads(quick.output("stats", "charges.db", "--json"))
    assert sorted({row["window"] for row in found}) == [f"2026-07-0{day}T00:00:00+02:00" for day in (1, 2, 3)]
    (folder / "job.yaml").write_text(zoned.replace("Europe/Berlin", "Berlin"))
    with pytest.raises(ConfigError, match="such as Europe/Berlin"):
        load_config(folder / "job.yaml")


def test_a_job_with_three_categories_warns_of_nothing(tmp_path: Path, quick: Quick) -> None:
    """It warned of the codes of categories, as of raw numbers."""
    rows = [f"{i % 100},{('north', 'south', 'west')[i % 3]}" for i in range(900)]
    (tmp_path / "people.csv").write_text("\n".join(["charge,region", *rows]) + "\n")
    settings = JOB.replace("south]", "south, west]").replace("eps=1", "eps=1, trust: process").partition("commit")[0]
    (tmp_path / "job.yaml").write_text(settings)
    quick.silent("run", "job.yaml", folder=tmp_path)


@pytest.mark.parametrize("beside", some([False, True], 1))
def test_a_mean_of_values_that_are_all_clipped_is_doubted_wherever_it_is_shown(
    folder: Path, quick: Quick, beside: bool
) -> None:
    """Of the columns, or of the target of a model of the same records; what lies within its bounds has no doubt."""
    with_costs(folder)
    clipped, inside = ("cost", "charge") if beside else ("charge", "other")
    text = BESIDE.replace("[0, 200]", "[-9, -1]") if beside else JOB.replace("[0, 100]", "[-9, -1], other: [0, 9]")
    means = f"  clipped: {{mean: {clipped}}}\n  inside: {{mean: {inside}}}\n"
    text = text.replace("statistics:\n", "statistics:\n" + means).replace("eps=1", "eps=8, trust: process")
    (folder / "job.yaml").write_text(text)
    if not beside:
        lines = (folder / "people.csv").read_text().splitlines()
        (folder / "people.csv").write_text("\n".join(["charge,region,cost,other", *(f"{one},5" for one in lines[1:])]))
    assert f"'{clipped}': 100 % of the values lie outside the declared bounds" in quick.output("check", "job.yaml")
    said = f"'clipped' is at the bound -1 of '{clipped}', as far as was released: most values may lie above it"
    code, out, err = quick("run", "job.yaml")
    assert (code, said in out + err) == (0, True)
    assert "'inside' is at" not in out + err
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    doubted = {row["statistic"]: row["doubt"] for row in rows if "doubt" in row}
    assert doubted["clipped"].startswith(said)
    assert "inside" not in doubted
    assert said in quick.output("stats", "charges.db")
    assert said in quick.output("status", "charges.db")
    assert json.loads((folder / "found.json").read_text())["statistics"] == rows
    with client(load_config(folder / "job.yaml")) as http:
        assert any(doubt.startswith(said) for doubt in http.get("/v1/models/charges").json()["doubts"])
        found = http.get("/v1/models/charges/statistics").json()
        assert StatisticsAnswer.model_validate(found).statistics[0].doubt == doubted["clipped"]
        assert found["statistics"] == rows


def test_tables_are_consistent_and_records_are_drawn_from_them(folder: Path, quick: Quick) -> None:
    counts = "table: {count: [charge, region], edges: {charge: [0, 10, 100]}}\n  people:"
    (folder / "job.yaml").write_text(JOB.replace("people:", counts))
    quick.output("run", "job.yaml")
    rows = json.loads(quick.output("stats", "charges.db", "--json"))
    assert [row["item"] for row in rows if row["statistic"] == "table"] == [
        [[low, high], region] for low, high in ((0.0, 10.0), (10.0, 100.0)) for region in ("north", "south")
    ]
    shown = quick.output("stats", "charges.db", "--consistent")
    assert "table 0 to 10 north" in shown
    assert "[" not in shown
    table = [row["value"] for row in json.loads(quick.output("stats", "charges.db", "--consistent", "--json"))]
    assert table[0] + table[2] == pytest.approx(table[4], abs=1)  # north in both
    drawn = quick.output("synthesize", "charges.db", "--records", "100", "--seed", "1").splitlines()
    assert drawn[0] == "charge,region"
    assert len(drawn) == 101
    assert quick("synthesize", "charges.db", "--records", "0")[0] == 2
