"""Private scales of windows: the reach of one user, the noise, an attack on all rounds, and what a window spends."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from streamdp import ApproxDP, GaussianDP, Huber, L2Ball, WindowedClassifier, WindowedRegressor
from streamdp.errors import ConfigError
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.mechanisms import Gaussian
from streamdp.scaling.window_moments import (
    CELLS,
    ROUNDS,
    SHARE,
    SIZES,
    noise_of,
    noise_of_sizes,
    rounds_of,
    sizes_of,
    useful,
    zoom,
)
from streamdp.windows.records import WindowRecords
from tests.support.audit import mu_lower_bound

MU = 3.0
WIDE: dict[str, Any] = {"a": (-50.0, 70.0), "b": (-1.0, 1.0), "c": ["u", "v"]}
RUNS = 600


class Fixed:
    """Users whose sums are the same whatever is asked."""

    def __init__(self, total: np.ndarray) -> None:
        self.total = total

    def moments(self, columns: np.ndarray, frame: np.ndarray, grid: float) -> np.ndarray:
        return np.rint(self.total / grid) * grid


def records(X: np.ndarray, sizes: Any, y: np.ndarray | None = None) -> WindowRecords:
    y = np.zeros(len(X)) if y is None else y
    return WindowRecords(Huber(), Huber().spec(), lambda t: t, X, y, np.array(sizes))


def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, np.ndarray]]:
    """The mu and the noisy answer of every release by the Gaussian mechanism."""
    found: list[tuple[float, np.ndarray]] = []
    plain = Gaussian.randomize

    def noted(noise: Gaussian, g: np.ndarray, rng: Any = None) -> np.ndarray:
        found.append((noise.budget.mu, plain(noise, g, rng)))  # type: ignore[union-attr]
        return found[-1][1]

    monkeypatch.setattr(Gaussian, "randomize", noted)
    return found


def test_a_user_moves_the_sums_by_no_more_than_the_noise_covers() -> None:
    """Users of 1 to 5 random records in place of another one; opposite ends of the bounds reach the claim."""
    rng, frame = np.random.default_rng(5), np.array([[0.2, -0.1, 0.3], [0.5, 0.01, 0.1]])
    columns, sensitivity = np.array([0, 2, 3]), noise_of(3, 1, 5, MU).sensitivity or 0.0  # 3 is the target

    def total(rows: np.ndarray) -> np.ndarray:
        return records(rows[:, :3].copy(), [len(rows)], rows[:, 3].copy()).moments(columns, frame, 2.0**-40)

    assert sensitivity == pytest.approx(2 * math.sqrt(3))
    ends = total(np.full((3, 4), 9.0)) - total(np.full((2, 4), -9.0))
    assert 0.999 * sensitivity < np.linalg.norm(ends) <= sensitivity * (1 + 1e-9)
    for _ in range(1000):
        one, other = (rng.normal(0, 10 ** rng.uniform(-3, 2), (rng.integers(1, 6), 4)) for _ in range(2))
        assert np.linalg.norm(total(one) - total(other)) <= sensitivity * (1 + 1e-9)


def test_the_sums_are_those_of_averages_of_moments() -> None:
    rng, frame = np.random.default_rng(6), np.array([[0.1], [0.4]])
    X, y = rng.normal(size=(9, 2)), rng.normal(size=9)
    users = records(X.copy(), [2, 4, 3], y.copy())
    for column, values in ((1, X[:, 1]), (2, y)):
        a = np.clip((values - 0.1) / 0.4, -1, 1)
        expected = [sum(part.mean() for part in np.split(moment, [2, 6])) for moment in (a, a * a)]
        np.testing.assert_allclose(users.moments(np.array([column]), frame, 2.0**-40), expected, atol=1e-10)
    users.rescale(np.array([1, 2]), np.repeat(frame, 2, axis=1), (0.0, 0.0))
    np.testing.assert_allclose(users._X, np.column_stack([X[:, 0], np.clip((X[:, 1] - 0.1) / 0.4, -4, 4)]))
    np.testing.assert_allclose(users._y, (y - 0.1) / 0.4)


def test_the_rounds_have_this_noise_and_an_attack_finds_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square at 1e-8; one user moves every sum by S. Below the claim and close to it; above it with half the
    noise."""
    found = heard(monkeypatch)
    noise, columns, frame = noise_of(2, 1000, 1, MU), np.array([0, 1]), np.array([[0.0, 0.0], [1.0, 1.0]])
    scale = 2 * math.sqrt(2) * math.sqrt(ROUNDS) / MU

    def answers(used: Gaussian, first: float, seed: int) -> np.ndarray:
        found.clear()
        rng = SeededEntropy(seed)
        for _ in range(RUNS):
            zoom(Fixed(np.array([first, 0.0, 0.0, 0.0])), columns, frame, 1000, used, rng)
        return np.reshape([answer for _, answer in found], (RUNS, ROUNDS, 4))

    loud = replace(noise, budget=GaussianDP(2 * noise.budget.mu))  # type: ignore[union-attr]
    bounds = []
    for used in (noise, loud):
        given = [answers(used, way * math.sqrt(2), 10 + way) for way in (1, -1)]
        bounds.append(mu_lower_bound(*(part[:, :, 0].sum(axis=1) for part in given)))
        silent = float(np.sum((given[0][:, :, 1:] / (scale * 1.0005)) ** 2))
        degrees = RUNS * ROUNDS * 3
        fits = min(chi2.cdf(silent, degrees), chi2.sf(silent, degrees)) > 1e-8
        assert fits == (used is noise)
    assert 0.6 * MU < bounds[0] <= MU < bounds[1]


