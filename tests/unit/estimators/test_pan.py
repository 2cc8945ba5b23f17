"""Pan-private estimators: Algorithm 6 written out, the noise, boundaries, what leaves memory, budgets, and audits."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from streamdp import (
    ApproxDP,
    Box,
    Gaussian,
    GaussianDP,
    Hinge,
    Huber,
    L2Ball,
    Ledger,
    PanPrivateClassifier,
    PanPrivateRegressor,
    PureDP,
    Quantile,
    RealSpace,
    Softmax,
    Squared,
)
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, StreamDPError
from streamdp.learners.batches import SPREAD
from streamdp.optim import loops as k
from streamdp.optim.ac_sa import Phase, plan
from streamdp.optim.planned import FIRST_EPOCH
from streamdp.privacy import samplers
from streamdp.privacy.entropy import FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget
from tests.support.audit import mu_lower_bound
from tests.support.proximal import prox
from tests.support.sizes import some
from tests.support.states import loss_of, middle_of, noise_of, open_sum, region_of, steps_of, words_of

NAMES = ["a", "b", "c"]
CLASSES = ("u", "v", "w", "x")


def stream(model: Any, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some x are longer than sqrt(2), so that weights matter."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    u = X @ [1.0, -2.0, 0.5]
    if isinstance(model, PanPrivateRegressor):
        return X, u + rng.normal(0, 0.3, n)
    edges = np.quantile(u, np.linspace(0, 1, len(model.labels) + 1)[1:-1])
    return X, np.digitize(u + rng.normal(0, 0.3, n), edges).astype(float)


def regressor(**options: Any) -> PanPrivateRegressor:
    return PanPrivateRegressor(**({"features": NAMES, "method": "ac-sa"} | options))


def classifier(**options: Any) -> PanPrivateClassifier:
    return PanPrivateClassifier(**({"features": NAMES, "method": "ac-sa"} | options))


MODELS: dict[str, Callable[..., Any]] = {
    "huber": lambda **o: regressor(**o),
    "huber box": lambda **o: regressor(**({"domain": Box(-1.0, 2.0)} | o)),
    "squared": lambda **o: regressor(**({"loss": "squared"} | o)),
    "squared clipped": lambda **o: regressor(**({"loss": Squared(clip=1.0), "smoothness": 2.0} | o)),
    "quantile": lambda **o: regressor(**({"loss": Quantile(tau=0.8)} | o)),
    "quantile mu": lambda **o: regressor(**({"loss": "quantile", "budget": "mu=0.5", "intercept": False} | o)),
    "logistic": lambda **o: classifier(**o),
    "logistic ball": lambda **o: classifier(**({"domain": L2Ball(0.5), "budget": GaussianDP(2)} | o)),
    "hinge": lambda **o: classifier(**({"loss": "hinge"} | o)),
    "classes": lambda **o: classifier(**({"classes": CLASSES} | o)),
}
PLANS: dict[str, dict[str, Any]] = {
    "default": {},
    "batches of 7": {"batch_size": 7},
    "of 1": {"batch_size": 1, "horizon": 100},
    "horizon": {"horizon": 700},
    "phases": {"strong_convexity": 0.15, "horizon": 5000},
    "phases in epochs": {"strong_convexity": 0.2, "batch_size": 20},
}
every = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
planned = pytest.mark.parametrize("options", PLANS.values(), ids=PLANS.keys())


# --- the algorithm


def gradient_of(model: Any, theta: np.ndarray, x: np.ndarray, y: float, beta: float) -> np.ndarray:
    """By the formulas of the loss; for a non-smooth one beta (theta - prox), the gradient of its Moreau envelope."""
    loss = loss_of(model)
    if isinstance(loss, Hinge | Quantile):
        return beta * (theta - prox(loss, theta, x, y, 1 / beta))
    return loss.gradient(theta, x, y)


def naive(model: Any, X: np.ndarray, y: np.ndarray, plans: list[list[Phase]]) -> tuple[np.ndarray, np.ndarray, int]:
    """Algorithm 6 without noise, with lists: theta and ag after the last whole batch, and the place of its end."""
    rows, loss = np.hstack([X, np.ones((len(X), 1))]) if model.intercept else X, loss_of(model)
    size = loss.size(rows.shape[1], len(model.labels) if isinstance(loss, Softmax) else 1)
    ag = region_of(model).project(loss.start(size))
    cells = 1 / Gaussian(model.record_budget, loss.bound, loss.sensitivity).rows(size)[0, samplers.GRID]
    theta, at = ag, 0
    for phase in [phase for phases in plans for phase in phases]:
        theta = ag
        for t in range(phase.steps):
            if at + phase.batch > len(X):
                return theta, ag, at
            alpha = 2 / (t + 2)
            md = alpha * theta + (1 - alpha) * ag
            total = np.zeros(size)
            for i in range(at, at + phase.batch):
                total += np.rint(gradient_of(model, md, rows[i], y[i], phase.beta) * cells)
            at += phase.batch
            theta = region_of(model).project(theta - total / cells / phase.batch * (t + 1) / phase.modulus)
            ag = alpha * theta + (1 - alpha) * ag
    raise AssertionError("more epochs are needed")


@every
@pytest.mark.parametrize("options", some(PLANS.values(), 0, 2), ids=PLANS.keys())
@pytest.mark.slow
def test_without_noise_the_state_is_that_of_algorithm_6(make: Callable[..., Any], options: dict[str, Any]) -> None:
    """Over batches, phases and epochs, up to rounding: a gradient near a cell's border may fall into the next one."""
    model = make(mechanism="none", **options)
    n = 120 if options.get("batch_size") == 1 or isinstance(loss_of(model), Softmax) else 800
    X, y = stream(model, n)
    walk = steps_of(model).sequence
    plans = [steps_of(model).plan_of(epoch) for epoch in range(3)]
    theta, ag, at = naive(model, X, y, plans)
    model.learn_encoded(X[:at], y[:at])
    assert model.at_boundary
    if walk.step:  # else a phase has just begun, where theta is ag
        assert walk.points[0] == pytest.approx(theta, rel=1e-6, abs=1e-7)
    assert walk.points[1] == pytest.approx(ag, rel=1e-6, abs=1e-7)
    assert np.array_equal(model.prediction.estimate(), walk.points[1])
    model.learn_encoded(X[at:], y[at:])
    assert not model.at_boundary or at == n
    assert np.array_equal(model.prediction.estimate(), walk.points[1])
    assert model.prediction.estimate() == pytest.approx(ag, rel=1e-6, abs=1e-7)


