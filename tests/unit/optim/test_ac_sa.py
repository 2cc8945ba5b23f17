"""AC-SA: the steps are the paper's, the plan has the least bound, and the bound holds if the optimum is known."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from streamdp.optim.ac_sa import NEAR, Accelerated, Phase, Problem, plan, run_of

Function = Callable[[np.ndarray], np.ndarray]
REPETITIONS = 2000
DOUBT = 6.0
"""Standard errors of a mean that are allowed for: a false alarm has a probability below 1e-8, and seeds are fixed."""


def problem(
    smoothness: float = 1.0, convexity: float = 0.0, distance: float = 2.0, bound: float = 1.5, noise: float = 40.0
) -> Problem:
    """`noise` is the variance for a batch of one: privacy adds it to a sum, so a batch of b divides it by b^2."""
    return Problem(bound, smoothness, convexity, distance, lambda b: noise / b**2)


# --- the steps


@pytest.mark.parametrize("d", [1, 5])
def test_the_steps_are_the_papers(d: int) -> None:
    """Algorithm 4 with every sequence written out, from t = 0: md, theta and ag by index."""
    rng = np.random.default_rng(d)
    T, M = 40, 7.3
    G = rng.normal(size=(T, d)) * 3

    def project(theta: np.ndarray) -> np.ndarray:
        return theta / max(1.0, float(np.linalg.norm(theta)))

    theta, ag = [project(rng.normal(size=d))], []
    ag.append(theta[0])
    walk = Accelerated(theta[0], project)
    for t in range(T):
        alpha, length = 2 / (t + 2), M / (t + 1)
        md = alpha * theta[t] + (1 - alpha) * ag[t]
        # argmin <G, x - theta_t> + L/2 ||x - theta_t||^2 over the ball is the projection of the free minimum
        theta.append(project(theta[t] - G[t] / length))
        ag.append(alpha * theta[t + 1] + (1 - alpha) * ag[t])
        assert walk.middle == pytest.approx(md, rel=1e-13, abs=1e-13)
        walk.move(G[t], M)
        assert walk.points[0] == pytest.approx(theta[t + 1], rel=1e-13, abs=1e-13)
        assert walk.points[1] == pytest.approx(ag[t + 1], rel=1e-13, abs=1e-13)
    assert walk.step == T
    before = walk.points.copy()
    walk.restart()
    assert walk.step == 0
    assert np.array_equal(walk.points, np.stack([before[1], before[1]]))
    assert np.array_equal(walk.middle, before[1])


def test_the_start_is_copied() -> None:
    start = np.zeros(2)
    walk = Accelerated(start, lambda theta: theta)
    walk.move(np.ones(2), 1.0)
    assert not start.any()
    assert walk.points.any()


# --- the plan


@pytest.mark.parametrize("smoothness", [0.05, 1.0, 30.0, math.inf])
@pytest.mark.slow
def test_no_batch_and_no_envelope_has_a_much_lower_bound(smoothness: float) -> None:
    """Compared with all batch sizes and envelopes on a fine grid: NEAR, and the plan's own grid costs up to 5 %."""
    for noise, records in itertools.product((0.0, 40.0, 1e5), (1, 2, 7, 100, 1000)):
        given = problem(smoothness, noise=noise)
        (best,) = plan(given, records)
        assert best.steps == records // best.batch
        betas, extra = np.array([smoothness]), 0.0
        if not math.isfinite(smoothness):
            betas, extra = np.geomspace(1e-3, 1e5, 33), given.bound**2 / 2
        least = min(
            run_of(given, records, batch, given.distance, beta).excess + extra / beta
            for batch, beta in itertools.product(range(1, records + 1), betas)
        )
        assert best.excess <= least * NEAR * 1.05
        if math.isfinite(smoothness):
            assert best.excess >= least * (1 - 1e-12)
            assert best.beta == smoothness
        else:
            again = run_of(given, records, best.batch, given.distance, best.beta)
            assert best.excess == pytest.approx(again.excess + extra / best.beta)


