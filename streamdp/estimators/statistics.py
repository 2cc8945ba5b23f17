"""Statistics of a stream: means, sums, counts, shares, histograms and quantiles, by declared groups, in one budget.

A declaration becomes a block of numbers that a record adds (`streamdp.learners.cells`). If a process or a shuffler may
see raw records, all blocks are one vector, and their sum is released with noise in batches (`streamdp.learners.sums`).
If the operator may hold a window, a pure budget means Laplace noise and drawn quantiles (`streamdp.learners.sums`). If
nobody may, each record reports about one of them (`streamdp.learners.drawn`). Values and limits are read from either by
`streamdp.reading.estimates`.

Neighbours: replace one record. Trust and claim: see the learners. Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import scipy

from streamdp.data.floats import floats
from streamdp.data.records import RawRecord, Subject
from streamdp.data.schema import Schema
from streamdp.data.times import YEAR_10000, ZONE, Calendar, present
from streamdp.errors import (
    BudgetError,
    ConfigError,
    NotAvailableError,
    SchemaError,
    check_choice,
    check_level,
    check_whole,
    is_number,
)
from streamdp.estimators.declared import KINDS, Declared, DeclaredCount, Reader
from streamdp.estimators.door import Trust
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.features import SchemaFeatures
from streamdp.estimators.frames import as_frame, names_of
from streamdp.estimators.hints import WEIGHT
from streamdp.estimators.parameters import documented
from streamdp.learners.cells import Block
from streamdp.learners.divided import SumsPart
from streamdp.learners.drawn import Drawn, DrawnAnswer
from streamdp.learners.learner import WITH_DELTA, Learner
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.local_counts import ReportPart
from streamdp.learners.series import KEPT, Series, furthest
from streamdp.learners.sums import WHOLE, BatchSum, Held, HeldPure, HeldSums, Mixed, Pan, PanPure, Sums
from streamdp.ledger.periods import in_units, whole_seconds
from streamdp.privacy.entropy import AnyRng, entropy, fresh_words
from streamdp.privacy.guarantees import Budget, PureDP, parse_budget
from streamdp.reading.estimates import as_lists, limits_of
from streamdp.reading.tables import Counted, Tables

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger


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


def _kinds(statistics: Mapping[Any, Any]) -> list[type[Declared]]:
    return [KINDS[key] for one in statistics.values() if isinstance(one, Mapping) for key in one if key in KINDS]


def _reads_texts(statistics: Mapping[Any, Any], features: Mapping[Any, Any]) -> bool:
    texts = [name for name, declared in features.items() if isinstance(declared, Mapping) and "text" in declared]
    given = [one for one in statistics.values() if isinstance(one, Mapping)]
    return not {value for one in given for value in one.values() if isinstance(value, str)}.isdisjoint(texts)


def need_delta(trust: object, statistics: Mapping[Any, Any], features: Mapping[Any, Any]) -> bool:
    """Whether statistics with this trust need a budget with a delta."""
    texts = trust == "window" and _reads_texts(statistics, features)
    return trust == "shuffler" or texts or any(kind.delta_with == trust for kind in _kinds(statistics))


@documented()
class Statistics(Estimator):
    """Several statistics of the same records, in one budget.

    Guarantee: each record has `budget`, whatever statistics are declared, for neighbours that differ in that record,
    against everyone who sees what is ever saved or served; for trust="process" also against one break-in into memory.
    Source: the Gaussian mechanism for sums (Cheu et al. 2022, Algorithm 6), shuffled sums (Algorithm 2 there),
    randomised response for reports (Wang et al. 2017), and for windows the Laplace and the exponential mechanism (Dwork
    et al. 2006; McSherry, Talwar 2007); the proof is docs/proofs/statistics.md.

    Raises `ConfigError`, `SchemaError` and `BudgetError` for declarations and parameters out of range.

    Parameters
    ----------
    statistics
        What to estimate, by name: {"mean": column}, {"sum": column}, {"count": categories}, {"proportion": categories},
        {"histogram": categories}, {"histogram": column, "edges": [...]}, {"quantile": q or [q, ...], "of": column},
        {"heavy_hitters": text}, for trust="nobody" and "window", or {"pairs": [columns]}, for "window": the counts of
        two of these columns that say most; each but "count", "pairs" and "heavy_hitters" maybe with "by": categories,
        or for "mean" and "sum" with trust="window" a text, of which a window finds the frequent ones,
        and each with "share", its part of the budget relative to others. A column is a feature with bounds, and its
        transform if it has one (log, asinh or power); categories are one with categories. A list of features counts
        them together, or groups by all of them; a number among them has its bins in "edges": {column: [...]}.
    features
        The declared public schema: bounds (low, high), a list of categories, or {"text": 8} for the first 8 bytes of a
        text of an open domain, by feature, as for models. Records come
        raw; numbers are clipped to their bounds.
    budget
        What each record spends; None: ApproxDP(1, 1e-6), and PureDP(1) for trust="nobody" and "window". Text such as
        "mu=1" is accepted; "eps=1" gets a delta of 1e-6 where it needs one. For "window" and "process", PureDP is
        Laplace noise, and for "window" drawn quantiles; any other is Gaussian noise.
    trust
        "process": this process sees raw records and keeps noisy sums only (pan-private). "window": the operator holds
        exact sums and rounded values until a window ends; the least noise. "shuffler": sums of shuffled bits.
        "nobody": each record becomes a noisy report first, which needs the most records.
    every
        The length of windows of time, such as "1 day" or "2 hours": one estimate for each window, of its own records. A
        record's time is the y of `learn_one`, in seconds since 1970 (UTC); None: now. The latest 400 are kept.
        None: one estimate of all records.
    zone
        The time zone of those windows, such as "Europe/Berlin": a day begins at midnight there, and lasts 23 or 25
        hours when the clock is changed. None: UTC.
    batch_size
        The records of each batch; None: they grow with the stream, from 1,000 on. With trust="window" those of a
        window; None: 2^20. `close_batch` ends either before. Not for trust="nobody".

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
        ledger: "Ledger | None" = None,
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
        self._kinds = _kinds(statistics)
        self._of_texts = trust == "window" and _reads_texts(statistics, features)
        alone = [kind.kind for kind in self._kinds if kind.alone]
        if len(alone) > 1 or (alone and self._of_texts):
            raise ConfigError(f"{alone[0]}: expected one such statistic, and no texts that nobody declared beside it")
        self.trust, self.statistics = trust, statistics
        self._with_delta = need_delta(trust, statistics, features)
        self.learns = kinds[trust]
        usual = WITH_DELTA if self._needs_delta else self.learns.default_budget
        spend = usual if budget is None else budget
        pure = isinstance(parse_budget(spend), PureDP) and not (isinstance(spend, str) and self._needs_delta)
        self._pure = (trust in ("window", "process") and pure) or self._of_texts
        reader = Reader(SchemaFeatures(features, type(self).__name__, coded=True), self._pure, trust)
        self.declared = tuple(reader.read(str(name), given) for name, given in statistics.items())
        """The declared statistics, in the order in which they are shown."""
        self._by_name = tuple(sorted(self.declared, key=lambda one: one.name))  # in which they are learned and kept
        self._reporting = [one for one in self._by_name for _ in range(one.reports)]
        self._calendar = _calendar(every, zone)
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)
        self.__post_init__()

    @property
    def _needs_delta(self) -> bool:
        return self._with_delta

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
        kinds: dict[str, type[BatchSum]] = {
            "process": PanPure if self._pure else Pan,
            "window": HeldPure if self._pure else Held,
            "shuffler": Mixed,
        }
        learns: type[Sums] = self.learns  # type: ignore[assignment]
        size = self.batch_size or (WHOLE if self.trust == "window" else None)
        return learns(problem, budget, rng, list(shares.items()), kinds[self.trust], size)

    def _parts(self, whole: float, epsilon: float) -> list[tuple[ReportPart, float]]:
        return [(part, one.share / whole / one.reports) for one in self._by_name for part in one.parts(epsilon)]

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

    def learn_many(self, X: Any, y: object = None, *, w: object = WEIGHT) -> None:
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

    def _encode_target(self, y: object) -> float:
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
        return self.trust == "nobody" and (self._calendar is None or not any(kind.asks for kind in self._kinds))

    def reported(self) -> list[tuple[Declared, ReportPart, float]]:
        """Return what records report about, with trust="nobody": parts of statistics with their shares of records."""
        learner: Any = self.learner.pattern if isinstance(self.learner, Series) else self._learner(Drawn, "reported")
        return list(zip(self._reporting, learner.parts, learner.shares, strict=True))

    @property
    def keeps_rows(self) -> bool:
        """Whether a window keeps a part of each row until its end: such rows are in one process."""
        return self.trust == "window" and self._pure

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
                self._count()
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

    def _by_window(self, shaped: Callable[[Declared, np.ndarray], object], z: float) -> dict[str, Any]:
        found: dict[Any, dict[str, object]] = {
            start: {one.name: shaped(one, self._estimated(one, z, learner)) for one in self._found(learner)}
            for start, learner in self._windows().items()
        }
        return found if self._calendar is not None else found[None]

    def _windows(self) -> dict[str | None, Learner]:
        """The learners by the beginning of their window; None without windows."""
        if not isinstance(self.learner, Series) or self._calendar is None:
            return {None: self.learner}
        return {self._calendar.start(window): one for window, one in self.learner.windows.items()}

    @property
    def estimated(self) -> "Statistics":
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
        for start, learner, one in ((start, part, one) for start, part in windows for one in self._found(part)):
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
        declared = [one for one in self._found(self.learner) if one.of_cells]
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
            assert isinstance(self._features, SchemaFeatures), "something was released"
            named = [self._features.declarations[column].pieces[0].name for column, _ in columns]  # such as log(income)
            for column, (_, kinds) in zip(named, columns, strict=True):
                if values.setdefault(column, kinds) != kinds:
                    raise ConfigError(f"{column!r}: expected the same edges in all statistics, for consistent tables")
            found = self._estimated(DeclaredCount(**vars(one)), 1.0, self.learner)
            if all(one is not other for other in self.declared) and (total := found[:, 0].sum()) > 0:
                found = found * (self.learner.weight / total)
            deviation = float(np.sqrt(np.mean((found[:, 2] - found[:, 1]) ** 2))) / 2
            counted.append(Counted(one.name, tuple(named), found[:, 0], deviation))
        return Tables(values, counted, int(self.learner.weight))

    def _doubts(self, one: Declared, estimated: list[list[float]], z: float, learner: object) -> list[str | None]:
        """A doubt about each `estimated` number of a statistic with its limits; None: there is none."""
        if not isinstance(self._features, SchemaFeatures):
            return [None] * len(estimated)
        if one.doubted is not one:
            estimated = self._estimated(one.doubted, z, learner).tolist()
        return one.doubts(estimated, self._features.declarations, not isinstance(learner, Drawn))

    def _found(self, learner: object) -> Iterator[Declared]:
        """What is shown of the declared statistics: see `Declared.found`."""
        for one in self.declared:
            yield from one.found(None if self._features is None else learner, self._parts_of(learner, one))

    def _parts_of(self, learner: object, one: Declared) -> list[object]:
        """The parts of a learner of reports that are those of a statistic."""
        parts = learner.parts if isinstance(learner, Drawn) else ()
        return [part for part, other in zip(parts, self._reporting, strict=False) if other.name == one.name]

    def _estimated(self, one: Declared, z: float, learner: Any) -> np.ndarray:
        """Values and limits (k, 3) from a learner: by group, and in it by item."""
        n = int(learner.weight)
        if self._features is None or not n:
            return np.full((len(one.groups) * len(one.keys), 3), np.nan)
        if isinstance(learner, Drawn):
            found = one.of_reports(self._parts_of(learner, one), n, z)
        else:
            found = one.of_sums(learner, n, learner.reach(z) if one.of_records else z)
        shown = np.clip(found[:, 0], *one.between)
        return np.column_stack([shown, limits_of(found[:, 1:], found[:, 0], shown, one.between)])

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


def _apart(columns: Any, names: Sequence[object]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """One or several columns, and the names of the kinds of each, from those of all together."""
    if not isinstance(columns, list | tuple):
        return [columns], [names]
    return columns, [tuple(dict.fromkeys(each)) for each in zip(*names, strict=True)]


def _deviations(level: Any) -> float:
    """How many deviations a confidence level is."""
    check_level(level)
    return float(scipy.special.ndtri((1 + level) / 2))


def _shaped(one: Declared, flat: Sequence[object]) -> object:
    """A list by group and item as mappings, without those of a single one."""
    if not (k := len(one.keys)):
        return {}
    rows = [flat[i : i + k] for i in range(0, len(flat), k)]
    found = [row[0] if one.keys == (None,) else dict(zip(one.keys, row, strict=True)) for row in rows]
    return found[0] if one.by is None else dict(zip(one.groups, found, strict=True))
