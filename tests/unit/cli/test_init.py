"""`streamdp init`: the draft of a job holds what the data settle, and `check` names each place to fill in."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.shared.messy import MESSY, edited, write
from streamdp.config.empty import check_filled
from streamdp.config.job import load_config
from streamdp.config.peek import delimiter_of
from streamdp.config.problems import WrongSettingsError
from streamdp.config.yaml12 import YamlText
from tests.support.commands import Quick
from tests.support.sizes import some

DATA = """age,sex,city,married,Größe,"odd: name",no,wage,id
23,f,Paris,true,1.7,4711.25,1,30000,anna
54,m,Lyon,false,1.8,1,2,60000,bert
40,m,Paris,TRUE,1.75,2,3,50000,carl
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "people.csv").write_text(DATA)
    return tmp_path


def test_a_draft_names_columns_and_types_and_no_value_of_few_records(data: Path, quick: Quick) -> None:
    assert "streamdp check job.yaml" in quick.error(0, "init", "people.csv", "--target", "wage", "--subject", "id")
    text = (data / "job.yaml").read_text()
    for value in ("4711", "Paris", "Lyon", "anna", "60000", "54"):
        assert value not in re.sub(r"#.*", "", text)
    assert "NOT PRIVATE" in text
    job = YamlText(text, "job.yaml").data
    assert list(job["schema"]["features"]) == ["age", "sex", "city", "married", "Größe", "odd: name", "no"]
    assert job["schema"]["features"]["married"] == [False, True]
    assert job["schema"]["target"] == {"column": "wage", "bounds": None}
    assert job["schema"]["subject"] == "id"
    assert job["model"] == {"trust": "window", "budget": "eps=1"}


def test_a_file_that_may_lack_a_header_is_told_without_its_values(data: Path, quick: Quick) -> None:
    (data / "headless.csv").write_text(DATA.split("\n", 1)[1])
    err = quick.error(2, "init", "headless.csv", "--target", "pariss")
    assert err.endswith("the data have no column 'pariss'; does the data begin with a line of column names?\n")
    assert "without a line of column names, the job holds a record" in err
    assert "Paris" not in err
    assert "warning" in quick.error(0, "init", "headless.csv")
    assert "warning" not in quick.error(0, "init", "headless.csv", "--public", "-o", "public.yaml")


def test_check_names_each_place_to_fill_in(data: Path, quick: Quick) -> None:
    quick("init", "people.csv", "--target", "wage")
    code, out, err = quick("check", "job.yaml")
    assert (code, err) == (2, "")
    lines = out.splitlines()
    places = ["features.age", "features.sex", "features.city", "features.Größe", "features.odd: name", "features.no"]
    assert [line.split(" is empty: ")[0].split("schema.")[1] for line in lines] == [
        *places,
        "features.id",
        "target.bounds",
    ]
    text = (data / "job.yaml").read_text().splitlines()
    for line, name in zip(lines, ["age", "sex", "city", "Größe", '"odd: name"', "no", "id", "bounds"], strict=True):
        number = int(re.search(r"line (\d+)", line)[1])
        assert text[number - 1].strip().startswith(f"{name}:")
    assert quick.error(2, "run", "job.yaml") == f"streamdp: {lines[0]}; 7 more: `streamdp check` lists them\n"
    assert quick("check", "job.yaml", "--set", "budget=eps=1")[1] == out
    given = quick("check", "job.yaml", "--set", "schema.target.classes=[a, b]")[1]
    assert given.splitlines() == lines[:-1]  # instead of bounds


def test_bounds_or_categories_of_a_column_are_enough() -> None:
    check_filled(YamlText("schema: {features: {a: {bounds: , categories: [x, y]}}}", "job.yaml"), "job.yaml")
    with pytest.raises(WrongSettingsError, match=r"schema\.features\.a\.bounds is empty"):
        check_filled(YamlText("schema: {features: {a: {bounds: }}}", "job.yaml"), "job.yaml")


