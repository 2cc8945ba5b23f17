"""Private statistics with the interface of `river.stats`: `update` takes a value, `get` returns the statistic.

Each is one entry of a `Statistics`, which estimates several from the same records in one budget, and which jobs use.

>>> from streamdp import stats
>>> median = stats.Quantile(0.5, bounds=(0, 100))
>>> for i in range(10_000):
...     median.update(i % 100)
>>> 45 < median.get() < 55
True
>>> str(median.guarantee)
'eps=1,delta=1e-06'
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from river import stats as river_stats

from streamdp.data.records import Subject
from streamdp.errors import ConfigError, SchemaError, check_whole
from streamdp.estimators.door import Trust
from streamdp.estimators.parameters import documented
from streamdp.estimators.statistics import Statistics
from streamdp.privacy.guarantees import Budget, Guarantee

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

__all__ = ["Count", "HeavyHitters", "Histogram", "Mean", "Proportion", "Quantile", "Statistics", "Sum"]

_NAME, _VALUE, _GROUP = "statistic", "value", "by"


def _listed(name: str, given: object) -> list[Any]:
    """A list. Raises `ConfigError` for anything else: the letters of a text are no list of categories."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name}: expected a list, got {type(given).__name__}")
    return list(given)


def _instead(found: object, before: float) -> object:
    """The same numbers, also by group or level, with `before` in place of NaN."""
    if isinstance(found, Mapping):
        return {key: _instead(value, before) for key, value in found.items()}
    return before if found != found else found


def _middle(one: Any) -> float:
    low, high = one.bounds
    return float(low + (high - low) / 2 if one.before is None else one.before)


@dataclass(eq=False, repr=False, kw_only=True)
class _Single(river_stats.base.Univariate):
    """One statistic.

    Guarantee, source and errors: those of `Statistics`.

    Parameters
    ----------
    bounds
        The public bounds (low, high).
    categories
        The public categories, at least two.
    edges
        The public edges of the bins, three or more, ascending. Values beyond them are in the outer bins.
    q
        The level, or an ascending list of levels, in (0, 1).
    by
        The public groups, at least two; None: no groups.
    length
        How many bytes of a text are reported, 1 to 64. Each more needs more records to find a text.
    before
        What `get` returns while too little is known, may be NaN; None: the middle of the bounds, of a sum 0.
    budget
        As for `Statistics`.
    trust
        As for `Statistics`.
    """

    by: Sequence[str] | None = field(default=None, init=False)
    budget: Budget | str | None = None
    trust: Trust = "process"
    ledger: "Ledger | None" = None
    seed: int | None = None

    def __new__(cls, *given: object, **_: object) -> Self:
        """Raises `ConfigError` for more than what stands in place, as `Mean(0, 1)` for `Mean((0, 1))`."""
        places = [one.name for one in fields(cls) if one.init and not one.kw_only]
        if len(given) > len(places):
            example = {"bounds": "bounds=(0, 100)", "q": "q=0.5", "edges": "edges=[0, 10, 20]", "length": "length=8"}
            shown = ", ".join(example.get(name, f"{name}=['a', 'b']") for name in places)
            name, wanted = cls.__name__, " and ".join(places)
            need = f"expected {wanted}, as {name}({shown}), and all else by its name; got {len(given)} values"
            raise ConfigError(f"{name}: {need}")
        return super().__new__(cls)

    def _begin(self, kind: str, declared: object, **more: object) -> None:
        given: dict[str, object] = {kind: _VALUE} | more | ({} if self.by is None else {"by": _GROUP})
        features = {_VALUE: declared} | ({} if self.by is None else {_GROUP: _listed("by", self.by)})
        self.estimator = Statistics({_NAME: given}, features, self.budget, self.trust, self.ledger, self.seed)
        """The `Statistics` that holds the state: save, load and merge it."""

    def update(self, x: object, by: str | None = None, *, subject: Subject | None = None) -> None:
        """Take one value `x`: a number, which is clipped to the bounds, or one of the categories.

        `by` is the group of the value, None without groups, and `subject` the person, if there is a ledger. Raises
        `SchemaError` for a value or group that was not declared, before anything is spent.
        """
        self.estimator.learn_one({_VALUE: x} if by is None else {_VALUE: x, _GROUP: by}, subject=subject)

    def get(self) -> Any:
        """Return the statistic, as `Statistics.get`: by group if there are groups.

        While too little is known, a mean or a quantile is `before`, by default the middle of the bounds, because
        River's bandits and aggregators compare numbers; `interval` then has NaN. Other statistics are NaN.
        """
        return _instead(self.estimator.get()[_NAME], self._before)

    @property
    def _before(self) -> float:
        """What stands where too little is known."""
        return math.nan

    def interval(self, level: float = 0.95) -> Any:
        """Return its confidence limits of a `level` above 0 and below 1, as `Statistics.interval`; or `ConfigError`."""
        return self.estimator.interval(level)[_NAME]

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.get()}"

    @property
    def guarantee(self) -> Guarantee:
        """What holds for each value."""
        return self.estimator.guarantee

    def statement(self) -> str:
        """Return the guarantee in words."""
        return self.estimator.statement()


