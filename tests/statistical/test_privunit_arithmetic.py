"""PrivUnit in doubles against the same draws in long doubles: how far coordinates are from where they should be.

With cells of 2^-60 the answers are not rounded, so that their errors can be seen. The loops get the words of one record
at a time; records with a rejected draw or a rare word are left out, because their words stand in other places.
The words are of fixed seeds, so luck raises no false alarm.
"""

import numpy as np
import pytest

from streamdp import PrivUnit, PureDP
from streamdp.privacy import samplers
from tests.support.sizes import some

pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long doubles are doubles here")
CELL = 2.0**-16
RECORDS = 4000


def uniforms(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)).astype(np.longdouble) * np.longdouble(2.0) ** -53


def answers(d: int, epsilon: float, slip: float) -> tuple[np.ndarray, np.ndarray]:
    """Computed and ideal directions (n, d) of the same gradients from the same words; `slip` spoils the ideal power."""
    row, rng = PrivUnit(PureDP(epsilon)).rows(d)[0], np.random.default_rng(d)
    row[samplers.GRID], row[samplers.SCALE] = 2.0**-60, 1.0
    words = rng.integers(1, 2**64, (RECORDS, 6 * d + 60), dtype=np.uint64)
    words[:, 0], first = 1, 5 if d > 2 else 4
    gradients = rng.normal(size=(RECORDS, d))
    gradients *= (rng.random((RECORDS, 1)) ** 0.2) / np.linalg.norm(gradients, axis=1, keepdims=True)
    computed, normals, kept = gradients.copy(), np.zeros((RECORDS, d)), np.zeros(RECORDS, dtype=bool)
    for i, used in enumerate(words.copy()):
        assert samplers.randomize(PrivUnit.code, row[None], computed[i : i + 1], used) == 1
        kept[i] = used[0] == first + d
        fine = np.zeros(d, dtype=np.int64)
        kept[i] &= samplers.normals(words[i, first : first + d], 2.0**60, fine)
        normals[i] = fine * 2.0**-60
    u = uniforms(words[kept, 1:5])
    g, z = gradients[kept].astype(np.longdouble), normals[kept].astype(np.longdouble)
    norm = np.sqrt((g**2).sum(axis=1))
    inside = u[:, 1] < row[samplers.CAP_PROBABILITY]
    sign = np.where(2 * u[:, 0] >= 1 + norm / row[samplers.NORM_BOUND], -1, 1)
    widest, pi = row[samplers.CAP_ANGLE].astype(np.longdouble), 4 * np.arctan(np.longdouble(1))
    part = np.where(inside, row[samplers.CAP_RADIAL].astype(np.longdouble), 1)
    if d == 2:
        cosine = np.cos((1 + slip) * np.where(inside, u[:, 2] * widest, widest + u[:, 2] * (pi - widest)))
    else:
        radius = np.sqrt(1 - (part * u[:, 2]) ** ((2 + np.longdouble(slip)) / (d - 2)))
        cosine = radius * np.cos(np.where(inside, widest, pi) * u[:, 3])
    g /= norm[:, None]
    z -= (z * g).sum(axis=1, keepdims=True) * g
    z /= np.sqrt((z**2).sum(axis=1, keepdims=True))
    ideal = (sign * cosine)[:, None] * g + np.sqrt(1 - cosine**2)[:, None] * z
    return computed[kept], ideal


@pytest.mark.parametrize("d", some([2, 3, 5, 20, 60], 0, 2))
@pytest.mark.parametrize("epsilon", some([0.05, 1.0, 8.0, 12.0], 3))
@pytest.mark.slow
def test_errors_take_few_coordinates_over_the_border_of_a_cell(d: int, epsilon: float) -> None:
    """The mean error, in cells, is the probability that a border is between a coordinate and where it should be.

    Of two coordinates a draw may be almost parallel to the gradient, and then it has a large error.
    """
    crossings = []
    for slip in (0.0, 1e-11):
        computed, ideal = answers(d, epsilon, slip)
        assert len(computed) > RECORDS / 10
        errors = np.abs(computed - ideal) / CELL
        assert errors.max() < 2.0**-12  # the two are of the same words
        crossings.append(float(np.minimum(errors, 1).sum(axis=1).mean()))
    right, spoilt = crossings
    assert 0 < right < d * 2.0**-32 * (1 if d > 2 else 4) < spoilt
