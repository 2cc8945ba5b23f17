"""Probabilities know the noise of theta: its variance, what it pays, and that records and arrays agree."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy

from streamdp import L2Ball, LDPASGDClassifier, LDPSGDClassifier, datasets
from streamdp.estimators.packing import Predictor
from streamdp.optim.steps import Steps
from streamdp.reading.moderation import NO_NOISE, noise_at
from streamdp.scaling.unit_table import SCALE, TABLE


@pytest.mark.parametrize(("total", "offset"), [(20.0, 10.0), (2000.0, 10.0), (200.0, 400.0)])
def test_the_variance_is_that_of_the_process(total: float, offset: float) -> None:
    """Against 2,000 paths of 2,000 Euler steps: the error of a variance is 3 %, and the limit five times that."""
    rng, steps = np.random.default_rng(1), Steps().numbers(1.0, 1.0, offset / 4)
    factor, alpha, _ = steps
    edges = total * np.linspace(0, 1, 2001) ** 2
    theta, mean, weight = np.zeros(2000), np.zeros(2000), 0.0
    for low, high in itertools.pairwise(edges):
        size = factor * ((low + high) / 2 + offset) ** -alpha
        theta += size * (-0.1 * theta * (high - low) + np.sqrt(high - low) * rng.normal(size=2000))
        weight += (share := high**1.5 - low**1.5)
        mean += share / weight * (theta - mean)
    for averaged, values in ((False, theta), (True, mean)):
        assert noise_at(steps, total, averaged).variance == pytest.approx(np.mean(values**2), rel=0.15)


@pytest.mark.parametrize("kind", [LDPSGDClassifier, LDPASGDClassifier])
def test_the_variance_is_that_of_learners(kind: type[LDPSGDClassifier]) -> None:
    """300 learners of labels that are coins: theta is noise. The error of the variance is 4 %."""
    rng, found = np.random.default_rng(2), []
    for seed in range(300):
        model = kind(features=["a", "b", "c"], budget="eps=1", seed=seed)
        model.learn_encoded(rng.normal(size=(300, 3)), rng.integers(0, 2, 300).astype(float))
        found.append(model.theta)
    noise: Any = model.moderation()
    assert noise["variance"] == pytest.approx(np.var(found), rel=0.2)


def test_the_moderated_probability_is_the_mean_over_the_noise() -> None:
    z, v = np.array([-3.0, 0.0, 0.5, 4.0]), 2.5
    noisy = z + np.sqrt(v) * np.random.default_rng(3).normal(size=(200_000, 1))
    table = np.zeros((2, TABLE))
    table[:, SCALE] = 1.0
    row = np.ones((1, 1))  # so |x|^2 is 1
    noise = NO_NOISE._replace(variance=v)
    found = [Predictor(None, np.array([s]), 1, 1, False, None, table, None).moderate(row, noise)[0, 0] for s in z]
    np.testing.assert_allclose(scipy.special.expit(found), scipy.special.expit(noisy).mean(axis=0), atol=0.02)


def test_a_model_of_noise_predicts_the_share_that_bits_told() -> None:
    """Of rare classes: what the noise has made sure goes to the log odds that the bits told, and not to one half."""
    rng, gains = np.random.default_rng(6), []
    for seed in range(8):
        X, y = rng.normal(size=(20_000, 8)).clip(-4, 4) / 4, (rng.random(20_000) < 0.03).astype(float)
        model = LDPASGDClassifier(features={f"x{j}": (-1.0, 1.0) for j in range(8)}, budget="eps=1", seed=seed)
        model.learn_encoded(X, y)
        noise: Any = model.moderation()
        odds, square = noise["odds"], 1 + np.sum(((X - noise["centres"]) / noise["scales"]) ** 2, axis=1)
        assert -5 < odds < -2
        found = scipy.special.logit(model.predict_proba_encoded(X)[:, 1])
        plain = model.prediction.reader().scores(X)[:, 0]
        np.testing.assert_allclose(
            found, odds + (plain - odds) / np.sqrt(1 + np.pi / 8 * noise["variance"] * square), rtol=1e-6
        )
        np.testing.assert_array_equal(model.predict_encoded(X), found > 0)
        gains.append(np.mean(np.logaddexp(0, (1 - 2 * y) * plain) - np.logaddexp(0, (1 - 2 * y) * found)))
    assert np.mean(gains) > 0


def test_without_bits_about_the_class_it_is_one_half() -> None:
    model = LDPASGDClassifier(features=["a"], budget="eps=1", seed=1)
    model.learn_encoded(np.zeros((500, 1)), np.ones(500))
    noise: Any = model.moderation()
    assert noise["odds"] == 0


def test_the_log_loss_falls() -> None:
    """Of columns with heavy tails; the gain of a draw is .1 +- .05."""

    def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((seed, 1))
        X = np.clip(rng.standard_t(2, (n, 20)) / 20, -1, 1)
        return X, (rng.random(n) < scipy.special.expit(2.5 * X.sum(axis=1))).astype(float)

    rows, gains = np.arange(5000), []
    held, truth = draw(5000, 7)
    for seed in range(6):
        X, y = draw(20_000, seed)
        features = {f"x{j}": (-1.0, 1.0) for j in range(20)}
        model = LDPASGDClassifier(features=features, budget="eps=1", seed=seed)
        model.learn_encoded(X, y)
        shares = model.predict_proba_encoded(held)
        np.testing.assert_array_equal(shares[:, 1] > 0.5, model.predict_encoded(held) == 1)
        plain = np.logaddexp(0, (1 - 2 * truth) * model.prediction.reader().scores(held)[:, 0])
        gains.append(np.mean(plain + np.log(shares[rows, truth.astype(int)])))
    assert np.mean(gains) > 0.04


@pytest.mark.parametrize("intercept", [True, False])
def test_records_and_arrays_have_the_same_probabilities(intercept: bool) -> None:
    """Also of raw records with categories, whose columns were centred and scaled."""
    rng, colours = np.random.default_rng(4), ["red", "green", "blue"]
    records = [
        {"a": float(a), "b": str(b)} for a, b in zip(rng.normal(5, 1, 4000), rng.choice(colours, 4000), strict=True)
    ]
    model = LDPASGDClassifier(features={"a": (-100, 100), "b": colours}, intercept=intercept, budget="eps=4", seed=1)
    for record in records:
        model.learn_one(record, record["a"] > 5)
    assert model.moderation()
    assert (model.n_asked > 0) == intercept
    encoder: Any = model.encoder
    for record in records[:20]:
        found, row = list(model.predict_proba_one(record).values()), np.array([encoder.encode_raw(record)])
        np.testing.assert_allclose(found, model.predict_proba_encoded(row)[0], rtol=1e-9)


def test_without_a_known_variance_probabilities_are_plain() -> None:
    X, y = datasets.logistic(500, 2, seed=1)
    names = ["a", "b"]
    models = [
        LDPASGDClassifier(features=names, seed=1, domain=L2Ball(3.0)),
        LDPASGDClassifier(features=names, seed=1, clock="records"),
        LDPASGDClassifier(features=names, seed=1),
    ]
    for model in models:
        model.learn_encoded(X, y)
    other = LDPASGDClassifier(features=names, seed=2)
    other.learn_encoded(X, y)
    for model in [*models[:2], models[2].merged(other)]:
        plain = scipy.special.expit(model.prediction.reader().scores(X)[:, 0])
        np.testing.assert_array_equal(model.predict_proba_encoded(X)[:, 1], plain)
        found = [model.predict_proba_one(dict(zip(names, x, strict=True)))[True] for x in X[:5].tolist()]
        np.testing.assert_allclose(found, plain[:5])
    assert models[2].moderation()
    assert LDPASGDClassifier(features=names).moderation() is None
