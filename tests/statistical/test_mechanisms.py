"""Each mechanism draws the distribution it claims: right scales pass, scales 20 % off fail, at fixed seeds.

A right mechanism fails one of the tests of fit with probability at most 1e-6 (`FALSE_ALARM`, over the seeds), and one
of the means or variances at most 1e-9 (6 sigma).
"""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import betainc

from streamdp import ApproxDP, Gaussian, GaussianDP, Laplace, PrivUnit, PureDP
from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy import samplers
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import Budget, amount, gdp_delta, with_amount
from streamdp.privacy.mechanisms import MECHANISMS, Mechanism, NoNoise, mechanism_for, round_down
from tests.support.audit import FALSE_ALARM
from tests.support.sizes import some

SIX_SIGMA = 6.0
DIMENSIONS = [1, 2, 3, 6, 21, 100]


def seeded(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


def draws(mechanism: Mechanism, g: np.ndarray, n: int, seed: int) -> np.ndarray:
    return mechanism.randomize(np.tile(g, (n, 1)), seeded(seed))


# --- additive noise: Kolmogorov-Smirnov against the exact law

ADDITIVE = [
    (Laplace, PureDP(1), lambda d, s: stats.laplace(scale=math.sqrt(d) * s)),
    (Laplace, PureDP(4), lambda d, s: stats.laplace(scale=math.sqrt(d) * s / 4)),
    (Gaussian, GaussianDP(1), lambda d, s: stats.norm(scale=s)),
    (Gaussian, GaussianDP(0.5), lambda d, s: stats.norm(scale=2 * s)),
    # sigma = 3.7305 S is the table's 334.0 = 6 (2 sigma)^2; the test of calibration asks dp-accounting
    (Gaussian, ApproxDP(1, 1e-5), lambda d, s: stats.norm(scale=3.7305 * s)),
]


@pytest.mark.parametrize(("kind", "budget", "law"), ADDITIVE, ids=lambda v: str(v) if not callable(v) else "")
@pytest.mark.parametrize("d", [1, 3])
def test_additive_noise_has_its_law_and_no_other_scale(kind: type[Mechanism], budget: Budget, law, d: int) -> None:
    sensitivity, n = 1.7, 30_000
    g = np.linspace(-0.3, 0.4, d)

    def fit(used: float) -> float:
        """The p-value of the claimed law for a mechanism calibrated for `used` times the sensitivity."""
        mechanism = kind(budget, bound=2.0, sensitivity=sensitivity * used)
        noise = draws(mechanism, g, n, seed=int(100 * used)) - g
        return stats.kstest(noise.ravel(), law(d, sensitivity).cdf).pvalue

    assert fit(1.0) > FALSE_ALARM
    assert fit(0.8) < FALSE_ALARM
    assert fit(1.2) < FALSE_ALARM


@pytest.mark.parametrize("kind", [Laplace, Gaussian])
def test_tails_are_not_cut(kind: type[Mechanism]) -> None:
    """Chi-square on far cells: 6 10^6 draws, cells from the body out to 11 (Laplace) and 4.3 (normal) scales."""
    n = 6_000_000
    mechanism = kind(PureDP(1) if kind is Laplace else GaussianDP(1), bound=0.5)  # scale 1
    law = stats.laplace() if kind is Laplace else stats.norm()
    edges = law.isf(np.geomspace(0.4, 1e-5, 25))
    edges = np.concatenate([-edges[::-1], edges])
    noise = mechanism.randomize(np.zeros((n, 1)), seeded(5))[:, 0]
    seen = np.bincount(np.searchsorted(edges, noise), minlength=len(edges) + 1)
    expected = n * np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    assert expected.min() > 25
    assert stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue > FALSE_ALARM


@pytest.mark.parametrize("kind", [Laplace, Gaussian])
def test_coordinates_and_rows_are_independent(kind: type[Mechanism]) -> None:
    n = 50_000
    mechanism = kind(PureDP(1) if kind is Laplace else GaussianDP(1))
    noise = draws(mechanism, np.zeros(3), n, seed=6) / math.sqrt(mechanism.variance(3) / 3)
    for x in (noise, np.abs(noise)):
        table = np.corrcoef(np.column_stack([x[1:], x[:-1]]).T)
        assert np.abs(table - np.eye(6)).max() < SIX_SIGMA / math.sqrt(n)


# --- PrivUnit


def cosine_density(d: int) -> stats.rv_continuous:
    """The law of <v, u> for v uniform on the sphere of R^d: (1 + t)/2 ~ Beta((d-1)/2, (d-1)/2)."""
    return stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)


