"""Random words are never saved, copied or shared, and the low bits of an answer reveal nothing."""

import copy
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from streamdp import ApproxDP, Gaussian, GaussianDP, Laplace, LDPASGDRegressor, PanPrivateRegressor, PrivUnit, PureDP
from streamdp.privacy import samplers
from streamdp.privacy.entropy import LARGEST, Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Mechanism
from streamdp.privacy.mechanisms.base import randomize_rows
from streamdp.privacy.subsampling import sample
from tests.support.audit import FALSE_ALARM
from tests.support.states import noise_of, words_of

pytestmark = pytest.mark.real_noise


def unused(rng: Entropy | SeededEntropy) -> np.ndarray:
    return rng.words[rng.position :]


def filled(size: int = 4096) -> Entropy:
    rng = Entropy(size)
    rng.refill()
    return rng


def shared(a: np.ndarray, b: np.ndarray) -> int:
    """The number of words, not zero, that two arrays share; a pair is equal by chance with probability 2^-64."""
    return len(set(a[a != 0].tolist()) & set(b.tolist()))


# --- keys and copies


def test_without_a_seed_words_come_from_the_operating_system() -> None:
    assert isinstance(entropy(None), Entropy)
    assert entropy(None).private
    assert isinstance(entropy(3), SeededEntropy)
    assert not entropy(3).private


def test_no_two_generators_and_no_two_fills_share_a_word() -> None:
    first, second = filled(), filled()
    before = unused(first).copy()
    first.words[0] = len(first.words)
    first.refill()
    words = np.concatenate([before, unused(first), unused(second)])
    assert len(np.unique(words)) == len(words)


def test_refilling_keeps_the_unused_words_in_order() -> None:
    rng = filled(64)
    rng.words[0] = 51
    rest = unused(rng).copy()
    rng.refill()
    assert rng.position == 1
    assert np.array_equal(rng.words[1:15], rest)
    assert shared(rng.words[15:], rest) == 0


def test_growing_keeps_the_unused_words_in_order() -> None:
    rng = filled(64)
    rest = unused(rng).copy()
    rng.refill_for(0)
    assert len(rng.words) == 1 + 128
    assert np.array_equal(unused(rng)[:64], rest)
    assert len(np.unique(unused(rng))) == 128


def test_a_buffer_that_is_used_up_grows_to_a_limit() -> None:
    rng = Entropy()
    for _ in range(4):
        rng.discard()
        rng.refill_for(1)
    assert len(rng.words) == 1 + LARGEST
    assert len(np.unique(unused(rng))) == LARGEST


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda rng: pickle.loads(pickle.dumps(rng))])
def test_a_copied_generator_starts_afresh(way) -> None:
    rng = filled()
    other = way(rng)
    assert isinstance(other, Entropy)
    assert other.position == len(other.words)  # empty: there is no word to share
    other.refill()
    assert shared(rng.words[1:], other.words[1:]) == 0


def learned(**options: object) -> LDPASGDRegressor:
    model = LDPASGDRegressor(features=["a", "b"], **options)
    for i in range(5):
        model.learn_one({"a": 0.5 + i, "b": -0.25}, 1.0)
    return model


def test_used_words_are_gone_from_memory() -> None:
    """`entropy` says that nothing in memory shows a used word."""
    rng = Entropy()
    Laplace(PureDP(1)).randomize(np.zeros((100, 2)), rng)
    assert rng.position > 1
    assert not rng.words[1 : rng.position].any()


