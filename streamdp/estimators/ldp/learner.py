"""The learner of LDP-SGD and LDP-ASGD: noisy steps, reports and the state. The argument is in `ldp.estimators`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from streamdp.errors import ConfigError, NotAvailableError, SchemaError
from streamdp.estimators.ldp.randomizer import Randomizer, Report
from streamdp.estimators.linear import LinearModel, finite_array
from streamdp.optim.inference import random_scaling_interval
from streamdp.optim.losses import Softmax
from streamdp.optim.steps import PowerStep
from streamdp.privacy.entropy import Entropy, SeededEntropy, entropy
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Mechanism, NoNoise, PrivUnit, calibrated, mechanism_for, record_rows

# Within these limits states stay far inside the doubles for 1e18 records, however they are learned, absorbed or loaded:
# noise is at most about 1e75 (bounds of 1e60, the least budget, a billion parameters), and intervals take squares of
# theta.
_LARGEST_STEP = 1e6
_LARGEST_REPORT = 1e75
_LARGEST_THETA = 1e100
_LARGEST_SQUARES = 1e300


class LDPLearner(LinearModel):
    """The learner's half, and both halves in one process.

    `_state` (4, d) holds theta, its average, and for intervals the weighted mean and squares (see `inference`).
    """

    trust = (
        "nobody, if the randomizer runs on the person's side; otherwise the process that calls learn_one, "
        "which sees each record and forgets it"
    )
    _averaged: ClassVar[bool] = False

    mechanism: str | type[Mechanism]
    eta: float
    alpha: float
    _rng: Entropy | SeededEntropy

    def _set_up(self) -> None:
        super()._set_up()
        self._step = PowerStep(self.eta, self.alpha)
        if self.eta > _LARGEST_STEP:
            raise ConfigError(f"eta: expected at most {_LARGEST_STEP:g}, got {self.eta:g}")
        self._rng = entropy(self.seed)
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
        mechanism: Mechanism = calibrated(kind, budget, self._loss.bound, self._loss.sensitivity)
        return mechanism

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
        """The local half at the present theta. `learn_one` is `absorb(randomizer(x, y))`.

        Raises `NotAvailableError` before the features are known.
        """
        self._need_features("randomizer")
        rng = self._rng if isinstance(self._rng, SeededEntropy) else Entropy()
        loss, theta = self._loss, self._state[0].copy()
        return Randomizer(theta, loss, self._names, bool(self.intercept), self._budget, self.mechanism, rng)

    def absorb(self, report: Report) -> None:
        """Apply one report. The guarantee takes over the report's budget.

        A learner cannot recognise a forged report: a malicious client can move theta by eta_i times any vector with
        coordinates up to 1e75.

        Parameters
        ----------
        report
            A noisy gradient (d,) with its budget.

        Raises `SchemaError` if it is not a finite vector of the right length, and `NotAvailableError` before the
        features are known.
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
        """False with a seed or without noise, and after a state or report was taken over that is not private."""
        return super().private and mechanism_for(self.mechanism, self._budget).code != NoNoise.code

    def _caveats(self) -> list[str]:
        if not self._names or mechanism_for(self.mechanism, self._budget).code != PrivUnit.code:
            return []
        delta = self._state.shape[1] * 2.0**-32
        return [f"PrivUnit is computed in doubles; if the arithmetic is counted, it adds a delta of about {delta:.1g}"]

    def _estimate(self) -> np.ndarray:
        estimate: np.ndarray = self._state[1 if self._averaged else 0]
        return estimate

    # -- state --------------------------------------------------------------------------------------------------

    def _learned(self) -> dict[str, Any]:
        return {"state": self._state.copy(), "merged": self._merged}

    def _read(self, state: Mapping[str, Any]) -> Callable[[], None]:
        numbers = finite_array(state, "state", self._state.shape)
        merged = bool(state["merged"])
        if np.abs(numbers[:3]).max() > _LARGEST_THETA or np.abs(numbers[3]).max() > _LARGEST_SQUARES:
            raise ConfigError("state: numbers out of range")
        for theta in numbers[:2]:
            self._check_theta(theta)

        def take_over() -> None:
            self._state[:] = numbers
            self._merged = merged

        return take_over

    def _numbers(self) -> np.ndarray:
        numbers: np.ndarray = self._state[:2]
        return numbers

    def _start_from(self, numbers: np.ndarray) -> None:
        self._state[:2] = numbers

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        super()._start_from_average(parts)
        self._merged = True


def _mechanism_index() -> int:
    from streamdp.optim.loops import MECHANISM

    return MECHANISM


class AveragedLearner(LDPLearner):
    """The learner whose estimate is the average: it has confidence intervals."""

    _averaged = True

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Return the (d, 2) confidence limits of theta by random scaling (see `inference`); nothing is spent.

        Coverage is asymptotic: it needs a well-specified, identified model, 1/2 <= alpha < 1 and enough records for
        theta to converge.

        Parameters
        ----------
        level
            The confidence: 0.80, 0.90, 0.95, 0.98 or 0.99.

        Raises `NotAvailableError` before the second record and after `merged`, `ConfigError` for another level.
        """
        self._need_features("interval")
        if self._merged or self.n_seen < 2:
            raise NotAvailableError("interval: needs one pass over at least two records, and none after merged()")
        return random_scaling_interval(self._state[1], self._state[2], self._state[3], self.n_seen, level)