def cosine_cdf(d: int, gamma: float, p: float, t: np.ndarray) -> np.ndarray:
    """The law of <V, u> for PrivUnit: cap mass p, the rest outside it."""
    law = cosine_density(d)
    q = law.sf(gamma)
    below = (1 - p) * np.minimum(law.cdf(t), 1 - q) / (1 - q)
    return below + p * np.maximum(law.cdf(t) - (1 - q), 0) / q


def cap(mechanism: PrivUnit, d: int) -> tuple[float, float, float]:
    """(length of the answer, gamma, p)."""
    row = mechanism.rows(d)[0]
    return float(row[samplers.SCALE]), float(row[samplers.CAP_COSINE]), float(row[samplers.CAP_PROBABILITY])


def unit(d: int, seed: int) -> np.ndarray:
    u = np.random.default_rng(seed).standard_normal(d)
    return u / np.linalg.norm(u)


@pytest.mark.parametrize("d", some([2, 3, 4, 6, 21, 100], 0, 3, 4))
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_privunit_has_its_law_and_no_other_budget(d: int, epsilon: float) -> None:
    """KS of <V, u>; a mechanism calibrated for 0.8 or 1.25 epsilon fails it, and also the test of the cap's mass."""
    n, u = 100_000 if d < 21 else 50_000, unit(d, d)
    claimed = PrivUnit(PureDP(epsilon))
    _, gamma, p = cap(claimed, d)

    def fit(used: float) -> tuple[float, float]:
        mechanism = PrivUnit(PureDP(epsilon * used))
        length = cap(mechanism, d)[0]
        cosines = draws(mechanism, u, n, seed=round(100 * used + d)) @ u / length
        inside = int(np.count_nonzero(cosines >= gamma))
        return (
            stats.kstest(cosines, lambda t: cosine_cdf(d, gamma, p, t)).pvalue,
            stats.binomtest(inside, n, p).pvalue,
        )

    # the grid of 2^-16 moves a cosine by at most sqrt(d) 2^-17, below what these draws resolve
    assert min(fit(1.0)) > FALSE_ALARM
    for used in (0.8, 1.25):
        assert max(fit(used)) < FALSE_ALARM


@pytest.mark.parametrize("d", [3, 6, 21])
def test_privunit_turns_around_its_axis_evenly(d: int) -> None:
    """Given the cosine, the rest of V is uniform on the sphere orthogonal to u, and independent of the cosine."""
    n, u = 50_000, unit(d, d)
    mechanism = PrivUnit(PureDP(2))
    v = draws(mechanism, u, n, seed=d) / cap(mechanism, d)[0]
    cosines = v @ u
    basis = np.linalg.svd(u[None, :])[2][1:]  # an orthonormal basis of the space orthogonal to u
    across = v @ basis.T
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    if d == 3:
        angles = np.arctan2(across[:, 1], across[:, 0])
        assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > FALSE_ALARM
    for j in range(d - 1):
        law = cosine_density(d - 1) if d > 3 else stats.arcsine(-1, 2)
        assert stats.kstest(across[:, j], law.cdf).pvalue > FALSE_ALARM
        assert abs(np.corrcoef(across[:, j], cosines)[0, 1]) < SIX_SIGMA / math.sqrt(n)
        assert abs(np.corrcoef(across[:, j] ** 2, cosines)[0, 1]) < SIX_SIGMA / math.sqrt(n)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 16.0])
