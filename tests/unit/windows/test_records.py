"""What a window asks of its users: sums that depend neither on threads nor on how users are stored."""

import numpy as np
import pytest

from streamdp import Huber
from streamdp.optim.curvature import Curvature
from streamdp.optim.loops import INTERCEPT
from streamdp.windows import records as module
from streamdp.windows.records import WindowRecords


def window(sizes: np.ndarray) -> WindowRecords:
    rng = np.random.default_rng(0)
    X, y, spec = rng.normal(size=(sizes.sum(), 3)), rng.normal(size=sizes.sum()), Huber().spec()
    spec[INTERCEPT] = 1.0
    return WindowRecords(Huber(), spec, lambda theta: theta, X, y, sizes)


@pytest.mark.parametrize("largest", [1, 5])
def test_sums_are_the_same_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    users = window(np.random.default_rng(1).integers(1, largest + 1, 1_001))
    curvature, found = Curvature(Huber(), 4, 1), []
    monkeypatch.setattr(module, "CHUNK", 100)
    for processors in (1, 2, 3, 64):
        monkeypatch.setattr(module, "processors", lambda processors=processors: processors)
        found.append(users.curvatures(curvature, np.full(curvature.parameters, 0.5), 2.0**-20))
    assert all(np.array_equal(found[0], other) for other in found)
    assert np.count_nonzero(found[0]) == curvature.size


def test_moments_of_users_with_one_record_are_those_of_averages() -> None:
    columns, table, grid = np.array([0, 2, 3]), np.array([[0.1, 0.2, 0.3], [2.0, 1.5, 1.0]]), 2.0**-12
    users = window(np.ones(1_000, dtype=np.int64))
    found = users.moments(columns, table, grid)
    X = np.random.default_rng(0).normal(size=(1_000, 3))
    place = np.clip((X[:, 2] - 0.2) / 1.5, -1, 1)
    assert found[1] == (np.rint(place / grid) * grid).sum()
    assert found[4] == (np.rint(place**2 / grid) * grid).sum()