@pytest.mark.parametrize("target", ["wage", "city", "married"])
@pytest.mark.slow
def test_a_draft_of_public_data_runs_as_it_is(data: Path, quick: Quick, target: str) -> None:
    assert quick("init", "people.csv", "--target", target, "--public")[0] == 0
    config = load_config(data / "job.yaml")
    declared = config.schema_.declared()
    assert config.model.estimator == ("WindowedRegressor" if target == "wage" else "WindowedClassifier")
    assert declared["age"] == (23, 54)
    assert declared["sex"] == ["m", "f"]  # the most frequent one is the baseline
    assert quick("check", "job.yaml")[0] == 0
    assert quick("run", "job.yaml")[0] == 0


def test_the_delimiter_is_found_and_a_file_is_kept(data: Path, quick: Quick) -> None:
    (data / "people.csv").write_text(DATA.replace(",", ";"))
    assert quick("init", "people.csv", "-o", "out/job.yaml")[0] == 2
    assert quick("init", "people.csv", "--public", "--target", "wage")[0] == 0
    assert quick("run", "job.yaml")[0] == 0
    before = (data / "job.yaml").read_text()
    code, _, err = quick("init", "people.csv")
    assert (code, err) == (2, "streamdp: job.yaml exists already; choose another file with -o\n")
    assert (data / "job.yaml").read_text() == before


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_names_in_quotes_are_cut_at_the_delimiter_too(tmp_path: Path, quick: Quick, delimiter: str) -> None:
    """As R and databases write them; a header in quotes was refused, but for commas."""
    (tmp_path / "data.csv").write_text(delimiter.join(['"price, in euros"', '"a;b|c"', "y"]) + "\n1\t2,3;4|5\n")
    assert delimiter_of(str(tmp_path / "data.csv"), None) == delimiter
    (tmp_path / "one.csv").write_text('"y"\n1\n')
    assert delimiter_of(str(tmp_path / "one.csv"), None) == ","
    (tmp_path / "wrong.csv").write_text('"y"x\n1\n')
    assert "quotes that do not match" in quick.error(3, "init", "wrong.csv")


def test_json_lines(data: Path, quick: Quick) -> None:
    (data / "people.jsonl").write_text('{"age": 3, "ok": true}\nno json\n{"age": 4, "name": "x"}\n')
    code, out, _ = quick("init", "people.jsonl", "-o", "-")
    job = YamlText(out, "-").data
    assert code == 0
    assert job["source"] == {"type": "jsonl", "path": "people.jsonl"}
    assert job["schema"]["features"] == {
        "age": None,
        "ok": {"categories": [False, True], "missing": "category"},
        "name": None,
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("#made by hand, in 2024\na,y\n1,2\n", "data.csv begins with #: if it is a comment, set source.comment: '#'"),
        ("price;y\n1,234;1\n2,345;2\n", "commas are text"),  # two marks fit these numbers
        ("age,age,y,,\n" + "1,2,a,,\n" * 20, "'age' more than once: rename these columns to use them"),
    ],
)
def test_what_a_draft_leaves_out_is_told(tmp_path: Path, quick: Quick, content: str, said: str) -> None:
    (tmp_path / "data.csv").write_text(content)
    assert said in quick.error(0, "init", "data.csv")