def test_privunit_keeps_epsilon_exactly(d: int, epsilon: float) -> None:
    """The ratio of the densities in and off the cap, from its measure by quadrature, is at most e^epsilon."""
    _, gamma, p = cap(PrivUnit(PureDP(epsilon)), d)
    if d == 1:
        q = 0.5
    elif d == 2:
        q = math.acos(gamma) / math.pi
    else:
        area = quad(lambda t: (1 - t * t) ** ((d - 3) / 2), -1, 1, epsabs=0, epsrel=1e-12)[0]
        q = quad(lambda t: (1 - t * t) ** ((d - 3) / 2), gamma, 1, epsabs=0, epsrel=1e-12)[0] / area
    loss = math.log(p / q) - math.log((1 - p) / (1 - q))
    assert loss <= epsilon * (1 + 1e-9)
    assert loss > epsilon * (1 - 1e-6)


@pytest.mark.parametrize("d", [2, 3, 6, 21, 100])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
def test_privunit_takes_the_best_cap(d: int, epsilon: float) -> None:
    """No gamma of a fine grid has less variance; m comes from quadrature-free moments of the cosine's law."""
    gammas = np.linspace(0, 0.9999, 4001)
    q = 0.5 * betainc((d - 1) / 2, 0.5, 1 - gammas**2)
    p = q / (q + (1 - q) * math.exp(-epsilon))
    # E[t; t >= gamma] for the density c (1 - t^2)^((d-3)/2) is c (1 - gamma^2)^((d-1)/2) / (d - 1)
    c = math.exp(math.lgamma(d / 2) - math.lgamma((d - 1) / 2)) / math.sqrt(math.pi)
    moment = c * (1 - gammas**2) ** ((d - 1) / 2) / (d - 1)
    means = moment * (p / q - (1 - p) / (1 - q))
    best = 1 / np.max(means) ** 2 - 1
    assert PrivUnit(PureDP(epsilon)).variance(d) <= best * (1 + 1e-6)


# --- variances and means

TABLE = [
    (PrivUnit, PureDP(1), 6, 34.5),
    (Laplace, PureDP(1), 6, 288),
    (Gaussian, ApproxDP(1, 1e-5), 6, 334.0),
    (PrivUnit, PureDP(2), 6, 8.5),
    (Laplace, PureDP(2), 6, 72),
    (Gaussian, ApproxDP(2, 1e-5), 6, 95.4),
    (PrivUnit, PureDP(1), 21, 129.3),
    (Laplace, PureDP(1), 21, 3528),
    (Gaussian, ApproxDP(1, 1e-5), 21, 1169.1),
    (PrivUnit, PureDP(4), 21, 8.4),
    (Laplace, PureDP(4), 21, 220.5),
    (Gaussian, ApproxDP(4, 1e-5), 21, 98.2),
    (Gaussian, GaussianDP(1), 6, 24),
]


@pytest.mark.parametrize(("kind", "budget", "d", "expected"), TABLE, ids=str)
def test_variances_are_those_of_the_table(kind: type[Mechanism], budget: Budget, d: int, expected: float) -> None:
    """S = 2, C0 = 1. The simulation's error is at most 1.8 % (6 sigma: the fourth moment of Laplace noise is 6)."""
    mechanism = kind(budget)
    g = unit(d, 1)
    assert mechanism.variance(d) == pytest.approx(expected, rel=0.02)
    noise = draws(mechanism, g, 100_000, seed=d) - g
    assert np.mean(np.sum(noise**2, axis=1)) == pytest.approx(mechanism.variance(d), rel=0.02)


@pytest.mark.parametrize("length", some([1.0, 0.5, 0.0], 1))
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize(
    ("kind", "budget"), [(PrivUnit, PureDP(2)), (Laplace, PureDP(2)), (Gaussian, GaussianDP(2))], ids=str
)
def test_answers_are_unbiased(kind: type[Mechanism], budget: Budget, d: int, length: float) -> None:
    """Also for gradients shorter than the bound. Mean along g and the largest coordinate of the mean, 6 sigma."""
    bound, n = 1.5, 20_000
    g = unit(d, d + 7) * length * bound
    answers = draws(kind(budget, bound), g, n, seed=int(10 * length) + d)
    error = (answers.mean(axis=0) - g) / (answers.std(axis=0) / math.sqrt(n))
    assert np.abs(error).max() < SIX_SIGMA
    if length > 0:
        along = answers @ g / np.dot(g, g)
        assert abs(along.mean() - 1) < SIX_SIGMA * along.std() / math.sqrt(n)


