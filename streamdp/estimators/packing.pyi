from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.optim.record_kernel import RecordKernel
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
    ) -> None: ...
    def pack(self, x: Mapping[Any, Any], y: float, out: np.ndarray) -> bool: ...
    def pack_rows(self, records: list[Any], out: np.ndarray) -> bool: ...
    def predictors(
        self, x: Mapping[Any, Any], theta: np.ndarray, raw: bool, outputs: int, intercept: bool
    ) -> list[float] | None: ...

class Predictor:
    def __init__(
        self, packer: Packer, theta: np.ndarray, raw: bool, intercept: bool, units: np.ndarray | None = None
    ) -> None: ...
    def score(self, x: Mapping[Any, Any]) -> float | None: ...
    def probability(self, x: Mapping[Any, Any], variance: float) -> float | None: ...

class RecordLearner:
    def __init__(self, packer: Packer, levels: dict[Any, float] | None, kernel: RecordKernel) -> None: ...
    def count(self, seen: np.ndarray, taken: np.ndarray, batch: int) -> None: ...
    def learn(self, x: Mapping[Any, Any], y: Any, rng: Entropy | SeededEntropy | FreshWords) -> bool: ...
