"""What a row adds to the sums that statistics follow from: blocks of numbers, by the row and by declarations.

A block knows columns by their index. `Cells` count rows by group and bin; `Values` add a column, and its square, by
group, and `Thirds` three polynomials from which both follow. Rows are clipped to declared bounds before, so each
vector of a block has a norm of at most `norm`, and two of them a distance of at most `distance`, and of `distance_l1`
in l1.

`Keyed` has sums by texts that nobody has declared. A window's sums of each text get Laplace noise, and only texts
whose noisy number of records is above a threshold are released (Korolova, Kenthapadi, Mishra, Ntoulas 2009). Delta is
the probability that the threshold lets a text of one record pass.

`Ranks` has quantiles of the numbers of a window, and limits of each, by the exponential mechanism. A quantile is the
middle of one of many bins, drawn with a weight that falls with its distance from the wanted rank, counted in records.
Weights are whole numbers, so the draw is exact. Limits at 95 % are drawn likewise, at ranks that are as far from that
of the quantile as its rank deviates by sampling and by their own draw.

`Chosen` has tables of two columns, of which a window chooses those that say most, and releases no others. What a table
says is its distance from the one in which both columns are independent. There is one table fewer than columns, and
none joins columns that others join already. Source: MST (McKenna, Miklau, Sheldon 2021), with report noisy max, and
exact tables in place of a first model.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from typing import Any, ClassVar

import numpy as np
import scipy

from streamdp.aggregation.block_loops import BlockSums, Places
from streamdp.data.records import NO_BYTE
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC
from streamdp.privacy.mechanisms.response import epsilon_of
from streamdp.reading.estimates import KNOWN, Ordered, in_order

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
    zero = min(max(zero, -1e9), 1e9)  # further away, orders are of one size in all cells, and doubles do not tell them
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

    def chosen(self, counts: np.ndarray, mu: float, rng: FreshRng) -> np.ndarray:
        """Which of its numbers are released, as 1 and 0, by its exact `counts` (size,) and words of `rng`.

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


@dataclass(frozen=True)
class Keyed(Block):
    """By text, how many records have it, or of a number in [-1, 1] the sums of `Thirds`, which add up to that.

    `places`: the columns of the text's bytes b, which are 2 b / 255 - 1. `column`: that of the number; None: none.
    A record adds numbers that are at least 0 and add up to 1.
    """

    places: tuple[int, ...]
    column: int | None = None
    size = 0

    @property
    def parts(self) -> int:
        """How many sums a text has."""
        return 1 if self.column is None else 3

    @property
    def no_texts(self) -> Texts:
        return np.zeros((0, len(self.places)), np.uint8), np.zeros((0, self.parts + 1))

    @property
    def row(self) -> np.dtype[Any]:
        """See `Block.row`: the bytes of the text, and what the row adds, in cells."""
        return np.dtype([("text", np.uint8, (len(self.places),)), ("adds", np.int64, (self.parts,))])

    def kept(self, X: np.ndarray, epsilon: float) -> np.ndarray:
        rows = np.zeros(len(X), self.row)
        rows["text"] = np.rint((X[:, self.places] + 1) * 127.5)
        adds = 1.0 if self.column is None else sums_of([(Thirds(Index(), self.column), 1.0)], 1.0).vectors(X)
        rows["adds"] = np.rint(adds * self.noise(epsilon)[0])
        return rows

    def noise(self, epsilon: float) -> tuple[float, float]:
        """How many cells of the grid are 1, and the scale of the noise in cells."""
        one = 2.0 ** (20 + math.ceil(math.log2(epsilon)))
        return one, (
            2 * one * ARITHMETIC + 6
        ) / epsilon  # another record: at most 2, and a cell for each rounded number

    def least(self, epsilon: float, delta: float) -> float:
        """The noisy number of records, in cells, above which a text is released.

        A record has at most one cell more for each number, and discrete noise passes a bound of the continuous one,
        which is a cell higher, at most as often.
        """
        one, scale = self.noise(epsilon)
        delta = min(delta, -math.expm1(-epsilon / 2))  # so that 1 / (1 - delta) is at most e^(epsilon / 2)
        return one + 2 * self.parts + _exceeded(self.parts, delta) * scale

    def variance(self, epsilon: float) -> float:
        one, scale = self.noise(epsilon)
        return 2 * (scale / one) ** 2

    def released(self, rows: np.ndarray, epsilon: float, delta: float, rng: FreshRng) -> tuple[np.ndarray, Texts]:
        """See `Block.released`. The order of texts is that of their bytes."""
        one, scale = self.noise(epsilon)
        texts = np.ascontiguousarray(rows["text"])
        known, which = np.unique(texts, axis=0, return_inverse=True)
        sums = np.zeros((len(known), self.parts), dtype=np.int64)
        np.add.at(sums, which.ravel(), rows["adds"])
        noise = grid_laplace(rng, scale, sums.size).reshape(sums.shape)
        sums += noise
        passed = sums.sum(axis=1) > self.least(epsilon, delta)
        found = known[passed], np.column_stack([sums[passed] / one, np.ones(np.count_nonzero(passed))])
        for array in (texts, known, which, sums, noise):
            array[:] = 0
        return np.zeros(0), found

    def moments(self, sums: np.ndarray, noise: float, n: int) -> tuple[np.ndarray, tuple[float, float]]:
        """See `Values.moments`: by texts (k,), of `sums` (k, 4) as `Sums.released` has them."""
        each = Thirds(levels(0, len(sums)), self.column or 0)
        return each.moments(sums[:, :-1].T.ravel(), noise * max(sums[:, -1], default=1.0), n)