@pytest.mark.parametrize("length", [1.0, 0.5, 0.0])
def test_variance_of_short_vectors(length: float) -> None:
    mechanism = PrivUnit(PureDP(1), 2.0)
    g = unit(6, 3) * 2.0 * length
    noise = draws(mechanism, g, 200_000, seed=9) - g
    assert np.mean(np.sum(noise**2, axis=1)) == pytest.approx(mechanism.variance(6, norm=2.0 * length), rel=0.01)


def test_variance_grows_with_the_square_of_the_bound() -> None:
    for kind, budget in ((PrivUnit, PureDP(1)), (Laplace, PureDP(1)), (Gaussian, ApproxDP(1, 1e-5))):
        assert kind(budget, 3.0).variance(6) == pytest.approx(9 * kind(budget).variance(6), rel=1e-5)


# --- calibration


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0])
def test_gaussian_is_calibrated_as_dp_accounting_says(epsilon: float, delta: float) -> None:
    """At our sigma, dp-accounting's delta is at most the budget's; 1 % less noise would be too little."""
    mechanism = Gaussian(ApproxDP(epsilon, delta), 0.5)  # S = 1
    sigma = math.sqrt(mechanism.variance(1))

    def spent(at: float) -> float:
        step = min(1e-3, epsilon / 100)
        law = privacy_loss_distribution.from_gaussian_mechanism(at, value_discretization_interval=step)
        return law.get_delta_for_epsilon(epsilon)

    assert spent(sigma * 1.001) <= delta
    assert spent(sigma * 0.99) > delta
    assert dp_event.GaussianDpEvent(sigma).noise_multiplier == sigma


@pytest.mark.parametrize("d", [1, 6, 100])
@pytest.mark.parametrize("budget", [PureDP(1), GaussianDP(1), ApproxDP(1, 1e-5)], ids=str)
def test_noise_covers_the_rounding_and_hardly_more(budget: Budget, d: int) -> None:
    """The scale covers S + sqrt(d) grid, the largest distance after rounding, and exceeds S's by at most 1e-4."""
    kind = Laplace if isinstance(budget, PureDP) else Gaussian
    scale, grid = kind(budget, 1.5, 2.2).rows(d)[0, [samplers.SCALE, samplers.GRID]]
    assert math.log2(grid) == round(math.log2(grid))
    reach = 2.2 + math.sqrt(d) * grid
    match budget:
        case PureDP():
            ratio = math.sqrt(d) * reach / scale  # epsilon at the worst pair
            assert 1 - 1e-4 < ratio <= 1
        case GaussianDP():
            assert 1 - 1e-4 < reach / scale <= 1
        case ApproxDP(epsilon, delta):
            assert delta * (1 - 1e-3) < gdp_delta(reach / scale, epsilon) <= delta


@pytest.mark.parametrize("budget", [PureDP(2), GaussianDP(2), ApproxDP(2, 1e-5)], ids=str)
@pytest.mark.parametrize("kind", [Laplace, Gaussian, PrivUnit])
def test_rows_for_many_amounts_are_those_of_each_or_a_little_stricter(kind: type[Mechanism], budget: Budget) -> None:
    if not isinstance(budget, kind.serves):
        return
    amounts = np.array([0.3, 1.0, 1.7, 0.3, 5.0])
    rows = kind(budget, 1.2, 2.0).rows(4, amounts)
    assert rows.shape == (5, samplers.CALIBRATION if kind is PrivUnit else samplers.ADDITIVE)
    unasked = kind(budget, 1.2, 2.0).rows(4, amounts, answers=False)
    noise = [samplers.SCALE, samplers.GRID, samplers.INFORMATION]
    assert np.array_equal(rows[:, noise], unasked[:, noise])
    assert np.all(unasked[:, samplers.KEEP] <= rows[:, samplers.KEEP])
    for row, value in zip(rows, amounts, strict=True):
        exact = kind(with_amount(budget, value), 1.2, 2.0).rows(4)[0]
        lowest = kind(with_amount(budget, value * (1 - 2**-10)), 1.2, 2.0).rows(4)[0]
        assert exact[samplers.SCALE] * (1 - 1e-12) <= row[samplers.SCALE] <= lowest[samplers.SCALE] * (1 + 1e-12)


