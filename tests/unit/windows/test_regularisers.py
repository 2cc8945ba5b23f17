"""Regularisers of a user for smoothed AC-SA: the proximal map, the bounds, the noise, an audit."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from streamdp import ApproxDP
from streamdp.errors import ConfigError
from streamdp.optim.domains import Box, Domain, L2Ball, RealSpace
from streamdp.privacy.subsampling import noise_multiplier
from streamdp.windows.regularisers import ElasticNet, Regulariser
from streamdp.windows.smoothed import ConvolutionSmoothing, accelerate
from streamdp.windows.smoothed_plan import Run, SmoothedPlan
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some
from tests.support.smoothed import HINGE, TASK, Fixed, bound_of, fresh, run_with

NETS = (ElasticNet(l1=0.7), ElasticNet(l1=0.4, free=2), ElasticNet(l1=0.2, l2=0.3), ElasticNet(l2=0.5, free=1))


def rough_part(net: ElasticNet, theta: np.ndarray) -> np.ndarray:
    """s of the elastic net for thetas (..., d)."""
    return net.l1 * np.abs(theta[..., : theta.shape[-1] - net.free]).sum(axis=-1)


def smooth_part(net: ElasticNet, theta: np.ndarray) -> np.ndarray:
    return net.l2 / 2 * np.square(theta[..., : theta.shape[-1] - net.free]).sum(axis=-1)


@pytest.mark.parametrize("net", NETS, ids=repr)
@pytest.mark.parametrize("domain", [RealSpace(), Box(-0.5, 0.8), Box(0.1, 2.0), L2Ball(1.0)], ids=repr)
@pytest.mark.slow
def test_a_projected_prox_is_the_minimiser_in_the_domain(net: ElasticNet, domain: Domain) -> None:
    """No point of the domain near or far is better, and the prox with a size that is 20 % off is not the minimiser."""
    rng, worse = np.random.default_rng(3), 0
    for _ in range(50):
        z, size = rng.normal(scale=2, size=5), float(rng.uniform(0.2, 2))

        def value(v: np.ndarray, z: np.ndarray = z, size: float = size) -> np.ndarray:
            return size * rough_part(net, v) + np.square(v - z).sum(axis=-1) / 2

        found = domain.project(net.prox(z, size))
        near = found + rng.normal(size=(400, 5)) * 10 ** rng.uniform(-4, 0.5, (400, 1))
        others = np.array([domain.project(other) for other in near])
        assert value(found) <= value(others).min() + 1e-12
        worse += value(domain.project(net.prox(z, 1.2 * size))) > value(found) + 1e-9
    assert worse > 25 or not net.l1


@pytest.mark.parametrize("net", NETS, ids=repr)
def test_the_gradient_has_the_declared_constants(net: ElasticNet) -> None:
    """Of pairs of points, the smooth part is between the two parabolas; gradients agree with differences."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        a, b = rng.normal(size=(2, 5)) * 10 ** rng.uniform(-2, 1)
        rest = float(smooth_part(net, b) - smooth_part(net, a) - net.gradient(a) @ (b - a))
        square = float(np.sum((b - a) ** 2)) / 2
        assert net.convexity * square - 1e-9 * (1 + square) <= rest <= net.smoothness * square + 1e-9 * (1 + square)
    assert net.convexity == (0 if net.free else net.l2)


