"""Samplers on words and gradients that end, or begin, at memory without access: a program that ends at the first fault.

Run with PYTHONMALLOC=debug, which finds a write beyond the scratch memory of a sampler.
"""

import ctypes
import mmap

import numpy as np

from streamdp import Gaussian, GaussianDP, Laplace, PrivUnit, PureDP
from streamdp.privacy import samplers
from streamdp.privacy.mechanisms import Mechanism

PAGE = mmap.PAGESIZE
_C = ctypes.CDLL(None, use_errno=True)
MECHANISMS: list[Mechanism] = [PrivUnit(PureDP(2)), Laplace(PureDP(1)), Gaussian(GaussianDP(1))]
SIZES = (1, 2, 3, 4, 7, 33)


class Guarded:
    """Room for `pages` pages between two that nobody may read or write."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for edge in (start, start + (pages + 1) * PAGE):
            if _C.mprotect(ctypes.c_void_p(edge), PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._room = np.frombuffer(self._map, np.uint8, pages * PAGE, PAGE)

    def place(self, array: np.ndarray, *, at_end: bool) -> np.ndarray:
        """Copy an array to one edge of the room; the copies share it."""
        part = self._room[-array.nbytes :] if at_end else self._room[: array.nbytes]
        copy = part.view(array.dtype).reshape(array.shape)
        copy[:] = array
        return copy


def main() -> None:
    rng = np.random.default_rng(1)
    source, gradients, answers = Guarded(2), Guarded(2), 0
    for mechanism in MECHANISMS:
        for d in SIZES:
            rows, given = mechanism.rows(d), rng.uniform(-1, 1, (4, d)) / d
            drawn = rng.integers(1, 2**64, 8 * d + 65, dtype=np.uint64)
            for _ in range(4):  # rare words, of every layer and of the tail, at any place
                drawn[rng.integers(1, len(drawn), len(drawn) // 4)] |= np.uint64(0x1FFF) << np.uint64(48)
                drawn[rng.integers(1, len(drawn), len(drawn) // 8)] &= ~np.uint64(0xFF)
            for size in range(len(drawn)):
                for at_end in (True, False):
                    words = source.place(drawn[: size + 1], at_end=at_end)
                    words[0] = 1
                    G = gradients.place(given, at_end=at_end)
                    done = samplers.randomize(mechanism.code, rows, G, words)
                    assert 0 <= done <= 4
                    assert np.array_equal(G[done:], given[done:])
                    assert 1 <= words[0] <= size + 1
                    assert not words[1 : int(words[0])].any()
                    answers += done
    print(answers)


if __name__ == "__main__":
    main()