@pytest.mark.parametrize(("budget", "root"), [(PureDP(2), math.sqrt(5)), (GaussianDP(2), 1.0)], ids=str)
def test_the_grid_is_the_largest_power_of_two_that_is_fine_enough(budget: Budget, root: float) -> None:
    kind = Laplace if isinstance(budget, PureDP) else Gaussian
    amounts = np.concatenate([np.geomspace(2.0**-20, 2.0**20, 10_001), 2.0 ** np.arange(-20, 21)])
    rows = kind(budget, 1.2, 2.0).rows(5, amounts)
    grid, scale = rows[:, samplers.GRID], root * 2.0 / amounts
    assert np.all(np.frexp(grid)[0] == 0.5)
    assert np.all((grid <= scale * 2.0**-20) & (scale * 2.0**-20 < 2 * grid))
    reach = root * (2.0 * (1 + 2.0**-40) + math.sqrt(5) * grid) / amounts
    assert rows[:, samplers.SCALE] == pytest.approx(reach, rel=1e-15)
    noise = (1 if kind is Gaussian else 2) * 5 * rows[:, samplers.SCALE] ** 2
    assert rows[:, samplers.INFORMATION] == pytest.approx(1.2**2 / (1.2**2 + noise), rel=1e-14)


def test_rows_that_are_too_few_or_too_narrow_are_refused() -> None:
    G, words = np.zeros((3, 2)), SeededEntropy(1).words
    for kind in (Gaussian, PrivUnit):
        rows = kind(GaussianDP(1) if kind is Gaussian else PureDP(1)).rows(2, np.ones(3))
        for wrong in (np.ascontiguousarray(rows[:, :-1]), rows[:2], rows[:0]):
            with pytest.raises(TypeError, match="differ in size"):
                samplers.randomize(kind.code, wrong, G, words)


@pytest.mark.parametrize("wrong", [0.0, 2.0**-21, 2.0**21, math.nan])
def test_an_amount_out_of_range_gets_no_row_of_another(wrong: float) -> None:
    mechanism = PrivUnit(PureDP(1))
    mechanism.rows(3, np.array([2.0**-20, 1.0, 2.0**19.5, 2.0**20]))
    with pytest.raises(BudgetError):
        mechanism.rows(3, np.array([1.0, wrong]))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_privunit_that_runs_out_of_words_learns_nothing_and_uses_none(d: int) -> None:
    row, enough = PrivUnit(PureDP(1)).rows(d), seeded(3)
    enough.refill()
    for n in range(1, d + 4):
        G, words = np.full((1, d), 0.1), np.concatenate([[np.uint64(1)], enough.words[1 : n + 1]])
        before = words.copy()
        if samplers.randomize(samplers.PRIVUNIT, row, G, words) == 0:
            assert np.array_equal(G, np.full((1, d), 0.1))
            assert np.array_equal(words, before)
        else:
            assert n >= d + (2 if d == 1 else 3)


def test_rounding_down_never_rounds_up() -> None:
    values = np.concatenate([np.geomspace(1e-6, 1e3, 10_001), [1.0, 0.5, 2.0]])
    down = round_down(values)
    assert np.all(down <= values)
    assert np.all(down > values * (1 - 2**-10))
    assert np.array_equal(round_down(down), down)
    assert list(round_down([1.0, 0.5, 2.0])) == [1.0, 0.5, 2.0]


