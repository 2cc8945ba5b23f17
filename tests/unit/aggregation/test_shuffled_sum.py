"""The shuffled sum: the exact laws of what is sent, what the three parties do, and what they refuse.

A right implementation fails one of the tests of fit with probability at most 1e-6 (`FALSE_ALARM`, over the seeds), and
one of the means or variances at most 1e-8 (6 sigma). `test_binomial_sum` checks the privacy.
"""

import copy
import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP, GaussianDP, PureDP, ShuffleClassifier
from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, SchemaError
from streamdp.privacy.entropy import Entropy, SeededEntropy
from tests.support.audit import FALSE_ALARM

SIX_SIGMA = 6.0
USUAL = ApproxDP(1.0, 1e-6)


def seeded(seed: int) -> SeededEntropy:
    return SeededEntropy(seed, 1 << 16)


# --- what is sent


def hand(users: int = 20, b: int = 25, g: int = 2, d: int = 3) -> VectorSum:
    """Small parameters, for a budget that they keep."""
    return VectorSum(ApproxDP(6.0, 0.1), 1.0, users, d, g, b)


def law_of_count(place: float, b: int) -> np.ndarray:
    """The masses of the rounded place plus Bin(b, 1/2), on 0, 1, ..."""
    whole, fraction = int(place), place % 1
    noise = stats.binom.pmf(np.arange(b + 1), b, 0.5)
    return np.concatenate([np.zeros(whole), np.convolve([1 - fraction, fraction], noise)])


def fit(seen: np.ndarray, law: np.ndarray) -> float:
    """The p-value of whole numbers `seen` under the masses `law` of 0, 1, ..., cells pooled to 50 or more expected."""
    groups = np.minimum((np.cumsum(law) * len(seen) / 100).astype(int), int(len(seen) / 100) - 1)
    expected = np.bincount(groups, law) * len(seen)
    counts = np.bincount(groups, np.bincount(seen, minlength=len(law)))
    keep = expected > 0
    return float(stats.chisquare(counts[keep], expected[keep] * (counts[keep].sum() / expected[keep].sum())).pvalue)


@pytest.mark.parametrize("b", [1, 17, 63, 64, 65, 128, 200])
def test_counts_have_the_exact_law_of_rounding_and_fair_bits(b: int) -> None:
    params = VectorSum(ApproxDP(90.0, 0.1), 1.0, 2000, 2, 5, b)
    vectors = np.tile([0.1, -0.83], (100_000, 1))  # places 2.75 and 0.425
    counts = LocalRandomizer(params, seeded(b)).counts(vectors)
    for j, place in enumerate((2.75, 0.425)):
        assert fit(counts[:, j], law_of_count(place, b)) > FALSE_ALARM
    assert abs(np.corrcoef(counts.T)[0, 1]) < SIX_SIGMA / math.sqrt(len(counts))


def test_the_noise_of_a_sum_has_its_scale_and_no_other() -> None:
    """Bits 0.64 and 1.44 times as many make scales 20 % off, and are told; the right ones are not."""
    rounds, claimed = 20_000, hand()

    def p_value(b: int) -> float:
        used = hand(b=b)
        vectors = np.zeros((rounds * used.users, used.d))  # in the middle of the grid: nothing to round
        counts = LocalRandomizer(used, seeded(b)).counts(vectors).reshape(rounds, used.users, used.d).sum(axis=1)
        noise = counts - used.users - (used.users * (b - claimed.b)) // 2  # centred as the claimed one
        trials = claimed.users * claimed.b
        return fit(noise.ravel(), stats.binom.pmf(np.arange(2 * trials), trials, 0.5))

    assert p_value(25) > FALSE_ALARM
    assert p_value(16) < FALSE_ALARM
    assert p_value(36) < FALSE_ALARM


def variance_for(params: VectorSum, vectors: np.ndarray) -> float:
    """E||estimate - sum||^2 for these vectors: it depends on the fractions that are rounded."""
    places = params.places(vectors)
    fractions = places - np.floor(places)
    return float(params.cell**2 * (places.size * params.b / 4 + np.sum(fractions * (1 - fractions))))


@pytest.mark.slow
def test_the_estimate_is_unbiased_and_has_its_variance() -> None:
    params = VectorSum.calibrated(USUAL, 2.0, 30, 6)
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((30, 6))
    vectors *= 2 * rng.uniform(0, 1, (30, 1)) / np.linalg.norm(vectors, axis=1, keepdims=True)
    rounds = 20_000  # the variance is over 120,000 numbers: 0.4 % of it is a sigma
    counts = LocalRandomizer(params, seeded(2)).counts(np.tile(vectors, (rounds, 1))).reshape(rounds, 30, 6)
    analyzer = Analyzer(params)
    errors = np.array([analyzer.sum_of_counts(c, 30) for c in counts.sum(axis=1)]) - vectors.sum(axis=0)
    predicted = variance_for(params, vectors)
    assert np.mean(errors**2) * 6 == pytest.approx(predicted, rel=0.03)
    assert np.abs(errors.mean(axis=0)).max() < SIX_SIGMA * math.sqrt(predicted / 6 / rounds)
    assert params.noise_variance <= predicted <= params.variance