@pytest.mark.parametrize(
    ("content", "source"),
    [
        ("na\u00efve,y\n1,2\n".encode("latin-1"), {"encoding": "cp1252"}),
        ("naive,y\nx\u00e9,2\nb,3\n".encode("latin-1"), {"encoding": "cp1252"}),
        ("naive;y\n1;2\n".encode("utf-16"), {"encoding": "utf-16", "delimiter": ";"}),
        (b"# made by hand, today\n# twice\nnaive,y\n1,2\n", {"comment": "#"}),
        (b"Sales, 2024;\n\nnaive;y\n1,5;2,5\n2,5;3,5\n", {"skip_lines": 2, "delimiter": ";", "decimal": ","}),
        (b'naive;"na;b";y\n1,5;"c\nd";2,5\n2,5;"e;f";3,5\n', {"delimiter": ";", "decimal": ","}),
    ],
    ids=["Latin-1 header", "Latin-1 values", "UTF-16", "comment", "title", "quoted"],
)
def test_what_the_first_bytes_show_is_in_the_draft(
    tmp_path: Path, quick: Quick, content: bytes, source: dict[str, str]
) -> None:
    """Before, such a file got a sentence that said how to convert it."""
    (tmp_path / "data.csv").write_bytes(content)
    assert quick("init", "data.csv", "--target", "y", "--public")[0] == 0
    job = YamlText((tmp_path / "job.yaml").read_text(), "-").data
    assert job["source"] == {"type": "csv", "path": "data.csv"} | source
    assert {name[:2] for name in job["schema"]["features"]} == {"na"}
    assert quick("check", "job.yaml")[0] == 0


@pytest.mark.slow
def test_five_hundred_rows_are_one_window_that_is_released_at_the_end_of_the_file(data: Path, quick: Quick) -> None:
    (data / "rows.csv").write_text("a,y\n" + "".join(f"{i % 10},{i % 10 + i % 2}\n" for i in range(500)))
    assert quick("init", "rows.csv", "--public", "--target", "y")[0] == 0
    end = json.loads(quick.output("run", "job.yaml").splitlines()[-1])
    assert end["learned"] == 500
    assert "1 windows were released by newton, of 500 users in all" in quick.output("statement", "rows.db", "--full")


@pytest.mark.parametrize("trust", ["nobody", "process", "window", "shuffler"])
def test_trust_is_an_option_and_its_answers_are_explained(data: Path, quick: Quick, trust: str) -> None:
    assert quick("init", "people.csv", "--target", "married", "--trust", trust, "--public")[0] == 0
    text = (data / "job.yaml").read_text()
    assert "Who may see the raw records while they are processed?" in text
    assert "this process, and nothing stays" in text
    assert load_config(data / "job.yaml").model.trust == trust


def test_items_per_user_and_wrong_answers(data: Path, quick: Quick) -> None:
    options = ["init", "people.csv", "--public", "--target", "married", "--subject", "id", "--items-per-user", "3"]
    assert "--items-per-user is for --trust window" in quick.error(2, *options, "--trust", "process")
    assert "did you mean 'nobody'" in quick.error(2, *options, "--trust", "noboddy")
    assert quick(*options)[0] == 0
    assert load_config(data / "job.yaml").model.items_per_user == 3


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "trust"), some([("2", "process"), ("nobody", "nobody"), ("", "window")], 0))
def test_at_a_terminal_trust_is_the_first_question(data: Path, typed: str, trust: str) -> None:
    terminal, inner = os.openpty()
    command = [sys.executable, "-m", "streamdp", "init", "people.csv"]
    with subprocess.Popen(command, cwd=data, stdin=inner, stderr=inner, stdout=subprocess.PIPE) as process:
        os.close(inner)
        os.write(terminal, f"{typed}\n".encode())
        assert process.wait(60) == 0
    said = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert said.index("Who may see the raw records") < said.index("1 nobody") < said.index("4 shuffler")
    assert f"trust: {trust}" in (data / "job.yaml").read_text()


