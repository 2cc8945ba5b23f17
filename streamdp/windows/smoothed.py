"""Accelerated steps on a smoothed loss and sampled users: few gradient queries for non-smooth losses.

Source: Kulkarni, Lee, Liu, "Private non-smooth ERM and SCO in subquadratic steps", 2021. The accelerated step is that
of Ghadimi and Lan, "Optimal stochastic approximation algorithms for strongly convex stochastic composite optimization
I", 2012, Algorithm 1; localisation is that of Feldman, Koren, Talwar, "Private stochastic convex optimization: optimal
rates in linear time", 2020.

**Neighbours.** All records of one user are replaced by any others. **Trust.** The process that holds the window.
**Claim.** The release is (epsilon, delta)-DP for the task's budget.

**Proof.** In a step every user of the run is drawn with probability q. The sum of the drawn users' average gradients,
of norm at most L, gets noise N(0, (m L)^2 I). `privacy.subsampling` gives m for all steps of all runs that share users;
runs on disjoint users have the whole budget each. Everything else is post-processing of the noisy sums. A sum is
divided by q n, which is public. A regulariser is a function of theta alone, so it is added to the noisy sums, and
changes neither L nor m; a wrong one cannot harm privacy. The number of drawn users would tell who was drawn, so it is
neither used nor released (`Release.queries` is its expectation). Rows are rounded to the grid of the noise one by one,
so that their sum is exact.

**One run** is T steps on Phi = f + s. The user's regulariser is g + s (`windows.regularisers`; 0 without one), and f(x)
= F(x) + g(x) + (pull/2) ||x - x_0||^2; pull is 0 or that of the localisation below. f is lambda-strongly convex, lambda
may be 0, and beta-smooth. The steps have the weights w_t = min(t, tau), tau <= T; W_t is the sum of the first t, alpha
= w_t / W_t, gamma = 2 psi / W_t, psi > beta. (Ghadimi and Lan have tau = T: alpha = 2 / (t+1).) From x_0 = ag_0, for t
= 1, ..., T:

    md = ((1 - alpha)(lambda + gamma) ag + alpha ((1 - alpha) lambda + gamma) x) / (gamma + (1 - alpha^2) lambda)
    x  = Prox((alpha lambda md + ((1 - alpha) lambda + gamma) x - alpha G) / (lambda + gamma)),  G a gradient at md
    ag = alpha x + (1 - alpha) ag

Prox(z) is the minimiser of alpha / (lambda + gamma) s(v) + ||v - z||^2 / 2 in the domain; without s, the projection.
Let G = grad f(md) + e, E e = 0, E||e||^2 <= sigma^2, x* any point, D_t = ||x_t - x*||, and x+ the point that Prox gets
for G = 0; then ag_t - md = alpha (x_t - x+). Smoothness of f at ag_t, convexity, s(ag_t) <= alpha s(x_t) + (1 - alpha)
s(ag_{t-1}), the step's optimality (what it minimises is (lambda + gamma)-strongly convex) and strong convexity at md
give

    Phi(ag_t) - Phi(x*) <= (1 - alpha)(Phi(ag_{t-1}) - Phi(x*)) + ((1 - alpha) lambda + gamma)/2 D_{t-1}^2
        - (lambda + gamma)/2 D_t^2 + alpha <e, x* - x+> + alpha ||e|| ||x_t - x+|| - c/2 ||x_t - x+||^2

with c = lambda + gamma - beta alpha^2. The inner product has mean 0, the last two terms are at most alpha^2 ||e||^2 /
(2 c), and w_t^2 <= 2 W_t, so with psi = beta + kappa c is at least lambda + 2 kappa / W_t. Multiplied by W_t the terms
in lambda telescope, as W_t (1 - alpha) = W_{t-1}, and so do those in psi. Hence

    E Phi(ag_T) - Phi(x*) <= ((beta + kappa) D_0^2 + sigma^2 S) / W_T,   S = sum of w_t^2 / (2 lambda W_t + 4 kappa),

and S is at most the sum of w_t^2 / (4 kappa), and at most

    (tau+1)/lambda (1 - atan(z)/z) + tau / (2 lambda) ln((lambda W_T + 2 kappa) / (lambda W_tau + 2 kappa)),

z = (tau+1) sqrt(lambda / kappa) / 2: terms up to tau are below t^2 / (lambda t^2 + 4 kappa), which grows with t, later
ones fall. For tau = T and kappa -> 0 this is 2 beta D^2 / (T (T+1)) + 2 sigma^2 / (lambda T), Ghadimi and Lan's
Proposition 9 with 2 in place of their 8; for tau = T, lambda = 0 and the best kappa it is the bound of `ac_sa`, with
1.155 D sigma / sqrt(T) for the noise. A smaller tau lowers that towards 1 D sigma / sqrt(T), which averaged SGD has,
and takes somewhat more steps. The plan takes the best tau and kappa of a few candidates (`smoothed_plan`).

**sigma^2.** A sum over users that are drawn with probability q has the variance q (1-q) sum ||g_i||^2. So the estimate
has at most L^2 (1-q) / (q n), and the noise adds d (m L / (q n))^2. The norms count, and not the spread, because the
sum is divided by q n.

**Smoothing.** A non-smooth loss is convolved with the uniform ball of radius r, at a price of L r, and is then (L
sqrt(d) / r)-smooth. For linear models, the only models that `smoothing` serves, it is E|B| L r and 2 f(0) L / r, about
0.8 L r / sqrt(d) and 0.8 L sqrt(d) / r. So T, in the paper of the order of n / d^(1/4), is n / sqrt(d) here, and its
n sqrt(T) + n^2 / d gradient queries, n^(3/2) / d^(1/8) + n^2 / d, are n^(3/2) / d^(1/4) + n^2 / d.

**objective="erm"**: the average loss of the window's users; every run is on all of them. A convex loss takes one run,
with lambda = 0. The paper adds (lambda/2) ||x - x_0||^2: with the best lambda the noise costs 2 D sigma / sqrt(T),
without it, with the best kappa, 1 to 1.16 D sigma / sqrt(T). For a lambda-strongly convex loss, or with a strongly
convex regulariser, there are several runs; each starts at the output of the run before, at a distance of D^2 = 2 excess
/ lambda. (Lemma 4.7 gives run i of k a share 2^-(k+1-i) of the budget; here one m serves all of their steps, and run i
has that share of the steps: the last one has the noise of all of epsilon for half of the steps, and not half of
epsilon.) The expected loss of a linear model is close: within 2 L R / sqrt(n) in the mean for all theta of a ball of
radius R (Rademacher averages and contraction, Ledoux and Talagrand 1991), which is why this is the default.

**objective="sco"**: the expected loss F of any convex loss by localisation. Run i = 1, ..., k, on n_i of about n 2^-i
users of its own, minimises their average loss F_i plus h plus pull/2 times the squared distance from the last output,
x_{i-1}; h is the user's regulariser or 0, kappa_h its strong convexity. Let x_i* be the exact minimiser, x_0* the
optimum of Phi = F + h, Delta_0 = D, Delta_i^2 >= E||x_i - x_i*||^2. A replaced user moves x_i* by at most 2 L /
(lambda_i n_i), lambda_i = pull + kappa_h, so the loss at x_i* of the users it was learned from is lower than the
expected one by at most 2 L^2 / (lambda_i n_i) in the mean. Therefore

    E Phi(x_i*) - Phi(x_{i-1}*) <= pull Delta_{i-1}^2 / 2 + 2 L^2 / (lambda_i n_i).

By strong convexity Delta_i^2 is 2 / lambda_i times the bound of the run, and in the root mean square the start of the
run is at most

    D_i = sqrt(Delta_{i-1}^2 + 2 / pull (excess before i + 2 L^2 / (lambda_i n_i) + price of smoothing))

from x_i*, since x_i* has no higher regularised loss than x_{i-1}*; without h at most L / pull, too. The excess is the
sum over i, the price of each smoothing, and what Phi(x_k) is above Phi(x_k*). That is L Delta_k without h. With it, the
losses F and F_k change by L Delta_k each, the squared distances from x_{k-1} by 2 D_k Delta_k, and the objective of the
run by its bound, so h(x_k) - h(x_k*) is at most the bound of the run plus (L + pull D_k) Delta_k. No Lipschitz constant
of h is needed. pull is 2 L / (Delta_{i-1} sqrt(n_i)), where the two terms are equal for kappa_h = 0, or a multiple of
it, since noise moves x_i the less the larger lambda_i is; the price of smoothing is a tenth of L Delta_{i-1} /
sqrt(n_i); k, the multiple and the accuracy of each run follow from the bound. A strongly convex expected loss is
learned in blocks of users, the last one half of them, each localising around the last one's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import BudgetError, ConfigError, TooFewUsersError, check_choice, check_whole
from streamdp.privacy.guarantees import ApproxDP, GaussianDP
from streamdp.privacy.mechanisms import Gaussian, calibrated, randomize_rows
from streamdp.privacy.samplers import GRID
from streamdp.privacy.subsampling import noise_multiplier, sample
from streamdp.windows.regularisers import Regulariser
from streamdp.windows.smoothed_plan import Plan, Run, builders, rough_noise
from streamdp.windows.task import Method, Release, Rng, Task, Users

OBJECTIVES = ("erm", "sco")

_MOST_USERS = 10**12
_SLACK = 1.1
_CHUNK = 1 << 16  # gradients in memory at once


@dataclass(frozen=True)
class ConvolutionSmoothing(Method):
    """Strongly convex AC-SA on the smoothed loss of sampled users (see the module's text).

    Parameters
    ----------
    objective
        "erm": the average loss of the window's users. "sco": the expected loss, by localisation over disjoint users.
    most_queries
        The largest expected number of gradients of single users, at least 1; None for no limit.
    regulariser
        h, which is added to the loss, such as `ElasticNet`; None: nothing is added.

    Raises `ConfigError` for anything else.

    Guarantee: the release spends the task's budget; it is (epsilon, delta)-DP if all records of one user are replaced
    by any others. Trust: the process that holds the window. Source: Kulkarni, Lee, Liu 2021; the
    argument and the differences are in `streamdp.windows.smoothed`.
    """

    objective: str = "erm"
    most_queries: int | None = None
    regulariser: Regulariser | None = None

    name: ClassVar[str] = "smoothed"

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        if self.most_queries is not None:
            check_whole("most_queries", self.most_queries, 1, MOST_RECORDS)
        if (h := self.regulariser) is not None and not 0 <= h.convexity <= h.smoothness < math.inf:
            raise ConfigError(
                "regulariser: expected constants 0 <= convexity <= smoothness, both finite, "
                f"got {h.convexity} and {h.smoothness}"
            )

    def __repr__(self) -> str:
        """States from before there were regularisers have it as without one."""
        rest = "" if self.regulariser is None else f", regulariser={self.regulariser!r}"
        return f"{type(self).__name__}(objective={self.objective!r}, most_queries={self.most_queries!r}{rest})"

    def plan(self, task: Task) -> Plan:
        """As `Method.plan`: of all runs whose bound is within 10 % of the least, those with the fewest gradients.

        The search uses the approximate noise of `subsampling.nearly_normal`, the plan the exact noise. Raises
        `TooFewUsersError` if the search finds no bound below L D, the bound of staying at the start, and `BudgetError`
        for a budget that is not (epsilon, delta).
        """
        build = self._search(task)
        if build is None:
            needed = self.least_users(task)
            raise TooFewUsersError(
                f"the noise leaves nothing to learn: expected at least {needed} users, got {task.users}", needed
            )
        plan: Plan = build(noise=partial(noise_multiplier, task.budget))
        return plan

    def least_users(self, task: Task) -> int:
        """As `Method.least_users`. Raises `ConfigError` if `plan` accepts no n."""

        def accepted(n: int) -> bool:
            return self._search(replace(task, users=n)) is not None

        high = 1
        while not accepted(high):
            high *= 2
            if high > _MOST_USERS:
                raise ConfigError("no number of users makes up for so few queries")
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if accepted(middle) else (middle, high)
        return high

    def run(self, plan: Plan, users: Users, start: np.ndarray, rng: Rng) -> Release:
        """As `Method.run`. `queries` is the expected number, because the true number would tell who was drawn."""
        theta, h = np.array(start, dtype=float), self.regulariser

        def gradient(run: Run, theta: np.ndarray) -> np.ndarray:
            noisy = noisy_gradient(run, plan.bound, users, rng, theta)
            return noisy if h is None else noisy + h.gradient(theta)

        def prox(theta: np.ndarray, size: float) -> np.ndarray:
            found = users.project(theta if h is None else h.prox(theta, size))
            if not np.all(np.isfinite(found)):
                raise ConfigError("regulariser: gradient and prox must return finite numbers")
            return found

        for run in plan.runs:
            theta = accelerate(run, theta, partial(gradient, run), prox)
        return Release(theta, plan.queries)

    def _search(self, task: Task) -> partial[Plan] | None:
        """How to build the best plan for given noise; None if no bound is below L D."""
        if not isinstance(task.budget, ApproxDP):
            raise BudgetError(f"expected an (epsilon, delta) budget, got {type(task.budget).__name__}")
        rough = rough_noise(task)
        every = builders(task, self.regulariser, self.objective == "sco", self.most_queries)
        found = [(build(noise=rough), build) for build in every]
        best = min(plan.excess for plan, _ in found)
        if best >= task.bound * task.distance:
            return None
        return min((pair for pair in found if pair[0].excess <= _SLACK * best), key=lambda pair: pair[0].queries)[1]


def noisy_gradient(run: Run, bound: float, users: Users, rng: Rng, theta: np.ndarray) -> np.ndarray:
    """An unbiased noisy gradient (d,) of the average loss of a run's users at theta (d,).

    It is the noisy sum over the drawn users, divided by their expected number. Raises `ConfigError` if a user's
    gradient is not finite or longer than the bound L, because it would not be protected.
    """
    mechanism = calibrated(Gaussian, GaussianDP(1 / run.noise), bound, bound)
    rows = mechanism.rows(len(theta))
    grid = rows[0, GRID]
    drawn = run.first + sample(run.last - run.first, run.rate, rng)
    total = np.zeros(len(theta))
    for at in range(0, len(drawn), _CHUNK):
        gradients = users.gradients(theta, drawn[at : at + _CHUNK], run.radius)
        if not np.all(np.linalg.norm(gradients, axis=1) <= bound * (1 + 1e-9)):
            raise ConfigError(f"users' gradients must be finite and of l2 norm at most {bound:g}")
        gradients /= grid
        np.rint(gradients, out=gradients)
        total += gradients.sum(axis=0)  # whole numbers: exact
        gradients[...] = 0
    total *= grid
    randomize_rows(mechanism.code, rows, total[None, :], rng)
    return total / (run.rate * (run.last - run.first))


def accelerate(
    run: Run,
    start: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    prox: Callable[[np.ndarray, float], np.ndarray],
) -> np.ndarray:
    """The output (d,) of one run from `start` (d,); see the head of this module.

    `gradient` estimates the gradient of F + g at a point. `prox` returns the minimiser (d,) of size s(v) + ||v - z||^2
    / 2 in the domain, of z (d,) and the size.
    """
    x = ag = start
    convexity, total = run.convexity, 0
    for t in range(1, run.steps + 1):
        weight = min(t, run.ramp)
        total += weight
        alpha, gamma = weight / total, 2 * run.modulus / total
        rest = (1 - alpha) * convexity + gamma
        md = ((1 - alpha) * (convexity + gamma) * ag + alpha * rest * x) / (gamma + (1 - alpha**2) * convexity)
        slope = gradient(md) + run.pull * (md - start)
        x = prox((alpha * convexity * md + rest * x - alpha * slope) / (convexity + gamma), alpha / (convexity + gamma))
        ag = alpha * x + (1 - alpha) * ag
    return ag
