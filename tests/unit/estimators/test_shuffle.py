"""The shuffle-private estimators: the paper's algorithms, three parties or one process, and absent people."""

import math
from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, Hinge, L2Ball, Logistic, PureDP, ShuffleClassifier
from streamdp.aggregation.shuffled_sum import Analyzer, LocalRandomizer, Shuffled, Shuffler
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import BudgetError, ConfigError, NotAtBoundaryError, SchemaError
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.optim.ac_sa import Phase
from studies import cohort
from studies.cohort import learn_cohort
from tests.support.proximal import prox
from tests.support.states import loss_of, params_of, region_of, steps_of
from tests.support.user_model import mean_gradient

NAMES = ["a", "b"]
WEIGHTS = np.array([2.0, -3.0])


def data(n: int, seed: int = 0, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, columns))
    return X, (rng.random(n) < 1 / (1 + np.exp(-X @ WEIGHTS[:columns]))).astype(float)


def model(**options: Any) -> ShuffleClassifier:
    return ShuffleClassifier(**({"features": NAMES, "method": "ac-sa"} | options))


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge grid, no noise and negligible rounding: the sum is exact."""

    def exact(self: LocalRandomizer, vectors: np.ndarray) -> np.ndarray:
        places = (np.asarray(vectors) / self.params.bound + 1) * (self.params.g / 2)
        return np.rint(places).astype(np.int64) + self.params.b // 2

    monkeypatch.setattr(LocalRandomizer, "counts", exact)
    calibrated = VectorSum.calibrated.__func__  # type: ignore[attr-defined]

    def fine(cls: type[VectorSum], *arguments: Any) -> VectorSum:
        params: VectorSum = calibrated(cls, *arguments)
        object.__setattr__(params, "g", 2**40)
        object.__setattr__(params, "b", 2**20)
        return params

    monkeypatch.setattr(VectorSum, "calibrated", classmethod(fine))


def project(theta: np.ndarray, radius: float) -> np.ndarray:
    return theta * min(1.0, radius / max(float(np.linalg.norm(theta)), 1e-300))


# --- the algorithms, written out


def test_ac_sa_is_algorithm_4(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    X, y = data(400)
    learner = model(horizon=400, batch_size=50, domain=L2Ball(2.0))
    learner.learn_encoded(X[:350], y[:350])
    theta = ag = np.zeros(3)
    for t in range(7):
        alpha = 2 / (t + 2)
        md = alpha * theta + (1 - alpha) * ag
        rows = slice(50 * t, 50 * t + 50)
        theta = project(theta - mean_gradient(md, X[rows], y[rows]) * (t + 1) / learner.phase.modulus, 2.0)
        ag = alpha * theta + (1 - alpha) * ag
    np.testing.assert_allclose(learner.theta, ag, atol=1e-9)
    assert np.linalg.norm(ag) > 0.01


def test_sgd_is_algorithm_3_with_its_sign_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    X, y = data(400)
    learner = model(horizon=400, batch_size=50, method="sgd", domain=L2Ball(2.0))
    learner.learn_encoded(X[:350], y[:350])
    theta, seen = np.zeros(3), []
    for t in range(7):
        seen.append(theta)
        rows = slice(50 * t, 50 * t + 50)
        theta = project(theta - mean_gradient(theta, X[rows], y[rows]) / learner.phase.modulus, 2.0)
    np.testing.assert_allclose(learner.theta, np.mean(seen, axis=0), atol=1e-9)


def test_a_cohort_is_learned_by_algorithm_5(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    X, y = data(200)
    learner = model(domain=L2Ball(2.0), method="sgd")
    params = learner.learner.cohort_sum(200, 20)
    learn_cohort(learner, X, y, np.random.default_rng(0), rounds=20)
    eta = 2.0 / (math.sqrt(loss_of(learner).bound ** 2 + params.variance / 200**2) * math.sqrt(20))
    theta, seen = np.zeros(3), []
    for _ in range(20):
        seen.append(theta)
        theta = project(theta - eta * mean_gradient(theta, X, y), 2.0)
    np.testing.assert_allclose(learner.theta, np.mean(seen, axis=0), atol=1e-9)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=["smooth", "kink"])
def test_a_cohort_is_learned_by_ac_sa_over_all_people(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, by the recursion in the text of `ac_sa`; the hinge by the gradient of its envelope."""
    silent(monkeypatch)
    X, y = data(200)
    learner = model(loss=loss, domain=L2Ball(2.0))
    noise, d = learner.learner.cohort_sum(200, 12).variance / 200**2, 2.0
    beta = (
        region_of(learner).beta(learner.learner.p)
        if isinstance(loss, Logistic)
        else loss_of(learner).bound / d * math.sqrt(12 * 13) / 2
    )
    modulus = 2 * beta + math.sqrt(noise) / d * math.sqrt(12 * 13 * 25 / 6)
    learn_cohort(learner, X, y, np.random.default_rng(0), rounds=12)
    theta = ag = np.zeros(3)
    rows = np.column_stack([X, np.ones(200)])
    for t in range(12):
        alpha = 2 / (t + 2)
        md = alpha * theta + (1 - alpha) * ag
        at = [
            md if isinstance(loss, Logistic) else prox(loss_of(learner), md, x, k, 1 / beta)
            for x, k in zip(rows, y, strict=True)
        ]
        mean = np.mean(
            [
                loss_of(learner).gradient(p, x, k) if isinstance(loss, Logistic) else beta * (md - p)
                for p, x, k in zip(at, rows, y, strict=True)
            ],
            axis=0,
        )
        theta = project(theta - mean * (t + 1) / modulus, 2.0)
        ag = alpha * theta + (1 - alpha) * ag
    np.testing.assert_allclose(learner.theta, ag, atol=1e-6)


