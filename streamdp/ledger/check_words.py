"""Check words: 64 bits that reveal a damaged row or page, so that damage cannot restore a spent budget unnoticed.

A check word protects against decay and faults, not against an attacker, who could delete the file as well. The mixing
step multiplies and shifts as in splitmix64: a change of one bit changes the result.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamdp.ledger.rows import CAP, ROW

START = 0x9E3779B97F4A7C15
"""The value from which a check word is mixed."""


@njit(cache=True, nogil=True)
def check_words(keys: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the check words (n,) uint64 of rows.

    Parameters
    ----------
    keys
        (n, 2) uint64, the keyed hashes of the subjects.
    words
        (n, ROW) uint64, a view of their rows.
    """
    out = np.empty(len(words), dtype=np.uint64)
    for i in range(len(words)):
        out[i] = check_word(keys[i], words[i])
    return out


@njit(cache=True, nogil=True)
def update_checks(places: np.ndarray, keys: np.ndarray, words: np.ndarray, checks: np.ndarray) -> None:
    """Compute the check words of some rows in place, without a copy of millions of rows.

    Parameters
    ----------
    places
        (m,) int64, the rows to check.
    keys, words
        (n, 2) and (n, ROW) uint64, as in `check_words`.
    checks
        (n,) uint64. Changed at `places`.
    """
    for i in places:
        checks[i] = check_word(keys[i], words[i])


@njit(cache=True, nogil=True)
def check_word(key: np.ndarray, words: np.ndarray) -> np.uint64:
    """Return the check word of one row and its subject. The cap is included only if the subject has its own.

    Parameters
    ----------
    key
        (2,) uint64, the keyed hash of the subject.
    words
        (ROW,) uint64, a view of the row.
    """
    mixed = mix(mix(np.uint64(START), key[0]), key[1])
    for j in range(ROW if words[CAP] != 0 else CAP):
        mixed = mix(mixed, words[j])
    return mixed


@njit(cache=True, nogil=True)
def mix(mixed: np.uint64, word: np.uint64) -> np.uint64:
    """Mix one more word into a check word.

    Parameters
    ----------
    mixed
        The check word of the words before.
    word
        The next word.
    """
    mixed = (mixed ^ word) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(31))
