"""Private online estimators, each for River and for arrays: one folder or module for each kind of trust."""

from streamdp.estimators.ldp.estimators import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
)
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.estimators.user.estimators import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.estimators.user.randomizer import UserRandomizer, UserReport
from streamdp.estimators.windowed.estimators import WindowedClassifier, WindowedRegressor

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
