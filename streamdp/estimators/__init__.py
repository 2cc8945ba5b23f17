"""Private online estimators."""

from streamdp.estimators.ldp.learner import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
)
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle import ShuffleClassifier, ShuffleRandomizer, ShuffleRegressor
from streamdp.estimators.user.public import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.estimators.user.randomizer import UserRandomizer, UserReport
from streamdp.estimators.windowed.public import WindowedClassifier, WindowedRegressor

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
