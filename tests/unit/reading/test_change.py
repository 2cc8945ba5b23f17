"""A stream that changes: the blocks of batches, the test on them, and learners that follow."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm

from streamdp import (
    LDPASGDRegressor,
    LDPSGDRegressor,
    PanPrivateRegressor,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedRegressor,
)
from streamdp.errors import ConfigError
from streamdp.reading import change
from tests.support.sizes import some

NAMES = ["a", "b", "c", "d"]
D, Z, BATCH = 3, 4.0, 100
ZEROS = np.zeros(change.width(D))


def block(gradient: np.ndarray, weight: float = 1.0, point: np.ndarray | None = None) -> np.ndarray:
    """A batch of a hundred records."""
    at = np.zeros(D) if point is None else point
    sums = weight, weight, weight, weight**2 / BATCH, (weight * Z / BATCH) ** 2, BATCH, 0
    return np.concatenate([weight * at, weight * gradient, sums])


def blocks_of(gradients: np.ndarray) -> np.ndarray:
    blocks = np.zeros((change.BLOCKS, len(ZEROS)))
    for gradient in gradients:
        change.add(blocks, block(gradient))
    return blocks


@pytest.mark.parametrize("batches", [1, 4, 5, 37, 500, 5000])
def test_blocks_add_up_to_all_batches_and_are_few(batches: int) -> None:
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(batches, D))
    blocks = blocks_of(gradients)
    np.testing.assert_allclose(blocks[:, D : 2 * D].sum(axis=0), gradients.sum(axis=0))
    assert blocks[:, change.RECORDS].sum() == batches * BATCH
    assert change.used(blocks) <= 4 * math.log2(batches + 1) + 1
    assert blocks[change.used(blocks) - 1, change.RECORDS] == BATCH  # the newest batch is alone
    change.check(blocks)


def test_the_test_written_out() -> None:
    """Two blocks; the ratio that decides is that of one coordinate, or of the sum of squares."""
    variances, hessian = np.array([0.5, 1.0, 2.0]), np.diag([1.0, 2.0, 3.0])
    spread = 2 * (variances / BATCH + (Z / BATCH) ** 2)
    doubt = math.log(1 / change.DELTA) + 2 * math.log(2)
    single = math.sqrt(2 * (doubt + math.log(D)))
    together = math.sqrt((D + 2 * math.sqrt(D * doubt) + 2 * doubt) / D)
    for z in (np.array([0, single, 0]), np.full(D, together)):
        for times, expected in ((0.999, None), (1.001, change.Change(1, False))):
            move = np.array([0.3, -0.2, 0.1])  # a new query point: the Hessian carries the gradient there
            blocks = np.zeros((change.BLOCKS, len(ZEROS)))
            change.add(blocks, block(np.zeros(D)))
            away = times * z * np.sqrt(spread + 0.01 * move @ move) + 0.3 * np.abs(hessian @ move)
            change.add(blocks, block(away + hessian @ move, point=move))
            assert change.find(blocks, hessian, variances, None, False, 0, entry=0.01) == expected


def test_the_bounds_hold_for_chi_squared_and_for_normal_numbers() -> None:
    for m in (1, 3, 22, 200):
        for doubt in (5.0, 14.0, 30.0):
            assert chi2.sf(m + 2 * math.sqrt(m * doubt) + 2 * doubt, m) <= math.exp(-doubt)
            assert 2 * m * norm.sf(math.sqrt(2 * (doubt + math.log(m)))) <= math.exp(-doubt)


@pytest.mark.slow
def test_noise_alone_is_no_change() -> None:
    """20 streams of 200 batches of the largest variance, looked at after each batch: 4,000 looks.

    By the union bound of the module a stream alarms with a probability of about 1e-5; the seeds
    are fixed.
    """
    rng, variances = np.random.default_rng(2), np.ones(D)
    deviation = np.sqrt(variances / BATCH + (Z / BATCH) ** 2)
    for _ in range(20):
        blocks = np.zeros((change.BLOCKS, len(ZEROS)))
        for _ in range(200):
            change.add(blocks, block(deviation * rng.normal(size=D)))
            assert change.find(blocks, np.eye(D), variances, 1.0, False, 0) is None


def test_a_change_of_the_scale_alone_drops_the_scale_alone() -> None:
    away = np.array([0.0, 0.0, 1.0])
    blocks = blocks_of(np.repeat([np.zeros(D), away], [40, 20], axis=0))
    found = change.find(blocks, np.eye(D), np.ones(D), 1.0, False, 0)
    assert found.scale_alone
    before = blocks.copy()
    change.forget_scale(blocks, D, found.block)
    assert change.means(blocks.sum(axis=0), D, True)[1][-1] == pytest.approx(1.0, abs=0.35)
    kept = [j for j in range(len(ZEROS)) if j not in (D - 1, 2 * D - 1, len(ZEROS) + change.SCALE_WEIGHT)]
    np.testing.assert_array_equal(blocks[:, kept], before[:, kept])
    assert change.find(blocks, np.eye(D), np.ones(D), 1.0, False, 0) is None  # not found again
    assert change.find(before, np.eye(D), np.ones(D), 1.0, False, 30 * BATCH) is None  # of too few records
    change.check(blocks)
    both = blocks_of(np.repeat([np.zeros(D), away + 1], [40, 20], axis=0))
    also = change.find(both, np.eye(D), np.ones(D), 1.0, False, 0)
    assert not also.scale_alone


# --- learners


def stream(n: int, seed: int, flip: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    sign = np.where((np.arange(n) >= n // 2) & flip, -1.0, 1.0)
    return X, sign * (X @ [0.5, -0.5, 0.5, 0.5]) + rng.normal(size=n)


LOCAL: dict[str, Any] = {"ldp": LDPASGDRegressor, "sgd": LDPSGDRegressor, "user": UserLevelLDPRegressor}


def regressor(kind: str, **options: Any) -> Any:
    if kind == "windowed":
        return WindowedRegressor(**{"features": NAMES, "window": 4000, "items_per_user": 1, "seed": 1} | options)
    if kind in LOCAL:
        return LOCAL[kind](**{"features": NAMES, "seed": 1} | options)
    made = {"pan": PanPrivateRegressor, "shuffle": ShuffleRegressor}[kind]
    return made(**{"features": NAMES, "budget": "eps=2,delta=1e-6", "seed": 1} | options)


each = pytest.mark.parametrize("kind", ["pan", "shuffle", "windowed"])


@pytest.mark.parametrize("kind", some(["pan", "shuffle", "windowed"], 0))
@pytest.mark.slow
def test_a_state_goes_on_in_the_middle_of_a_change(kind: str) -> None:
    X, y = stream(60_000, 5)
    whole, first = regressor(kind), regressor(kind)
    whole.learn_encoded(X, y)
    first.learn_encoded(X[:36_000], y[:36_000])
    second = regressor(kind)
    first.close_batch()
    second.load_state_dict(first.state_dict())
    assert (second.n_changes, second.last_change) == (first.n_changes, first.last_change)
    second.learn_encoded(X[36_000:], y[36_000:])
    assert second.n_changes > 0
    assert second.last_change is None if kind == "windowed" else 30_000 < second.last_change <= 60_000
    assert np.linalg.norm(second.theta[:4] - [-0.5, 0.5, -0.5, -0.5]) < 0.2


@pytest.mark.slow
def test_sizes_of_batches_that_devices_know_from_the_job_stay() -> None:
    flipped, same = (regressor("shuffle") for _ in range(2))
    flipped.learn_encoded(*stream(60_000, 3))
    same.learn_encoded(*stream(60_000, 3, flip=False))
    assert flipped.n_changes > 0 == same.n_changes
    assert (flipped.batch, flipped.to_boundary) == (same.batch, same.to_boundary)


def test_batches_of_another_shard_before_a_change_are_left_out() -> None:
    """The second one has too few records since to notice; it is left with about as many as the first one has since."""
    shards = []
    for seed, before, after in ((1, 20_000, 5_000), (2, 21_500, 300)):
        shards.append(model := regressor("pan"))
        for n, sign in ((before, 1), (after, -1)):
            X = np.random.default_rng(seed).normal(size=(n, 4))
            model.learn_encoded(X, sign * X @ [0.5, -0.5, 0.5, 0.5] + np.random.default_rng(-sign + 9).normal(size=n))
        model.close_batch()
    changes = [model.n_changes for model in shards]
    assert changes[0] > changes[1]
    errors = [np.linalg.norm(m.theta[:4] - [-0.5, 0.5, -0.5, -0.5]) for m in (*shards, shards[1].merged(shards[0]))]
    assert errors[0] < 0.3 < 1.9 < errors[1]
    assert errors[2] < 1.4  # by all of their records it would be 1.6


def test_windows_of_another_shard_before_a_change_are_left_out() -> None:
    """The second one has a fifth of the first one's windows since; before, the windows before it had their weight."""
    shards = []
    for seed, after in ((1, 20_000), (2, 4_000)):
        shards.append(model := regressor("windowed"))
        for n, sign in ((20_000, 1), (after, -1)):
            rng = np.random.default_rng(seed + sign)
            X = rng.normal(size=(n, 4))
            model.learn_encoded(X, sign * X @ [0.5, -0.5, 0.5, 0.5] + rng.normal(size=n))
    assert shards[0].n_changes >= 1
    assert shards[0].learner.weight <= 20_000
    errors = [np.linalg.norm(m.theta[:4] - [-0.5, 0.5, -0.5, -0.5]) for m in (*shards, shards[0].merged(shards[1]))]
    assert errors[0] < errors[2] < errors[0] + 0.3 * (errors[1] - errors[0])


