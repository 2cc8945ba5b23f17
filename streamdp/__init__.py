"""streamdp: learn continuously from streams of personal records under differential privacy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamdp.errors import PrivacyWarning, cli_packages, suggestion

if TYPE_CHECKING:
    from streamdp import datasets as datasets
    from streamdp import preprocessing as preprocessing
    from streamdp import records as records
    from streamdp import sklearn as sklearn
    from streamdp import stats as stats
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
    from streamdp.estimators.door import Classifier, Regressor
    from streamdp.estimators.loading import load
    from streamdp.ledger.ledger import Ledger
    from streamdp.optim.domains import Box, L2Ball, RealSpace
    from streamdp.optim.losses import Hinge, Huber, Logistic, Poisson, Quantile, Softmax, Squared
    from streamdp.privacy.guarantees import ApproxDP, GaussianDP, Guarantee, PureDP, parse_budget
    from streamdp.privacy.mechanisms import Gaussian, Laplace, PrivUnit
    from streamdp.runtime.runner import Runner
    from streamdp.runtime.worker import Worker
    from streamdp.serving.publish import committed
    from streamdp.serving.snapshots import load_snapshot
    from streamdp.store.store import Store

    client: Any  # rooms above others, which no import of `streamdp` may reach
    spark: Any

__version__ = "0.1.0rc1"

# Imported on first use: the command starts quickly, and learning needs neither SQL nor progress bars.
_HOMES = {
    "streamdp.estimators.accounts": "Account account",
    "streamdp.estimators.door": "Classifier Regressor",
    "streamdp.estimators.loading": "load",
    "streamdp.ledger.ledger": "Ledger",
    "streamdp.optim.domains": "Box L2Ball RealSpace",
    "streamdp.optim.losses": "Hinge Huber Logistic Poisson Quantile Softmax Squared",
    "streamdp.privacy.guarantees": "ApproxDP GaussianDP Guarantee PureDP parse_budget",
    "streamdp.privacy.mechanisms": "Gaussian Laplace PrivUnit",
    "streamdp.runtime.runner": "Runner",
    "streamdp.runtime.worker": "Worker",
    "streamdp.serving.publish": "committed",
    "streamdp.serving.snapshots": "load_snapshot",
    "streamdp.store.store": "Store",
}
_FAMILIES = ("LDPASGD", "LDPSGD", "PanPrivate", "Shuffle", "UserLevelLDP", "Windowed")
_MODULES = ("client", "datasets", "preprocessing", "records", "sklearn", "spark", "stats")
_LATE = {name: home for home, names in _HOMES.items() for name in names.split()}
_LATE |= {family + kind: "streamdp.estimators" for family in _FAMILIES for kind in ("Classifier", "Regressor")}


if not TYPE_CHECKING:  # it would make every name of `streamdp` right

    def __getattr__(name: str) -> Any:
        if name in _LATE:
            with cli_packages(f"streamdp.{name}"):
                return globals().setdefault(name, getattr(import_module(_LATE[name]), name))
        if name in _MODULES:
            return import_module(f"streamdp.{name}")
        raise AttributeError(f"module 'streamdp' has no attribute {name!r}{suggestion(name, __all__)}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Account",
    "ApproxDP",
    "Box",
    "Classifier",
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
    "Poisson",
    "PrivUnit",
    "PrivacyWarning",
    "PureDP",
    "Quantile",
    "RealSpace",
    "Regressor",
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
    "committed",
    "load",
    "load_snapshot",
    "parse_budget",
]
