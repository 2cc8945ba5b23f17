from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.optim.record_kernel import RecordGate, RecordKernel
from streamdp.privacy.entropy import Entropy, FreshWords, SeededEntropy

class Packer:
    def __init__(
        self,
        names: Sequence[Any],
        columns: Sequence[int],
        lows: Sequence[float],
        highs: Sequence[float],
        levels: Sequence[dict[str, int] | None],
        width: int,
        classes: Mapping[Any, float] | None = None,
    ) -> None: ...
    def pack(self, x: Mapping[Any, Any], y: Any, out: np.ndarray) -> bool: ...
    def pack_rows(self, records: list[Any], out: np.ndarray) -> bool: ...

class Predictor:
    def __init__(
        self,
        packer: Packer | None,
        theta: np.ndarray,
        width: int,
        outputs: int,
        intercept: bool,
        columns: np.ndarray | None,
        units: np.ndarray | None,
        ranges: np.ndarray | None,
    ) -> None: ...
    def reads(self, theta: np.ndarray) -> bool: ...
    def scores_of(self, x: Mapping[Any, Any]) -> list[float] | None: ...
    def scores(self, X: np.ndarray) -> np.ndarray: ...
    def probability(self, x: Mapping[Any, Any], variance: float) -> float | None: ...
    def probabilities(self, X: np.ndarray, variance: float) -> np.ndarray: ...

class RecordLearner:
    def __init__(self, packer: Packer, kernel: RecordKernel, gate: RecordGate | None = None) -> None: ...
    def watch(self, addresses: tuple[int, ...]) -> None: ...
    def count(self, seen: np.ndarray, taken: np.ndarray, batch: int) -> None: ...
    def learn(self, x: Mapping[Any, Any], y: Any, rng: Entropy | SeededEntropy | FreshWords, subject: Any) -> bool: ...
