"""What a row adds to the sums that statistics follow from: blocks of numbers, by the row and by declarations.

A block knows columns by their index. `Cells` count rows by group and bin; `Values` add a column, and its square, by
group, and `Thirds` three polynomials from which both follow. Rows are clipped to declared bounds before, so each vector
of a block has a norm of at most `norm`, and two of them a distance of at most `distance`, and of `distance_l1` in l1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from streamdp.aggregation.block_loops import BlockSums, Places
from streamdp.privacy.entropy import FreshRng
from streamdp.reading.estimates import Ordered

SQUARES = 0.5
"""The weight of the square of a value beside the value: its noise may be larger, for it serves the interval only."""


Sorter = tuple[int, int, tuple[float, ...] | None]
"""A column, the number of its kinds, and the inner edges of bins; None: see `block_loops.Places`."""


Texts = tuple[np.ndarray, np.ndarray]
"""The bytes (k, length) of texts, in order, and of each its sums and in how many windows it was released (k, m + 1)."""

_NEAR = 1e-8
"""A part of the larger bound, which counts as 0 where numbers are told apart by their ratios."""


@lru_cache(maxsize=8)
def cells_around(zero: float, count: int) -> np.ndarray:
    """The edges (count + 1,) of cells of [-1, 1] for quantiles; at `zero` the number is 0.

    Half of the edges divide the width into equal parts, and half the orders of magnitude: if most numbers are far
    smaller than the bounds, a cell is still narrow beside a number. They follow from the declared bounds alone.
    """
    far = 1 + abs(zero)
    steps = far * np.geomspace(_NEAR / 64, 1, 1 << 12)
    places = np.concatenate([np.linspace(-1, 1, (1 << 12) + 1), zero - steps, zero + steps])
    places = np.unique(np.clip(places, -1, 1))
    orders = np.sign(places - zero) * np.log1p(np.abs(places - zero) / (far * _NEAR))
    shares = (places + 1) / 4 + (orders - orders[0]) / (orders[-1] - orders[0]) / 2
    edges: np.ndarray = np.interp(np.linspace(0, 1, count + 1), shares, places)
    edges[[0, -1]] = -1, 1
    return edges


@dataclass(frozen=True)
class Index:
    """Sorts rows by several columns, the `sorters`; without any, all rows are of one kind.

    The kinds of the last sorter change first.
    """

    sorters: tuple[Sorter, ...] = ()

    @property
    def count(self) -> int:
        """Into how many kinds."""
        return math.prod(count for _, count, _ in self.sorters)

    @cached_property
    def places(self) -> Places:
        """What sorts, compiled."""
        return Places(self.sorters)

    def of(self, X: np.ndarray) -> np.ndarray:
        """The kind (n,) of each row of X (n, p), from 0."""
        return self.places.of(X)


def levels(column: int, kinds: int) -> Index:
    """By the category of a declared feature, whose `column` is its code. `kinds`: the number of categories."""
    return Index(((column, kinds, None),))


def bins(column: int, edges: Sequence[float]) -> Index:
    """By the bin of a number: bin j holds edges[j] <= x < edges[j + 1], the last one also its upper edge.

    The edges ascend, in units of the column. Values beyond them belong to the first or the last bin.
    """
    return Index(((column, len(edges) - 1, tuple(edges[1:-1])),))


def crossed(parts: Sequence[Index]) -> Index:
    """By several indices together: the kinds of the last one change first."""
    return Index(tuple(sorter for part in parts for sorter in part.sorters))


class Block:
    """The numbers that a batch or a window releases. Rows add vectors to them, or parts of rows are kept until then."""

    choice: ClassVar[float] = 0.0
    """The share of its mu^2 that is spent on which of its numbers are released."""

    @property
    def size(self) -> int:
        """How many numbers, without those of texts."""
        raise NotImplementedError

    @property
    def pieces(self) -> "Sequence[Block]":
        """The blocks that it consists of."""
        return (self,)

    # -- blocks of vectors -------------------------------------------------------------------------------------------

    @property
    def norm(self) -> float:
        """The largest norm of a row's vector."""
        raise NotImplementedError

    @property
    def distance(self) -> float:
        """The largest distance of two rows' vectors."""
        raise NotImplementedError

    @property
    def distance_l1(self) -> float:
        """The largest l1 distance of two rows' vectors; not of ordered `Cells`."""
        raise NotImplementedError

    def summed(self, scale: float) -> tuple[object, ...]:
        """How `BlockSums` sums the vectors of rows times a scale, which it may round to whole numbers."""
        raise NotImplementedError

    def chosen(self, sums: np.ndarray, rows: int, mu: float, rng: FreshRng) -> np.ndarray:
        """Which of its exact sums (size,) of so many `rows` are released, as 1 and 0, by words of `rng`.

        `mu` is that of `choice`.
        """
        return np.ones(self.size)

    # -- blocks of kept rows -----------------------------------------------------------------------------------------

    @property
    def row(self) -> np.dtype[Any] | None:
        """What is kept of each row until the release, for a pure epsilon; None: nothing, its vector is added."""
        return None

    @property
    def no_texts(self) -> Texts | None:
        """The sums of no texts that nobody declared, which need a delta; None: it has numbers only."""
        return None

    def kept(self, X: np.ndarray, epsilon: float) -> np.ndarray:
        """What is kept of rows X (n, p), as `row` (n,)."""
        raise NotImplementedError

    def released(
        self, rows: np.ndarray, epsilon: float, delta: float, rng: FreshRng
    ) -> tuple[np.ndarray, Texts | None]:
        """What is released of the rows that are `kept`, by words of `rng`: numbers (size,), and sums by text.

        The rows may change.
        """
        raise NotImplementedError

    def variance(self, epsilon: float) -> float:
        """The variance by noise of what is released of one text."""
        return 0.0


