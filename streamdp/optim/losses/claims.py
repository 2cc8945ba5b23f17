"""What the loss of a program claims, tested before anything is learned with it.

The compiled loops compute gradients by the code and the description of a loss (`Loss.spec`), so methods that would
compute them otherwise are an error. Its bound and its sensitivity are searched for violations: a search shows a wrong
claim, and never proves a right one. Those of the library have proofs, and a longer search in the tests.
"""

import math

import numpy as np

from streamdp.errors import ConfigError, StreamDPError
from streamdp.optim.losses.base import Loss

IGNORED = ("bound", "by_norm", "gradient", "_gradient", "sensitivity", "weight")
"""What the compiled loops do by themselves, or what a clip decides."""
_THETAS, _RECORDS, _COLUMNS = 48, 48, 3
_SLACK = 1 + 1e-9


def check_claims(loss: Loss) -> None:
    """Raise `ConfigError` unless a loss is one of the library, or keeps what it claims as far as a search finds."""
    kind = type(loss)
    if kind.__module__.startswith("streamdp.optim.losses."):
        return
    Loss.__post_init__(loss)  # its own may not have called it
    changed = [name for name in IGNORED if getattr(kind, name) is not getattr(Loss, name)]
    if changed:
        raise ConfigError(
            f"{kind.__name__}: the compiled loops would ignore its own {', '.join(changed)}: leave it out"
        )
    norm, distance = _largest(loss)
    for name, found, claimed in (("bound", norm, loss.bound), ("sensitivity", distance, loss.sensitivity)):
        if not found <= claimed * _SLACK:
            raise ConfigError(
                f"{kind.__name__}: its {name} is {claimed:g}, and there are records with {found:g}: prove a larger one"
            )


def _largest(loss: Loss) -> tuple[float, float]:
    """The largest norm of a gradient and the largest distance of two at one theta that a random search finds."""
    from streamdp.optim.loops import gradients

    rng, classes = np.random.default_rng(1), 3 if loss.size(_COLUMNS, 3) != loss.size(_COLUMNS, 2) else 2
    start, norm, distance, searched = loss.start(loss.size(_COLUMNS, classes)), 0.0, 0.0, 0
    for size in np.geomspace(1e-3, 1e6, _THETAS):
        theta = np.where(start == 0, size * rng.standard_normal(len(start)), start * max(1.0, size))
        X = rng.standard_normal((_RECORDS, _COLUMNS)) * np.geomspace(0.3, 1e4, _RECORDS)[:, None]
        X[: _RECORDS // 4] *= math.sqrt(2) / np.linalg.norm(X[: _RECORDS // 4], axis=1, keepdims=True)
        X[1::2] = -X[::2]  # the largest distances are those of opposite records
        y = (
            rng.integers(classes, size=_RECORDS) * 1.0
            if loss.of_classes
            else rng.choice([-1e6, -1.0, 1.0, 1e6], _RECORDS)
        )
        try:
            loss.check_theta(theta, _COLUMNS)
            loss.check_targets(y, classes)
        except StreamDPError:
            continue  # it makes no claim there
        G = np.empty((_RECORDS, len(theta)))
        gradients(loss.spec(), theta, X, y, G)
        norm = max(norm, float(np.linalg.norm(G, axis=1).max()))
        distance = max(distance, float(np.linalg.norm(G[:, None] - G[None], axis=2).max()))
        searched += 1
    if not searched:
        raise ConfigError(f"{type(loss).__name__}: check_theta and check_targets refuse all of {_THETAS} usual points")
    return norm, distance
