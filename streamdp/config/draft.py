"""The draft of a `job.yaml` for a data file or a topic: what the data settle, and places to fill in.

The data settle how they are written (marks, gaps, dates), and which texts a column has: those that many records share
are listed, for a person to confirm. A draft is therefore not private, and says so. Bounds are copied only from data
that were declared public.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from connectors.textform import TextForm
from streamdp.config.file import stem
from streamdp.config.trust import ANSWERS, NEED_DELTA, QUESTION, loss_of_mean, usual_trust
from streamdp.data.notation import Notation
from streamdp.errors import ConfigError, suggestion
from streamdp.estimators.door import Trust
from streamdp.runtime.defaults import BAD_SHARE

Kind = Literal["number", "boolean", "date", "text"]

MOST_CATEGORIES = 30
"""A text column with more values is hashed, or a comment."""
BUCKETS = 32
"""Into how many buckets such a text is hashed."""
LEAST = 10
"""Texts that fewer records have, or fewer people, are not copied from data that are not public."""

GAPS = frozenset(
    (
        *("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "-", "--", "#N/A", "#NV", "missing"),
        *("k.A.", "n.d.", "nd", "n.b.", "s.o.", "s/d", "н/д", "不明", "なし"),
    )
)
"""Texts that often mean a missing value."""

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:$|[T ])"
_DAYS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d")
_SHORT = ("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y")
_NAMED = ("%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d-%B-%Y", "%d %B %Y", "%B %d, %Y")
_MONTH = r"(?i)(?:^|[ -])(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[ -]"
_UNIT = (
    r"\p{Sc}|[A-Z]{1,2}\$|[%‰°]|°[CF]|Fr\.|kr\.?|zł|Kč|Ft|Rs\.?"
    r"|CHF|EUR|USD|GBP|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|ZAR"
    r"|kg|g|km|m|cm|mm|m²|km²|km/h|mph|kWh|kW|h|min|s|ms|l|ml"
)
_MEASURED = rf"^[+-]?(?:({_UNIT}) ?[+-]?[0-9][0-9.,'’_\s]*|[0-9.,'’_\s]*[0-9] ?({_UNIT}))$"
_OTHER_SIGNS = r"^(?:[−–] ?[0-9].*|\([0-9].*\)|[0-9].*-)$"
_ORDERED = r"^[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}(?:$|[ T])"
_COMPACT = "^(?:19|20)[0-9]{6}$"
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_NOTATIONS = (
    *(Notation("."), Notation(".", ","), Notation(","), Notation(",", ".")),
    *(Notation(",", " "), Notation(",", "'"), Notation(".", " "), Notation(".", "'")),
)
_MISSING = (
    "missing: drop leaves records with a gap out, and they get no prediction; zero reads it as 0, or as the first",
    "category; category makes gaps one of their own; typical reads the centre of typical: [CENTRE, SPREAD].",
)
_BOOLEANS = frozenset(("false", "true"))
_YES = re.compile("y|yes|j|ja|o|oui|s|si|sí|t|true|w|wahr|v|vrai|1|はい|да", re.IGNORECASE)
_NO = re.compile("n|no|nein|non|f|false|falsch|faux|0|いいえ|нет", re.IGNORECASE)
_PEOPLE = (
    r"(?i)(user|person|people|customer|client|kunde|patient|subject|employee|mitarbeiter|student|driver|household"
    r"|utilisateur|abonn|e-?mail|顧客|患者|会員|ユーザ|(^|[^a-z])(id|nr|no)$|(?-i:[a-z]Id)$)"
)
"""Names of columns that say whose a record is."""


@dataclass(frozen=True)
class DraftColumn:
    """A column of the data."""

    name: str
    values: pl.Series  # as text, null for an empty one
    marks: frozenset[str] = frozenset()  # its texts that mean a missing value
    people: pl.Series | None = None  # whose each value is, if that is known
    doubtful: bool = False  # whether its numbers may be read in two ways

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each text occurs that is neither empty nor a mark of a gap, without blanks; most frequent first."""
        counted = self.values.str.strip_chars().alias("text").value_counts()
        counted = counted.sort("count", "text", descending=[True, False])
        known = self.marks | GAPS | {"", None}
        return {text: count for text, count in counted.iter_rows() if text not in known}

    @cached_property
    def holders(self) -> dict[str, int]:
        """How many people have each text, if it is known whose the values are, or else how many records."""
        if self.people is None:
            return self.counts
        each = pl.DataFrame({"text": self.values.str.strip_chars(), "who": self.people}).unique()
        return dict(each.get_column("text").value_counts().iter_rows())

    @cached_property
    def texts(self) -> pl.Series:
        """The distinct texts of `counts`."""
        return pl.Series(list(self.counts), dtype=pl.String)

    @property
    def gaps(self) -> list[str]:
        """The texts among its values that often mean a missing value."""
        return sorted((self.marks | GAPS) & set(self.values.str.strip_chars().unique().to_list()))

    @property
    def missing(self) -> pl.Series:
        """Which of its n values are missing, (n,) bool."""
        texts = self.values.str.strip_chars().fill_null("")
        return texts.is_in(list(self.marks | GAPS | {""}))

    @property
    def drops(self) -> bool:
        """Whether a record without its value is left out, as a draft declares it: numbers, and hours of dates."""
        kind = self.kind
        return self.has_gaps and (kind == "number" or (kind == "date" and self.texts.str.contains(":").any()))

    @property
    def has_gaps(self) -> bool:
        """Whether values are missing."""
        return self.share_of_gaps > 0

    @property
    def share_of_gaps(self) -> float:
        """Which share of the values is missing."""
        return 1 - sum(self.counts.values()) / max(len(self.values), 1)

    def numbers(self, notation: Notation) -> tuple[int, frozenset[str]] | None:
        """How many values are numbers in this notation, and texts that mark gaps; None if it is no column of numbers.

        A few other values may be errors, such as those of a second header or of a line of totals, or are one more mark
        of a gap if the column has many numbers.
        """
        finite = notation.usual(self.texts).cast(pl.Float64, strict=False).is_finite().fill_null(False)
        good = notation.fits(self.texts) & finite
        if not good.any() or self.texts.str.contains("^0[0-9]").any():  # postal codes are no numbers
            return None
        many = int(good.sum()) > MOST_CATEGORIES
        others = {text: self.counts[text] for text in self.texts.filter(~good)}
        words = {text for text in others if self.holders[text] >= LEAST and not re.search("[0-9]", text)}
        marks = words if many and len(words) <= 2 else set()
        wrong = sum(count for text, count in others.items() if text not in marks)
        right = sum(self.counts.values()) - sum(others.values())
        if wrong > 0.02 * right or (not many and any(count >= LEAST for count in others.values())):
            return None
        return right, frozenset(marks)

    @cached_property
    def unit(self) -> str | None:
        """The text beside the numbers of nearly all values, such as % or CHF; None if there is none."""
        found = self.texts.str.extract_groups(_MEASURED).struct
        units: Counter[str] = Counter()
        for text, unit in zip(self.texts, found.field("1").fill_null(found.field("2")), strict=True):
            if unit is not None:
                units[unit] += self.counts[text]
        most = max(units, key=lambda unit: units[unit], default=None)
        return most if most and units[most] >= 0.98 * sum(self.counts.values()) else None

    @cached_property
    def dates(self) -> pl.Series:
        """The distinct texts that may be dates: all but a few without a digit, as in a line of totals."""
        few = {text: n for text, n in self.counts.items() if n < LEAST and not re.search("[0-9]", text)}
        if sum(few.values()) > 0.02 * sum(self.counts.values()):
            return self.texts
        return self.texts.filter(~self.texts.is_in(list(few)))

    @cached_property
    def formats(self) -> list[str]:
        """The formats of `strftime` that fit all `dates`; none for ISO 8601, which needs no format."""
        found = self.dates.str.extract_groups(r"^([0-9]{1,4})[-./][0-9]{1,2}[-./]([0-9]{1,4})(?: |$)").struct
        digits = {found.field(end).str.len_chars().max() for end in ("1", "2")}
        named = self.dates.str.contains(_MONTH).all()
        if not len(self.dates) or (digits == {None} and not named):
            return self._others
        days: Sequence[str] = _DAYS if 4 in digits else _SHORT
        if named:
            years = self.dates.str.contains("[0-9]{4}").all()
            whole = "%B" * (not self.dates.str.contains(r"(?i)(?:^|[ -])[a-z]{3}[ -]").all())
            days = [
                form if years else form.replace("%Y", "%y")
                for form in _NAMED
                if whole in form and (whole or "%b" in form)
            ]
        read = {f"{day}{clock}": pl.Datetime if clock else pl.Date for day in days for clock in _CLOCKS}
        return [
            form for form, kind in read.items() if not self.dates.str.strptime(kind, form, strict=False).has_nulls()
        ]

    @property
    def _others(self) -> list[str]:
        """The formats that fit all `dates` of days without marks, and of times of a day."""
        if self.dates.str.contains(_COMPACT).all():
            return [] if self.dates.str.to_date("%Y%m%d", strict=False).has_nulls() else ["%Y%m%d"]
        return [form for form in _TIMES if not self.dates.str.to_time(form, strict=False).has_nulls()]

    @cached_property
    def kind(self) -> Kind:
        """The type that all values have."""
        if not self.counts:
            return "text"
        if self.formats == ["%Y%m%d"]:
            return "date"
        if self.numbers(_NOTATIONS[0]) is not None:
            return "number"
        if {text.lower() for text in self.counts} <= _BOOLEANS:
            return "boolean"
        if self.dates.str.contains(_DATE).all() or self.formats:
            return "date"
        return "text"

    def shared(self, public: bool) -> list[str]:
        """Its texts that enough people or records have, or all of `public` data; the most frequent one first.

        Of two that are a no and a yes, the no is first: the first one is the baseline.
        """
        found = [text for text in self.counts if public or self.holders[text] >= LEAST]
        if len(found) == 2 and _YES.fullmatch(found[0]) and _NO.fullmatch(found[1]):
            found.reverse()
        return found

    def spelled(self, found: Sequence[str]) -> list[str]:
        """Those of its texts as they are written, with the blanks around them."""
        if self.kind == "boolean":
            return [*found]
        written = self.values.drop_nulls().value_counts(sort=True).get_column(self.values.name)
        forms: dict[str, list[str]] = {}
        for form, text in zip(written, written.str.strip_chars(), strict=True):
            forms.setdefault(text, []).append(form)
        return [form for text in found for form in forms[text]]

    @property
    def names_people(self) -> bool:
        """Whether it looks like whose the records are: by its name, and values that are too many to be categories."""
        return re.search(_PEOPLE, self.name) is not None and len(self.counts) > MOST_CATEGORIES and not self.formats

    @property
    def comes_again(self) -> bool:
        """Whether a tenth of the values or more are there before."""
        return len(self.counts) < 0.9 * sum(self.counts.values())

    @property
    def differs(self) -> bool:
        """Whether nearly each record has its own text."""
        return len(self.counts) > max(0.9 * sum(self.counts.values()), LEAST)


