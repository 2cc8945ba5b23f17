"""Windowed learning: the operator holds one window of users in memory, learns from it in many passes, and deletes it.

Neighbours: all records of one user in one window replaced by any others. Trust: the operator, while a window lasts.
Claim: the release of each window is (epsilon, delta)-DP. Disjoint windows compose in parallel; a user with records in
two windows spends in both. The records are in the window's buffer and nowhere else, and are overwritten after the
release. Every window continues from what the last one released.

Proof: docs/proofs/windowed.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamdp.estimators.batch_methods import interval, settling
from streamdp.estimators.estimator import Estimator, counted
from streamdp.estimators.parameters import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, documented, given
from streamdp.estimators.targets import Classifier, Regressor
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.user_reports import ITEMS, WINDOW
from streamdp.learners.user_windows import WindowPlan, Windows
from streamdp.privacy.entropy import Rng
from streamdp.privacy.guarantees import Budget
from streamdp.windows.records import WindowUsers
from streamdp.windows.task import Method


@dataclass(eq=False, repr=False, kw_only=True)
class _Windowed(Estimator):
    """Windowed learning.

    Guarantee: the release of each window has `budget`, for neighbours that differ in all records of one user in it
    (user level). A subject in several windows spends in each; a ledger caps the sum. The proofs, with their
    sources, are docs/proofs/windowed.md and the pages of the methods.

    Raises `ConfigError` and `BudgetError` for parameters out of range, and `TooFewUsersError`, which says how many are
    needed, if a window has fewer records than the method's theorem needs users.

    Parameters
    ----------
    budget
        What a window spends, for each user in it: ApproxDP, or text such as "eps=2", which has a delta of 1e-6, or
        "eps=1,delta=1e-9"; ApproxDP(1, 1e-6) if None. Other kinds raise `BudgetError`.
    method
        How to learn from a window: a name, or a method object with parameters of its own. "auto" is "newton" where the
        loss allows it, otherwise "private-range", whatever the size of a window.
        "newton" (`NewtonSteps`; streamdp): noisy averaged Newton steps, for Huber, squared, Poisson, logistic and
        softmax losses without clip; it uses no domain, smoothness or strong convexity, and learns from all windows
        together.
        "private-range" (`PrivateRange`; Bassily, Sun 2023, Algorithm 4): noisy accelerated steps; if it reduces the
        noise, it first finds the range of the users' gradients and adds noise for that range only; it needs a number of
        users that grows like sqrt(d).
        "outlier-removal" (`OutlierRemoval`; Asi, Liu 2023): similar, with a number of users that does not grow with d;
        for users with thousands of records.
        "smoothed" (`ConvolutionSmoothing`; Kulkarni, Lee, Liu 2021): few gradients of sampled users, for large
        windows.
    window
        From 1 to 2^31: after this many records of the stream the window ends, if it has enough users.
    ledger
        A `Ledger` that caps what each subject spends, one budget for each window; None: no cap.
    features
        The declared public schema: the names of the features, or bounds (low, high), a list of categories or {"bounds":
        (low, high)} by feature. With the latter, records come raw, and weights are in original units. If None, the
        names of the first record are taken, sorted.
    scaling
        "private": columns and targets with declared bounds are centred and scaled by noisy moments of the first
        windows, which spend a tenth of their mu^2 on that (see `window_moments`); "none"; None: "private" with method
        "newton", if there are bounds, an intercept and no domain, else "none" for columns.
    strong_convexity
        lambda >= 0 of the expected loss, if it is known. At most 4 bound / width of the domain.
    loss
        A name or a `Loss`: {losses}.
        A non-smooth loss is smoothed by convolution with a small ball; another one that clips gradients needs
        `smoothness`.
    """

    method: Literal["auto", "newton", "private-range", "outlier-removal", "smoothed"] | Method = "auto"
    items_per_user: int = ITEMS
    window: int = WINDOW
    spread: float | None = None
    smoothness: float | None = None
    strong_convexity: float = 0.0
    scaling: Literal["private", "none"] | None = None
    validation: Mapping[str, object] | None = None
    learns = Windows
    n_users = counted("n_users", "Users that were learned from; a user counts once for each window.")
    n_windows = counted("n_windows", "Windows released.")
    n_stopped = counted(
        "n_stopped", "Windows whose method stopped early because its private test of the users' agreement failed."
    )
    interval = interval
    settling = settling

    def _make_learner(self, problem: LinearProblem, budget: Budget, rng: Rng) -> Windows:
        return Windows(problem, budget, rng, given(WindowPlan, self))

    def take_records(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """End the open window without a release and return its raw records, for `users_of`.

        It is for a process that holds a part of the users of a window, while another one calls `learn_users`. The
        records are counted in `n_seen`. Of them, only sums that the other process alone can read may be passed on.
        """
        with self.learner.rng.lock:
            assert isinstance(self.learner, Windows)
            return self.learner.gathered.close()[0][:3]

    def learn_users(self, users: WindowUsers, n: int, records: int) -> None:
        """Release a window whose records are in other processes: its proof does not ask where the users are.

        Parameters
        ----------
        users
            All users of the window, with at most `items_per_user` records each. Their sums are exact.
        n, records
            How many users there are, and how many records they have.

        Raises `TooFewUsersError`, before anything is counted; `NotAtBoundaryError` if a window is open here, and
        `ConfigError` without `sums_only`.
        """
        with self.learner.rng.lock:
            self._learner(Windows, "learn_users").learn_users(users, n, records, self._count)


@documented(losses=REGRESSION_LOSSES, units="of half their width")
@dataclass(eq=False, repr=False)
class WindowedRegressor(Regressor, _Windowed):
    """Regression from tumbling windows of users, with a trusted operator.

    Examples
    --------
    >>> model = WindowedRegressor(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, 0.5, subject="ann")
    >>> model.n_seen, model.n_windows, model.at_boundary  # the window is open
    (1, 0, False)
    """


@documented(losses=CLASSIFICATION_LOSSES, units="of half their width")
@dataclass(eq=False, repr=False)
class WindowedClassifier(Classifier, _Windowed):
    """Classification from tumbling windows of users, with a trusted operator.

    Examples
    --------
    >>> model = WindowedClassifier(features=["a", "b"])
    >>> model.learn_one({"a": 1.0, "b": -1.0}, True, subject="ann")
    >>> model.n_seen, model.n_windows, model.at_boundary  # the window is open
    (1, 0, False)
    """
