"""streamdp: learn continuously from streams of personal records under differential privacy."""

from importlib import import_module
from typing import Any

from streamdp.errors import PrivacyWarning
from streamdp.estimators import (
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
    WindowedClassifier,
    WindowedRegressor,
)
from streamdp.estimators.accounts import Account, account
from streamdp.optim.domains import Box, L2Ball, RealSpace
from streamdp.optim.losses import Hinge, Huber, Logistic, Quantile, Softmax, Squared
from streamdp.privacy.guarantees import ApproxDP, GaussianDP, Guarantee, PureDP, parse_budget
from streamdp.privacy.mechanisms import Gaussian, Laplace, PrivUnit

__version__ = "0.1.0"

# Imported on first use: learning needs neither SQL nor progress bars.
_LATE = {
    "Ledger": "streamdp.ledger.ledger",
    "Runner": "streamdp.runtime.runner",
    "Store": "streamdp.store.store",
    "Worker": "streamdp.runtime.worker",
    "load_snapshot": "streamdp.serving.snapshots",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'streamdp' has no attribute {name!r}")


__all__ = [
    "Account",
    "ApproxDP",
    "Box",
    "Gaussian",
    "GaussianDP",
    "Guarantee",
    "Hinge",
    "Huber",
    "L2Ball",
    "LDPASGDClassifier",
    "LDPASGDRegressor",
    "LDPSGDClassifier",
    "LDPSGDRegressor",
    "Laplace",
    "Ledger",
    "Logistic",
    "PanPrivateClassifier",
    "PanPrivateRegressor",
    "PrivUnit",
    "PrivacyWarning",
    "PureDP",
    "Quantile",
    "RealSpace",
    "Runner",
    "ShuffleClassifier",
    "ShuffleRegressor",
    "Softmax",
    "Squared",
    "Store",
    "UserLevelLDPClassifier",
    "UserLevelLDPRegressor",
    "WindowedClassifier",
    "WindowedRegressor",
    "Worker",
    "account",
    "load_snapshot",
    "parse_budget",
]