@dataclass(frozen=True)
class Settled:
    """The columns with numbers as Python writes them, and how the file writes them."""

    columns: list[DraftColumn]
    notation: Notation | None = None  # None: as Python does
    doubtful: tuple[str, ...] = ()  # columns of which another reading fits, as of 1,234


def settled(columns: Sequence[DraftColumn], marks: bool = True) -> Settled:
    """Find how the numbers of all `columns` are written. Without `marks`, as Python writes them only."""
    units = tuple(sorted({column.unit for column in columns if column.unit}))
    notations = [replace(notation, units=units) for notation in _NOTATIONS] if marks else [_NOTATIONS[0]]
    by_notation = {notation: [column.numbers(notation) for column in columns] for notation in notations}
    right = {notation: sum(one[0] for one in found if one) for notation, found in by_notation.items()}
    fits = [notation for notation in notations if right[notation] == max(right.values())]
    first, read = fits[0], by_notation[fits[0]]
    doubtful = []
    if first.decimal == "." and any(other.decimal == "," for other in fits):
        doubtful = [
            column.name
            for column, found in zip(columns, read, strict=True)
            if found and _grouped(first.without_units(column.texts), first.thousands or ".")
        ]
    if doubtful and first.thousands is not None:
        found = [replace(column, doubtful=column.name in doubtful) for column in columns]
        return Settled(found, Notation(".", units=units) if units else None, tuple(doubtful))
    plain = [
        column if found is None else replace(column, values=first.usual(column.values), marks=found[1])
        for column, found in zip(columns, read, strict=True)
    ]
    return Settled(plain, None if first == _NOTATIONS[0] else first, tuple(doubtful))