@pytest.mark.parametrize(("sigma", "steps"), [(1e-3, 30), (0.5, 100), (2.0, 500)])
@pytest.mark.parametrize("net", [ElasticNet(l1=0.1), ElasticNet(l1=0.1, l2=0.3)], ids=repr)
@pytest.mark.slow
def test_no_run_is_worse_than_its_bound(net: ElasticNet, sigma: float, steps: int) -> None:
    """Quadratics with an elastic net, 300 runs at once. The optimum has zeros and is known; the bound is reached to a
    fortieth, and without noise the optimum is found."""
    rng, d, runs = np.random.default_rng(steps), 20, 300
    target = 3.0 * np.where(np.arange(d) % 2, 0.05, 1) / math.sqrt(d / 2)
    largest = 0.0
    for bend in (1.0, 0.1, 3 / steps):
        eigenvalues = np.geomspace(1e-4, bend, d)
        shrunk = np.maximum(np.abs(eigenvalues * target) - net.l1, 0)
        optimum = np.sign(target) * shrunk / (eigenvalues + net.l2)

        def gradient(theta: np.ndarray, e: np.ndarray = eigenvalues) -> np.ndarray:
            noise = sigma / math.sqrt(d) * rng.standard_normal((runs, d))
            return e * (theta - target) + noise + net.gradient(theta)

        def value(theta: np.ndarray, e: np.ndarray = eigenvalues) -> np.ndarray:
            loss = np.sum(e * (theta - target) ** 2, axis=-1) / 2
            return np.asarray(loss + rough_part(net, theta) + smooth_part(net, theta))

        start = np.full(d, 3.0) / math.sqrt(d)
        distance = float(np.linalg.norm(start - optimum))
        excess, modulus = bound_of(steps, steps, distance, net.convexity, bend + net.smoothness, sigma)
        run = run_with(steps, steps, modulus, net.convexity)
        losses = value(accelerate(run, np.tile(start, (runs, 1)), gradient, net.prox)) - value(optimum)
        assert losses.min() > -1e-12  # it is the optimum
        assert losses.mean() + 5 * losses.std() / math.sqrt(runs) <= excess
        largest = max(largest, float(losses.mean() / excess))
    assert largest > 0.025


# --- privacy


@dataclass(frozen=True)
class Steep:
    """A regulariser with false constants: its gradient is 100 where it declares a smoothness of 0."""

    convexity: float = 0.0
    smoothness: float = 0.0
    slope: float = 100.0

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return self.slope * np.sign(theta)

    def prox(self, theta: np.ndarray, size: float) -> np.ndarray:
        return theta - size


def released(net: Regulariser, last: float, noise: float, trials: int, seed: int, d: int = 1) -> np.ndarray:
    """(trials, d) outputs of one step of `run` on all users, weight 1, modulus 2."""
    plan = SmoothedPlan(1.0, (Run(0, 4, 1.0, 1, 1, noise, 0.0, 2.0, 0.0, 0.0, 0.0),), 0.0)
    rows = np.zeros((4, d))
    rows[3, 0] = last
    method, users, entropy = ConvolutionSmoothing(regulariser=net), Fixed(rows), fresh(seed)
    return np.array([method.run(plan, users, np.ones(d), entropy).theta for _ in range(trials)])


@pytest.mark.parametrize("net", [ElasticNet(l2=0.3), Steep()], ids=repr)
def test_the_release_has_the_noise_of_the_plan(net: Regulariser) -> None:
    """A step without l1 is the noisy sum, scaled and moved: Kolmogorov-Smirnov accepts this law at 1e-7, and rejects
    scales 20 % off."""
    z = released(net, 0.0, 1.5, 400, 1, d=50)
    z = (z - z.mean()).ravel() * (2 * 2.0 * 4 / 1.5)  # gamma = 2 psi / W = 4, and a sum is divided by 4 users
    assert stats.kstest(z, "norm").pvalue > 1e-7
    for scale in (0.8, 1.2):
        assert stats.kstest(z / scale, "norm").pvalue < 1e-7


@pytest.mark.parametrize("net", some([ElasticNet(l1=0.2, l2=0.3), Steep()], 1), ids=repr)
@pytest.mark.slow
def test_an_attack_on_a_release(net: Regulariser) -> None:
    """Two windows whose last users have opposite gradients, as the attacker sees them: below the claim and near it;
    above it with half of the noise. False constants change nothing."""
    budget = ApproxDP(1.5, 0.1)
    noise = noise_multiplier(budget, 1.0, 1)

    def found(noise: float, trials: int) -> float:
        down, up = (released(net, last, noise, trials, 10 + i)[:, 0] for i, last in enumerate((1.0, -1.0)))
        return epsilon_lower_bound(-down, -up, budget.delta)

    assert 0.45 * budget.epsilon < found(noise, 2500) <= budget.epsilon
    assert found(noise / 2, 2500) > 1.05 * budget.epsilon


