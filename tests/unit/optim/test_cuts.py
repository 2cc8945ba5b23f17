"""How far out residuals of the squared loss are cut: by released numbers, and the mean is learned."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from streamdp import PanPrivateRegressor, ShuffleRegressor, WindowedRegressor
from streamdp.optim.curvature import Curvature
from streamdp.optim.cuts import Cuts
from streamdp.optim.losses import Squared
from streamdp.reading import change

D, SPREAD = 3, 2.0
CUTS = Cuts(Curvature(Squared(), D - 1))  # one column and the intercept: the mean weight is 1


def block(scale: float, records: int = 10_000, noise: float = 0.0) -> np.ndarray:
    """Blocks with one that was asked at a scale, of residuals of this spread that are not cut, around a gradient."""
    loss = CUTS.curvature.loss
    assert isinstance(loss, Squared)
    found = np.zeros((change.BLOCKS, change.width(D)))
    point, gradient = [0.5, -0.5, scale], [0.3 / scale, 0.1 / scale, (loss.kappa - (SPREAD / scale) ** 2) / 2]
    weight = 7.0
    sums = [weight, weight, weight, 0.0, (weight * noise) ** 2, records, 0.0]
    change.add(found, np.concatenate([weight * np.array(point), weight * np.array(gradient), sums]))
    return found


def test_the_spread_of_residuals_is_known_at_any_scale_that_cuts_none() -> None:
    for scale in (2.0, 6.0, 300.0):
        assert CUTS.spread(block(scale)) == pytest.approx(SPREAD)


def test_the_scale_moves_to_where_bias_and_noise_are_balanced_and_out_with_records() -> None:
    at = [CUTS.scale(block(6.0, records), 6.0, 30.0) for records in (1_000, 10_000, 100_000)]
    c, kappa = 1.345, 1.345**2 / 400
    for scale, records in zip(at, (1_000, 10_000, 100_000), strict=True):
        wanted = min(max(8 * c * math.sqrt(D) * 30.0 / records, kappa), 0.71)
        assert scale == pytest.approx(SPREAD / math.sqrt(wanted))
    assert at[0] < at[1] < at[2] <= SPREAD / math.sqrt(kappa) * (1 + 1e-9)


def test_a_window_begins_where_bias_and_noise_are_balanced() -> None:
    """With little noise the cut is far out, and with much as for Huber's loss."""
    assert CUTS.usual(SPREAD, 0.0) == pytest.approx(SPREAD * 20 / CUTS.curvature.loss.cut)
    assert SPREAD < CUTS.usual(SPREAD, 1.0) < 1.2 * SPREAD
    assert CUTS.usual(SPREAD, 1.0) < CUTS.usual(SPREAD, 0.01) < CUTS.usual(SPREAD, 0.001)


def test_the_scale_stays_where_noise_hides_the_spread() -> None:
    assert CUTS.scale(block(6.0, 100_000, noise=1.0), 6.0, 30.0) == 6.0


def test_blocks_of_another_scale_are_what_they_would_have_been_at_this_one() -> None:
    found, _ = CUTS.placed(block(12.0, noise=0.1), 4.0)
    wanted = block(4.0, noise=0.3)
    used = np.r_[: 2 * D - 1, 2 * D : found.shape[1]]  # the gradient in the scale is not carried
    np.testing.assert_allclose(found[:, used], wanted[:, used], rtol=1e-12)


def test_rounds_at_several_scales_count_as_asked_at_the_last_one() -> None:
    first, last = (block(scale)[0] / 7.0 for scale in (12.0, 4.0))
    points = np.array([first[:D], last[:D]])
    means = np.array([first[D : 2 * D], last[D : 2 * D]])
    assert CUTS.rounds(points, means) == pytest.approx([3.0, 1.0])
    np.testing.assert_allclose(points[0], points[1])
    np.testing.assert_allclose(means[0], means[1], rtol=1e-12)


def claims(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Amounts of which seven in ten are 0, which three columns explain a little."""
    rng = np.random.default_rng(seed)
    X = np.clip(rng.standard_normal((n, 3)), -4, 4) / 4
    some = rng.random(n) < expit(X @ [2.0, -2.0, 2.0] - 1)
    return X, np.where(some, np.minimum(rng.lognormal(5, 0.7, n), 3000.0), 0.0)


@pytest.mark.parametrize("kind", [PanPrivateRegressor, ShuffleRegressor, WindowedRegressor])
def test_the_mean_of_mostly_zero_amounts_is_learned(kind: type) -> None:
    """Huber's loss predicts far less than the mean there, and hardly better than a constant."""
    (X, y), (others, truth) = claims(20_000, 1), claims(20_000, 2)
    found = {}
    for loss in ("huber", "squared"):
        options: dict[str, Any] = {"window": len(y), "items_per_user": 1} if kind is WindowedRegressor else {}
        names = {f"x{j}": (-4, 4) for j in range(3)}
        model = kind(features=names, target=(0, 3000), budget="eps=1,delta=1e-6", seed=1, loss=loss, **options)
        model.learn_encoded(X, y)
        model.close_batch()
        predicted = model.predict_encoded(others)
        error = float(np.mean((predicted - truth) ** 2) / np.var(truth))
        found[loss] = error, float(predicted.mean() / truth.mean())
    assert found["huber"][0] > found["squared"][0] + 0.005
    assert found["huber"][1] < 0.8
    assert found["squared"][0] < 0.97
    assert found["squared"][1] == pytest.approx(1, abs=0.2)
