"""What an adversary learns from batches of gradients and curvature: the noise, audits, and what memory holds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from streamdp import (
    ApproxDP,
    GaussianDP,
    PanPrivateClassifier,
    PanPrivateRegressor,
    ShuffleClassifier,
    ShuffleRegressor,
    Squared,
)
from streamdp.aggregation.kernels import noisy_counts
from streamdp.optim.user_averages import gradients
from streamdp.privacy import samplers
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import Budget, amount
from tests.support import intruder
from tests.support.audit import epsilon_lower_bound, lower_bound, mu_lower_bound
from tests.support.newton import averages
from tests.support.sizes import some
from tests.support.states import (
    curvature_of,
    give_words,
    loss_of,
    method_of,
    middle_of,
    noise_of,
    open_sum,
    params_of,
    spec_of,
    steps_of,
    words_of,
)

FAR = 1e6
C = 1.345
Record = tuple[tuple[float, float], float]

PAIRS: dict[str, tuple[Record, Record]] = {
    # Opposite x. One residual at c, where gradient and curvature are both large; one far away, without curvature.
    "huber": (((1.0, 1.0), C * (1 - 1e-9)), ((-1.0, -1.0), FAR)),
    # As for Huber, at the scale 4 where it begins.
    "squared": (((1.0, 1.0), 4 * C * (1 - 1e-9)), ((-1.0, -1.0), FAR)),
    # Certain of the wrong class, at x and x' of 60 degrees: the largest distance with two columns, .949 of the claim.
    # theta is (0, FAR), of softmax in its second half.
    "logistic": (((math.sqrt(1.5), math.sqrt(0.5)), 0.0), ((math.sqrt(1.5), -math.sqrt(0.5)), 1.0)),
    "softmax": (((math.sqrt(1.5), math.sqrt(0.5)), 0.0), ((math.sqrt(1.5), -math.sqrt(0.5)), 1.0)),
    # In the units UNITS, with an intercept: the same x of full length, and residuals to either side as for Huber.
    "units": (((0.55, -0.1), C * (1 - 1e-9)), ((0.55, -0.1), -FAR)),
    # In a search for columns, in ranges around the centres of UNITS: both columns and the target at opposite ends.
    "search": (((1.0, 1.0), C * (1 - 1e-9)), ((-1.0, -1.0), -FAR)),
    # A mean of 2 levels, where the exponential has the largest slope that a curvature shows, in the units UNITS.
    "poisson": (((0.55, -0.1), 2 + C * (1 - 1e-9)), ((0.55, -0.1), -FAR)),
}
UNITS = np.array([[0.3, -0.2], [4.0, 10.0]])
OTHERS = np.array([[0.3, -0.2], [1.0, 1.0]]), np.array([1.0, 0.0])
KINDS: dict[str, tuple[Any, Any]] = {
    "huber": (PanPrivateRegressor, ShuffleRegressor),
    "squared": (PanPrivateRegressor, ShuffleRegressor),
    "logistic": (PanPrivateClassifier, ShuffleClassifier),
    "softmax": (PanPrivateClassifier, ShuffleClassifier),
    "units": (PanPrivateRegressor, ShuffleRegressor),
    "search": (PanPrivateRegressor, ShuffleRegressor),
    "poisson": (PanPrivateRegressor, ShuffleRegressor),
}
REACHED = {"logistic": 0.948, "softmax": 0.948, "squared": 0.975, "search": 0.95, "poisson": 0.96}
"""Which part of the claimed distance the two records have, at least."""
both, one = (pytest.mark.parametrize("loss", cases) for cases in (PAIRS, some(PAIRS, 0)))
averaged = pytest.mark.parametrize("loss", some([loss for loss in PAIRS if loss != "search"], 0))
"""A search moves the units, and its sums are in no average."""
TRIALS = 100_000
# Gradients alone, which planned steps sum: residuals to either side, far away.
PAIRS_OF_ALL = PAIRS | {"gradients": (((1.0, 1.0), FAR), ((1.0, 1.0), -FAR))}
every = pytest.mark.parametrize("loss", PAIRS_OF_ALL)


def estimator(loss: str, shuffled: bool = False, **options: Any) -> Any:
    if loss == "gradients":
        kind = ShuffleRegressor if shuffled else PanPrivateRegressor
        return kind(features=["a", "b"], intercept=False, method="ac-sa", **({"batch_size": 3} | options))
    units = loss in ("units", "search", "poisson")
    features: Any = {"a": (-1, 1), "b": (-1, 1)} if units else ["a", "b"]
    options = {"batch_size": 3} | options | ({"loss": loss} if loss in ("softmax", "squared", "poisson") else {})
    options |= {"target": (0, 9)} if loss == "poisson" else {}
    model = KINDS[loss][shuffled](features=features, intercept=units, **options)
    assert method_of(model) == "newton"
    state = model.state_dict()
    if units:
        walk = steps_of(model)
        begun = replace(walk.state, units=UNITS * [[1.0], [-1.0 if loss == "search" else 1.0]])
        if loss == "poisson":
            begun = replace(begun, search=0 * begun.search, level=np.ones(1), point=np.array([0, 0, math.log(2), 1.0]))
        state["state"] = begun.numbers()
    elif loss in ("logistic", "softmax"):
        state["state"][1 if loss == "logistic" else 3] = FAR
    model.load_state_dict(state)
    return model


def vectors(model: Any, *records: Record) -> np.ndarray:
    X, y = (np.array(column) for column in zip(*records, strict=True))
    if curvature_of(model) is None:
        return gradients(spec_of(model), middle_of(model), X, y)
    found: np.ndarray = curvature_of(model).vectors(spec_of(model), middle_of(model), X, y)
    return found


def towards(model: Any, loss: str) -> np.ndarray:
    """The unit vector between the two records, which are about as far apart as the claim allows."""
    a, b = vectors(model, *PAIRS_OF_ALL[loss])
    apart = float(np.linalg.norm(a - b))
    sensitivity = (curvature_of(model) or loss_of(model)).sensitivity
    assert REACHED.get(loss, 0.97) * sensitivity < apart <= sensitivity * (1 + 1e-9)
    difference: np.ndarray = (a - b) / apart
    return difference


# --- the noise


def accepted(draws: np.ndarray, scale: float) -> np.ndarray:
    """For each column whether a two-sided chi-square test at 1e-8 accepts the scale."""
    total = np.sum((draws / scale) ** 2, axis=0)
    tail = np.minimum(chi2.cdf(total, len(draws)), chi2.sf(total, len(draws)))
    return np.asarray(tail > 0.5e-8)


@both
@pytest.mark.parametrize("budget", [GaussianDP(1), ApproxDP(0.5, 1e-6)], ids=str)
def test_each_coordinate_of_a_pan_private_sum_has_its_noise(loss: str, budget: Budget) -> None:
    model = estimator(loss, budget=budget, seed=3)
    mu = (budget if isinstance(budget, GaussianDP) else GaussianDP.from_approx(budget)).mu
    scale = curvature_of(model).sensitivity / mu
    draws = np.array([noise_of(model).noise(words_of(model)) for _ in range(1500)]) / noise_of(model).cells
    assert draws.shape[1] == curvature_of(model).size
    assert accepted(draws, scale * (1 + 1e-4)).all()
    for wrong in (0.5, 1 / 1.2, 1.2):
        assert not accepted(draws * wrong, scale).any()
    correlations = np.corrcoef(draws.T) - np.eye(draws.shape[1])
    assert np.max(np.abs(correlations)) < 6 / math.sqrt(len(draws))


@averaged
def test_a_released_sum_has_both_noises(loss: str) -> None:
    """Through `learn_encoded` and the state: the first batch's mean is in it, so the sum of three records is too."""
    model = estimator(loss, budget="mu=1", seed=5)
    start, scale = model.state_dict(), math.sqrt(2) * curvature_of(model).sensitivity
    rows = vectors(model, *zip(OTHERS[0].tolist(), OTHERS[1].tolist(), strict=True), PAIRS[loss][0])
    X, y = np.vstack([OTHERS[0], PAIRS[loss][0][0]]), np.append(OTHERS[1], PAIRS[loss][0][1])
    released = []
    for _ in range(400):
        give_words(model, SeededEntropy(len(released)))
        model.load_state_dict(start)
        model.learn_encoded(X, y)
        model.close_batch()
        released.append(sum_in(model))
    draws = np.array(released) - rows.sum(axis=0)
    assert accepted(draws, scale).all()
    assert not accepted(draws * 0.5, scale).any()
    assert not accepted(draws * math.sqrt(0.5), scale).any()  # one noise only


