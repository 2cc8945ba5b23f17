"""The shuffled sum and its three parties, for programs that run the protocol themselves."""

from streamdp.aggregation.shuffled_sum import (
    Analyzer,
    Calibration,
    LocalRandomizer,
    Shuffled,
    Shuffler,
    VectorSum,
)

__all__ = [
    "Analyzer",
    "Calibration",
    "LocalRandomizer",
    "Shuffled",
    "Shuffler",
    "VectorSum",
]