def _grouped(texts: pl.Series, mark: str) -> bool:
    """Whether all numbers with this mark, and some have it, could be groups of three digits."""
    marked = texts.filter(texts.str.contains(mark, literal=True))
    return len(marked) > 0 and bool(marked.str.contains(rf"^[+-]?[1-9][0-9]{{0,2}}[{mark}][0-9]{{3}}$").all())


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
    who = subject or next((column.name for column in columns if column.names_people and column.comes_again), None)
    people = None if who is None else by_name[who].values
    found = settled([replace(column, people=people) for column in columns], source["type"] == "csv")
    by_name = {column.name: column for column in found.columns}
    place = source.get("topic") or source["path"]
    name = place if "topic" in source else stem(place)
    checks = "reads the data, learns nothing and spends nothing" if "path" in source else "names the empty places"
    lines = [*_head(place, public, checks), f"job: {text(name)}", "source:"]
    lines += [f"  {key}: {text(value)}" for key, value in source.items()]
    if "topic" in source:
        lines.append("  subject_from: value  # or key, if the messages' keys say whose records they are")
    lines += _form(delimiter, form, found.notation)
    if "path" in source:
        known = [column for column in found.columns if column.name == target or not _useless(column)]
        lines += _left_out([column for column in known if column.drops or column.name == target])
    lines += ["schema:", "  features:  # delete the lines of columns that the model need not know"]
    features = [column for column in found.columns if column.name not in (target, who)]
    if any(column.has_gaps for column in features):
        lines += [f"    # {meaning}" for meaning in _MISSING]
    for column in features:
        lines += [f"    {line}" for line in _feature(column, public)]
    if gaps := sorted({gap for column in found.columns for gap in column.gaps}):
        lines.append(f"  missing_values: {_listed(gaps)}  # texts that mean a missing value")
    lines += ["  target:", *_target(None if target is None else by_name[target], public)]
    lines += _subject(who, who == subject)
    trust = trust or usual_trust({"source": source})
    lines += _model(trust, items_per_user)
    if target is not None and (loss := _loss(by_name[target], trust)) is not None:
        lines.insert(lines.index("  budget: eps=1") + 1, loss)
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
            f"# NOT PRIVATE: categories and classes here were found in the data, in {LEAST} records or more. Confirm",
            "# each by what is known without the data, or delete it. Write bounds that are public facts, such as: a",
            "# person is 0 to 120 years old. No privacy statement covers what is copied from the data.",
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


