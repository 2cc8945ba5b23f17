"""The shuffled sum and its three parties, for programs of your own; what shuffled local reports promise."""

from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.privacy.shuffled_reports import local_epsilon, shuffled_epsilon

__all__ = ["Analyzer", "LocalRandomizer", "Shuffled", "Shuffler", "VectorSum", "local_epsilon", "shuffled_epsilon"]
