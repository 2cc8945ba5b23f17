"""Scaling while learning: the posterior of a column, the schedule of questions, and units."""

import math

import numpy as np
import pytest

from streamdp import LDPASGDClassifier, LDPASGDRegressor, LDPSGDRegressor
from streamdp.scaling import location_scale as ls
from streamdp.scaling import schedule
from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import UnitArrays, begin
from tests.support.sizes import some
from tests.support.states import outward, path_of, report_arrays, units_of


def column(target: bool = False) -> UnitArrays:
    """What is known of the only column that is scaled, or of the target, before the first bit."""
    table = np.zeros((2, k.TABLE))
    table[:, [k.SCALE, k.UNIT]] = 1.0
    return begin(table, [int(target)])


def share(z: float) -> float:
    return (1 + math.tanh(0.85 * z)) / 2


def test_the_posterior_is_bayes_rule() -> None:
    """Cell by cell against the formula, with questions that are open to a side, or far away.

    Floats of 32 bits have a relative error of 6e-8, and the least answers here have a probability of 0.025.
    """
    questions = [(-math.inf, 0.25, True, 0.73), (-0.5, 0.1, False, 0.9)]
    questions += [(0.9, math.inf, True, 1.0), (-9.0, 1e300, False, 0.6)]
    centres, spreads = np.linspace(-1, 1, ls.CENTRES), 2.0 ** np.arange(-6, 0.25, 0.5)
    weights = np.ones((ls.CENTRES, ls.SPREADS))
    for low, high, answer, keep in questions:
        for i, m in enumerate(centres):
            for j, s in enumerate(spreads):
                f = 0.025 + 0.95 * (share((high - m) / s) - share((low - m) / s))
                yes = keep * f + (1 - keep) * (1 - f)
                weights[i, j] *= yes if answer else 1 - yes
    within = np.maximum(1 - centres[:, None] ** 2, 0.3)
    priors = {True: np.ones(weights.shape), False: within**2 / (1 + (np.arange(13) - 9.0) ** 2)}
    for target, prior in priors.items():
        expected = weights * prior / (weights * prior).sum()
        arrays = column(target)
        for low, high, answer, keep in questions:
            k.take_bit(arrays, int(target), low, high, answer, keep)
        found, summary = np.exp(arrays.posterior[0].astype(float)), arrays.summary[0]
        np.testing.assert_allclose(found / found.sum(), weights / weights.sum(), rtol=2e-5)
        mean = float((expected.sum(1) * centres).sum())
        assert summary[ls.MEAN] == pytest.approx(mean, rel=2e-5)
        assert summary[ls.VARIANCE] == pytest.approx(float((expected.sum(1) * (centres - mean) ** 2).sum()), rel=2e-5)
        assert summary[ls.LOG] == pytest.approx(float((expected.sum(0) * np.log(spreads)).sum()), rel=2e-5)
        r = np.log(np.sqrt(spreads**2 + (centres[:, None] - mean) ** 2))
        assert summary[ls.REACH] == pytest.approx(float((expected * r).sum()), rel=2e-5)
        variance = float((expected * (r - (expected * r).sum()) ** 2).sum())
        assert summary[ls.REACH_VARIANCE] == pytest.approx(variance, rel=1e-4)


def test_a_column_with_two_possible_centres_is_asked_on() -> None:
    """A narrow bell at 0 has a fifth of the weight, one at .6 the rest: r is about .25 for both, and known."""
    arrays = report_arrays(LDPASGDClassifier(features={"x": (-1, 1)}))
    arrays.units.posterior[0] = -80.0
    arrays.units.posterior[0, 96, 2], arrays.units.posterior[0, 154, 2] = math.log(0.2), math.log(0.8)
    k.refresh(arrays.units)
    assert arrays.units.summary[0, ls.REACH_VARIANCE] < 0.4
    assert arrays.units.summary[0, k.ERROR] > 2.0