@pytest.mark.parametrize(
    ("written", "format"),
    [
        (["31/01/2020 10:20", "01/02/2020 23:59"], "%d/%m/%Y %H:%M"),
        (["01/31/2020", "02/01/2020"], "%m/%d/%Y"),
        (["31.01.2020", "1.2.2020"], "%d.%m.%Y"),
        (["31.01.23", "01.02.23"], "%d.%m.%y"),  # before, `%Y` fitted 23 as the year 23
        (["03-MAR-24", "5-may-99"], "%d-%b-%y"),
        (["3 Mar 2024 10:20", "15 May 1999 9:05"], "%d %b %Y %H:%M"),
        (["March 3, 2024", "May 15, 1999"], "%B %d, %Y"),
        (["20240303", "19990515"], "%Y%m%d"),
        (["8:05", "23:59"], "%H:%M"),
        (["8:05:01 AM", "11:59:00 PM"], "%I:%M:%S %p"),
    ],
)
def test_dates_as_people_write_them_have_their_format(
    tmp_path: Path, quick: Quick, written: list[str], format: str
) -> None:
    (tmp_path / "days.csv").write_text("day,y\n" + "".join(f'"{day}",1\n' for day in written))
    quick.error(0, "init", "days.csv", "--target", "y")
    features = YamlText((tmp_path / "job.yaml").read_text(), "job.yaml").data["schema"]["features"]
    assert [declared["format"] for declared in features.values()] == [format] * (2 if "y %h" in format.lower() else 1)


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        ("day,y\n01/02/2020,1\n03/04/2020,2\n", ['format: "%d/%m/%Y", part', 'format: "%m/%d/%Y" fits, too']),
        ("a,y\n" + "1,Yes\n2,No\n3,NO\n" * 20, ["# some differ in case or blanks only, and count apart"]),
        ("plz,y\n" + "10115,1\n01067,2\n10115,3\n" * 20, ['plz: ["10115", "01067"]']),
    ],
)
def test_what_data_leave_open_is_in_the_draft(tmp_path: Path, quick: Quick, content: str, notes: list[str]) -> None:
    (tmp_path / "data.csv").write_text(content)
    quick.error(0, "init", "data.csv", "--target", "y")
    assert all(note in (tmp_path / "job.yaml").read_text() for note in notes)


SETTLED: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "German shop": (
        {"delimiter": ";", "encoding": "cp1252", "decimal": ",", "thousands": "."},
        {
            "missing_values": ["-", "k.A."],
            "subject": "Kundennr",
            "Stammkunde": ["N", "J"],
            "Einkommen": {"bounds": None, "missing": "drop"},
        },
    ),
    "French shop": ({"delimiter": ";", "decimal": ",", "thousands": " "}, {"fidélité": ["non", "oui"]}),
    "American shop": ({"decimal": ".", "thousands": ","}, {"missing_values": ["N/A"], "Member": ["N", "Y"]}),
    "Japanese shop": (
        {"encoding": "cp932", "decimal": ".", "thousands": ","},
        {"missing_values": ["不明"], "会員": ["いいえ", "はい"]},
    ),
    "Excel, sep= and a mark": ({"delimiter": ";", "skip_lines": 1, "decimal": ","}, {"classes": ["nein", "ja"]}),
    "Excel, Unicode text": ({"delimiter": "\t", "encoding": "utf-16", "decimal": ","}, {"classes": ["nein", "ja"]}),
    "four orders of dates": (
        {},
        {"sent weekday": {"column": "sent", "format": "%m/%d/%Y", "part": "weekday"}, "classes": [False, True]},
    ),
    "300 shops": ({}, {"shop": {"hash": 32}}),
    "people with many rows": ({}, {"subject": "user.id"}),
    "a rare class": ({}, {"classes": ["0", "1"], "foreign": ["N", "Y"]}),
    "most are zero": ({}, {}),
    "sorted": ({}, {}),
}


@pytest.mark.parametrize("name", MESSY)
def test_a_draft_has_what_a_messy_file_settles(tmp_path: Path, quick: Quick, name: str) -> None:
    """Before: encodings and lines `sep=` were refused, thousands and gaps made numbers text, people were a feature."""
    file, target = write(name, tmp_path).name, MESSY[name].target
    assert "warning" not in quick.error(0, "init", file, "--target", target)
    job = YamlText((tmp_path / "job.yaml").read_text(), "job.yaml").data
    source, settled = SETTLED[name]
    assert {key: value for key, value in job["source"].items() if key not in ("type", "path")} == source
    found = job["schema"] | job["schema"]["features"] | job["schema"]["target"]
    for key, value in settled.items():
        assert found[key] == (found[key] | value if key == "sent weekday" else value)
    places = [line.split(" is empty")[0] for line in quick("check", "job.yaml")[1].splitlines()]
    assert len(places) == len(MESSY[name].edits) <= 3


