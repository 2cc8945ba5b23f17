"""The path of theta: what segments hold about steps and noise, also where columns are scaled anew."""

import numpy as np
import pytest

from streamdp import LDPASGDRegressor
from streamdp.optim import loops
from streamdp.reading.intervals import UNPAIRED, path_intervals
from streamdp.scaling import location_scale
from streamdp.scaling import unit_table as k
from tests.support.states import path_of, report_arrays, units_of

ALPHA = 0.6


def model_of(n: int = 0) -> LDPASGDRegressor:
    """A model of two columns that fill a third and a thirtieth of their bounds, after n records."""
    model = LDPASGDRegressor(features={"a": (-3, 3), "b": (-30, 30)}, target=(-8, 8), budget="eps=4", seed=1)
    if n:
        model.learn_encoded(*records(n))
    return model


def records(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X / [3, 30], X.sum(axis=1)


def test_segments_know_steps_and_scales() -> None:
    """Against the sums of the steps over scale^2, record by record, while columns are scaled anew."""
    model, (X, y) = model_of(), records(6000)
    model.learn_encoded(X[:1], y[:1])
    arrays, expected, open_since, joined = report_arrays(model), np.zeros((3, 2)), np.zeros((3, 2)), 0
    offset = arrays.spec[loops.OFFSET]
    for x, target in zip(X[1:], y[1:], strict=True):
        units, total, began = (
            arrays.units.table.copy(),
            arrays.units.progress[k.TOTAL],
            arrays.units.progress[k.SEGMENT],
        )
        model.learn_encoded(x[None], target[None])
        tau = arrays.units.progress[k.TOTAL] - total
        if began == 0 and not arrays.segments.any():
            expected[:] = open_since[:] = 0.0  # the target was scaled, and the path began anew
            continue
        if tau > 0:
            since, scales = np.append(units[:2, k.SINCE], 0.0), np.append(units[:2, k.SCALE], 1.0)
            clock = total + tau / 2 - since + offset
            open_since += np.column_stack([clock**-ALPHA, clock ** (-2 * ALPHA)]) * tau / scales[:, None] ** 2
        if arrays.units.progress[k.SEGMENT] != began:
            expected += open_since
            open_since[:] = 0.0
            joined += arrays.units.progress[k.SEGMENT] < began
    measured = arrays.segments[:, path_of(model).shape[1] + 1 :].sum(axis=0).reshape(2, 3).T
    np.testing.assert_allclose(measured, expected, rtol=0.01)
    assert arrays.units.progress[k.CHANGES] > 3
    assert joined > 2


def test_a_clock_slows_in_the_ratio_of_information() -> None:
    """A column whose scale falls to a half, or doubles, keeps a quarter of its clock."""
    model = model_of(2000)
    arrays, before = report_arrays(model), units_of(model).table.copy()
    total = float(arrays.units.progress[k.TOTAL])
    for ratio in (2.0, 0.5):
        arrays.units.table[:] = before
        arrays.units.table[:2, k.SCALE] = before[:2, k.SCALE] * ratio
        arrays.units.table[:2, k.SINCE] = total / 10
        k.refresh(arrays.units)
        held = arrays.units.table[:2, k.SCALE].copy()
        k.rescale(arrays.units)
        kept = np.exp(-2 * np.abs(np.log(arrays.units.table[:2, k.SCALE] / held)))
        assert np.all(kept < 0.6)
        np.testing.assert_allclose(total - arrays.units.table[:2, k.SINCE], kept * 0.9 * total, rtol=1e-9)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.9, 2.1, 4.0])
def test_the_average_begins_anew_when_a_scale_falls_threefold_or_doubles(ratio: float) -> None:
    arrays = report_arrays(model_of(2000))
    arrays.units.table[:2, k.RESTARTED] = np.exp(arrays.units.summary[:2, location_scale.REACH]) / ratio
    arrays.units.table[:2, k.SCALE] *= 2  # so that the columns are scaled anew
    k.refresh(arrays.units)
    again = not 1 / 3 <= ratio <= 2
    assert k.rescale(arrays.units) == again
    assert (arrays.units.table[0, k.RESTARTED] == arrays.units.table[0, k.SCALE]) == again


@pytest.mark.campaign
def test_intervals_hold_where_the_noise_changes() -> None:
    """Half of the parameters have a ninth of their rate and noise from the middle on, as where a scale grew.

    With a path that is read as if nothing had changed, the intervals are false.
    """
    rng, count, fine, k = np.random.default_rng(1), 32, 40, 60.0
    at, averages = rng.normal(size=(100, 6)) * np.sqrt(1 / (2 * k)), np.empty((100, count, 6))
    known, even = np.ones((2, count, 6)) / count
    known[:, :3] *= np.where(np.arange(count) < count // 2, 1.8, 0.2)[:, None]
    for i in range(count):
        total = np.zeros_like(at)
        for _ in range(fine):
            keep = np.exp(-k * known[i] / fine)
            old, at = at, keep * at + np.sqrt((1 - keep**2) / (2 * k)) * rng.normal(size=at.shape)
            total += (old + at) / 2 / fine
        averages[:, i] = total
    signs = np.stack([np.zeros((6, 6)), np.full((6, 6), UNPAIRED)])

    def covered(told: np.ndarray) -> float:
        inside = []
        for run in averages:
            held = np.column_stack([run * 10, np.full(count, 10.0)])
            low, high = path_intervals(held, told, told, np.zeros(6), np.eye(6), np.ones((2, 6)), signs, 0.95)[0][:3].T
            inside.extend(((low <= 0) & (high >= 0))[~np.isnan(low)])
        assert len(inside) > 250
        return float(np.mean(inside))

    assert 0.9 < covered(known) < 0.99
    assert covered(even) < 0.88