def test_the_plan_is_for_what_the_model_is() -> None:
    """The inputs of the plan: bound, smoothness, the largest distance of the optimum, both noises of a batch."""
    model = regressor(domain=Box(-1.0, 3.0), budget="mu=1")
    problem = steps_of(model).problem
    assert (problem.bound, problem.smoothness) == (Huber().bound, Huber().smoothness)
    assert problem.distance == pytest.approx(math.sqrt(4 * 9 + (3 - 1) ** 2))  # the scale from 0.1 to 3, at 1
    scale = Gaussian(GaussianDP(1), Huber().bound, Huber().sensitivity).rows(5)[0, samplers.SCALE]
    assert problem.variance(10) == pytest.approx((SPREAD * Huber().bound) ** 2 / 10 + 2 * 5 * scale**2 / 100)
    assert steps_of(classifier(domain=L2Ball(3.0))).problem.distance == 3.0
    assert steps_of(classifier(smoothness=0.1)).problem.smoothness == 0.1
    hinge = steps_of(classifier(loss="hinge")).problem
    assert math.isinf(hinge.smoothness)
    assert hinge.spread == hinge.bound
    assert classifier(horizon=50_000).phase.batch != classifier(horizon=500).phase.batch


def test_learning_goes_on_beyond_the_horizon_in_epochs_of_twice_the_length() -> None:
    model = regressor(horizon=100, batch_size=10, mechanism="none")
    X, y = stream(model, 700)
    steps = []
    for low in range(0, 700, 10):
        model.learn_encoded(X[low : low + 10], y[low : low + 10])
        steps.append((steps_of(model).epoch, steps_of(model).sequence.step))
    assert steps[8:11] == [(0, 9), (1, 0), (1, 1)]
    assert [steps.index((epoch, 0)) + 1 for epoch in (1, 2, 3)] == [10, 30, 70]
    assert model.n_seen == 700
    unknown = regressor(batch_size=FIRST_EPOCH)
    unknown.learn_encoded(*stream(unknown, 3 * FIRST_EPOCH))
    assert unknown.state_dict()["place"] == [2, 0, 0]


