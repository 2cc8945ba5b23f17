"""LDP-SGD and LDP-ASGD: noise on every record's gradient, a budget for every record.

    theta_i = Proj(theta_{i-1} - eta i^-alpha R_i(gradient of record i at theta_{i-1})),   i = 1, 2, ...

LDP-SGD answers with theta_n; LDP-ASGD with the average of theta_1, ..., theta_n, which is at least as good for
alpha <= 1/2 and has confidence intervals. Source: Shi, Xie, Jiang, Kong, He 2025, eq. 3.2 and 3.3, Theorems 1 to 6.

The argument. Assumption: the randomiser R_i of record i satisfies the record's budget for any two gradients that a
record can have at theta_{i-1} (`losses` derives their bound, `mechanisms` the noise). Neighbours: replace one record.
Whom to trust: nobody where the local half (`Randomizer`) runs on the person's side; the process that calls `learn_one`
otherwise. Proof: record i enters only through R_i. Given theta_{i-1}, which depends on earlier records only, R_i's
output protects record i with its budget, and everything later - theta_i and on, averages, intervals, predictions,
checkpoints - is computed from it and from other records: post-processing. A record enters once, so over disjoint
records the budgets do not add: parallel composition (their Proposition 1). Several records of one person do compose;
the ledger counts them. Every intermediate state is as private as the last, so the state may be saved after any record.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from streamdp.errors import ConfigError, NotAvailableError, SchemaError
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.estimators.linear import LinearClassifier, LinearModel, LinearRegressor
from streamdp.optim.domains import Domain, RealSpace
from streamdp.optim.inference import random_scaling_interval
from streamdp.optim.losses import Loss, Softmax
from streamdp.optim.steps import PowerStep
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import Mechanism, NoNoise, PrivUnit, calibrated, mechanism_for, record_rows

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

_STATE_FORMAT = 1

# Whatever is learned, absorbed or loaded within these, states stay far inside the doubles for 1e18 records: noise is at
# most about 1e75 (bounds of 1e60, the least budget, a billion parameters), and intervals take squares of theta.
_LARGEST_STEP = 1e6
_LARGEST_REPORT = 1e75
_LARGEST_THETA = 1e100
_LARGEST_SQUARES = 1e300
_MOST_RECORDS = 10**18


class _LDP(LinearModel):
    """The learner's half, and both in a row."""

    trust = (
        "nobody, where the randomizer runs on the person's side; otherwise the process that calls learn_one, "
        "which sees each record and forgets it"
    )
    _averaged: ClassVar[bool]

    mechanism: str | type[Mechanism]
    eta: float
    alpha: float

    def _set_up_learning(self, budget: Budget | str | None) -> None:
        self._set_up_model(RealSpace())
        self._step = PowerStep(self.eta, self.alpha)
        if self.eta > _LARGEST_STEP:
            raise ConfigError(f"eta: expected at most {_LARGEST_STEP:g}, got {self.eta:g}")
        self._rng = entropy(self.seed)
        self._set_up(budget)
        self._mechanism_of(self._budget)  # a budget that cannot be served is an error now, not at the first record

    def _allocate(self, p: int) -> None:
        from streamdp.optim import loops as k

        spec, self._box = self._describe(p)
        d = self._box.shape[1]
        spec[k.MECHANISM] = mechanism_for(self.mechanism, self._budget).code
        spec[k.ETA], spec[k.ALPHA], spec[k.AVERAGED] = self._step.eta, self._step.alpha, self._averaged
        self._spec = spec
        self._state = np.zeros((4, d))
        self._state[0] = self._state[1] = self._state[2] = self._loss.start(d)
        self._merged = False
        self._default_rows = self._mechanism_of(self._budget).rows(d)
        self._kernel = k.learn_classes if isinstance(self._loss, Softmax) else k.learn

    def _mechanism_of(self, budget: Budget) -> Mechanism:
        kind: Any = mechanism_for(self.mechanism, budget)
        return calibrated(kind, budget, self._loss.bound, self._loss.sensitivity)

    def _check(self, budget: Budget) -> None:
        self._mechanism_of(budget)

    def _learn_rows(self, X: np.ndarray, y: np.ndarray, budget: Budget | None, amounts: np.ndarray | None) -> None:
        rows, spec = self._default_rows, self._spec
        if budget is not None or amounts is not None:
            mechanism = self._mechanism_of(budget or self._budget)
            d = self._state.shape[1]
            rows = mechanism.rows(d, amounts) if budget is None else record_rows(mechanism, d)
            if mechanism.code != spec[_mechanism_index()]:
                spec = spec.copy()
                spec[_mechanism_index()] = mechanism.code
        rng = self._rng
        while (done := self._kernel(spec, self._box, self._state, self._seen, X, y, rows, rng.words)) < len(X):
            rng.refill_for(done)
            X, y = X[done:], y[done:]
            rows = rows if len(rows) == 1 else rows[done:]

    # -- the two halves -----------------------------------------------------------------------------------------

    @property
    def randomizer(self) -> Randomizer:
        """The local half at the present theta. `learn_one` is `absorb(randomizer(x, y))`."""
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        loss, theta = self._loss, self._state[0].copy()
        return Randomizer(theta, loss, self._names, bool(self.intercept), self._budget, self.mechanism, rng)

    def absorb(self, report: Report) -> None:
        """Apply one report, by whomever made. The guarantee takes over the report's budget.

        Raises `SchemaError` where it is not a finite vector of the right length. A learner cannot tell a forged report:
        a malicious client can push theta by eta_i times whatever it sends, up to 1e75 a coordinate.
        """
        self._need_features("absorb")
        g = np.ascontiguousarray(report.gradient, dtype=float)
        if g.shape != self._state[0].shape or not np.all(np.abs(g) <= _LARGEST_REPORT):
            raise SchemaError(f"report: expected a finite vector of shape {self._state[0].shape}, got shape {g.shape}")
        from streamdp.optim import loops

        with self._rng.lock:
            self._count(report.budget)
            self._tainted |= not report.private
            loops.absorb(self._spec, self._box, self._state, self._seen, g)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        return super().private and mechanism_for(self.mechanism, self._budget).code != NoNoise.code

    def _caveats(self) -> list[str]:
        if not self._names or mechanism_for(self.mechanism, self._budget).code != PrivUnit.code:
            return []
        delta = self._state.shape[1] * 2.0**-32
        return [
            f"PrivUnit is computed in doubles; who counts the arithmetic adds a delta of about {delta:.1g} to epsilon"
        ]

    def _estimate(self) -> np.ndarray:
        estimate: np.ndarray = self._state[1 if self._averaged else 0]
        return estimate

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers, text and arrays; private after any record. No generator is in it."""
        self._need_features("state_dict")
        with self._rng.lock:
            return {
                "format": _STATE_FORMAT,
                **self._model(),
                "state": self._state.copy(),
                "merged": self._merged,
                "n_seen": self.n_seen,
                "n_refused": self.n_refused,
                "spent": [str(budget) for budget in self._spent],
                "private": self.private,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises `ConfigError`, changing nothing, where it is of another model or format, or its
        theta is not in the domain.

        A state that was learned without privacy stays without: `guarantee.private` is False from then on.
        """
        try:
            taken = self._taker(state, _STATE_FORMAT)
            numbers = np.array(state["state"], dtype=float)
            spent = [parse_budget(text) for text in state["spent"]]
            counts = int(state["n_seen"]), int(state["n_refused"])
            merged, private = bool(state["merged"]), bool(state["private"])
        except KeyError as missing:
            raise ConfigError(f"state: lacks {missing}") from None
        if numbers.shape != taken._state.shape or not np.isfinite(numbers).all():
            raise ConfigError(f"state: expected finite numbers of shape {taken._state.shape}, got {numbers.shape}")
        if np.abs(numbers[:3]).max() > _LARGEST_THETA or np.abs(numbers[3]).max() > _LARGEST_SQUARES:
            raise ConfigError("state: numbers out of range")
        if not all(0 <= n <= _MOST_RECORDS for n in counts):
            raise ConfigError(f"state: expected counts from 0 to {_MOST_RECORDS}, got {counts}")
        for theta in numbers[:2]:
            taken._check_theta(theta)
        with self._rng.lock:
            if not self._names:
                self._declare(taken._names)
            self._set_spent(spent)
            self._merged, self._tainted = merged, not private
            self._state[:] = numbers
            self.n_seen, self.n_refused = counts

    def merged(self, *others: Self) -> Self:
        """A new estimator: the average of this and others, weighted by records, for learners of disjoint records.

        The guarantee is the widest of theirs (parallel composition: each record entered one of them), provided the
        records are disjoint; a person with records in several composes. What is lost against one pass over all records:
        each part keeps the bias of a shorter run, and there is no interval. Raises `ConfigError` where models differ.
        """
        parts = (self, *others)
        result = self._union(parts, "type, loss, domain, features, intercept and classes")
        result.n_seen = sum(part.n_seen for part in parts)
        if result.n_seen:
            result._state[:2] = sum(part._state[:2] * (part.n_seen / result.n_seen) for part in parts)
        result._merged = True
        return result


