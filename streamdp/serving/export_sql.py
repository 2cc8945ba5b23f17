"""An exported model as a query in the SQL that PostgreSQL and DuckDB share.

It adds the prediction, and the probability of each class, to the rows of a table. A row that does not fit the schema
has nulls. Numbers must be in columns of numbers, dates in columns of dates, or of texts in ISO 8601
or their own format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from streamdp.data.dates import EPOCHS
from streamdp.database.postgres import LONGEST_NAME
from streamdp.errors import ConfigError
from streamdp.serving.added import PREDICTION, SHARE


def sql(document: Mapping[str, Any], table: str) -> str:
    """Return the query of a `document` for the rows of `table`. Raises `ConfigError` for a path in nested JSON."""
    values = [f"{_value(given)} AS v{k}" for k, given in enumerate(document["inputs"])]
    columns = [c for c in document["columns"] if c["kind"] != "product"]
    products = [c for c in document["columns"] if c["kind"] == "product"]
    encoded = [f"{_column(c)} AS c{j}" for j, c in enumerate(columns)]
    multiplied = [
        " * ".join(f"c{k}" for k in c["columns"]) + f" AS c{len(columns) + j}" for j, c in enumerate(products)
    ]
    ranges = document["ranges"] or [(None, None)] * len(document["columns"])
    cut = [f"c{j}" if low is None else _clip(f"c{j}", low, high) for j, (low, high) in enumerate(ranges)]
    scores = [
        " + ".join(
            [
                _number(output["intercept"]),
                *(f"{_number(w)} * {x}" for w, x in zip(output["weights"], cut, strict=True)),
            ]
        )
        + f" AS s{k}"
        for k, output in enumerate(document["outputs"])
    ]
    fits = " AND ".join(f"v{k} IS NOT NULL" for k in range(len(values)))
    shown = _shown(document)
    _check_lengths([*{str(given["column"]) for given in document["inputs"]}, *(name for name, _ in shown)])
    comment = "".join(f"-- {line}\n" for line in document["statement"].splitlines())
    layers = _select(values, "OFFSET 0")  # without this, PostgreSQL computes an inner column at each use
    layers = _select(["*", *encoded], f"FROM ({layers}) AS v WHERE {fits} OFFSET 0")
    layers = _select(["*", *multiplied], f"FROM ({layers}) AS c OFFSET 0") if multiplied else layers
    layers = _select(["*", *scores] if document["moderation"] else scores, f"FROM ({layers}) AS x OFFSET 0")
    layers = _select([f"{expression} AS {_name(name)}" for name, expression in shown], f"FROM ({layers}) AS s")
    return f"{comment}SELECT r.*, m.*\nFROM {table} AS r\nLEFT JOIN LATERAL (\n{layers}\n) AS m ON TRUE;\n"


def _check_lengths(names: list[str]) -> None:
    """Raise `ConfigError` for names that PostgreSQL cuts to one: it reads so many bytes of each."""
    cut = [name.encode()[:LONGEST_NAME] for name in names]
    if same := [name for name, short in zip(names, cut, strict=True) if cut.count(short) > 1]:
        raise ConfigError(
            f"export: {same[0]!r} and another name are one in PostgreSQL, which reads {LONGEST_NAME} bytes of each: "
            "choose shorter names of columns and classes"
        )


def _select(expressions: list[str], rest: str) -> str:
    return "SELECT\n  " + ",\n  ".join(expressions) + (f"\n{rest}" if rest else "")


def _shown(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The columns that are added, each with its expression."""
    classes = document["classes"]
    if classes is None:
        found = "s0" if document["cut"] is None else _clip("s0", *document["cut"])
        found = f"exp({found})" if document["link"] == "log" else found
        return [(PREDICTION, f"{found} * {_number(document['scale'])}")]
    labels = [_text(str(label)) for label in classes]
    several = range(len(document["outputs"]))
    if len(several) == 1:
        chosen = f"CASE WHEN s0 > 0 THEN {labels[1]} ELSE {labels[0]} END"
        second = f"1 / (1 + exp(-{_clip(_moderated(document), -700, 700)}))"
        shares = [f"1 - {second}", second]
    else:
        best = [" AND ".join(f"s{k} >= s{i}" for i in several if i != k) for k in several]
        chosen = "CASE " + " ".join(f"WHEN {b} THEN {label}" for b, label in zip(best, labels, strict=True)) + " END"
        top = f"greatest({', '.join(f's{i}' for i in several)})"
        powers = [f"exp(greatest(s{k} - {top}, -700))" for k in several]
        shares = [f"{power} / ({' + '.join(powers)})" for power in powers]
    names = [f"{SHARE}{label}" for label in classes] if document["probabilities"] else []
    return [(PREDICTION, chosen), *zip(names, shares, strict=False)]


def _moderated(document: Mapping[str, Any]) -> str:
    noise = document["moderation"]
    if noise is None:
        return "s0"
    units = zip(noise["centres"], noise["scales"], strict=True)
    squares = [f"power((c{j} - {_number(c)}) / {_number(s)}, 2)" for j, (c, s) in enumerate(units)]
    factor = math.pi / 8 * noise["variance"]
    return f"s0 / sqrt(1 + {_number(factor)} * ({' + '.join([_number(noise['constant']), *squares])}))"


