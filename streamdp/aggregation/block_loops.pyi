"""Types of `block_loops`, which is compiled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdp.optim.record_kernel import RecordKernel

class Places:
    count: int

    def __init__(self, sorters: Sequence[tuple[int, int, Sequence[float] | None]]) -> None: ...
    def of(self, X: np.ndarray) -> np.ndarray: ...

class BlockSums:
    size: int

    def __init__(self, given: Sequence[tuple[Any, ...]]) -> None: ...
    def add(self, X: np.ndarray, total: np.ndarray) -> None: ...
    def vectors(self, X: np.ndarray) -> np.ndarray: ...

class MixedRows(RecordKernel):
    def __init__(self, blocks: BlockSums, places: int, noise: int, ones: np.ndarray, p: int) -> None: ...
    def add(self, X: np.ndarray, words: np.ndarray) -> int: ...

class RowSums(RecordKernel):
    def __init__(self, blocks: BlockSums, total: np.ndarray, p: int) -> None: ...

class Reporter:
    words: int

    def __init__(
        self,
        places: Places,
        column: int,
        levels: int,
        threshold: np.ndarray | None,
        counts: np.ndarray,
        full: int,
        unary: bool,
        other: int,
        keep: int,
    ) -> None: ...
    def add(self, X: np.ndarray, words: np.ndarray) -> None: ...

class DrawnReport(RecordKernel):
    def __init__(
        self, parts: Sequence[Reporter], until: np.ndarray, seen: np.ndarray, p: int, rng: object, fresh: bool
    ) -> None: ...