def _mechanism_index() -> int:
    from streamdp.optim.loops import MECHANISM

    return MECHANISM


class _Averaged(_LDP):
    """What only the average has."""

    def interval(self, level: float = 0.95) -> np.ndarray:
        """The (d, 2) confidence limits of theta by random scaling (see `inference`); spends nothing.

        `level` is one of 0.80, 0.90, 0.95, 0.98, 0.99. Coverage is asymptotic: it needs a well-specified, identified
        model, 1/2 <= alpha < 1 and enough records for theta to have settled. Raises `NotAvailableError` before the
        second record and after `merged`.
        """
        self._need_features("interval")
        if self._merged or self.n_seen < 2:
            raise NotAvailableError("interval: needs one pass over at least two records, and none after merged()")
        return random_scaling_interval(self._state[1], self._state[2], self._state[3], self.n_seen, level)


class _Regressor(_LDP, LinearRegressor):
    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        mechanism: str | type[Mechanism] = "auto",
        eta: float = 0.2,
        alpha: float = 0.5,
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.mechanism = mechanism
        self.eta = eta
        self.alpha = alpha
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self._set_up_learning(budget)


class _Classifier(_LDP, LinearClassifier):
    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        mechanism: str | type[Mechanism] = "auto",
        eta: float = 0.2,
        alpha: float = 0.5,
        domain: Domain | None = None,
        features: Sequence[str] | None = None,
        intercept: bool = True,
        ledger: Ledger | None = None,
        seed: int | None = None,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.loss = loss
        self.budget = budget
        self.mechanism = mechanism
        self.eta = eta
        self.alpha = alpha
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.classes = classes
        self._set_up_classes()
        self._set_up_learning(budget)


