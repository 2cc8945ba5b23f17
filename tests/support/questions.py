"""Records that are asked about the constant of private validation."""

import numpy as np

from streamdp.privacy.entropy import SeededEntropy, draw
from streamdp.validation.answers import Errors
from streamdp.validation.plan import CONSTANT
from streamdp.validation.sums import COLUMNS
from streamdp.validation.tasks import Task
from streamdp.validation.validator import CONSTANTS, PROGRESS

USUAL = float(np.e / (1 + np.e))
"""The probability of a true answer at epsilon = 1."""


def said_about_constant(
    task: Task, y: np.ndarray, known: np.ndarray, before: int, reach: float, keep: float = USUAL
) -> np.ndarray:
    """What is known after answers of all records y (n,), with so many answers before."""
    n, found, progress = len(y), known.copy(), np.zeros(PROGRESS)
    progress[CONSTANTS] = before
    words = draw(SeededEntropy(before), 2 * n).reshape(n, 2)
    sums = np.zeros(COLUMNS + task.cells)
    task.errors(known, reach).answer(
        np.full(n, CONSTANT), np.zeros((n, 1)), y, np.full(n, keep), words, sums, progress, found
    )
    assert not words.any()
    return found


def values_of(errors: Errors, scores: np.ndarray, y: np.ndarray, *, other: bool = False) -> np.ndarray:
    """What records say about the model, or about what stands beside it: from the vectors of sums."""
    low, high = errors.range(other)
    u = errors.vectors((1.0, 1.0), 1.0, scores, y)[:, 2 * other]
    return np.asarray(((high - low) * u + low + high) / 2)