def test_texts_of_few_records_or_of_one_person_are_not_copied(tmp_path: Path, quick: Quick) -> None:
    rows = [f"{i},red,{i % 9}" for i in range(40)] + [f"{i},blue,{i % 9}" for i in range(40)]
    rows += ["7,secret,1"] * 30 + ["8,hidden,1"] * 3
    (tmp_path / "people.csv").write_text("user,colour,y\n" + "\n".join(rows) + "\n")
    quick.error(0, "init", "people.csv", "--target", "y")
    text = (tmp_path / "job.yaml").read_text()
    assert YamlText(text, "-").data["schema"]["features"]["colour"] == {"categories": ["blue", "red"], "other": True}
    assert "subject: user" in text
    assert "secret" not in text
    assert "hidden" not in text


@pytest.mark.parametrize("holders", [1, 12])
def test_a_word_among_numbers_is_a_mark_of_a_gap_only_if_ten_people_have_it(
    tmp_path: Path, quick: Quick, holders: int
) -> None:
    rows = [f"{i % 200},{i % 90},{i % 7}" for i in range(400)] + [f"{i % holders},refused,1" for i in range(12)]
    (tmp_path / "people.csv").write_text("user,amount,y\n" + "\n".join(rows) + "\n")
    quick.error(0, "init", "people.csv", "--target", "y", "--subject", "user")
    assert ("refused" in (tmp_path / "job.yaml").read_text()) == (holders == 12)


@pytest.mark.parametrize(
    ("texts", "source", "warned"),
    [
        (["1.234", "2.345", "17"], {}, "1.234 is read as 1.234 and not as 1234"),
        (["1.234", "2.34", "17"], {}, ""),
        (["1 234,5", "2", "17"], {"decimal": ",", "thousands": " "}, ""),
        (["1\u00a0234,5", "2", "17"], {"decimal": ",", "thousands": " "}, ""),
        (["1\u2019234.50", "2.1", "17"], {"decimal": ".", "thousands": "'"}, ""),
        (["1.234,5", "2,5"], {"decimal": ",", "thousands": "."}, ""),
        (["1234,5", "2,25"], {"decimal": ","}, ""),
        (["1,234.5", "1,000,000"], {"decimal": ".", "thousands": ","}, ""),
    ],
)
def test_marks_of_numbers_are_settled_or_doubted(
    tmp_path: Path, quick: Quick, texts: list[str], source: dict[str, str], warned: str
) -> None:
    (tmp_path / "prices.csv").write_text("price;y\n" + "".join(f"{text};1\n" for text in texts * 20))
    said = quick.error(0, "init", "prices.csv", "--target", "y")
    assert warned in said if warned else "warning" not in said
    text = (tmp_path / "job.yaml").read_text()
    job = YamlText(text, "-").data
    assert {key: job["source"][key] for key in ("decimal", "thousands") if key in job["source"]} == source
    assert "price:  # a number" in text