@dataclass(eq=False, repr=False, kw_only=True)
class _Grouped(_Single):
    by: Sequence[str] | None = None


@dataclass(eq=False, repr=False)
class _Number(_Grouped):
    bounds: tuple[float, float]
    before: float | None = field(default=None, kw_only=True)
    _before = property(_middle)


@documented()
@dataclass(eq=False, repr=False)
class Mean(_Number):
    """The mean of a number."""

    def __post_init__(self) -> None:
        self._begin("mean", self.bounds)


@documented()
@dataclass(eq=False, repr=False)
class Sum(_Number):
    """The sum of a number."""

    @property
    def _before(self) -> float:
        return 0.0 if self.before is None else self.before

    def __post_init__(self) -> None:
        self._begin("sum", self.bounds)


@documented()
@dataclass(eq=False, repr=False)
class Quantile(_Grouped):
    """One or several quantiles of a number, which do not cross."""

    q: float | Sequence[float]
    bounds: tuple[float, float]
    before: float | None = field(default=None, kw_only=True)
    _before = property(_middle)

    def __post_init__(self) -> None:
        levels = list(self.q) if isinstance(self.q, Sequence) else self.q
        self._begin("quantile", self.bounds, quantile=levels, of=_VALUE)


@documented()
@dataclass(eq=False, repr=False)
class Count(_Single):
    """How many values there are of each category."""

    categories: Sequence[str]

    def __post_init__(self) -> None:
        self._begin("count", _listed("categories", self.categories))


@documented()
@dataclass(eq=False, repr=False)
class Proportion(_Grouped):
    """The share of each category."""

    categories: Sequence[str]

    def __post_init__(self) -> None:
        self._begin("proportion", _listed("categories", self.categories))


@documented()
@dataclass(eq=False, repr=False)
class Histogram(_Grouped):
    """How many values of a number there are in each bin."""

    edges: Sequence[float]

    def __post_init__(self) -> None:
        listed = _listed("edges", self.edges)
        ends = (listed[0], listed[-1]) if len(listed) > 2 else (0.0, 1.0)
        self._begin("histogram", ends, edges=listed)


@documented()
@dataclass(eq=False, repr=False)
class HeavyHitters(_Single):
    """The most frequent texts of an open domain, and how many values are each, by reports that need no trust.

    >>> words = HeavyHitters(length=4, budget="eps=4", seed=1)
    >>> for i in range(4_000):
    ...     words.update("tea" if i % 2 else f"x{i % 999}")
    >>> list(words.get()), 1_500 < words.get()["tea"] < 2_500
    (['tea'], True)
    """

    length: int = 8
    trust: Trust = field(default="nobody", init=False)

    def __post_init__(self) -> None:
        check_whole("length", self.length, 1, 64)
        self._begin("heavy_hitters", {"text": self.length})

    def update(self, x: object, by: str | None = None, *, subject: Subject | None = None) -> None:
        """Take one text `x`, of which as many characters are reported as fit `length` bytes of UTF-8.

        `by` is not used; `subject` is the person, if there is a ledger. Raises `SchemaError` for anything but text that
        is not empty, before anything is spent.
        """
        if not isinstance(x, str):
            raise SchemaError(f"expected text, got {type(x).__name__}")
        self.estimator.learn_one({_VALUE: x}, subject=subject)
