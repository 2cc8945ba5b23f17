"""The theory behind LDP-ASGD, measured: central limit theorem, rates, and what PrivUnit saves.

The settings, and why they were chosen, are in studies/theory.md; `make theory` measures them
at full size. Seeds are fixed, so a test gives the same answer every time; margins are in units of the run's Monte Carlo
standard error (s.e.), which is written down, so that another seed would pass as well, and where it says so a test shows
that it rejects an estimator that is wrong.
"""

from typing import Any

import numpy as np
import pytest

from streamdp import datasets
from streamdp.estimators.ldp.estimators import LDPASGDRegressor
from streamdp.optim.domains import Box
from streamdp.optim.losses import Huber
from streamdp.optim.planner import asymptotic_variance, plan_error, plan_records
from streamdp.privacy.guarantees import PureDP
from studies.theory import (
    COEFFICIENTS,
    ISSUE_BAND,
    PAPER,
    SCALE,
    Case,
    clt_ratio,
    gaussian_noise,
    huber_theory,
    predicted_ratio,
    simulate,
)

pytestmark = pytest.mark.campaign

D, N = 5, 100_000
NEAR = Box(0.0, 2.0)  # holds the early iterates; at n = 100,000 its walls are five standard deviations away


def in_band(ratio: float) -> bool:
    return ISSUE_BAND[0] <= ratio <= ISSUE_BAND[1]


# --- A and S, computed twice --------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1, 2, 3])
def test_planner_and_integrals_agree_on_the_asymptotic_variance(mu):
    """Monte Carlo error of the planner: A's entries are means of 400,000 bounded terms (relative s.e. about 0.2 %), V
    goes with A^-2, so 2 % is five s.e.; the step h = 0.05 of its differences adds 0.01 %."""
    variance = huber_theory(D).variance(gaussian_noise(mu))
    planned = asymptotic_variance(PAPER["huber"], D, f"mu={mu}")
    np.testing.assert_allclose(np.diag(planned), variance, rtol=0.02)
    off = planned - np.diag(np.diag(planned))
    assert np.max(np.abs(off)) < 0.02 * np.max(variance)
    wrong = huber_theory(D).variance(gaussian_noise(mu) / 4)  # half of the noise
    assert np.all(np.diag(planned) > 1.5 * wrong)


def test_hessian_and_curvature_are_derivatives_of_the_gradient():
    """The integrals against the code's own gradients of 200,000 records, at theta* moved along one coordinate.

    s.e. of a difference with common records: below 0.5 % of A; of a second difference, 6 % for the scale's bend."""
    theory, theta = huber_theory(D), np.append(np.ones(D + 1), 2.0)
    X, y = datasets.linear(200_000, D, seed=11)
    X1 = np.column_stack([X, np.ones(len(X))])

    def mean_gradient(at: np.ndarray) -> np.ndarray:  # numpy only: no code shared with the kernels
        w = np.minimum(1.0, 2 / np.sum(X1**2, axis=1))
        psi = np.clip((y - X1 @ at[:-1]) / at[-1], -Huber().c, Huber().c)
        scale = 0.5 * (Huber().kappa - psi**2) * w
        return np.append(-(X1 * (psi * w)[:, None]).mean(axis=0), scale.mean())

    h = 0.1
    middle = mean_gradient(theta)
    for j, e in enumerate(np.eye(D + 2)):
        up, down = mean_gradient(theta + h * e), mean_gradient(theta - h * e)
        assert (up[j] - down[j]) / (2 * h) == pytest.approx(theory.hessian[j], rel=0.03)
        bend = (up[-1] - 2 * middle[-1] + down[-1]) / h**2
        assert bend == pytest.approx(theory.curvature[j], rel=0.3), j
        assert np.sign(bend) == np.sign(theory.curvature[j])


# --- the recursion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1 / 3, 1 / 2, 2 / 3])
def test_learning_follows_the_paper_step_by_step(alpha):
    """theta_i and bar_i without noise against a plain reading of LDP eq. 3.2 and 3.3, to the rounding of the grid."""
    X, y = datasets.linear(500, 3, seed=5)
    options: dict[str, Any] = {"loss": PAPER["huber"], "clock": "records", "mechanism": "none", "seed": 1}
    model = LDPASGDRegressor(budget="mu=1", eta=0.3, alpha=alpha, features=["a", "b", "c"], **options)
    model.learn_encoded(X, y)
    c, kappa = Huber().c, Huber().kappa
    b, sigma, path = np.zeros(4), 1.0, []
    for i, (x, target) in enumerate(zip(np.column_stack([X, np.ones(len(X))]), y, strict=True), start=1):
        w = min(1.0, 2 / float(x @ x))
        psi = float(np.clip((target - x @ b) / sigma, -c, c))
        b, sigma = b + 0.3 * i**-alpha * psi * w * x, max(0.1, sigma - 0.3 * i**-alpha * (kappa - psi**2) * w / 2)
        path.append(np.append(b, sigma))
    np.testing.assert_allclose(model.state_dict()["state"][0], path[-1], atol=1e-9)
    np.testing.assert_allclose(model.theta, np.mean(path, axis=0), atol=1e-9)


