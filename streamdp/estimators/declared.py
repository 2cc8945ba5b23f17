"""Declared statistics: how each kind is read from a declaration, and its numbers and limits from what was released.

A kind is a class in `KINDS`, and nothing else knows one by its name. It says what block of numbers a record adds
(`streamdp.learners.cells`), or what a record reports (`streamdp.learners.local_counts.ReportPart`).
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from streamdp.data.declaration import Declaration
from streamdp.data.encoder import column_of
from streamdp.data.transforms import CURVES
from streamdp.errors import BudgetError, ConfigError, is_number, suggestion
from streamdp.estimators.features import SchemaFeatures
from streamdp.learners.cells import (
    Cells,
    Chosen,
    Index,
    Keyed,
    Ranks,
    Thirds,
    Values,
    bins,
    cells_around,
    crossed,
    levels,
    shown,
)
from streamdp.learners.hitters import Hitters
from streamdp.learners.local_counts import CellReports, ReportPart
from streamdp.learners.local_roots import Roots
from streamdp.reading.doubts import BINS, at_bound, outer_bin, outside
from streamdp.reading.estimates import KNOWN, Estimates, Frequencies, frequencies, in_order, means

MOST_CELLS = 1 << 16
_Edges = Mapping[str, Any]


class Reader:
    """The columns of a schema, for declarations; `pure`: blocks are for Laplace noise and drawn quantiles.

    `trust` is as for `Statistics`; "window" means that exact values are held, of which quantiles can be drawn. Each
    method raises `ConfigError`, and `read` with the name of the statistic.
    """

    def __init__(self, features: SchemaFeatures, pure: bool, trust: str) -> None:
        self._declarations, self.pure, self.trust, self.held = features.declarations, pure, trust, trust == "window"
        self._first: dict[str, int] = {}
        at = 0
        for name, declared in self._declarations.items():
            self._first[name] = at
            at += len(declared.pieces)

    def read(self, name: str, given: Any) -> "Declared":
        """The statistic of a declaration. Raises `BudgetError` for one that needs another budget, too."""
        try:
            return self._read(name, given)
        except (ConfigError, BudgetError) as error:
            raise type(error)(f"{name!r}: {error}") from None

    def _read(self, name: str, given: Any) -> "Declared":
        kinds = [kind for key, kind in KINDS.items() if isinstance(given, Mapping) and key in given]
        if len(kinds) != 1:
            raise ConfigError(f"expected a mapping with one of {', '.join(KINDS)}")
        (kind,) = kinds
        if unknown := sorted(map(str, given.keys() - {kind.kind, *kind.options})):
            known = ", ".join((kind.kind, *kind.options))
            raise ConfigError(f"expected {known}, and no {unknown[0]}{suggestion(unknown[0], kind.options)}")
        one = kind.read(self, given)
        share = given.get("share", one.share)
        if not (is_number(share) and 1e-6 <= share <= 1e6):
            raise ConfigError("expected share to be a number from 1e-6 to 1e6")
        if one.block.size > MOST_CELLS:
            raise ConfigError(f"expected at most {MOST_CELLS} cells, got {one.block.size}")
        return replace(one, name=name, share=float(share))

    def text(self, feature: Any) -> tuple[int, ...] | None:
        """The columns of the bytes of a text; None if it is no declared text."""
        declared = self._declarations.get(feature) if isinstance(feature, str) else None
        if declared is None or not declared.length:
            return None
        return tuple(range(first := self._first[feature], first + declared.length))

    def _feature(self, feature: object) -> Declaration:
        if not isinstance(feature, Hashable) or feature not in self._declarations:
            known = ", ".join(self._declarations)
            raise ConfigError(f"expected a declared feature: {known}{suggestion(str(feature), self._first)}")
        declared = self._declarations[feature]
        number = len(declared.pieces) == 1 and declared.pieces[0].kind in ("linear", *CURVES)
        if not (number or declared.codes):
            raise ConfigError(f"{feature!r} has several columns; expected one number, or categories")
        return declared

    def number(self, feature: Any) -> tuple[int, tuple[float, float]] | None:
        """The column of a number, and its middle and half: see `Declared.place`. None if it is no number."""
        declared = self._feature(feature)
        if not declared.is_number:
            return None
        (piece,) = declared.pieces
        low, high = (float(bound) for bound in declared.values)
        if piece.kind != "linear":
            low, high = piece.origin - piece.unit, piece.origin + piece.unit
        return self._first[feature], (float(low + high) / 2, float(high - low) / 2)

    def edges(self, of: Any, by: object, given: object, counted: bool) -> _Edges:
        """The declared edges by column. Those of a single number that is `counted` may stand alone."""
        if given is None:
            return {}
        columns = [column for each in (of, by) for column in (each if isinstance(each, list | tuple) else (each,))]
        if not isinstance(given, Mapping):
            if not counted or isinstance(of, list | tuple | Mapping):
                raise ConfigError("expected edges to be a mapping, from each number to its edges")
            return {of: given}
        sorts = columns if counted else columns[1:]
        if unknown := [column for column in given if column not in sorts]:
            raise ConfigError(f"edges of {unknown[0]!r}, which the statistic does not sort by")
        return given

    def groups(self, by: object, edges: _Edges) -> tuple[Index, tuple[object, ...]]:
        """The groups and their names, as `sorted` has them."""
        if self.text(by) is not None:
            need = 'by a text, whose values nobody declared, are means and sums of numbers, with trust="window"'
            raise ConfigError(need)
        return (Index(), (None,)) if by is None else self.sorted(by, edges)

    def sorted(self, columns: Any, edges: _Edges) -> tuple[Index, tuple[object, ...]]:
        """The kinds by one column or several, and their names: categories, bins (low, high), or a tuple of these."""
        if isinstance(columns, list | tuple):
            nested = any(isinstance(column, list | tuple) for column in columns)
            if nested or len(columns) < 2 or len({*map(repr, columns)}) < len(columns):
                raise ConfigError("expected two or more different features in a list")
            indices, values = zip(*(self.sorted(column, edges) for column in columns), strict=True)
            if (count := math.prod(map(len, values))) > MOST_CELLS:
                raise ConfigError(f"expected at most {MOST_CELLS} cells, got {count}")
            return crossed(indices), tuple(product(*values))
        declared = self._feature(columns)
        if (number := self.number(columns)) is None:
            if columns in edges:
                raise ConfigError(f"{columns!r} has categories, and so no edges")
            return levels(self._first[columns], len(declared.values)), tuple(declared.values)
        if columns not in edges:
            need = "expected a feature with categories, or the edges of its bins"
            raise ConfigError(f"{columns!r} is a number; {need}")
        given, (column, (middle, half)) = edges[columns], number
        fits = isinstance(given, list | tuple) and len(given) > 2 and all(is_number(edge) for edge in given)
        bounds = np.array(given if fits else [], dtype=float)
        if not fits or not np.all(np.diff(bounds) > 0) or not np.all(np.isfinite(bounds)):
            raise ConfigError("expected edges to be three or more finite numbers, ascending")
        low, high = middle - half, middle + half
        inner = np.clip((bounds - low) / (high - low) * 2.0 - 1.0, -1, 1)  # as `encoder`, so that one on an edge stays
        return bins(column, inner.tolist()), tuple(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Declared:
    """One declared statistic. Each subclass is a kind; what one does not say is not claimed."""

    of: Any  # a column, or several that are counted together
    items: tuple[Any, ...]  # what is counted: categories, bins as (low, high), or tuples; or the levels of quantiles
    block: Any  # what a record adds
    place: tuple[float, float] = (0.0, 1.0)  # (middle, half): a number is middle + half * its column
    by: Any = None  # a column or several; None: no groups
    groups: tuple[object, ...] = (None,)  # as items; (None,) without `by`
    share: float = 1.0  # of the budget, relative to the others
    name: str = ""

    kind: ClassVar[str]
    """Its name in declarations."""
    options: ClassVar[tuple[str, ...]] = ("by", "edges", "share")
    """The further keys of a declaration."""
    listed: ClassVar[bool] = False
    """Whether a single item has a name, too."""
    of_cells: ClassVar[bool] = False
    """Whether each record is in one of several cells, which are estimated."""
    of_records: ClassVar[bool] = True
    """Whether limits are for the records themselves, so that they cover noise alone."""
    asks: ClassVar[bool] = False
    """Whether a report answers what follows from the reports before."""
    delta_with: ClassVar[str] = ""
    """The trust with which it needs a budget with a delta."""
    alone: ClassVar[bool] = False
    """Whether there is one of its kind at most, and no texts that nobody declared beside it."""

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        """The statistic of a declaration."""
        raise NotImplementedError

    @property
    def keys(self) -> tuple[object, ...]:
        """The items, or None for a single number."""
        return self.items if len(self.items) > 1 or self.listed else (None,)

    @property
    def reports(self) -> int:
        """How many `parts` it has."""
        return 1

    def parts(self, epsilon: float) -> list[ReportPart]:
        """What records report about it, if nobody may see them."""
        return [CellReports(self.block, epsilon)]

    def found(self, learner: object, parts: Sequence[object]) -> "Iterator[Declared]":
        """What is shown of it, with items and groups that a `learner`, or its `parts` for this statistic, found."""
        yield self

    def of_sums(self, learner: Any, n: int, z: float) -> np.ndarray:
        """Values and limits (k, 3) at z deviations, from what a learner of sums has released of n records."""
        sums, noise = learner.released()[self.block]
        return self.of_released(sums, noise, n, learner.known).with_limits(z)

    def of_released(self, sums: np.ndarray, noise: float, n: int, known: float) -> Estimates:
        """Values from the `sums`, with the variance `noise`; groups are `known` from so many deviations on."""
        raise NotImplementedError

    def of_reports(self, parts: Sequence[Any], n: int, z: float) -> np.ndarray:
        """Values and limits (k, 3) at z deviations, from the reports about its `parts`, of n about all statistics."""
        return self.of_part(parts[0], n).with_limits(z)

    def of_part(self, part: Any, n: int) -> Estimates:
        """Values from the reports about its only part."""
        raise NotImplementedError

    @property
    def between(self) -> tuple[float, float]:
        """Where values are."""
        return -math.inf, math.inf

    @property
    def doubted(self) -> "Declared":
        """The statistic whose numbers `doubts` reads."""
        return self

    def doubts(self, estimated: list[list[float]], declarations: Mapping[Any, Any], sums: bool) -> list[str | None]:
        """A doubt about each `estimated` number with its limits, from `sums` or reports; None: there is none.

        `declarations`: those of the features.
        """
        return [None] * len(estimated)


class DeclaredCount(Declared):
    """How many records are in each cell."""

    kind, of_cells = "count", True
    options: ClassVar[tuple[str, ...]] = ("edges", "share")

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        of, by = given[cls.kind], given.get("by")
        edges = reader.edges(of, by, given.get("edges"), counted=True)
        index, groups = reader.groups(by, edges)
        cells, items = reader.sorted(of, edges)
        number = None if isinstance(of, list | tuple) else reader.number(of)
        return cls(of, items, Cells(index, cells), number[1] if number else (0.0, 1.0), by, groups)

    def shares(self, found: Frequencies, n: int, known: float = KNOWN) -> Estimates:
        """The estimates that are shown of frequencies."""
        return found.counts(n)

    def of_released(self, sums: np.ndarray, noise: float, n: int, known: float) -> Estimates:
        return self.shares(frequencies(sums, noise, n), n, known)

    def of_part(self, part: CellReports, n: int) -> Estimates:
        return self.shares(part.frequencies(), n)


class DeclaredProportion(DeclaredCount):
    """The share of each cell in its group."""

    kind, options = "proportion", ("by", "edges", "share")
    of_records = False

    def shares(self, found: Frequencies, n: int, known: float = KNOWN) -> Estimates:
        return found.shares(len(self.items), known)


class DeclaredHistogram(DeclaredCount):
    """Counts of cells, in order."""

    kind, options = "histogram", ("edges", "by", "share")
    listed = True

    def doubts(self, estimated: list[list[float]], declarations: Mapping[Any, Any], sums: bool) -> list[str | None]:
        """See `Declared.doubts`: those of a number about its first and last bins within bounds."""
        found: list[str | None] = [None] * len(estimated)
        if isinstance(self.of, list | tuple) or not isinstance(self.items[0], tuple):
            return found
        middle, half = self.place
        edges, k = [low for low, _ in self.items[1:]], len(self.items)
        first, last = np.searchsorted(edges, (middle - half, middle + half), side="right").tolist()
        bins = np.clip(self.items, middle - half, middle + half)[first : last + 1].tolist()
        for at in range(0, len(estimated) if last > first else 0, k):
            numbers = estimated[at + first : at + last + 1]
            for place, above in ((first, False), (last, True)):
                found[at + place] = outer_bin(repr(self.name), self.of, bins, numbers, above)
        return found


class OfNumber(Declared):
    """A statistic of a number."""

    of_records = False

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        of, by = given.get("of", given[cls.kind]), given.get("by")
        index, groups = reader.groups(by, reader.edges(of, by, given.get("edges"), counted=False))
        if (number := reader.number(of)) is None:
            raise ConfigError(f"{cls.kind} needs a feature with a number with bounds")
        column, place = number
        return cls(of, *cls.block_of(reader, given[cls.kind], index, column, -place[0] / place[1]), place, by, groups)

    @classmethod
    def block_of(
        cls, reader: Reader, given: object, groups: Index, column: int, zero: float
    ) -> tuple[tuple[object, ...], object]:
        """The items, and what a record adds; at `zero` of the column the number is 0."""
        if not reader.pure:
            return (), Values(groups, column)
        return (), Thirds(groups, column) if groups.count > 1 else Values(groups, column, 0.25)

    def doubts(self, estimated: list[list[float]], declarations: Mapping[Any, Any], sums: bool) -> list[str | None]:
        feature, levels, widths = declarations[self.of], self.items or (None,), self.widths(sums)
        doubts: list[str | None] = []
        bounds = np.array(feature.values, dtype=float)
        turned = column_of(feature.pieces[0], bounds[0]) > 0  # by a power below 0
        for numbers, q in zip(estimated, levels * len(self.groups), strict=True):
            if (side := at_bound(numbers, self.place, widths)) is None:
                doubts.append(None)
                continue
            above = bool((side > 0) != turned)
            what = f"{self.name!r}" if len(levels) == 1 else f"{self.name!r} at {q:g}"
            share = None if q is None else 1 - q if side > 0 else q
            doubts.append(outside(what, self.of, float(bounds[int(above)]), above, share))
        return doubts

    def widths(self, sums: bool) -> tuple[float, float] | None:
        """Those of the first and the last bin of a quantile, from `sums` or reports; None: it is none."""
        return None


class DeclaredMean(OfNumber):
    """The mean of a number."""

    kind = "mean"

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        of, by = given[cls.kind], given.get("by")
        if reader.held and (text := reader.text(by)) is not None and (number := reader.number(of)) is not None:
            return cls(of, (), Keyed(text, number[0]), number[1], by, ())
        return super().read(reader, given)

    def found(self, learner: Any, parts: Sequence[Any]) -> Iterator[Declared]:
        """See `Declared.found`: the groups by a text are the texts that were found, in order."""
        by_text = learner is not None and not self.groups
        yield replace(self, groups=tuple(map(shown, learner.texts[self.block][0]))) if by_text else self

    def of_released(self, sums: np.ndarray, noise: float, n: int, known: float) -> Estimates:
        moments, noises = self.block.moments(sums, noise, n)
        mean, (middle, half) = means(moments, noises, known), self.place
        return Estimates(middle + half * mean.values, half * mean.deviations)

    def of_part(self, part: CellReports, n: int) -> Estimates:
        return part.frequencies().means(self.place[0] + self.place[1] * part.levels)

    @property
    def between(self) -> tuple[float, float]:
        return self.place[0] - self.place[1], self.place[0] + self.place[1]


class DeclaredSum(DeclaredMean):
    """The sum of a number."""

    kind = "sum"
    of_records = True

    def of_released(self, sums: np.ndarray, noise: float, n: int, known: float) -> Estimates:
        moments, noises = self.block.moments(sums, noise, n)
        middle, half = self.place
        deviation = math.hypot(middle * math.sqrt(noises[0]), half * math.sqrt(noises[1]))
        total = middle * moments[0] + half * moments[1]
        return Estimates(total, np.full(len(total), deviation))

    def of_part(self, part: CellReports, n: int) -> Estimates:
        return part.frequencies().counts(n, self.place[0] + self.place[1] * part.levels)

    between = Declared.between

    @property
    def doubted(self) -> Declared:
        """See `Declared.doubted`: it is at a bound if the mean of its records is."""
        return DeclaredMean(**vars(self))


class DeclaredQuantile(OfNumber):
    """One or several quantiles of a number."""

    kind, options, asks, delta_with = "quantile", ("of", "by", "edges", "share"), True, "process"

    @classmethod
    def block_of(
        cls, reader: Reader, given: object, groups: Index, column: int, zero: float
    ) -> tuple[tuple[object, ...], object]:
        levels = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not levels or not all(is_number(q) and 0 < q < 1 for q in levels) or list(levels) != sorted(set(levels)):
            raise ConfigError("expected quantile to be a number in (0, 1), or a list of such, ascending")
        levels = tuple(map(float, levels))
        if reader.pure and not reader.held:
            raise BudgetError("a quantile of batches needs a delta, such as eps=1,delta=1e-6")
        if reader.pure:
            return levels, Ranks(groups, column, levels, zero)
        count = min(BINS, 1 << max(1, (MOST_CELLS // groups.count).bit_length() - 1))
        return levels, Cells(groups, bins(column, cells_around(zero, count).tolist()), ordered=True)

    @property
    def reports(self) -> int:
        return len(self.items)

    def parts(self, epsilon: float) -> list[ReportPart]:
        return [Roots(self.block.groups, self.block.bins.sorters[0][0], q, epsilon) for q in self.items]

    def of_sums(self, learner: Any, n: int, z: float) -> np.ndarray:
        return np.asarray(self.block.quantiles(*learner.released()[self.block], self.items, self.place, z))

    def of_reports(self, parts: Sequence[Any], n: int, z: float) -> np.ndarray:
        found = np.stack([np.column_stack([part.quantiles(), part.limits(z)]) for part in parts], axis=1)
        return self.place[0] + self.place[1] * in_order(found).reshape(-1, 3)

    def widths(self, sums: bool) -> tuple[float, float]:
        if not sums:
            return 2 / BINS, 2 / BINS
        edges = self.block.edges
        return edges[1] - edges[0], edges[-1] - edges[-2]


class DeclaredHeavyHitters(Declared):
    """The most frequent texts."""

    kind, options = "heavy_hitters", ("share",)
    listed = True

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        of = given[cls.kind]
        if (columns := reader.text(of)) is None:
            raise ConfigError('heavy_hitters needs a declared feature of text, such as {"text": 8}')
        if reader.trust not in ("nobody", "window"):
            need = 'expected trust="nobody" or "window", because the domain is open'
            raise ConfigError(f"heavy_hitters: {need}; or the count of declared categories")
        return cls(of, columns, Keyed(columns))

    def parts(self, epsilon: float) -> list[ReportPart]:
        return [Hitters(self.items, epsilon)]

    def found(self, learner: Any, parts: Sequence[Any]) -> Iterator[Declared]:
        """See `Declared.found`: the items are the texts that were found, the most frequent first."""
        if learner is None:
            items: list[str] = []
        elif parts:
            items = parts[0].found()[0]
        else:
            texts, sums = learner.texts[self.block]
            items = [shown(text) for text in texts[np.argsort(-sums[:, 0], kind="stable")]]
        yield replace(self, items=tuple(items))

    def of_released(self, sums: np.ndarray, noise: float, n: int, known: float) -> Estimates:
        counts, windows = sums[np.argsort(-sums[:, 0], kind="stable")].T
        return Estimates(counts, np.sqrt(noise * windows))

    def of_part(self, part: Hitters, n: int) -> Estimates:
        return part.found()[1].counts(n)


class DeclaredPairs(Declared):
    """The tables of two of several columns that a window chooses."""

    kind, options, alone, delta_with = "pairs", ("edges", "share"), True, "window"

    @classmethod
    def read(cls, reader: Reader, given: Mapping[str, Any]) -> Self:
        of = given[cls.kind]
        plain = isinstance(of, list | tuple) and not any(isinstance(one, list | tuple) for one in of)
        if not plain or len({*map(repr, of)}) < max(3, len(of)):
            raise ConfigError("expected pairs of a list of three or more different features")
        if not reader.held:
            raise ConfigError('tables are chosen by the exact counts of a window: expected trust="window"')
        if reader.pure:
            raise BudgetError("a choice of tables needs a delta, such as eps=1,delta=1e-6")
        edges = reader.edges(of, None, given.get("edges"), counted=True)
        indices, values = zip(*(reader.sorted(column, edges) for column in of), strict=True)
        return cls(tuple(of), values, Chosen(indices), share=len(of) - 1.0)  # as many as there are tables

    def found(self, learner: Any, parts: Sequence[object]) -> Iterator[Declared]:
        """See `Declared.found`: the tables that were chosen."""
        released = {} if learner is None else learner.released()
        pairs = zip(combinations(zip(self.of, self.items, strict=True), 2), self.block.pieces, strict=True)
        for ((a, of_a), (b, of_b)), block in pairs:
            if block in released and released[block][0].any():
                yield DeclaredCount(
                    (a, b), tuple(product(of_a, of_b)), block, share=self.share, name=f"{self.name}: {a}, {b}"
                )


_KINDS: tuple[type[Declared], ...] = (
    DeclaredMean,
    DeclaredSum,
    DeclaredCount,
    DeclaredProportion,
    DeclaredHistogram,
    DeclaredQuantile,
    DeclaredHeavyHitters,
    DeclaredPairs,
)
KINDS: Mapping[str, type[Declared]] = MappingProxyType({kind.kind: kind for kind in _KINDS})