def test_epochs_of_a_strongly_convex_loss_begin_nearer() -> None:
    """Each phase starts at the distance that the bound of the last one gives."""
    model = classifier(strong_convexity=0.1, horizon=200_000)
    problem = steps_of(model).problem
    distance = problem.distance
    for epoch in range(3):
        expected = plan(problem, 200_000 * 2**epoch, None, distance)
        assert steps_of(model).plan_of(epoch) == expected
        distance = min(distance, math.sqrt(2 * expected[-1].excess / 0.1))
        assert distance < problem.distance / 2


# --- noise


@pytest.mark.parametrize("budget", [GaussianDP(1), GaussianDP(0.1), ApproxDP(1, 1e-6), ApproxDP(4, 1e-3)], ids=str)
@pytest.mark.parametrize("make", ["huber", "classes"])
def test_both_noises_have_the_scale_that_alone_suffices(make: str, budget: Budget) -> None:
    """Variance within 2 % of the analytic calibration; a chi-square test, two-sided at 1e-7, accepts the scale.

    It rejects scales that are 20 % off. Seeded.
    """
    model = MODELS[make](seed=11, budget=budget)
    d = len(open_sum(model))
    noises, rng = noise_of(model), words_of(model)
    draws = np.array([noises.noise(rng) for _ in range(120_000 // d)]) / noises.cells
    mu = (budget if isinstance(budget, GaussianDP) else GaussianDP.from_approx(budget)).mu
    scale = loss_of(model).sensitivity / mu
    assert np.mean(draws**2) == pytest.approx(scale**2, rel=0.02)
    assert abs(np.mean(draws)) < 6 * scale / math.sqrt(draws.size)
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 6 / math.sqrt(len(draws))
    assert abs(np.mean(draws[1:] * draws[:-1])) < 6 * scale**2 / math.sqrt(draws.size)
    fourth = np.mean(draws**4) / np.mean(draws**2) ** 2
    assert fourth == pytest.approx(3, abs=6 * math.sqrt(24 / draws.size))

    def accepted(expected: float) -> bool:
        total = float(np.sum((draws / expected) ** 2))
        return min(chi2.cdf(total, draws.size), chi2.sf(total, draws.size)) > 0.5e-7

    assert accepted(noises.scale / noises.cells)
    assert not accepted(scale * 1.2)
    assert not accepted(scale / 1.2)


def test_noise_is_drawn_at_the_beginning_and_at_the_end_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """G = (Z_a + sum + Z_b) / b in whole cells; each noise is drawn when needed and overwritten when added."""
    model = regressor(batch_size=3, seed=1)
    plain = regressor(batch_size=3, mechanism="none")
    drawn: list[np.ndarray] = []
    kept: list[np.ndarray] = []
    draw = noise_of(model).noise

    def noises(rng: Any) -> np.ndarray:
        noise = draw(rng)
        drawn.append(noise.copy())
        kept.append(noise)
        return noise

    gradients: list[np.ndarray] = []
    move = steps_of(model).sequence.move

    def moved(gradient: np.ndarray, modulus: float) -> None:
        gradients.append(gradient.copy())
        move(gradient, modulus)

    monkeypatch.setattr(noise_of(model), "noise", noises)
    monkeypatch.setattr(steps_of(model).sequence, "move", moved)
    X, y = stream(model, 3)
    for i in range(2):
        model.learn_encoded(X[i : i + 1], y[i : i + 1])
        plain.learn_encoded(X[i : i + 1], y[i : i + 1])
        assert len(drawn) == 1
    assert np.array_equal(open_sum(model), drawn[0] + open_sum(plain))
    seen = open_sum(plain).copy()
    plain.learn_encoded(X[2:], y[2:])
    last = loss_of(plain).gradient(np.array([0, 0, 0, 0, 1.0]), np.append(X[2], 1.0), y[2])
    model.learn_encoded(X[2:], y[2:])
    assert len(drawn) == 2
    sums = drawn[0] + drawn[1] + seen + np.rint(last * noise_of(model).cells)
    assert gradients[0] == pytest.approx(sums / noise_of(model).cells / 3, abs=2 / noise_of(model).cells)
    assert not any(noise.any() for noise in kept)


def test_no_generator_and_no_noise_is_kept() -> None:
    """Between batches and within one, nothing in memory tells the noise; words are overwritten."""
    model = regressor(batch_size=5)
    assert isinstance(words_of(model), FreshWords)
    assert set(vars(words_of(model))) == {"lock"}
    words = []
    draw = words_of(model).draw

    def drawn(count: int) -> np.ndarray:
        out = draw(count)
        words.append(out)
        return out

    words_of(model).draw = drawn  # type: ignore[method-assign]
    X, y = stream(model, 12)
    model.learn_encoded(X, y)
    assert len(words) == 5  # two whole batches, and the beginning of a third
    assert not any(w.any() for w in words)


def test_words_that_run_out_are_drawn_anew() -> None:
    """With too few words the size doubles, and nothing of the first attempt is left."""
    model = regressor(seed=1)
    sizes = []
    draw = words_of(model).draw

    def scarce(count: int) -> np.ndarray:
        sizes.append(count)
        return draw(2 if len(sizes) == 1 else count)

    words_of(model).draw = scarce
    noise = noise_of(model).noise(words_of(model))
    assert sizes == [74, 148]
    assert noise.all()
    rows = np.zeros(4, dtype=np.int64)
    words = np.random.default_rng(0).integers(2**63, size=3, dtype=np.uint64)
    assert not samplers.normals(words, 1e6, rows)


# --- compiled sums


@pytest.mark.parametrize("make", ["huber", "quantile", "logistic", "hinge", "squared clipped", "classes"])
def test_sums_of_gradients_are_exact_and_order_does_not_matter(make: str) -> None:
    model = MODELS[make](mechanism="none")
    X, y = stream(model, 500)
    X[0] = 1e200  # overflows: counts as no gradient
    learner, loss = model.learner, loss_of(model)
    theta = np.random.default_rng(1).normal(size=len(learner.total)) * 0.3 + (loss.name == "huber")

    def total(rows: np.ndarray) -> np.ndarray:
        out = np.zeros(len(theta), dtype=np.int64)
        learner.accumulate(learner.spec, theta, X[rows], y[rows], learner.sum.cells, out)
        return out

    everything = np.arange(500)
    both = total(everything)
    assert np.array_equal(both, total(everything[::-1].copy()))
    assert np.array_equal(both, total(everything[:123]) + total(everything[123:]))
    singles = np.array([total(everything[i : i + 1]) for i in everything])
    assert np.array_equal(both, singles.sum(axis=0))
    assert not singles[0].any()
    most = loss.bound * learner.sum.cells + math.sqrt(len(theta))
    assert np.linalg.norm(singles, axis=1).max() <= most


@pytest.mark.parametrize("loss", [Quantile(tau=0.3), Quantile(tau=0.9), Hinge()], ids=repr)
@pytest.mark.parametrize("beta", [0.01, 1.0, 1e4])
@pytest.mark.slow
def test_the_compiled_envelope_is_beta_times_the_way_to_the_prox(loss: Any, beta: float) -> None:
    """Random search, also near the kink; no gradient is longer than the bound, like that of the unconstrained prox."""
    rng = np.random.default_rng(4)
    spec = loss.spec()
    spec[k.ENVELOPE] = 1 / beta
    out = np.empty(4)
    for _ in range(400):
        x = rng.normal(size=3) * 10 ** rng.uniform(-3, 2)
        theta = rng.normal(size=3) * 10 ** rng.uniform(-2, 1)
        y = (
            float(rng.integers(2))
            if isinstance(loss, Hinge)
            else float(x @ theta + rng.normal() * 10 ** rng.uniform(-4, 1))
        )
        k.gradient(spec, theta, x[None], np.array([y]), 0, out)
        expected = beta * (theta - prox(loss, theta, x, y, 1 / beta))
        assert out[:3] == pytest.approx(expected, rel=1e-7, abs=1e-9 * beta)
        assert np.linalg.norm(out[:3]) <= loss.bound * (1 + 1e-12)


# --- boundaries


def test_no_phase_is_begun_before_the_one_at_hand_is_over() -> None:
    """Also if smaller batches follow, which would already fit."""
    model = classifier(mechanism="none")
    steps_of(model).plan = [Phase(10, 3, 0.5, 9.0, 1.0), Phase(4, 5, 0.5, 9.0, 1.0)]
    model.learner._begin_phase()
    for size, expected in ((17, 10), (29, 20), (33, 30), (34, 34), (37, 34), (1000, 50)):
        assert model.boundary_within(size) == expected
    model.learn_encoded(*stream(model, 23))
    for size, expected in ((6, 6), (7, 7), (10, 7), (11, 11), (1000, 27)):
        assert model.boundary_within(size) == expected


def test_before_features_are_known() -> None:
    model = PanPrivateRegressor()
    assert (model.at_boundary, model.to_boundary, model.boundary_within(7)) == (True, 0, 7)
    model.close_batch()
    for act in (model.state_dict, lambda: model.theta, lambda: model.phase):
        with pytest.raises(NotAvailableError):
            act()
    assert model.weights == {}
    assert model.predict_one({"a": 1.0}) == 0.0
    pickle.loads(pickle.dumps(model)).learn_encoded(np.zeros((1, 2)), np.zeros(1))


@pytest.mark.parametrize("taken", [1, 5, 9])
def test_closing_a_batch_is_a_shorter_step_with_all_the_noise(taken: int) -> None:
    """(Z_a + fewer gradients + Z_b) over the planned size; nothing happens at a boundary."""
    model = regressor(batch_size=10, mechanism="none")
    X, y = stream(model, taken)
    walk = steps_of(model).sequence
    model.close_batch()
    assert (walk.step, model.n_seen) == (0, 0)
    model.learn_encoded(X, y)
    start, total = walk.points[0].copy(), open_sum(model).copy()
    model.close_batch()
    moved = region_of(model).project(start - total / noise_of(model).cells / 10 / model.phase.modulus)
    assert walk.points[0] == pytest.approx(moved)
    assert (model.at_boundary, walk.step, model.n_seen) == (True, 1, taken)
    model.close_batch()
    assert walk.step == 1
    noisy = regressor(batch_size=10, seed=2)
    noisy.learn_encoded(X, y)
    draws: list[int] = []
    noise_of(noisy).noise = lambda rng: draws.append(1) or np.zeros(5, dtype=np.int64)  # type: ignore[method-assign,func-returns-value]
    noisy.close_batch()
    assert len(draws) == 1


# --- states


def test_equal_plans_are_equal_however_they_are_written() -> None:
    written = regressor(horizon=np.int64(100), batch_size=np.int32(10), domain=L2Ball(5), strong_convexity=0)
    regressor(horizon=100, batch_size=10, domain=L2Ball(5.0)).load_state_dict(written.state_dict())


# --- budgets and caps


def test_a_record_that_allows_less_is_refused_and_one_that_allows_more_spends_no_more() -> None:
    ledger = Ledger("eps=100,delta=0.01")
    model = regressor(ledger=ledger, batch_size=3, seed=1)
    x = {"a": 0.1, "b": 0.2, "c": 0.3}
    for budget, learned in (
        (ApproxDP(0.99, 1e-6), False),
        ("eps=1,delta=9e-7", False),
        (ApproxDP(5, 1e-7), False),
        (ApproxDP(1, 1e-6), True),
        ("eps=7,delta=1e-5", True),
        (None, True),
    ):
        seen = model.n_seen
        model.learn_one(x, 1.0, budget=budget, subject="ann")
        assert (model.n_seen - seen == 1) == learned
        model.close_batch()  # one record of ann in each
    assert (model.n_seen, model.n_refused, ledger.n_refused) == (3, 3, 0)
    spent = ledger.spent("ann")
    assert (spent.records, spent.epsilon, spent.delta) == (3, 3.0, pytest.approx(3e-6))
    assert model.guarantee.budgets == (ApproxDP(1, 1e-6),)
    for other in (PureDP(0.5), PureDP(9), GaussianDP(0.1), "eps=1"):
        with pytest.raises(BudgetError, match="expected eps=E,delta=D, the kind"):
            model.learn_one(x, 1.0, budget=other, subject="ann")
    assert (model.n_seen, model.n_refused, ledger.spent("ann").records) == (3, 3, 3)


# --- what it says, and settings


def test_the_statement_names_trust_budget_and_limits() -> None:
    model = regressor(ledger=Ledger("eps=3,delta=1e-5"), batch_size=5)
    assert "Nothing has been learned" in model.statement()
    model.learn_encoded(*stream(model, 7), subjects=range(7))
    said = " ".join(model.statement().split())
    for part in (
        "after 5 records learned",
        "2 further records are in an open batch or window, and nothing of them is released",
        "(epsilon, delta) = (1, ",
        "one break-in into the memory of this estimator at any moment",
        "together with everything that was ever saved or served",
        "the operator while a record passes through memory",
        "two break-ins within one batch are not covered",
        "after a crash the records of the unfinished batch are learned again",
        "theta is kept in L2Ball(radius=5.0)",
        "once the person's total would pass eps=3,delta=1e-05",
        "except for a probability of 1e-0",
    ):
        assert part in said, part
    assert "NOT PRIVATE" not in said


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"strong_convexity": 0.8}, ConfigError, "at most|the most that bounded gradients allow"),
        *[({"domain": bad}, ConfigError, "domain") for bad in (RealSpace(), Box(0, math.inf), L2Ball(1e200))],
        ({"domain": Box(-1e200, 1e200)}, ConfigError, "domain"),
        ({"mechanism": "laplace"}, ConfigError, "mechanism"),
        ({"mechanism": "privunit"}, ConfigError, "mechanism"),
        ({"budget": PureDP(1.0)}, BudgetError, "Gaussian serves"),
        ({"budget": "mu=1e-9"}, BudgetError, "expected an epsilon or mu from"),
        ({"budget": "mu=1e9", "features": None}, BudgetError, "expected an epsilon or mu from"),
    ],
    ids=str,
)
def test_settings_that_are_wrong_are_refused_at_once(
    options: dict[str, Any], error: type[StreamDPError], match: str
) -> None:
    with pytest.raises(error, match=match):
        regressor(**options)


