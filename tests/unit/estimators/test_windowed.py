"""Windows of users: their users, when they end, what remains of them, and what a method gets."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, L2Ball, PureDP, WindowedClassifier, WindowedRegressor
from streamdp.errors import BudgetError, ConfigError, TooFewUsersError
from streamdp.learners.user_windows import WindowWarning
from streamdp.learners.window_buffer import Gathering
from streamdp.privacy import release
from streamdp.privacy.release import JOINED
from streamdp.windows.records import WindowRecords
from streamdp.windows.task import Rng, WindowResult
from tests.support.interruptions import interrupted, lines_of
from tests.support.plain_method import SHOWN, Plain
from tests.support.states import loss_of, region_of, spec_of, words_of


class Mutable(Plain):
    """Has no hash, as it may change."""

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _nothing_shown() -> None:
    SHOWN.clear()


def made(**options: Any) -> WindowedRegressor:
    given: dict[str, Any] = {"features": ["a", "b"], "method": Plain(), "window": 10, "items_per_user": 4}
    return WindowedRegressor(**(given | options))


def stream(n: int, people: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    rng = np.random.default_rng(seed)
    subjects: list[Any] = [f"s{k}" if k else None for k in rng.integers(0, people, n)]
    return rng.normal(size=(n, 2)), rng.normal(size=n), subjects


def replay(subjects: list[Any], window: int, items: int, least: int) -> tuple[list[list[list[int]]], list[bool]]:
    """In plain Python: the records of each user of each window that ends, and which records were taken."""
    windows: list[list[list[int]]] = []
    users: dict[Any, list[int]] = {}
    taken = []
    at = 0
    for i, subject in enumerate(subjects):
        records = users.setdefault(("alone", i) if subject is None else subject, [])
        taken.append(len(records) < items)
        if taken[-1]:
            records.append(i)
        at += 1
        if at % window == 0 and len(users) >= least:
            windows.append(list(users.values()))
            users, at = {}, 0
    return windows, taken


@pytest.mark.parametrize(
    ("window", "items", "least", "people"), [(10, 4, 3, 6), (7, 1, 1, 3), (5, 2, 4, 5), (3, 9, 3, 2)]
)
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
@pytest.mark.slow
def test_windows_are_those_of_a_plain_replay(window: int, items: int, least: int, people: int) -> None:
    """In pieces of any size: the same users with the same records, in the same windows."""
    X, y, subjects = stream(200, people)
    learner = made(window=window, items_per_user=items, method=Plain(least))
    rng, done, masks = np.random.default_rng(1), 0, []
    while done < len(X):
        part = slice(done, done + int(rng.integers(1, 23)))
        outcome = learner.learn_encoded(X[part], y[part], subjects=subjects[part])
        masks.extend([True] * len(X[part]) if outcome is None else (outcome == JOINED).tolist())
        done = part.stop
    windows, taken = replay(subjects, window, items, least)
    assert masks == taken
    assert (learner.n_windows, learner.n_users) == (len(windows), sum(map(len, windows)))
    assert (learner.n_seen, learner.n_left_out, learner.n_refused) == (sum(taken), len(X) - sum(taken), 0)
    theta = made().theta
    for users, (count, gradients) in zip(windows, SHOWN, strict=True):
        assert count == len(users)
        single = [loss_of(learner).gradient(theta, np.append(x, 1), target) for x, target in zip(X, y, strict=True)]
        expected = np.array([np.mean([single[i] for i in user], axis=0) for user in users])
        np.testing.assert_allclose(gradients, expected, rtol=1e-9, atol=1e-12)
        theta = region_of(learner).project(theta - gradients.mean(axis=0))
    np.testing.assert_array_equal(learner.theta, theta)


def test_a_window_with_too_few_users_goes_on() -> None:
    learner = made(window=5, method=Plain(4))
    X, y, _ = stream(20, 2)
    with pytest.warns(WindowWarning, match="4 are needed"):
        learner.learn_encoded(X[:5], y[:5], subjects=["ann"] * 5)
    assert (learner.n_windows, learner.at_boundary, learner.to_boundary, learner.n_seen) == (0, False, 5, 4)
    with pytest.warns(WindowWarning):
        learner.close_batch()
    assert not learner.at_boundary
    learner.learn_encoded(X[5:10], y[5:10], subjects=["bob", "cy", "dee", "ann", "eve"])
    assert (learner.n_windows, learner.n_users, learner.at_boundary) == (1, 5, True)
    assert (learner.n_seen, learner.n_refused, learner.n_left_out) == (8, 0, 2)


@pytest.mark.filterwarnings("ignore::streamdp.estimators.features.SchemaWarning")
def test_a_window_that_can_never_have_enough_users_is_an_error_before_the_first_record() -> None:
    with pytest.raises(TooFewUsersError, match="window: 10 records") as caught:
        made(method=Plain(11))
    assert caught.value.needed == 11
    late = made(method=Plain(11), features=None)
    for _ in range(2):
        with pytest.raises(TooFewUsersError):
            late.learn_one({"a": 1.0}, 1.0)
    assert late.n_seen == 0


def test_close_batch_releases_what_is_enough() -> None:
    learner = made()
    learner.learn_encoded(np.ones((4, 2)), np.ones(4), subjects=["ann", "bob", "cy", None])
    learner.close_batch()
    assert (learner.n_windows, learner.n_users, learner.at_boundary) == (1, 4, True)
    learner.close_batch()
    assert learner.n_windows == 1


def test_records_are_wiped_where_a_method_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def failing(self: Any, plan: Any, users: WindowRecords, start: np.ndarray, rng: Rng) -> WindowResult:
        kept.append(users)
        raise KeyboardInterrupt

    monkeypatch.setattr(Plain, "run", failing)
    learner = made(window=3)
    with pytest.raises(KeyboardInterrupt):
        learner.learn_encoded(np.ones((3, 2)), np.ones(3))
    assert not kept[0]._X.any()
    assert (learner.n_windows, learner.n_seen, learner.at_boundary) == (0, 3, True)
    assert learner.guarantee.budgets  # counted, whatever was released


@pytest.mark.parametrize(
    "change", [{"method": Plain(2)}, {"window": 11}, {"items_per_user": 5}, {"spread": 0.1}, {"domain": L2Ball(4)}]
)
def test_a_state_of_another_model_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        made().load_state_dict(made(**change).state_dict())


def test_merged_weighs_by_users() -> None:
    X, y, subjects = stream(40, 30)
    one, two = made(), made()
    one.learn_encoded(X[:10], y[:10], subjects=subjects[:10])
    two.learn_encoded(X[10:], y[10:], subjects=subjects[10:])
    together = one.merged(two)
    users = one.n_users + two.n_users
    np.testing.assert_allclose(together.theta, (one.theta * one.n_users + two.theta * two.n_users) / users)
    assert (together.n_users, together.n_windows, together.n_seen) == (users, 4, one.n_seen + two.n_seen)


def test_what_is_no_method_and_a_budget_without_a_delta_are_refused() -> None:
    for method in ("sgd", Plain, Mutable()):
        with pytest.raises(ConfigError, match="method"):
            made(method=method)
    with pytest.raises(BudgetError, match="eps=E,delta=D"):
        made(budget=PureDP(1.0))


def test_predictions_do_not_wait_for_a_release() -> None:
    """A release takes seconds, and until then the last model predicts."""
    learner = made()
    with ThreadPoolExecutor(1) as other, words_of(learner).lock:
        assert other.submit(learner.predict_one, {"a": 1.0, "b": 1.0}).result(timeout=120) == 0.0


def test_averages_of_classes_and_of_chosen_users() -> None:
    learner = WindowedClassifier(features=["a", "b"], classes=["x", "y", "z"], method=Plain(), window=10)
    rng = np.random.default_rng(3)
    X, y, sizes = rng.normal(size=(9, 2)), rng.integers(0, 3, 9).astype(float), np.array([2, 4, 3])
    users = WindowRecords(loss_of(learner), spec_of(learner), region_of(learner).project, X, y, sizes)
    theta = rng.normal(size=9)
    every = users.gradients(theta)
    by_hand = [loss_of(learner).gradient(theta, np.append(X[i], 1), y[i]) for i in range(9)]
    np.testing.assert_allclose(every[1], np.mean(by_hand[2:6], axis=0))
    np.testing.assert_array_equal(users.gradients(theta, np.array([2, 1])), every[[2, 1]])
    assert users.gradients(theta, np.array([], dtype=int)).shape == (0, 9)


def test_the_statement_says_what_is_protected() -> None:
    learner = made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn_encoded(np.ones((10, 2)), np.ones(10))
    text = learner.statement()
    expected = (
        "user level",
        "the operator",
        "of 10 users in all with",
        "single user of a window",
        "(epsilon, delta) = (1, ",
    )
    for words in (*expected, "the subject and the budget of each"):
        assert words in text


def test_after_an_interrupted_discard_no_two_people_are_one_user() -> None:
    def gathering() -> Gathering:
        found = Gathering(release.Release(ApproxDP(1, 1e-6)), 100)
        found.take(np.ones((3, 1)), np.ones(3), [b"a", b"b", b"b"], np.ones(3, dtype=np.bool_))
        return found

    for after in range(lines_of(gathering().discard)):
        window = gathering()
        interrupted(window.discard, after)
        window.take(np.array([[2.0], [3.0], [4.0]]), np.zeros(3), [b"c", b"d", b"b"], np.ones(3, dtype=np.bool_))
        (X, _, sizes, _), _ = window.close()
        users = np.split(X[:, 0], np.cumsum(sizes)[:-1])
        assert all(len(set(user[user > 1])) < 2 for user in users), after


def test_levels_of_categories_have_public_units_which_no_window_searches() -> None:
    towns = {"a": (0.0, 1.0), "town": [str(j) for j in range(31)], "flag": ["no", "yes"]}
    options: dict[str, Any] = {"features": towns, "target": (0, 1), "budget": "eps=4,delta=1e-6", "seed": 1}
    options |= {"window": 2000, "items_per_user": 1}
    model = WindowedRegressor(**options)
    rng = np.random.default_rng(2)
    chosen = rng.integers(0, 31, 2000)
    rows = [
        {"a": a, "town": str(j), "flag": ("no", "yes")[j % 2]} for a, j in zip(rng.random(2000), chosen, strict=True)
    ]
    for row, y in zip(rows, rng.random(2000).tolist(), strict=True):
        model.learn_one(row, y)
    slopes = model.learner.units.columns[1]
    np.testing.assert_array_equal(slopes[1:31], 2.0)
    assert slopes[31] == 1.0
    assert "scales of 2 columns" in model.statement()
    again, state = WindowedRegressor(**options), model.state_dict()
    again.load_state_dict(state)
    assert again.predict_one(rows[0]) == model.predict_one(rows[0])
    state["scales"][1, 1] = 1.0
    with pytest.raises(ConfigError, match="scales are others"):
        again.load_state_dict(state)