@pytest.mark.parametrize("net", [None, *NETS, Steep()], ids=repr)
@pytest.mark.slow
def test_the_plans_noise_knows_the_steps_only(net: Regulariser | None) -> None:
    """Sensitivity is that of the loss: the plan's bound and noise are those of its rate and steps."""
    plan = ConvolutionSmoothing(regulariser=net).plan(TASK)
    assert plan.bound == TASK.bound
    steps = sum(run.steps for run in plan.runs)
    assert {run.noise for run in plan.runs} == {noise_multiplier(TASK.budget, plan.runs[0].rate, steps)}


# --- the whole


class Sparse:
    """Users of one record, of whose columns the first matters. The objective is their hinge loss and an elastic net."""

    def __init__(self, n: int, net: ElasticNet, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.X = rng.choice([-1.0, 1.0], (n, TASK.d)) / math.sqrt(TASK.d / 2)
        self.sign = np.where(rng.random(n) < 0.1, -1, 1) * np.sign(self.X[:, 0])
        self.net = net

    def gradients(self, theta: np.ndarray, users: np.ndarray | None = None, radius: float = 0.0) -> np.ndarray:
        from streamdp.optim.smoothing import smoothed_gradients

        rows = slice(None) if users is None else users
        return smoothed_gradients(HINGE, False, theta, self.X[rows], (self.sign[rows] > 0).astype(float), radius)

    def project(self, theta: np.ndarray) -> np.ndarray:
        return L2Ball(2.0).project(theta)

    def objective(self, theta: np.ndarray) -> float:
        hinge = float(np.mean(np.maximum(0, 1 - self.sign * (self.X @ theta))))
        return hinge + float(rough_part(self.net, theta) + smooth_part(self.net, theta))


@pytest.mark.parametrize("net", some([ElasticNet(l1=0.2), ElasticNet(l1=0.1, l2=0.2)], 1), ids=repr)
@pytest.mark.parametrize(("objective", "n"), [("erm", 1000), pytest.param("sco", 6000, marks=pytest.mark.campaign)])
@pytest.mark.slow
def test_the_whole_is_within_its_bound(objective: str, n: int, net: ElasticNet) -> None:
    """The mean over 3 seeds, on the window's objective, whose optimum is along the first column but for the sample."""
    method = ConvolutionSmoothing(objective, most_queries=10 * n, regulariser=net)
    plan, users = method.plan(replace(TASK, users=n)), Sparse(n, net, 1)
    thetas = [method.run(plan, users, np.zeros(4), fresh(seed)).theta for seed in range(3)]
    line = np.linspace(0, 2, 401)[:, None] * np.eye(4)[:1]
    least = min(users.objective(theta) for theta in line)
    found = float(np.mean([users.objective(theta) for theta in thetas]))
    assert found - least < plan.excess
    assert found - least < 0.5 * (users.objective(np.zeros(4)) - least)


@pytest.mark.slow
def test_a_strongly_convex_regulariser_lowers_the_bound() -> None:
    """It takes several runs, as a strongly convex loss does; without strong convexity a regulariser changes no plan."""
    many = replace(TASK, users=40_000)
    plain, bent = (ConvolutionSmoothing(regulariser=net).plan(many) for net in (None, ElasticNet(l2=0.3)))
    assert bent.excess < plain.excess / 4
    assert len(bent.runs) > 1
    assert ConvolutionSmoothing(regulariser=ElasticNet(l1=0.3)).plan(many) == plain


def test_parameters_out_of_range_and_names_of_states() -> None:
    for wrong in ({"l1": -1.0}, {"l2": math.nan}, {"l1": math.inf}, {"free": -1}, {"free": 0.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ElasticNet(**wrong)  # type: ignore[arg-type]
    for constants in ((-1.0, 0.0), (1.0, 0.5), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ConfigError, match="convexity"):
            ConvolutionSmoothing(regulariser=Steep(*constants))
    with pytest.raises(ConfigError, match="finite"):
        released(Steep(slope=math.nan), 0.0, 1.0, 1, 1)
    assert repr(ConvolutionSmoothing()) == "ConvolutionSmoothing(objective='erm', most_queries=None, regulariser=None)"
    assert "l1=0.5" in repr(ConvolutionSmoothing(regulariser=ElasticNet(l1=0.5)))