def test_rounding_alone_has_the_predicted_variance() -> None:
    """With one bit of noise the rounding is a fair part, and its share depends on where the vectors lie."""
    params = VectorSum(ApproxDP(90.0, 0.2), 1.0, 1000, 1, 1, 1)
    vector = np.array([0.0])  # halfway between the cells
    counts = LocalRandomizer(params, seeded(3)).counts(np.tile(vector, (400_000, 1)))
    assert np.var(counts * params.cell) == pytest.approx(variance_for(params, vector), rel=0.01)
    assert variance_for(params, vector) == pytest.approx(params.variance / 1000)
    assert variance_for(params, np.array([1.0])) == pytest.approx(params.noise_variance / 1000)


# --- the parties


def test_the_three_parties_give_what_the_counts_give() -> None:
    params = VectorSum.calibrated(ApproxDP(10.0, 0.1), 1.0, 5, 3)
    vectors = np.array([[0.3, -0.4, 0.5]] * 5)
    messages = LocalRandomizer(params, seeded(4)).messages(vectors)
    assert messages.nbytes == 5 * params.message_bytes
    ones = np.unpackbits(messages, axis=2).sum(axis=2, dtype=int)
    np.testing.assert_array_equal(ones, LocalRandomizer(params, seeded(4)).counts(vectors))
    shuffler = Shuffler(params)
    shuffler.collect(messages[0])
    shuffler.collect(messages[1:])
    shuffled = shuffler.forward()
    analyzer = Analyzer(params)
    np.testing.assert_array_equal(analyzer.sum(shuffled), analyzer.sum_of_counts(ones.sum(axis=0), 5))
    assert np.linalg.norm(analyzer.sum(shuffled) - vectors.sum(axis=0)) < 10 * math.sqrt(params.variance)
    assert LocalRandomizer(params).messages(vectors[0]).shape == messages[0].shape


def test_shuffled_bits_tell_nothing_of_who_sent_them() -> None:
    """What is forwarded is the same for every order of the users, of their bits, and of the calls, in all bytes."""
    params, rng = hand(users=4, b=12, g=6, d=2), np.random.default_rng(6)
    bits = rng.integers(0, 2, (4, 2, 18), dtype=np.uint8)
    seen = set()
    for order in itertools.permutations(range(4)):
        shuffler = Shuffler(params)
        mixed = rng.permuted(bits[list(order)].swapaxes(0, 1).reshape(2, 72), axis=1).reshape(2, 4, 18).swapaxes(0, 1)
        for part in np.split(np.packbits(mixed, axis=2), [1, 3]):
            shuffler.collect(part)
        seen.add(shuffler.forward().bits.tobytes())
    expected = np.arange(72) < bits.sum(axis=(0, 2), dtype=int)[:, None]
    assert seen == {np.packbits(expected, axis=1).tobytes()}


def test_the_shuffler_forwards_all_or_nothing_and_forgets() -> None:
    params = VectorSum.calibrated(USUAL, 1.0, 10, 2)
    sender = LocalRandomizer(params)
    shuffler = Shuffler(params, minimum=8)
    for _ in range(7):
        shuffler.collect(sender.messages(np.array([0.6, 0.0])))
    with pytest.raises(NotAtBoundaryError, match="7 users answered"):
        shuffler.forward()
    assert shuffler.answered == 7
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(NotAtBoundaryError):
            leak(shuffler)
    shuffler.collect(sender.messages(np.array([0.6, 0.0])))
    assert shuffler._ones.any()
    shuffled = shuffler.forward()
    assert shuffled.users == 8
    assert not shuffler._ones.any()
    assert np.linalg.norm(Analyzer(params).sum(shuffled) - [4.8, 0]) < 10 * math.sqrt(params.variance)
    assert params.guarantee_for(shuffled.users).epsilon > 1
    with pytest.raises(NotAtBoundaryError):
        shuffler.forward()


def test_a_batch_may_outlast_the_words() -> None:
    params = hand(users=2, b=4000)
    vectors = np.zeros((2, 3))
    few = LocalRandomizer(params, Entropy(8)).counts(vectors)
    assert np.all(np.abs(few - 1 - 2000) < 10 * math.sqrt(1000))
    np.testing.assert_array_equal(
        LocalRandomizer(params, SeededEntropy(7, 8)).counts(vectors), LocalRandomizer(params, seeded(7)).counts(vectors)
    )


