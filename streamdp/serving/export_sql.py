"""An exported model as one query, which PostgreSQL, DuckDB and SQLite read alike.

It adds the prediction, and the probability of each class, to the rows of a table. Each is a scalar subquery of steps,
because SQLite has no LATERAL. Dates are read by arithmetic, because the three share no functions for them. A
row that does not fit the schema has nulls. Numbers must be in columns of numbers, dates in columns of dates, or of
texts in ISO 8601 or their own format.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import accumulate, zip_longest

from streamdp.data.dates import EPOCHS, YEARS
from streamdp.database.postgres import LONGEST_NAME
from streamdp.errors import ConfigError
from streamdp.serving.added import PREDICTION, SHARE, Document
from streamdp.serving.exported import DAYS, MONTHS

_ONCE = "LIMIT 1 OFFSET 0"
"""It keeps the one row: without it, PostgreSQL and SQLite compute an inner column at each use."""
_NESTED = 6
"""So many pieces of a date are read by nested calls: SQLite has a limit."""
_WHOLE = {"Y": ("year", 4), "y": ("short", 2), "m": ("month", 2), "d": ("day", 2), "j": ("yearday", 3), "f": ("", 9)}
_WHOLE |= {"H": ("hour", 2), "I": ("twelve", 2), "M": ("minute", 2), "S": ("second", 2)}
"""The whole numbers of a date by their codes, with the digits that they have at most."""
_NAMES = {"a": ("named", DAYS), "b": ("month", MONTHS)}
_DAYS_FROM_MARCH = (31, 30, 31, 30, 31, 31, 30, 31, 30)
_DIGITS, _PRINTED = "'0123456789'", "".join(map(chr, range(33, 127)))


def sql(document: Document, table: str) -> str:
    """Return the query of a `document` for the rows of `table`. Raises `ConfigError` for a path in nested JSON."""
    inputs = document["inputs"]
    columns = [c for c in document["columns"] if c["kind"] != "product"]
    products = [c for c in document["columns"] if c["kind"] == "product"]
    ranges = document["ranges"] or [(None, None)] * len(document["columns"])
    cut = [f"c{j}" if low is None else _clip(f"c{j}", low, high) for j, (low, high) in enumerate(ranges)]
    scores = [
        [_number(output["intercept"]), *(f"{_number(w)} * {x}" for w, x in zip(output["weights"], cut, strict=True))]
        for output in document["outputs"]
    ]
    more, shown = _shown(document)
    _check_lengths([*{str(given["column"]) for given in inputs}, *(name for name, _ in shown)])
    dates = [_date(given, k) for k, given in enumerate(inputs) if given["type"] == "date"]
    layers = [
        *([expression for layer in layers for expression in layer] for layers in zip_longest(*dates, fillvalue=[])),
        [f"{_value(given, k)} AS v{k}" for k, given in enumerate(inputs)],
        [f"{_column(c)} AS c{j}" for j, c in enumerate(columns)],
        [" * ".join(f"c{k}" for k in c["columns"]) + f" AS c{len(columns) + j}" for j, c in enumerate(products)],
        [f"{' + '.join(terms)} AS s{k}" for k, terms in enumerate(scores)],
        *more,
    ]
    steps = list[str]()
    for expressions in filter(None, layers):
        rest = f"FROM q{len(steps) - 1} " if steps else ""
        steps.append("SELECT\n  " + ",\n  ".join(["*"] * bool(steps) + expressions) + f"\n{rest}{_ONCE}")
    read = ",\n".join(f"q{k} AS ({step})" for k, step in enumerate(steps))
    fits = " AND ".join(f"v{k} IS NOT NULL" for k in range(len(inputs)))
    last = f"FROM q{len(steps) - 1} WHERE {fits}"
    added = [f"(WITH {read}\nSELECT {found} {last}) AS {_name(name)}" for name, found in shown]
    comment = "".join(f"-- {line}\n" for line in document["statement"].splitlines())
    return f"{comment}SELECT r.*,\n" + ",\n".join(added) + f"\nFROM {table} AS r;\n"


def _check_lengths(names: list[str]) -> None:
    """Raise `ConfigError` for names that PostgreSQL cuts to one: it reads so many bytes of each."""
    cut = [name.encode()[:LONGEST_NAME] for name in names]
    if same := [name for name, short in zip(names, cut, strict=True) if cut.count(short) > 1]:
        raise ConfigError(
            f"export: {same[0]!r} and another name are one in PostgreSQL, which reads {LONGEST_NAME} bytes of each: "
            "choose shorter names of columns and classes"
        )


def _shown(document: Document) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """What is computed of the scores, layer by layer, and the columns that are added, each with its expression."""
    classes = document["classes"]
    if classes is None:
        found = "s0" if document["cut"] is None else _clip("s0", *document["cut"])
        found = f"exp({found})" if document["link"] == "log" else found
        return [], [(PREDICTION, f"{found} * {_number(document['scale'])}")]
    labels = [_text(str(label)) for label in classes]
    several = range(len(document["outputs"]))
    if len(several) == 1:
        chosen = _case([("p > 0", labels[1])], labels[0])
        layers = [[f"{_moderated(document)} AS p"], [f"1 / (1 + exp(-{_clip('p', -700, 700)})) AS p1"]]
        shares = ["1 - p1", "p1"]
    else:
        best = [" AND ".join(f"s{k} >= s{i}" for i in several if i != k) for k in several]
        chosen = _case(zip(best, labels, strict=True))
        least = _number(math.exp(-700))
        powers = [f"{_case([(f's{k} - p > -700', f'exp(s{k} - p)')], least)} AS p{k}" for k in several]
        layers = [[f"{_case((b, f's{k}') for k, b in enumerate(best))} AS p"], powers]
        shares = [f"p{k} / ({' + '.join(f'p{i}' for i in several)})" for k in several]
    names = [f"{SHARE}{label}" for label in classes] if document["probabilities"] else []
    return layers if names else layers[: len(several) == 1], [(PREDICTION, chosen), *zip(names, shares, strict=False)]


def _case(branches: Iterable[tuple[str, object]], other: object = "NULL") -> str:
    return " ".join(["CASE", *(f"WHEN {condition} THEN {found}" for condition, found in branches), f"ELSE {other} END"])


def _moderated(document: Document) -> str:
    noise = document["moderation"]
    if noise is None:
        return "s0"
    units = zip(noise["centres"], noise["scales"], strict=True)
    squares = [f"power((c{j} - {_number(c)}) / {_number(s)}, 2)" for j, (c, s) in enumerate(units)]
    factor = math.pi / 8 * noise["variance"]
    odds, square = _number(noise["odds"]), " + ".join([_number(noise["constant"]), *squares])
    return f"{odds} + (s0 - {odds}) / sqrt(1 + {_number(factor)} * ({square}))"


def _value(given: Document, k: int) -> str:
    """The value of input `k`; null if it does not fit."""
    column, text = _read(given)
    missing = "NULL" if given.get("missing") is None else _number(given["missing"])
    nothing = [f"{column} IS NULL", f"{text} = ''", *(f"trim({text}) = {_text(blank)}" for blank in given["blanks"])]
    gap = (" OR ".join(nothing), missing)
    other = "NULL" if given.get("other") is None else given["other"]
    if given["type"] == "category":
        return _case([gap, *((f"{text} = {_text(t)}", code) for t, code in given["codes"].items())], other)
    if given["type"] == "date":
        named = [(f"w{k} = {number}", code) for number, code in (given["codes"] or {}).items()]
        return _case([gap, *named, (f"w{k} IS NOT NULL", f"w{k}" if given["codes"] is None else other)])
    if given["type"] == "hash":
        raise ConfigError(f"export: {given['name']!r} is hashed, which SQL cannot do; use python, mlflow or json")
    number = f"CAST({column} AS double precision)"  # a table has decimals as numbers, and no base64
    values = [gap, (f"{_is_number(column)} AND abs({number}) <= {_number(sys.float_info.max)}", number)]
    if missing != "NULL":  # NaN is a gap, and an infinity is not: PostgreSQL says that NaN is more
        values.append((f"{number} > {_number(sys.float_info.max)} AND 1 / {number} > 0", missing))
    return _case(values)


def _read(given: Mapping[str, object]) -> tuple[str, str]:
    """The column of an input, and its values as texts."""
    if "." in str(given["column"]):
        raise ConfigError(
            f"export: {given['column']!r} is a path in nested JSON, and no column of a table; use python or json"
        )
    column = f"r.{_name(str(given['column']))}"
    return column, f"CAST({column} AS varchar)"


def _is_number(column: str) -> str:
    """Whether the values are numbers: SQLite has texts in columns of numbers, and reads them as 0."""
    return f"{column} = CAST({column} AS double precision)"


def _date(given: Document, k: int) -> list[list[str]]:
    """What is computed of date `k`, in layers. The last one is its part, w; null for a text that is no date."""
    column, text = _read(given)
    form, part = given["format"], given["part"]
    if form in EPOCHS:
        seconds = f"floor(CAST({column} AS double precision) * {_number(EPOCHS[form] / 1e6)})"
        first, end = (_number(year / EPOCHS[form]) for year in YEARS)
        fits = f"{_is_number(column)} AND {column} >= {first} AND {column} < {end}"
        names = [f"{_case([(fits, seconds)])} AS t{k}", f"floor(t{k} / 86400) AS g{k}", f"t{k} - g{k} * 86400 AS u{k}"]
        return [*([name] for name in names), [f"{_of_moment(part, f'g{k}', f'u{k}')} AS w{k}"]]
    read, fits, rests = _iso(f"t{k}", f"r{k}", part) if form is None else _pieces(form, f"t{k}", f"r{k}")
    numbers = [f"{_case([(f'g{k} = 1', f'CAST({piece} AS integer)')])} AS {name}{k}" for name, piece in read.items()]
    found = _of_numbers(part, {name: f"{name}{k}" for name in read})
    return [[f"trim({text}) AS t{k}"], *rests, [f"{_case([(fits, 1)])} AS g{k}"], numbers, [f"{found} AS w{k}"]]


def _iso(text: str, name: str, part: str) -> tuple[dict[str, str], str, list[list[str]]]:
    """As `_pieces`, of a text in ISO 8601; of the time of day, what follows its minutes is not read."""
    day = {"year": f"substr({text}, 1, 4)", "month": f"substr({text}, 6, 2)", "day": f"substr({text}, 9, 2)"}
    fits = [_is_digits(piece, 2 + 2 * (name == "year")) for name, piece in day.items()]
    fits += [f"substr({text}, 5, 1) = '-'", f"substr({text}, 8, 1) = '-'", f"substr({text}, 11, 1) IN ('', 'T', ' ')"]
    dated, clock, rest = " AND ".join(fits), f"{name}_0", f"{name}_1"
    seconds = f"substr({clock}, 6, 1) = ':' AND {_is_digits(f'substr({clock}, 7, 2)', 2)}"
    fraction = f"{seconds} AND substr({clock}, 9, 1) IN ('.', ',') AND {_is_digits(f'substr({clock}, 10, 1)', 1)}"
    ends = [(fraction, f"ltrim(substr({clock}, 10), {_DIGITS})"), (seconds, f"substr({clock}, 9)")]
    left = _case(ends, f"substr({clock}, 6)")
    rests = [[f"substr({text}, {_case([(dated, 12)], 1)}) AS {clock}"], [f"{left} AS {rest}"]]
    colon = f"substr({rest}, 4, 1) = ':'"
    minutes = _is_digits(f"substr({rest}, {_case([(colon, 5)], 4)})", 2)
    hours = f"substr({rest}, 1, 1) IN ('+', '-') AND {_is_digits(f'substr({rest}, 2, 2)', 2)}"
    zone = f"({rest} IN ('', 'Z') OR {hours} AND (length({rest}) = 3 OR {minutes}))"
    read = {"hour": f"substr({clock}, 1, 2)", "minute": f"substr({clock}, 4, 2)"}
    clocked = " AND ".join([*(_is_digits(piece, 2) for piece in read.values()), f"substr({clock}, 3, 1) = ':'", zone])
    if part in read:
        return read, clocked, rests
    return day, f"{dated} AND (length({text}) = 10 OR {clocked})", rests


def _is_digits(piece: str, *lengths: int) -> str:
    return f"length({piece}) IN ({', '.join(map(str, lengths))}) AND trim({piece}, {_DIGITS}) = ''"


def _pieces(form: str, rest: str, name: str) -> tuple[dict[str, str], str, list[list[str]]]:
    """As `_iso`, of a text in a `form` of `strftime`: each piece begins the `rest` that the earlier ones leave.

    What some of them leave has a `name` of its own, in a layer.
    """
    read, fits, rests, nested = dict[str, str](), [], list[list[str]](), 0
    tokens = re.findall(r"%([.#]?[0-9]?.)|(\s+)|([^%\s]+)", form)
    for at, (code, space, mark) in enumerate(tokens):
        if nested >= _NESTED:
            rests.append([f"{rest} AS {name}_{at}"])
            rest, nested = f"{name}_{at}", 0
        if code in _WHOLE:
            rest, nested = (f"ltrim({rest})", nested + 2) if at and not tokens[at - 1][1] else (rest, nested + 1)
            (key, width), after = _WHOLE[code], f"ltrim({rest}, {_DIGITS})"
            fixed = (tokens[at + 1][0] if at + 1 < len(tokens) else "") in (*_WHOLE, "3f", "6f", "9f")
            piece = f"substr({rest}, 1, {width if fixed else f'length({rest}) - length({after})'})"
            fits.append(_is_digits(piece, *([width] if fixed else range(1, width + 1))))
            rest = f"substr({rest}, {width + 1})" if fixed else after
            read |= {key: piece} if key else {}
            continue
        if space:
            rest = f"ltrim({rest})"
        elif mark or code == "%":
            fits.append(f"substr({rest}, 1, {len(mark or code)}) = {_text(mark or code)}")
            rest = f"substr({rest}, {len(mark or code) + 1})"
        elif code == "p":
            fits.append(f"upper(substr({rest}, 1, 2)) IN ('AM', 'PM')")
            read["half"], rest = _case([(f"upper(substr({rest}, 1, 2)) = 'PM'", "'12'")], "'0'"), f"substr({rest}, 3)"
        elif code == "Z":
            rest = f"ltrim({rest}, {_text(_PRINTED)})"
        else:
            found, piece, rest = _named(code, rest) if code in "aAbB" else _skipped(code, rest)
            fits.append(found)
            read |= {_NAMES[code.lower()][0]: piece} if piece else {}
            nested += _NESTED
        nested += 1
    return read, " AND ".join([*fits, f"{rest} = ''"]), rests


def _named(code: str, rest: str) -> tuple[str, str, str]:
    """Whether a name of a month or weekday begins the `rest`, its number, and what it leaves."""
    names = [name.upper() for name in _NAMES[code.lower()][1]]
    begins = f"upper(substr({rest}, 1, 3))"
    whole = [(f"upper(substr({rest}, 1, {len(name)})) = '{name}'", len(name) + 1) for name in names]
    number = _case((f"{begins} = '{name[:3]}'", f"'{i}'") for i, name in enumerate(names, 1))
    fits = f"{begins} IN ({', '.join(_text(name[:3]) for name in names)})"
    return fits, number, f"substr({rest}, {_case(whole, 4) if code in 'AB' else 4})"


def _skipped(code: str, rest: str) -> tuple[str, str, str]:
    """Whether an offset from UTC or a fraction of a second begins the `rest`, no number, and what it leaves."""
    if code.endswith("z"):
        colon = f"substr({rest}, 4, 1) = ':'"
        after = f"substr({rest}, {_case([(colon, 5)], 4)})"
        hours, minutes = f"substr({rest}, 2, 2)", f"substr({after}, 1, 2)"
        sign = f"substr({rest}, 1, 1) IN ('+', '-') AND {_is_digits(hours, 2)} AND {hours} < '24'"
        whole = f"{_is_digits(minutes, 2)} AND {minutes} < '60'"
        left = f"substr({after}, 3)"
        if code == "z":
            return f"{sign} AND {whole}", "", left
        utc = f"upper(substr({rest}, 1, 1)) = 'Z'"
        return f"({utc} OR {sign})", "", _case([(utc, f"substr({rest}, 2)"), (whole, left)], after)
    digits = int(code[-2]) if code[-2].isdigit() else None
    begun = f"substr({rest}, 2)" if code[0] == "." else rest
    if digits is None:
        fits, left = f"length(ltrim({begun}, {_DIGITS})) < length({begun})", f"ltrim({begun}, {_DIGITS})"
    else:
        fits, left = _is_digits(f"substr({begun}, 1, {digits})", digits), f"substr({begun}, {digits + 1})"
    if code[0] != ".":
        return fits, "", left
    point = f"substr({rest}, 1, 1) = '.'"
    return f"({point} AND {fits} OR NOT {point})", "", _case([(point, left)], rest)


def _of_numbers(part: str, read: Mapping[str, str]) -> str:
    """A part of the date and time that whole numbers are; null if there is no such date or time."""
    short = read.get("short", "70")
    year = read.get("year", f"({short} + {_case([(f'{short} < 70', 2000)], 1900)})")
    month, day = read.get("month", "1"), read.get("day", "1")
    hour = read.get("hour", f"({read.get('twelve', '0')} % 12 + {read.get('half', '0')})")
    leap = f"{year} % 4 = 0 AND ({year} % 100 <> 0 OR {year} % 400 = 0)"
    last = _case([(f"{month} IN (4, 6, 9, 11)", 30), (f"{month} <> 2", 31), (leap, 29)], 28)
    ends = {"month": (1, 12), "day": (1, last), "hour": (0, 23), "twelve": (1, 12), "minute": (0, 59)}
    ends |= {"year": (1, 9999), "second": (0, 59), "yearday": (1, f"365 + {_case([(leap, 1)], 0)}")}
    fits = [f"{name} BETWEEN {ends[key][0]} AND {ends[key][1]}" for key, name in read.items() if key in ends]
    if "yearday" in read:
        weekday = _weekday(f"({_until(f'({year} - 1)')} + {read['yearday']} - 1)")
        month, day = _of_yearday(read["yearday"], leap)
    else:
        since = f"({year} - {_case([(f'{month} < 3', 1)], 0)})"  # years begin in March
        weekday = _weekday(f"({_until(since)} + floor((153 * (({month} + 9) % 12) + 2) / 5.0) + {day} + 1)")
    if "named" in read and read.keys() & {"day", "yearday"}:
        fits.append(f"{read['named']} = {weekday}")
    found = {"year": year, "month": month, "day": day, "weekday": weekday, "hour": hour}
    found["minute"] = read.get("minute", "0")
    number = f"CAST({found[part]} AS double precision)"
    return _case([(" AND ".join(fits), number)]) if fits else number


def _until(years: str) -> str:
    """How many days so many years have."""
    return f"365 * {years} + floor({years} / 4.0) - floor({years} / 100.0) + floor({years} / 400.0)"


def _of_yearday(yearday: str, leap: str) -> tuple[str, str]:
    """The month and its day that a day of the year is."""
    before = [0, 31, *(f"({days} + {_case([(leap, 1)], 0)})" for days in accumulate(_DAYS_FROM_MARCH, initial=59))]
    later = [(f"{yearday} > {before[k]}", k) for k in range(11, 0, -1)]
    month = _case(((condition, k + 1) for condition, k in later), 1)
    return month, f"{yearday} - {_case(((condition, before[k]) for condition, k in later), 0)}"


def _of_moment(part: str, days: str, second: str) -> str:
    """A part of a moment: whole `days` since 1970, and a second of the day."""
    if part == "weekday":
        return _weekday(f"({days} + 3)")
    if part == "hour":
        return f"floor({second} / 3600)"
    if part == "minute":
        return f"floor({second} / 60) - 60 * floor({second} / 3600)"
    era = f"floor(({days} + 719468) / 146097)"  # of 400 years, which begin in March; as Hinnant's civil_from_days
    day = f"({days} + 719468 - 146097 * {era})"
    year = f"floor(({day} - floor({day} / 1460) + floor({day} / 36524) - floor({day} / 146096)) / 365)"
    day = f"({day} - 365 * {year} - floor({year} / 4) + floor({year} / 100))"
    month = f"floor((5 * {day} + 2) / 153)"
    if part == "year":
        return f"{year} + 400 * {era} + {_case([(f'{day} >= 306', 1)], 0)}"
    return (
        f"{month} + {_case([(f'{month} < 10', 3)], -9)}"
        if part == "month"
        else f"{day} - floor((153 * {month} + 2) / 5) + 1"
    )


def _weekday(days: str) -> str:
    return f"{days} - 7 * floor({days} / 7.0) + 1"


def _column(column: Document) -> str:
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
    return _case(
        [(f"{expression} < {_number(low)}", _number(low)), (f"{expression} > {_number(high)}", _number(high))],
        expression,
    )


def _number(value: float) -> str:
    """A number as a double: without the cast, PostgreSQL computes with decimals."""
    return f"CAST({float(value)!r} AS double precision)"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