@pytest.mark.parametrize(
    ("values", "trust", "loss"),
    [
        ([0] * 60 + [5.5, 900, 70], "window", "squared"),
        ([-1, 2, 2, 3, 3, 4, 5, 6, 9, 80] * 6, "process", "squared"),
        ([0] * 60 + [5, 900, 70], "window", "poisson"),
        ([1, 2, 2, 3, 3, 4, 5, 6, 9, 80] * 6, "process", "poisson"),
        ([1, 2, 2, 3, 3, 4, 5, 6, 9, 80] * 6, "shuffler", "squared"),
        ([1, 2, 2, 3, 3, 4, 5, 6, 9, 80] * 6, "nobody", "squared"),
        ([*range(60)], "window", None),
    ],
)
def test_a_target_of_which_the_mean_is_not_the_median_is_learned_by_the_loss_of_its_mean(
    tmp_path: Path, quick: Quick, values: list[float], trust: str, loss: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Huber's loss learned neither, and nobody said so."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 7},{value}\n" for i, value in enumerate(values))
    (tmp_path / "claims.csv").write_text("age,amount\n" + rows)
    assert quick("init", "claims.csv", "--target", "amount", "--public", "--trust", trust)[0] == 0
    text = (tmp_path / "job.yaml").read_text()
    assert re.findall("\n  loss: (\\w+)  # learns the mean.*, because ", text) == [loss] * (loss is not None)
    assert not any("Huber" in said for said in json.loads(quick("check", "job.yaml", "--json")[1])["warnings"])
    (tmp_path / "job.yaml").write_text(re.sub("\n  loss: .*", "", text))
    warnings = json.loads(quick("check", "job.yaml", "--json")[1])["warnings"]
    said = [said for said in warnings if "loss: squared learns the mean" in said]
    assert len(said) == (loss is not None)
    assert any("loss: poisson the mean of counts" in each for each in said) == (loss == "poisson")


def test_a_draft_says_what_is_no_column_to_learn_from(tmp_path: Path, quick: Quick) -> None:
    """It listed hundreds of amounts with a sign as classes, and asked for the categories of one text."""
    names = ["amount", "paid", "loss", "share", "when", "one", "none"]
    written = ["${0}", "{0} kr", "({0})", "\u2212{0}", "{1}", "same"]
    row = ", ".join(f'"{name}": "{text}"' for name, text in zip(names, [*written, ""], strict=True))
    days = ["2024-03-{:02}", "{:02}.03.2024"]
    rows = [row.format(i % 90, days[i % 2].format(i % 28 + 1)) for i in range(2_000)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{{{row}}}\n" for row in rows))
    quick.error(0, "init", "rows.jsonl", "--target", "amount")
    lines = [line.strip() for line in (tmp_path / "job.yaml").read_text().splitlines()]
    unread = "numbers with %, $ or the like, which are not read: write them without"
    signs = "numbers with signs that are not read: write -12 for \u221212, (12) and 12-"
    orders = "dates in several formats, of which one may be declared: write them in one"
    same = "the same in all records that were looked at"
    said = dict(zip(names, [unread, unread, signs, signs, orders, same, same], strict=True))
    assert f"bounds:  # {said.pop('amount')}" in lines
    assert [line for line in lines if line.startswith(("# when", *(f"# {name}:" for name in said)))] == [
        f"# {name}:  # {why}" for name, why in said.items()
    ]
    (tmp_path / "texts.csv").write_text("city,y\n" + "".join(f"place {i % 70},{i % 2}\n" for i in range(2_000)))
    quick.error(0, "init", "texts.csv", "--target", "city", "-o", "texts.yaml")
    said = "classes:  # text with 70 values: write the labels, such as [yes, no]"
    assert said in (tmp_path / "texts.yaml").read_text()


def strange(rng: np.random.Generator, total: bool) -> bytes:
    """A Swiss list: Latin-1, CHF and apostrophes, per cents, blanks around texts, two headers, and a line of totals."""
    rows = ["Bezug;Fläche (m²);Kanton;Zimmer;Rabatt;Balkon;Miete", "(Datum);(m²);(Ort);(Zahl);(in %);(x);(im Monat)"]
    for i in range(2_000):
        area, canton = int(rng.integers(20, 200)), ["Zürich ", "Genève"][i % 2]
        rent = f"CHF {800 + 12 * area:,}.50".replace(",", "'")
        rows.append(f"{i % 28 + 1:02}.04.2023 ;{area};{canton};{i % 6 + 1};{i % 40 / 4} %;{'x' * (i % 2)};{rent}")
    rows += ["Total;;;;;;CHF 1'000'000"] * total
    return ("\r\n".join(rows) + "\r\n").encode("latin-1")


def test_units_totals_second_headers_and_blanks_do_no_harm(tmp_path: Path, quick: Quick) -> None:
    """Rents were 2,000 classes, days and per cents were hashed, and no canton with a blank behind it was known."""
    (tmp_path / "rents.csv").write_bytes(strange(np.random.default_rng(1), True))
    (tmp_path / "new.csv").write_bytes(strange(np.random.default_rng(2), False))
    quick.error(0, "init", "rents.csv", "--target", "Miete")
    text = (tmp_path / "job.yaml").read_text()
    job = YamlText(text, "job.yaml").data
    assert job["source"]["units"] == ["%", "CHF"]
    features = job["schema"]["features"]
    assert features["Kanton"]["categories"] == ["Genève", "Zürich "]
    assert features["Balkon"] == {"categories": ["x"], "missing": "category", "other": True}
    assert features["Bezug weekday"]["format"] == "%d.%m.%Y"
    text = edited(text, {"Fläche (m²)": "[0, 300]", "Zimmer": "[0, 10]", "Rabatt": "[0, 100]", "target": "[0, 9000]"})
    (tmp_path / "job.yaml").write_text(text.replace("budget: eps=1", "budget: eps=8"))
    assert "2,000 of 2,002 records fit the schema" in quick.output("check", "job.yaml")
    assert quick("run", "job.yaml")[0] == 0
    code, out, said = quick("predict", "job.yaml", "new.csv")
    assert (code, "1 of 2,001 rows do not fit the schema" in said) == (0, True)
    rows = [line.split(";") for line in out.splitlines()[2:]]
    errors = [abs(float(row[7]) - float(row[6][4:].replace("'", ""))) for row in rows]
    assert np.mean(errors) < 100  # of rents from 1,040 to 3,200


def test_a_draft_of_many_gaps_runs(tmp_path: Path, quick: Quick) -> None:
    """Its rule for gaps left out a quarter of the records, and then the run stopped at the 5 % of the default."""
    rows = [
        f"{'n/a' if i % 8 == 0 else i % 60},{'NA' if i % 8 == 4 else i % 50},{i % 7}{'-' * (i % 3)}" for i in range(800)
    ]
    (tmp_path / "data.csv").write_text("age,wage,y\n" + "\n".join(rows) + "\n")
    quick.error(0, "init", "data.csv", "--target", "wage")
    text = (tmp_path / "job.yaml").read_text()
    assert "  max_bad_share: 0.32  # 25 % have a gap" in text
    (tmp_path / "job.yaml").write_text(edited(text, {"age": "[0, 60]", "target": "[0, 60]"}))
    assert quick("check", "job.yaml")[0] == 0
    assert '"learned": 600' in quick.output("run", "job.yaml").splitlines()[-1]


def test_a_share_of_gaps_is_written_without_an_exponent(tmp_path: Path, quick: Quick) -> None:
    rows = [f"{'' if i else 1},{'' if i % 2 else i},{'' if i % 3 else i}" for i in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    quick.error(0, "init", "rows.csv", "--target", "a", "-o", "job.yaml")
    text = (tmp_path / "job.yaml").read_text()
    assert "100 % have a gap in a column" in text
    assert "50 % are missing" in text
    assert "# c:  # a number; 67 % are missing" in text  # most records would be left out


def test_amounts_of_which_the_mark_is_not_known_are_read_once_it_is_given(tmp_path: Path, quick: Quick) -> None:
    rows = [f'{i % 7},"${1 + i % 30},{100 + i % 800}"' for i in range(2_000)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    assert "source.thousands: ','" in quick.error(0, "init", "rows.csv", "--target", "y")
    text = (tmp_path / "job.yaml").read_text()
    assert "bounds:  # numbers of which nothing shows whether 1,234 is 1.234" in text
    text = text.replace("    bounds:  #", "    bounds: [0, 50000]  #").replace("    a:", "    a: [0, 6]")
    (tmp_path / "job.yaml").write_text(text.replace("source:\n", "source:\n  thousands: ','\n"))
    assert "2,000 of 2,000 records fit" in quick.output("check", "job.yaml")
