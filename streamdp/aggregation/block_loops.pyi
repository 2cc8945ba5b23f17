"""Types of `block_loops`, which is compiled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdp.optim.record_kernel import RecordKernel

class Places:
    count: int

    def __init__(self, sorters: Sequence[tuple[int, int, np.ndarray | None]]) -> None: ...
    def of(self, X: np.ndarray) -> np.ndarray: ...

class BlockSums:
    size: int

    def __init__(self, given: Sequence[tuple[Any, ...]]) -> None: ...
    def add(self, X: np.ndarray, total: np.ndarray) -> None: ...

class RowSums(RecordKernel):
    def __init__(self, blocks: BlockSums, total: np.ndarray, p: int) -> None: ...
