"""What raw records look like beside their declared schema: counts only, read before anything is learned.

The counts are measured on private records and are not private. They are for the operator, who has the records anyway.
"""

import copy
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from streamdp.data.columns import Faults, blank, codes
from streamdp.data.declaration import MISSING, OTHER, spellings, without_blanks
from streamdp.data.notation import Notation, written
from streamdp.data.records import Batch, Position, Subject
from streamdp.data.schema import Schema

OFTEN = 0.1
"""The share of values that is worth a warning."""
_TARGETS = 100_000  # how many are looked at
_ENOUGH = 50
_PEOPLE = 1_000_000
_OTHERS, _NAMED, _SHARED = 10_000, 5, 10
"""How many undeclared texts of a column are counted, and how many of those are named that so many people share."""
_APART, _SURE = 0.25, 4.0
"""The difference of two means, in standard deviations, that is worth a warning, and in standard errors."""


@dataclass
class ColumnCounts:
    """How the values of a column fit its declaration."""

    values: int = 0  # how many were looked at
    missing: int = 0  # empty ones
    unknown: int = 0  # texts that are no declared category or class
    others: dict[str, int] = field(default_factory=dict)  # the most frequent of these, with counts: see `_Others`
    padded: int = 0  # those of them that are one but for blanks around it, or for .0 behind it
    outside: int = 0  # numbers below or above the declared bounds
    # how often each declared category or class occurs, in their order
    seen: dict[str, int] = field(default_factory=dict)
    dropped: str = ""  # how the records that are left out differ in this column, in words

    @property
    def often_padded(self) -> bool:
        """Whether many values are declared ones but for blanks around them, or for .0 behind."""
        return self.values > 0 and self.padded >= OFTEN * self.values


@dataclass
class _Form:
    """What recognises ids: whether the numbers of each block are whole and rise, how often, and undeclared texts."""

    rising: bool = True
    steps: int = 0
    texts: int = 0  # of a block

    def add(self, column: pl.Series, declared: Collection[str]) -> None:
        """Look at the values of a block."""
        numbers = column.cast(pl.Float64, strict=False).drop_nulls().to_numpy()
        whole = len(numbers) == len(column) and np.all(numbers == np.rint(numbers))
        self.rising &= bool(whole and np.all(np.diff(numbers) > 0))
        self.steps += max(len(numbers) - 1, 0)
        if declared and not self.texts:
            self.texts = column.cast(pl.String).filter(~column.cast(pl.String).is_in(list(declared))).n_unique()