@pytest.mark.parametrize("kind", [Laplace, PrivUnit])
@pytest.mark.parametrize("epsilon", [1e-4, 50.0, 300.0, 1000.0])
@pytest.mark.parametrize("d", [1, 2, 6, 100])
def test_extreme_epsilons_give_finite_noise(kind: type[Mechanism], epsilon: float, d: int) -> None:
    mechanism = kind(PureDP(epsilon))
    assert np.isfinite(mechanism.rows(d)).all()
    assert np.isfinite(mechanism.randomize(unit(d, 1), seeded(1))).all()


# --- the privacy map


MAPPED = [
    (Laplace, PureDP(1)),
    (Laplace, PureDP(2.0**-20)),
    (Gaussian, GaussianDP(0.5)),
    (Gaussian, ApproxDP(1, 1e-5)),
    (Gaussian, ApproxDP(0.01, 1e-9)),
    (PrivUnit, PureDP(2)),
]


@pytest.mark.parametrize("d", [1, 6, 100])
@pytest.mark.parametrize(("kind", "budget"), MAPPED, ids=str)
def test_the_planned_sensitivity_gives_the_budget(kind: type[Mechanism], budget: Budget, d: int) -> None:
    found = kind(budget, 1.5, 2.2).guarantee(2.2, d)
    assert type(found) is type(budget)
    if isinstance(found, ApproxDP) and isinstance(budget, ApproxDP):
        assert found.delta == budget.delta
        assert found.epsilon == pytest.approx(budget.epsilon, rel=1e-9)
    else:
        assert found == budget


@pytest.mark.parametrize("d", [1, 100])
@pytest.mark.parametrize("kind", [Laplace, Gaussian])
def test_rounding_counts_in_the_privacy_map(kind: type[Mechanism], d: int) -> None:
    """The worst pair of gradients, rounded as the samplers round, against the noise that the samplers draw.

    Each coordinate of the two is `cells` cells apart and a little more, and just across the borders of two cells, so
    that rounding moves both outwards by half a cell.
    """
    for value in (1.0, 1e-3, 2.0**-20):
        mechanism = kind(PureDP(value) if kind is Laplace else GaussianDP(value), 1.0)
        scale, grid = mechanism.rows(d)[0, [samplers.SCALE, samplers.GRID]]
        for cells in (0, 3, 1000):
            low = np.full(d, 0.5 - 5e-7)
            high = low + cells + 1e-6
            far = np.rint(high) - np.rint(low)
            assert np.array_equal(far, np.full(d, cells + 1.0))
            loss = (np.abs(far).sum() if kind is Laplace else np.linalg.norm(far)) * grid / scale
            found = mechanism.guarantee(float(np.linalg.norm(high - low)) * grid, d)
            assert found is not None
            assert loss <= amount(found)
            assert loss == pytest.approx(amount(found), rel=1e-5)


@pytest.mark.parametrize("apart", [0.1, 1.0, 2.0, 5.0])
def test_the_privacy_map_is_that_of_dp_accounting(apart: float) -> None:
    """d = 1, where rounding costs less than the tolerance."""
    laplace, gaussian = Laplace(PureDP(1)), Gaussian(ApproxDP(1, 1e-5))
    b, sigma = laplace.rows(1)[0, samplers.SCALE], gaussian.rows(1)[0, samplers.SCALE]
    law = privacy_loss_distribution.from_laplace_mechanism(b, sensitivity=apart, value_discretization_interval=1e-4)
    pure, approximate = laplace.guarantee(apart, 1), gaussian.guarantee(apart, 1)
    assert isinstance(pure, PureDP)
    assert isinstance(approximate, ApproxDP)
    assert pure.epsilon == pytest.approx(law.get_epsilon_for_delta(0), abs=1e-4)
    assert approximate.delta == 1e-5
    unrounded = get_epsilon_gaussian(sigma / apart, 1e-5)
    assert unrounded < approximate.epsilon < unrounded * (1 + 1e-4)
    linear = Gaussian(GaussianDP(0.5)).guarantee(apart, 1)
    assert isinstance(linear, GaussianDP)
    assert linear.mu == pytest.approx(0.5 * apart / 2, rel=1e-4)


