"""Privacy audits: the lower bound of an attack stays below the claim, and exceeds it with half the noise.

Each bound is wrong with probability at most 1e-6 (Clopper-Pearson), and the seeds are fixed. The audits
detect a halved scale always; those of the campaign, one that is 10 % too small if the required share is at least 0.9.
"""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from streamdp import (
    ApproxDP,
    Gaussian,
    GaussianDP,
    Huber,
    Laplace,
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    LDPSGDRegressor,
    PrivUnit,
    PureDP,
    Quantile,
)
from streamdp.optim.arrays import Arrays
from streamdp.optim.local_learning import learn
from streamdp.privacy import samplers
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import Budget, amount, with_amount
from streamdp.privacy.mechanisms import Mechanism
from streamdp.scaling.unit_table import TOTAL
from tests.support.audit import epsilon_lower_bound, lower_bound, mu_lower_bound
from tests.support.sizes import some
from tests.support.states import loss_of, mechanism_of, path_of, report_arrays, units_of

TRIALS, CAMPAIGN_TRIALS = 40_000, 1_000_000


def score(kind: type[Mechanism], ga: np.ndarray, gb: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A monotone function of the likelihood ratio of a against b, for outputs (n, d) of the mechanism."""
    if kind is Laplace:
        return lambda v: np.abs(v - gb).sum(axis=1) - np.abs(v - ga).sum(axis=1)
    return lambda v: v @ ((ga - gb) / np.linalg.norm(ga - gb))


# --- the attack itself


def test_the_attack_finds_randomized_response() -> None:
    """The bound on a mechanism of known epsilon is below it, and within 3 % of it at 10^6 trials."""
    rng = np.random.default_rng(1)
    truth = np.log(3)
    a, b = rng.random(CAMPAIGN_TRIALS) < 0.75, rng.random(CAMPAIGN_TRIALS) < 0.25
    found = epsilon_lower_bound(a, b)
    assert 0.97 * truth < found <= truth
    assert epsilon_lower_bound(b, a) == pytest.approx(found, abs=0.02)  # either may be the numerator


def test_the_attack_on_a_rare_event_takes_delta_off() -> None:
    """An output that names its input with probability 0.01 has no epsilon, but none is needed at delta = 0.011."""
    rng = np.random.default_rng(2)
    a, b = rng.random(CAMPAIGN_TRIALS) < 0.01, np.zeros(CAMPAIGN_TRIALS)
    assert epsilon_lower_bound(a, b) > 6
    assert epsilon_lower_bound(a, b, delta=0.011) == 0.0


def test_the_attack_finds_nothing_where_nothing_is() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, CAMPAIGN_TRIALS))
    assert epsilon_lower_bound(a, b) == pytest.approx(0.0, abs=0.02)
    assert mu_lower_bound(a, b) == pytest.approx(0.0, abs=0.01)


def test_the_attack_finds_mu() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, CAMPAIGN_TRIALS))
    assert 0.985 < mu_lower_bound(a + 1, b) <= 1.0
    assert 0.985 < mu_lower_bound(-a, b + 1) <= 1.0


# --- mechanisms, at the two inputs that are hardest to hide

DIAGONAL, AXIS = "diagonal", "axis"
MECHANISMS = [
    # kind, budget, d, direction of the two gradients, share of the claim the attack must reach
    (Laplace, PureDP(1), 1, AXIS, 0.95),
    (Laplace, PureDP(1), 3, DIAGONAL, 0.95),
    (Laplace, PureDP(3), 2, DIAGONAL, 0.95),
    (Gaussian, GaussianDP(1), 3, AXIS, 0.98),
    (Gaussian, GaussianDP(0.3), 2, DIAGONAL, 0.9),
    (Gaussian, ApproxDP(1, 0.05), 3, AXIS, 0.9),
    (Gaussian, ApproxDP(1, 1e-5), 3, AXIS, 0.15),  # few events of mass 1e-4 are seen
    (PrivUnit, PureDP(1), 1, AXIS, 0.98),
    (PrivUnit, PureDP(1), 2, AXIS, 0.97),
    (PrivUnit, PureDP(1), 3, DIAGONAL, 0.95),
    (PrivUnit, PureDP(3), 3, AXIS, 0.95),
]


def inputs(mechanism: Mechanism, d: int, direction: str) -> tuple[np.ndarray, np.ndarray]:
    unit = np.eye(d)[0] if direction == AXIS else np.full(d, d**-0.5)
    half = mechanism.sensitivity / 2
    return half * unit, -half * unit


def outputs(mechanism: Mechanism, g: np.ndarray, seed: int) -> np.ndarray:
    return mechanism.randomize(np.tile(g, (150_000, 1)), SeededEntropy(seed, 1 << 16))


def audit(claimed: Mechanism, drawn: Mechanism, d: int, direction: str, seed: int) -> float:
    """The lower bound on the amount of the claim, with outputs of `drawn` on the worst inputs of the claim."""
    ga, gb = inputs(claimed, d, direction)
    score_of = score(type(claimed), ga, gb)
    return lower_bound(claimed.budget, score_of(outputs(drawn, ga, seed)), score_of(outputs(drawn, gb, seed + 1)))


@pytest.mark.parametrize(("kind", "budget", "d", "direction", "share"), MECHANISMS, ids=str)
def test_mechanism_keeps_its_claim_and_half_its_noise_does_not(
    kind: type[Mechanism], budget: Budget, d: int, direction: str, share: float
) -> None:
    claimed = kind(budget, 1.5, 2.4)
    if kind is PrivUnit:  # the direction is all it hides, so worst inputs are on the sphere: S = 2 C0
        claimed = kind(budget, 1.5)
        halved: Mechanism = kind(with_amount(budget, 2 * amount(budget)), 1.5)
    else:  # half the sensitivity is half the scale
        halved = kind(budget, 1.5, 1.2)
        assert halved.rows(d)[0, samplers.SCALE] == pytest.approx(claimed.rows(d)[0, samplers.SCALE] / 2, rel=1e-5)
    claim = amount(budget)
    found = audit(claimed, claimed, d, direction, seed=10)
    broken = audit(claimed, halved, d, direction, seed=20)
    print(f"{kind.__name__} d={d} claim {budget}: found {found:.3f}, halved {broken:.3f}")
    assert (share - 0.1) * claim <= found <= claim  # the shares are those of a million outputs
    assert broken > claim


@pytest.mark.parametrize("norms", [(1.0, 0.0), (0.5, -0.5), (1.0, 0.5), (0.0, 0.5)])
def test_privunit_protects_short_vectors_too(norms: tuple[float, float]) -> None:
    """Shorter inputs get a random sign; the output stays within epsilon for all lengths."""
    mechanism = PrivUnit(PureDP(1))
    draws = [outputs(mechanism, np.array([length, 0.0, 0.0]), 30 + i)[:, 0] for i, length in enumerate(norms)]
    assert epsilon_lower_bound(*draws) <= 1


# --- estimators: one step of the compiled loop that `learn_one` and `learn_encoded` run


def last_steps(
    start: Arrays,
    mechanism: int,
    n: int,
    X: np.ndarray,
    y: np.ndarray,
    calibration: np.ndarray,
    words: np.ndarray,
    out: np.ndarray,
) -> int:
    """Learn the stream from `start` once for each row of `out`; write how theta moved at the last record."""
    arrays, seen = deepcopy(start), np.array([n])
    state, progress, last = arrays.state, arrays.units.progress, len(X) - 1
    before, final = (calibration, calibration) if len(calibration) == 1 else (calibration[:last], calibration[last:])
    first, mine = (X[:last], y[:last], before), (X[last:], y[last:], final)
    for trial, moved in enumerate(out):
        state[:], progress[:] = start.state, start.units.progress
        if last and learn(arrays, mechanism, seen, *first, words) < last:
            return trial
        moved[:] = state[0]
        if not learn(arrays, mechanism, seen, *mine, words):
            return trial
        moved -= state[0]
    return len(out)


def last_size(model: LDPSGDRegressor, n: int, rows: np.ndarray) -> float:
    """The size of the step at the last of n records, by the formula of `steps`."""
    information = np.broadcast_to(rows[:, samplers.INFORMATION], n)
    d = path_of(model).shape[1]
    factor, alpha, offset = model.learner.steps.numbers(d**0.5, loss_of(model).bound, d)
    total = units_of(model).progress[TOTAL] + information.sum()
    return float(factor * information[-1] * (total + offset) ** -alpha)


def moves(model: LDPSGDRegressor, X: np.ndarray, y: np.ndarray, rows: np.ndarray, seed: int, trials: int) -> np.ndarray:
    """(trials, d) noisy gradients of the last record: moves of theta over the step size."""
    n, d = len(X), path_of(model).shape[1]
    out = np.empty((trials, d))
    rng, left = SeededEntropy(seed, 1 << 16), out
    while True:
        done = last_steps(report_arrays(model), model.learner.default.code, model.n_seen, X, y, rows, rng.words, left)
        if done == len(left):
            break
        left = left[done:]
        rng.refill()
    return out / last_size(model, n, rows)


Record = tuple[list[float], float]


class Case:
    """An estimator with two records whose gradients lie as far apart as the loss allows."""

    def __init__(
        self,
        make: Callable[..., LDPSGDRegressor],
        a: Record,
        b: Record,
        *,
        theta: list[float] | None = None,
        share: float = 0.95,
        **options: object,
    ) -> None:
        self.make, self.a, self.b, self.theta, self.share, self.options = make, a, b, theta, share, options

    def model(self, **more: object) -> LDPSGDRegressor:
        features = [f"x{j}" for j in range(len(self.a[0]))]
        model = self.make(features=features, intercept=False, **{**self.options, **more})  # type: ignore[arg-type]
        if self.theta is not None:
            state = model.state_dict()
            state["state"][:, : len(self.theta)] = self.theta
            model.load_state_dict(state)
        return model

    def __str__(self) -> str:
        return "-".join([self.make.__name__, *(str(getattr(v, "name", v)) for v in self.options.values())])


FAR = 1e6
X1 = [1.0, 1.0]  # norm sqrt(2), where ||x|| w is largest
# The logistic slope is 1 for both records if theta is large across them.
ACROSS, NEAR_A, NEAR_B = [0.0, FAR], ([1.41414, 0.01], 0.0), ([-1.41414, 0.01], 0.0)
DIAG = [-FAR, FAR]
NEAR_DIAG = [([1.0, 1.01], 0.0), ([-1.01, -1.0], 0.0)]

CASES = [
    Case(LDPSGDRegressor, (X1, FAR), (X1, -FAR), budget=PureDP(1), mechanism="privunit"),
    Case(LDPASGDRegressor, (X1, FAR), ([-1.0, -1.0], FAR), budget=PureDP(2), mechanism="auto", loss=Huber(c=1.0)),
    # S is spread over two of three coordinates (the scales do not differ): at most sqrt(2/3) of the claim
    Case(LDPSGDRegressor, (X1, FAR), (X1, -FAR), budget=PureDP(1), mechanism="laplace", share=0.77),
    Case(LDPSGDRegressor, (X1, FAR), (X1, -FAR), budget=GaussianDP(1), mechanism="gaussian", share=0.965),
    Case(LDPASGDRegressor, (X1, FAR), (X1, -FAR), budget=ApproxDP(1, 0.05), loss="squared", share=0.85),
    Case(
        LDPASGDRegressor, (X1, FAR), ([-1.0, -1.0], FAR), budget=PureDP(1), mechanism="laplace", loss=Quantile(tau=0.8)
    ),
    Case(LDPSGDClassifier, NEAR_A, NEAR_B, theta=ACROSS, budget=GaussianDP(1), share=0.98),
    Case(LDPASGDClassifier, *NEAR_DIAG, theta=DIAG, budget=PureDP(1), mechanism="laplace"),
    Case(LDPASGDClassifier, (X1, 0.0), (X1, 1.0), budget=PureDP(1), loss="hinge"),
    Case(  # class 0 is certain at a and class 1 at b, and the truth is the other one: p - e_y is opposite
        LDPSGDClassifier,
        ([1.01, 0.99], 1.0),
        ([0.99, 1.01], 0.0),
        theta=[FAR, -FAR, -FAR, FAR, 0.0, 0.0],
        budget=GaussianDP(1),
        classes=("a", "b", "c"),
        share=0.95,
    ),
]


def arrays(*records: Record) -> tuple[np.ndarray, np.ndarray]:
    return np.array([x for x, _ in records]), np.array([y for _, y in records])


def gradients(model: LDPSGDRegressor, *records: Record) -> list[np.ndarray]:
    return [loss_of(model).gradient(path_of(model)[0], np.array(x), y) for x, y in records]


def weakened(model: LDPSGDRegressor, budget: Budget) -> np.ndarray:
    """The calibration row with half the noise; for PrivUnit that of twice the epsilon."""
    mechanism = mechanism_of(model, budget)
    d = path_of(model).shape[1]
    if isinstance(mechanism, PrivUnit):
        return mechanism_of(model, with_amount(budget, 2 * amount(budget))).rows(d)
    rows = mechanism.rows(d).copy()
    rows[:, samplers.SCALE] /= 2
    return rows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_harness_is_learn_one(case: Case) -> None:
    """The audited loop gives the results of `learn_one` and `learn_encoded`, bit for bit, with the same words."""
    model = case.model()
    X, y = arrays(case.a)
    audited = moves(model, X, y, model.learner.default_rows, seed=5, trials=50)
    start = model.state_dict()
    one, many = case.model(seed=5), case.model(seed=5)
    label = one.labels[int(case.a[1])] if hasattr(one, "labels") else case.a[1]
    for trial in audited:
        for learner in (one, many):
            learner.load_state_dict(start)
        one.learn_one(dict(zip(one.features, case.a[0], strict=True)), label)  # type: ignore[arg-type]
        many.learn_encoded(X, y)
        step = last_size(model, 1, model.learner.default_rows)
        assert np.array_equal((start["state"][0] - one.state_dict()["state"][0]) / step, trial)
        assert np.array_equal(one.state_dict()["state"], many.state_dict()["state"])


def check(case: Case, trials: int) -> None:
    """The observer sees theta before and after the record, at the start that makes the two records most different."""
    model = case.model()
    budget = model.record_budget
    ga, gb = gradients(model, case.a, case.b)
    assert np.linalg.norm(ga - gb) > 0.97 * loss_of(model).sensitivity
    score_of = score(type(mechanism_of(model, budget)), ga, gb)

    def bound(rows: np.ndarray, seed: int) -> float:
        a, b = (
            score_of(moves(model, *arrays(record), rows, seed + i, trials)) for i, record in enumerate((case.a, case.b))
        )
        return lower_bound(budget, a, b)

    claim = amount(budget)
    found = bound(model.learner.default_rows, 40)
    broken = bound(weakened(model, budget), 50)
    print(f"{case} claim {budget}: found {found:.3f}, halved {broken:.3f}")
    assert (case.share if trials > TRIALS else case.share - 0.1) * claim <= found <= claim
    assert broken > claim


@pytest.mark.parametrize("case", some(CASES, *range(0, len(CASES), 2)), ids=str)
def test_learning_a_record_keeps_its_claim_and_half_its_noise_does_not(case: Case) -> None:
    check(case, TRIALS)


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES, ids=str)
def test_learning_a_record_keeps_its_claim_in_a_million_runs(case: Case) -> None:
    check(case, CAMPAIGN_TRIALS)


@pytest.mark.parametrize("budget", some([PureDP(8), GaussianDP(8)], 0), ids=str)
def test_a_record_keeps_its_own_budget_among_loose_ones(budget: Budget) -> None:
    """In one `learn_encoded` with amounts (8, 8, 1) the last record has 1 and not 8, or an average."""
    case = Case(LDPASGDRegressor, (X1, FAR), (X1, -FAR), budget=budget)
    model = case.model()
    ga, gb = gradients(model, case.a, case.b)
    score_of = score(type(mechanism_of(model, budget)), ga, gb)

    def bound(amounts: list[float], seed: int) -> float:
        rows = mechanism_of(model, budget).rows(3, np.array(amounts))
        a, b = (
            score_of(moves(model, *arrays(case.a, case.b, last), rows, seed + i, TRIALS))
            for i, last in enumerate((case.a, case.b))
        )
        return lower_bound(budget, a, b)

    assert 0.85 < bound([8.0, 8.0, 1.0], 60) <= 1
    assert bound([1.0, 1.0, 8.0], 70) > 2  # and the looser budget is used


@pytest.mark.parametrize(
    "case",
    some([Case(LDPSGDRegressor, (X1, FAR), (X1, -FAR), budget=budget) for budget in (PureDP(1), GaussianDP(1))], 0),
    ids=str,
)
def test_reports_of_the_local_half_keep_the_claim(case: Case) -> None:
    """What leaves a person's side, through the public path: `estimator.randomizer(x, y)`."""
    randomizer = case.model(seed=80).randomizer
    names = randomizer.features
    ga, gb = gradients(case.model(), case.a, case.b)
    a, b = (
        np.array([randomizer(dict(zip(names, x, strict=True)), y).gradient @ (ga - gb) for _ in range(6_000)])
        for x, y in (case.a, case.b)
    )
    assert 0.7 < lower_bound(randomizer.budget, a, b) <= 1


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES[:1] + CASES[3:4], ids=str)
def test_learn_one_itself_keeps_its_claim(case: Case) -> None:
    """10^6 calls of the public method on the operating system's entropy, without the harness."""
    model = case.model()
    start = model.state_dict()
    ga, gb = gradients(model, case.a, case.b)
    scores = []
    for x, y in (case.a, case.b):
        row = dict(zip(model.features, x, strict=True))  # type: ignore[arg-type]
        out = np.empty((CAMPAIGN_TRIALS, len(ga)))
        for i in range(CAMPAIGN_TRIALS):
            model.learner.seen[0] = 0
            arrays = report_arrays(model)
            arrays.state[:], arrays.units.progress[:] = start["state"], start["progress"]
            model.learn_one(row, y)
            out[i] = start["state"][0] - path_of(model)[0]
        scores.append(out @ (ga - gb))
    assert (
        0.95 * amount(model.record_budget) <= lower_bound(model.record_budget, *scores) <= amount(model.record_budget)
    )
