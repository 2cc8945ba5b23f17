"""The local half of LDP-SGD: what a person's device needs, and what it sends.

Only a `Report` or an `Answer` leaves the device; it protects the record with its budget against everyone, the learner
included (docs/proofs/local_reports.md).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from streamdp.data.records import RawRecord
from streamdp.errors import ConfigError
from streamdp.estimators import accepted
from streamdp.estimators.features import Features, features_of
from streamdp.estimators.labels import TRUTH_VALUES, target_of
from streamdp.learners.local_reports import Answer, Asked, Report
from streamdp.optim.losses import Loss
from streamdp.privacy.entropy import Entropy, Rng
from streamdp.privacy.guarantees import Budget, parse_budget
from streamdp.privacy.mechanisms import Mechanism, NoNoise, calibrated, mechanism_for, randomize_rows, record_rows
from streamdp.privacy.mechanisms.response import respond
from streamdp.privacy.samplers import KEEP


@dataclass(frozen=True)
class Randomizer:
    """The local half: theta, and how to make a noisy answer at it. It holds no data of anyone; a client can hold it.

    A call with a record gives a `Report` or an `Answer`. What was made at an older theta may still be absorbed: it
    protects as well, and only its direction is out of date. Threads may share a randomizer.

    The client agrees to the `loss`, the `budget` of a record without one, the `mechanism`, the `features`, the
    `intercept` and the labels of the `classes`. `theta` (d,), where the gradient is taken, and the `question`, None: a
    gradient for columns as they are, may come from an untrusted source: the answer protects the record whatever is
    asked.

    Raises `ConfigError` for a theta of the wrong shape, outside the domain that the loss's sensitivity assumes, or too
    large, for a mechanism that cannot be calibrated, and for scales or a question outside the limits of `accepted`;
    `BudgetError` for a budget that cannot be served. A randomizer that was made has a finite report for each record
    that a call accepts, and which these are does not depend on theta and the question.
    """

    theta: np.ndarray
    loss: Loss
    features: tuple[object, ...] | Mapping[str, object]
    intercept: bool
    budget: Budget
    mechanism: str | type[Mechanism]
    question: Asked | None = None
    rng: Rng = field(default_factory=Entropy, repr=False, compare=False)
    classes: tuple[Hashable, ...] = TRUTH_VALUES

    def __post_init__(self) -> None:
        features = features_of(self.features, type(self).__name__)
        theta, p = np.array(self.theta, dtype=float), len(features.names)
        d = self.loss.size(p + bool(self.intercept), len(self.classes))
        if theta.shape != (d,):
            raise ConfigError(f"theta: expected shape ({d},), got {theta.shape}")
        accepted.check_point("theta", theta)
        self.loss.check_theta(theta, p + bool(self.intercept))
        question = self.question or Asked(None, np.tile([0.0, 1.0], (p + 1, 1)), (0.0, np.inf), 0)
        scales = np.array(question.scales, dtype=float)
        if scales.shape != (p + 1, 2):
            raise ConfigError("question: expected a centre and a scale for each column and the target")
        middle, half = question.bounds
        accepted.check_units("question", scales[:-1, 0], scales[:-1, 1])
        accepted.check_target_units(self.loss, float(scales[-1, 0]), float(scales[-1, 1]), middle, half)
        if question.bit is not None:
            low, high, _, column = question.bit
            if not (isinstance(column, int) and 0 <= column < p + (half < np.inf)):
                raise ConfigError("question: expected one about a column, or about a target with bounds")
            accepted.check_question("question", low, high)
        theta.flags.writeable = scales.flags.writeable = False
        object.__setattr__(self, "theta", theta)
        object.__setattr__(self, "question", replace(question, scales=scales))
        object.__setattr__(self, "_features", features)
        self._calibrated(self.budget)

    def _calibrated(self, budget: Budget) -> Mechanism:
        kind: object = mechanism_for(self.mechanism, budget)
        return calibrated(kind, budget, self.loss.bound, self.loss.sensitivity)

    def __call__(self, x: RawRecord, y: object, *, budget: Budget | str | None = None) -> Report | Answer:
        """Randomise one record.

        `x`: features by name, and `y`: the target, a number or a label, both as for `learn_one`. `budget`: what the
        report spends; the agreed budget if None.

        Raises `SchemaError` if a value is not a finite number or y is no class, `BudgetError` for a budget that cannot
        be served.
        """
        spend = self.budget if budget is None else parse_budget(budget)
        features: Features = self._features  # type: ignore[attr-defined]
        row = features.row_of(x)[0]
        target = target_of(y, self.loss, self.classes)  # whatever is asked
        asked: Asked = self.question  # type: ignore[assignment]
        middle, half = asked.bounds
        target = min(max(target, middle - half), middle + half)
        mechanism, d = self._calibrated(spend), len(self.theta)
        rows = mechanism.rows(d) if budget is None else record_rows(mechanism, d)
        private = self.rng.private and mechanism.code != NoNoise.code
        if asked.bit is not None:
            low, high, _, column = asked.bit
            value = row[column] if column < len(row) else (target - middle) / half
            yes = respond(bool(low <= value < high), float(rows[0, KEEP]), self.rng)
            return Answer(asked.bit, yes, spend, private)
        with np.errstate(over="ignore"):  # clipped next
            scaled = accepted.clipped((np.append(row, target) - asked.scales[:, 0]) / asked.scales[:, 1])
        columns = np.append(scaled[:-1], [1.0] * bool(self.intercept))
        gradient = self.loss.gradient(self.theta, columns, scaled[-1])[None, :]
        randomize_rows(mechanism.code, rows, gradient, self.rng)
        return Report(gradient[0], spend, private, asked.changes)
