"""Windowed learning: the operator holds one window of users in memory, learns from it in many passes, and forgets it.

The argument. Neighbours: all records of one user in one window replaced by any others. Whom to trust: the operator, for
as long as a window lasts. Windows are tumbling, so a user's records in a window are in no other one; each window's
release is (epsilon, delta)-DP by its method's argument (`windows.outliers`, `windows.ranges`, `windows.smoothed`), and
whatever is computed from releases is post-processing: disjoint windows compose in parallel. A user who is seen in two
windows spends in both; a ledger adds these up and refuses the user where they would pass the cap. The ledger is asked
once a window, when a user's first record comes: a user over its cap is not even collected.

The window (`gathering`). It begins with the first record that is taken, and ends after `window` records of the stream,
those counted that are refused for their subject. A user gives up to `items_per_user` of them, and further ones are
refused. Where a window has fewer users than the method's theorem needs, it goes on for another `window` records, until
it has enough: no budget is spent on a release that cannot succeed. Fewer records than the users that are needed make no
window: that is a `TooFewUsersError` at once.

What may leave memory. The buffer is in memory and in nothing else, is overwritten after the release, and a copy or
pickle does without it. The state holds the last release, so it may be saved between windows only (`at_boundary`); a
window that was cut off by a crash or the end of a run is read again from the source, none of it having been released.

Every window goes on from the last one's theta, which is public by then; steps are planned as from the first start.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from streamdp.estimators.linear import LinearClassifier, LinearRegressor
from streamdp.estimators.windowed.learner import WindowLearner
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.privacy.guarantees import Budget
from streamdp.windows.task import Method

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

ITEMS = 16
WINDOW = 10_000

_PARAMETERS = """

    Parameters
    ----------
    loss
        A name or a `Loss`: {losses}. A non-smooth one is smoothed by convolution with a small ball.
    budget
        What a window spends, for each user in it: ApproxDP, or text like "eps=1,delta=1e-6"; ApproxDP(1, 1e-6) when
        None. Other kinds raise `BudgetError`.
    method
        How a window is learned from: a name or a method object with parameters of its own.
        "private-range" (`PrivateRange`; Bassily, Sun 2023, Algorithm 4): noisy accelerated steps; where it pays, it
        first finds out where the users' gradients lie and adds noise for that only; it takes users like sqrt(d).
        "outlier-removal" (`OutlierRemoval`; Asi, Liu 2023): as that, with a number of users that does not grow with d;
        for users with thousands of records.
        "smoothed" (`ConvolutionSmoothing`; Kulkarni, Lee, Liu 2021): few gradients of sampled users, for large windows.
    items_per_user
        m, from 1 to 2^20: how many records of a subject are taken in a window, at most.
    window
        From 1 to 2^31: after so many records of the stream the window ends, if it has enough users.
    spread
        The root mean square distance of a user's average gradient from that of all users, where you know it from
        public data; bound / sqrt(m) when None. For accuracy only.
    domain
        Where theta is kept: `L2Ball` or a bounded `Box`; L2Ball(5) when None. Steps are planned from its size.
    features
        The declared public schema: feature names. Without it the names of the first record are taken, sorted.
    intercept
        Whether to add a constant 1 to x.
    ledger
        A `Ledger` that caps what each subject spends, a budget a window.
    seed
        For tests only: reproducible noise, and a statement that says "not private".
    smoothness
        The loss's smoothness constant, where you know a smaller one than the loss does.
    strong_convexity
        lambda >= 0 of the expected loss, where you know one.{classes}

    Raises `ConfigError` and `BudgetError` for parameters out of range, and `TooFewUsersError`, which says how many are
    needed, where a window has fewer records than the method's theorem asks for users.

    Guarantee: each window's release has `budget` for neighbours that differ in all records of one user in it (user
    level). A subject in several windows spends in each; a ledger caps the sum. The arguments are in
    `streamdp.estimators.windowed.public` and the modules of the methods.

    Examples
    --------
    >>> model = {example}
    >>> model.learn_one({{"a": 1.0, "b": -1.0}}, {y}, subject="ann")
    >>> model.n_seen, model.n_windows, model.at_boundary  # the window is open
    (1, 0, False)
    """


class WindowedRegressor(WindowLearner, LinearRegressor):
    __doc__ = "Regression from tumbling windows of users, whom the operator may see." + _PARAMETERS.format(
        losses='"huber", "squared" or "quantile"',
        classes="",
        example='WindowedRegressor(features=["a", "b"])',
        y="0.5",
    )

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        method: str | Method = "private-range",
        items_per_user: int = ITEMS,
        window: int = WINDOW,
        spread: float | None = None,
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.method = method
        self.items_per_user = items_per_user
        self.window = window
        self.spread = spread
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self._set_up_windows(budget)


class WindowedClassifier(WindowLearner, LinearClassifier):
    __doc__ = "Classification from tumbling windows of users, whom the operator may see." + _PARAMETERS.format(
        losses='"logistic", "softmax" or "hinge"',
        classes="\n    classes\n        The public labels; (False, True) when None. Others raise `SchemaError`.",
        example='WindowedClassifier(features=["a", "b"])',
        y="True",
    )

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        method: str | Method = "private-range",
        items_per_user: int = ITEMS,
        window: int = WINDOW,
        spread: float | None = None,
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.method = method
        self.items_per_user = items_per_user
        self.window = window
        self.spread = spread
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self.classes = classes
        self._set_up_classes()
        self._set_up_windows(budget)