@pytest.mark.parametrize(("changes", "told"), [(1, False), (3, False), (4, True)])
def test_a_stream_that_changed_often_is_told_not_to_be_followed_if_it_is_periodic(changes: int, told: bool) -> None:
    """With seasons following had an error of 2.07, and ignoring 1.51."""
    assert ("season" in str(change.about(changes, 7))) is told
    assert change.about(0, None) is None


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("size", [1.0, 10.0])
def test_a_change_is_counted_once(size: float, seed: int) -> None:
    """Learners move in several steps to a theta far away, and drop what came before each step."""
    for kind, options in (
        ("windowed", {"window": 1000, "budget": "eps=4,delta=1e-6"}),
        ("windowed", {"window": 1000, "budget": "eps=1,delta=1e-6"}),
        ("pan", {"budget": "eps=4,delta=1e-6"}),
        ("shuffle", {"budget": "eps=4,delta=1e-6"}),
        ("ldp", {"budget": "eps=4"}),
        ("sgd", {"budget": "eps=4"}),
        ("user", {"budget": "eps=4", "items_per_user": 2}),
    ):
        rng, n = np.random.default_rng(seed), 30_000
        X = rng.normal(size=(n, 4))
        sign = np.where(np.arange(n) < n // 2, 1.0, -1.0)
        model = regressor(kind, **options)
        model.learn_encoded(X, size * sign * (X @ [0.5, -0.5, 0.5, 0.5]) + rng.normal(size=n))
        assert model.n_changes == 1, (kind, options)


@pytest.mark.parametrize("seed", some([4, 5, 7], 0))
@pytest.mark.parametrize("size", some([1.0, 10.0], 1))
@pytest.mark.parametrize("kind", some(["windowed", "pan", "shuffle", "ldp", "sgd", "user"], 0, 1, 3))
def test_changes_that_released_numbers_tell_apart_are_counted_each(kind: str, size: float, seed: int) -> None:
    """A flip by ten spreads may be counted twice, as what follows has another scale, or not at all; it is learned."""
    rng, n = np.random.default_rng(seed), 60_000
    X = rng.normal(size=(n, 4))
    sign = np.where(np.arange(n) // 15_000 % 2 == 0, 1.0, -1.0)
    options = {"windowed": {"window": 1000}, "user": {"items_per_user": 2}}.get(kind, {})
    model = regressor(kind, budget="eps=4" if kind in LOCAL else "eps=4,delta=1e-6", **options)
    y = size * sign * (X @ [0.5, -0.5, 0.5, 0.5]) + rng.normal(size=n)
    model.learn_encoded(X, y)
    assert abs(model.n_changes - 3) <= (size == 10)
    assert np.mean(np.abs(model.predict_encoded(X[-5000:]) - y[-5000:])) < 2  # the noise has 0.8


def test_the_way_from_the_start_to_a_theta_far_away_is_no_change() -> None:
    """Gradients are bounded, so it takes long; a change after it is counted, and parts and states keep the count."""
    X, y = stream(30_000, 1, flip=False)
    y += 9 * X @ [0.5, -0.5, 0.5, 0.5]
    models = [LDPASGDRegressor(features=NAMES, budget="eps=4", seed=seed) for seed in (1, 2)]
    for model in models:
        model.learn_encoded(X, y)
    assert max(model.learner.renewals for model in models) > 0 == max(model.n_changes for model in models)
    models[0].learn_encoded(X, -y)
    merged, again = models[0].merged(models[1]), LDPASGDRegressor(features=NAMES, budget="eps=4")
    again.load_state_dict(merged.state_dict())
    assert models[0].n_changes == merged.n_changes == again.n_changes == 1


def test_windows_that_were_merged_from_several_units_know_that_the_stream_has_changed() -> None:
    """Targets of another spread give another scale, and sums of both do not add up; once this was forgotten then."""
    shards = []
    for spread, after in ((1.0, 20_000), (7.0, 4000)):
        shards.append(model := regressor("windowed", target=(-100, 100)))
        for n, sign in ((20_000, 1), (after, -1)):
            rng = np.random.default_rng(n)
            X = rng.normal(size=(n, 4))
            model.learn_encoded(X, spread * (sign * X @ [0.5, -0.5, 0.5, 0.5] + rng.normal(size=n)))
    assert shards[0].n_changes == 1 > shards[1].n_changes
    for merged in (shards[0].merged(shards[1]), shards[1].merged(shards[0])):
        assert merged.n_changes == 1
        assert "the stream has changed" in merged.statement()
        again = regressor("windowed", target=(-100, 100))
        again.load_state_dict(merged.state_dict())
        assert (again.n_changes, again.merged(shards[1]).n_changes) == (1, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: PanPrivateRegressor(method="ac-sa", **o),
        lambda **o: ShuffleRegressor(method="sgd", **o),
        lambda **o: PanPrivateRegressor(loss="quantile", **o),
        lambda **o: WindowedRegressor(method="private-range", **o),
        lambda **o: UserLevelLDPRegressor(horizon=1000, **o),
        lambda **o: LDPASGDRegressor(clock="records", alpha=0.6, eta=0.2, **o),
    ],
)
def test_what_cannot_follow_ignores_changes_and_says_so_if_it_is_asked_to(make: Any) -> None:
    assert make(features=NAMES).n_changes == make(features=NAMES, change="ignore").n_changes == 0
    with pytest.raises(ConfigError, match=r"no changes are looked for with .*leave it out"):
        make(features=NAMES, change="follow")


@pytest.mark.parametrize("batch", some([100, 2000, None], 0, 2))
@pytest.mark.slow
def test_the_first_long_steps_are_no_change(batch: int | None) -> None:
    """Little noise, a target far from 0 and large coefficients: the Hessian changes along the way."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(20_000, 4))
    y = 3 + X @ [3.0, -3.0, 2.0, 1.0] + 0.5 * rng.normal(size=len(X))
    model = PanPrivateRegressor(features=NAMES, budget="eps=20,delta=1e-4", seed=1, batch_size=batch)
    model.learn_encoded(X, y)
    assert model.n_changes == 0


@pytest.mark.parametrize("kind", ["pan", "shuffle"])
@pytest.mark.slow
def test_batches_in_several_processes_keep_the_sizes_that_were_planned(kind: str) -> None:
    X, y = stream(40_000, 3)
    part, driver = regressor(kind), regressor(kind)
    part.gather_part(0, 1)
    part.learn_encoded(X, y)
    batches = part.take_records()

    def ask(batch: int, state: dict[str, Any]) -> Iterator[np.ndarray]:
        holder = regressor(kind)
        holder.load_state_dict(state)
        yield holder.part(*batches[batch])

    driver.learn_parts([len(targets) for _, targets in batches], ask)
    assert driver.n_seen == len(X)
    assert driver.n_changes > 0
    assert np.linalg.norm(driver.theta[:4] - [-0.5, 0.5, -0.5, -0.5]) < 0.3
    again = regressor(kind)
    again.load_state_dict(driver.state_dict())
    for model in (driver, again):
        model.learn_encoded(X[-100:], y[-100:])
    assert driver.to_boundary == again.to_boundary