def sum_in(model: Any) -> np.ndarray:
    """The released sum of the first batch, from a state after it."""
    curvature = curvature_of(model)
    d = curvature.parameters
    kept = averages(steps_of(model))
    found = np.append(kept.gradient, kept.curvature) * 3
    sigma = 4.0 if type(loss_of(model)) is Squared else 1.0
    found[d:] *= curvature.factor * sigma / curvature.bend
    return np.asarray(found)


@both
def test_each_coordinate_of_a_shuffled_sum_has_its_noise(loss: str) -> None:
    """The same records through `_add` and `_close`: they overflow, or are cut to the range of their columns."""
    model = estimator(loss, True, batch_size=40, budget=ApproxDP(2, 1e-3), seed=7)
    params = params_of(model)
    X, y = np.full((40, 2), 1e200), np.zeros(40)
    draws = []
    for _ in range(1000):
        model.learner._add(X, y)
        draws.append(model.learner._close(40))
        model.learner.discard()
    least = GaussianDP.from_approx(ApproxDP(2, 1e-3)).mu
    scale = math.sqrt(params.noise_variance / params.d)
    assert curvature_of(model).sensitivity / least <= scale <= 1.03 * curvature_of(model).sensitivity / least
    found = np.array(draws) - np.mean(draws, axis=0)
    rounding = 0.25 * params.cell**2 * 40 if params.g % 2 else 0.0
    assert accepted(found, math.sqrt(scale**2 + rounding)).all()
    assert not accepted(found * 0.5, scale).any()


