"""Pan-private AC-SA: a state that survives one break-in.

For each batch of b records (Cheu, Joseph, Mao, Peng 2022, Appendix C, Algorithm 6):

    A = Z_a;   A = A + gradient of record i at md, for each record;   G = (A + Z_b) / b;   an accelerated step with G,

with Z_a and Z_b from N(0, zeta^2 I), the least zeta for which either of them alone protects a sum whose sensitivity is
S, the largest distance of two gradients (analytic calibration; the paper's 8 L^2 ln(2/delta) / eps^2 holds for eps < 1
and is larger). The steps are `acceleration`'s.

The argument. Neighbours: replace one record, say record i of batch t. Whom to trust: the operator while the record
passes through memory, and nobody afterwards. The adversary sees the whole state once, at a moment of its choice, all
states at boundaries (whatever is saved or served), and the output. Earlier batches do not depend on the record.
Break-in before it: the state is independent of it; what follows is computed from A + Z_b of batch t, of which Z_b is
fresh. Break-in after it but within the batch: A is a Gaussian mechanism with Z_a, and everything later is computed from
A, other records and fresh noise. Break-in later: what is seen is computed from A + Z_b. In each case all that is seen
is post-processing of one Gaussian mechanism with sensitivity S: the record's budget, (epsilon, delta) or mu.

What follows for the code: noise is drawn from the operating system when it is needed and wiped when it is added, and
no generator, key or noise is kept; the sum lives on a grid of integers (see `entropy`: rounding every gradient moves
two of them apart by at most sqrt(d) h, which the calibration counts); a record's gradient is wiped when it is added;
the state leaves memory at boundaries only (tests/statistical/test_intruder.py). Two break-ins within a batch are not
covered, and a fork of the process within one is a second copy of the sum. Nor is the process around the estimator:
benchmarks/memory_dump.md measures what fetch buffers and freed memory still hold of raw records.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.errors import ConfigError
from streamdp.estimators.batched import BatchedModel
from streamdp.estimators.linear import LinearClassifier, LinearRegressor
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss, Softmax
from streamdp.privacy.entropy import FreshWords, SeededEntropy
from streamdp.privacy.guarantees import Budget
from streamdp.privacy.mechanisms import Gaussian

if TYPE_CHECKING:
    from streamdp.ledger.ledger import Ledger

_MECHANISMS = ("auto", "gaussian", "none")


class _PanPrivate(BatchedModel):
    """The sum of a batch between its two noises."""

    trust = (
        "the operator while a record passes through memory; afterwards nobody: it protects against one break-in into "
        "the memory of this estimator at any moment, together with everything that was ever saved or served"
    )

    mechanism: str

    def _set_up_pan(self, budget: Budget | str | None) -> None:
        if self.mechanism not in _MECHANISMS:
            raise ConfigError(f"mechanism: expected one of {', '.join(_MECHANISMS)}, got {self.mechanism!r}")
        self._rng: Any = FreshWords() if self.seed is None else SeededEntropy(self.seed)
        self._set_up_batches(budget)
        self._calibration()

    def _calibration(self) -> Gaussian:
        return Gaussian(self._budget, self._loss.bound, self._loss.sensitivity)

    def _allocate(self, p: int) -> None:
        from streamdp.optim import loops
        from streamdp.privacy import samplers

        d = self._loss.size(p + int(self.intercept), self._outputs())
        row = self._calibration().rows(d)[0]
        self._cells = 1 / row[samplers.GRID]
        self._scale = 0.0 if self.mechanism == "none" else float(row[samplers.SCALE] * self._cells)
        self._total = np.zeros(d, dtype=np.int64)
        self._room = np.zeros(d + 1)
        self._accumulate = loops.accumulate_of_classes if isinstance(self._loss, Softmax) else loops.accumulate
        super()._allocate(p)

    @property
    def private(self) -> bool:
        return super().private and self.mechanism != "none"

    def _noise(self, batch: int) -> float:
        return 2 * len(self._total) * (self._scale / self._cells / batch) ** 2

    def _open(self) -> None:
        self._add_noise()

    def _add(self, X: np.ndarray, y: np.ndarray) -> None:
        self._accumulate(self._spec, self._middle, X, y, self._cells, self._total, self._room)

    def _close(self, records: int) -> np.ndarray:
        self._add_noise()
        gradient: np.ndarray = self._total / (self._cells * self.phase.batch)
        return gradient

    def _empty(self) -> dict[str, np.ndarray]:
        return {"_total": np.zeros_like(self._total), "_room": np.zeros_like(self._room)}

    def _add_noise(self) -> None:
        """Add fresh noise to the sum. It is wiped, for who finds it in memory that was freed can take it off again."""
        noise = self._noises()
        self._total += noise
        noise[:] = 0

    def _noises(self) -> np.ndarray:
        """N(0, zeta^2 I) in cells of the grid, from words that nobody keeps."""
        from streamdp.privacy.samplers import normals

        out = np.zeros(len(self._total), dtype=np.int64)
        size = 2 * len(out) + 64
        while self._scale:
            words = self._rng.draw(size)
            enough = normals(words, self._scale, out)
            words[:] = 0
            if enough:
                break
            size *= 2
        return out

    def _caveats(self) -> list[str]:
        return ["two break-ins within one batch are not covered", *super()._caveats()]


_PARAMETERS = """

    Parameters
    ----------
    loss
        A name or a `Loss`: {losses}. A non-smooth one is replaced by its Moreau envelope; one that clips
        gradients and is none of these needs `smoothness`.
    budget
        What every record spends: ApproxDP or GaussianDP; ApproxDP(1, 1e-6) when None. Text like "mu=1" works.
    mechanism
        "auto" or "gaussian", or "none" (NOT private, for comparisons).
    domain
        Where theta is kept: `L2Ball` or a bounded `Box`; L2Ball(5) when None. Steps are planned from its size.
    features
        The declared public schema: feature names. Without it the names of the first record are taken, sorted.
    intercept
        Whether to add a constant 1 to x.
    ledger
        A `Ledger` that caps what each subject spends.
    seed
        For tests only: reproducible noise, and a statement that says "not private".
    horizon
        How many records the stream will have; batches and steps are planned for it. None: in epochs, of 1024 records
        and then each of twice as many. Either way learning may go on beyond it.
    batch_size
        Records of a batch, or all of a shorter epoch or phase; None: what minimises the error bound, see
        `acceleration`.
    smoothness
        The loss's smoothness constant, where you know a smaller one than the loss does.
    strong_convexity
        lambda >= 0 of the expected loss, where you know one: learning goes in phases then.{classes}

    Raises `ConfigError` and `BudgetError` for parameters out of range.

    Guarantee: each record has `budget`, against everyone who sees the state once at any moment and everything that is
    ever saved or served, for neighbours that differ in that record. Source: Cheu, Joseph, Mao, Peng 2022, Algorithm 6,
    Theorem C.3; the argument is in `streamdp.estimators.pan`.

    Examples
    --------
    >>> model = {example}
    >>> model.learn_one({{"a": 1.0, "b": -1.0}}, {y})
    >>> model.n_seen, str(model.guarantee), model.at_boundary
    (1, 'eps=1,delta=1e-06', False)
    """


class PanPrivateRegressor(_PanPrivate, LinearRegressor):
    __doc__ = "Regression by pan-private accelerated SGD." + _PARAMETERS.format(
        losses='"huber", "quantile" or `Squared(clip=None, target_bound=..., radius=...)`',
        classes="",
        example='PanPrivateRegressor(features=["a", "b"])',
        y="0.5",
    )

    def __init__(
        self,
        loss: str | Loss = "huber",
        budget: Budget | str | None = None,
        mechanism: str = "auto",
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
        self.mechanism = mechanism
        self.domain = domain
        self.features = features
        self.intercept = intercept
        self.ledger = ledger
        self.seed = seed
        self.horizon = horizon
        self.batch_size = batch_size
        self.smoothness = smoothness
        self.strong_convexity = strong_convexity
        self._set_up_pan(budget)


class PanPrivateClassifier(_PanPrivate, LinearClassifier):
    __doc__ = "Classification by pan-private accelerated SGD." + _PARAMETERS.format(
        losses='"logistic", "softmax" or "hinge"',
        classes="\n    classes\n        The public labels; (False, True) when None. Others raise `SchemaError`.",
        example='PanPrivateClassifier(features=["a", "b"])',
        y="True",
    )

    def __init__(
        self,
        loss: str | Loss = "logistic",
        budget: Budget | str | None = None,
        mechanism: str = "auto",
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
        self.mechanism = mechanism
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
        self._set_up_pan(budget)
