"""Prediction with a learner's released point: linear predictors, in the units in which records come."""

import numpy as np

from streamdp.data.records import RawRecord
from streamdp.estimators.features import Features
from streamdp.estimators.packing import Predictor
from streamdp.learners.learner import Learner
from streamdp.optim.losses import without_shift


class Prediction:
    """What predicts: the point of a learner, with an intercept or not, and the features of a record."""

    predictor: Predictor | None = None
    """Predicts at compiled speed, if the array of the learner's point stays. A copy or pickle of this makes its own."""
    _latest: Predictor | None = None

    def __init__(self, features: Features, learner: Learner, intercept: bool) -> None:
        self._features, self._learner, self._intercept = features, learner, intercept

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("predictor", "_latest")}

    def reader(self) -> Predictor:
        """The compiled predictor of the present point."""
        if self.predictor is not None:
            return self.predictor
        features, learner = self._features, self._learner
        point, original = learner.point
        if (predictor := self._latest) is None or not predictor.reads(point):
            columns = np.stack([features.columns.origin, features.columns.unit]) if original else None
            units = learner.unit_table, learner.ranges, learner.progress
            predictor = Predictor(features.encoder, point, *self._shape, columns, *units)
            if learner.stays:
                self.predictor = predictor
            else:
                self._latest = predictor
        return predictor

    @property
    def _shape(self) -> tuple[int, int, bool]:
        return len(self._features.names), self._learner.problem.outputs, self._intercept

    def of_record(self, x: RawRecord) -> list[float]:
        """The linear predictors of one record `x`, one for each output."""
        reader = self.reader()
        if (scores := reader.scores_of(x)) is not None:
            return scores
        return reader.scores(self._features.row_of(x))[0].tolist()

    def by(self, point: np.ndarray) -> Predictor:
        """What predicts from columns by a vector `point` (d,) such as `estimate` returns, of the present units."""
        return Predictor(None, point, *self._shape, None, None, self._learner.ranges)

    def ranges(self) -> list[list[float | None]] | None:
        """The range of each column of `Features` in which it counts, None for an end without a limit; None: no ranges.

        Columns are cut to them after all else, also products.
        """
        ranges = self._learner.ranges
        if ranges is None or not np.isfinite(ranges).any():
            return None
        return [[end if np.isfinite(end) else None for end in ends] for ends in ranges.T.tolist()]

    def estimate(self) -> np.ndarray:
        """The vector (d,) that predicts from the columns of `Features`, as a new array."""
        point, original = self._learner.point
        if not original:
            return point.copy()
        outputs = self._learner.problem.outputs
        return self._features.columns.units(outputs).inward(without_shift(point, outputs))

    def theta(self) -> np.ndarray:
        """The estimate (d,) in original units, as a new array."""
        point, original = self._learner.point
        outputs = self._learner.problem.outputs
        theta = without_shift(point, outputs).copy()
        return theta if original or not self._intercept else self._features.columns.units(outputs).outward(theta)

    def linear(self) -> tuple[np.ndarray, np.ndarray]:
        """The coefficients (K, p) of the columns and the intercepts (K,)."""
        p = len(self._features.names)
        blocks = self._learner.problem.blocks(self.estimate(), p)
        return blocks[:, :p].copy(), blocks[:, p].copy() if self._intercept else np.zeros(len(blocks))

    def moderation(self) -> dict[str, object] | None:
        """See `Estimator.moderation`."""
        noise = self._learner.noise
        if not noise.variance:
            return None
        (centres, scales), constant = self._learner.noise_units().tolist(), float(self._intercept)
        numbers = {"variance": noise.variance, "odds": noise.odds, "constant": constant}
        return numbers | {"centres": centres, "scales": scales}
