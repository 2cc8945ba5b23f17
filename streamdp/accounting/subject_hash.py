"""Keyed hashes of many subjects at once: BLAKE2b in compiled code, the same as `subject_key.hash_subject`.

A call of `hashlib` for each subject costs more than admitting it. BLAKE2b (RFC 7693) first takes in the key as a
block of its own, so the state after it is the same for all subjects, and most need one compression more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numba import njit

from streamdp.accounting.subject_key import PERSON, encode_subject, hash_subject
from streamdp.records import Subject

BLOCK = 128
FEW = 16
"""So many are hashed one by one."""

_IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    dtype=np.uint8,
)


def hash_subjects(subjects: Sequence[Subject | None], key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The hashes (n, 2) as little-endian uint64, and who there is (n,): False for None, whose hash is any.

    Raises `SchemaError` for a subject that is neither str nor bytes.
    """
    n = len(subjects)
    if n <= FEW or sys.byteorder != "little":
        there = np.array([subject is not None for subject in subjects], dtype=np.bool_)
        hashes = b"".join([hash_subject(b"" if subject is None else subject, key) for subject in subjects])
        return np.frombuffer(hashes, dtype="<u8").astype(np.uint64).reshape(n, 2), there
    there = np.ones(n, dtype=np.bool_)
    data = _ascii(subjects)
    if data is not None:
        lengths = np.fromiter(map(len, subjects), dtype=np.int64, count=n)  # type: ignore[arg-type]
    else:
        there[:] = [subject is not None for subject in subjects]
        pieces = [b"" if subject is None else encode_subject(subject) for subject in subjects]
        data = b"".join(pieces)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=n)
    ends = np.cumsum(lengths)
    of_none = np.frombuffer(hash_subject(b"", key), dtype=np.uint64)
    return _hash_all(_keyed(key), np.frombuffer(data, dtype=np.uint8), ends, of_none), there


def _ascii(subjects: Sequence[Subject | None]) -> bytes | None:
    """All of them in one, if they are texts of ASCII."""
    try:
        return "".join(subjects).encode("ascii")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return None


def _keyed(key: bytes) -> np.ndarray:
    """The state after the key's block."""
    parameters = np.zeros(64, dtype=np.uint8)
    parameters[:4] = 16, len(key), 1, 1  # bytes of the hash, of the key; fan-out and depth: no tree
    parameters[48:] = np.frombuffer(PERSON, dtype=np.uint8)
    state = _IV ^ parameters.view(np.uint64)
    block = np.frombuffer(key.ljust(BLOCK, b"\0"), dtype=np.uint64)
    _compress(state, block, np.uint64(BLOCK), np.uint64(0), np.empty(16, dtype=np.uint64))
    return state


@njit(cache=True, nogil=True)
def _mix(v: np.ndarray, a: int, b: int, c: int, d: int, x: np.uint64, y: np.uint64) -> None:
    v[a] = v[a] + v[b] + x
    t = v[d] ^ v[a]
    v[d] = (t >> np.uint64(32)) | (t << np.uint64(32))
    v[c] = v[c] + v[d]
    t = v[b] ^ v[c]
    v[b] = (t >> np.uint64(24)) | (t << np.uint64(40))
    v[a] = v[a] + v[b] + y
    t = v[d] ^ v[a]
    v[d] = (t >> np.uint64(16)) | (t << np.uint64(48))
    v[c] = v[c] + v[d]
    t = v[b] ^ v[c]
    v[b] = (t >> np.uint64(63)) | (t << np.uint64(1))


@njit(cache=True, nogil=True)
def _compress(h: np.ndarray, m: np.ndarray, taken: np.uint64, last: np.uint64, v: np.ndarray) -> None:
    """One block into the state `h`; `taken` bytes so far, `last` is all ones for the last block."""
    for i in range(8):
        v[i], v[i + 8] = h[i], _IV[i]
    v[12] ^= taken
    v[14] ^= last
    for turn in range(12):
        s = _SIGMA[turn % 10]
        _mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]])
        _mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]])
        _mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]])
        _mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]])
        _mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]])
        _mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]])
        _mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]])
        _mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]])
    for i in range(8):
        h[i] ^= v[i] ^ v[i + 8]


@njit(cache=True, nogil=True)
def _hash_all(keyed: np.ndarray, data: np.ndarray, ends: np.ndarray, of_none: np.ndarray) -> np.ndarray:
    """Hash the pieces of `data` that end at `ends`; an empty piece ends with the key's block, as `of_none` did."""
    out = np.empty((len(ends), 2), dtype=np.uint64)
    block, v = np.zeros(16, dtype=np.uint64), np.empty(16, dtype=np.uint64)
    octets = block.view(np.uint8)
    h = np.empty(8, dtype=np.uint64)
    start = 0
    for i in range(len(ends)):
        end = ends[i]
        if start == end:
            out[i, 0], out[i, 1] = of_none[0], of_none[1]
            continue
        h[:] = keyed
        taken = 128
        while start < end:
            n = min(128, end - start)
            octets[:n] = data[start : start + n]
            octets[n:] = 0
            start, taken = start + n, taken + n
            last = np.uint64(0xFFFFFFFFFFFFFFFF) if start == end else np.uint64(0)
            _compress(h, block, np.uint64(taken), last, v)
        out[i, 0], out[i, 1] = h[0], h[1]
    return out