@lru_cache
def _exceeded(m: int, delta: float) -> float:
    """A number that the sum of `m` Laplace numbers of scale 1 exceeds with a probability of at most `delta`.

    One does with exp(-t) / 2, and the sum with at most exp(-a t) / (1 - a^2)^m for each a in (0, 1) (Chernoff).
    """
    if m == 1:
        return max(0.0, -math.log(2 * delta))

    def bound(a: float) -> float:
        return (-math.log(delta) - m * math.log1p(-(a**2))) / a

    return bound(float(scipy.optimize.minimize_scalar(bound, bounds=(1e-3, 1 - 1e-9), method="bounded").x)) * (1 + 1e-9)


def shown(text: np.ndarray) -> str:
    """A text of its bytes (length,)."""
    return text.tobytes().rstrip(bytes([NO_BYTE])).decode(errors="ignore")


BINS = 1 << 16
COUNTED, VALUE = 1 / 8, 1 / 2
"""The share of epsilon that the sizes of groups spend, and of a quantile's part that of its value; the rest: limits."""
REACH = 1.959963984540054
_FAR = math.log(BINS) + math.log(40)
"""Times u / eta records away, all bins together are drawn at most a fortieth as often as one at the rank."""
_FIRST, _MOST, _FACTOR = 1 << 44, 1 << 20, 53  # the largest weight, the most of them, digits of their factor
_RANK, _CELLS = 1 << 30, 1 << 20  # units of a rank, and of the noise of a size


@lru_cache(maxsize=16)
def weights(steepness: float) -> np.ndarray:
    """Whole numbers w (k,) that fall, w_0 = 2^44 and w_i <= e^steepness w_(i+1); beyond them the last one counts."""
    factor = math.ceil(math.exp(-steepness) * 2.0**_FACTOR) + 4  # more than the error of exp
    found = [_FIRST]
    while len(found) < _MOST and (lower := -(-found[-1] * factor >> _FACTOR)) < found[-1]:
        found.append(lower)
    return np.array(found, dtype=np.int64)