@pytest.mark.parametrize("noise", [0.0, 40.0, 2e4, 1e6])
def test_no_modulus_has_a_lower_bound_and_lans_is_higher(noise: float) -> None:
    """docs/proofs/accelerated.md: at every M >= 2 beta; the least is at 2 beta itself if the noise is small."""
    given = problem(3.0, noise=noise)
    run = run_of(given, 1000, 10, given.distance, 3.0)
    T, sigma2 = run.steps, given.variance(10)
    S = sum((t + 1) ** 2 for t in range(T))

    def bound(M: float) -> float:
        return (M * given.distance**2 / 2 + sigma2 * S * (1 + 6 / M) / (2 * M)) / (T * (T + 1) / 2)

    assert run.excess == pytest.approx(bound(run.modulus), rel=1e-12)
    assert run.modulus >= 6
    assert (run.modulus == 6) == (sigma2 * S <= 4 / 3 * 9 * given.distance**2)
    assert all(bound(M) > run.excess for f in (0.5, 0.9, 1.1, 2.0) if (M := run.modulus * f) >= 6)
    lans = 2 * 3.0 * given.distance**2 + 2 * given.distance * math.sqrt(sigma2 * S)
    assert run.excess < lans / (T * (T + 1))


@pytest.mark.parametrize("smoothness", [1.0, math.inf])
def test_a_batch_size_is_kept_unless_there_are_fewer_records(smoothness: float) -> None:
    given = problem(smoothness)
    for records, batch, expected in ((1000, 30, (30, 33)), (30, 30, (30, 1)), (29, 30, (29, 1)), (59, 30, (30, 1))):
        (run,) = plan(given, records, batch)
        assert (run.batch, run.steps) == expected
    for run in plan(problem(smoothness, 0.3), 10**6, 30):
        assert run.batch == 30