def in_child(act: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """What an act that forks once returns in the parent and in the child."""
    here, parent = os.getpid(), os.pipe()
    found = act()
    if os.getpid() != here:
        os.write(parent[1], found)
        os._exit(0)
    os.wait()
    return found, os.read(parent[0], 2**16)


def forking(call: Any) -> Any:
    """The call, and a fork at its end, as a signal handler could make it."""
    left = [1]

    def both(*args: Any) -> Any:
        made = call(*args)
        if left.pop() if left else 0:
            os.fork()
        return made

    return both


forks_here = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
quiet = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks_here
@quiet
def test_a_fork_within_a_refill_shares_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Entropy(64)
    rng.refill()
    rng.words[0] = 60
    monkeypatch.setattr(rng, "_fill", forking(rng._fill))

    def act() -> bytes:
        rng.refill()
        return rng.words[rng.position :].tobytes()

    ours, theirs = (np.frombuffer(text, dtype=np.uint64) for text in in_child(act))
    assert len(ours) == len(theirs) == 64
    assert not set(ours.tolist()) & set(theirs.tolist())


@forks_here
@quiet
def test_a_fork_within_a_sample_draws_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Entropy(512)
    rng.refill()
    with monkeypatch.context() as patch:
        patch.setattr(np, "flatnonzero", forking(np.flatnonzero))
        ours, theirs = in_child(lambda: sample(400, 0.5, rng).astype(np.uint16).tobytes())
    assert ours != theirs
    assert 100 < len(np.frombuffer(theirs, dtype=np.uint16)) < 300


@forks_here
@quiet
def test_a_fork_within_fresh_noise_shares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PanPrivateRegressor(features=["a", "b"])
    for target, name in ((words_of(model), "draw"), (samplers, "normals")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, forking(getattr(target, name)))
            ours, theirs = in_child(lambda: noise_of(model).noise(words_of(model)).tobytes())
        assert ours != theirs


@forks_here
@quiet
def test_a_forked_child_has_other_words() -> None:
    """The child inherits a half-used buffer and must discard it; the parent keeps its own."""
    model = learned()
    rng = words_of(model)
    before = unused(rng).copy()
    assert len(before) > 1000
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            inherited = bytes(rng.words[1:].tobytes())
            empty = rng.position == len(rng.words)
            model.learn_one({"a": 1.0, "b": 1.0}, 1.0)
            drawn = rng.words[1:].tobytes()
            os.write(write, struct.pack("?", empty and not any(inherited)) + drawn)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer[:1] == b"\x01"
    assert len(answer) > 1 + 8 * 1000
    assert shared(np.frombuffer(answer[1:], dtype=np.uint64), before) == 0
    assert np.array_equal(unused(rng), before)


# --- words


def test_words_are_uniform() -> None:
    """Each of 64 bits within 6 sigma of 1/2, each byte by chi-square, neighbours uncorrelated.

    False alarms: 6.3e-7 in all, of 8 bytes 8 * 1e-6 / 16, of 64 bits and a correlation 65 * 2e-9.
    """
    words = unused(filled(1 << 18))
    n = len(words)
    bits = np.unpackbits(words.view(np.uint8)).reshape(n, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(n)
    for j, column in enumerate(words.view(np.uint8).reshape(n, 8).T):
        assert stats.chisquare(np.bincount(column, minlength=256)).pvalue > FALSE_ALARM / 16, j
    units = words / 2.0**64
    assert abs(np.corrcoef(units[1:], units[:-1])[0, 1]) < 6 / np.sqrt(n)


@pytest.mark.parametrize(
    ("kind", "budget"), [(Laplace, PureDP(1)), (Gaussian, GaussianDP(1)), (PrivUnit, PureDP(1))], ids=str
)
@pytest.mark.parametrize("d", [1, 3, 50])
def test_seeded_noise_does_not_depend_on_the_size_of_the_buffer(kind: type[Mechanism], budget: Budget, d: int) -> None:
    """Sizes from 4 words, too few for one record of 50 numbers, to more words than all records need."""
    G = np.zeros((400, d))
    outputs = [kind(budget).randomize(G, SeededEntropy(11, size)) for size in (4, 7, 61, 1024, 1 << 16)]
    for other in outputs[1:]:
        assert np.array_equal(outputs[0], other)


@pytest.mark.parametrize("d", [1, 3, 4, 12, 61])
def test_several_coordinates_at_once_get_the_noise_of_single_variates(d: int) -> None:
    """Bit by bit, with rare words between the common ones; `normals` makes one variate after the other."""
    rng = SeededEntropy(5, 8192)
    rng.refill()
    words, n = rng.words[1:].copy(), 6_000 // d
    mechanism = Gaussian(GaussianDP(0.7), 3.0)
    rows = mechanism.rows(d)
    grid = rows[0, samplers.GRID]
    G = np.random.default_rng(d).uniform(-1, 1, (n, d)) / d
    noise = np.empty(n * d, np.int64)
    assert samplers.normals(words, rows[0, samplers.SCALE] / grid, noise)
    expected = (np.rint(G / grid) + noise.reshape(n, d)) * grid
    assert samplers.randomize(mechanism.code, rows, G, rng.words) == n
    assert np.array_equal(G, expected)


@pytest.mark.parametrize("mechanism", [Laplace(PureDP(1), 3.0), Gaussian(GaussianDP(0.7), 3.0)], ids=repr)
def test_a_row_gets_the_noise_of_its_coordinates(mechanism: Mechanism) -> None:
    """20 rows of 50 coordinates and 1,000 rows of one, wherever the words run out, also at a rare word."""
    rows = mechanism.rows(50)
    expected = np.full((1_000, 1), 0.01)
    randomize_rows(mechanism.code, rows, expected, SeededEntropy(8))
    for size in range(60, 260):
        G = np.full((20, 50), 0.01)
        randomize_rows(mechanism.code, rows, G, SeededEntropy(8, size))
        assert np.array_equal(G.ravel(), expected[:, 0])


def test_seeds_give_different_noise() -> None:
    one, two = (Laplace(PureDP(1)).randomize(np.zeros((50, 2)), SeededEntropy(seed)) for seed in (1, 2))
    assert not np.any(one == two)


def test_a_seeded_generator_is_not_the_callers() -> None:
    words = SeededEntropy(1).draw(50)
    callers = [np.random.PCG64(1), *(np.random.PCG64(child) for child in np.random.SeedSequence(1).spawn(3))]
    assert not any(np.isin(words, caller.random_raw(10_000)).any() for caller in callers)
    np.testing.assert_array_equal(words, SeededEntropy(1, 16).draw(50))


# --- low bits

ADDITIVE = [(Laplace, PureDP(1)), (Laplace, PureDP(37.0)), (Gaussian, GaussianDP(0.3)), (Gaussian, ApproxDP(1, 1e-6))]
entries = st.floats(-1, 1, allow_subnormal=True)


@pytest.mark.parametrize(("kind", "budget"), ADDITIVE, ids=str)
@given(g=st.lists(entries, min_size=1, max_size=6), seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_every_output_is_a_multiple_of_the_grid(
    kind: type[Mechanism], budget: Budget, g: list[float], seed: int
) -> None:
    """For any gradient; and the grid depends only on calibration and dimension."""
    mechanism = kind(budget, bound=3.0, sensitivity=5.0)
    grid = mechanism.rows(len(g))[0, samplers.GRID]
    assert np.frexp(grid)[0] == 0.5  # a power of two
    counts = mechanism.randomize(np.array(g), SeededEntropy(seed, 64)) / grid  # exact
    assert np.array_equal(counts, np.rint(counts))
    assert np.abs(counts).max() < 2**52


@given(g=st.lists(entries, min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_every_privunit_output_is_on_its_grid(g: list[float], seed: int) -> None:
    row = PrivUnit(PureDP(2), 3.0).rows(len(g))[0]
    out = PrivUnit(PureDP(2), 3.0).randomize(np.array(g), SeededEntropy(seed, 64))
    counts = np.rint(out / row[samplers.SCALE] / row[samplers.GRID])
    assert np.array_equal(counts * row[samplers.GRID] * row[samplers.SCALE], out)


def test_mironovs_attack_works_on_naive_noise_and_not_on_ours() -> None:
    """One output near 0 distinguishes g = 0 from g = 1 if Laplace noise is added as doubles.

    Near 0 the naive output of g = 0 is noise of small magnitude, with bits below 2^-53. The output of g = 1 is a sum
    with noise near -1, whose last bit is 2^-53, so it has no such bits. The attacker's event
    is "some bit below 2^-53 is set".
    """
    n = 400_000
    rng = np.random.default_rng(7)

    def fine(outputs: np.ndarray) -> float:
        near = outputs[(np.abs(outputs) < 1 / 64) & (outputs != 0)]
        assert len(near) > 500
        scaled = near * 2.0**53
        return float(np.mean(scaled != np.rint(scaled)))

    uniform = rng.random(n) - 0.5
    noise = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform))
    assert fine(0.0 + noise) > 0.9
    assert fine(1.0 + noise) == 0.0

    mechanism = Laplace(PureDP(1), 0.5)  # S = 1, scale 1
    ours = [mechanism.randomize(np.full((n, 1), g), SeededEntropy(8 + i)) for i, g in enumerate((0.5, -0.5))]
    assert fine(ours[0]) == fine(ours[1]) == 0.0


@pytest.mark.parametrize(
    ("kind", "budget"), [(Laplace, PureDP(1)), (Gaussian, GaussianDP(1)), (PrivUnit, PureDP(1))], ids=str
)
def test_low_bits_are_the_same_for_every_input(kind: type[Mechanism], budget: Budget) -> None:
    """The last 6 bits of an output's grid index are uniform for each of several inputs, also for edge cases."""
    n = 200_000
    mechanism = kind(budget)
    for i, g in enumerate((0.0, 1.0, -1.0, 1 / 3, 2.0**-30, 5e-324)):
        out = mechanism.randomize(np.full((n, 1), g) * np.array([1.0, 0.0, 0.0]), SeededEntropy(20 + i))
        row = mechanism.rows(3)[0]
        unit = row[samplers.GRID] * (row[samplers.SCALE] if kind is PrivUnit else 1.0)
        low = np.rint(out[:, 0] / unit).astype(np.int64) & 63
        assert stats.chisquare(np.bincount(low, minlength=64)).pvalue > FALSE_ALARM