def distances(counts: np.ndarray, q: float, shift: float, unit: float) -> np.ndarray:
    """How far each bin is from the rank q n + shift of n records, in whole units (bins,), rounded down.

    `counts`: (bins,). `shift`: at most 2^30 in size. `unit`: by how much one record changes a distance, in (0, 1]. Of
    q, shift and unit 30 binary digits count.
    """
    up_to = np.cumsum(counts) * _RANK
    rank = round(q * _RANK) * int(counts.sum()) + round(shift * _RANK)
    away = np.maximum(up_to - counts * _RANK - rank, rank - up_to)
    return np.maximum(away, 0) // math.ceil(unit * _RANK)


def drawn(counts: np.ndarray, q: float, shift: float, unit: float, steepness: float, rng: FreshRng) -> int:
    """A bin, by words of `rng`: its weight falls by the factor e^steepness with each unit of its distance.

    The counts, q, shift and unit are those of `distances`.
    """
    table = weights(steepness)
    cumulative = np.cumsum(table[np.minimum(distances(counts, q, shift, unit), len(table) - 1)])
    total = int(cumulative[-1])
    while True:
        words = rng.draw(1)
        at = int(words[0]) >> (64 - total.bit_length())
        words[:] = 0
        if at < total:
            return int(np.searchsorted(cumulative, at, side="right"))


@dataclass(frozen=True)
class Ranks(Block):
    """Quantiles of a column by group.

    A window releases four numbers for each group and level: how many records the group has, times the quantile, and
    times the squared deviations below and above it. All but the first are weighted by records, so windows add up.
    """

    groups: Index
    column: int
    levels: Sequence[float]
    zero: float = 0.0
    """The value of the column at which the number is 0."""
    row = np.dtype(np.int64)

    @property
    def size(self) -> int:
        return 4 * self.groups.count * len(self.levels)

    def kept(self, X: np.ndarray, epsilon: float) -> np.ndarray:
        """See `Block.kept`: the bin of each row, group by group."""
        bins = np.searchsorted(self.edges[1:-1], X[:, self.column], side="right")
        return self.groups.of(X) * BINS + bins

    @property
    def edges(self) -> np.ndarray:
        """Those of the bins (BINS + 1,)."""
        return cells_around(self.zero, BINS)

    def released(self, rows: np.ndarray, epsilon: float, delta: float, rng: FreshRng) -> tuple[np.ndarray, None]:
        several = self.groups.count > 1
        each = epsilon * (1 - COUNTED * several) / len(self.levels)
        found = np.zeros((self.groups.count, len(self.levels), 4))
        rows.sort()
        ends = np.searchsorted(rows, np.arange(self.groups.count + 1) * BINS)
        for group, (begin, end) in enumerate(pairwise(ends.tolist())):
            counts, n = np.bincount(rows[begin:end] % BINS, minlength=BINS), float(end - begin)
            if several:
                scale = 2 / (epsilon * COUNTED)
                n += float(grid_laplace(rng, scale * _CELLS, 1)[0]) / _CELLS
                if n < KNOWN * math.sqrt(2) * scale:
                    counts[:] = 0
                    continue
            for level, q in enumerate(self.levels):
                found[group, level] = self._quantile(counts, n, q, each, rng)
            counts[:] = 0
        return found.ravel(), None

    def _quantile(self, counts: np.ndarray, n: float, q: float, epsilon: float, rng: FreshRng) -> np.ndarray:
        several, edges = self.groups.count > 1, self.edges
        unit, part = max(q, 1 - q) if several else 1.0, epsilon / (4 if several else 2)
        limit = (1 - VALUE) / 2
        if n * min(q, 1 - q) < _FAR * unit / (part * VALUE):
            return np.zeros(4)  # noise reaches beyond all records, so a draw could be anywhere

        def at(share: float, side: int) -> float:
            steepness = part * share
            reach = REACH * math.sqrt(n * q * (1 - q) + 2 * (unit / steepness) ** 2)
            if not 0 < n * q + side * reach < n:
                return float(side)  # no record has this rank
            found = drawn(counts, q, side * min(reach, 2.0**30), unit, steepness, rng)
            return float(edges[found] * (1 - side) + edges[found + 1] * (1 + side)) / 2  # its end, or middle

        value, low, high = at(VALUE, 0), at(limit, -1), at(limit, 1)
        deviations = max(value - low, 0.0) / REACH, max(high - value, 0.0) / REACH
        return n * np.array([1.0, value, n * deviations[0] ** 2, n * deviations[1] ** 2])

    def quantiles(
        self, sums: np.ndarray, noise: float, levels: Sequence[float], place: tuple[float, float], z: float
    ) -> np.ndarray:
        """See `Cells.quantiles`; the noise is in the limits that were drawn."""
        n, value, below, above = sums.reshape(-1, 4).T
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.where(n > 0, n, np.nan)
            value = value / n
            bins = np.clip(np.searchsorted(self.edges, value, side="right"), 1, BINS)
            half = (self.edges[bins] - self.edges[bins - 1]) / 2  # where in its bin a number is, is not known
            low, high = (side * (z * np.sqrt(part) / n + half) for side, part in ((-1, below), (1, above)))
            found = np.stack([value, np.maximum(value + low, -1), np.minimum(value + high, 1)], axis=1)
        found = (place[0] + place[1] * found).reshape(self.groups.count, -1, 3)
        return in_order(found).reshape(-1, 3)