class _Others:
    """The undeclared texts of a column: how many records have each, and which people, of whom some are enough."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, set[object]]] = {}

    def add(self, texts: pl.Series, people: pl.Series) -> None:
        """Count the texts of a block, each with whose it is."""
        some = pl.col("people").drop_nulls().unique().head(_SHARED)
        found = pl.DataFrame({"text": texts, "people": people}).group_by("text").agg(pl.len().alias("n"), some)
        for text, n, who in found.sort("n", descending=True).iter_rows():
            if text in self._counts or len(self._counts) < _OTHERS:
                count, known = self._counts.get(text, (0, set()))
                self._counts[text] = count + n, known if len(known) >= _SHARED else known.union(who)

    def shared(self) -> dict[str, int]:
        """The most frequent texts that `_SHARED` people or more have, with their counts."""
        common = {text: count for text, (count, people) in self._counts.items() if len(people) >= _SHARED}
        return dict(sorted(common.items(), key=lambda one: -one[1])[:_NAMED])


class _Likeness:
    """The means of one column in two groups of records, those that fit and those that are left out.

    Each category in `levels` is a column of zeros and ones. Without levels, the column is a number.
    """

    def __init__(self, levels: tuple[str, ...] = ()) -> None:
        self._levels = levels
        self._sums = np.zeros((2, 3, max(1, len(levels))))

    def add(self, values: np.ndarray, kept: np.ndarray) -> None:
        """Add records: numbers, or codes of categories, and whether each is `kept`, (n,) both.

        For NaN or values below 0, the column has no declared value.
        """
        known = values >= 0 if self._levels else np.isfinite(values)
        for group, rows in enumerate((values[known & kept], values[known & ~kept])):
            if self._levels:
                counts = np.bincount(rows.astype(np.int64), minlength=len(self._levels))
                self._sums[group] += np.stack([np.full(len(counts), len(rows)), counts, counts])
            else:
                self._sums[group] += np.array([len(rows), rows.sum(), np.square(rows).sum()])[:, None]

    def difference(self) -> str:
        """How the records that are left out differ, as words; empty if they do not, or if too few are known."""
        n, total, square = self._sums.swapaxes(0, 1)
        if n.min() < 2:
            return ""
        mean = total / n
        spread = np.sqrt(np.maximum((square / n - mean**2).mean(axis=0), 1e-300))
        apart = (mean[1] - mean[0]) / spread
        level = int(np.argmax(np.abs(apart)))
        sure = abs(apart[level]) / math.sqrt(float((1 / n[:, level]).sum())) > _SURE
        if abs(apart[level]) < _APART or not sure:
            return ""
        if self._levels:
            return f"{'more' if apart[level] > 0 else 'less'} often {self._levels[level]!r}"
        return f"{'larger' if apart[level] > 0 else 'smaller'} on average"


class Inspection:
    """An encoder that counts what it encodes. It gives a source the place of the schema; see `records.Encoder`."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.columns, self.numeric_columns = schema.columns, schema.numeric_columns
        self.budget, self.subject = schema.budget, schema.subject
        self.rows = 0
        """Records so far, as `note` counted them."""
        self.of: int | None = None
        """The messages of the topic, of which these are some; None for other sources, which are read whole."""
        self.fit = 0
        """Those that fit the schema."""
        self.reasons: Counter[tuple[str, str | None]] = Counter()
        """The others by reason and column."""
        self.columns_found = {name: ColumnCounts() for name in (*schema.features, *filter(None, [schema.target]))}
        """The counts by feature, and of the target."""
        self.people: Counter[Subject] = Counter()
        """Whose the first `named` records are, if records have subjects; at most `_PEOPLE` records are looked at."""
        self.named = self.nobody = 0
        self.unended: Sequence[str] = ()
        """The files with a last line without its end, which is not read."""
        self._forms = {name: _Form() for name in schema.features}
        self._others = {name: _Others() for name in self.columns_found}
        self._likeness: dict[str, _Likeness] = {}
        self._targets: list[np.ndarray] = []  # of the first records

    def reading(self, notation: Notation) -> "Inspection":
        """See `records.Encoder.reading`; both add to the same counts."""
        found = copy.copy(self)
        found._schema = self._schema.reading(notation)  # noqa: SLF001 - the same class
        found.numeric_columns = found._schema.numeric_columns  # noqa: SLF001
        return found

    def expected_of(self, each: int) -> int:
        """How many of `expected` are among the first `each` of a person; 1: how many people there are."""
        seen = sum(min(records, each) for records in self.people.values()) + self.nobody
        return round(seen * self.expected / self.named) if self.named else self.expected

    @property
    def expected(self) -> int:
        """How many records of the source fit, if all its messages are like those that were read."""
        return self.fit if self.of is None else round(self.of * self.fit / max(self.rows, 1))

    def note(self, batch: Batch) -> None:
        """Count the records of a batch, and those that do not fit."""
        self.rows += len(batch) + len(batch.dead)
        self.fit += len(batch)
        self.reasons.update((letter.reason, letter.column) for letter in batch.dead)
        if batch.subjects is not None and self.named < _PEOPLE:
            self.people.update(subject for subject in batch.subjects if subject is not None)
            self.nobody += batch.subjects.count(None)
            self.named += len(batch)

    def encode(self, frame: pl.DataFrame, positions: np.ndarray, position: Position) -> Batch:
        """See `records.Encoder.encode`."""
        schema, faults = self._schema, Faults(frame.height)
        people = pl.Series(positions) if schema.subject is None else frame.get_column(schema.subject)
        values: dict[str, np.ndarray] = {}

        def count(
            name: str,
            column: pl.Series,
            declared: tuple[float, float] | tuple[str, ...] | None,
            code_of: Mapping[str, int],
        ) -> None:
            found = self.columns_found[name]
            values[name], unknown = _count(found, column, declared, code_of)
            if unknown.any():
                self._others[name].add(column.cast(pl.String).filter(unknown), people.filter(unknown))
                found.others = self._others[name].shared()

        for name, declared in schema.declarations.items():
            column = declared.read(frame.get_column(declared.column), schema.blanks, schema.notation, faults)
            count(name, column, declared.values or None, declared.codes)
            self._forms[name].add(column, declared.codes)
        if schema.target:
            classes = schema.classes
            target = without_blanks(frame.get_column(schema.target), schema.blanks)
            count(
                schema.target,
                target if classes else written(target, schema.notation),
                classes or schema.target_bounds,
                {} if classes is None else spellings(classes),
            )
        batch = self._schema.encode(frame, positions, position)
        if schema.target and schema.classes is None and sum(map(len, self._targets)) < _TARGETS:
            self._targets.append(batch.y.copy())
        kept = np.isin(positions, [letter.position for letter in batch.dead], invert=True)
        for name, found in self.columns_found.items():
            self._likeness.setdefault(name, _Likeness(tuple(found.seen))).add(values[name], kept)
            found.dropped = self._likeness[name].difference()
        return batch

    def warnings(self) -> list[str]:
        """What is often wrong with the values of a column, one sentence each with its fix."""
        out, differ = [], []
        for name, found in self.columns_found.items():
            declared = self._schema.declarations.get(name)
            left_out = found.missing if declared is None or declared.fill is None else 0
            unknown = 0 if declared is not None and declared.other else found.unknown
            others = found.others
            if found.often_padded:  # `padded` tells of these
                unknown = max(0, unknown - found.padded)
                others = {text: n for text, n in others.items() if text.strip().removesuffix(".0") not in found.seen}
            more = "more classes" if name == self._schema.target else "more categories, or other: true"
            for count, what in (
                (left_out, "are missing, and these records are left out; declare what missing means, or fill the gaps"),
                (unknown, f"are not declared{_named(others)}; declare {more}"),
                (found.outside, "lie outside the declared bounds, and are clipped to them; declare wider bounds"),
            ):
                if found.values and count >= OFTEN * found.values:
                    out.append(f"{name!r}: {100 * count / found.values:.0f} % of the values {what}")
            if found.dropped:
                differ.append(f"{name!r} is {found.dropped}")
        if differ:
            out.append(f"in the records that are left out {', '.join(differ)}: the model is not for people like them")
        return out

    @property
    def targets(self) -> np.ndarray:
        """The numbers of the target in the first records."""
        return np.concatenate([np.zeros(0), *self._targets])

    def padded(self) -> list[str]:
        """The columns of which many values are declared ones with blanks around them, one sentence each."""
        return [
            f"{name!r}: {100 * found.padded / found.values:.0f} % of the values are declared ones with blanks around "
            "them, or with .0 behind, as 1.0 for 1; take these out of the data, or declare the values with them"
            for name, found in self.columns_found.items()
            if found.often_padded
        ]

    def shares(self) -> list[float]:
        """The shares of the classes in the records; empty for numbers and without records."""
        found = self.columns_found.get(self._schema.target)
        seen = [] if found is None else [*found.seen.values()]
        return [count / sum(seen) for count in seen] if sum(seen) else []

    def identifying(self) -> list[str]:
        """The columns that look like numbers of records or free texts, one sentence each."""
        out = []
        for name, form in self._forms.items():
            if form.rising and form.steps >= _ENOUGH:
                out.append(
                    f"{name!r}: whole numbers that rise from record to record look like an id: leave the column out, "
                    "because it says nothing of another record"
                )
            if form.texts >= _ENOUGH:
                out.append(
                    f"{name!r}: {_ENOUGH} or more different texts that are not declared look like an id or free text: "
                    "leave the column out"
                )
        return out

    def never_seen(self) -> list[str]:
        """The declared categories that no record has, one sentence for each column."""
        out = []
        for name, found in self.columns_found.items():
            absent = [repr(category) for category, count in found.seen.items() if not count]
            if absent and not found.often_padded:
                out.append(
                    f"{name!r}: no record has {', '.join(absent)}; check the spelling, or leave it out, because noise"
                    " is added to its weight at every record"
                )
        return out