def test_the_planned_rounds_of_a_cohort_are_the_fewest_that_are_near_the_least_bound() -> None:
    def planned(people: int, rounds: int | None = None, **options: Any) -> Phase:
        counts = {"people": people} if rounds is None else {"people": people, "rounds": rounds}
        return model(domain=L2Ball(2.0), cohort=counts, **options).phase

    run = planned(2000)
    bounds = [planned(2000, t).excess for t in (run.steps // 2, run.steps, 4 * run.steps)]
    assert run.excess == bounds[1]
    assert bounds[0] > 1.1 * min(bounds) >= bounds[1] * 0.999
    assert planned(100_000).steps > run.steps
    slow = planned(2000, method="sgd")
    assert slow.steps > 5 * run.steps
    assert slow.excess > run.excess


def test_a_cohort_of_a_strongly_convex_loss_is_learned_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(5000)
    sizes = []
    monkeypatch.setattr(cohort, "_descend", lambda learner, X, y, rng, run: sizes.append(len(X)))
    learn_cohort(model(strong_convexity=0.05), X, y, np.random.default_rng(0), rounds=5)
    assert sizes == [1250] * 4  # ceil(log2 log2 5000)


# --- three parties and one process


def test_three_parties_do_what_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, because sampled bits differ; through packed, permuted bits."""
    X, y = data(300)
    one = model(batch_size=100, horizon=300)
    three = model(batch_size=100, horizon=300)
    for params in (params_of(one), params_of(three)):
        assert params.users == 100
    rows = [slice(k, k + 100) for k in (0, 100, 200)]
    errors = []
    for part in rows:
        randomizer = three.randomizer
        shuffler = Shuffler(randomizer.params)
        for i in range(part.start, part.stop, 2):
            shuffler.collect(randomizer.messages(dict(zip(NAMES, X[i], strict=True)), y[i]))
        shuffler.collect(randomizer.messages_of(X[part][1::2], y[part][1::2]))
        exact = mean_gradient(randomizer.point, X[part], y[part])
        shuffled = shuffler.forward()
        estimate = Analyzer(randomizer.params).sum(shuffled) / 100
        errors.append((estimate - exact) / math.sqrt(randomizer.params.variance / 3 / 100**2))
        three.absorb(shuffled)
        one.learn_encoded(X[part], y[part])
    assert np.max(np.abs(errors)) < 5.5  # standard errors, nine of them: false alarm 4e-7
    assert np.std(errors) > 0.3
    assert (three.n_seen, three.batch) == (one.n_seen, one.batch)
    assert str(three.guarantee) == str(one.guarantee) == "eps=1,delta=1e-06"


@pytest.mark.parametrize("loss", [Hinge(), "logistic"])
def test_devices_take_the_envelopes_gradient_where_the_learner_does(loss: Any) -> None:
    learner = model(loss=loss, batch_size=10, horizon=1000)
    randomizer = learner.randomizer
    x, y = np.array([0.5, -0.5, 1.0]), 1.0
    beta = learner.phase.beta
    from streamdp.optim.user_averages import gradients

    got = gradients(randomizer.spec, randomizer.point, x[None, :2], np.array([y]))[0]
    if isinstance(loss, Hinge):
        expected = beta * (randomizer.point - prox(loss, randomizer.point, x, y, 1 / beta))
    else:
        expected = Logistic().gradient(randomizer.point, x, y)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_absent_people_cost_privacy_and_the_guarantee_says_so() -> None:
    X, y = data(100)
    learner = model(batch_size=100)
    randomizer = learner.randomizer
    shuffler = Shuffler(randomizer.params, minimum=50)
    shuffler.collect(randomizer.messages_of(X[:60], y[:60]))
    learner.absorb(shuffler.forward())
    spent = learner.guarantee.budgets[0]
    assert isinstance(spent, ApproxDP)
    assert spent == randomizer.params.guarantee_for(60)
    assert 1.2 < spent.epsilon < 1.5
    assert "1.3" in learner.statement() or "1.2" in learner.statement() or "1.4" in learner.statement()
    assert learner.n_seen == 60


def test_a_batch_closed_early_gets_the_noise_of_those_who_are_absent() -> None:
    """So the spend stays, and the noise of the step has the variance of a full batch."""
    X, y = data(3)
    moves = []
    for seed in range(300):
        learner = model(batch_size=1000, horizon=10_000, seed=seed)
        learner.learn_encoded(X, y)
        learner.close_batch()
        assert learner.at_boundary
        moves.append(steps_of(learner).sequence.points[0])
    params = params_of(learner)
    expected = params.noise_variance / 3 / (1000 * learner.phase.modulus) ** 2
    assert np.var(moves, axis=0) == pytest.approx(np.full(3, expected), rel=0.35)
    assert {str(budget) for budget in learner.guarantee.budgets} == {"eps=1,delta=1e-06"}


@pytest.mark.parametrize("users", [0, 101])
def test_bits_of_another_sum_change_nothing(users: int) -> None:
    learner = model(batch_size=100)
    before = learner.state_dict()
    params = learner.randomizer.params
    wrong = [
        Shuffled(np.zeros((params.d, 7), dtype=np.uint8), 50),
        Shuffled(np.zeros((2, 1), dtype=np.uint8), 1),
        Shuffled(np.zeros((params.d, (users * (params.g + params.b) + 7) // 8), dtype=np.uint8), users),
    ]
    for shuffled in wrong:
        with pytest.raises((SchemaError, ConfigError)):
            learner.absorb(shuffled)
    after = learner.state_dict()
    assert {k: v for k, v in after.items() if k != "state"} == {k: v for k, v in before.items() if k != "state"}
    np.testing.assert_array_equal(after["state"], before["state"])


def test_too_few_answers_for_any_promise_are_refused() -> None:
    learner = model(batch_size=1000)
    randomizer = learner.randomizer
    shuffler = Shuffler(randomizer.params, minimum=1)
    X, y = data(1)
    shuffler.collect(randomizer.messages_of(X, y))
    with pytest.raises(BudgetError):
        learner.absorb(shuffler.forward())
    assert learner.n_seen == 0


def test_the_two_ways_do_not_mix_within_a_batch() -> None:
    X, y = data(150)
    learner = model(batch_size=100)
    learner.learn_encoded(X[:50], y[:50])
    shuffled = Shuffled(np.zeros((3, 1), dtype=np.uint8), 100)
    for act in (lambda: learner.absorb(shuffled), learner.state_dict):
        with pytest.raises(NotAtBoundaryError):
            act()


@pytest.mark.parametrize(
    "change",
    [
        {"point": np.zeros(4)},
        {"point": np.array([0.0, np.nan, 0.0])},
        {"loss": Logistic(clip=3.0)},
        {"params": VectorSum.calibrated(ApproxDP(1.0, 1e-6), 1.0, 100, 3)},
        {"params": VectorSum.calibrated(ApproxDP(1.0, 1e-6), math.sqrt(2), 100, 2)},
    ],
)
def test_a_device_refuses_what_does_not_fit(change: dict[str, Any]) -> None:
    good = model(batch_size=100).randomizer
    fields = ("point", "spec", "loss", "features", "intercept", "params", "batch")
    settings = {name: getattr(good, name) for name in fields} | change
    with pytest.raises(ConfigError):
        ShuffleRandomizer(**settings)


# --- settings, copies, learning


@pytest.mark.parametrize("budget", [PureDP(1.0), "eps=200,delta=1e-6"])
def test_budgets_that_no_sum_keeps_are_refused_at_once(budget: Any) -> None:
    with pytest.raises(BudgetError):
        model(budget=budget)


def test_short_batches_of_people_count_as_they_are_in_the_share_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """All counted as full, so that the share stayed near one half."""
    people, share = 400, 0.9
    learner = ShuffleClassifier(features={"a": (-1, 1)}, batch_size=2 * people, budget="eps=4,delta=1e-6")
    for _ in range(2):
        steps = steps_of(learner)
        assert steps.searching
        total = np.zeros(learner.randomizer.params.d)
        p = 1 / (1 + math.exp(-steps.state.point[-1]))
        total[steps.curvature.parameters - 1] = people * (p - share)
        monkeypatch.setattr(Analyzer, "sum", lambda self, shuffled, total=total: total)
        monkeypatch.setattr(VectorSum, "guarantee_for", lambda self, users: self.budget)
        learner.absorb(Shuffled(np.zeros((1, 1), dtype=np.uint8), people))
        assert 1 / (1 + math.exp(-steps.state.point[-1])) == pytest.approx(share)
        state = learner.state_dict()
        learner = learner.clone()
        learner.load_state_dict(state)  # as after a restart
    assert learner.n_seen == 2 * people