@pytest.mark.parametrize("smoothness", [1.0, math.inf])
def test_phases_of_a_strongly_convex_loss_shrink(smoothness: float) -> None:
    given = problem(smoothness, convexity=0.3, distance=5.0, noise=500.0)
    phases = plan(given, 10**6)
    most = math.ceil(math.log2(math.log2(10**6)))
    assert 2 <= len(phases) <= most
    assert sum(p.batch * p.steps for p in phases) <= 10**6
    excess = [p.excess for p in phases]
    assert excess == sorted(excess, reverse=True)
    assert excess[-1] < plan(problem(smoothness, 0.0, 5.0, noise=500.0), 10**6)[0].excess / 2
    at = given.distance
    for phase in phases:  # each phase starts at the output of the phase before
        again = run_of(given, 10**6 // len(phases), phase.batch, at, phase.beta)
        assert again.modulus == pytest.approx(phase.modulus)
        at = min(at, math.sqrt(2 * phase.excess / 0.3))
    assert at < given.distance / 10
    nearer = plan(given, 10**6, distance=0.5)
    assert nearer[-1].excess <= excess[-1]


def test_one_phase_where_more_would_not_shrink() -> None:
    """The convexity is so small, or the records are so few, that a phase does not reduce the distance."""
    assert len(plan(problem(convexity=1e-9), 10**6)) == 1
    assert len(plan(problem(convexity=0.3, noise=1e9), 100)) == 1


# --- the bound


def excess_of(
    phases: list[Phase],
    f: Function,
    gradient: Function,
    start: np.ndarray,
    sigma: Callable[[int], float],
    project: Function,
    seed: int,
    shrink: float = 1.0,
) -> tuple[float, float]:
    """The mean of f(output) and its standard error over repetitions; `shrink` multiplies M."""
    rng = np.random.default_rng(seed)
    walk = Accelerated(np.tile(start, (REPETITIONS, 1)), project)
    for number, phase in enumerate(phases):
        if number:
            walk.restart()
        for _ in range(phase.steps):
            md = walk.middle
            noise = rng.normal(0, sigma(phase.batch) / math.sqrt(md.shape[1]), md.shape)
            walk.move(gradient(md) + noise, phase.modulus * shrink)
    values = f(walk.points[1])
    return float(values.mean()), float(values.std() / math.sqrt(REPETITIONS))


def ball(radius: float) -> Function:
    return lambda theta: theta * np.minimum(1, radius / np.maximum(np.linalg.norm(theta, axis=1), 1e-300))[:, None]


def free(theta: np.ndarray) -> np.ndarray:
    return theta


def norm(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=1)


@pytest.mark.parametrize("T", [1, 3, 30, 200])
@pytest.mark.parametrize("beta", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("project", [free, ball(3.0)], ids=["free", "ball"])
@pytest.mark.slow
def test_the_bound_holds_for_a_quadratic(T: int, beta: float, project: Function) -> None:
    """f = beta/2 ||x - x*||^2, D = ||x*|| exactly, noise of the variance that the plan counts on."""
    optimum, sigma = np.array([1.2, -0.5, 1.5]), 2.0
    distance = float(np.linalg.norm(optimum))
    given = Problem(0.0, beta, 0.0, distance, lambda b: sigma**2)
    run = run_of(given, T, 1, distance, beta)
    mean, error = excess_of(
        [run],
        lambda x: beta / 2 * norm(x - optimum) ** 2,
        lambda x: beta * (x - optimum),
        np.zeros(3),
        lambda b: sigma,
        project,
        seed=T,
    )
    assert mean <= run.excess + DOUBT * error


@pytest.mark.parametrize("T", [30, 200])
def test_a_tenth_of_the_modulus_breaks_the_bound_and_ten_times_it_is_worse_too(T: int) -> None:
    """On c |x - x*|, smoothed at its minimum, with c = sigma / sqrt(T): a slope that the noise nearly hides."""
    sigma, distance = 2.0, 1.5
    c = sigma / math.sqrt(T)
    beta = 10 * c / distance
    run = run_of(Problem(0.0, beta, 0.0, distance, lambda b: sigma**2), T, 1, distance, beta)

    def f(x: np.ndarray) -> np.ndarray:
        away = norm(x - distance)
        return np.where(away < c / beta, beta / 2 * away**2, c * away - c**2 / (2 * beta))

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.clip(beta * (x - distance), -c, c)

    def ends(shrink: float) -> tuple[float, float]:
        return excess_of([run], f, gradient, np.zeros(1), lambda b: sigma, free, seed=T, shrink=shrink)

    found = {shrink: ends(shrink) for shrink in (0.1, 1.0, 10.0)}
    assert found[1.0][0] <= run.excess + DOUBT * found[1.0][1]
    assert found[0.1][0] > run.excess + DOUBT * found[0.1][1]
    assert found[10.0][0] > found[1.0][0] + DOUBT * (found[10.0][1] + found[1.0][1])


def test_the_bound_holds_for_the_envelope_of_an_absolute_value() -> None:
    """f = L ||x - x*||, whose envelope has the gradient beta (x - prox)."""
    optimum, L = np.array([0.8, -1.1]), 1.5
    distance = float(np.linalg.norm(optimum))
    given = Problem(L, math.inf, 0.0, distance, lambda b: 300.0 / b**2)
    for records in (1, 50, 5000):
        (run,) = plan(given, records)

        def gradient(x: np.ndarray, beta: float = run.beta) -> np.ndarray:
            away = x - optimum
            return beta * away * np.minimum(1, L / beta / np.maximum(norm(away), 1e-300))[:, None]

        mean, error = excess_of(
            [run],
            lambda x: L * norm(x - optimum),
            gradient,
            np.zeros(2),
            lambda b: math.sqrt(given.variance(b)),
            ball(3.0),
            records,
        )
        assert mean <= run.excess + DOUBT * error


def test_the_bound_holds_over_phases() -> None:
    """A quadratic is as strongly convex as it is smooth; several phases beat one, as the plan says."""
    optimum, beta = np.array([3.0, -2.0]), 0.5
    distance = float(np.linalg.norm(optimum))
    given = Problem(1.0, beta, beta, distance, lambda b: 2000.0 / b**2)
    phases = plan(given, 100_000)
    assert len(phases) > 1

    def ends(phases: list[Phase]) -> tuple[float, float]:
        return excess_of(
            phases,
            lambda x: beta / 2 * norm(x - optimum) ** 2,
            lambda x: beta * (x - optimum),
            np.zeros(2),
            lambda b: math.sqrt(given.variance(b)),
            free,
            5,
        )

    mean, error = ends(phases)
    assert mean <= phases[-1].excess + DOUBT * error
    single = plan(Problem(1.0, beta, 0.0, distance, given.noise), 100_000)
    assert mean + DOUBT * error < ends(single)[0]


def test_later_epochs_stay_within_four_times_the_bound() -> None:
    """The start is anywhere in the ball, up to 2 D from the optimum; the plan assumes a start at the centre."""
    beta, sigma = 0.3, 2.0
    given = Problem(0.0, beta, 0.0, 2.0, lambda b: sigma**2)
    optimum = np.array([2.0, 0.0])
    for T in (1, 10, 100):
        run = run_of(given, T, 1, 2.0, beta)
        mean, error = excess_of(
            [run],
            lambda x: beta / 2 * norm(x - optimum) ** 2,
            lambda x: beta * (x - optimum),
            -optimum,
            lambda b: sigma,
            ball(2.0),
            T,
        )
        assert mean <= 4 * run.excess + DOUBT * error
