"""The draft of a `job.yaml` for a data file or a topic: its columns with their types, and places to fill in.

A draft holds names and types of columns, and no value. Values are copied only from data that were declared public.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import polars as pl

from connectors.textform import TextForm
from streamdp.config.file import stem
from streamdp.config.trust import ANSWERS, NEED_DELTA, QUESTION, Trust, usual_trust
from streamdp.data.notation import Notation
from streamdp.errors import ConfigError, suggestion

Kind = Literal["number", "boolean", "date", "text"]

MOST_CATEGORIES = 30
"""A text column of public data with more values becomes a comment."""

GAPS = frozenset(("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"))
"""Texts that often mean a missing value."""

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:$|[T ])"
_DAYS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
_CLOCKS = ("", " %H:%M", " %H:%M:%S")
_COMMAS = r"^[-+]?[0-9]{1,3}(?:(?:[.' ]?[0-9]{3})*(?:,[0-9]+)?|(?:,[0-9]{3})+(?:[.][0-9]+)?)$"
_BOOLEANS = frozenset(("false", "true"))


@dataclass(frozen=True)
class DraftColumn:
    """A column of the data."""

    name: str
    values: pl.Series  # as text, null for an empty one

    @property
    def present(self) -> pl.Series:
        """The values that are not missing."""
        return self.values.filter(~self.values.fill_null("").is_in(["", *GAPS]))

    @property
    def gaps(self) -> list[str]:
        """The texts among its values that often mean a missing value."""
        return sorted(GAPS & set(self.values.unique().to_list()))

    @property
    def has_commas(self) -> bool:
        """Whether all values are numbers with a decimal comma or groups of thousands, which are read as text."""
        values = self.present.str.strip_chars()
        return bool(len(values)) and values.str.contains(_COMMAS).all() and values.str.contains(",", literal=True).any()

    @cached_property
    def formats(self) -> list[str]:
        """The formats of `strftime` that fit all values; none for ISO 8601, which needs no format."""
        values = self.present.str.strip_chars()
        if not values.head(1).str.contains(r"^[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}(?: |$)").any():
            return []
        read = {f"{days}{clock}": pl.Datetime if clock else pl.Date for days in _DAYS for clock in _CLOCKS}
        return [form for form, kind in read.items() if not values.str.strptime(kind, form, strict=False).has_nulls()]

    @property
    def has_gaps(self) -> bool:
        """Whether values are missing."""
        return len(self.present) < len(self.values)

    @property
    def kind(self) -> Kind:
        """The type that all values have."""
        if not len(self.present):
            return "text"
        if self.present.str.strip_chars().cast(pl.Float64, strict=False).is_finite().fill_null(False).all():
            return "number"
        if set(self.present.str.to_lowercase().unique().to_list()) <= _BOOLEANS:
            return "boolean"
        if self.present.str.contains(_DATE).all() or self.formats:
            return "date"
        return "text"


def plain_numbers(columns: Sequence[DraftColumn]) -> tuple[list[DraftColumn], str, str | None] | None:
    """Return the columns with numbers as Python writes them, the decimal mark of the data, and that of thousands.

    None if no column has commas in numbers, or if more than one reading fits, as for 1,234.
    """
    asked = [column for column in columns if column.has_commas or column.kind == "number"]
    if not any(column.has_commas for column in asked):
        return None
    found = []
    for decimal, thousands in ((".", ","), (",", None), (",", "."), (",", " "), (",", "'")):
        groups = rf"[0-9]{{1,3}}(?:[{thousands}][0-9]{{3}})+|" if thousands else ""
        fits = rf"^[-+]?(?:{groups}[0-9]+)(?:[{decimal}][0-9]+)?$"
        if all(column.present.str.strip_chars().str.contains(fits).all() for column in asked):
            found.append((decimal, thousands))
    if not found or found[0] == (".", ",") != found[-1]:
        return None
    decimal, thousands = found[0]
    notation = Notation(decimal, thousands)

    def plain(column: DraftColumn) -> DraftColumn:
        return replace(column, values=notation.usual(column.values)) if any(column is c for c in asked) else column

    return [plain(column) for column in columns], decimal, thousands


def may_lack_header(columns: Sequence[DraftColumn]) -> bool:
    """Whether the name of a column is a number, so that the names may be the values of a record."""
    return any(re.fullmatch(r"[-+]?[0-9]*[.]?[0-9]+", column.name.strip()) for column in columns)


def draft(
    columns: Sequence[DraftColumn],
    source: Mapping[str, str],
    *,
    target: str | None = None,
    subject: str | None = None,
    delimiter: str = ",",
    form: TextForm | None = None,
    public: bool = False,
    trust: Trust | None = None,
    items_per_user: int | None = None,
) -> str:
    """Return the text of a `job.yaml`.

    `source` has the type, and the topic, or the path from the folder of the job. Without a `target` column there is a
    place to fill in, and without a `subject` column a comment. `delimiter` separates the fields of a CSV file, and
    `form` is that of its text. Bounds and categories are copied from `public` data only. `trust` is the usual one of a
    file if it is None, and `items_per_user` the most records of a person. Raises `ConfigError` if target or subject is
    no column.
    """
    by_name = {column.name: column for column in columns}
    for option, name in (("--target", target), ("--subject", subject)):
        if name is not None and name not in by_name:
            hint = "; does the data begin with a line of column names?"
            hint = hint if may_lack_header(columns) else suggestion(name, by_name)
            raise ConfigError(f"{option}: the data have no column {name!r}{hint}")
    if target is not None and target == subject:
        raise ConfigError("--subject: expected another column than --target")
    plain, decimal, thousands = (plain_numbers(columns) if "path" in source else None) or (columns, ".", None)
    by_name = {column.name: column for column in plain}
    place = source.get("topic") or source["path"]
    name = place if "topic" in source else stem(place)
    checks = "reads the data, learns nothing and spends nothing" if "path" in source else "names the empty places"
    lines = [*_head(place, public, checks), f"job: {text(name)}", "source:"]
    lines += [f"  {key}: {text(value)}" for key, value in source.items()]
    if "topic" in source:
        lines.append("  subject_from: value  # or key, if the messages' keys say whose records they are")
    lines += _form(delimiter, form)
    if plain is not columns:
        lines.append(f"  decimal: {json.dumps(decimal)}  # as numbers are written")
    if thousands is not None:
        lines.append(f"  thousands: {json.dumps(thousands)}")
    lines += ["schema:", "  features:  # delete the lines of columns that the model need not know"]
    for column in plain:
        if column.name not in (target, subject):
            lines += [f"    {line}" for line in _feature(column, public)]
    if gaps := sorted({gap for column in columns for gap in column.gaps}):
        lines.append(f"  missing_values: {_listed(gaps)}  # texts that mean a missing value")
    lines += ["  target:", *_target(None if target is None else by_name[target], public)]
    named = "  # subject: COLUMN  # who a record is about. Name it if people have several records, and set cap below."
    named += "\n  # trust: window learns up to items_per_user records of a person, batches one in each batch."
    lines.append(named if subject is None else f"  subject: {text(subject)}")
    lines += _model(trust or usual_trust({"source": source}), items_per_user)
    return "\n".join(lines) + "\n"


def text(value: str) -> str:
    """Write a `value` as YAML, with quotes only if it needs them."""
    plain = re.fullmatch(r"[^\W\d][\w./]*(?:[ -][\w./]+)*", value)
    words = ("true", "false", "null")
    return value if plain and value.lower() not in words else json.dumps(value, ensure_ascii=False)


def _head(place: str, public: bool, checks: str) -> list[str]:
    if public:
        warning = [
            "# Bounds and categories were copied from the data, because --public declared the data public.",
            "# With private data, replace them by what is known without the data: copied values are not private.",
        ]
    else:
        warning = [
            "# WARNING: bounds and categories must be public facts, such as: a person is 0 to 120 years old.",
            "# Values that are copied from the data are not private, and no privacy statement covers them.",
        ]
    return [
        "# yaml-language-server: $schema=job.schema.json",
        f"# A streamdp job for {json.dumps(place, ensure_ascii=False)}. Fill in the empty places. Then:",
        f"#   streamdp check JOB.YAML   {checks}",
        "#   streamdp run JOB.YAML     learns",
        "#   streamdp schema > job.schema.json   helps editors that know YAML schemas",
        "#",
        *warning,
    ]


def _form(delimiter: str, form: TextForm | None) -> list[str]:
    lines = []
    if delimiter != ",":
        lines.append(f"  delimiter: {json.dumps(delimiter)}")
    if form is not None and form.encoding is not None:
        lines.append(f"  encoding: {form.encoding}  # as the first bytes look")
    if form is not None and form.comment is not None:
        lines.append(f"  comment: {json.dumps(form.comment)}  # lines that begin with it are passed over")
    return lines


def _feature(column: DraftColumn, public: bool) -> list[str]:
    name, kind, gaps = text(column.name), column.kind, column.has_gaps
    if kind == "boolean":
        return [_line(name, "[false, true]", "categories", "category" if gaps else None)]
    if kind == "date":
        form, *others = column.formats or [""]
        written = f"format: {json.dumps(form)}, " if form else ""
        hour, place = text(f"{column.name} hour"), f"{{column: {text(column.name)}, {written}part:"
        clock = column.present.str.contains(":").any()
        days = "categories: [Mon, Tue, Wed, Thu, Fri, Sat, Sun]"
        more = "".join(f"; format: {json.dumps(other)} fits, too" for other in others)
        return [
            f"{text(f'{column.name} weekday')}: {place} weekday, {days}}}"
            f"  # or part: year, month, day, with bounds{more}",
            *([f"{hour}: {place} hour, bounds: [0, 23]}}"] if clock else []),
        ]
    if kind == "number":
        if public:
            return [_line(name, _bounds(column), "bounds", "zero" if gaps else None)]
        note = "a number: write bounds, such as [0, 100]"
        more = "; values are missing: {bounds: [0, 100], missing: zero}, or the record is left out" if gaps else ""
        return [f"{name}:  # {note}{more}"]
    if not public:
        more = "; values are missing: {categories: [...], missing: category}, or the record is left out" if gaps else ""
        return [f"{name}:  # text: write categories, such as [red, green]; the first is the baseline{more}"]
    categories = _categories(column)
    if not 2 <= len(categories) <= MOST_CATEGORIES:
        return [f"# {name}:  # text with {len(categories):,} values"]
    return [_line(name, _listed(categories), "categories", "category" if gaps else None)]


def _line(name: str, declared: str, key: str, missing: str | None) -> str:
    if missing is None:
        return f"{name}: {declared}"
    return f"{name}: {{{key}: {declared}, missing: {missing}}}  # without missing, records with gaps are left out"


def _bounds(column: DraftColumn) -> str:
    values = column.present.str.strip_chars().cast(pl.Float64).to_numpy()
    low, high = float(values.min()), float(values.max())
    step = 10.0 ** (math.floor(math.log10((high - low) or abs(low) or 1.0)) - 2)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return f"[{low:.12g}, {high if low < high else low + 1:.12g}]"


def _categories(column: DraftColumn) -> list[str]:
    """The values, most frequent first: the first one is the baseline."""
    counted = column.present.value_counts(sort=True)
    return [str(value) for value in counted.get_column(counted.columns[0]).to_list()]


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(json.dumps(value, ensure_ascii=False) for value in values)}]"


def _target(column: DraftColumn | None, public: bool) -> list[str]:
    if column is None:
        return [
            "    column:  # the column to predict, and with it one of:",
            "    # bounds: [0, 100]      a number between public bounds",
            '    # classes: ["a", "b"]   one of these labels',
        ]
    lines = [f"    column: {text(column.name)}"]
    match column.kind, public:
        case "boolean", _:
            return [*lines, "    classes: [false, true]"]
        case "number", True:
            return [*lines, f"    bounds: {_bounds(column)}  # for labels: classes, such as [0, 1]"]
        case "number", False:
            return [
                *lines,
                "    bounds:  # a number: write bounds, such as [0, 100]; for labels: classes, such as [0, 1]",
            ]
        case _, True:
            return [*lines, f"    classes: {_listed(_categories(column))}"]
        case _:
            return [*lines, "    classes:  # text: write the labels, such as [yes, no]"]


def _model(trust: Trust, items_per_user: int | None) -> list[str]:
    items = [] if items_per_user is None else [f"  items_per_user: {items_per_user}  # the most records of a person"]
    return [
        "model:",
        f"  # {QUESTION}",
        *(f"  #   {answer} = {meaning}" for answer, meaning in ANSWERS.items()),
        f"  trust: {trust}",
        *items,
        "  # What a record may spend: nothing that leaves the model is more than e^eps times as likely with a record",
        "  # as with any other in its place. eps=1 is strong (a factor of 2.7), 4 moderate (55), above 8 weak (3,000).",
        "  # A smaller eps needs more records: error falls as 1 / (eps sqrt(records)).",
        "  budget: eps=1",
        *(
            ["validation: {share: 0.1}  # a tenth of the people say privately how good the model is"]
            if trust in NEED_DELTA
            else []
        ),
        "# expected_records: 50000  # about how many there will be, a public number: delta is below its inverse",
        "# cap: eps=10   # what all records of a person may spend together; needs subject",
    ]
