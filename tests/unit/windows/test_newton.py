"""Newton's steps of a window, where the answer is far from the start."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from streamdp import WindowedClassifier


def test_a_rare_class_has_no_bias_from_the_first_rounds() -> None:
    """Of a class of 1 % the first rounds, which ask at 0, made the intercept .29 too low and the slopes .1 too small.

    At eps=10 noise is small. The mean intercept of four draws has a deviation of .025: the false-alarm probability is
    below 1e-6.
    """
    truth, found = np.array([1.0, -1.0, 0.5, -5.66]), []
    for draw in range(4):
        rng = np.random.default_rng(draw)
        X = rng.normal(size=(100_000, 3))
        y = (rng.random(len(X)) < expit(X @ truth[:3] + truth[3])).astype(float)
        model = WindowedClassifier(
            features=["a", "b", "c"], budget="eps=10,delta=1e-8", window=len(X), items_per_user=1, seed=draw
        )
        model.learn_encoded(X, y)
        found.append(np.asarray(model.theta))
    bias = np.mean(found, axis=0) - truth
    assert np.all(np.abs(bias) < 0.14)