def test_settings_at_their_limits_work() -> None:
    for options in (
        {"loss": Squared(clip=1.0), "smoothness": 2.0},
        {"loss": Quantile(tau=0.5, clip=0.1)},
        {"horizon": 1},
        {"horizon": 10**18},
        {"batch_size": 10**18},
        {"horizon": 3, "batch_size": 10},
        {"strong_convexity": 0.79},
        {"domain": L2Ball(1e60)},
        {"domain": L2Ball(1e-60)},
        {"domain": Box(1.0, 1.5)},
        {"budget": GaussianDP(2.0**-20)},
        {"budget": GaussianDP(2.0**20)},
        {"budget": ApproxDP(2.0**-20, 1e-12)},
    ):
        model = regressor(seed=1, **options)
        model.learn_encoded(*stream(model, 40))
        model.close_batch()
        assert np.isfinite(model.theta).all()
        other = regressor(seed=1, **options)
        other.load_state_dict(model.state_dict())
        assert np.array_equal(other.theta, model.theta)


def test_theta_stays_in_the_domain() -> None:
    for domain in (L2Ball(0.7), Box(-0.2, 0.4), Box(0.5, 0.6)):
        model = classifier(domain=domain, batch_size=1, budget="mu=0.1")
        for _ in range(50):
            model.learn_encoded(*stream(model, 1))
            for theta in steps_of(model).sequence.points:
                assert theta == pytest.approx(domain.project(theta), abs=1e-12)
    huber = regressor(domain=L2Ball(0.7), batch_size=1, budget="mu=0.1")
    for _ in range(50):
        huber.learn_encoded(*stream(huber, 1))
        assert 0.1 <= huber.theta[-1] <= 0.7
        assert np.linalg.norm(huber.theta[:-1]) <= 0.7 + 1e-12