def _left_out(columns: Sequence[DraftColumn]) -> list[str]:
    """Allow for the records with a gap in one of these columns, if they are so many that a run would stop."""
    share = float(np.mean(np.any([column.missing.to_numpy() for column in columns], axis=0))) if columns else 0.0
    if share < 0.8 * BAD_SHARE:
        return []
    most = min(math.ceil(120 * share + 2) / 100, 1)
    return [f"  max_bad_share: {most}  # {_percent(share)} % have a gap in a column that drops them; others stop a run"]


def _form(delimiter: str, form: TextForm | None, notation: Notation | None) -> list[str]:
    text, marks = form or TextForm(), notation or Notation(".")
    lines = (
        (delimiter != ",", f"delimiter: {json.dumps(delimiter)}"),
        (text.encoding, f"encoding: {text.encoding}  # as the first bytes look"),
        (text.skip_lines, f"skip_lines: {text.skip_lines}  # the line sep= of Excel, or titles"),
        (text.comment, f"comment: {json.dumps(text.comment)}  # lines that begin with it are passed over"),
        (notation, f"decimal: {json.dumps(marks.decimal)}  # as numbers are written"),
        (marks.thousands, f"thousands: {json.dumps(marks.thousands)}"),
        (marks.units, f"units: {_listed(marks.units)}  # are passed over beside numbers: 12 % is 12"),
    )
    return [f"  {line}" for given, line in lines if given]