def test_second_order_prediction_reduces_to_the_central_limit_theorem():
    """Exact numbers, no Monte Carlo: the linear recursion tends to 1, the curvature leaves 4 eta^2 B^2 / V behind."""
    noise = gaussian_noise(3)
    linear = [predicted_ratio(D, noise, 0.5, 0.5, n, curved=False) for n in (10_000, 100_000, 1_000_000)]
    assert linear[0] > linear[1] > linear[2] > 1
    assert linear[2] == pytest.approx(1, abs=0.01)
    theory = huber_theory(D)
    b = -0.5 * theory.curvature @ ((theory.gradient + noise) / (2 * theory.hessian)) / theory.hessian[-1]
    left = predicted_ratio(D, noise, 0.5, 0.5, 10_000_000, curved=True, part=SCALE)
    assert left - 1 == pytest.approx(4 * 0.25 * b**2 / theory.variance(noise)[-1], rel=0.1)


# --- the central limit theorem ------------------------------------------------------------------------------


def test_averaged_error_meets_the_central_limit_theorem():
    """Issue 2, section 4, item 4: d = 5, mu = 1, alpha = 1/2, n = 100,000, 100 replications, eta = 0.2 as in the paper.

    For the coefficients and the intercept, in a public domain [0, 2]; s.e. 0.06. The theory at this n is 1.09, for
    averaging is not quite done, so the band is more than two s.e. away on both sides. studies/theory.md says why the
    scale, and R^d, need larger n or mu.
    """
    (run,) = simulate([Case(eta=0.2, budget="mu=1", domain=NEAR)], [N], 100)
    theory = huber_theory(D)
    ratio, error = clt_ratio(run, N, theory.variance(gaussian_noise(1)), COEFFICIENTS)
    assert error < 0.08
    assert in_band(ratio)
    expected = predicted_ratio(D, gaussian_noise(1), 0.2, 0.5, N, curved=True, part=COEFFICIENTS)
    assert abs(ratio - expected) < 5 * error
    # The scale's error is mostly the curvature's: far above 1, as second order says it must be.
    assert clt_ratio(run, N, theory.variance(gaussian_noise(1)), SCALE)[0] > 1.4
    # What would be rejected: noise of half or twice the claim, an A that is 25 % off.
    assert not in_band(clt_ratio(run, N, theory.variance(gaussian_noise(2)), COEFFICIENTS)[0])
    assert not in_band(clt_ratio(run, N, theory.variance(gaussian_noise(0.5)), COEFFICIENTS)[0])
    for factor in (0.75, 1.25):
        off = (theory.gradient + gaussian_noise(1)) / (factor * theory.hessian) ** 2
        assert not in_band(clt_ratio(run, N, off, COEFFICIENTS)[0])


def test_central_limit_theorem_for_all_parameters():
    """With the scale: eta = 0.1, [0.25, 1.75], mu = 1, n = 100,000; s.e. 0.08 with 100 replications, expected 1.14; and
    mu = 3 with eta = 0.3 on [0, 2], s.e. 0.06, expected 1.15."""
    near, easy = Case(eta=0.1, budget="mu=1", domain=Box(0.25, 1.75)), Case(eta=0.3, budget="mu=3", domain=NEAR)
    for case, run, mu in zip((near, easy), simulate([near, easy], [N], 100), (1, 3), strict=True):
        noise = gaussian_noise(mu)
        ratio, error = clt_ratio(run, N, huber_theory(D).variance(noise))
        assert error < 0.1
        assert in_band(ratio), case
        assert abs(ratio - predicted_ratio(D, noise, case.eta, 0.5, N, curved=True, domain=case.domain)) < 5 * error


# --- what a better mechanism saves --------------------------------------------------------------------------


def test_privunit_needs_a_sixth_of_the_records_by_the_central_limit_theorem():
    """Issue 2, section 4, item 5: pure epsilon = 1, six parameters. No simulation but the planner's (2 %)."""
    for loss, d in (("huber", 4), ("logistic", 5)):
        laplace, privunit = (np.trace(asymptotic_variance(loss, d, "eps=1", kind)) for kind in ("laplace", "privunit"))
        assert laplace / privunit >= 6
    # Half of the epsilon takes nearly four times the records, which would not pass.
    laplace = np.trace(asymptotic_variance("huber", 4, "eps=1", "laplace"))
    assert laplace / np.trace(asymptotic_variance("huber", 4, "eps=0.5", "privunit")) < 3


# --- the planner --------------------------------------------------------------------------------------------


def test_plans_of_records_and_of_errors_agree():
    records = plan_records("logistic", D, PureDP(1), 0.3)
    assert plan_error("logistic", D, PureDP(1), records) == pytest.approx(0.3, rel=1e-4)
    assert plan_records("logistic", D, PureDP(1), 0.1) == pytest.approx(9 * records, rel=1e-4)
