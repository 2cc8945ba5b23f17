"""Tables of two columns, of which a window chooses those that say most, and releases no others.

What a table says is its distance from the one in which both columns are independent. There is one table fewer than
columns, and none joins columns that others join already. Source: MST (McKenna, Miklau, Sheldon 2021), with report noisy
max, and exact tables in place of a first model.

Proof: docs/proofs/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from streamdp.learners.cells import Block, Cells, Index
from streamdp.learners.local_counts import epsilon_of
from streamdp.privacy.entropy import FreshRng
from streamdp.privacy.guarantees import GaussianDP
from streamdp.privacy.mechanisms.additive import grid_laplace
from streamdp.privacy.mechanisms.base import ARITHMETIC

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

    def distances(self, sums: np.ndarray, rows: int) -> np.ndarray:
        """By table, its l1 distance from that of independent columns; one row moves it by at most 6 + 4 / `rows`.

        `sums`: the exact counts (size,), times any factor.
        """
        ends = np.cumsum([piece.size for piece in self.pieces])[:-1]
        found = []
        for piece, part in zip(self.pieces, np.split(sums, ends), strict=True):
            table = part.reshape(piece.groups.count, piece.bins.count) * (rows / part.sum())
            found.append(float(np.abs(table - np.outer(table.sum(axis=1), table.sum(axis=0)) / rows).sum()))
        return np.array(found)

    def chosen(self, sums: np.ndarray, rows: int, mu: float, rng: FreshRng) -> np.ndarray:
        epsilon, pairs = epsilon_of(GaussianDP(mu / math.sqrt(self.tables))), combinations(range(len(self.indices)), 2)
        free = dict(enumerate(pairs))
        group, chosen = [*range(len(self.indices))], np.zeros(len(free))
        distances = np.rint(self.distances(sums, rows) * _GRID)
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
