"""The user's half of user-level learning: what a device needs that holds all records of one user, and what it sends.

Only one `UserReport` on all records leaves the device; it protects them together, with its budget, against everyone,
the learner included (proofs: docs/proofs/user_level.md).
"""

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamdp.aggregation.local_mean import UserMean
from streamdp.data.records import RawRecord
from streamdp.errors import ConfigError, SchemaError
from streamdp.estimators import accepted
from streamdp.estimators.features import Features, features_of
from streamdp.estimators.labels import TRUTH_VALUES, target_of
from streamdp.learners.user_answers import MOST_ITEMS, UserReport, averages, is_within, sensitivity_of_average
from streamdp.optim.losses import Loss
from streamdp.privacy.entropy import Entropy, Rng
from streamdp.privacy.mechanisms.response import chance_of_truth, respond
from streamdp.scaling.search import Question
from streamdp.scaling.units import Units, declared


@dataclass(frozen=True)
class UserRandomizer:
    """The user's half for one question. It holds no data of anyone; a client can hold it. Threads may share one.

    A call with records gives a `UserReport`.

    A user checks that `loss` is the agreed one, because the bound follows from it. `mean` is the agreed mean: its
    budget is what the report spends; a report has at most so many `items` as records. `envelope` is 1/beta of the
    Moreau envelope whose gradient is taken, for non-smooth losses; 0: that of the loss itself. `batch`, (epoch, phase,
    step) of the learner, fixes the signs of the rotation, and `coordinate` is the one that the coarse question asks
    about; None: the fine question.

    The `point` (d,), where gradients are taken, the `centre` (d,) of the fine question, the `units`, with the bounds of
    the target, and the `question` about the target or a column, None: a gradient, may come from an untrusted source.
    `classes` are the labels of classes.

    Raises `ConfigError` for parameters that do not fit one another or give less noise than the loss needs.
    """

    point: np.ndarray
    envelope: float
    loss: Loss
    features: tuple[object, ...] | Mapping[object, object]
    intercept: bool
    mean: UserMean
    batch: tuple[int, int, int]
    coordinate: int | None
    centre: np.ndarray
    items: int
    rng: Rng = field(default_factory=Entropy, repr=False, compare=False)
    units: Units | None = None
    question: Question | None = None
    classes: tuple[Hashable, ...] = TRUTH_VALUES

    def __post_init__(self) -> None:
        object.__setattr__(self, "_features", features_of(self.features, type(self).__name__))
        for name in ("point", "centre"):
            value = np.array(getattr(self, name), dtype=float)
            if value.shape != (self.mean.d,):
                raise ConfigError(f"{name}: expected {self.mean.d} numbers")
            accepted.check_point(name, value)
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "units", self._checked_units())
        self._check_question()
        self.loss.check_theta(self.point, self._columns)
        if not 1 <= self.items <= MOST_ITEMS or not (
            self.envelope == 0 or accepted.LEAST <= self.envelope <= accepted.MOST
        ):
            raise ConfigError(f"expected items from 1 to {MOST_ITEMS}, and an envelope that is 0 or from 1e-60 to 1e60")
        least = sensitivity_of_average(self.loss, self.items)
        if self.mean.bound < self.loss.bound or self.mean.sensitivity < least * (1 - 1e-12):
            raise ConfigError("the agreed mean is not of gradients of this loss: its bound or sensitivity is too small")
        if self.coordinate is not None and not (self.mean.coarse and 0 <= self.coordinate < self.mean.padded):
            raise ConfigError(
                f"coordinate: expected from 0 to {self.mean.padded - 1}, if there is a coarse question, else None"
            )

    def _checked_units(self) -> Units:
        p = len(self._features.names)  # type: ignore[attr-defined]
        if self.units is None:
            return declared(p, None)
        columns, centre, scale, bounds, *_ = self.units
        columns = np.array(columns, dtype=float)
        if columns.shape != (2, p):
            raise ConfigError("columns: expected a centre and a slope for each column")
        accepted.check_units("columns", *columns)  # a slope is the inverse of a scale, and has the same limits
        columns.flags.writeable = False
        if bounds is None:
            return Units(columns)
        from streamdp.data.declaration import declared_bounds  # it needs polars: half a second to import

        low, high = declared_bounds("target", bounds)
        accepted.check_target_units(self.loss, centre, scale, low / 2 + high / 2, high / 2 - low / 2)
        return Units(columns, float(centre), float(scale), (low, high))

    def _check_question(self) -> None:
        if self.question is None:
            return
        low, high, turn, column = self.question
        if not (isinstance(turn, int) and isinstance(column, int) and turn >= 0):
            raise ConfigError("question: expected a column, and a whole number as its turn")
        assert self.units is not None
        p, first, last = self._columns - bool(self.intercept), -1.0, 1.0
        if column == p and self.units.bounds is not None:
            first, last = self.units.bounds
        elif not 0 <= column < p:
            raise ConfigError("question: expected one about a column, or about a target with bounds")
        if self.coordinate is not None:
            raise ConfigError("question: expected no coordinate with it")
        accepted.check_question("question", low, high, first / 2 + last / 2, last / 2 - first / 2)
        object.__setattr__(self, "question", Question(float(low), float(high), turn, column))

    @property
    def _columns(self) -> int:
        return len(self._features.names) + bool(self.intercept)  # type: ignore[attr-defined]

    @property
    def spec(self) -> np.ndarray:
        """The loss for the compiled loops; made here, so that no other party can widen its bound."""
        from streamdp.optim import loops as k

        spec = self.loss.spec()
        spec[k.INTERCEPT], spec[k.ENVELOPE] = bool(self.intercept), self.envelope
        return spec

    def __call__(self, records: Sequence[tuple[RawRecord, object]]) -> UserReport:
        """Make one report on all of a user's records, pairs (x, y) as for `learn_one`.

        Raises `SchemaError` for another number of records, and if a value is not a finite number or y is no class.
        """
        pairs = None
        with contextlib.suppress(TypeError, ValueError):
            pairs = [(x, y) for x, y in records]
        if pairs is None:
            raise SchemaError("records: expected (x, y) pairs of features by name and a target")
        if not 1 <= len(pairs) <= self.items:
            raise SchemaError(f"expected from 1 to {self.items} records of one user, got {len(pairs)}")
        features: Features = self._features  # type: ignore[attr-defined]
        X = np.concatenate([features.row_of(x) for x, _ in pairs])
        y = np.array([target_of(y, self.loss, self.classes) for _, y in pairs])
        assert self.units is not None
        if self.question is not None:
            truth_of_bit = is_within(self.question, X, y, self.units.bounds)
            bit = respond(truth_of_bit, chance_of_truth(self.mean.budget), self.rng)
            answer = np.array([float(bit)])
            return UserReport(answer, None, self.batch, self.mean.budget, self.rng.private, self.question)
        with np.errstate(over="ignore"):  # clipped next
            self.units.place_targets(y)
            self.units.place_columns(X)
        X, y = accepted.clipped(X), accepted.clipped(y)
        vectors = averages(self.spec, self.loss, self.point, X, y, [len(X)])
        if self.coordinate is None:
            answer = self.mean.answer_fine(vectors, self.centre, self.rng)[0]
        else:
            signs = self.mean.signs(self.batch)
            answer = self.mean.answer_coarse(vectors, np.array([self.coordinate]), signs, self.rng)[0]
        return UserReport(answer, self.coordinate, self.batch, self.mean.budget, self.rng.private)