def sums_of(parts: Sequence[tuple[Block, float]], cells: float) -> BlockSums:
    """What sums the vectors of blocks times their factors, in whole numbers of 1/cells."""
    pieces = [(piece, factor) for block, factor in parts for piece in block.pieces if piece.row is None]
    return BlockSums([piece.summed(factor * cells) for piece, factor in pieces])


def added(parts: Sequence[Texts]) -> Texts:
    """The sums of several windows by text."""
    texts, sums = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    known, which = np.unique(texts, axis=0, return_inverse=True)
    total = np.zeros((len(known), sums.shape[1]))
    np.add.at(total, which.ravel(), sums)
    return known, total


class Kept:
    """What is kept of each row for a `block`, in an array that is longer than there are rows. A copy has none of it."""

    def __init__(self, block: Block, epsilon: float, delta: float) -> None:
        self._block, self.epsilon, self._delta = block, epsilon, delta
        self.variance = block.variance(epsilon)
        self._rows, self._n = np.zeros(0, block.row), 0

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_rows": np.zeros(0, self._block.row), "_n": 0}

    @property
    def rows(self) -> np.ndarray:
        """What is kept, as `Block.row` (n,)."""
        return self._rows[: self._n]

    def add(self, X: np.ndarray) -> None:
        """Take rows X (n, p)."""
        before, n = self.rows, self._n + len(X)
        if n > len(self._rows):
            self._rows = np.zeros(2 * n, self._block.row)
            self._rows[: self._n] = before
            before[:] = 0
        rows = self._block.kept(X, self.epsilon)
        self._rows[self._n : n], self._n = rows, n
        rows[:] = 0

    def close(self, rng: FreshRng) -> tuple[np.ndarray, Texts | None]:
        """See `Block.released`."""
        return self._block.released(self.rows, self.epsilon, self._delta, rng)

    def wipe(self) -> None:
        """Forget the rows."""
        self._rows[:], self._n = 0, 0


def _lags(k: int) -> np.ndarray:
    """The first column (k,) of the square root."""
    numbers = np.arange(1, k)
    return np.cumprod(np.append(1.0, (2 * numbers - 1) / (2 * numbers)))


@lru_cache(maxsize=4)
def square_root(k: int) -> np.ndarray:
    """The square root R (k, k) of the matrix of ones on and below the diagonal: a Toeplitz matrix."""
    lags = np.subtract.outer(np.arange(k), np.arange(k))
    return np.where(lags >= 0, _lags(k)[np.abs(lags)], 0.0)


