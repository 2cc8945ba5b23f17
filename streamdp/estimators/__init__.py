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
from streamdp.estimators.user_level import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.estimators.user_randomizer import UserRandomizer, UserReport
from streamdp.estimators.windowed import WindowedClassifier, WindowedRegressor

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
    "UserLevelLDPClassifier",
    "UserLevelLDPRegressor",
    "UserRandomizer",
    "UserReport",
    "WindowedClassifier",
    "WindowedRegressor",
]