# --- audits


@every
@pytest.mark.parametrize(("budget", "share"), [(GaussianDP(1), 0.9), (ApproxDP(1, 0.05), 0.83)], ids=str)
def test_either_noise_keeps_the_claim_and_half_of_it_does_not(loss: str, budget: Budget, share: float) -> None:
    """A pan-private sum with only one of its noises, through the compiled loops, for each of two extreme records."""
    model = estimator(loss, budget=budget)
    direction, size = towards(model, loss), len(open_sum(model))

    def score(record: Record, scale: float, seed: int) -> np.ndarray:
        total, noise = np.zeros(size, dtype=np.int64), np.empty(size * TRIALS, dtype=np.int64)
        rows, targets = np.vstack([OTHERS[0], record[0]]), np.append(OTHERS[1], record[1])
        model.learner.accumulate(model.learner.spec, middle_of(model), rows, targets, noise_of(model).cells, total)
        assert samplers.normals(SeededEntropy(seed).draw(size * TRIALS + TRIALS), scale, noise)
        return np.asarray((noise.reshape(-1, size) + total) @ direction)

    def found(scale: float, seed: int) -> float:
        return lower_bound(budget, *(score(record, scale, seed + i) for i, record in enumerate(PAIRS_OF_ALL[loss])))

    claim = amount(budget)
    whole, half = found(noise_of(model).scale, 10), found(noise_of(model).scale / 2, 20)
    print(f"{loss}, {budget}: found {whole:.3f}, halved {half:.3f}")
    assert share * REACHED.get(loss, 1.0) * claim <= whole <= claim
    assert half > claim


