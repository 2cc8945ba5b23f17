"""User-level local learning: one report protects all of a user's records that went into it.

For each batch of users the learner shows a point; a user averages the gradients of its records there and answers one
question about the average (`user_mean`: coarse, then fine); from the batch's mean the learner makes one accelerated
step: Bassily and Sun 2023, Algorithm 5, on Algorithms 1 to 3.

The argument. Neighbours: all records of one report replaced by any others. Whom to trust: nobody, where users hold
`randomizer` and the learner gets reports (`absorb`); the process, where it collects records (`learn_one` and its kin).
A report is (epsilon, delta)-DP for whatever the user's records are: their average gradient is in the convex hull of the
loss's gradients, so its norm and the distance of any two are at most those of single gradients, and that is all that
`user_mean` needs. That the average of m records lies nearer to the mean is used for accuracy only. Batches are
disjoint; what the learner computes from reports is post-processing. A user with several reports spends in each.

Collecting (`collecting`). The records of a subject are held in memory until there are `items_per_user` of them, the
window of `window` records ends, `window_seconds` are over, or `close_user` or `close_batch` is called; then the user
reports. The ledger is asked once a report, when its first record comes: a user over its cap is not even collected.
A user that is closed early is as well protected; its average lies farther from the others', and may be pulled in.

What may leave memory. The state holds reports and what follows from them, so it is private after each report, within
the gradient batch too; a saved state has the unfinished batch in it. Raw records of open users are in memory and in
nothing else: `at_boundary` is False while any user is open, and a copy or pickle does without them. So a committed
position never lies beyond the first record of an open user, and after a crash these are read again. Users whose records
are interleaved without end are all closed by the window, which therefore is always finite: it is what makes boundaries.

Centre. The coarse question needs averages to lie some eight spreads from its centre at most, and its users; at m = 16
that is more than the bound L itself. A learner needs less than a mean that may lie anywhere: near the optimum the mean
gradient is near zero. So by default (`centre="zero"`) nobody is asked the coarse question, and averages v are cut to
the ball of radius C = s around zero, s being the `spread`; with m = 1 and the default s = L that is no cut at all.
* What it gains: noise for C instead of L, sqrt(m) times less with the default s.
* What it costs near the optimum: |x| - C <= x^2 / (4 C) for every x, so the cut moves the mean by at most E||v||^2 /
  (4 C), which is s/4 where the mean is zero, and s/(4 k^2) where the true spread is s/k. This is the worst case over
  distributions, and does not fall with n; averages that lie symmetrically around zero are not moved at all.
* What it costs far away: where the mean is longer than C the steps are those of a gradient of length about C, in its
  direction. All steps of a plan together are then sum_t (t+1) C / M long, about D sqrt(3 n / (4 (1 + v))) where noise
  of variance v C^2 a user decides M (`acceleration`): at least D from n = 4/3 (1 + v) users on.
`centre="asked"` is the paper's way, for which Theorem 3.2 holds without these costs; it needs many more users.

Steps. Algorithm 5 prints theta = md - eta g; the bound that it cites (Lan 2012) is for a step from theta, and that is
what `acceleration` does, with the bound's constants and the variance that the mean of a batch has: privacy's, and the
spread of users. The paper's batches of d/eps^2 users are fewer than its own mean estimation asks for; batches are
chosen by the bound instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from streamdp.estimators.linear import LinearClassifier, LinearRegressor
from streamdp.estimators.user.learner import UserLearner
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.privacy.guarantees import Budget

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

ITEMS = 16
WINDOW = 10_000

_PARAMETERS = """

    Parameters
    ----------
    loss
        A name or a `Loss`: {losses}. A non-smooth one is replaced by its Moreau envelope.
    budget
        What every report spends: ApproxDP or GaussianDP (Gaussian noise), or PureDP (PrivUnit, less noise here);
        ApproxDP(1, 1e-6) when None. Text like "mu=1" works.
    items_per_user
        m, from 1 to 2^20: how many records of a subject make a report, at most.
    window
        From 1 to 2^31: after so many records of the stream, all users report on what they have.
    window_seconds
        So do they after a call of learn_one or its kin that finds a user open for so long; None: they wait.
    spread
        The root mean square distance of a user's average gradient from that of all users, where you know it from
        public data; bound / sqrt(m) when None, which is right where a user's records are as different as two users'.
        For accuracy only: averages are cut by it, and the noise is made for what is left.
    centre
        "zero": averages are cut to the spread, around zero. "asked": where it pays, some users are asked where the
        averages lie, as in the paper, and the others' are cut around that. For accuracy only, see the module.
    domain
        Where theta is kept: `L2Ball` or a bounded `Box`; L2Ball(5) when None. Steps are planned from its size.
    features
        The declared public schema: feature names. Without it the names of the first record are taken, sorted.
    intercept
        Whether to add a constant 1 to x.
    ledger
        A `Ledger` that caps what each subject spends, a budget a report.
    seed
        For tests only: reproducible noise, and a statement that says "not private".
    horizon
        How many reports the stream will have; batches and steps are planned for it. None: in epochs, of 1024 reports
        and then each of twice as many. Either way learning may go on beyond it.
    batch_size
        Reports of a batch; None: what minimises the error bound, see `acceleration`.
    smoothness
        The loss's smoothness constant, where you know a smaller one than the loss does.
    strong_convexity
        lambda >= 0 of the expected loss, where you know one: learning goes in phases then.{classes}

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Guarantee: each report has `budget`, against everyone who sees it and any state, for neighbours that differ in all
    records of that report (user level). A subject with several reports spends in each; a ledger caps the sum. Source:
    Bassily, Sun 2023, Algorithms 1 to 3 and 5, Theorems 3.2 and 4.3; the argument, and what is mended in them, is in
    `streamdp.estimators.user.public` and `streamdp.aggregation.local_mean`.

    Examples
    --------
    >>> model = {example}
    >>> for subject in ("ann", "bob", "ann"):
    ...     model.learn_one({{"a": 1.0, "b": -1.0}}, {y}, subject=subject)
    >>> model.n_seen, model.n_users, str(model.guarantee), model.at_boundary  # ann has reported, bob is open
    (3, 1, 'eps=1,delta=1e-06', False)
    """


class UserLevelLDPRegressor(UserLearner, LinearRegressor):
    __doc__ = "Regression from locally private reports, one on all records of a user." + _PARAMETERS.format(
        losses='"huber", "squared" or "quantile"',
        classes="",
        example='UserLevelLDPRegressor(features=["a", "b"], items_per_user=2)',
        y="0.5",
    )

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        items_per_user: int = ITEMS,
        window: int = WINDOW,
        window_seconds: float | None = None,
        spread: float | None = None,
        centre: str = "zero",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.items_per_user = items_per_user
        self.window = window
        self.window_seconds = window_seconds
        self.spread = spread
        self.centre = centre
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.horizon = horizon
        self.batch_size = batch_size
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self._set_up_users(budget)


class UserLevelLDPClassifier(UserLearner, LinearClassifier):
    __doc__ = "Classification from locally private reports, one on all records of a user." + _PARAMETERS.format(
        losses='"logistic", "softmax" or "hinge"',
        classes="\n    classes\n        The public labels; (False, True) when None. Others raise `SchemaError`.",
        example='UserLevelLDPClassifier(features=["a", "b"], items_per_user=2)',
        y="True",
    )

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        items_per_user: int = ITEMS,
        window: int = WINDOW,
        window_seconds: float | None = None,
        spread: float | None = None,
        centre: str = "zero",
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        horizon: int | None = None,
        batch_size: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.items_per_user = items_per_user
        self.window = window
        self.window_seconds = window_seconds
        self.spread = spread
        self.centre = centre
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.horizon = horizon
        self.batch_size = batch_size
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self.classes = classes
        self._set_up_classes()
        self._set_up_users(budget)