def test_a_user_moves_counts_of_sizes_by_no_more_than_the_noise_covers() -> None:
    rng, sensitivity = np.random.default_rng(5), noise_of_sizes(2, 1, 5, MU).sensitivity or 0.0

    def total(rows: np.ndarray) -> np.ndarray:
        return records(rows.copy(), [len(rows)]).sizes(np.array([0, 1]), 2.0**-40)

    furthest = np.linalg.norm(total(np.full((3, 2), 0.7)) - total(np.full((2, 2), 1e-5)))
    assert furthest == pytest.approx(2.0)
    assert sensitivity == pytest.approx(2.0)
    for _ in range(500):
        one, other = (10 ** rng.uniform(-20, 0, (rng.integers(1, 6), 2)) * rng.integers(-1, 2, 2) for _ in range(2))
        assert np.linalg.norm(total(one) - total(other)) <= sensitivity * (1 + 1e-9)
        assert total(one).sum() == pytest.approx(2.0)


def test_counts_of_sizes_are_those_of_powers_of_two() -> None:
    x = np.array([[1.0], [-0.5], [0.49], [-0.25], [2.0**-51], [2.0**-60], [0.0]])
    found = records(x, np.ones(7, dtype=int)).sizes(np.array([0]), 2.0**-40)
    assert found[[0, 1, 50, CELLS - 1]].tolist() == [2, 2, 1, 2]