@pytest.mark.campaign
@pytest.mark.parametrize("loss", some(["huber", "logistic"], 1))
def test_an_intruder_who_also_sees_every_saved_state_learns_no_more_than_the_claim(loss: str) -> None:
    """1,200 batches through `learn_encoded`. An intruder before the record subtracts Z_a and the others from the state.

    One after the record sees the sum; without a break-in both noises protect the record.
    """
    model = estimator(loss, budget="mu=1", seed=1)
    direction, start = towards(model, loss), model.state_dict()
    before, after, saved = (np.empty((2, 1_200, len(direction))) for _ in range(3))
    for which, (x, y) in enumerate(PAIRS[loss]):
        for i in range(1_200):
            give_words(model, SeededEntropy(i + 1_200 * which))
            model.load_state_dict(start)
            model.learn_encoded(*OTHERS)
            before[which, i] = open_sum(model) / noise_of(model).cells
            model.learner._add(np.array([x]), np.array([y]))
            model.learner.open.taken += 1
            after[which, i] = open_sum(model) / noise_of(model).cells
            model.close_batch()
            saved[which, i] = sum_in(model)
    for seen, most in ((saved - before, 1.0), (after, 1.0), (saved, 2**-0.5)):
        found = mu_lower_bound(*(seen @ direction))
        assert 0.2 * most < found <= most


@every
def test_a_shuffled_batch_keeps_its_claim_and_half_its_noise_does_not(loss: str) -> None:
    """A quarter of the bits is half the noise. The attack is along the difference of the two vectors; seeded."""
    delta, people, trials = 0.02, 10, 20_000
    model = estimator(loss, True, budget=ApproxDP(1.0, delta), batch_size=people)
    params, direction = params_of(model), towards(model, loss)

    def sums(record: Record, bits: int, seed: int) -> np.ndarray:
        found = vectors(model, *[((0.3, -0.2), 1.0)] * (people - 1), record)
        places = np.tile(((found / params.bound + 1) * (params.g / 2)).ravel(), trials)
        rng, out, done = SeededEntropy(seed, 1 << 20), np.empty(len(places), dtype=np.int64), 0
        while done < len(places):
            more = noisy_counts(places[done:], bits, out[done:], rng.words)
            done += more
            rng.refill_for(more)
        return np.asarray(out.reshape(trials, people, -1).sum(axis=1) @ direction)

    for bits, low, high in ((params.b, 0.55, 1.0), (params.b // 4, 1.2, math.inf)):
        a, b = (sums(record, bits, seed) for seed, record in enumerate(PAIRS_OF_ALL[loss]))
        found = epsilon_lower_bound(a, b, delta)
        print(f"{loss}, {bits} bits: found {found:.3f}")
        assert low * REACHED.get(loss, 1.0) < found <= high


# --- memory


def contents_after(loss: str, record: Record, taken: int) -> dict[str, Any]:
    """What can be reached after `taken` of six records, of which `record` is the second; with the same noise."""
    model = estimator(loss, budget="mu=1", seed=3)
    X, y = np.vstack([OTHERS[0][:1], record[0], *[OTHERS[0]] * 2]), np.append(OTHERS[1][:1], record[1])
    model.learn_encoded(X[:taken], np.append(y, np.zeros(4))[:taken])
    return intruder.contents(model)


@one
def test_within_a_batch_only_the_sum_depends_on_its_records(loss: str) -> None:
    """Afterwards only what the release changes: the steps, the next query point, and the next batch's sum, at it."""
    released = (".learner.batch_steps.", ".learner.middle", ".learner.sum.total")
    for taken in (1, 2, 4):
        a, b = (contents_after(loss, record, taken) for record in PAIRS[loss])
        assert a.keys() == b.keys()
        differing = {path for path in a if a[path] != b[path]}
        if taken < 3:
            assert differing == ({".learner.sum.total"} if taken == 2 else set())
        else:
            assert ".learner.middle" in differing
            assert all(path.startswith(released) for path in differing)
