"""Users with many records each, a user-level learner and what one does without it: for measuring (`user_level`).

Three ways to learn from n users with m records each under one local budget for all of a user's records:

* `UserLevel`: one report on the average gradient of all m (Bassily, Sun 2023), what the library does.
* `OneRecord`: each user picks one of its records at random and reports on that; the others are not used.
* `GroupPrivacy`: item-level privacy, each record its own report, so weak that all m together keep the user's budget.
  m reports of mu/sqrt(m)-GDP, each at a point that may depend on the earlier ones, are together mu-GDP and no better
  (Dong, Roth, Su 2022, Corollary 3.3), so this is the least noise that Gaussian reports can have; for (epsilon, delta)
  mu is the largest that implies it. Under pure epsilon the budget of a record is epsilon / m, and no less noise will do
  in general.

All are the same learner with the same steps and mechanisms: the last two have one record a report. So what differs is
what a report is about. The two baselines are here for comparison only and are not part of the library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.special import expit

from streamdp.aggregation.local_mean import UserMean
from streamdp.estimators.user.estimators import UserLevelLDPClassifier
from streamdp.optim.domains import L2Ball
from streamdp.optim.user_averages import average_gradients, gradients
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP, PureDP
from studies.excess import NAMES, SETTINGS, D, Setting

_MOST = 2**18  # records at a time


@dataclass(frozen=True, eq=False)
class Population:
    """Users. Each is of one kind, and a kind has a share of the users and a multiple of `setting.truth` as its theta*;
    within a user records are independent, and y is 1 with the chance of the logistic model. With one kind users are all
    alike, as the paper has it.
    """

    name: str
    setting: Setting
    shares: tuple[float, ...] = (1.0,)
    multiples: tuple[float, ...] = (1.0,)

    @cached_property
    def odds(self) -> np.ndarray:
        """The chance that y is 1, by kind and point."""
        return np.asarray(expit(np.outer(self.multiples, self.setting.points @ self.setting.truth)))

    @cached_property
    def truth(self) -> np.ndarray:
        """The minimum of the expected loss (d,), by Newton's method."""
        X, odds, theta = self.setting.points, self.shares @ self.odds, self.setting.truth
        for _ in range(50):
            p = expit(X @ theta)
            theta = theta - np.linalg.solve(X.T * (p * (1 - p)) @ X, X.T @ (p - odds))
        return np.asarray(theta)

    @property
    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Every record there is: X (c, d), y (c,), by point, then by target."""
        return np.repeat(self.setting.points, 2, axis=0), np.tile([0.0, 1.0], len(self.setting.points))

    def draw(self, rng: np.random.Generator, users: int, items: int) -> np.ndarray:
        """Which cell each record is, (users, items)."""
        point = rng.integers(0, len(self.setting.points), (users, items))
        uniform = rng.random((users, items))
        kind = rng.choice(len(self.shares), size=(users, 1), p=self.shares) if len(self.shares) > 1 else 0
        return point * 2 + (uniform < self.odds[kind, point])

    def excess(self, theta: np.ndarray) -> float:
        """E f(theta) - f(theta*), exactly."""
        u, best = self.setting.points @ theta, self.setting.points @ self.truth
        odds = self.shares @ self.odds
        return float(np.mean(np.logaddexp(0, u) - np.logaddexp(0, best) - odds * (u - best)))

    @property
    def start(self) -> float:
        """The excess of theta_0 = 0."""
        return self.excess(np.zeros(D))

    @cache  # noqa: B019 - there are few populations
    def spread(self, items: int) -> float:
        """The root mean square distance of a user's average gradient of so many records from that of all, at theta_0
        or the optimum, where it is larger: what public data of such users would tell."""
        X, y = self.cells
        chances = np.stack([1 - self.odds, self.odds], axis=2).reshape(len(self.shares), -1) / len(self.setting.points)
        found = []
        for theta in (np.zeros(D), self.truth):
            G = gradients(self.setting.loss.spec(), theta, X, y)
            mean = self.shares @ chances @ G
            total = self.shares @ chances @ np.sum((G - mean) ** 2, axis=1)
            between = self.shares @ np.sum((chances @ G - mean) ** 2, axis=1)
            found.append(math.sqrt(between + (total - between) / items))
        return max(found)


LOGISTIC = Population("logistic", SETTINGS[0])
FAMILY = tuple(Population(f"logistic, scale 2^-{k}", member) for k, member in enumerate(SETTINGS[0].family()))
"""The worst of them at each n and m is what a theorem about all distributions is about: see `rates`."""
DIFFERENT = Population("logistic, users differ", SETTINGS[0], (0.75, 0.25), (1.0, 0.0))
"""A quarter of the users have theta* = 0: their averages lie elsewhere however many records they have."""


@dataclass(frozen=True)
class Contender:
    """A way to learn. `known`: the spread of what is reported on is known from public data; else the bound over
    sqrt(m) is taken. `planned`: by AC-SA, whose steps are planned, and not by the library's default."""

    name: str
    known: bool = False
    planned: bool = True

    def reports(self, users: int, items: int) -> tuple[int, int]:
        """How many reports there are, and on how many records each."""
        return users, items

    def budget(self, whole: Budget, items: int) -> Budget:
        """What one report spends where a user may spend `whole`."""
        return whole

    def spread(self, population: Population, size: int) -> float | None:
        """What reports on so many records are cut to; None: the estimator's default."""
        return population.spread(size) if self.known else None

    def model(self, population: Population, whole: Budget, users: int, items: int, seed: int) -> Any:
        """A fresh estimator."""
        horizon, size = self.reports(users, items)
        setting = population.setting
        return UserLevelLDPClassifier(
            setting.loss,
            self.budget(whole, items),
            items_per_user=size,
            spread=self.spread(population, size),
            domain=L2Ball(setting.radius),
            features=NAMES,
            intercept=False,
            horizon=horizon if self.planned else None,
            seed=seed,
        )

    def learn(self, population: Population, whole: Budget, users: int, items: int, seed: int) -> np.ndarray:
        """theta (d,) after all users. The seed is for users and noise."""
        model = self.model(population, whole, users, items, seed)
        ask(model, population, *self.reports(users, items), np.random.default_rng((seed, users, items)))
        return model.theta