# --- what is refused


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"budget": GaussianDP(1.0)}, BudgetError),
        ({"budget": PureDP(1.0)}, BudgetError),
        ({"budget": ApproxDP(101.0, 1e-6)}, BudgetError),
        ({"budget": ApproxDP(1e-5, 1e-12)}, BudgetError),  # 2^36 bits are not enough
        ({"bound": 0.0}, ConfigError),
        ({"bound": math.nan}, ConfigError),
        ({"users": 0}, ConfigError),
        ({"users": 2.0}, ConfigError),
        ({"d": 0}, ConfigError),
        ({"d": True}, ConfigError),
        ({"sensitivity": 3.0}, ConfigError),
    ],
    ids=str,
)
def test_a_sum_that_cannot_be_served_is_refused(change: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        VectorSum.calibrated(**{"budget": USUAL, "bound": 1.0, "users": 100, "d": 3} | change)


def test_parameters_that_do_not_keep_the_budget_cannot_be_made() -> None:
    good = VectorSum.calibrated(USUAL, 1.0, 100, 3)
    again = VectorSum(USUAL, 1.0, np.int64(100), 3, good.g, good.b)
    assert again == good
    with pytest.raises(BudgetError, match="do not keep"):
        VectorSum(USUAL, 1.0, 100, 3, good.g, good.b * 99 // 100)
    with pytest.raises(BudgetError):
        VectorSum(USUAL, 1.0, 10**9, 3, good.g, 2**40)
    with pytest.raises(ConfigError):
        VectorSum(USUAL, 1.0, 100, 3, 0, good.b)


def test_wrong_vectors_are_refused_without_showing_them() -> None:
    params = VectorSum.calibrated(USUAL, 1.0, 100, 3)
    sender = LocalRandomizer(params, seeded(8))
    for bad in ([0.77731, 0.77731, 0.0], [math.nan, 0, 0], [math.inf, 0, 0], [1e300, 0, 0]):
        for send in (sender.counts, sender.messages):
            with pytest.raises(ConfigError, match="l2 norm at most 1") as caught:
                send(np.array([[0.0, 0.0, 0.0], bad]))
            assert "0.777" not in str(caught.value)
    for shape in ((2,), (4, 2), (2, 2, 3), ()):
        with pytest.raises(SchemaError, match="3 numbers"):
            sender.counts(np.zeros(shape))
    for text in ([["0.777x", 0, 0]], [[0.777, 0, 0], [0.777]]):
        with pytest.raises(SchemaError, match="3 numbers") as caught:
            sender.counts(text)
        assert "0.777" not in str(caught.value)
    assert sender.counts(np.zeros((0, 3))).shape == (0, 3)


def test_wrong_messages_and_counts_are_refused() -> None:
    params = hand(users=2, b=25, g=2, d=3)
    with pytest.raises(ConfigError):
        Shuffler(params, minimum=3)
    with pytest.raises(ConfigError, match="2\\^32"):
        Shuffler(VectorSum(USUAL, 1.0, 1000, 3, 1, 2**26))
    shuffler = Shuffler(params)
    for wrong in (np.zeros((3, 3), np.uint8), np.zeros((3, 4)), np.zeros((1, 1, 3, 4), np.uint8)):
        with pytest.raises(SchemaError, match="packed bits"):
            shuffler.collect(wrong)
    with pytest.raises(SchemaError, match="after its 27 bits"):
        shuffler.collect(np.full((3, 4), 255, np.uint8))
    with pytest.raises(ConfigError, match="more than the 2 users"):
        shuffler.collect(np.zeros((3, 3, 4), np.uint8))
    analyzer = Analyzer(params)
    with pytest.raises(SchemaError):
        analyzer.sum(Shuffled(np.zeros((3, 2), np.uint8), 2))
    with pytest.raises(SchemaError, match="what a shuffler forwards, got ndarray"):
        analyzer.sum(np.zeros((3, 2), np.uint8))  # type: ignore[arg-type]
    for counts in ([1, 2], [1, 2, 55], [-1, 2, 3], [1.0, 2.0, 3.0]):
        with pytest.raises(SchemaError, match="whole numbers from 0 to 54"):
            analyzer.sum_of_counts(np.array(counts), 2)
    with pytest.raises(ConfigError):
        analyzer.sum_of_counts(np.array([1, 2, 3]), 3)
    for honest in (0, 3, 1.5):
        with pytest.raises(ConfigError):
            params.guarantee_for(honest)


def test_ones_past_the_bits_of_a_coordinate_are_refused() -> None:
    params = hand(users=4, d=1)
    bits = np.zeros((1, 14), dtype=np.uint8)  # 108 bits of 112
    bits[0, -1] = 0b10000
    assert Analyzer(params).sum(Shuffled(bits, 4)).shape == (1,)
    bits[0, -1] = 0b1000
    with pytest.raises(SchemaError, match="after the 108 bits"):
        Analyzer(params).sum(Shuffled(bits, 4))


def test_a_randomizer_refuses_a_sum_for_a_smaller_sensitivity() -> None:
    """Such a sum keeps its budget, but not for gradients of this loss."""
    offered = ShuffleClassifier(features=["a"], method="ac-sa", horizon=1000).randomizer
    params = offered.params
    less = VectorSum.calibrated(params.budget, params.bound, params.users, params.d, sensitivity=params.bound / 10)
    with pytest.raises(ConfigError, match="smaller sensitivity"):
        replace(offered, params=less)
