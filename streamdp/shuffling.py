"""The shuffled sum and its three parties, for programs that run the protocol themselves."""

from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum

__all__ = [
    "Analyzer",
    "LocalRandomizer",
    "Shuffled",
    "Shuffler",
    "VectorSum",
]