class UserLevel(Contender):
    """One report on all of a user's records."""


class OneRecord(Contender):
    """One report on one of them."""

    def reports(self, users: int, items: int) -> tuple[int, int]:
        return users, 1


@dataclass(frozen=True)
class CutRecord(OneRecord):
    """The same, cut to `cut` times the loss's bound: whether it is the records that help, or only the cut."""

    cut: float = 1.0

    def spread(self, population: Population, size: int) -> float | None:
        return self.cut * population.setting.loss.bound


class GroupPrivacy(Contender):
    """A report on each, and one budget for all."""

    def reports(self, users: int, items: int) -> tuple[int, int]:
        return users * items, 1

    def budget(self, whole: Budget, items: int) -> Budget:
        if isinstance(whole, PureDP):
            return PureDP(whole.epsilon / items)
        mu = GaussianDP.from_approx(whole).mu if isinstance(whole, ApproxDP) else whole.mu
        return GaussianDP(mu / math.sqrt(items))


def ask(model: Any, population: Population, users: int, items: int, rng: np.random.Generator) -> None:
    """What `learn_arrays` does with the records of so many users, one after another, some ten times as fast.

    There are few different records, so their gradients are computed once a batch; what a user reports, and how, is the
    estimator's own.
    """
    X, y = population.cells
    cells = np.arange(len(X) + 1)
    while users:
        block = population.draw(rng, min(users, max(1, _MOST // items)), items)
        users -= len(block)
        while len(block):
            turn, block = np.split(block, [model.learner._turn])
            table = average_gradients(
                model.learner.spec, model.learner.problem.loss, model.learner.middle, X, y, cells, cells[:-1]
            )
            model.learner._answer(table.T[:, turn].sum(axis=2).T / items)


def coarse_batch(budget: Budget, spread: float) -> tuple[int, float] | None:
    """From how many users in one batch the paper's two questions have less noise than one around zero with C = L, and
    their radius C then, for L = 1; None: not below 10^12."""
    low, high = 1, 10**12
    if not UserMean.planned(budget, 1.0, 2.0, D, high, spread).coarse:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if UserMean.planned(budget, 1.0, 2.0, D, middle, spread).coarse else (middle, high)
    return high, UserMean.planned(budget, 1.0, 2.0, D, high, spread).radius
