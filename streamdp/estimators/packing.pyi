from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
    def predictors(
        self, x: Mapping[Any, Any], theta: np.ndarray, raw: bool, outputs: int, intercept: bool
    ) -> list[float] | None: ...

class Predictor:
    def __init__(self, packer: Packer, theta: np.ndarray, raw: bool, intercept: bool) -> None: ...
    def score(self, x: Mapping[Any, Any]) -> float | None: ...
    def probability(self, x: Mapping[Any, Any]) -> float | None: ...