def _value(given: Mapping[str, Any]) -> str:
    """The value of an input; null if it does not fit."""
    if "." in str(given["column"]):
        raise ConfigError(f"export: {given['column']!r} is a path in nested JSON, which has no column in a table")
    column = f"r.{_name(str(given['column']))}"
    text = f"CAST({column} AS varchar)"
    missing = "NULL" if given.get("missing") is None else _number(given["missing"])
    if given["type"] == "category":
        blanks = f" OR trim({text}) IN ({', '.join(map(_text, given['blanks']))})" if given["blanks"] else ""
        texts = "".join(f" WHEN {text} = {_text(t)} THEN {code}" for t, code in given["codes"].items())
        other = "NULL" if given["other"] is None else given["other"]
        return f"CASE WHEN {column} IS NULL OR {text} = ''{blanks} THEN {missing}{texts} ELSE {other} END"
    if given["type"] == "date":
        return _part(given, column, text, missing)
    if given["type"] == "hash":
        raise ConfigError("export: a text that is hashed cannot be read by SQL; use json or python")
    number = f"CAST({column} AS double precision)"
    finite = f"CASE WHEN abs({number}) < CAST('Infinity' AS double precision) THEN {number} END"
    nothing = f"{column} IS NULL OR {number} = CAST('NaN' AS double precision)"
    return finite if missing == "NULL" else f"CASE WHEN {nothing} THEN {missing} ELSE {finite} END"


def _part(given: Mapping[str, Any], column: str, text: str, missing: str) -> str:
    part = given["part"]
    if given["format"] is not None:
        text = _iso(given, column, text)
    if part in ("hour", "minute"):
        found = f"CAST(substr({text}, {12 if part == 'hour' else 15}, 2) AS double precision)"
    else:
        field = {"weekday": "isodow"}.get(part, part)
        found = f"CAST(extract({field} FROM CAST(substr({text}, 1, 10) AS date)) AS double precision)"
    if given["codes"] is not None:
        codes = "".join(f" WHEN {found} = {number} THEN {code}" for number, code in given["codes"].items())
        found = f"CASE{codes} ELSE {'NULL' if given['other'] is None else given['other']} END"
    return f"CASE WHEN {column} IS NULL THEN {missing} ELSE {found} END"


def _iso(given: Mapping[str, Any], column: str, text: str) -> str:
    """A date in a format of its own, or a count since 1970 (UTC), as ISO 8601; null if it has another format."""
    form = given["format"]
    if form in EPOCHS:
        moment = f"CAST(floor(CAST({column} AS double precision) * {EPOCHS[form] / 1e6!r}) AS bigint)"
        days = f"CAST(floor({moment} / 86400.0) AS integer)"
        since = f"({moment} - {days} * 86400.0)"  # the start of the day
        pieces = ((" ", f"floor({since} / 3600)"), (":", f"floor({since} / 60) - floor({since} / 3600) * 60"))
        clock = "".join(f" || '{mark}' || lpad(CAST(CAST({n} AS integer) AS varchar), 2, '0')" for mark, n in pieces)
        return f"(CAST(CAST('1970-01-01' AS date) + {days} AS varchar){clock})"
    parts = re.findall("%(.)|([^%]+)", form)
    codes = [code for code, _ in parts if code]
    if unread := set(codes) & {"I", "p"}:
        raise ConfigError(f"export: {given['name']!r} has %{min(unread)} in its format, which SQL does not read")
    digits = {"Y": "([0-9]{4})"}
    pattern = "".join(
        digits.get(code, "([0-9]{1,2})") if code else re.escape(mark).replace("/", "[/]") for code, mark in parts
    )
    pattern = _text(f"^{pattern}$")

    def piece(code: str, width: int = 2) -> str:
        if code not in codes:
            return "'01'" if code in "md" else "'00'"
        return f"lpad(regexp_replace(trim({text}), {pattern}, '\\{codes.index(code) + 1}'), {width}, '0')"

    year = piece("Y", 4) if "Y" in codes else f"(CASE WHEN {piece('y')} < '70' THEN '20' ELSE '19' END || {piece('y')})"
    day = f"{year} || '-' || {piece('m')} || '-' || {piece('d')} || ' ' || {piece('H')} || ':' || {piece('M')}"
    return f"(CASE WHEN trim({text}) ~ {pattern} THEN {day} END)"


def _column(column: Mapping[str, Any]) -> str:
    kind, constants, value = column["kind"], column["constants"], f"v{column['input']}"
    if kind == "as it is":
        return value
    if kind in ("level", "bucket"):
        return f"CASE WHEN {value} = {constants[0]} THEN 1.0 ELSE 0.0 END"
    if kind == "bin":
        above = "" if constants[1] is None else f" AND {value} < {_number(constants[1])}"
        return f"CASE WHEN {value} >= {_number(constants[0])}{above} THEN 1.0 ELSE 0.0 END"
    if kind in ("sin", "cos"):
        period = _number(constants[0])
        turned = f"({value} - {period} * floor({value} / {period})) * {_number(2 * math.pi / constants[0])}"
        return f"{kind}({turned})"
    clipped = _clip(value, *constants[:2])
    if kind == "log":
        clipped = f"ln({clipped})"
    elif kind == "asinh":
        clipped = f"asinh({clipped} / {_number(constants[2])})"
    elif kind == "power":
        clipped = f"power({clipped}, {_number(constants[2])})"
    low, high = column["ends"]
    return _clip(f"({clipped} - {_number(low)}) / {_number(high - low)} * 2 - 1", -1, 1)


def _clip(expression: str, low: float, high: float) -> str:
    return f"least(greatest({expression}, {_number(low)}), {_number(high)})"


def _number(value: float) -> str:
    """A number as a double: without the cast, PostgreSQL computes with decimals."""
    return f"CAST({float(value)!r} AS double precision)"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
