"""Twelve files as people have them, with what a person would type into the draft of `init`: made up, from a fixed seed.

Each target is a linear model of the columns with noise, so that scikit-learn's linear model on the same file is the
mark. `MESSY` has them by name; `write` makes one in a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROWS = 12_000
_CITIES = ["Aachen", "Augsburg", "Berlin", "Bochum", "Bonn", "Bremen", "Dresden", "Duisburg", "Düsseldorf", "Essen"]
_CITIES += ["Freiburg", "Gera", "Halle", "Hamburg", "Hannover", "Jena", "Karlsruhe", "Kassel", "Kiel", "Köln"]
_CITIES += ["Leipzig", "Lübeck", "Mainz", "Mannheim", "München", "Münster", "Nürnberg", "Rostock", "Stuttgart", "Ulm"]


@dataclass(frozen=True)
class Messy:
    """A file and what a newcomer types: the edits of lines of the draft, by the column, or `target`."""

    file: str
    target: str
    edits: dict[str, str]
    make: Callable[[np.random.Generator], dict[str, Any]]
    save: Callable[[dict[str, Any], Path], None]


def _text(
    encoding: str,
    delimiter: str = ",",
    head: str = "",
    end: str = "\n",
) -> Callable[[dict[str, Any], Path], None]:
    """What writes columns of texts as a CSV file, with quotes where they are needed."""

    def quoted(value: str) -> str:
        return f'"{value}"' if delimiter in value else value

    def save(columns: dict[str, Any], path: Path) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [delimiter.join(map(quoted, row)) for row in [tuple(columns), *rows]]
        path.write_bytes((head + end.join(lines) + end).encode(encoding))

    return save


def number(values: Any, decimal: str = ".", thousands: str = "", places: int = 2) -> list[str]:
    """Numbers with the marks of a country."""
    marks = str.maketrans({".": decimal, ",": thousands})
    return [f"{value:,.{places}f}".translate(marks) for value in values]


def dates(rng: np.random.Generator, form: str, rows: int = ROWS) -> tuple[list[str], np.ndarray]:
    """Days of three years in a format, and their weekdays from 0."""
    days = np.datetime64("2021-01-01") + rng.integers(0, 3 * 365, rows)
    return pl.Series(days).dt.strftime(form).to_list(), (days.astype(int) + 3) % 7


def gaps(rng: np.random.Generator, texts: list[str], mark: str, share: float = 0.03) -> list[str]:
    """Some of the texts replaced by the mark of a gap."""
    return [mark if gap else text for gap, text in zip(rng.random(len(texts)) < share, texts, strict=True)]


def _pick(rng: np.random.Generator, levels: Sequence[str], rows: int = ROWS) -> tuple[list[str], np.ndarray]:
    codes = rng.integers(0, len(levels), rows)
    return [levels[code] for code in codes], codes


def _money(rng: np.random.Generator, marks: tuple[str, str], form: str, yes_no: tuple[str, str], gap: str) -> Any:
    """What four of the files have: the columns day, age, income and member, and the money that people spend."""
    day, weekday = dates(rng, form)
    age = rng.integers(18, 90, ROWS)
    income = np.clip(rng.gamma(4.0, 700.0, ROWS), 0, 9_999)
    member, joined = _pick(rng, yes_no)
    spent = np.clip(400 + 0.3 * income + 300 * joined + 200 * (weekday > 4) + rng.normal(0, 150, ROWS), 0, 5_000)
    return day, age, gaps(rng, number(income, *marks), gap), member, number(spent, *marks)


def _german(rng: np.random.Generator) -> dict[str, Any]:
    day, age, income, member, spent = _money(rng, (",", "."), "%d.%m.%Y", ("N", "J"), "k.A.")
    town, _ = _pick(rng, _CITIES)
    customer = [f"K{code:05d}" for code in rng.integers(0, 3_000, ROWS)]
    return {
        "Kundennr": customer,
        "Kaufdatum": day,
        "Alter": gaps(rng, list(map(str, age)), "-", 0.01),
        "Ort": town,
        "Einkommen": income,
        "Stammkunde": member,
        "Betrag": spent,
    }


def _french(rng: np.random.Generator) -> dict[str, Any]:
    day, _, income, member, spent = _money(rng, (",", "\u202f"), "%d/%m/%Y", ("non", "oui"), "n.d.")
    return {"date d'achat": day, "revenu": income, "fidélité": member, "dépense": spent}


def _american(rng: np.random.Generator) -> dict[str, Any]:
    day, age, income, member, spent = _money(rng, (".", ","), "%m/%d/%Y", ("N", "Y"), "N/A")
    return {"Purchase Date": day, "Age": list(map(str, age)), "Income": income, "Member": member, "Spent": spent}


def _japanese(rng: np.random.Generator) -> dict[str, Any]:
    day, age, income, member, spent = _money(rng, (".", ","), "%Y/%m/%d", ("いいえ", "はい"), "不明")
    town, _ = _pick(rng, ["東京", "大阪", "名古屋", "札幌", "福岡"])
    return {"購入日": day, "年齢": list(map(str, age)), "都市": town, "収入": income, "会員": member, "支出": spent}


def _survey(rng: np.random.Generator) -> dict[str, Any]:
    age, hours = rng.integers(18, 66, ROWS), rng.integers(0, 60, ROWS)
    school, level = _pick(rng, ["Hauptschule", "Realschule", "Gymnasium", "Universität"])
    chance = 1 / (1 + np.exp(-(-3.0 + 0.08 * hours + 0.8 * level - 0.02 * (age - 40))))
    answer = np.where(rng.random(ROWS) < chance, "ja", "nein")
    return {
        "Alter": gaps(rng, list(map(str, age)), ""),
        "Stunden je Woche": number(hours, ",", places=1),
        "Schule": school,
        "zufrieden": answer.tolist(),
    }


def _orders(rng: np.random.Generator) -> dict[str, Any]:
    forms = {"ordered": "%Y-%m-%d", "paid": "%d.%m.%Y", "sent": "%m/%d/%Y", "arrived": "%Y/%m/%d"}
    found = {name: dates(rng, form) for name, form in forms.items()}
    weight = rng.gamma(2.0, 2.0, ROWS).clip(0, 30)
    late = -1.5 + 0.3 * weight + 1.5 * (found["sent"][1] > 4) + rng.logistic(0, 1, ROWS) > 0
    return {name: day for name, (day, _) in found.items()} | {
        "weight": number(weight),
        "late": ["TRUE" if is_late else "FALSE" for is_late in late],
    }


def _shops(rng: np.random.Generator) -> dict[str, Any]:
    shop, code = _pick(rng, [f"shop {number:03d}" for number in range(300)])
    basket = rng.integers(1, 40, ROWS)
    spent = 5 + 4.0 * basket + 20 * (code % 7 == 0) + rng.normal(0, 15, ROWS)
    return {"shop": shop, "items": basket, "spent": spent.clip(0, 300).round(2)}


def _people(rng: np.random.Generator) -> dict[str, Any]:
    who = rng.zipf(1.4, 4 * ROWS)
    who = who[who < 4_000][:ROWS]
    habit = rng.normal(0, 3, 4_000)[who]
    device, code = _pick(rng, ["phone", "tablet", "computer"])
    hour = rng.integers(0, 24, ROWS)
    minutes = (20 + 10 * code + 0.8 * hour + habit + rng.normal(0, 6, ROWS)).clip(0, 120)
    return {"user": [f"u{w}" for w in who], "device": device, "hour": hour, "minutes": minutes.round(1)}


def _json_lines(columns: dict[str, Any], path: Path) -> None:
    """A record in parts: the user, what the user did, and the answer."""
    rows = zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True)
    lines = [{"user": {"id": u}, "visit": {"device": d, "hour": h}, "minutes": m} for u, d, h, m in rows]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def _rare(rng: np.random.Generator) -> dict[str, Any]:
    amount, foreign = rng.gamma(2.0, 60.0, ROWS).clip(0, 999), rng.random(ROWS) < 0.1
    hour = rng.integers(0, 24, ROWS)
    chance = 1 / (1 + np.exp(-(-7.5 + 0.012 * amount + 2.5 * foreign + 1.0 * (hour < 6))))
    fraud = rng.random(ROWS) < chance
    return {
        "amount": number(amount),
        "hour": list(map(str, hour)),
        "foreign": np.where(foreign, "Y", "N").tolist(),
        "fraud": np.where(fraud, "1", "0").tolist(),
    }


def _zeros(rng: np.random.Generator) -> dict[str, Any]:
    age, car = rng.integers(18, 90, ROWS), _pick(rng, ["small", "family", "sports"])
    claims = rng.random(ROWS) < 0.1 + 0.1 * car[1]
    cost = claims * rng.gamma(2.0, 600.0, ROWS)
    return {"age": age, "car": car[0], "kilometres": rng.integers(2, 50, ROWS) * 1000, "cost": cost.round(2)}


def _sorted(rng: np.random.Generator) -> dict[str, Any]:
    school, level = _pick(rng, ["school", "college", "university"])
    years = rng.integers(0, 45, ROWS)
    wage = (1500 + 40 * years + 600 * level + rng.normal(0, 300, ROWS)).clip(0, 6000).round(2)
    order = np.argsort(wage)
    return {"education": [school[k] for k in order], "years": years[order], "wage": wage[order]}


def _parquet(columns: dict[str, Any], path: Path) -> None:
    pl.DataFrame(columns).write_parquet(path)


MESSY: dict[str, Messy] = {
    "German shop": Messy(
        "kunden.csv",
        "Betrag",
        {"Alter": "[0, 120]", "Einkommen": "[0, 10000]", "target": "[0, 5000]"},
        _german,
        _text("cp1252", ";", end="\r\n"),
    ),
    "French shop": Messy(
        "clients.csv",
        "dépense",
        {"revenu": "[0, 10000]", "target": "[0, 5000]"},
        _french,
        _text("utf-8-sig", ";", end="\r\n"),
    ),
    "American shop": Messy(
        "customers.csv",
        "Spent",
        {"Age": "[0, 120]", "Income": "[0, 10000]", "target": "[0, 5000]"},
        _american,
        _text("utf-8"),
    ),
    "Japanese shop": Messy(
        "kokyaku.csv",
        "支出",
        {"年齢": "[0, 120]", "収入": "[0, 10000]", "target": "[0, 5000]"},
        _japanese,
        _text("cp932", end="\r\n"),
    ),
    "Excel, sep= and a mark": Messy(
        "umfrage.csv",
        "zufrieden",
        {"Alter": "[15, 70]", "Stunden je Woche": "[0, 80]"},
        _survey,
        _text("utf-8-sig", ";", "sep=;\r\n", "\r\n"),
    ),
    "Excel, Unicode text": Messy(
        "umfrage.txt",
        "zufrieden",
        {"Alter": "[15, 70]", "Stunden je Woche": "[0, 80]"},
        _survey,
        _text("utf-16", "\t", end="\r\n"),
    ),
    "four orders of dates": Messy("orders.csv", "late", {"weight": "[0, 30]"}, _orders, _text("utf-8")),
    "300 shops": Messy("shops.parquet", "spent", {"items": "[0, 50]", "target": "[0, 300]"}, _shops, _parquet),
    "people with many rows": Messy(
        "visits.jsonl", "minutes", {"visit.hour": "[0, 23]", "target": "[0, 120]"}, _people, _json_lines
    ),
    "a rare class": Messy("cards.csv", "fraud", {"amount": "[0, 1000]", "hour": "[0, 23]"}, _rare, _text("utf-8")),
    "most are zero": Messy(
        "claims.parquet",
        "cost",
        {"age": "[18, 100]", "kilometres": "[0, 50000]", "target": "[0, 10000]"},
        _zeros,
        _parquet,
    ),
    "sorted": Messy("wages.parquet", "wage", {"years": "[0, 50]", "target": "[0, 6000]"}, _sorted, _parquet),
}


def write(name: str, folder: Path, seed: int = 0) -> Path:
    """Write a file of `MESSY` in a folder, and return its path."""
    messy = MESSY[name]
    messy.save(_columns(name, seed), folder / messy.file)
    return folder / messy.file


def write_two(name: str, folder: Path, seed: int = 0) -> tuple[str, str]:
    """Write four fifths of the records of a file, and the others, in their order; return the names of both files."""
    messy, columns = MESSY[name], {key: np.asarray(values) for key, values in _columns(name, seed).items()}
    others = np.random.default_rng(seed).random(ROWS) < 0.2
    for file, chosen in ((messy.file, ~others), (f"new_{messy.file}", others)):
        messy.save({key: values[chosen].tolist() for key, values in columns.items()}, folder / file)
    return messy.file, f"new_{messy.file}"


def _columns(name: str, seed: int) -> dict[str, Any]:
    return MESSY[name].make(np.random.default_rng([seed, *name.encode()]))


def edited(draft: str, edits: dict[str, str]) -> str:
    """The draft of `init` with what a person types into its empty places."""
    for name, typed in edits.items():
        key = "bounds" if name == "target" else f'"?{re.escape(name)}"?'
        place = rf"(?m)^(    {key}:(?: \{{bounds:)?) *(, missing: \w+\}})?(?: *#.*)?$"
        draft, found = re.subn(place, lambda at, typed=typed: f"{at[1]} {typed}{at[2] or ''}", draft)
        assert found == 1, name
    return draft