def _named(others: Mapping[str, int]) -> str:
    shown = ", ".join(f"{text!r} {count:,}" for text, count in others.items())
    return f" ({shown})" if shown else ""


def _count(
    found: ColumnCounts,
    column: pl.Series,
    declared: tuple[float, float] | tuple[str, ...] | None,
    code_of: Mapping[str, int],
) -> tuple[np.ndarray, pl.Series]:
    """Count a column; return its values, codes of `seen`, or numbers, clipped to the bounds; NaN and -1 for others.

    And the mask (n,) of texts that are not declared.
    """
    text = column.str.strip_chars() if column.dtype == pl.String else column
    missing = blank(text)
    found.values += len(column)
    found.missing += int(missing.sum())
    if code_of:
        levels = [str(level) for level in declared or ()]
        code = codes(column.cast(pl.String), code_of)
        unknown = (code < 0) & ~missing
        found.unknown += int(unknown.sum())
        if unknown.any():
            bare = text.cast(pl.String).str.replace(r"^([+-]?[0-9]+)\.0+$", "${1}")
            found.padded += int((unknown & (codes(bare, code_of) >= 0)).sum())
        counts = np.bincount(code[code >= 0], minlength=len(levels)).tolist()
        own = (MISSING, OTHER)
        found.seen = {n: found.seen.get(n, 0) + k for n, k in zip(levels, counts, strict=True) if n not in own}
        shown = np.array([list(found.seen).index(n) if n in found.seen else -1 for n in levels] + [-1])
        shown_codes: np.ndarray = shown[code]
        return shown_codes, pl.Series(unknown)
    if declared is not None:
        low, high = declared
        numbers = text.cast(pl.Float64, strict=False)
        found.outside += int((((numbers < low) | (numbers > high)) & numbers.is_finite()).fill_null(False).sum())
        return numbers.clip(low, high).fill_null(np.nan).to_numpy(), pl.Series(missing & False)
    return text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy(), pl.Series(missing & False)
