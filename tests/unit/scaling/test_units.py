"""The affine map between values as they come and what is learned, and which scaling is possible."""

import numpy as np
import pytest

from streamdp.errors import ConfigError
from streamdp.scaling.units import Units, declared, free_units, rebase, scaling_of

COLUMNS = np.array([[0.4, -7.0, 0.0], [3.0, 0.5, 1.0]])
NEEDS = {"private": free_units(True, given_domain=True)}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_predictions_are_the_same_in_any_units(outputs: int, intercept: bool) -> None:
    """Without an intercept there are no centres; Huber's scale is in units of the target."""
    rng = np.random.default_rng(1)
    X, q = rng.normal(size=(20, 3)), 3 + intercept
    centre = 5.0 * intercept * (outputs == 1)
    units = Units(COLUMNS * [[intercept], [1]], centre, 2.0, (-9.0, 9.0), intercept, outputs)
    inner = rng.normal(size=q * outputs + 1)

    def scores(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
        blocks: np.ndarray = theta[:-1].reshape(outputs, q)
        found: np.ndarray = X @ blocks[:, :3].T + (blocks[:, 3] if intercept else 0.0)
        return found

    moved, theta = X.copy(), units.outward(inner)
    units.place_columns(moved)
    np.testing.assert_allclose(scores(theta, X), units.centre + units.scale * scores(inner, moved), rtol=1e-12)
    assert theta[-1] == 2 * inner[-1]
    np.testing.assert_allclose(units.inward(theta), inner, rtol=1e-12)
    other = declared(3, (-1.0, 1.0), outputs, intercept)
    np.testing.assert_allclose(other.outward(rebase(inner, units, other)), theta, rtol=1e-12)


def test_with_a_level_theta_as_it_is_is_that_of_the_logarithm_of_what_compiled_code_predicts() -> None:
    rng = np.random.default_rng(2)
    X, inner = rng.normal(size=(20, 3)), rng.normal(size=5)
    units = Units(COLUMNS, 5.0, 2.0, (0.0, 9.0), level=3.0)
    theta, moved = units.outward(inner), X.copy()
    units.place_columns(moved)
    (level, origin), u = units.link, moved @ inner[:3] + inner[3]
    predicted = level * np.exp((u + origin) / level - 1) - origin  # `mean_of` of the compiled loops
    np.testing.assert_allclose(np.exp(X @ theta[:3] + theta[3]), units.centre + units.scale * predicted, rtol=1e-12)
    assert theta[-1] == 2 * inner[-1]
    np.testing.assert_allclose(units.inward(theta), inner, rtol=1e-12)
    assert Units(COLUMNS, 5.0, 2.0).link == (0.0, 0.0)


def test_targets_are_clipped_and_placed_and_stay_without_bounds() -> None:
    y = np.array([-20.0, 4.0, 12.0])
    declared(3, None).place_targets(y)
    assert y.tolist() == [-20.0, 4.0, 12.0]
    declared(3, (0.0, 8.0)).place_targets(y)
    assert y.tolist() == [-1.0, 0.0, 1.0]


def test_the_usual_scaling_is_taken_where_it_is_possible_and_one_that_was_asked_for_must_be() -> None:
    assert scaling_of("none", "private", True, {}) == "none"
    assert scaling_of(None, "private", True, {}) == scaling_of("private", "declared", True, {}) == "private"
    assert scaling_of(None, "private", False, {}) == scaling_of(None, "private", True, NEEDS) == "none"
    assert scaling_of("declared", "private", True, NEEDS) == "declared"
    with pytest.raises(ConfigError, match="private scaling needs no domain"):
        scaling_of("private", "private", True, NEEDS)
    with pytest.raises(ConfigError, match="declared scaling needs declared bounds"):
        scaling_of("declared", "private", False, {})
