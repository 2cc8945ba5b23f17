"""The privacy of binomial sums: exact losses of small cases, the steps of the proof, and how much noise it takes.

Losses are computed from the laws, not sampled: nothing here can fail by chance.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP, Gaussian
from streamdp.aggregation.binomial import gaussian_step, least_epsilon, shift_of, spent_delta, tight_parameters
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import BudgetError
from streamdp.privacy.guarantees import gdp_delta
from studies.paper_sum import fewer_honest, of_a_round, paper_parameters
from tests.support.sizes import some

USUAL = ApproxDP(1.0, 1e-6)

# --- exact losses: the laws of the sums under two neighbours, enumerated


def binomial(trials: int, g: int) -> np.ndarray:
    """The masses of Bin(trials, 1/2) on 0, ..., trials + g + 1, without tails below 1e-30 where it is long."""
    masses = stats.binom.pmf(np.arange(trials + g + 2), trials, 0.5)
    reach = 12 * math.sqrt(trials) / 2 + g + 2
    middle = trials / 2
    return masses[max(0, math.floor(middle - reach)) : math.ceil(middle + reach) + 1]


def moved(masses: np.ndarray, place: float) -> np.ndarray:
    """The law of the rounded place plus the noise."""
    low, fraction = math.floor(place), place - math.floor(place)
    out = np.zeros(len(masses) + math.ceil(place) + 1)
    out[low : low + len(masses)] += (1 - fraction) * masses
    out[low + 1 : low + 1 + len(masses)] += fraction * masses
    return out


def exact_delta(trials: int, g: int, epsilon: float, place: np.ndarray, other: np.ndarray) -> float:
    """The larger of the two hockey-stick divergences between the sums with a user at `place` or at `other` (d,)."""
    masses = binomial(trials, g)
    P, Q = np.ones(1), np.ones(1)
    for a, b in zip(place, other, strict=True):
        p, q = moved(masses, a), moved(masses, b)
        width = max(len(p), len(q))
        P = np.multiply.outer(P, np.pad(p, (0, width - len(p)))).ravel()
        Q = np.multiply.outer(Q, np.pad(q, (0, width - len(q)))).ravel()
    grow = math.exp(epsilon)
    return float(max(np.maximum(P - grow * Q, 0).sum(), np.maximum(Q - grow * P, 0).sum()))


def neighbours(g: int, d: int, seed: int, random_pairs: int = 10) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of places of vectors of norm at most Delta2: opposite ones in many directions, and random ones."""
    rng = np.random.default_rng(seed)
    directions = [np.eye(d)[0], np.ones(d) / math.sqrt(d)]
    directions += [v / np.linalg.norm(v) for v in rng.standard_normal((6, d))]
    for u in directions:
        for length in (1.0, 0.77):
            yield (1 + length * u) * g / 2, (1 - length * u) * g / 2
    for _ in range(random_pairs):
        x, y = (v / max(1.0, np.linalg.norm(v)) for v in rng.uniform(-1, 1, (2, d)))
        yield (1 + x) * g / 2, (1 + y) * g / 2


def worst(trials: int, g: int, d: int, epsilon: float, seed: int = 0) -> float:
    return max(exact_delta(trials, g, epsilon, a, b) for a, b in neighbours(g, d, seed))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize("trials", some([7, 30, 101, 400], 0, 2))
@pytest.mark.parametrize("g", some([1, 2, 5], 0, 2))
@pytest.mark.slow
def test_no_neighbours_lose_more_than_is_claimed(trials: int, g: int, d: int, delta: float) -> None:
    try:
        epsilon = least_epsilon(trials, shift_of(g, d, 1.0), d, delta)
    except BudgetError:
        assert trials < 64  # so little noise that the tails alone are too much
        return
    assert worst(trials, g, d, epsilon) <= delta


CALIBRATED = [(ApproxDP(1.0, 1e-3), 1, 50), (ApproxDP(3.0, 1e-4), 1, 7), (ApproxDP(4.0, 1e-2), 2, 3)]
CALIBRATED += [(ApproxDP(0.5, 1e-2), 2, 20), (ApproxDP(20.0, 1e-6), 1, 10)]