CHOICE = 0.1
"""The share of the mu^2 of chosen tables that their choice spends."""
_GRID = 2.0**20  # cells of the noise in a record
_ROUNDING = 1e-9  # more than the error of a distance, relative to the records


class Pair(Cells):
    """One of the tables: rows by the kinds of two columns."""


@dataclass(frozen=True)
class Chosen(Block):
    """The tables of two of several columns, sorted by `indices`. A row's vectors are those of chosen tables."""

    indices: tuple[Index, ...]
    choice = CHOICE

    @cached_property
    def pieces(self) -> Sequence[Pair]:
        return [Pair(*pair) for pair in combinations(self.indices, 2)]

    @property
    def tables(self) -> int:
        """How many are chosen."""
        return len(self.indices) - 1

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def norm(self) -> float:
        return math.sqrt(self.tables)

    @property
    def distance(self) -> float:
        return math.sqrt(2 * self.tables)

    @property
    def distance_l1(self) -> float:
        return 2.0 * self.tables

    def distances(self, counts: np.ndarray) -> np.ndarray:
        """By table of `counts` (size,) of n rows, its l1 distance from that of independent columns.

        One row moves it by at most 6 + 4 / n.
        """
        ends = np.cumsum([piece.size for piece in self.pieces])[:-1]
        found = []
        for piece, part in zip(self.pieces, np.split(counts, ends), strict=True):
            table, rows = part.reshape(piece.groups.count, piece.bins.count), max(part.sum(), 1.0)
            found.append(float(np.abs(table - np.outer(table.sum(axis=1), table.sum(axis=0)) / rows).sum()))
        return np.array(found)

    def chosen(self, counts: np.ndarray, mu: float, rng: FreshRng) -> np.ndarray:
        epsilon, pairs = epsilon_of(GaussianDP(mu / math.sqrt(self.tables))), combinations(range(len(self.indices)), 2)
        free = dict(enumerate(pairs))
        group, chosen = [*range(len(self.indices))], np.zeros(len(free))
        distances = np.rint(self.distances(counts) * _GRID)
        rows = max(float(counts[: self.pieces[0].size].sum()), 1.0)  # those that are in it: an exception may lose some
        moved = (6 + 4 / rows + 2 * _ROUNDING * rows) * _GRID + 1
        for _ in range(self.tables):
            free = {i: (a, b) for i, (a, b) in free.items() if group[a] != group[b]}
            noise = grid_laplace(rng, 2 * moved * ARITHMETIC / epsilon, len(distances))
            best = max(free, key=(distances + noise).__getitem__)
            noise[:], chosen[best] = 0, 1
            a, b = free[best]
            group = [group[a] if one == group[b] else one for one in group]
        distances[:] = 0
        return np.repeat(chosen, [piece.size for piece in self.pieces])
