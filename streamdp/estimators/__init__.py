"""Private online estimators."""

from streamdp.estimators.ldp import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
)
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.randomizer import Randomizer, Report
from streamdp.estimators.shuffle import ShuffleClassifier, ShuffleRandomizer, ShuffleRegressor

__all__ = [
    "LDPASGDClassifier",
    "LDPASGDRegressor",
    "LDPSGDClassifier",
    "LDPSGDRegressor",
    "PanPrivateClassifier",
    "PanPrivateRegressor",
    "Randomizer",
    "Report",
    "ShuffleClassifier",
    "ShuffleRandomizer",
    "ShuffleRegressor",
]