_PARAMETERS = """

    Parameters
    ----------
    loss
        A name or a `Loss`: {losses}.
    budget
        What a record that brings no budget of its own may spend; PureDP(1) when None. Text like "eps=1" works.
    mechanism
        "auto" (PrivUnit for PureDP, Gaussian for ApproxDP and GaussianDP), "laplace", "gaussian", "privunit", "none"
        (NOT private, for comparisons), or a `Mechanism` class.
    eta, alpha
        Step sizes eta i^-alpha; eta > 0, 0 <= alpha < 1.
    domain
        Where theta is projected to: `L2Ball`, `Box`, or None for all of R^d.
    features
        The declared public schema: feature names. Without it the names of the first record are taken, sorted.
    intercept
        Whether to add a constant 1 to x.
    ledger
        A `Ledger` that caps what each subject spends.
    seed
        For tests only: reproducible noise, and a statement that says "not private".{classes}

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Guarantee: each record has its own budget, against everyone who sees any state, for neighbours that differ in that
    record. Source: Shi et al. 2025, {source}; the argument is in `streamdp.estimators.ldp.learner`.

    Examples
    --------
    >>> model = {example}
    >>> model.learn_one({{"a": 1.0, "b": -1.0}}, {y})
    >>> model.n_seen, str(model.guarantee)
    (1, 'eps=1')
    """


def _document(name: str, headline: str, classifier: bool, source: str) -> str:
    extra = "\n    classes\n        The public labels; (False, True) when None. Others raise `SchemaError`."
    return headline + _PARAMETERS.format(
        losses='"logistic", "softmax" or "hinge"' if classifier else '"huber", "squared" or "quantile"',
        classes=extra if classifier else "",
        source=source,
        example=f'{name}(features=["a", "b"])',
        y="True" if classifier else "0.5",
    )


class LDPSGDRegressor(_Regressor):
    __doc__ = _document(
        "LDPSGDRegressor", "Regression by LDP-SGD: the last iterate.", False, "eq. 3.2, Theorems 1, 3 and 5"
    )
    _averaged = False


class LDPASGDRegressor(_Averaged, _Regressor):
    __doc__ = _document(
        "LDPASGDRegressor",
        "Regression by LDP-ASGD: the averaged iterate.",
        False,
        "eq. 3.3, Theorems 2, 4 and 6",
    )
    _averaged = True


class LDPSGDClassifier(_Classifier):
    __doc__ = _document(
        "LDPSGDClassifier",
        "Classification by LDP-SGD: the last iterate.",
        True,
        "eq. 3.2, Theorems 1, 3 and 5",
    )
    _averaged = False


class LDPASGDClassifier(_Averaged, _Classifier):
    __doc__ = _document(
        "LDPASGDClassifier",
        "Classification by LDP-ASGD: the averaged iterate.",
        True,
        "eq. 3.3, Theorems 2, 4 and 6",
    )
    _averaged = True
