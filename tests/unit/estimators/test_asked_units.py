"""User-level models that learn the units of target and columns from some users: devices, states, merging, statement."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp import UserLevelLDPClassifier, UserLevelLDPRegressor
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators.user.randomizer import is_within
from streamdp.scaling.search import Question
from tests.support.states import steps_of

WIDE = (-90_000.0, 110_000.0)


def made(**options: Any) -> Any:
    given = {"seed": 3, "target": WIDE, "budget": "eps=4,delta=1e-6", "items_per_user": 2} | options
    return UserLevelLDPRegressor(features=["a", "b"], **given)


def data(n: int, seed: int = 4) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Two records a user; a spread of 700 around 1,000."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    return X, 1000 + X @ [900.0, -700.0] + rng.normal(0, 200, n), [i // 2 for i in range(n)]


def learned(users: int, seed: int = 4, **options: Any) -> Any:
    model = made(**options)
    X, y, people = data(2 * users, seed)
    model.learn_encoded(X, y, subjects=people)
    return model


def test_before_any_gradient_the_estimate_is_the_centre_that_is_known() -> None:
    model = learned(60)
    assert model.n_asked == model.n_users == 60
    np.testing.assert_array_equal(model.theta[:2], 0)
    assert abs(model.theta[2]) < 10_000  # a tenth of the bounds


def test_devices_report_what_the_learner_would_ask() -> None:
    X, y, people = data(700)
    inside, outside = made(), made()
    inside.learn_encoded(X, y, subjects=people)
    for i in range(0, 700, 2):
        half = outside.randomizer
        report = half([({"a": a, "b": b}, t) for (a, b), t in zip(X[i : i + 2], y[i : i + 2], strict=True)])
        before = outside.n_asked
        outside.absorb(report)
        assert outside.n_asked - before == (report.question is not None) == (half.question is not None)
    assert inside.n_users == outside.n_users == 350 > inside.n_asked == outside.n_asked > 130
    np.testing.assert_array_equal(inside.theta, outside.theta)


def test_an_answer_to_another_question_is_refused() -> None:
    records = [({"a": 0.1, "b": 0.2}, 900.0)]
    asking, learning = made(), learned(600)
    assert asking.randomizer.question is not None is learning.randomizer.question
    bit, gradient = asking.randomizer(records), learning.randomizer(records)
    for model, report in ((asking, gradient), (learning, bit)):
        counts = model.n_users, model.n_asked
        with pytest.raises(SchemaError, match="no longer open"):
            model.absorb(report)
        assert (model.n_users, model.n_asked) == counts
    for broken in (np.array([0.5]), np.array([1.0, 0.0]), np.zeros((1, 1))):
        with pytest.raises(SchemaError, match="no answer"):
            asking.absorb(type(bit)(broken, None, bit.batch, bit.budget, question=bit.question))
    half = asking.randomizer
    fields = {name: getattr(half, name) for name in half.__dataclass_fields__}
    with pytest.raises(ConfigError, match="question"):
        type(half)(**fields | {"units": None})


def test_the_record_that_answers_is_chosen_in_turn() -> None:
    X, y = np.array([[0.1, 0.5], [0.2, 0.6], [0.3, 0.7]]), np.array([1.0, 5.0, 9.0])
    assert [is_within(Question(4, 6, turn, 2), X, y, (0, 10)) for turn in range(4)] == [False, True, False, False]
    assert is_within(Question(6, 9, 2, 2), X, y, (0, 8))  # clipped
    found = [is_within(Question(0.15, 0.25, turn, 0), X, y, None) for turn in range(4)]
    assert found == [False, True, False, False]
    assert is_within(Question(0.65, np.inf, 2, 1), X, y, None)


def test_merged_learners_keep_what_they_learned_in_their_own_units() -> None:
    parts = [learned(1500, seed=seed) for seed in (5, 6)] + [learned(50, seed=7)]
    units = [part.randomizer.units[1:] for part in parts[:2]]
    assert units[0] != units[1]
    merged = parts[2].merged(*parts[:2])
    weights = np.array([steps_of(part).state[-2] for part in parts])
    expected = weights @ [part.theta for part in parts] / weights.sum()
    np.testing.assert_allclose(merged.theta, expected, rtol=1e-9)
    assert merged.randomizer.units[1:] in units
    assert merged.n_asked == sum(part.n_asked for part in parts)
    with pytest.raises(ConfigError, match="one scaling"):
        parts[0].merged(learned(50, scaling="declared"))


def test_the_statement_says_what_the_asked_users_paid_for() -> None:
    model = learned(600)
    said = f"of the reports, {model.n_asked:,} spent their budget on one bit about the centre and the spread"
    assert said in model.statement().replace("\n", " ")
    assert "one bit about" not in learned(60, scaling="declared").statement()


def test_what_private_scaling_needs() -> None:
    for options in ({"target": None}, {"intercept": False}, {"smoothness": 1.0}, {"method": "ac-sa"}):
        with pytest.raises(ConfigError, match="private scaling needs"):
            made(scaling="private", **options)
        assert made(**options).randomizer.question is None
    with pytest.raises(ConfigError, match="scaling: expected"):
        made(scaling="shared")
    assert made(scaling="none").randomizer.units.bounds is None
    assert UserLevelLDPClassifier(features=["a"]).randomizer.question is None


# --- columns


def wide(kind: Any = UserLevelLDPRegressor, bound: float = 30.0, **options: Any) -> Any:
    """Two columns of spread 1 in bounds many times as wide, one in bounds that fit and a category."""
    schema = {"a": (-bound, bound), "b": (-bound, bound), "c": (-1.0, 1.0), "d": ["no", "yes"]}
    given = {"seed": 3, "budget": "eps=4,delta=1e-6", "items_per_user": 2} | options
    if kind is UserLevelLDPRegressor:
        given.setdefault("target", (-10.0, 10.0))
    return kind(features=schema, **given)


def encoded(n: int, seed: int = 4, bound: float = 30.0) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Columns as the schema encodes them, a target, two records a user."""
    rng = np.random.default_rng(seed)
    X = rng.normal([0.5, -0.2, 0.0, 0.0], [1.0, 1.0, 0.5, 1.0], (n, 4))
    X[:, 3] = X[:, 3] > 0
    y = 1 + X @ [1.0, -1.0, 0.5, 1.0] + rng.normal(0, 0.5, n)
    X[:, :2] /= bound
    return X, y, [i // 2 for i in range(n)]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.slow
def test_columns_of_classes_in_wide_bounds_are_learned(loss: str) -> None:
    X, y, people = encoded(12_000)
    fresh, truth, _ = encoded(4000, 9)
    limits = [1.0] if loss == "logistic" else [0.3, 2.0]
    options: dict[str, Any] = {"loss": loss, "classes": range(len(limits) + 1)}
    scaled, unscaled = (wide(UserLevelLDPClassifier, scaling=scaling, **options) for scaling in (None, "none"))
    shares = []
    for model in (scaled, unscaled):
        model.learn_encoded(X, np.searchsorted(limits, y).astype(float), subjects=people)
        right = model.predict_encoded(fresh) == np.searchsorted(limits, truth)
        shares.append(np.mean(right))
    assert scaled.n_asked > 0 == unscaled.n_asked
    assert shares[0] > shares[1] + 0.08


@pytest.mark.slow
def test_devices_answer_about_columns_as_the_learner_would_ask() -> None:
    X, y, people = encoded(1400)
    inside, outside = wide(scaling="private"), wide(scaling="private")
    inside.learn_encoded(X, y, subjects=people)
    asked = []
    for i in range(0, 1400, 2):
        half = replace(outside.randomizer, features=tuple("abcd"))  # for columns that are encoded
        report = half(
            [(dict(zip(half.features, x, strict=True)), t) for x, t in zip(X[i : i + 2], y[i : i + 2], strict=True)]
        )
        asked.append(None if report.question is None else report.question.column)
        outside.absorb(report)
    assert set(asked) == {None, 0, 1, 2, 4}
    assert inside.n_asked == outside.n_asked == len(asked) - asked.count(None)
    np.testing.assert_array_equal(inside.theta, outside.theta)
    assert (inside.randomizer.units.columns[1] > 3**0.5).any()


def test_late_answers_about_columns_are_taken_and_broken_ones_are_not() -> None:
    X, y, people = encoded(3000)
    model = wide()
    while model.randomizer.question is None or model.randomizer.question.column == 4:
        model.learn_encoded(X[:2], y[:2], subjects=[model.n_seen] * 2)
    half = model.randomizer
    bit = replace(half, features=tuple("abcd"))([(dict(zip("abcd", X[0], strict=True)), y[0])])
    model.learn_encoded(X, y, subjects=people)
    before = model.n_asked
    model.absorb(bit)
    assert model.n_asked == before + 1
    for column in (3, 5, -2, 1.0):
        asked = bit.question._replace(column=column)
        with pytest.raises(SchemaError):
            model.absorb(type(bit)(bit.answer, None, bit.batch, bit.budget, question=asked))
    assert model.n_asked == before + 1
    fields = {name: getattr(half, name) for name in half.__dataclass_fields__}
    unseen = half.units._replace(columns=np.zeros((2, 4)))
    for broken in ({"question": half.question._replace(column=5)}, {"units": unseen}):
        with pytest.raises(ConfigError):
            type(half)(**fields | broken)
