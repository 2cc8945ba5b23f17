"""Losses of linear models: values, bounded gradients, and the constants that privacy rests on."""

from dataclasses import replace
from typing import Literal

import numpy as np

from streamdp.errors import check_choice
from streamdp.optim.losses.base import Loss, check_classes
from streamdp.optim.losses.huber import Huber
from streamdp.optim.losses.logistic import Logistic, Softmax, without_shift
from streamdp.optim.losses.nonsmooth import Hinge, Quantile
from streamdp.optim.losses.poisson import Poisson
from streamdp.optim.losses.squared import Squared

__all__ = [
    "LOSSES",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "LossName",
    "Poisson",
    "Quantile",
    "Softmax",
    "Squared",
    "check_classes",
    "first_theta",
    "loss_for",
    "weighted_by_norm",
    "without_shift",
]

LossName = Literal["squared", "huber", "logistic", "softmax", "quantile", "hinge", "poisson"]
"""The names in `LOSSES`, so that a type checker sees a wrong one."""

LOSSES: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Squared, Huber, Logistic, Softmax, Quantile, Hinge, Poisson)
}


def loss_for(choice: str | Loss) -> Loss:
    """The loss of a choice: a name in `LOSSES`, or a loss, which is returned.

    Raises `ConfigError` for an unknown name.
    """
    if isinstance(choice, Loss):
        return choice
    check_choice("loss", choice, LOSSES, " or a Loss")
    return LOSSES[choice]()


def weighted_by_norm(loss: Loss) -> Loss:
    """The loss with the weight "norm"; one with `weighting` or `clip` is returned unchanged."""
    return replace(loss, weighting="norm") if loss.weighting is None and loss.clip is None else loss


def first_theta(loss: Loss, d: int, scaled: bool) -> np.ndarray:
    """Return theta_0 (d,) for a sequence of short steps.

    If the target is `scaled`, that is learned in units of its own, Huber's scale begins at half this unit, the spread
    of the target. The spread of the residuals is less, and as long as Huber's scale is above it, gradients are as much
    smaller while the noise is not (`benchmarks/learning.md`, the price).
    """
    theta = loss.start(d)
    if scaled and loss.least_scale is not None:
        theta[-1] = max(theta[-1] / 2, loss.least_scale)
    return theta