def _feature(column: DraftColumn, public: bool) -> list[str]:
    name, kind = text(column.name), column.kind
    if (why := _useless(column)) is not None:
        return [f"# {name}:  # {why}"]
    if kind == "boolean":
        return [_categories(column, ["false", "true"])]
    if kind == "date":
        return _date(column)
    if kind == "number":
        return [_number(column, public)]
    found = column.shared(public)
    few = len(found) <= MOST_CATEGORIES and len(column.counts) <= 2 * MOST_CATEGORIES
    if few and len(found) + column.has_gaps >= 2:
        return [_categories(column, found, other=len(found) < len(column.counts))]
    if len(column.counts) > MOST_CATEGORIES:
        note = f"text with {len(column.counts):,} values"
        if sum(column.counts.values()) < LEAST * len(column.counts):
            return [f"# {name}:  # {note}"]
        return [f"{name}: {{hash: {BUCKETS}}}  # {note}, in {BUCKETS} buckets by their hash; or write categories"]
    if public:
        return [f"# {name}:  # text with {len(column.counts):,} values"]
    more = f"; {_gaps(column)}: add missing: category, or drop" if column.has_gaps else ""
    return [f"{name}:  # text: write categories, such as [red, green]; the first is the baseline{more}"]


def _useless(column: DraftColumn) -> str | None:
    """Why a feature is a comment; None if it is none."""
    if (why := _unread(column)) is not None:
        return why
    if column.names_people or (column.kind == "text" and column.differs):
        return "an id or free text: it says nothing of another record"
    if column.kind == "number" and column.share_of_gaps > 0.5:
        return f"a number; {_gaps(column)}: write bounds and missing: typical or zero, or most records are left out"
    if len(column.values) >= LEAST and len(column.counts) + column.has_gaps < 2:
        return "the same in all records that were looked at"
    return None


def _unread(column: DraftColumn) -> str | None:
    """Why a column of texts may be numbers or dates that are not read; None if it is none."""
    texts = column.texts
    if column.doubtful:
        return "numbers of which nothing shows whether 1,234 is 1.234: set source.decimal or source.thousands"
    if len(texts) and texts.str.contains(_MEASURED).all():
        return "numbers with %, $ or the like, which are not read: write them without"
    numbers = texts.filter(~texts.str.contains(_OTHER_SIGNS))
    if len(numbers) < len(texts) and numbers.str.contains(r"^[0-9][0-9.,'’_\s]*$").all():
        return "numbers with signs that are not read: write -12 for −12, (12) and 12-"
    if column.kind == "text" and len(column.dates) and column.dates.str.contains(_ORDERED).all():
        return "dates in several formats, of which one may be declared: write them in one"
    return None


def _gaps(column: DraftColumn) -> str:
    return f"{_percent(column.share_of_gaps)} % are missing"


def _percent(share: float) -> str:
    return f"{float(f'{max(100 * share, 0.1):.2g}'):g}"


def _date(column: DraftColumn) -> list[str]:
    form, *others = column.formats or [""]
    written = f"format: {json.dumps(form)}, " if form else ""
    hour, place = text(f"{column.name} hour"), f"{{column: {text(column.name)}, {written}part:"
    days = "categories: [Mon, Tue, Wed, Thu, Fri, Sat, Sun]" + (", missing: category" if column.has_gaps else "")
    more = "".join(f"; format: {json.dumps(other)} fits, too" for other in others)
    lines = [
        f"{text(f'{column.name} weekday')}: {place} weekday, {days}}}  # or part: year, month, day, with bounds{more}"
    ]
    lines = [] if form in _TIMES else lines
    return [*lines, f"{hour}: {place} hour, bounds: [0, 23]}}"] if column.texts.str.contains(":").any() else lines


def _number(column: DraftColumn, public: bool) -> str:
    name = text(column.name)
    flag = set(column.counts) == {"0", "1"}
    bounds = "[0, 1]" if flag else _bounds(column) if public else ""
    write = "" if bounds else "a number: write bounds, such as [0, 100]"
    if not column.has_gaps:
        return f"{name}: {bounds}" if bounds else f"{name}:  # {write}"
    return f"{name}: {{bounds: {bounds}, missing: drop}}  # {write}{'; ' if write else ''}{_gaps(column)}"


def _categories(column: DraftColumn, found: Sequence[str], *, other: bool = False) -> str:
    """The line of a column with categories; `other` if some texts are not among those that were found."""
    listed = "[false, true]" if [*found] == ["false", "true"] else _listed(column.spelled(found))
    keys = [*(["missing: category"] if column.has_gaps else []), *(["other: true"] if other else [])]
    notes = [*([_gaps(column)] if column.has_gaps else []), *(["other texts are one category"] if other else [])]
    notes += _alike(column.spelled(found))
    declared = f"{{categories: {listed}, {', '.join(keys)}}}" if keys else listed
    return f"{text(column.name)}: {declared}" + (f"  # {'; '.join(notes)}" if notes else "")