@pytest.mark.parametrize(("budget", "d", "users"), CALIBRATED, ids=str)
@pytest.mark.slow
def test_the_calibration_keeps_its_budget_and_half_its_noise_would_not(budget: ApproxDP, d: int, users: int) -> None:
    params = VectorSum.calibrated(budget, 1.0, users, d)
    trials = users * params.b
    exact = worst(trials, params.g, d, budget.epsilon)
    assert 0.4 * budget.delta < exact <= budget.delta
    assert worst(trials // 2, params.g, d, budget.epsilon) > 1.5 * budget.delta
    for honest in {max(1, users // 2), 2 * users // 3}:
        claimed = params.guarantee_for(honest)
        assert claimed.epsilon > budget.epsilon
        assert worst(honest * params.b, params.g, d, claimed.epsilon) <= claimed.delta


@pytest.mark.parametrize("trials", [12, 41, 300])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0])
def test_every_integer_shift_is_dominated_by_the_gaussian(trials: int, epsilon: float) -> None:
    """Steps 1 to 3 of the proof, for all shifts of two coordinates by up to 3."""
    for log_cut in (-3.0, -12.0):
        kappa, tail = gaussian_step(trials, log_cut)
        for k in itertools.product(range(4), range(-3, 4)):
            place = np.maximum(k, 0).astype(float)
            exact = exact_delta(trials, 3, epsilon, place, place - k)
            norm = math.hypot(*k)
            claimed = (gdp_delta(kappa * norm, epsilon) if norm else 0.0) + 2 * (1 + math.exp(epsilon)) * tail
            assert exact <= claimed * (1 + 1e-9)


@pytest.mark.parametrize(("d", "shift"), [(1, 0.4), (1, 6.3), (4, 3.0), (8, 12.0)])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_random_rounding_costs_no_more_than_is_claimed(d: int, shift: float, epsilon: float) -> None:
    """Step 4 of the proof: the mean of D over all roundings, for shifts in random directions and even ones."""
    rng = np.random.default_rng(d)
    trials, delta = 10_000, 1e-4
    kappa, _ = gaussian_step(trials, -40.0)
    claimed = spent_delta(trials, shift, d, epsilon, 1e-12)
    assert claimed < delta or shift > 5
    directions = [*rng.standard_normal((60, d)), np.ones(d), np.eye(d)[0], np.arange(d) + 1.0]
    roundings = np.array(list(itertools.product((0, 1), repeat=d)))
    for u in directions:
        tau = np.abs(u) / np.linalg.norm(u) * shift
        f = tau - np.floor(tau)
        chances = np.where(roundings, f, 1 - f).prod(axis=1)
        squares = ((np.floor(tau) + roundings) ** 2).sum(axis=1)
        mean = sum(
            chance * gdp_delta(kappa * math.sqrt(s), epsilon)
            for chance, s in zip(chances, squares, strict=True)
            if s > 0
        )
        assert mean <= claimed


def test_the_step_of_the_gaussian_is_near_one_over_sigma() -> None:
    for trials in (1000, 1001, 10**6):
        kappa, tail = gaussian_step(trials, math.log(1e-12))
        assert 1 < kappa * math.sqrt(trials) / 2 < 1 + 20 / trials
        assert tail < 1e-12
    assert gaussian_step(1, -10.0) == (math.inf, 1.0)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", some(range(20), *range(5)))
def test_random_calibrations_keep_their_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, users = int(rng.integers(1, 3)), int(rng.integers(1, 200))
    budget = ApproxDP(float(np.exp(rng.uniform(-1, 3))), float(10 ** rng.uniform(-7, -1)))
    params = VectorSum.calibrated(budget, 1.0, users, d)
    assert worst(users * params.b, params.g, d, budget.epsilon, seed) <= budget.delta


@pytest.mark.campaign
def test_the_usual_budget_is_kept_exactly() -> None:
    params = VectorSum.calibrated(USUAL, 1.0, 1000, 2)
    trials = 1000 * params.b
    assert 0.5 * USUAL.delta < worst(trials, params.g, 2, USUAL.epsilon) <= USUAL.delta
    assert worst(trials // 2, params.g, 2, USUAL.epsilon) > 10 * USUAL.delta


# --- how much noise that takes


@pytest.mark.parametrize("users", [1000, 10_000])
@pytest.mark.parametrize("d", [6, 50])
def test_the_variance_is_near_the_analytic_gaussians(users: int, d: int) -> None:
    gaussian = Gaussian(USUAL, bound=3.0).variance(d)
    tight = VectorSum.calibrated(USUAL, 3.0, users, d)
    g, b = paper_parameters(users, d, USUAL, 3.0)
    assert 1 < tight.variance / gaussian < 1.06
    assert 1e5 < d * (6.0 / g) ** 2 * users * (b + 1) / 4 / gaussian < 5e5
    assert tight.message_bytes <= d * 16 < d * (g + b) / 8


def test_a_smaller_sensitivity_takes_less_noise() -> None:
    whole = VectorSum.calibrated(USUAL, 2.0, 1000, 6)
    assert whole.sensitivity == 4.0
    half = VectorSum.calibrated(USUAL, 2.0, 1000, 6, sensitivity=2.0)
    assert half.variance / Gaussian(USUAL, 2.0, 2.0).variance(6) < 1.06
    assert half.variance / whole.variance == pytest.approx(0.25, rel=0.05)


def test_the_papers_calibration_is_theorem_a6_and_safe() -> None:
    g, b = paper_parameters(1000, 6, USUAL, 1.0)
    assert g == 64  # 2 sqrt(1000) rounded up
    gamma = 1e-6 / 7
    squared = 1 / (18**2 * math.log(1 / gamma))
    assert b == math.ceil(180 * 64**2 * math.log(2 / gamma) / (squared * 1000))
    assert spent_delta(1000 * b, shift_of(g, 6, 1.0), 6, 0.01, 1e-6) < 1e-6  # a hundredth of its epsilon
    VectorSum(USUAL, 1.0, 1000, 6, g, b)  # the library's proof holds for it, too
    for budget, bound in ((ApproxDP(16.0, 1e-6), 1.0), (ApproxDP(1.0, 0.6), 1.0), (USUAL, 1e30)):
        with pytest.raises(BudgetError, match="paper"):
            paper_parameters(1000, 6, budget, bound)


def test_the_papers_guarantees_of_fewer_users_and_of_several_rounds() -> None:
    assert fewer_honest(ApproxDP(2.0, 1e-6), 999, 999) == ApproxDP(2.0, 1e-6)
    assert fewer_honest(USUAL, 999, 333) == ApproxDP(3.0, 1e-6)  # Claim A.8
    with pytest.raises(BudgetError, match="a third"):
        fewer_honest(USUAL, 999, 332)
    each = of_a_round(USUAL, 8)
    assert each.epsilon == pytest.approx(1 / (2 * math.sqrt(16 * math.log(1e6))))
    assert each.delta == pytest.approx(1e-6 / 9)


def test_fewer_honest_users_mean_less_privacy() -> None:
    params = VectorSum.calibrated(USUAL, 1.0, 1000, 6)
    found = [params.guarantee_for(honest).epsilon for honest in (1000, 900, 500, 100, 10)]
    assert 0.95 < found[0] <= 1
    assert found == sorted(found)
    assert found[2] == pytest.approx(math.sqrt(2), rel=0.05)
    with pytest.raises(BudgetError, match="too little noise"):
        VectorSum.calibrated(ApproxDP(8.0, 1e-2), 1.0, 1000, 1).guarantee_for(1)


def adaptive_delta(trials: int, g: int, epsilon: float, first: float) -> float:
    """The exact loss of two rounds of one coordinate: a first shift, and for each answer the worst second one."""
    masses, grow, worst_of = binomial(trials, g), math.exp(epsilon), 0.0
    p, q = moved(masses, first), np.pad(masses, (0, math.ceil(first) + 1))
    for one, other in ((p, q), (q, p)):
        losses = []
        for second in (g, g - 0.5, 0.7 * g, 0.5, 0.0):
            a, b = moved(masses, second), np.pad(masses, (0, math.ceil(second) + 1))
            for x, y in ((a, b), (b, a)):
                losses.append(np.maximum(np.multiply.outer(one, x) - grow * np.multiply.outer(other, y), 0).sum(axis=1))
        worst_of = max(worst_of, float(np.max(losses, axis=0).sum()))
    return worst_of


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize("trials", some([101, 400, 2000], 0, 1))
@pytest.mark.parametrize("g", some([1, 2, 5, 20], 0, 3))
@pytest.mark.slow
def test_no_two_rounds_lose_more_than_is_claimed(trials: int, g: int, delta: float) -> None:
    """Also where the second vector depends on the first answer; and one round's claim would be caught."""
    try:
        epsilon = least_epsilon(trials, shift_of(g, 1, 1.0), 1, delta, rounds=2)
    except BudgetError:
        assert trials < 20 * g  # so little noise that the tails alone are too much
        return
    exact = max(adaptive_delta(trials, g, epsilon, first) for first in (g, g - 0.5, 0.7 * g, 0.5))
    assert exact <= delta
    if g >= 5:  # with few cells rounding is the larger part, and the claim of one round is not exact
        alone = least_epsilon(trials, shift_of(g, 1, 1.0), 1, delta)
        assert adaptive_delta(trials, g, alone, g) > delta


@pytest.mark.parametrize(("rounds", "shift", "trials"), [(30, 2.5, 14_000), (60, 4.5, 60_000)])
def test_rounding_that_depends_on_the_answers_loses_no_more_than_is_claimed(
    rounds: int, shift: float, trials: int
) -> None:
    """Backward induction over the likelihood ratio: before each round, the shift with the largest loss is chosen.

    The rounds are the Gaussian pairs that dominate the sums of one coordinate. A shift between two integers is rounded
    at random to one of them. The claim without the part for rare roundings would be caught.
    """
    epsilon, kappa = 1.0, gaussian_step(trials, -30.0)[0]
    step = kappa * math.floor(shift) / 6
    ratio = np.arange(-6.0, 6.0, step)
    value = np.maximum(0.0, 1 - np.exp(epsilon - ratio))
    kernels = {}
    for k in {math.floor(s) + up for s in (shift, shift - 0.25, shift - 0.5) for up in (0, 1)}:
        spread = kappa * k
        moves = np.arange(-math.ceil(9 * spread / step), math.ceil(9 * spread / step) + 1) * step
        kernel = np.exp(-((moves - spread**2 / 2) ** 2) / (2 * spread**2))
        kernels[k] = kernel / kernel.sum()
    for _ in range(rounds):
        after = {}
        for k, kernel in kernels.items():
            half = len(kernel) // 2
            padded = np.concatenate([np.zeros(half), value, 1 - np.exp(epsilon - 6.0 - step * np.arange(half))])
            after[k] = np.convolve(padded, kernel[::-1], mode="valid")
        choices = []
        for s in (shift, shift - 0.25, shift - 0.5):
            up = s - math.floor(s)
            choices.append((1 - up) * after[math.floor(s)] + up * after[math.floor(s) + 1])
        value = np.max(choices, axis=0)
    exact = float(np.interp(0.0, ratio, value))
    likely = gdp_delta(kappa * math.sqrt(rounds * (shift**2 + 0.25)), epsilon)
    claimed = spent_delta(trials, shift, 1, epsilon, exact, rounds)
    assert 1e-7 < exact < 1e-3
    assert likely < exact < claimed < 20 * exact
    assert claimed < gdp_delta(kappa * math.sqrt(rounds) * (shift + 1), epsilon)


def test_rounds_cost_little_more_than_without_rounding() -> None:
    """The roundings of many rounds average out: bits a round hardly depend on how many rounds there are."""
    bits = [tight_parameters(10_000, 6, USUAL, 1.0, rounds)[1] for rounds in (1, 20, 100)]
    assert bits[1] < 5 * bits[0]
    assert bits[2] < 1.6 * bits[1]
    assert tight_parameters(1000, 6, USUAL, 1.0, 20)[1] < 840  # issue 11; they were 1,930


def test_several_rounds_cost_what_one_long_vector_does_and_more_for_rounding() -> None:
    """R rounds of d coordinates against one of R d with the same total shift, whose rounding is bounded better."""
    rounds, d, trials, g = 25, 3, 400_000, 30
    several = spent_delta(trials, shift_of(g, d, 1.0), d, 1.0, 1e-6, rounds)
    one = spent_delta(trials, math.sqrt(rounds) * shift_of(g, d, 1.0), d * rounds, 1.0, 1e-6)
    assert one < several < spent_delta(trials, shift_of(g, d, 1.0), d, 1.0, 1e-6, 2 * rounds)
    g, b = tight_parameters(1000, d, ApproxDP(1.0, 1e-6), 1.0, rounds)
    assert spent_delta(1000 * b, shift_of(g, d, 1.0), d, 1.0, 1e-6, rounds) <= 1e-6
    assert spent_delta(1000 * b, shift_of(g, d, 1.0), d, 1.0, 1e-6, rounds + 1) > 1e-6
    assert spent_delta(500 * b, shift_of(g, d, 1.0), d, 1.0, 1e-6, rounds) > 1e-6