@dataclass(frozen=True)
class Cells(Block):
    """How many rows there are by group and bin; of ordered bins maybe in a form whose running totals have little noise.

    `ordered`: whether running totals over the bins are wanted. Then a row adds the column R[:, bin] of the square root
    R of the matrix L of ones on and below the diagonal: R R = L, and a running total is L h = R (R h) for counts h. So
    a noise of deviation s in R h has the deviation s |R_j| in a running total, with |R_j|^2 <= 1.07 + ln(bins)/pi
    (Henzinger, Upadhyay, Upadhyay 2023, for continual counting), where noise in counts has s sqrt(j).
    """

    groups: Index
    bins: Index
    ordered: bool = False
    column = -1
    """That of a number whose sums are wanted: there is none."""

    @property
    def size(self) -> int:
        return self.groups.count * self.bins.count

    @property
    def root(self) -> np.ndarray:
        """R (bins, bins), of bins that are ordered."""
        return square_root(self.bins.count)

    @property
    def norm(self) -> float:
        """See `Block.norm`: the first column is the longest."""
        return float(np.linalg.norm(_lags(self.bins.count))) if self.ordered else 1.0

    @property
    def distance(self) -> float:
        """See `Block.distance`: columns of R have inner products of at least 0."""
        return math.sqrt(2) * self.norm

    distance_l1 = 2.0

    @cached_property
    def index(self) -> Index:
        """The cells, group by group."""
        return crossed((self.groups, self.bins))

    def summed(self, scale: float) -> tuple[object, ...]:
        lags = _lags(self.bins.count) * scale if self.ordered else ()
        return int(self.ordered), self.index.places, self.column, self.bins.count, scale, 0.0, lags

    @property
    def edges(self) -> np.ndarray:
        """Those of bins of a number, from -1 to 1."""
        ((_, _, inner),) = self.bins.sorters
        return np.array([-1.0, *(inner or ()), 1.0])

    def quantiles(
        self, sums: np.ndarray, noise: float, levels: Sequence[float], place: tuple[float, float], z: float
    ) -> np.ndarray:
        """Quantiles and limits (groups * levels, 3) at z deviations, by the sums (size,) of ordered cells.

        `noise`: the variance of each. A number is middle + half * its column, with (middle, half) as `place`.
        """
        edges = place[0] + place[1] * self.edges
        rows = [Ordered(row, self.root, noise, edges) for row in sums.reshape(self.groups.count, -1)]
        return np.array([row.quantile(q, z) for row in rows for q in levels])


@dataclass(frozen=True)
class Values(Block):
    """The sums of a column v in [-1, 1] by group: of 1, of v and of `squares` (2 v^2 - 1), each (groups,).

    Without groups the first is left out, because the number of records is public. `squares` is at most 1/2.
    """

    groups: Index
    column: int
    squares: float = SQUARES
    kind: ClassVar[int] = 2
    """The number of this kind of sum in `block_loops`, where 0 and 1 are those of `Cells`."""

    @property
    def index(self) -> Index:
        """The groups."""
        return self.groups

    @property
    def size(self) -> int:
        return 2 if self.groups.count == 1 else 3 * self.groups.count

    @property
    def norm(self) -> float:
        """See `Block.norm`: reached by v = 1 or -1."""
        return math.sqrt((self.groups.count > 1) + 1 + self.squares**2)

    @property
    def distance(self) -> float:
        """See `Block.distance`.

        Rows of one group: (v - w)^2 (1 + 4 squares^2 (v + w)^2), at most 4 for squares = 1/2: with s = v + w and
        t = v - w, |s| + |t| <= 2, it is t^2 (1 + s^2) <= t^2 (1 + (2 - |t|)^2) <= 4. Of two groups: sqrt(2) norms.
        """
        return 2.0 if self.groups.count == 1 else math.sqrt(2) * self.norm

    @property
    def distance_l1(self) -> float:
        """See `Block.distance_l1`, with c = 2 squares <= 1.

        Rows of one group: |t| (1 + c |s|) <= |t| (1 + c (2 - |t|)), at most (1 + 2 c)^2 / (4 c) if c > 1/2, and else 2.
        Of two groups: the sum of two vectors' l1 norms.
        """
        c = 2 * self.squares
        if self.groups.count > 1:
            return 2 * (2 + self.squares)
        return 2.0 if c <= 0.5 else (1 + 2 * c) ** 2 / (4 * c)

    def moments(self, sums: np.ndarray, noise: float, n: int) -> tuple[np.ndarray, tuple[float, float]]:
        """How many rows a group has, and the sums of v and of v^2 (3, groups); the variances of the first two by noise.

        `sums`: (size,), with the variance `noise` of each. `n`: the number of rows.
        """
        rows = np.vstack([[float(n)], sums.reshape(2, 1)]) if self.groups.count == 1 else sums.reshape(3, -1)
        squares = (rows[2] / self.squares + rows[0]) / 2
        return np.stack([rows[0], rows[1], squares]), (noise * (self.groups.count > 1), noise)

    def summed(self, scale: float) -> tuple[object, ...]:
        return self.kind, self.groups.places, self.column, 1, scale, self.squares, ()


@dataclass(frozen=True)
class Thirds(Values):
    """As `Values`, by the sums of ((1 - v) / 2)^2, (1 - v^2) / 2 and ((1 + v) / 2)^2, each (groups,).

    They are at least 0 and add up to 1, so two rows have an l1 distance of at most 2, as in counts.
    """

    kind: ClassVar[int] = 3

    @property
    def size(self) -> int:
        return 3 * self.groups.count

    norm = 1.0
    distance = math.sqrt(2)
    distance_l1 = 2.0

    def moments(self, sums: np.ndarray, noise: float, n: int) -> tuple[np.ndarray, tuple[float, float]]:
        """See `Values.moments`: of sums a, b and c. The noises of the first two numbers are not correlated."""
        a, b, c = sums.reshape(3, -1)
        return np.stack([a + b + c, c - a, a - b + c]), (3 * noise, 2 * noise)
