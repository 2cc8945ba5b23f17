"""Check words: 64 bits that reveal a damaged row or page, so that damage cannot restore a spent budget unnoticed.

A check word protects against decay and faults, not against an attacker, who could delete the file as well. The mixing
step multiplies and shifts as in splitmix64: a change of one bit changes the result. `page_loops` has it for pages.
"""

import numpy as np

from streamdp.ledger.rows import CAP

START, FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def check_words(keys: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the check words (n,) uint64 of keys (n, 2) uint64 and their rows as uint64 `words`, (n, ROW).

    The cap is included only for subjects that have their own.
    """
    mixed = np.full(len(words), START, dtype=np.uint64)
    for column in (*keys.T, *words[:, :CAP].T):
        mixed = _mixed(mixed, column)
    own = words[:, CAP] != 0
    for column in words[own, CAP:].T:
        mixed[own] = _mixed(mixed[own], column)
    return mixed


def _mixed(mixed: np.ndarray, words: np.ndarray) -> np.ndarray:
    mixed = (mixed ^ words) * np.uint64(FACTOR)
    return mixed ^ (mixed >> np.uint64(31))