def _alike(found: Sequence[str]) -> list[str]:
    """What to say of categories that may be one."""
    if len({" ".join(text.split()).casefold() for text in found}) < len(found):
        return ["some differ in case or blanks only, and count apart: make them one in the data"]
    return []


def _loss(column: DraftColumn, trust: Trust) -> str | None:
    """The line of another loss than Huber's, if that learns neither the mean nor the median of a target; else None."""
    if column.kind != "number" or set(column.counts) == {"0", "1"}:
        return None
    values = column.values.str.strip_chars().cast(pl.Float64, strict=False).drop_nulls().to_numpy()
    if (found := loss_of_mean(values, trust)) is None:
        return None
    of_counts = " of counts, whose logarithm is linear" if found[0] == "poisson" else ""
    return f"  loss: {found[0]}  # learns the mean{of_counts}, because {found[1]}"


def _bounds(column: DraftColumn) -> str:
    values = column.texts.cast(pl.Float64, strict=False).drop_nulls().to_numpy()
    low, high = float(values.min()), float(values.max())
    step = 10.0 ** (math.floor(math.log10((high - low) or abs(low) or 1.0)) - 2)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return f"[{low:.12g}, {high if low < high else low + 1:.12g}]"


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
    if column.kind == "boolean":
        return [*lines, "    classes: [false, true]"]
    if column.kind == "number" and set(column.counts) == {"0", "1"}:
        return [*lines, '    classes: ["0", "1"]  # labels; for a number, write bounds: [0, 1] in place of classes']
    if column.kind == "number":
        bounds, example = (_bounds(column), "") if public else ("", "a number: write bounds, such as [0, 100]; ")
        return [*lines, f"    bounds:{bounds and f' {bounds}'}  # {example}for labels: classes, such as [0, 1]"]
    if (why := _unread(column)) is not None:
        return [*lines, f"    bounds:  # {why}"]
    found = column.shared(public)
    if not 2 <= len(found) <= MOST_CATEGORIES:
        many = f" with {len(column.counts):,} values" if len(found) > 1 else ""
        return [*lines, f"    classes:  # text{many}: write the labels, such as [yes, no]"]
    rest, found = len(column.counts) - len(found), column.spelled(found)
    notes = [*([f"{rest:,} other texts are left out"] if rest else []), *_alike(found)]
    return [*lines, f"    classes: {_listed(found)}" + (f"  # {'; '.join(notes)}" if notes else "")]


def _subject(who: str | None, given: bool) -> list[str]:
    if who is None:
        return [
            "  # subject: COLUMN  # who a record is about. Name it if people have several records, and set cap below.",
            "  # trust: window learns up to items_per_user records of a person, batches one in each batch.",
        ]
    again = "" if given else "  # whose the records are: people come again. Without it, each record is a person"
    return [f"  subject: {text(who)}{again}"]


def _model(trust: Trust, items_per_user: int | None) -> list[str]:
    items = [] if items_per_user is None else [f"  items_per_user: {items_per_user}  # the most records of a person"]
    return [
        "model:",
        f"  # {QUESTION}",
        *(f"  #   {answer} = {meaning}" for answer, meaning in ANSWERS.items()),
        f"  trust: {trust}",
        *items,
        "  # What a record may spend: nothing that leaves the model is more than e^eps times as likely with a record",
        "  # as with any other in its place, but for a probability delta, which the statement names. eps=1 is strong",
        "  # (a factor of 2.7), 4 moderate (55), above 8 weak (3,000).",
        "  # A smaller eps needs more records: error falls as 1 / (eps sqrt(records)).",
        "  budget: eps=1",
        *(
            ["validation: {share: 0.1}  # a tenth of the people say how good the model is; check: how many it takes"]
            if trust in NEED_DELTA
            else []
        ),
        "# expected_records: 50000  # about how many there will be, a public number: delta is below its inverse",
        "# cap: eps=10   # what all records of a person may spend together; needs subject",
    ]
