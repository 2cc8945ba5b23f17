"""A person's half of shuffle-private learning: the bits that a device sends to the shuffler."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from streamdp.aggregation.shuffled_sum import LocalRandomizer
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.data.records import RawRecord
from streamdp.errors import ConfigError
from streamdp.estimators import accepted
from streamdp.estimators.features import Features, features_of
from streamdp.estimators.labels import TRUTH_VALUES, target_of
from streamdp.optim.curvature import Curvature
from streamdp.optim.losses import Loss
from streamdp.optim.user_averages import gradients
from streamdp.privacy.entropy import Entropy, Rng


@dataclass(frozen=True)
class ShuffleRandomizer:
    """A person's half for one batch: where to take the gradient, and how to make bits of it. It holds no records.

    The `point` (d,), where the gradient is taken, for Newton's method maybe with the units of the columns (see
    `column_units`), may come from an untrusted source. Of `spec`, numbers for the compiled loops, only the envelope is
    taken, because the bound and the sensitivity follow from the others: these are those of `loss`. `params` is the
    agreed sum. A `VectorSum` that does not keep its budget cannot be constructed, and one with another bound or a
    smaller sensitivity than the loss is refused; the caller compares its `budget` with what was promised. `batch` is
    that of the bits, which go into no other. `curvature`: the vectors that Newton's method sums; None: gradients are.
    `classes`: the labels of classes.

    Raises `ConfigError` for a point that is no parameter vector of this loss, and for a sum of other gradients.
    """

    point: np.ndarray
    spec: np.ndarray
    loss: Loss
    features: tuple[object, ...] | Mapping[object, object]
    intercept: bool
    params: VectorSum
    batch: tuple[int, int, int]
    rng: Rng = field(default_factory=Entropy, repr=False, compare=False)
    curvature: Curvature | None = None
    classes: tuple[Hashable, ...] = TRUTH_VALUES

    def __post_init__(self) -> None:
        from streamdp.optim.loops import ENVELOPE, INTERCEPT

        features = features_of(self.features, type(self).__name__)
        object.__setattr__(self, "_features", features)
        point, p = np.array(self.point, dtype=float), len(features.names)
        theta = self._theta_of(point)
        self.loss.check_theta(theta, p + bool(self.intercept))
        if len(point) - len(theta) not in (0, 2 * p):
            raise ConfigError(f"point: expected theta, maybe with {2 * p} numbers as units of the columns")
        accepted.check_point("point", point)
        if len(point) > len(theta):
            centres, slopes = point[len(theta) :].reshape(2, p)
            accepted.check_units("point", centres, np.abs(np.where(slopes == 0, 1.0, slopes)))  # 0: it is left out
        if self.curvature is None:
            size, bound, sensitivity = len(point), self.loss.bound, self.loss.sensitivity
        else:
            outputs = len(self.classes) if self.loss.several else 1
            expected = Curvature(self.loss, p + bool(self.intercept), outputs, plain=True)
            if replace(self.curvature, apart=()) != expected:
                raise ConfigError("the curvature is not that of this loss and these features")
            size, bound, sensitivity = expected.size, expected.bound, expected.sensitivity
        if (self.params.d, self.params.bound) != (size, bound):
            raise ConfigError("the agreed sum is not of vectors of this loss: its length or its bound differ")
        assert self.params.sensitivity is not None, "a VectorSum fills it in"
        if self.params.sensitivity < min(sensitivity, 2 * bound) * (1 - 1e-9):
            raise ConfigError("the agreed sum is not of vectors of this loss: it has noise for a smaller sensitivity")
        object.__setattr__(self, "point", point)
        spec = self.loss.spec()
        spec[INTERCEPT], spec[ENVELOPE] = bool(self.intercept), self.spec[ENVELOPE]
        if not (spec[ENVELOPE] == 0 or accepted.LEAST <= spec[ENVELOPE] <= accepted.MOST):
            raise ConfigError("spec: expected an envelope that is 0 or from 1e-60 to 1e60")
        object.__setattr__(self, "spec", spec)

    def _theta_of(self, point: np.ndarray) -> np.ndarray:
        return point if self.curvature is None else point[: self.curvature.parameters]

    def record(self, x: RawRecord, y: object) -> tuple[np.ndarray, np.ndarray]:
        """Return one record x, y, of `messages`, as the arrays (1, p) and (1,) of `messages_of`. Nothing is spent.

        Raises `SchemaError` if a value is not a finite number or y is no class.
        """
        features: Features = self._features  # type: ignore[attr-defined]
        return features.row_of(x), np.array([target_of(y, self.loss, self.classes)])

    @property
    def names(self) -> tuple[object, ...]:
        """The names of the encoded columns."""
        return self._features.names  # type: ignore[attr-defined]

    def _check_targets(self, y: np.ndarray) -> None:
        theta = self._theta_of(self.point)
        self.loss.check_targets(y, max(2, len(theta) // (len(self.names) + bool(self.intercept))))

    def messages(self, x: RawRecord, y: object) -> np.ndarray:
        """Return the packed bits (d, w) of one record, with the errors of `record`.

        `x`: features by name, and `y`: the target, a number or a label, both as for `learn_one`.
        """
        return self.messages_of(*self.record(x, y))[0]

    def messages_of(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the packed bits (n, d, w) of n people, each with one record of X (n, p) and encoded targets y (n,).

        Raises `SchemaError` for targets that are no class.
        """
        self._check_targets(y)
        X, y = accepted.clipped(X), accepted.clipped(y)
        if self.curvature is None:
            vectors = gradients(self.spec, self.point, X, y)
        else:
            vectors = self.curvature.vectors(self.spec, self.point, X, y)
        return LocalRandomizer(self.params, self.rng).messages(vectors)
