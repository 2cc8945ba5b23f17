"""The estimators by who is trusted with raw records: the question that a job asks, in Python."""

from typing import TYPE_CHECKING, Literal, get_args

from streamdp import estimators
from streamdp.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator

Trust = Literal["nobody", "process", "window", "shuffler"]

_FAMILIES: dict[Trust, tuple[str, ...]] = {
    "nobody": ("LDPASGD", "LDPSGD", "UserLevelLDP"),
    "process": ("PanPrivate",),
    "window": ("Windowed",),
    "shuffler": ("Shuffle",),
}
"""The names of estimators without their endings; the first one is chosen."""


def trust_of(estimator: str) -> Trust:
    """Return the trust that an estimator needs, by its name. Raises `ConfigError` for another name."""
    stem = estimator.removesuffix("Classifier").removesuffix("Regressor")
    for trust, stems in _FAMILIES.items():
        if stem in stems:
            return trust
    raise ConfigError(f"expected the name of an estimator, such as LDPASGDRegressor, got {estimator!r}")


def chosen(trust: Trust, *, classes: bool) -> str:
    """Return the name of the estimator of a `trust`, for a target with `classes` or a number.

    Raises `ConfigError` for another trust.
    """
    if trust not in get_args(Trust):
        near = suggestion(str(trust), get_args(Trust))
        raise ConfigError(f"trust: expected one of {', '.join(_FAMILIES)}{near}")
    return _FAMILIES[trust][0] + ("Classifier" if classes else "Regressor")


def Regressor(trust: Trust, **parameters: object) -> "Estimator":  # noqa: N802 - it makes what its name says
    """Return an estimator of a number. Its class follows from who may see raw records.

    Parameters
    ----------
    trust
        "nobody": each record becomes noise first (`LDPASGDRegressor`). "process": this process, one record after
        another (`PanPrivateRegressor`). "window": this process, for a window of people (`WindowedRegressor`).
        "shuffler": a shuffler, which mixes the messages of many people (`ShuffleRegressor`).
    parameters
        Those of the estimator, such as `features`, `target` and `budget`.

    The guarantee is that of the estimator: see its `statement()`. Raises `ConfigError` for another trust, and what the
    estimator raises for its parameters.

    >>> type(Regressor("process", features={"age": (0, 100)}, target=(0, 1), budget="eps=1")).__name__
    'PanPrivateRegressor'
    """
    return getattr(estimators, chosen(trust, classes=False))(**parameters)


def Classifier(trust: Trust, **parameters: object) -> "Estimator":  # noqa: N802 - it makes what its name says
    """Return an estimator of classes. Its class follows from who may see raw records.

    Parameters
    ----------
    trust
        As for `Regressor`, with `LDPASGDClassifier`, `PanPrivateClassifier`, `WindowedClassifier` and
        `ShuffleClassifier`.
    parameters
        Those of the estimator, such as `features`, `classes` and `budget`.

    Guarantee and errors are as for `Regressor`.

    >>> type(Classifier("window", features=["age"], budget="eps=1", window=500)).__name__
    'WindowedClassifier'
    """
    return getattr(estimators, chosen(trust, classes=True))(**parameters)
