"""Types of `answers`, which is compiled."""

from collections.abc import Sequence

import numpy as np

from streamdp.privacy.entropy import AnyRng

PARTS: int

def truthful(keep: float) -> float: ...

class Asking:
    def look(
        self,
        predictor: object,
        keep: float,
        rng: AnyRng,
        errors: Errors,
        questions: np.ndarray,
        quiet: np.ndarray,
        sums: np.ndarray,
        progress: np.ndarray,
        known: np.ndarray,
    ) -> None: ...

class Adding(Asking):
    def sum(
        self,
        predictor: object,
        errors: Errors,
        questions: np.ndarray,
        quiet: np.ndarray,
        known: np.ndarray,
        weights: Sequence[float],
        cell: float,
        counts: tuple[np.ndarray, float] | None,
        scores: tuple[np.ndarray, float] | None,
    ) -> None: ...

class Errors:
    rounds: bool
    """Whether groups are rounded at random."""
    def __init__(
        self, form: str, numbers: Sequence[float], shares: np.ndarray, cells: int, ends: np.ndarray
    ) -> None: ...
    def range(self, other: bool) -> tuple[float, float]: ...
    def vectors(self, weights: Sequence[float], cell: float, scores: np.ndarray, y: np.ndarray) -> np.ndarray: ...
    def groups(self, y: np.ndarray, known: np.ndarray, words: np.ndarray) -> np.ndarray: ...
    def answer(
        self,
        asked: np.ndarray,
        scores: np.ndarray,
        y: np.ndarray,
        keep: np.ndarray,
        words: np.ndarray,
        sums: np.ndarray,
        progress: np.ndarray,
        known: np.ndarray,
    ) -> None: ...
