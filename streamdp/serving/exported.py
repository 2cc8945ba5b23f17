"""Predicts with an exported model. This file needs the standard library only; `streamdp export --to python` copies it.

`predict(record)` takes a mapping of raw columns and returns the prediction, `probabilities(record)` the probability of
each class. Both return None for a record that does not fit the schema.
"""

import base64
import datetime
import math
import re
from typing import Any

MONTHS: tuple[str, ...] = ("January", "February", "March", "April", "May", "June")
MONTHS += ("July", "August", "September", "October", "November", "December")
DAYS: tuple[str, ...] = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CODES = dict.fromkeys("ymdHIMS", r"\s*([0-9]{1,2})") | {"Y": r"\s*([0-9]{1,4})", "j": r"\s*([0-9]{1,3})", "%": "%"}
CODES |= {"b": f"({'|'.join(name[:3] for name in MONTHS)})", "a": f"({'|'.join(name[:3] for name in DAYS)})"}
CODES |= {"B": f"({'|'.join(f'{name}|{name[:3]}' for name in MONTHS)})", "p": "(am|pm)", "Z": r"\S*"}
CODES |= {"A": f"({'|'.join(f'{name}|{name[:3]}' for name in DAYS)})", "f": r"\s*[0-9]{1,9}", ".f": r"(?:\.[0-9]+)?"}
CODES |= {f"{n}f": f"[0-9]{{{n}}}" for n in (3, 6, 9)} | {f".{n}f": rf"(?:\.[0-9]{{{n}}})?" for n in (3, 6, 9)}
CODES |= {"z": r"\s*[+-](?:[01][0-9]|2[0-3])\s*:?\s*[0-5][0-9]"}
CODES |= {"#z": r"\s*(?:Z|[+-](?:[01][0-9]|2[0-3])\s*:?\s*(?:[0-5][0-9])?)"}
"""What each code of a format of dates is, without case. They are read one after the other, each as far as it goes."""
CLOCK = r"([0-9]{2}:[0-9]{2})(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
ISO = rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:[T ]{CLOCK})?"
"""A time, and a date with a time or without, in ISO 8601."""
MODEL: dict[str, Any] = {}  # what `streamdp export --to json` writes


def predict(record: Any, model: Any = None) -> Any:
    """Return the prediction for one `record`, a mapping of raw columns: a number or a class; None if it does not fit.

    `model` is the exported document; None: that of this file.
    """
    model = MODEL if model is None else model
    columns = encode(record, model)
    if columns is None:
        return None
    scores = _scores(columns, model)
    if model["classes"] is None:
        found = scores[0] if model["cut"] is None else min(max(scores[0], model["cut"][0]), model["cut"][1])
        return (math.exp(found) if model["link"] == "log" else found) * model["scale"]
    return model["classes"][scores.index(max(scores)) if len(scores) > 1 else int(scores[0] > 0)]


def probabilities(record: Any, model: Any = None) -> dict[Any, float] | None:
    """Return the probability of each class; None if the `record` does not fit, or the `model` has no probabilities."""
    model = MODEL if model is None else model
    columns = encode(record, model)
    if columns is None or not model["probabilities"]:
        return None
    scores = _scores(columns, model)
    if len(scores) > 1:
        top = max(scores)
        shares = [math.exp(score - top) for score in scores]
        return {label: share / sum(shares) for label, share in zip(model["classes"], shares, strict=True)}
    second = 1 / (1 + math.exp(-min(max(scores[0], -700.0), 700.0)))
    return dict(zip(model["classes"], (1 - second, second), strict=True))


def encode(record: Any, model: Any) -> list[float] | None:
    """Return the columns of a `model` for one `record`, cut to their `ranges`; None if the record does not fit."""
    values = [_value(given, record) for given in model["inputs"]]
    if None in values:
        return None
    columns: list[float] = []
    for column in model["columns"]:
        if column["kind"] == "product":
            columns.append(math.prod(columns[k] for k in column["columns"]))
        else:
            columns.append(_column(values[column["input"]], column["kind"], column["constants"], column["ends"]))
    for j, (low, high) in enumerate(model["ranges"] or ()):
        columns[j] = columns[j] if low is None else min(max(columns[j], low), high)
    return columns


def _scores(columns: list[float], model: Any) -> list[float]:
    scores = [
        output["intercept"] + sum(weight * x for weight, x in zip(output["weights"], columns, strict=True))
        for output in model["outputs"]
    ]
    if (noise := model["moderation"]) is None:
        return scores
    units = zip(columns, noise["centres"], noise["scales"], strict=True)
    square = noise["constant"] + sum(((x - centre) / scale) ** 2 for x, centre, scale in units)
    return [noise["odds"] + (scores[0] - noise["odds"]) / math.sqrt(1 + math.pi / 8 * noise["variance"] * square)]


