"""What a user answers, from arrays: averages of gradients and bits, and what leaves its side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamdp.optim.losses import Loss
from streamdp.optim.user_averages import average_gradients
from streamdp.privacy.guarantees import Budget
from streamdp.scaling.search import Question
from streamdp.scaling.units import Bounds

MOST_ITEMS = 2**20


def sensitivity_of_average(loss: Loss, items: int) -> float:
    """Return the largest distance of two averages of at most so many gradients, `items`.

    It is that of two gradients, because averages stay within their convex hull, times what rounding may add to a sum.
    """
    return min(loss.sensitivity * (1 + items * 2.0**-52), 2 * loss.bound)


def averages(
    spec: np.ndarray, loss: Loss, point: np.ndarray, X: np.ndarray, y: np.ndarray, sizes: Sequence[int]
) -> np.ndarray:
    """As `average_gradients`, for all users: sizes[0] records of the first one, then those of the second, and so on."""
    return average_gradients(spec, loss, point, X, y, np.cumsum([0, *sizes]), np.arange(len(sizes)))


def is_within(question: Question, X: np.ndarray, y: np.ndarray, bounds: Bounds | None) -> bool:
    """Return the true answer of a user with records X (k, p) and y (k,): whether a value of one, in turn, is within.

    Targets are clipped to the bounds.
    """
    record = question.turn % len(y)
    if question.column < X.shape[1]:
        return question.low <= float(X[record, question.column]) < question.high
    value = float(y[record])
    if bounds is not None:
        value = min(max(value, bounds[0]), bounds[1])
    return question.low <= value < question.high


@dataclass(frozen=True)
class UserReport:
    """What leaves a user's side: an answer to one question.

    `answer`: to the coarse question: (t,), 1 for each interval of the coordinate that is named, else 0. To the fine
    question: a noisy offset (d,) from the centre. To a question about the target or a column: (1,), 1 for yes, else 0.
    `coordinate`: the coordinate of the coarse question; None for the fine question. `batch`: the batch of the question:
    (epoch, phase, step) of the learner. `budget`: what the report spends. `private`: False if the report was made with
    a seed. `question`: what was asked about the target or a column; None: a gradient was asked for.
    """

    answer: np.ndarray
    coordinate: int | None
    batch: tuple[int, int, int]
    budget: Budget
    private: bool = True
    question: Question | None = None
