"""Private online estimators, each for River and for arrays: one folder or module for each kind of trust."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamdp.estimators.ldp.estimators import (
        LDPASGDClassifier,
        LDPASGDRegressor,
        LDPSGDClassifier,
        LDPSGDRegressor,
    )
    from streamdp.estimators.pan import PanPrivateClassifier, PanPrivateRegressor
    from streamdp.estimators.shuffle.estimators import ShuffleClassifier, ShuffleRegressor
    from streamdp.estimators.statistics import Statistics
    from streamdp.estimators.user.estimators import UserLevelLDPClassifier, UserLevelLDPRegressor
    from streamdp.estimators.windowed import WindowedClassifier, WindowedRegressor

# Imported on first use: a job has one estimator.
_HOMES = {
    "LDPASGD": "estimators.ldp.estimators",
    "LDPSGD": "estimators.ldp.estimators",
    "PanPrivate": "estimators.pan",
    "Shuffle": "estimators.shuffle.estimators",
    "Statistics": "estimators.statistics",
    "UserLevelLDP": "estimators.user.estimators",
    "Windowed": "estimators.windowed",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = _HOMES[name.removesuffix("Classifier").removesuffix("Regressor")]
        return globals().setdefault(name, getattr(import_module(f"streamdp.{home}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LDPASGDClassifier",
    "LDPASGDRegressor",
    "LDPSGDClassifier",
    "LDPSGDRegressor",
    "PanPrivateClassifier",
    "PanPrivateRegressor",
    "ShuffleClassifier",
    "ShuffleRegressor",
    "Statistics",
    "UserLevelLDPClassifier",
    "UserLevelLDPRegressor",
    "WindowedClassifier",
    "WindowedRegressor",
]
