"""Random words for noise: keyed by the operating system, never saved, never copied.

`Entropy` hands out buffers of 64-bit words. Every buffer is the keystream of AES-256 in counter mode under a fresh
key from the operating system (`os.urandom`), made by the `cryptography` package; the key is dropped as soon as the
buffer is full, and the loops zero the words they use, so nothing in memory tells a word that was used before.
Copying, deep-copying or pickling an estimator gives a generator with an empty buffer, and a forked child empties the
one it inherited: no two generators ever share a word. The position is a word of the buffer itself (the first), moved
by the loops that use the words: an exception, such as Ctrl-C, finds it where the words end that were used, and a word
that is zero - used - is refused as noise all the same. Threads that share a generator take its `lock`. `SeededEntropy`
is for tests; an estimator that uses it says "not private" in its statement.

Noise that is safe in floating point
------------------------------------
A textbook sampler that adds noise to a gradient in floating point leaks: which doubles are reachable depends on the
gradient, and an output that only one of two gradients can reach tells them apart (Mironov, "On significance of the
least significant bits for differential privacy", 2012). Here gradient and noise meet on a common grid of multiples of
a power of two h, fixed by the calibration (loss, dimension, budget) and by nothing in the data:

    output = h (round(g / h) + round(Z / h)),   h = 2^(floor(log2 scale) - 20).

* Both rounded terms are integers below 2^52, so the sum and the products with h are exact, and every multiple of h in
  range can be reached from every gradient.
* round(g/h) + round(Z/h) = round(round(g/h) + Z/h): it is a function of g' + Z with g' = h round(g/h), so it is
  post-processing of the ideal mechanism at g'. Rounding moves each coordinate by at most h/2, so two gradients at
  distance S come to at most S + sqrt(d) h; the mechanisms calibrate to that. It costs 2^-20 of the scale.

What is left of floating point: Z is computed by a ziggurat with 52-bit abscissas and a relative error near 2^-52, so
the mass of one cell of the grid is off by a relative 2^-28 or so, far below what any attack can measure. The tail of
Laplace noise is the edge of the ziggurat plus a fresh exponential (which forgets), as often as needed, so its
resolution does not coarsen and it has no holes. The Gaussian's tail has holes only beyond 10 standard deviations, a
mass of 1e-23. PrivUnit draws a direction in floating point and rounds it to a grid of 2^-16: the answer differs from
the rounded ideal one only where a coordinate falls within an arithmetic error (about 2^-49) of the border of a cell,
a mass of about d 2^-32, which is the delta one should add to its pure epsilon if the arithmetic is counted as part of
the mechanism. Timing is not covered: the samplers reject, so their running time depends on the noise (though not on
the gradient).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_LIVE: weakref.WeakSet[_Words | FreshWords] = weakref.WeakSet()


class _Words:
    """A buffer of random 64-bit words; the first is no random one but the position of the first unused one.

    Hold `lock` from looking at `words` until they are used or refilled.
    """

    private: bool

    def __init__(self, size: int) -> None:
        self.words = np.zeros(size + 1, dtype=np.uint64)
        self.words[0] = size + 1
        self._share()

    def _share(self) -> None:
        self.lock = threading.RLock()
        _LIVE.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()

    @property
    def position(self) -> int:
        """Where the unused words begin."""
        return int(self.words[0])

    def refill(self) -> None:
        """Move the unused words to the front and fill the rest."""
        self._renew(len(self.words))

    def refill_for(self, done: int) -> None:
        """Refill for a loop that ran out after `done` records; twice the room where a full buffer did for none."""
        self._renew(2 * len(self.words) - 1 if done == 0 and self.position == 1 else len(self.words))

    def _renew(self, length: int) -> None:
        """A new buffer that begins with the unused words. Wherever this is interrupted, no word comes twice."""
        old, new = self.words, np.empty(length, dtype=np.uint64)
        unused = old[self.position :]
        filled = 1 + len(unused)
        new[0] = 1
        new[1:filled] = unused
        self._fill(new[filled:])
        self._end()
        self.words = new

    def _end(self) -> None:
        """End all words."""
        self.words[0] = len(self.words)
        self.words[1:] = 0

    def _fill(self, out: np.ndarray) -> None:
        raise NotImplementedError


class Entropy(_Words):
    """Cryptographic random words (see the module's text). `private` is True: noise from it protects."""

    private = True

    def __init__(self, size: int = 8192) -> None:
        super().__init__(size)

    def _fill(self, out: np.ndarray) -> None:
        key = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16)))
        view = out.data.cast("B")
        key.encryptor().update_into(bytes(len(view)), view)

    def __copy__(self) -> Entropy:
        return Entropy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Entropy:
        return Entropy()

    def __reduce__(self) -> tuple[type[Entropy], tuple[()]]:
        return Entropy, ()


class SeededEntropy(_Words):
    """Reproducible words from PCG64, for tests only: who knows the seed can take the noise off.

    The words do not depend on the size of the buffer, so one record at a time and a million at once see the same.
    """

    private = False

    def __init__(self, seed: int, size: int = 8192) -> None:
        super().__init__(size)
        self._generator = np.random.PCG64(seed)

    def _fill(self, out: np.ndarray) -> None:
        out[:] = self._generator.random_raw(len(out))

    def draw(self, count: int) -> np.ndarray:
        """As `FreshWords.draw`; the buffer is passed by."""
        return np.atleast_1d(self._generator.random_raw(count))


class FreshWords:
    """Random words from the operating system, made when they are needed; neither a key nor an unused word is kept.

    For states that must survive a break-in: there is nothing here that would tell the noise to come.
    """

    private = True

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _LIVE.add(self)

    def draw(self, count: int) -> np.ndarray:
        """(count,) new random words. Who has used them wipes them."""
        out = np.empty(count, dtype=np.uint64)
        with open("/dev/urandom", "rb", buffering=0) as device:  # os.urandom's bytes could not be wiped
            if device.readinto(out.data.cast("B")) != out.nbytes:
                raise OSError("the operating system gave too few random bytes")
        return out

    def __copy__(self) -> FreshWords:
        return FreshWords()

    def __deepcopy__(self, memo: dict[int, Any]) -> FreshWords:
        return FreshWords()

    def __reduce__(self) -> tuple[type[FreshWords], tuple[()]]:
        return FreshWords, ()


def entropy(seed: int | None) -> Entropy | SeededEntropy:
    """The generator for an estimator: cryptographic without a seed."""
    return Entropy() if seed is None else SeededEntropy(seed)


def _after_fork() -> None:
    for source in list(_LIVE):
        source.lock = threading.RLock()  # another thread of the parent may have held it
        if isinstance(source, Entropy):
            source._end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