# --- audits: what an adversary with one sight of memory, and all that is served, can tell

TRIALS = 1_000_000
FAR = 1e6
RECORDS = (np.array([[1.0, 1.0]]), np.array([FAR])), (np.array([[1.0, 1.0]]), np.array([-FAR]))
"""Two records with gradients as far apart as the loss allows."""


def watched(**options: Any) -> PanPrivateRegressor:
    """In a ball so large that no step reaches its border."""
    return PanPrivateRegressor(
        features=["a", "b"], intercept=False, domain=L2Ball(1e4), batch_size=3, method="ac-sa", **options
    )


def towards(model: PanPrivateRegressor) -> np.ndarray:
    ga, gb = (loss_of(model).gradient(middle_of(model), X[0], y[0]) for X, y in RECORDS)
    assert np.linalg.norm(ga - gb) > 0.999 * loss_of(model).sensitivity
    return (ga - gb) / np.linalg.norm(ga - gb)


def test_records_of_one_person_in_one_batch_add_up_faster_than_sums_of_spends() -> None:
    """The caveat of the statement: two records of mu = 1 in one batch are mu = 2, but a ledger counts sqrt(2)."""
    model = watched(budget="mu=1")
    learner = model.learner
    direction, d = towards(model), len(open_sum(model))
    scores = []
    for seed, (X, y) in enumerate(RECORDS):
        total, noise = np.zeros(d, dtype=np.int64), np.empty(d * TRIALS, dtype=np.int64)
        twice, targets = np.repeat(X, 2, axis=0), np.repeat(y, 2)
        learner.accumulate(learner.spec, learner.middle, twice, targets, learner.sum.cells, total)
        assert samplers.normals(SeededEntropy(30 + seed).draw(d * TRIALS + TRIALS), learner.sum.scale, noise)
        scores.append((noise.reshape(-1, d) + total) @ direction)
    assert 1.9 < mu_lower_bound(*scores) <= 2.0
    assert "spend k mu, not sqrt(k) mu" in model.statement()
