"""Predicts with an exported model. This file needs the standard library only; `streamdp export --to python` copies it.

`predict(record)` takes a mapping of raw columns and returns the prediction, `probabilities(record)` the probability of
each class. Both return None for a record that does not fit the schema.
"""

import datetime
import math
import re
from typing import Any

MONTHS: tuple[str, ...] = ("January", "February", "March", "April", "May", "June")
MONTHS += ("July", "August", "September", "October", "November", "December")
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
    score, noise = scores[0], model["moderation"]
    if noise is not None:
        units = zip(columns, noise["centres"], noise["scales"], strict=True)
        square = noise["constant"] + sum(((x - centre) / scale) ** 2 for x, centre, scale in units)
        score /= math.sqrt(1 + math.pi / 8 * noise["variance"] * square)
    second = 1 / (1 + math.exp(-min(max(score, -700.0), 700.0)))
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
    return [
        output["intercept"] + sum(weight * x for weight, x in zip(output["weights"], columns, strict=True))
        for output in model["outputs"]
    ]


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
    text = "" if raw is None or raw != raw else str(raw).lower() if isinstance(raw, bool) else str(raw)
    if text.strip() in given["blanks"]:
        text = ""
    if given["type"] == "category":
        return given["missing"] if text == "" else given["codes"].get(text, given["other"])
    if given["type"] == "hash":
        found = 2166136261
        for byte in text.encode(errors="surrogatepass"):
            found = (found ^ byte) * 16777619 & 0xFFFFFFFF
        return None if text == "" else found % given["buckets"]
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
    return number if math.isfinite(number) and "_" not in text else None


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
    if "%b" in form or "%B" in form:  # English, whatever the language of the machine
        for number, name in enumerate(MONTHS, 1):
            ending = f"(?:{name[3:]})?" if "%B" in form else ""
            text = re.sub(name[:3] + ending, f"\0{number}\0", text, flags=re.IGNORECASE)
        form = re.sub("%[bB]", "\0%m\0", form)
    try:
        if form in units:
            passed = datetime.timedelta(microseconds=math.floor(float(text) * units[form]))
            return (datetime.datetime(1970, 1, 1) + passed).isoformat()
        found = datetime.datetime.strptime(text, form)
        if "%y" in form and found.year == 1969:  # 69 is 2069, as streamdp reads it
            found = found.replace(year=2069)
        return found.isoformat()
    except (ValueError, OverflowError):
        return ""


def _part(text: str, part: str) -> int | None:
    try:
        if part in ("hour", "minute"):
            clock = datetime.time.fromisoformat(text[11:] if text[4:5] == "-" else text)
            return clock.hour if part == "hour" else clock.minute
        date = datetime.date.fromisoformat(text[:10])
        return date.isoweekday() if part == "weekday" else int(getattr(date, part))
    except ValueError:
        return None
