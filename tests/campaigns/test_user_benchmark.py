"""User-level learning against its baselines: fast versions of `studies.user_level`.

Seeds are fixed. Margins are in the run's Monte Carlo standard errors (s.e.), four or more, so that another seed would
pass as well.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from streamdp import ApproxDP, GaussianDP, PureDP, UserLevelLDPClassifier
from streamdp.optim.user_averages import gradients
from streamdp.privacy.guarantees import Budget
from studies.user_baselines import (
    DIFFERENT,
    LINEAR,
    LOGISTIC,
    CutRecord,
    GroupPrivacy,
    OneRecord,
    Population,
    UserLevel,
    ask,
    coarse_batch,
)
from studies.user_level import (
    BUDGETS,
    ITEMS,
    PUBLIC,
    RIVALS,
    SIZES,
    USERS,
    Runs,
    beats,
    cells_of,
    fits,
    gain,
    learned,
    measure,
    slopes,
)

pytestmark = pytest.mark.campaign

POPULATIONS = (LOGISTIC, LINEAR, DIFFERENT)
FOUR = ApproxDP(4.0, 1e-6)
every = pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)


@pytest.fixture(scope="module")
def few() -> Runs:
    """1,000 and 3,000 users at eps = 4, eight repetitions; group privacy for m = 16 only, which is the slowest."""
    one, group = RIVALS[USERS]
    both = (LOGISTIC, LINEAR), (FOUR,), (1_000, 3_000)
    cells = (*cells_of(*both, (1, 16, 64), (USERS, one)), *cells_of(*both, (16,), (group,)))
    return measure(cells, {1_000: 8, 3_000: 8})


# --- what is measured with


@every
def test_the_optimum_is_where_it_is_said_to_be(population: Population) -> None:
    assert population.excess(population.truth) == 0
    least = minimize(population.excess, np.zeros(6), method="Powell", options={"xtol": 1e-8, "ftol": 1e-12})
    assert 0 <= least.fun < 1e-3 * population.start


@every
def test_excess_and_spread_are_those_of_drawn_users(population: Population) -> None:
    """40,000 users with four records each; five s.e., and 2 %: fixed seed."""
    X, y = population.cells
    setting, theta = population.setting, population.truth / 2
    cells = population.draw(np.random.default_rng(1), 40_000, 4)
    values = [
        np.array([setting.loss.value(point, x, t) for x, t in zip(X, y, strict=True)])
        for point in (theta, population.truth)
    ]
    lost = (values[0] - values[1])[cells].mean(axis=1)
    assert abs(lost.mean() - population.excess(theta)) < 5 * lost.std() / math.sqrt(len(lost))
    found = []
    for point in (np.zeros(6), population.truth):
        averages = gradients(setting.loss.spec(), point, X, y)[cells].mean(axis=1)
        found.append(math.sqrt(np.mean(np.sum((averages - averages.mean(axis=0)) ** 2, axis=1))))
        assert np.linalg.norm(averages, axis=1).max() <= setting.loss.bound
    assert population.spread(4) == pytest.approx(max(found), rel=0.02)


def test_users_that_differ_do_not_come_together() -> None:
    assert LINEAR.spread(10**8) < 1e-3 * LINEAR.spread(1)
    assert DIFFERENT.spread(10**8) > 0.1 * DIFFERENT.spread(1)


def test_asking_is_what_learn_arrays_does() -> None:
    """The same records in the same order, to rounding, batch by batch."""
    ours, theirs = (USERS.model(LOGISTIC, FOUR, 600, 50, 3) for _ in range(2))
    X, y = LOGISTIC.cells
    for batch in range(600 // ours.phase.batch):
        size = ours.phase.batch
        ask(ours, LOGISTIC, size, 50, np.random.default_rng(batch))
        cells = LOGISTIC.draw(np.random.default_rng(batch), size, 50).ravel()
        theirs.learn_encoded(X[cells], y[cells], subjects=[f"u{i // 50}" for i in range(len(cells))])
    np.testing.assert_allclose(ours.theta, theirs.theta, atol=1e-7)
    assert np.linalg.norm(ours.theta) > 0.1
    assert ours.n_users == theirs.n_users > 500


# --- budgets


@pytest.mark.parametrize("budget", [*BUDGETS, GaussianDP(0.7), PureDP(1.0)], ids=str)
def test_all_spend_the_same_a_user(budget: Budget) -> None:
    """What m reports of each spend together."""
    for rival in (UserLevel("u"), OneRecord("o")):
        assert rival.budget(budget, 16) == budget
    each = GroupPrivacy("g").budget(budget, 16)
    assert GroupPrivacy("g").reports(100, 16) == (1_600, 1)
    if isinstance(each, PureDP):
        assert 16 * each.epsilon == budget.epsilon
    else:
        whole = GaussianDP(4 * each.mu)
        target = GaussianDP.from_approx(budget) if isinstance(budget, ApproxDP) else budget
        assert whole.mu == pytest.approx(target.mu, rel=1e-12)
    models = [c.model(LINEAR, budget, 1_000, 16, 1) for c in (USERS, *RIVALS[USERS])]
    assert [model.items_per_user for model in models] == [16, 1, 1]


def test_group_privacy_has_the_noise_of_one_record() -> None:
    """Of the average over a user: sixteen times the variance a report, sixteen reports."""
    one, each = (c.model(LOGISTIC, FOUR, 1_000, 16, 1).learner.mean_of(100).variance for c in RIVALS[USERS])
    assert each == pytest.approx(16 * one, rel=1e-3)
    ours = USERS.model(LOGISTIC, FOUR, 1_000, 16, 1).learner.mean_of(100).variance
    assert ours == pytest.approx(one / 16, rel=1e-3)


# --- claims, in small


@pytest.mark.parametrize("population", [LOGISTIC, LINEAR], ids=lambda population: population.name)
@pytest.mark.parametrize(("m", "rival"), [(16, 0), (64, 0), (16, 1)])
def test_it_beats_both_baselines(few: Runs, population: Population, m: int, rival: int) -> None:
    """Both n together: the mean log of the ratio is above 0 by four s.e."""
    pairs = [gain(few, population, FOUR, (RIVALS[USERS][rival], USERS), n, m) for n in few.sizes()]
    logs = sum(math.log(value) for value, _ in pairs)
    assert logs > 4 * math.hypot(*(error / value for value, error in pairs))


@pytest.mark.parametrize(("population", "exponent"), [(LOGISTIC, -0.25), (LINEAR, -0.5)], ids=["logistic", "linear"])
def test_the_excess_falls_with_users_and_with_items(few: Runs, population: Population, exponent: float) -> None:
    """As fast as the theorem says where all directions are alike; slower at these n where some are flat."""
    assert len(learned(few, population, FOUR, USERS)) >= 4
    fitted = fits(few, population, FOUR, USERS)
    assert all(value < exponent + 2 * error for value, error in fitted)
    value, error = fitted[-1]  # in n m; a factor of 3 in n is too little for a slope of its own
    assert value < -4 * error


def test_without_the_cut_many_records_are_worth_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims' tests can fail: with the noise for a cut to L, m = 64 is not better than one record."""
    from streamdp.aggregation.local_mean import UserMean
    from streamdp.learners.user_reports import UserReports

    made = UserReports.mean_of
    monkeypatch.setattr(UserReports, "mean_of", lambda self, users: replace(made(self, users), cut=None))
    runs = measure(cells_of([LINEAR], [FOUR], [3_000], [64], (*RIVALS[USERS][:1], USERS)), {3_000: 6})
    assert UserMean(FOUR, 1.0, 2.0, 6, 10, 0.1).radius == 1.0
    assert not beats(gain(runs, LINEAR, FOUR, (RIVALS[USERS][0], USERS), 3_000, 64))


