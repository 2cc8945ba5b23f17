"""The loop that learns from shuffled counts is the randomizer's own, word by word, without an array of gradients."""

import numpy as np
import pytest

from streamdp.aggregation import kernels as k
from streamdp.aggregation.shuffled_sum import LocalRandomizer
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.optim.losses import Huber, Logistic, Loss, Quantile, Softmax
from streamdp.optim.user_averages import gradients
from streamdp.privacy import entropy
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import ApproxDP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3)) * 2


@pytest.mark.parametrize(("loss", "classes"), [(Huber(), 1), (Quantile(tau=0.3), 1), (Logistic(), 2), (Softmax(), 3)])
@pytest.mark.parametrize("users", [4, 4000])  # some words of noise a coordinate, and a few bits
def test_counts_are_those_of_the_randomizer(loss: Loss, classes: int, users: int, monkeypatch: pytest.MonkeyPatch):
    """Same seed, same words: equal to the last bit, also where words run out within a record."""
    monkeypatch.setattr(entropy, "LARGEST", 0)
    y = RNG.normal(size=50) if classes == 1 else RNG.integers(0, classes, 50).astype(float)
    d = loss.size(3, classes if classes > 2 else 1)
    theta = np.full(d, 0.3)
    params = VectorSum.calibrated(ApproxDP(1.0, 1e-6), loss.bound, users, d, loss.sensitivity)
    G = gradients(loss.spec(), theta, X, y)
    expected = np.append(LocalRandomizer(params, SeededEntropy(3)).counts(G).sum(axis=0), len(X))
    ones, rng, done, calls = np.zeros(d + 1, dtype=np.int64), SeededEntropy(3), 0, 0
    rng.words = rng.words[: d * (2 + params.b // 64) + 3].copy()  # room for a record, hardly for two
    rng.words[0] = len(rng.words)
    while True:
        more = k.count_ones(loss.spec(), theta, X[done:], y[done:], params.bound, params.g, params.b, ones, rng.words)
        done, calls = done + more, calls + 1
        if done == len(X):
            break
        rng.refill_for(more)
    assert calls > 25
    np.testing.assert_array_equal(ones, expected)


def test_a_gradient_beyond_the_bound_is_not_sent():
    """Nothing would be promised for it."""
    loss, rng = Logistic(), SeededEntropy(1)
    rng.refill()
    ones = np.zeros(4, dtype=np.int64)
    with pytest.raises(ArithmeticError, match="longer than the loss's bound"):
        k.count_ones(loss.spec(), np.zeros(3), X, np.ones(len(X)), 0.1, 8, 4, ones, rng.words)
    assert not ones.any()
