"""The words of noise in tests: a function of the test's name, so that a test says the same in every run.

Only the source of the words is replaced. Estimators take the same way as with the operating system's words, and say
that they are private. A test of the words themselves has the marker `real_noise` and gets the operating system's.
"""

import threading
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np

from streamdp.privacy.entropy import Entropy, FreshWords

SEED = "TESTS_NOISE_SEED"
"""The environment variable from which a process of the command line takes the name of its words."""


class Noise:
    """Words from PCG64 in place of the operating system's, in this process and in the processes that it forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._real: tuple[Callable[..., Any], Callable[..., Any]] = (Entropy._fill, FreshWords.draw)
        self._started = 0
        self.name = ""

    def begin(self, name: str) -> None:
        """Start the words of this name."""
        self.name, self._started = name, 0
        words = np.random.PCG64(crc32(name.encode()))

        def draw(count: int) -> np.ndarray:
            with self._lock:
                return np.atleast_1d(words.random_raw(count))

        def fill(_: Entropy, out: np.ndarray) -> None:
            out[:] = draw(len(out))

        self._set(fill, lambda _, count: draw(count))

    def end(self) -> None:
        """Go back to the words of the operating system."""
        self.name = ""
        self._set(*self._real)

    def of_process(self) -> dict[str, str]:
        """The environment of a process of the command line: each one that a test starts has other words."""
        self._started += 1
        return {SEED: f"{self.name} {self._started}"} if self.name else {}

    def _set(self, fill: Callable[..., Any], draw: Callable[..., Any]) -> None:
        Entropy._fill = fill  # type: ignore[method-assign]
        FreshWords.draw = draw  # type: ignore[method-assign]


NOISE = Noise()