def test_slopes_are_found() -> None:
    rng = np.random.default_rng(2)
    points = [(n, m) for n in SIZES for m in ITEMS]
    runs = [n**-0.6 * m**-0.4 * rng.uniform(0.5, 1.5, 400) for n, m in points]
    (n, dn), (m, dm) = slopes(points, runs)
    assert abs(n + 0.6) < 5 * dn < 0.1
    assert abs(m + 0.4) < 5 * dm < 0.1


def test_few_records_never_make_the_coarse_question_pay() -> None:
    for budget in BUDGETS:
        assert coarse_batch(budget, 1 / math.sqrt(100)) is None
        found = coarse_batch(budget, 1 / math.sqrt(256))
        assert found[0] > 1_000


def test_one_record_may_be_cut_as_much_as_many_are() -> None:
    """A quarter of the bound for one record is the noise of the average of sixteen."""
    noise = [
        c.model(LINEAR, FOUR, 1_000, 16, 1).learner.mean_of(100).variance for c in (CutRecord("c", cut=0.25), USERS)
    ]
    assert noise[0] == pytest.approx(noise[1], rel=1e-9)


def test_public_knowledge_is_given_to_all() -> None:
    assert all(rival.known == ours.known for ours, rivals in RIVALS.items() for rival in rivals)
    assert PUBLIC.model(LINEAR, FOUR, 100, 16, 1).spread == LINEAR.spread(16)
    assert RIVALS[PUBLIC][1].model(LINEAR, FOUR, 100, 16, 1).spread == LINEAR.spread(1)
    assert UserLevelLDPClassifier().spread is None
