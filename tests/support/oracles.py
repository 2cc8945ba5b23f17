"""Reports of records in known cells, and what rows add to blocks, as the proof has it."""

import numpy as np

from streamdp.aggregation.block_loops import Places
from streamdp.learners.cells import Cells, Thirds, Values
from streamdp.learners.local_counts import Oracle


def reports(oracle: Oracle, at: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The sums (cells,) of the reports of records in the cells `at` (n,), by random words (n, oracle.words)."""
    counts = np.zeros(oracle.cells + 1, dtype=np.int64)
    first = np.zeros((len(at), 1), dtype=np.uint64)  # the word that would round a number
    places = Places(((0, oracle.cells, None),))
    oracle.reporter(places, counts).add(at[:, None].astype(float), np.hstack([first, words]))
    assert counts[-1] == len(at)
    return counts[:-1]


def vectors(block: Cells | Values, X: np.ndarray) -> np.ndarray:
    """The vectors (n, size) of rows X (n, p)."""
    groups = np.eye(block.groups.count)[block.groups.of(X)]
    if isinstance(block, Cells):
        bins = (block.root if block.ordered else np.eye(block.bins.count)).T[block.bins.of(X)]
        found: np.ndarray = np.einsum("ij,ik->ijk", groups, bins).reshape(len(X), -1)
        return found
    v = X[:, block.column]
    if isinstance(block, Thirds):
        parts = [((1 - v) / 2) ** 2, (1 - v**2) / 2, ((1 + v) / 2) ** 2]
    else:
        parts = [*([np.ones(len(v))] if block.groups.count > 1 else []), v, block.squares * (2 * v**2 - 1)]
    return np.hstack([groups * part[:, None] for part in parts])
