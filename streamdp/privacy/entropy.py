"""Random words for noise: keyed by the operating system, never saved, never copied.

`Entropy` supplies buffers of 64-bit words: the keystream of AES-256 in counter mode under a fresh key from the
operating system, which is dropped as soon as the buffer is full. The loops overwrite the words they use with zero. A
copy, a pickle or a forked child has a generator with an empty buffer: no two generators share a word.

The first word of a buffer is the position of the first unused word; the loops that use the words move it. Threads that
share a generator take its `lock`. Why this, and noise on a grid, is safe: docs/proofs/noise.md.
"""

import os
import threading
import weakref
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streamdp.errors import ConfigError
from streamdp.system import after_fork, fill_random

LARGEST = 32_768  # words of a buffer after some refills
_ZEROS = memoryview(bytes(8 * LARGEST))
"""What is encrypted to a keystream. To allocate it anew for each buffer may take longer than to encrypt it."""

_LIVE: "weakref.WeakSet[_Words | FreshWords]" = weakref.WeakSet()
_forks = 0


def forks() -> int:
    """How many forks led to this process. If the number changes while words are in use, the parent uses them, too."""
    return _forks


class _Words:
    """A buffer of 64-bit words: the position of the first unused word, then random words.

    Hold `lock` from the first read of `words` until they are used or refilled.
    """

    private: bool
    _repeats = False  # whether the words are meant to be the same in two processes

    def __init__(self, size: int) -> None:
        self.words = np.zeros(size + 1, dtype=np.uint64)
        self.words[0] = size + 1
        self._share()

    def _share(self) -> None:
        self.lock = threading.RLock()
        _LIVE.add(self)

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._share()

    @property
    def position(self) -> int:
        """The index of the first unused word."""
        return int(self.words[0])

    def refill(self) -> None:
        """Move the unused words to the front and fill the rest."""
        self._renew(len(self.words))

    def refill_for(self, done: int) -> None:
        """Refill for a loop that ran out of words, with `done` records since the last refill.

        The buffer doubles up to `LARGEST` words, because a word of a long buffer takes less time than one of a short
        buffer, and beyond that if a full one was too small for one record.
        """
        too_small = done == 0 and self.position == 1
        self._renew(2 * len(self.words) - 1 if too_small or len(self.words) <= LARGEST else len(self.words))

    def serve(self, step: Callable[..., int], *arrays: np.ndarray) -> None:
        """Let a loop run over the rows of `arrays`, with as many words as it takes.

        `step` gets what is left of the arrays, and the words; it returns how many rows it did before they ran out.
        """
        while (done := step(*arrays, self.words)) < len(arrays[0]):
            self.refill_for(done)
            arrays = tuple(array[done:] for array in arrays)

    def _renew(self, length: int) -> None:
        """Replace the buffer by one that begins with the unused words. An interrupt at any point repeats no word."""
        while True:
            before, new = _forks, np.empty(length, dtype=np.uint64)
            unused = self.words[self.position :]
            filled = 1 + len(unused)
            new[0] = 1
            new[1:filled] = unused
            self._fill(new[filled:])
            self.words[0] = len(self.words)
            unused[:] = 0  # a used word is zero already
            self.words = new
            if self._repeats or _forks == before:
                return
            self.discard()  # a signal handler or a finaliser forked, and the parent has these words

    def discard(self) -> None:
        """Mark all words as used and overwrite them."""
        self.words[0] = len(self.words)
        self.words[1:] = 0

    def _fill(self, out: np.ndarray) -> None:
        raise NotImplementedError


class Entropy(_Words):
    """Cryptographic random words (see the module's text), in a buffer of a fixed size."""

    private = True

    def __init__(self, size: int = 8192) -> None:
        super().__init__(size)

    def _fill(self, out: np.ndarray) -> None:
        key = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(os.urandom(16)))
        view = out.data.cast("B")
        zeros = _ZEROS[: len(view)] if len(view) <= len(_ZEROS) else bytes(len(view))
        key.encryptor().update_into(zeros, view)

    def __reduce__(self) -> "tuple[type[Entropy], tuple[()]]":
        return Entropy, ()


_SPAWN_KEY = (int.from_bytes(b"streamdp"),)


class SeededEntropy(_Words):
    """Reproducible words from PCG64, for tests only: the noise can be subtracted by anyone that knows the seed.

    The words do not depend on the size of the buffer, so single records and arrays of records get the same words. They
    are other words than those of `numpy.random.default_rng(seed)`, so that data which a caller draws with the same seed
    do not depend on the noise. Raises `ConfigError` for a seed that is no whole number.
    """

    private = False
    _repeats = True

    def __init__(self, seed: int, size: int = 8192) -> None:
        super().__init__(size)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError(f"seed: expected a whole number of at least 0, or None, got {seed!r}")
        self._generator = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=_SPAWN_KEY))

    def _fill(self, out: np.ndarray) -> None:
        out[:] = self._generator.random_raw(len(out))

    def draw(self, count: int) -> np.ndarray:
        """As `FreshWords.draw`; the buffer is not used."""
        return np.atleast_1d(self._generator.random_raw(count))


class FreshWords:
    """Random words read from the operating system on demand; neither a key nor an unused word is kept.

    For states that must stay private if the memory is read by an intruder: no future noise can be derived from this.
    """

    private = True

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _LIVE.add(self)

    def draw(self, count: int) -> np.ndarray:
        """New random words (count,) uint64. The caller overwrites them after use."""
        out, before = np.empty(count, dtype=np.uint64), None
        while before != _forks:
            before = _forks
            fill_random(out.data.cast("B"))
        return out

    def __reduce__(self) -> "tuple[type[FreshWords], tuple[()]]":
        return FreshWords, ()


Rng = Entropy | SeededEntropy
FreshRng = FreshWords | SeededEntropy
AnyRng = Rng | FreshWords


def draw(rng: AnyRng, count: int) -> np.ndarray:
    """Return unused random words (count,) of a generator, `rng`, whose lock is held.

    The caller overwrites them after use.
    """
    if isinstance(rng, FreshWords):
        return rng.draw(count)
    out, filled = np.empty(count, dtype=np.uint64), 0
    while filled < count:
        at = rng.position
        taken = rng.words[at : at + count - filled]
        if not len(taken):
            rng.refill()
            continue
        rng.words[0] = at + len(taken)  # first: an exception between these lines wastes words, and uses none twice
        if taken.all():  # a word that is zero may have been used
            out[filled : filled + len(taken)] = taken
            filled += len(taken)
        taken[:] = 0
    return out


def uniform(words: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1), a multiple of 2^-53, for each of the random `words`."""
    return (words >> np.uint64(11)) * 2.0**-53


def mixed(words: np.ndarray) -> np.ndarray:
    """Return a public hash of each of the `words`: the last step of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def entropy(seed: int | None) -> Rng:
    """The generator for an estimator: cryptographic, or reproducible, and not private, if there is a seed."""
    return Entropy() if seed is None else SeededEntropy(seed)


def fresh_words(seed: int | None) -> FreshRng:
    """As `entropy`, for what must stay private if the memory is read by an intruder."""
    return FreshWords() if seed is None else SeededEntropy(seed)


def _after_fork() -> None:
    global _forks
    _forks += 1
    for source in list(_LIVE):
        source.lock = threading.RLock()  # another thread of the parent may have held it
        if isinstance(source, Entropy):
            source.discard()


after_fork(_after_fork)
