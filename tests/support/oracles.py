"""Reports of records in known cells."""

import numpy as np

from streamdp.aggregation.block_loops import Places
from streamdp.learners.local_counts import Oracle


def reports(oracle: Oracle, at: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The sums (cells,) of the reports of records in the cells `at` (n,), by random words (n, oracle.words)."""
    counts = np.zeros(oracle.cells + 1, dtype=np.int64)
    first = np.zeros((len(at), 1), dtype=np.uint64)  # the word that would round a number
    places = Places(((0, oracle.cells, None),))
    oracle.reporter(places, counts).add(at[:, None].astype(float), np.hstack([first, words]))
    assert counts[-1] == len(at)
    return counts[:-1]