@pytest.mark.parametrize("epsilon", some([0.005, 0.05], 1))
@pytest.mark.slow
def test_rounding_is_small_beside_what_noisy_bits_leave_open(epsilon: float) -> None:
    """200,000 bits of little information, against counts of answers in doubles. At 0.005 a cell's logarithms differ by
    about the rounding of one bit; the mean and its deviation stay within a fiftieth of the deviation."""
    rng, arrays, keep = np.random.default_rng(0), column(target=True), 1 / (1 + math.exp(-epsilon))
    centres, spreads = np.linspace(-1, 1, ls.CENTRES)[:, None], 2.0 ** np.arange(-6, 0.25, 0.5)
    exact = np.zeros((ls.CENTRES, ls.SPREADS))
    for low, high, true in ((-math.inf, 0.13, 0.56), (-0.2, 0.4, 0.84)):
        below = 0.0 if math.isinf(low) else (1 + np.tanh(0.85 * (low - centres) / spreads)) / 2
        f = 0.025 + 0.95 * ((1 + np.tanh(0.85 * (high - centres) / spreads)) / 2 - below)
        answers = rng.random(100_000) < keep * true + (1 - keep) * (1 - true)
        for answer in answers.tolist():
            k.take_bit(arrays, 1, low, high, answer, keep)
        yes = np.log(keep * f + (1 - keep) * (1 - f)), np.log(keep * (1 - f) + (1 - keep) * f)
        exact += answers.sum() * yes[0] + (~answers).sum() * yes[1]
    weights = np.exp(exact - exact.max())
    mean = float((weights * centres).sum() / weights.sum())
    deviation = math.sqrt((weights * (centres - mean) ** 2).sum() / weights.sum())
    summary = arrays.summary[0]
    assert summary[ls.MEAN] == pytest.approx(mean, abs=deviation / 50)
    assert math.sqrt(summary[ls.VARIANCE]) == pytest.approx(deviation, rel=1 / 50)


@pytest.mark.parametrize(("centre", "spread"), [(0.0, 0.5), (0.4, 0.05), (-0.9, 0.02)])
def test_questions_without_noise_find_centre_and_spread(centre: float, spread: float) -> None:
    rng, arrays = np.random.default_rng(0), column()
    summary = arrays.summary[0]
    for x in np.clip(rng.normal(centre, spread, 400), -1, 1):
        low, high = summary[[ls.LOW, ls.HIGH]]
        k.take_bit(arrays, 0, low, high, low <= x < high, 1.0)
    assert summary[ls.MEAN] == pytest.approx(centre, abs=0.4 * spread)
    assert math.exp(summary[ls.LOG]) == pytest.approx(spread, rel=0.4)


def regressor(**options: object) -> LDPASGDRegressor:
    features = {"a": (-10.0, 10.0), "b": (0.0, 1e6), "c": ["u", "v", "w"]}
    return LDPASGDRegressor(features=features, target=(-50.0, 150.0), **options)  # type: ignore[arg-type]


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Encoded columns: one of a fifth of its bounds off their middle, one wide, two indicators; targets of scale 10."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(0.4, 0.05, n), rng.uniform(-1, 1, n), rng.integers(0, 3, n)
    X = np.column_stack([a, b, c == 1, c == 2]).astype(float)
    return X, 20 + 100 * (a - 0.4) + 5 * b - 3 * (c == 2) + rng.normal(0, 2, n)


def test_the_compiled_map_writes_theta_in_original_units() -> None:
    """Without an average, which is mapped in Python."""
    model = LDPSGDRegressor(features=regressor().features, target=(-50.0, 150.0))
    model.learn_encoded(*records(3000))
    theta, shown, _ = path_of(model)
    np.testing.assert_allclose(outward(model, theta), shown, rtol=1e-9, atol=1e-9)