@given(st.sampled_from(MAPPED), st.floats(1e-3, 3.9), st.floats(1e-6, 1), st.integers(1, 50))
def test_the_privacy_map_grows_with_the_sensitivity(
    mapped: tuple[type[Mechanism], Budget], apart: float, more: float, d: int
) -> None:
    mechanism = mapped[0](mapped[1], 2.0)
    near, far = mechanism.guarantee(apart, d), mechanism.guarantee(min(4.0, apart + more), d)
    assert near is not None
    assert far is not None
    assert amount(near) <= amount(far) * (1 + 1e-9)
    if isinstance(mechanism, PrivUnit):
        assert near == far == mechanism.budget
    else:
        assert amount(near) < amount(far)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", [Laplace, PrivUnit, NoNoise])
def test_the_privacy_map_refuses_what_is_no_distance(kind: type[Mechanism], bad: float) -> None:
    with pytest.raises(ConfigError):
        kind(PureDP(1)).guarantee(bad, 3)


def test_the_privacy_map_of_privunit_ends_at_its_bound() -> None:
    mechanism = PrivUnit(PureDP(1), 1.5)
    assert mechanism.guarantee(3.0, 3) == PureDP(1)
    with pytest.raises(ConfigError):
        mechanism.guarantee(3.1, 3)


def test_no_noise_has_no_privacy_map() -> None:
    assert NoNoise(PureDP(1)).guarantee(1.0, 3) is None


# --- refusals


@pytest.mark.parametrize("kind", [Laplace, PrivUnit])
@pytest.mark.parametrize("budget", [ApproxDP(1, 1e-6), GaussianDP(1)], ids=str)
def test_pure_mechanisms_refuse_other_budgets(kind: type[Mechanism], budget: Budget) -> None:
    with pytest.raises(BudgetError):
        kind(budget)


def test_gaussian_refuses_pure_budgets() -> None:
    with pytest.raises(BudgetError):
        Gaussian(PureDP(1))


@pytest.mark.parametrize("kind", [Laplace, PrivUnit])
@pytest.mark.parametrize(("bound", "sensitivity"), [(0, None), (-1, None), (math.inf, None), (1, 0), (1, 2.1)])
def test_bounds_out_of_range_are_refused(kind: type[Mechanism], bound: float, sensitivity: float | None) -> None:
    with pytest.raises(ConfigError):
        kind(PureDP(1), bound, sensitivity)


@pytest.mark.parametrize("kind", [Laplace, PrivUnit, NoNoise])
@pytest.mark.parametrize("bad", [[1.6, 0.0], [1.2, 1.2], [math.nan, 0.0], [math.inf, 0.0]])
def test_a_vector_over_the_bound_is_refused(kind: type[Mechanism], bad: list[float]) -> None:
    mechanism = kind(PureDP(1), 1.5)
    with pytest.raises(ConfigError) as caught:
        mechanism.randomize(np.array(bad))
    assert "1.6" not in str(caught.value)  # the message does not show the vector
    with pytest.raises(ConfigError):
        mechanism.randomize(np.array([[0.1, 0.1], bad]))
    assert mechanism.randomize(np.array([1.5, 0.0])).shape == (2,)


def test_randomize_leaves_its_argument_alone() -> None:
    g = np.array([0.6, 0.8])
    PrivUnit(PureDP(1)).randomize(g)
    assert g.tolist() == [0.6, 0.8]


def test_rows_are_randomised_with_different_words() -> None:
    out = Laplace(PureDP(1)).randomize(np.zeros((1000, 2)))
    assert len(np.unique(out)) > 1900


def test_choices() -> None:
    assert mechanism_for("auto", PureDP(1)) is PrivUnit
    assert mechanism_for("auto", ApproxDP(1, 1e-6)) is Gaussian
    assert mechanism_for("auto", GaussianDP(1)) is Gaussian
    assert {name: mechanism_for(name, PureDP(1)) for name in MECHANISMS} == MECHANISMS
    assert mechanism_for(Laplace, PureDP(1)) is Laplace
    with pytest.raises(ConfigError):
        mechanism_for("uniform", PureDP(1))
    assert amount(GaussianDP(2)) == 2
