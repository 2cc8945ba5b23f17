"""Statistics of a stream: means, sums, counts, shares, histograms and quantiles, by declared groups, in one budget.

A declaration becomes a block of numbers that a record adds (`streamdp.learners.cells`). If a process or a shuffler may
see raw records, all blocks are one vector, and their sum is released with noise in batches (`streamdp.learners.sums`).
If the operator may hold a window, a pure budget means Laplace noise and drawn quantiles (`streamdp.learners.held`). If
nobody may, each record reports about one of them (`streamdp.learners.drawn`). Values and limits are read from either by
`streamdp.reading.estimates`.

Neighbours: replace one record. Trust and claim: see the learners. Proof: docs/proofs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import scipy

from streamdp.data.encoder import column_of
from streamdp.data.floats import floats
from streamdp.data.records import RawRecord
from streamdp.data.schema import Schema
from streamdp.data.times import YEAR_10000, ZONE, Calendar, present
from streamdp.data.transforms import CURVES
from streamdp.errors import (
    BudgetError,
    ConfigError,
    NotAvailableError,
    SchemaError,
    check_choice,
    check_level,
    check_whole,
    is_number,
    suggestion,
)
from streamdp.estimators.door import Trust
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.features import SchemaFeatures
from streamdp.estimators.frames import as_frame, names_of
from streamdp.estimators.hints import WEIGHT
from streamdp.estimators.parameters import documented
from streamdp.learners.cells import All, Bins, Block, Cells, Crossed, Index, Levels, Thirds, Values, cells_around
from streamdp.learners.chosen import Chosen, Pair
from streamdp.learners.divided import SumsPart
from streamdp.learners.drawn import Drawn, DrawnAnswer, Part
from streamdp.learners.held import HeldSums, HeldWithDelta, PanPure
from streamdp.learners.hitters import Hitters
from streamdp.learners.keyed import Keyed, Texts, shown
from streamdp.learners.learner import Learner
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.local_counts import CellReports
from streamdp.learners.local_roots import Roots
from streamdp.learners.ranks import Ranks
from streamdp.learners.series import KEPT, Series, furthest
from streamdp.learners.sums import BatchSum, Mixed, Pan, Sums
from streamdp.ledger.periods import in_units, whole_seconds
from streamdp.privacy.entropy import AnyRng, entropy, fresh_words
from streamdp.privacy.guarantees import Budget, PureDP, parse_budget
from streamdp.reading.doubts import BINS, at_bound, outer_bin, outside
from streamdp.reading.estimates import KNOWN, Estimates, Frequencies, Ordered, as_lists, frequencies, limits_of, means
from streamdp.reading.tables import Counted, Tables

if TYPE_CHECKING:
    from streamdp.data.records import Subject
    from streamdp.ledger.ledger import Ledger

MOST_CELLS = 1 << 16
KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mean": ("by", "edges", "share"),
        "sum": ("by", "edges", "share"),
        "count": ("edges", "share"),
        "proportion": ("by", "edges", "share"),
        "histogram": ("edges", "by", "share"),
        "quantile": ("of", "by", "edges", "share"),
        "heavy_hitters": ("share",),
        "pairs": ("edges", "share"),
    }
)
"""The further keys of each kind of statistic. It is closed: what a kind adds up, and how that is read, is code here."""
_OF_CELLS = ("count", "proportion", "histogram")
"""The kinds whose records are in one cell of several."""


@dataclass(frozen=True)
class Declared:
    """One declared statistic."""

    name: str
    kind: str  # one of `KINDS`
    of: Any  # a column, or several that are counted together
    by: Any  # a column or several; None: no groups
    groups: tuple[Any, ...]  # categories, bins as (low, high), or tuples of these; (None,) without `by`
    items: tuple[Any, ...]  # the same of what is counted, or the levels of quantiles
    block: Any  # what a record adds
    place: tuple[float, float]  # (middle, half): a number is middle + half * its column
    share: float  # of the budget, relative to the others

    @property
    def keys(self) -> tuple[Any, ...]:
        """The items, or None for a single number."""
        return self.items if len(self.items) > 1 or self.kind in ("histogram", "heavy_hitters") else (None,)


class _Reader:
    """Reads declarations with the columns of a schema; `pure`: into blocks for Laplace noise and drawn quantiles.

    Quantiles can be drawn if exact values are `held`.
    """

    def __init__(self, features: SchemaFeatures, pure: bool, held: bool) -> None:
        self._declarations, self._pure, self._held = features.declarations, pure, held
        self._first: dict[str, int] = {}
        at = 0
        for name, declared in self._declarations.items():
            self._first[name] = at
            at += len(declared.pieces)

    def read(self, name: str, given: Any) -> Declared:
        """The statistic of a declaration. Raises `ConfigError` with its name."""
        kinds = [kind for kind in KINDS if isinstance(given, Mapping) and kind in given]
        if len(kinds) != 1:
            raise ConfigError(f"{name!r}: expected a mapping with one of {', '.join(KINDS)}")
        kind = kinds[0]
        if unknown := sorted(map(str, given.keys() - {kind, *KINDS[kind]})):
            known = ", ".join((kind, *KINDS[kind]))
            raise ConfigError(f"{name!r}: expected {known}, and no {unknown[0]}{suggestion(unknown[0], KINDS[kind])}")
        several = len(given[kind]) if isinstance(given[kind], list | tuple) and kind == "pairs" else 2
        share = given.get("share", max(1.0, several - 1.0))  # as many tables
        if not (is_number(share) and 1e-6 <= share <= 1e6):
            raise ConfigError(f"{name!r}: expected share to be a number from 1e-6 to 1e6")
        if kind in ("heavy_hitters", "pairs"):
            return (self._pairs if kind == "pairs" else self._hitters)(name, given, float(share))
        of, by = given.get("of") if kind == "quantile" else given[kind], given.get("by")
        if (columns := self._bytes(by)) is not None:
            if kind not in ("mean", "sum") or not self._held or not self._feature(name, of).is_number:
                need = 'by a text, whose values nobody declared, are means and sums of numbers, with trust="window"'
                raise ConfigError(f"{name!r}: {need}")
            _, items, place = self._block(name, kind, of, All(), given, {})
            return Declared(name, kind, of, by, (), items, Keyed(columns, self._first[of]), place, float(share))
        if kind not in (*_OF_CELLS, "mean", "sum", "quantile"):
            raise _unknown(kind)
        edges = self._edges_of(name, kind, of, by, given.get("edges"))
        groups, group_names = (All(), (None,)) if by is None else self._sorted(name, by, edges)
        block, items, place = self._block(name, kind, of, groups, given, edges)
        if block.size > MOST_CELLS:
            raise ConfigError(f"{name!r}: expected at most {MOST_CELLS} cells, got {block.size}")
        return Declared(name, kind, of, by, group_names, items, block, place, float(share))

    def _hitters(self, name: str, given: Mapping[str, Any], share: float) -> Declared:
        if (columns := self._bytes(given["heavy_hitters"])) is None:
            raise ConfigError(f'{name!r}: heavy_hitters needs a declared feature of text, such as {{"text": 8}}')
        texts = Keyed(columns) if self._held else None
        place = (0.0, 1.0)
        return Declared(name, "heavy_hitters", given["heavy_hitters"], None, (None,), columns, texts, place, share)

    def _pairs(self, name: str, given: Mapping[str, Any], share: float) -> Declared:
        """Tables of two of several columns, which a window chooses."""
        columns = given["pairs"]
        plain = isinstance(columns, list | tuple) and not any(isinstance(one, list | tuple) for one in columns)
        if not plain or len({*map(repr, columns)}) < max(3, len(columns)):
            raise ConfigError(f"{name!r}: expected pairs of a list of three or more different features")
        if not self._held:
            raise ConfigError(f'{name!r}: tables are chosen by the exact counts of a window: expected trust="window"')
        if self._pure:
            raise BudgetError(f"{name!r}: a choice of tables needs a delta, such as eps=1,delta=1e-6")
        edges = self._edges_of(name, "count", columns, None, given.get("edges"))
        indices, values = zip(*(self._sorted(name, column, edges) for column in columns), strict=True)
        block = Chosen(indices)
        if block.size > MOST_CELLS:
            raise ConfigError(f"{name!r}: expected at most {MOST_CELLS} cells, got {block.size}")
        return Declared(name, "pairs", tuple(columns), None, (None,), values, block, (0.0, 1.0), share)

    def _bytes(self, feature: Any) -> tuple[int, ...] | None:
        """The columns of the bytes of a text; None if it is no declared text."""
        declared = self._declarations.get(feature) if isinstance(feature, str) else None
        if declared is None or not declared.length:
            return None
        return tuple(range(first := self._first[feature], first + declared.length))

    def _feature(self, name: str, feature: object) -> Any:
        if not isinstance(feature, Hashable) or feature not in self._declarations:
            known = ", ".join(self._declarations)
            raise ConfigError(f"{name!r}: expected a declared feature: {known}{suggestion(str(feature), self._first)}")
        declared = self._declarations[feature]
        number = len(declared.pieces) == 1 and declared.pieces[0].kind in ("linear", *CURVES)
        if not (number or declared.codes):
            raise ConfigError(f"{name!r}: {feature!r} has several columns; expected one number, or categories")
        return declared

    def _edges_of(self, name: str, kind: str, of: Any, by: object, given: Any) -> Mapping[str, object]:
        """The declared edges by column. Those of a single counted number may stand alone."""
        if given is None:
            return {}
        columns = [column for each in (of, by) for column in (each if isinstance(each, list | tuple) else (each,))]
        if not isinstance(given, Mapping):
            if kind not in _OF_CELLS or isinstance(of, list | tuple):
                raise ConfigError(f"{name!r}: expected edges to be a mapping, from each number to its edges")
            return {of: given}
        sorts = columns if kind in _OF_CELLS else columns[1:]
        if unknown := [column for column in given if column not in sorts]:
            raise ConfigError(f"{name!r}: edges of {unknown[0]!r}, which the statistic does not sort by")
        return given

    def _sorted(self, name: str, columns: Any, edges: Mapping[str, Any]) -> tuple[Index, tuple[Any, ...]]:
        """The kinds by one column or several, and their names: categories, bins (low, high), or a tuple of these."""
        if isinstance(columns, list | tuple):
            nested = any(isinstance(column, list | tuple) for column in columns)
            if nested or len(columns) < 2 or len({*map(repr, columns)}) < len(columns):
                raise ConfigError(f"{name!r}: expected two or more different features in a list")
            indices, values = zip(*(self._sorted(name, column, edges) for column in columns), strict=True)
            if (count := math.prod(map(len, values))) > MOST_CELLS:
                raise ConfigError(f"{name!r}: expected at most {MOST_CELLS} cells, got {count}")
            return Crossed(indices), tuple(product(*values))
        declared = self._feature(name, columns)
        if not declared.is_number:
            if columns in edges:
                raise ConfigError(f"{name!r}: {columns!r} has categories, and so no edges")
            return Levels(self._first[columns], len(declared.values)), tuple(declared.values)
        if columns not in edges:
            need = "expected a feature with categories, or the edges of its bins"
            raise ConfigError(f"{name!r}: {columns!r} is a number; {need}")
        middle, half = self._place(declared)
        bounds = _edges(name, edges[columns])
        low, high = middle - half, middle + half
        inner = np.clip((bounds - low) / (high - low) * 2.0 - 1.0, -1, 1)  # as `encoder`, so that one on an edge stays
        bins = Bins(self._first[columns], tuple(inner.tolist()))
        return bins, tuple(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    def _place(self, declared: Any) -> tuple[float, float]:
        """The middle and half of the range of a number; of a transform, of the transformed number."""
        (piece,) = declared.pieces
        low, high = (float(bound) for bound in declared.values)
        if piece.kind != "linear":
            low, high = piece.origin - piece.unit, piece.origin + piece.unit
        return float(low + high) / 2, float(high - low) / 2

    def _block(
        self, name: str, kind: str, of: Any, groups: Index, given: Mapping[str, object], edges: Mapping[str, object]
    ) -> tuple[Cells | Values | Ranks, tuple[Any, ...], tuple[float, float]]:
        if kind in _OF_CELLS:
            cells, items = self._sorted(name, of, edges)
            number = None if isinstance(of, list | tuple) else self._feature(name, of)
            place = (0.0, 1.0) if number is None or not number.is_number else self._place(number)
            return Cells(groups, cells), items, place
        if not (declared := self._feature(name, of)).is_number:
            raise ConfigError(f"{name!r}: {kind} needs a feature with a number with bounds")
        first, place = self._first[of], self._place(declared)
        if kind in ("mean", "sum"):
            if not self._pure:
                return Values(groups, first), (), place
            return Thirds(groups, first) if groups.count > 1 else Values(groups, first, 0.25), (), place
        levels = _levels(name, given[kind])
        if self._pure and not self._held:
            raise BudgetError(f"{name!r}: a quantile of batches needs a delta, such as eps=1,delta=1e-6")
        if self._pure:
            return Ranks(groups, first, levels, -place[0] / place[1]), levels, place
        count = min(BINS, 1 << max(1, (MOST_CELLS // groups.count).bit_length() - 1))
        bins = Bins(first, tuple(cells_around(-place[0] / place[1], count).tolist()))
        return Cells(groups, bins, ordered=True), levels, place


def _of_texts(statistics: Mapping[str, object], features: Mapping[str, object]) -> bool:
    """Whether texts that nobody declared are among the statistics."""
    texts = [name for name, declared in features.items() if isinstance(declared, Mapping) and "text" in declared]
    found = [one for one in statistics.values() if isinstance(one, Mapping)]
    return any("heavy_hitters" in one or any(one.get("by") == text for text in texts) for one in found)


def _of_pairs(statistics: Mapping[str, object]) -> int:
    """How many of the statistics choose tables."""
    return sum(isinstance(one, Mapping) and "pairs" in one for one in statistics.values())


def _unknown(kind: str) -> ConfigError:
    return ConfigError(f"{kind}: no statistic of this kind is known here")


def _calendar(every: Any, zone: Any) -> Calendar | None:
    if every is None:
        if zone is not None:
            raise ConfigError("zone: expected every beside it, the length of the windows of time")
        return None
    try:
        seconds = whole_seconds(every)
    except BudgetError:
        seconds = 0
    if seconds < 1:
        raise ConfigError(f"every: expected a length such as 1 day or 2 hours, got {every!r}")
    return Calendar(seconds, ZONE if zone is None else zone)


def _levels(name: str, given: object) -> tuple[float, ...]:
    levels = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not levels or not all(is_number(q) and 0 < q < 1 for q in levels) or list(levels) != sorted(set(levels)):
        raise ConfigError(f"{name!r}: expected quantile to be a number in (0, 1), or a list of such, ascending")
    return tuple(float(q) for q in levels)


def _edges(name: str, given: object) -> np.ndarray:
    fits = isinstance(given, list | tuple) and len(given) > 2 and all(is_number(edge) for edge in given)
    edges = np.array(given if fits else [], dtype=float)
    if not fits or not np.all(np.diff(edges) > 0) or not np.all(np.isfinite(edges)):
        raise ConfigError(f"{name!r}: expected edges to be three or more finite numbers, ascending")
    return edges


_GUARANTEE = """
    Guarantee: each record has `budget`, whatever statistics are declared, for neighbours that differ in that record,
    against everyone who sees what is ever saved or served; for trust="process" also against one break-in into memory.
    Source: the Gaussian mechanism for sums (Cheu et al. 2022, Algorithm 6), shuffled sums (Algorithm 2 there),
    randomised response for reports (Wang et al. 2017), and for windows the Laplace and the exponential mechanism (Dwork
    et al. 2006; McSherry, Talwar 2007); the proof is docs/proofs/statistics.md.

    Raises `ConfigError`, `SchemaError` and `BudgetError` for declarations and parameters out of range."""

_TEXTS = {
    "statistics": """
        What to estimate, by name: {"mean": column}, {"sum": column}, {"count": categories}, {"proportion": categories},
        {"histogram": categories}, {"histogram": column, "edges": [...]}, {"quantile": q or [q, ...], "of": column},
        {"heavy_hitters": text}, for trust="nobody" and "window", or {"pairs": [columns]}, for "window": the counts of
        two of these columns that say most; each but "count", "pairs" and "heavy_hitters" maybe with "by": categories,
        or for "mean" and "sum" with trust="window" a text, of which a window finds the frequent ones,
        and each with "share", its part of the budget relative to others. A column is a feature with bounds, and its
        transform if it has one (log, asinh or power); categories are one with categories. A list of features counts
        them together, or groups by all of them; a number among them has its bins in "edges": {column: [...]}.""",
    "features": """
        The declared public schema: bounds (low, high), a list of categories, or {"text": 8} for the first 8 bytes of a
        text of an open domain, by feature, as for models. Records come
        raw; numbers are clipped to their bounds.""",
    "budget": """
        What each record spends; None: ApproxDP(1, 1e-6), and PureDP(1) for trust="nobody" and "window". Text such as
        "mu=1" is accepted; "eps=1" gets a delta of 1e-6 where it needs one. For "window" and "process", PureDP is
        Laplace noise, and for "window" drawn quantiles; any other is Gaussian noise.""",
    "trust": """
        "process": this process sees raw records and keeps noisy sums only (pan-private). "window": the operator holds
        exact sums and rounded values until a window ends; the least noise. "shuffler": sums of shuffled bits.
        "nobody": each record becomes a noisy report first, which needs the most records.""",
    "every": """
        The length of windows of time, such as "1 day" or "2 hours": one estimate for each window, of its own records. A
        record's time is the y of `learn_one`, in seconds since 1970 (UTC); None: now. The latest 400 are kept.
        None: one estimate of all records.""",
    "zone": """
        The time zone of those windows, such as "Europe/Berlin": a day begins at midnight there, and lasts 23 or 25
        hours when the clock is changed. None: UTC.""",
    "batch_size": """
        The records of each batch; None: they grow with the stream, from 1,000 on. With trust="window" those of a
        window; None: 2^20. `close_batch` ends either before. Not for trust="nobody".""",
}


@documented(_GUARANTEE, _TEXTS)
class Statistics(Estimator):
    """Several statistics of the same records, in one budget.

    Examples
    --------
    >>> statistics = Statistics(
    ...     {"median charge": {"quantile": 0.5, "of": "charge", "by": "region"}},
    ...     features={"charge": (0, 100), "region": ["north", "south"]},
    ... )
    >>> for i in range(1000):
    ...     statistics.learn_one({"charge": i % 100, "region": "north" if i % 2 else "south"})
    >>> sorted(statistics.get()["median charge"]), str(statistics.guarantee)
    (['north', 'south'], 'eps=1,delta=1e-06')
    """

    learns: type[Learner] = Sums
    batch_size: int | None
    loss = "huber"  # not used: statistics have no loss
    intercept = True
    domain = None
    trust: Trust = "process"  # the parameter; `guarantee` has the words
    _covers = "these statistics"
    _coded = True

    def __init__(
        self,
        statistics: Mapping[str, Mapping[str, object]],
        features: Mapping[str, object],
        budget: Budget | str | None = None,
        trust: Trust = "process",
        ledger: Ledger | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        every: str | None = None,
        zone: str | None = None,
    ) -> None:
        arguments = locals()
        check_choice("trust", trust, get_args(Trust))
        if batch_size is not None:
            check_whole("batch_size", batch_size, 1, 10**18)
            if trust == "nobody":
                raise ConfigError('batch_size: trust="nobody" has no batches; leave it out')
        if not isinstance(features, Mapping):
            raise ConfigError("features: expected bounds or categories by feature")
        if not isinstance(statistics, Mapping) or not statistics:
            raise ConfigError("statistics: expected declarations by name, at least one")
        kinds: dict[str, type[Learner]] = {"nobody": Drawn, "window": HeldSums, "process": Sums, "shuffler": Sums}
        self._by_texts = trust == "window" and _of_texts(statistics, features)
        if (several := _of_pairs(statistics)) > 1 or (several and self._by_texts):
            raise ConfigError("pairs: expected one such statistic, and no texts that nobody declared beside it")
        self.trust, self.statistics = trust, statistics
        self.learns = HeldWithDelta if self._by_texts or (several and trust == "window") else kinds[trust]
        spend = self.learns.default_budget if budget is None else budget
        pure = isinstance(parse_budget(spend), PureDP) and not (isinstance(spend, str) and self._needs_delta)
        self._pure = (trust in ("window", "process") and pure) or self._by_texts
        reader = _Reader(SchemaFeatures(features, type(self).__name__, coded=True), self._pure, trust == "window")
        self.declared = tuple(reader.read(str(name), given) for name, given in statistics.items())
        """The declared statistics, in the order in which they are shown."""
        self._by_name = tuple(sorted(self.declared, key=lambda one: one.name))  # in which they are learned and kept
        if trust not in ("nobody", "window") and any(one.kind == "heavy_hitters" for one in self.declared):
            need = (
                'expected trust="nobody" or "window", because the domain is open; or the count of declared categories'
            )
            raise ConfigError(f"heavy_hitters: {need}")
        self._calendar = _calendar(every, zone)
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)
        self.__post_init__()

    @property
    def _needs_delta(self) -> bool:
        quantiles = any(isinstance(one, Mapping) and "quantile" in one for one in self.statistics.values())
        held = self.learns is HeldWithDelta
        return {"shuffler": True, "process": quantiles, "window": held, "nobody": False}[self.trust]

    def _words(self) -> Any:
        return entropy(self.seed) if self.trust == "shuffler" else fresh_words(self.seed)

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: AnyRng) -> Learner:
        make = partial(self._make_window, problem, budget, rng)
        return make() if self._calendar is None else Series(problem, budget, rng, make, self._calendar)

    def _make_window(self, problem: LinearProblem, budget: Budget, rng: AnyRng) -> Sums | Drawn:
        whole = math.fsum(one.share for one in self.declared)
        if self.trust == "nobody":
            return Drawn(problem, budget, rng, partial(self._parts, whole))
        shares: dict[Block, float] = {}
        for one in self._by_name:  # equal blocks are added once
            shares[one.block] = shares.get(one.block, 0.0) + one.share / whole
        if self.trust == "window":
            kind: type[HeldSums] = self.learns  # type: ignore[assignment]
            return kind(problem, budget, rng, list(shares.items()), self.batch_size)
        kinds: dict[str, type[BatchSum]] = {"process": PanPure if self._pure else Pan, "shuffler": Mixed}
        return Sums(problem, budget, rng, list(shares.items()), kinds[self.trust], self.batch_size)

    def _parts(self, whole: float, epsilon: float) -> list[tuple[Part, float]]:
        found: list[tuple[Part, float]] = []
        for one in self._by_name:
            if one.kind == "quantile":
                each = one.share / whole / len(one.items)
                column = one.block.bins.column
                found += [(Roots(one.block.groups, column, q, epsilon), each) for q in one.items]
            elif one.kind == "heavy_hitters":
                found.append((Hitters(one.items, epsilon), one.share / whole))
            elif one.kind in (*_OF_CELLS, "mean", "sum"):
                found.append((CellReports(one.block, epsilon), one.share / whole))
            else:
                raise _unknown(one.kind)
        return found

    # -- records -----------------------------------------------------------------------------------------------------

    def learn_one(
        self,
        x: RawRecord,
        y: object = None,
        *,
        budget: Budget | str | None = None,
        subject: Subject | None = None,
        w: float = WEIGHT,
    ) -> None:
        """Take one record.

        Parameters
        ----------
        x, budget, subject, w
            As for `Estimator.learn_one`; x comes raw.
        y
            With `every`, the time of the record in seconds since 1970 (UTC); None: now.

        Raises the errors of `Estimator.learn_one`.
        """
        super().learn_one(x, 0.0 if self._calendar is None else y, budget=budget, subject=subject, w=w)

    def learn_many(self, X: Any, y: Any = None, *, w: Any = WEIGHT) -> None:
        """Take the rows of a frame in order.

        Parameters
        ----------
        X, w
            As for `Estimator.learn_many`.
        y
            With `every`, the time of each; None: now.

        Raises the errors of `Estimator.learn_many`.
        """
        X = as_frame(X)
        names_of(X)  # anything but rows has no length
        super().learn_many(X, np.full(len(X), present()) if y is None else y, w=w)

    @cached_property
    def _plain_targets(self) -> bool:
        return self._calendar is None

    def _encode_target(self, y: Any) -> float:
        if self._calendar is None:
            return 0.0
        if y is None:
            return present()
        if not is_number(y):
            raise SchemaError("y: expected the time of the record, in seconds since 1970")
        self._check_targets(np.array([y]))
        return float(y)

    def _encode_targets(self, y: object) -> np.ndarray:
        return self._learned_targets(floats("y", y)) if isinstance(y, np.ndarray) else super()._encode_targets(y)

    def _learned_targets(self, y: np.ndarray) -> np.ndarray:
        """The times of rows; NaN, for a record without a time: now."""
        return np.zeros(y.shape) if self._calendar is None else np.where(np.isnan(y), present(), y)

    def _check_targets(self, y: np.ndarray) -> None:
        if self._calendar is None:
            return
        if np.any(y < 0):
            raise SchemaError("y: expected seconds since 1970 (UTC), got a time before it: leave such records out")
        if not np.all(y < YEAR_10000):
            unit = "for milliseconds, divide them by 1,000"
            raise SchemaError(f"y: expected seconds since 1970 (UTC), got a time beyond the year 9999; {unit}")
        # Twice what a job allows, so that a clock that is set back after it read a record stops no job.
        ahead = 2 * furthest(self._calendar.length)
        if np.any(y > present() + ahead):
            expected = f"y: expected times at most {in_units(int(ahead))} after the present"
            raise SchemaError(f"{expected}, because the window of the present must stay among the {KEPT} latest")

    def _check_rows(self, X: np.ndarray, y: np.ndarray) -> None:
        """Nothing clips a column after this, and the noise is for columns of the schema."""
        super()._check_rows(X, y)
        self.check_columns(X)

    def check_columns(self, X: np.ndarray) -> None:
        """Raise `SchemaError` unless columns `X` (n, p), finite, are such as records give."""
        assert isinstance(self._features, SchemaFeatures), "features are declared by a mapping"
        if not self._features.makes(X):
            raise SchemaError(
                "X: expected the columns of the schema: numbers in [-1, 1], and one 1 at most by category"
            )

    def coding(self, of_target: bool) -> np.ndarray:
        """Return what makes the columns that are read here of those of a model with these features, (k, c).

        Parameters
        ----------
        of_target
            Whether the last feature is the model's target, which is none of its columns.

        Raises `ConfigError` for a feature that is read and has `per`, if missing and other values have no column.
        """
        read = [column for one in self.declared for columns in (one.of, one.by) for column in np.ravel(columns)]
        blocks = []
        assert isinstance(self.features, Mapping)
        for name, declared in [*Schema(self.features).declarations.items()][: -1 if of_target else None]:
            if name in read and declared.per and len(declared.values) > len(declared.pieces):
                raise ConfigError(f"{name!r} has per, and so no column for missing and other values")
            levels = [[piece.at[0]] for piece in declared.pieces]
            blocks.append(np.array(levels) if declared.codes else np.eye(len(levels)))
        return scipy.linalg.block_diag(*blocks)

    def absorb(self, report: DrawnAnswer, *, subject: Subject | None = None) -> None:
        """Take one report of a person's device, with trust="nobody": a noisy answer about one of the statistics.

        A forged report that passes moves a statistic as far as an honest one may.

        Parameters
        ----------
        report
            The answer (`streamdp.learners.drawn.answered` makes it), and its budget.
        subject
            The person, for the ledger. A report of a subject over its cap is counted in `n_refused`.

        Raises `SchemaError` for what no device can send, or without a subject although there is a ledger, and
        `ConfigError` for another trust, and for quantiles with `every`.
        """
        if not self.takes_reports:
            raise ConfigError('reports of devices need trust="nobody", and no quantiles with every')
        self._take_report(report, subject)

    @property
    def takes_reports(self) -> bool:
        """See `Estimator.takes_reports`: if nobody may see raw records.

        With `every`, a report is of the window in which it arrives, which asks no device for thresholds of quantiles.
        """
        plain = self._calendar is None or all(one.kind != "quantile" for one in self.declared)
        return self.trust == "nobody" and plain

    def reported(self) -> list[tuple[Declared, Part, float]]:
        """Return what records report about, with trust="nobody": parts of statistics with their shares of records."""
        learner: Any = self.learner.pattern if isinstance(self.learner, Series) else self._learner(Drawn, "reported")
        each = [one for one in self._by_name for _ in range(len(one.items) if one.kind == "quantile" else 1)]
        return list(zip(each, learner.parts, learner.shares, strict=True))

    def part_of(self, of: int) -> None:
        """From now on add up one of several parts of each batch, for `take_sums`, and release nothing.

        Parameters
        ----------
        of
            How many parts there are. Each person's records are in one of them.
        """
        if isinstance(self.learner, Series):
            self.learner.remake(lambda whole: SumsPart(whole, of))
        else:
            self.learner = SumsPart(self._learner(Sums, "part_of"), of)

    def take_sums(self) -> dict[str, np.ndarray]:
        """Return what was added up since `part_of`: the windows (k,), rows (k,) and sums (k, s) of batches.

        The sums have no noise. Only the process that calls `add_sums` may read them.
        """
        parts: Any = self.learner.windows if isinstance(self.learner, Series) else {0: self.learner}
        found = [(window, rows, total) for window, part in parts.items() for rows, total in part.sums]
        names = ("windows", "rows", "sums")
        return {name: np.array([batch[i] for batch in found], np.int64) for i, name in enumerate(names)}

    def add_sums(self, parts: Sequence[Mapping[str, np.ndarray]], records: int) -> None:
        """Learn the records of other processes.

        Parameters
        ----------
        parts
            What `take_sums` returned in each of them; sums are overwritten when they are added.
        records
            How many records there are in all of them.

        Raises `ConfigError` for a batch with more records than planned. After an error, load a state.
        """
        learner: object = self.learner
        with self.learner.rng.lock:
            if records:
                self._count_batch()
            if isinstance(learner, Series):
                learner.seen[0] += records
            for window in sorted({window for part in parts for window in part["windows"].tolist()}):
                rows = [zip(part["windows"], part["rows"].tolist(), part["sums"], strict=True) for part in parts]
                sums: Any = learner.at(window) if isinstance(learner, Series) else learner
                sums.add_parts([[batch for at, *batch in each if at == window] for each in rows])

    # -- what was released -------------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """Return the statistics by name: a number, or numbers by item, or by group; NaN where too little is known.

        Items are categories, bins (low, high), or levels of quantiles if there are several. With `every`, all this by
        the beginning of each window, as text.
        """
        return self._by_window(lambda one, found: _shaped(one, found[:, 0].tolist()), 0.0)

    def interval(self, level: float = 0.95) -> dict[str, Any]:
        """Return confidence limits (low, high) in the form of `get`; NaN where they are not known.

        Those of means, proportions and quantiles are for the distribution that records come from, those of counts and
        sums for the records themselves.

        Parameters
        ----------
        level
            The confidence, above 0 and below 1, of each interval alone.

        Raises `ConfigError` for another level.
        """
        z = _deviations(level)
        return self._by_window(lambda one, found: _shaped(one, [tuple(row) for row in found[:, 1:].tolist()]), z)

    def _by_window(self, shaped: Callable[[Declared, np.ndarray], Any], z: float) -> dict[str, Any]:
        found: dict[Any, dict[str, object]] = {
            start: {one.name: shaped(one, self._estimated(one, z, learner)) for one in self._with_texts(learner)}
            for start, learner in self._windows().items()
        }
        return found if self._calendar is not None else found[None]

    def _windows(self) -> dict[str | None, Learner]:
        """The learners by the beginning of their window; None without windows."""
        if not isinstance(self.learner, Series) or self._calendar is None:
            return {None: self.learner}
        return {self._calendar.start(window): one for window, one in self.learner.windows.items()}

    @property
    def estimated(self) -> Statistics:
        """The statistics: this."""
        return self

    def rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        """Return all numbers as a table: `statistic`, `group`, `item`, `value`, `low` and `high`; None: not known.

        A bin is a list [low, high]; a group or an item by several columns is a list with one of each.
        With `every`, also `window`, its beginning. A number that is at a declared bound has `doubt`, which says so.

        Parameters
        ----------
        level
            As for `interval`.

        Raises `ConfigError` for a level out of range.
        """
        z, found = _deviations(level), []
        windows = self._windows().items()
        for start, learner, one in ((start, part, one) for start, part in windows for one in self._with_texts(part)):
            at: dict[str, object] = {} if start is None else {"window": start}
            keys = [(group, item) for group in one.groups for item in one.keys]
            estimated = self._estimated(one, z, learner).tolist()
            for (group, item), numbers, doubt in zip(
                keys, estimated, self._doubts(one, estimated, z, learner), strict=True
            ):
                value, low, high = (None if math.isnan(number) else number for number in numbers)
                at |= {"statistic": one.name, "group": as_lists(group), "item": as_lists(item)}
                more = {} if doubt is None else {"doubt": doubt}
                found.append(at | {"value": value, "low": low, "high": high} | more)
        return found

    def tables(self) -> Tables:
        """Return the counts, shares and histograms as tables that are consistent, from which records can be drawn.

        This is computed from the released numbers, and spends nothing. Raises `NotAvailableError` if nothing was
        released, if nothing is counted by categories or bins, or with `every`, and `ConfigError` if a number has
        different edges in two statistics.
        """
        counted: list[Counted] = []
        values: dict[str, Sequence[object]] = {}
        declared = [one for one in self._with_texts(self.learner) if one.kind in _OF_CELLS]
        if not declared or self._calendar is not None or not self.learner.n_released:
            need = "expected counts, shares or histograms, without every, of which something was released"
            raise NotAvailableError(f"there are no tables: {need}")
        for one in declared:
            columns = []
            for several, names in ((one.by, one.groups), (one.of, one.items)):
                if several is not None:
                    columns += [*zip(*_apart(several, names), strict=True)]
            if len({column for column, _ in columns}) < len(columns):
                raise ConfigError(f"{one.name!r}: expected each feature once in a statistic, for consistent tables")
            for column, kinds in columns:
                if values.setdefault(column, kinds) != kinds:
                    raise ConfigError(f"{column!r}: expected the same edges in all statistics, for consistent tables")
            found = self._estimated(replace(one, kind="count"), 1.0, self.learner)
            if isinstance(one.block, Pair) and (total := found[:, 0].sum()) > 0:  # it may be of some windows only
                found = found * (self.learner.weight / total)
            deviation = float(np.sqrt(np.mean((found[:, 2] - found[:, 1]) ** 2))) / 2
            counted.append(Counted(one.name, tuple(column for column, _ in columns), found[:, 0], deviation))
        return Tables(values, counted, int(self.learner.weight))

    def _doubts(self, one: Declared, estimated: list[list[float]], z: float, learner: object) -> list[str | None]:
        """A doubt about each `estimated` number of a statistic with its limits; None: there is none."""
        kinds = ("mean", "sum", "quantile", "histogram")
        if one.kind not in kinds or not isinstance(self._features, SchemaFeatures):
            return [None] * len(estimated)
        if one.kind == "histogram":
            return _of_bins(one, estimated)
        levels = one.items if one.kind == "quantile" else (None,)
        if one.kind == "sum":  # it is at a bound if the mean of its records is
            estimated = self._estimated(replace(one, kind="mean"), z, learner).tolist()
        declared = self._features.declarations[one.of]
        doubts: list[str | None] = []
        widths = (2 / BINS, 2 / BINS)
        if one.kind == "quantile" and not isinstance(learner, Drawn):
            edges = one.block.edges if isinstance(one.block, Ranks) else one.block.bins.edges
            widths = edges[1] - edges[0], edges[-1] - edges[-2]
        bounds = np.array(declared.values, dtype=float)
        turned = column_of(declared.pieces[0], bounds[0]) > 0  # by a power below 0
        for numbers, q in zip(estimated, levels * len(one.groups), strict=True):
            if (side := at_bound(numbers, one.place, None if q is None else widths)) is None:
                doubts.append(None)
                continue
            above = bool((side > 0) != turned)
            what = f"{one.name!r}" if len(levels) == 1 else f"{one.name!r} at {q:g}"
            share = None if q is None else 1 - q if side > 0 else q
            doubts.append(outside(what, one.of, float(bounds[int(above)]), above, share))
        return doubts

    def _with_texts(self, learner: Any) -> Iterator[Declared]:
        """The declared statistics; the items of heavy hitters are the texts that are found, and pairs are counts."""
        for one in self.declared:
            if isinstance(one.block, Chosen):
                yield from self._chosen(learner, one)
                continue
            if isinstance(one.block, Keyed):
                texts = tuple(shown(text) for text in self._texts_of(learner, one))
                yield replace(one, items=texts) if one.by is None else replace(one, groups=texts)
            elif one.kind == "heavy_hitters" and self._features is not None:
                yield replace(one, items=tuple(self._parts_of(learner, one)[0].found()[0]))
            else:
                yield one

    def _chosen(self, learner: Any, one: Declared) -> Iterator[Declared]:
        """The tables that were chosen, as counts of two columns each."""
        released = {} if self._features is None else learner.released()
        pairs = zip(combinations(zip(one.of, one.items, strict=True), 2), one.block.pieces, strict=True)
        for ((a, of_a), (b, of_b)), block in pairs:
            if block in released and released[block][0].any():
                name, items = f"{one.name}: {a}, {b}", tuple(product(of_a, of_b))
                yield replace(one, name=name, kind="count", of=(a, b), items=items, block=block)

    def _texts_of(self, learner: Any, one: Declared) -> Texts:
        """What was released by texts: in their order if a statistic is by them, or else the most frequent first."""
        found: Texts = learner.texts[one.block] if self._features is not None else {}
        return found if one.by is not None else dict(sorted(found.items(), key=lambda item: -item[1][0]))

    def _parts_of(self, learner: Drawn, one: Declared) -> list[Any]:
        """The parts of a learner of reports, from the first one of a statistic on."""
        before = self._by_name[: [other.name for other in self._by_name].index(one.name)]
        return learner.parts[sum(len(other.items) if other.kind == "quantile" else 1 for other in before) :]

    def _estimated(self, one: Declared, z: float, learner: Any) -> np.ndarray:
        """Values and limits (k, 3) from a learner: by group, and in it by item."""
        n = int(learner.weight)
        if self._features is None or not n:
            return np.full((len(one.groups) * len(one.keys), 3), np.nan)
        if isinstance(learner, Drawn):
            found = self._of_reports(learner, one, n, z)
        elif isinstance(one.block, Keyed):
            found = self._of_texts(learner, one, n, z)
        else:
            sums, noise = learner.released()[one.block]
            if one.kind in ("count", "histogram", "sum"):
                z = learner.reach(z)
            found = _of_sums(one, sums, noise, n, z, learner.known)
        middle, half = one.place
        between = (middle - half, middle + half) if one.kind == "mean" else (-math.inf, math.inf)
        shown = np.clip(found[:, 0], *between)
        return np.column_stack([shown, limits_of(found[:, 1:], found[:, 0], shown, between)])

    def _of_texts(self, learner: Any, one: Declared, n: int, z: float) -> np.ndarray:
        texts = np.array([*self._texts_of(learner, one).values()]).reshape(-1, one.block.parts + 1)
        windows, z = texts[:, -1], z if one.kind == "mean" else learner.reach(z)
        noise = learner.noise_by_texts(one.block)
        if one.by is None:
            return _with_limits(Estimates(texts[:, 0], np.sqrt(noise * windows)), z)
        each = replace(one, block=Thirds(Levels(0, len(texts)), one.block.column))
        return _of_sums(each, texts[:, :-1].T.ravel(), noise * max(windows, default=1.0), n, z, learner.known)

    def _of_reports(self, learner: Drawn, one: Declared, n: int, z: float) -> np.ndarray:
        middle, half = one.place
        part, *others = self._parts_of(learner, one)
        if one.kind == "quantile":
            roots = [part, *others[: len(one.items) - 1]]
            values = np.sort(np.stack([part.quantiles() for part in roots], axis=1), axis=1)
            limits = np.stack([part.limits(z) for part in roots], axis=1)
            return middle + half * np.concatenate([values[:, :, None], limits], axis=2).reshape(-1, 3)
        if isinstance(part, Hitters):
            return _with_limits(part.found()[1].counts(n), z)
        assert isinstance(part, CellReports)
        found = part.frequencies()
        if not isinstance(one.block, Values):
            return _with_limits(_of_cells(one, found, n), z)
        values = middle + half * part.levels
        if one.kind not in ("mean", "sum"):
            raise _unknown(one.kind)
        return _with_limits(found.means(values) if one.kind == "mean" else found.counts(n, values), z)

    @property
    def weights(self) -> dict[Any, Any]:
        """None: statistics have no weights. See `get`."""
        return {}

    @property
    def theta(self) -> np.ndarray:
        """Raise `NotAvailableError`: see `get`."""
        raise NotAvailableError("statistics have no theta: see get()")

    def predict_encoded(self, X: np.ndarray) -> np.ndarray:
        """Raise `NotAvailableError`: see `get`.

        Parameters
        ----------
        X
            Not used.
        """
        raise NotAvailableError("statistics predict nothing: see get()")

    def model_dict(self) -> dict[str, object]:
        shapes = [(one.name, one.kind, one.of, one.by, one.groups, one.items, one.share) for one in self._by_name]
        return super().model_dict() | {"loss": "", "statistics": repr(shapes), "trust": self.trust}


def _apart(columns: Any, names: Sequence[Any]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """One or several columns, and the names of the kinds of each, from those of all together."""
    if not isinstance(columns, list | tuple):
        return [columns], [names]
    return columns, [tuple(dict.fromkeys(each)) for each in zip(*names, strict=True)]


def _of_bins(one: Declared, estimated: list[list[float]]) -> list[str | None]:
    """The doubts about a histogram, by group and bin: those of a number about its first and last bins within bounds."""
    found: list[str | None] = [None] * len(estimated)
    if isinstance(one.of, list | tuple) or not isinstance(one.items[0], tuple):
        return found
    middle, half = one.place
    edges, k = [low for low, _ in one.items[1:]], len(one.items)
    first, last = np.searchsorted(edges, (middle - half, middle + half), side="right").tolist()
    bins = np.clip(one.items, middle - half, middle + half)[first : last + 1].tolist()
    for at in range(0, len(estimated) if last > first else 0, k):
        numbers = estimated[at + first : at + last + 1]
        for place, above in ((first, False), (last, True)):
            found[at + place] = outer_bin(repr(one.name), one.of, bins, numbers, above)
    return found


def _deviations(level: Any) -> float:
    """How many deviations a confidence level is."""
    check_level(level)
    return float(scipy.special.ndtri((1 + level) / 2))


def _of_sums(one: Declared, sums: np.ndarray, noise: float, n: int, z: float, known: float) -> np.ndarray:
    """Values and limits (k, 3) from released sums; groups are `known` from so many deviations on."""
    middle, half = one.place
    block: Any = one.block
    if isinstance(block, Ranks):
        found = (middle + half * block.read(sums, z)).reshape(len(one.groups), -1, 3)
        return np.sort(found, axis=1).reshape(-1, 3)  # so quantiles do not cross
    if one.kind == "quantile":
        edges = middle + half * np.array(block.bins.edges)
        rows = [Ordered(row, block.root, noise, edges) for row in sums.reshape(len(one.groups), -1)]
        return np.array([row.quantile(q, z) for row in rows for q in one.items])
    if not isinstance(block, Values):
        return _with_limits(_of_cells(one, frequencies(sums, noise, n), n, known), z)
    moments, noises = block.moments(sums, noise, n)
    if one.kind == "mean":
        mean = means(moments, noises, known)
        return _with_limits(Estimates(middle + half * mean.values, half * mean.deviations), z)
    if one.kind != "sum":
        raise _unknown(one.kind)
    deviation = math.hypot(middle * math.sqrt(noises[0]), half * math.sqrt(noises[1]))
    total = middle * moments[0] + half * moments[1]
    return _with_limits(Estimates(total, np.full(len(total), deviation)), z)


def _of_cells(one: Declared, found: Frequencies, n: int, known: float = KNOWN) -> Estimates:
    """Counts or shares of the cells of a statistic, the latter in groups that are `known`."""
    if one.kind not in _OF_CELLS:
        raise _unknown(one.kind)
    return found.shares(len(one.items), known) if one.kind == "proportion" else found.counts(n)


def _with_limits(found: Estimates, z: float) -> np.ndarray:
    return np.column_stack([found.values, found.limits(z)])


def _shaped(one: Declared, flat: Sequence[object]) -> object:
    """A list by group and item as mappings, without those of a single one."""
    if not (k := len(one.keys)):
        return {}
    rows = [flat[i : i + k] for i in range(0, len(flat), k)]
    found = [row[0] if one.keys == (None,) else dict(zip(one.keys, row, strict=True)) for row in rows]
    return found[0] if one.by is None else dict(zip(one.groups, found, strict=True))