def test_a_change_of_scale_changes_no_prediction() -> None:
    """Theta is carried along, so what the last iterate predicts stays the same when columns are scaled anew."""
    model = regressor(mechanism="none")
    X, y = records(600)
    for i in range(600):
        progress = units_of(model).progress
        before, changes, total = (outward(model, path_of(model)[0]), *progress[[k.CHANGES, k.TOTAL]])
        model.learn_encoded(X[i : i + 1], y[i : i + 1])
        moved = progress[k.TOTAL] > total  # a gradient step; then theta moves anyway
        if progress[k.CHANGES] > changes and not moved and progress[k.COUNT] > 0:
            np.testing.assert_allclose(outward(model, path_of(model)[0]), before, rtol=1e-9)
    scales = units_of(model).table[:, k.SCALE]
    assert scales[0] < 0.2 < scales[1]
    assert scales[-1] < 30
    assert units_of(model).progress[k.CHANGES] > 1


def test_the_next_question_is_that_of_the_schedule() -> None:
    """Against the rule as the head of `schedule` states it, at states that reach every branch."""
    p, rng = 4, np.random.default_rng(0)
    arrays = report_arrays(LDPASGDRegressor(features={f"x{j}": (-1, 1) for j in range(p)}, target=(-1, 1)))
    arrays.units.progress[k.TARGET] = k.DONE
    met = set()
    for _ in range(3000):
        u, errors = 10 ** rng.uniform(0, 7), 10 ** rng.uniform(-4, 0, p)
        asked = 0.15 * u * 10 ** rng.uniform(-5, 0.2)
        arrays.units.progress[[k.REACHED, k.ASKED]] = u, asked
        arrays.units.summary[:p, k.ERROR] = errors
        share = 0.15 * min(1, errors.max() / 0.08)
        expected = int(errors.argmax()) if asked < share * (u - 30 * p) else k.GRADIENT
        assert schedule.next_question(arrays.units) == expected
        met.add((u < 30 * p, asked < 0.15 * u, expected >= 0))
    assert len(met) == 5


def test_bits_become_rare_and_better_budgets_need_fewer() -> None:
    X, y = records(20_000)
    asked = {}
    for budget in ("eps=1", "eps=4"):
        model = regressor(budget=budget, seed=1)
        model.learn_encoded(X[:10_000], y[:10_000])
        first = model.n_asked
        model.learn_encoded(X[10_000:], y[10_000:])
        asked[budget] = model.n_asked
        assert model.n_asked - first < first
    assert asked["eps=4"] < asked["eps=1"] < 0.2 * 20_000
    plain = LDPASGDRegressor(features=["a", "b", "c", "d"], clock="records")
    plain.learn_encoded(X, y)
    assert plain.n_asked == 0


@pytest.mark.parametrize("loss", ["logistic", "softmax", "hinge"])
def test_classifiers_scale_their_columns(loss: str) -> None:
    X, y = records(60_000)
    labels = [False, True, None] if loss == "softmax" else [False, True]
    features = {"a": (-10.0, 10.0), "b": (0.0, 1e6), "c": ["u", "v", "w"]}
    scores = []
    for scaling in ("private", "none"):
        model = LDPASGDClassifier(loss, budget="eps=2", features=features, classes=labels, scaling=scaling, seed=1)  # type: ignore[arg-type]
        model.learn_encoded(X, (y > 20).astype(float))
        scores.append(float(np.mean(model.predict_encoded(X) == (y > 20))))
    assert scores[0] > 0.75
    assert scores[0] > scores[1] + 0.05


def test_steps_do_not_grow_with_the_columns_where_the_target_is_scaled() -> None:
    """3,000 records of 20 columns: steps that grow with sqrt(d) left more than half of what can be explained."""
    rng, names, missed = np.random.default_rng(0), [f"x{j}" for j in range(20)], []
    for seed in range(6):
        X = np.clip(rng.normal(size=(4_000, 20)) / 3, -1, 1)
        truth = 1 + 3 * X.sum(axis=1)
        y = truth + rng.normal(scale=2, size=len(X))
        model = LDPASGDRegressor(features=dict.fromkeys(names, (-1, 1)), target=(-12, 14), budget="eps=4", seed=seed)
        model.learn_encoded(X[:3_000], y[:3_000])
        missed.append(np.var(model.predict_encoded(X[3_000:]) - truth[3_000:]) / np.var(truth[3_000:]))
    assert np.mean(missed) < 0.43  # six draws: 0.31, and 0.54 with longer steps; other seeds move them by 0.05
