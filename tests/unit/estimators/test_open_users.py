"""The records of users: when they report, what the ledger counts, and that raw records stay in memory."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamdp.estimators.user.randomizer import averages
from tests.support.states import loss_of, people_of
from tests.support.user_model import NAMES, data, mean_gradient, model, row, silent


def sizes_of_reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each report, in the order of the reports."""
    sizes: list[int] = []

    def noted(spec: Any, loss: Any, point: Any, X: Any, y: Any, counts: Any) -> np.ndarray:
        sizes.extend(counts)
        return averages(spec, loss, point, X, y, counts)

    monkeypatch.setattr("streamdp.learners.user_reports.averages", noted)
    return sizes


def test_a_user_reports_when_its_records_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = silent(monkeypatch)
    X, y, _ = data(1, 7)
    learner = model(items_per_user=3, batch_size=100)
    for x, t, who in zip(X, y, "ababbaa", strict=True):
        learner.learn_one(row(x), bool(t), subject=who)
    assert (learner.n_users, learner.n_seen, learner.at_boundary) == (2, 7, False)
    expected = [mean_gradient(np.zeros(3), X[rows], y[rows], loss_of(learner)) for rows in ([1, 3, 4], [0, 2, 5])]
    np.testing.assert_allclose(seen, expected, atol=1e-12)
    learner.close_batch()
    assert (learner.n_users, learner.at_boundary) == (3, True)
    np.testing.assert_allclose(seen[2], mean_gradient(np.zeros(3), X[[6]], y[[6]], loss_of(learner)), atol=1e-12)


def test_the_window_closes_all_users_and_one_who_comes_back_reports_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of_reports(monkeypatch)
    X, y, _ = data(1, 12)
    learner = model(items_per_user=4, window=6)
    learner.learn_encoded(X[:5], y[:5], subjects=list("abaab"))
    assert (sizes, learner.to_boundary, learner.at_boundary) == ([], 1, False)
    learner.learn_encoded(X[5:], y[5:], subjects=list("c" + "abcaaa"))
    assert sizes == [3, 2, 1, 4, 1, 1]
    assert (learner.n_users, learner.to_boundary, learner.at_boundary) == (6, 6, True)


def test_a_marker_and_time_close_users_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of_reports(monkeypatch)
    learner = model(items_per_user=4, window_seconds=5.0)
    now = [100.0]
    people_of(learner).clock = lambda: now[0]
    X, y, _ = data(1, 8)
    learner.learn_encoded(X[:3], y[:3], subjects=list("aab"))
    learner.close_user("a")
    learner.close_user("nobody")
    assert (sizes, learner.at_boundary) == ([2], False)
    now[0] = 104.9
    learner.learn_one(row(X[3]), True, subject="c")
    assert sizes == [2]
    now[0] = 105.0
    learner.learn_one(row(X[4]), True, subject="b")
    assert (sizes, learner.at_boundary) == ([2, 2, 1], True)


def test_a_record_without_a_subject_is_a_user_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of_reports(monkeypatch)
    X, y, _ = data(1, 5)
    learner = model(items_per_user=4)
    learner.learn_encoded(X, y, subjects=["a", None, "a", None, None])
    assert (sizes, learner.n_users) == ([1, 1, 1], 3)
    learner.learn_one(row(X[0]), True)
    assert (sizes, learner.n_users, learner.at_boundary) == ([1] * 4, 4, False)
    learner.learn_many(pd.DataFrame(X, columns=NAMES), pd.Series(y.astype(bool)))
    assert learner.n_users == 9


def test_room_is_kept_for_open_users_only() -> None:
    """If the records of a user come together, they are not held for the whole window."""
    X, y, subjects = data(3000, 3)
    learner = model(items_per_user=3, window=2**31)
    for begin in range(0, 9000, 30):
        part = slice(begin, begin + 30)
        learner.learn_encoded(X[part], y[part], subjects=subjects[part])
        assert learner.at_boundary
    assert len(people_of(learner).rows) == 30
    assert learner.n_users == 3000
