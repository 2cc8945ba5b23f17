"""The numbers that a person's device accepts from a learner, which it does not trust.

This module owns the rule; `clients/js/streamdp.js` repeats it. A device checks all numbers before it reads a record.
For each document that passes and each admissible record, a finite report comes, and no error: docs/proofs/devices.md.
"""

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.losses import Loss

LEAST, MOST = 1e-60, 1e60
"""The numbers of an agreement: parameters of the loss, widths of bounds. Bounds are within MOST of 0."""

LEAST_SHAPE = 1e-6
"""The least c of Huber's loss: below, its constants depend on rounding."""

FURTHEST = 1e100
"""The largest coordinate of a point, and of a record in the units of a point: records are clipped to it."""

FINEST = 2.0**-40
"""Scales are at least this and at most its inverse, in units of half the width of the bounds."""

MOST_QUESTION = 8.0
"""The largest end of a question, in units of half the width of the bounds, around their middle."""


def check_point(name: str, point: np.ndarray) -> None:
    """Raise `ConfigError` for a point, of this name, with a number that is not finite or is too large."""
    if not np.all(np.abs(point) <= FURTHEST):
        raise ConfigError(f"{name}: expected finite numbers of at most {FURTHEST:g}")


def check_half(what: str, middle: float, half: float) -> None:
    """Raise `ConfigError` if `what` has bounds, of this middle and half distance, that are too large or too close."""
    if not (abs(middle) <= MOST and LEAST <= half <= MOST):
        raise ConfigError(f"{what}: expected bounds within {MOST:g}, at a distance of at least {2 * LEAST:g}")


def check_units(what: str, centre: object, scale: object, middle: float = 0.0, half: float = 1.0) -> None:
    """Raise `ConfigError` if `what` has units that are too far from its bounds, too fine or too coarse.

    `centre`, `scale`: numbers, or arrays of one shape. `middle`, `half`: as for `check_half`.
    """
    near = np.abs(np.asarray(centre) - middle) <= 2 * half
    scale = np.asarray(scale)
    if not np.all(near & (scale >= FINEST * half) & (scale <= half / FINEST)):
        raise ConfigError(
            f"{what}: expected a centre within twice the bounds, and a scale from {FINEST:.1g} to {1 / FINEST:.1g} "
            "times half their distance"
        )


def check_target_units(loss: Loss, centre: float, scale: float, middle: float, half: float) -> None:
    """Raise `ConfigError` for units of the target that its bounds do not allow.

    A target without bounds, or with classes, is learned as it is: with centre 0 and scale 1.

    `centre`, `scale`, `middle`, `half`: as for `check_units`; half is infinite if there are no bounds.
    """
    if half < np.inf:
        check_half("target", middle, half)
    if (centre, scale) == (0.0, 1.0):
        return
    if loss.of_classes or half == np.inf:
        raise ConfigError("target: expected centre 0 and scale 1, because it has classes or no bounds")
    check_units("target", centre, scale, middle, half)


def check_question(what: str, low: float, high: float, middle: float = 0.0, half: float = 1.0) -> None:
    """Raise `ConfigError` if `what` asks about no interval [low, high) near the bounds; low may be minus infinity.

    `middle`, `half`: as for `check_units`.
    """
    most = MOST_QUESTION * half
    if not (low < high and abs(high - middle) <= most and (low == -np.inf or abs(low - middle) <= most)):
        raise ConfigError(f"{what}: expected an interval within {MOST_QUESTION:g} times the bounds")


def clipped(values: np.ndarray) -> np.ndarray:
    """Return values, maybe infinite, clipped to `FURTHEST`, as a new array."""
    return np.asarray(np.clip(values, -FURTHEST, FURTHEST))