def test_counts_of_sizes_have_this_noise_and_half_of_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square at 1e-8, and an attack on one user, whose value moves from one cell to another."""
    found, noise = heard(monkeypatch), noise_of_sizes(1, 1000, 1, MU)

    def answers(used: Gaussian, value: float, seed: int) -> np.ndarray:
        found.clear()
        rng, users = SeededEntropy(seed), records(np.array([[value], [0.9]]), [1, 1])
        for _ in range(RUNS):
            sizes_of(users, np.array([0]), 1000, used, rng)
        return np.array([answer for _, answer in found])

    for used in (noise, replace(noise, budget=GaussianDP(2 * noise.budget.mu))):  # type: ignore[union-attr]
        one, other = answers(used, 0.4, 1), answers(used, 0.1, 2)
        bound = mu_lower_bound(*(part[:, 1] - part[:, 3] for part in (one, other)))
        silent = float(np.sum((one[:, 5:] / (math.sqrt(2) / MU * 1.0005)) ** 2))
        degrees = RUNS * (CELLS - 5)
        fits = min(chi2.cdf(silent, degrees), chi2.sf(silent, degrees)) > 1e-8
        assert (fits, bound <= MU) == (used is noise, used is noise)
        assert bound > 0.6 * MU


def test_a_window_that_finds_bounds_spends_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rng = heard(monkeypatch), np.random.default_rng(3)
    model = WindowedRegressor(
        features={"a": {"bounds": "private"}, "b": (-1, 1)}, target=(-9, 9), window=20_000, items_per_user=1, seed=1
    )
    X = np.column_stack([rng.normal(500, 3, 20_000), rng.uniform(-1, 1, 20_000)])
    model.learn_arrays(X, (X[:, 0] - 500) / 3 + X[:, 1])
    whole = GaussianDP.from_approx(ApproxDP(1, 1e-6)).mu
    mus = np.array([mu for mu, _ in found])
    assert np.hypot.reduce(mus) <= whole
    assert np.hypot.reduce(mus) > 0.999 * whole
    assert mus[0] ** 2 == pytest.approx(SIZES * whole**2, rel=1e-6)
    assert np.sum(mus[1 : ROUNDS + 1] ** 2) == pytest.approx(SHARE * whole**2, rel=1e-6)


def test_a_rare_flag_keeps_the_scale_of_its_spread() -> None:
    """Its clipped values have ever less variance the smaller the scale is, so the search must stop at a known one."""
    flag = np.where(np.arange(50_000) % 200 == 0, 1.0, -1.0)[:, None]
    users, columns, start = records(flag, np.ones(50_000, np.int64)), np.array([0]), np.array([[0.0], [1.0]])
    for seed in range(5):
        frame, final = zoom(users, columns, start, 50_000, noise_of(1, 50_000, 1, 0.1), SeededEntropy(seed))
        assert final.all()
        assert flag.std() < frame[1, 0] < 3 * flag.std()


def test_one_round_centres_columns_whose_spread_noise_hides() -> None:
    """Columns near one end of their bounds: their centres are found, and no scale is below their spread."""
    n, k, mu = 2000, 30, 0.1
    X = np.random.default_rng(0).uniform(-1, -0.8, (n, k))
    users, columns = records(X, np.ones(n, np.int64)), np.arange(k)
    rounds = rounds_of(k, n, 1, mu)
    noise = noise_of(k, n, 1, mu, rounds)
    frame, _ = zoom(users, columns, np.repeat([[0.0], [1.0]], k, axis=1), n, noise, SeededEntropy(1), rounds=rounds)
    assert rounds == 1
    assert np.abs(frame[0] + 0.9).max() < 0.1
    assert 2 * X.std() < frame[1].min() <= frame[1].max() <= 1


def raw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns in [-1, 1]; the first fills a fiftieth of its bounds."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(0.3, 0.01, n), rng.uniform(-1, 1, n), rng.integers(0, 2, n)])
    return X, 100 * (X[:, 0] - 0.3) + X[:, 1] - X[:, 2] + rng.normal(0, 0.3, n)


OTHERS = 17
"""The releases of a window beside its scales: the rounds, and the spread of gradients."""


def model(scaling: str | None = None, **options: Any) -> WindowedRegressor:
    given: dict[str, Any] = {"features": WIDE, "budget": "eps=1,delta=1e-6", "items_per_user": 1, "window": 5000}
    return WindowedRegressor(**given | options, scaling=scaling)


@pytest.mark.parametrize(
    ("target", "columns", "rounds"), [(None, 2, [ROUNDS, 0, 0]), ((-100.0, 200.0), 3, [ROUNDS, ROUNDS, 0])]
)
def test_a_window_spends_no_more_than_its_budget(
    target: tuple[float, float] | None, columns: int, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The squares of all mu of a window add up to that of its budget, whether it is scaled, settled or too small; the
    noise of a round is that of all columns, the target among them."""
    found, whole = heard(monkeypatch), GaussianDP.from_approx(ApproxDP(1.0, 1e-6)).mu
    scale, plain = [], Gaussian.rows
    monkeypatch.setattr(Gaussian, "rows", lambda noise, d: scale.append((d, noise.sensitivity)) or plain(noise, d))
    learner = model(seed=3, target=target)
    X, y = raw(15_000)
    spent, asked = [], []
    for window in np.split(np.arange(15_000), 3):
        found.clear()
        learner.learn_encoded(X[window], y[window])
        asked.append(len(found) - OTHERS)
        spent.append(sum(mu**2 for mu, _ in found))
    assert asked == rounds  # until the last round of a window changed nothing
    assert {noise for d, noise in scale if d == 2 * columns} == {noise_of(columns, 5000, 1, MU).sensitivity}
    assert all(0.99 * whole**2 < total <= whole**2 for total in spent)
    found.clear()
    few = model(seed=1, window=700, target=target)
    few.learn_encoded(X[:700], y[:700])
    assert len(found) == OTHERS + 1  # several rounds would find no scale, and one tells where columns are
    assert 0.99 * whole**2 < sum(mu**2 for mu, _ in found) <= whole**2
    share = whole * math.sqrt(SHARE)
    assert rounds_of(columns, 700, 1, share) == 1
    assert rounds_of(columns, 5000, 1, share) == ROUNDS
    assert useful(noise_of(columns, 700, 1, share, 1), columns, 700)
    assert not useful(noise_of(columns, 100, 1, share, 1), columns, 100)


def test_where_scaling_is_impossible_it_is_off_or_an_error() -> None:
    for options in ({"intercept": False}, {"domain": L2Ball(5.0)}, {"features": ["a", "b", "c=v"]}):
        assert model(**options).model_dict()["scaling"] == "(None, [])"  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="private scaling needs"):
            model("private", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scaling: expected"):
        model("declared")
    assert WindowedClassifier(features=WIDE).model_dict()["scaling"] == "(None, [0, 1, 2])"  # a level has a public one


def test_the_sums_are_wiped_where_their_noise_fails() -> None:
    held: list[np.ndarray] = []

    class Handed(Fixed):
        def moments(self, columns: np.ndarray, frame: np.ndarray, grid: float) -> np.ndarray:
            held.append(np.full(4, 1e9))  # longer than any sum
            return held[-1]

    noise = noise_of(2, 100, 1, MU)
    with pytest.raises(ConfigError, match="at most"):
        zoom(Handed(np.zeros(4)), np.array([0, 1]), np.array([[0.0, 0.0], [1.0, 1.0]]), 100, noise, SeededEntropy(1))
    assert not held[-1].any()