def _column(value: Any, kind: str, constants: list[Any], ends: Any) -> Any:
    if kind == "as it is":
        return value
    if kind == "bin":
        return float(constants[0] <= value and (constants[1] is None or value < constants[1]))
    if kind in ("sin", "cos"):
        return getattr(math, kind)(value % constants[0] * (2 * math.pi / constants[0]))
    if kind in ("level", "bucket"):
        return float(value == constants[0])
    value = min(max(value, constants[0]), constants[1])
    if kind == "log":
        value = math.log(value)
    elif kind == "asinh":
        value = math.asinh(value / constants[2])
    elif kind == "power":
        value = value ** constants[2]
    return min(max((value - ends[0]) / (ends[1] - ends[0]) * 2 - 1, -1.0), 1.0)


def _value(given: Any, record: Any) -> Any:
    """A raw value as a number, or as the code of a category or bucket; None if it does not fit."""
    raw = _raw(record, given["column"])
    text = "" if raw is None or raw != raw else str(raw)
    if text in ("True", "False") and not isinstance(raw, str):  # also of numpy
        text = text.lower()
    if text.strip() in given["blanks"]:
        text = ""
    if given["type"] == "category":
        return given["missing"] if text == "" else given["codes"].get(text, given["other"])
    if given["type"] == "hash":
        found = 2166136261
        for byte in text.encode(errors="surrogatepass"):
            found = (found ^ byte) * 16777619 & 0xFFFFFFFF
        return None if text == "" else found % given["buckets"]
    if given["type"] == "decimal" and text:
        return _decimal(text, given["places"])
    text = text.strip()
    if text == "":
        return given["missing"]
    if given["type"] == "date":
        part = _part(text if given["format"] is None else _iso(text, given["format"]), given["part"])
        return part if given["codes"] is None or part is None else given["codes"].get(str(part), given["other"])
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and text.isascii() and "_" not in text else None


def _decimal(text: str, places: int) -> float | None:
    """A decimal in base64, as Kafka Connect writes it: a whole number as bytes; None if it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    if len(data) > 32 or base64.b64encode(data).decode() != text:
        return None
    return int.from_bytes(data, "big", signed=True) / 10**places


def _raw(record: Any, path: Any) -> Any:
    """The value of a column; with dots in its name, of an object within the record; None if there is none."""
    if path in record or "." not in str(path):
        return record.get(path)
    for key in path.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _iso(text: str, form: str) -> str:
    """A date in a format of its own, or a count since 1970 (UTC), as ISO 8601; "" if it is none."""
    units = {"days": 86_400_000_000, "seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
    try:
        if form in units:
            passed = datetime.timedelta(microseconds=math.floor(float(text) * units[form]))
            return (datetime.datetime(1970, 1, 1) + passed).isoformat()
        found = _pieces(text, form)
        return "" if found is None else _moment(found)
    except (ValueError, OverflowError):
        return ""


def _pieces(text: str, form: str) -> dict[str, str] | None:
    """The pieces of a date in a format of its own by their codes; None if it is none."""
    found: dict[str, str] = {}
    for code, mark in re.findall(r"%([.#]?[0-9]?.)|([^%])", form):
        pattern = CODES[code] if code else r"\s*" if mark.isspace() else re.escape(mark)
        piece = re.match(pattern, text, re.IGNORECASE if code else 0)
        if piece is None:
            return None
        if piece.re.groups:
            found[code.lower() if code in "AB" else code] = piece[1].lower()
        text = text[piece.end() :]
    return None if text else found


def _moment(found: dict[str, str]) -> str:
    """The date and time that pieces say, as ISO 8601. Raises `ValueError` if there is none."""
    number = {code: int(piece) for code, piece in found.items() if piece.isdigit()}
    short = number.get("y", 70)
    year = number.get("Y", short + (2000 if short < 70 else 1900))  # 69 is 2069, as streamdp reads it
    months = [name[:3].lower() for name in MONTHS]
    month = months.index(found["b"][:3]) + 1 if "b" in found else number.get("m", 1)
    date = datetime.date(year, month, number.get("d", 1))
    if "j" in number:
        date = datetime.date(year, 1, 1) + datetime.timedelta(number["j"] - 1)
    dated = "d" in number or "j" in number
    hour = number.get("H", number.get("I", 12) % 12 + 12 * (found.get("p") == "pm"))
    if date.year != year or number.get("I", 1) not in range(1, 13):
        raise ValueError
    if dated and "a" in found and found["a"][:3] != DAYS[date.weekday()][:3].lower():
        raise ValueError
    clock = datetime.time(hour, number.get("M", 0), number.get("S", 0))
    return datetime.datetime.combine(date, clock).isoformat()


def _part(text: str, part: str) -> int | None:
    """The part of a date, or of a time, in ISO 8601; None if it has none."""
    clock = part in ("hour", "minute")
    found = re.fullmatch(ISO, text, re.ASCII) or (re.fullmatch(f"(){CLOCK}", text, re.ASCII) if clock else None)
    if found is None:
        return None
    try:
        if clock:
            return int(getattr(datetime.time.fromisoformat(found[2] or ""), part))
        date = datetime.date.fromisoformat(found[1])
        return date.isoweekday() if part == "weekday" else int(getattr(date, part))
    except ValueError:
        return None
