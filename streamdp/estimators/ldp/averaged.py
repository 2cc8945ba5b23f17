"""The learner whose estimate is the average of its iterates, with confidence intervals from their path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from streamdp.errors import ConfigError, NotAvailableError, is_number
from streamdp.estimators.features import Features
from streamdp.estimators.ldp.learner import LDPLearner
from streamdp.optim import frame as k
from streamdp.optim import loops, pair_bits
from streamdp.optim.arrays import average_in_units, unresolved
from streamdp.optim.inference import LEAST_TIMES, UNPAIRED, path_intervals
from streamdp.optim.losses import Huber, without_shift
from streamdp.privacy import samplers

_MOST_PAIRED = 32  # of more columns there are more pairs than most streams can tell about


class AveragedLearner(LDPLearner):
    """The learner whose estimate is the average."""

    _averaged = True

    @property
    def unresolved(self) -> list[str]:
        """Columns that may be spread by any amount below 1/64 of half their declared bounds, as far as bits tell.

        The scale of such a column is too large by an unknown factor. Gradients tell the less about its coefficient: it
        may stay at 0 however many records come, and it has no interval. Columns of which nearly all values are the same
        belong to them.
        """
        return [] if self._features is None else [self._names[j] for j in unresolved(self._arrays)]

    def interval(self, level: float = 0.95) -> np.ndarray:
        """Return the (d, 2) confidence limits of theta from its path (see `inference`); nothing is spent.

        A row is NaN where the parameter is not settled: theta has not moved around its value for long enough, and an
        interval would say no more than what was expected of the parameter. More records settle it. So is a coefficient
        of a column that is `unresolved`: narrower bounds settle it.
        Coverage is asymptotic, and needs a well-specified, identified model and 1/2 < alpha < 1. Intervals are wide
        where neither the path nor bits about pairs of columns (`pair_bits`) exclude that two columns are correlated.

        Parameters
        ----------
        level
            The confidence, above 0 and below 1.

        Raises `NotAvailableError` before the second record and after `merged`, `ConfigError` for another level.
        """
        return self.settling(level)[0]

    def settles_at(self) -> np.ndarray:
        """Return (d,) about how many records in all give most such parameters an interval; NaN if not yet known.

        An extrapolation: with n records theta moves for a number of relaxation times that grows as n^(1 - alpha). A
        parameter has an interval if it moved for `inference.LEAST_TIMES`, and the clock by `frame.SHORTEST`.

        Raises `NotAvailableError` before the second record and after `merged`.
        """
        return self.settling()[1]

    def settling(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return `interval` and `settles_at` together, in the time of one of them.

        Gradients have the second moment C0^2/information, and the same in all d directions: exactly for the noise, and
        nearly for the rest. In original units a parameter is a sum of coordinates of theta, whose noises add up.

        Parameters
        ----------
        level
            As for `interval`.

        Raises the errors of `interval`.
        """
        self._need_features("interval")
        if not is_number(level):
            raise ConfigError(f"level: expected a number above 0 and below 1, got {type(level).__name__}")
        if self._merged or self.n_seen < 2:
            raise NotAvailableError("interval: needs one pass over at least two records, and none after merged()")
        arrays, p = self._arrays, len(self._arrays.frame) - 1
        d, spec, zero = arrays.state.shape[1], arrays.spec, self._original(np.zeros(arrays.state.shape[1]))
        units = without_shift(np.array([self._original(unit) - zero for unit in np.eye(d)]), self._outputs())
        information = self._default_rows[0, samplers.INFORMATION] if spec[loops.BY_RECORDS] else 1.0
        segments, rates, noises = self._ended()
        if not len(segments):  # as where all records answered with bits
            return np.full((d, 2), np.nan), np.full(d, np.nan)
        noises *= (spec[loops.FACTOR] * self._loss.bound) ** 2 / (d * information)
        covariance = units.T * noises.sum(axis=0) @ units
        deviations = np.sqrt(np.diagonal(covariance))
        original = noises @ units**2
        rates = (rates * noises) @ units**2 / original
        theta = average_in_units(arrays)
        limits, times = path_intervals(
            segments,
            rates,
            original,
            self._distance / math.sqrt(d) * np.sqrt(np.sum(units**2, axis=0)),
            covariance / np.outer(deviations, deviations),
            self._loss.expected_inverses(theta, p),
            self._signs(d),
            level,
        )
        for block in (limits, times):  # how fast such coefficients move is not known
            for start in range(0, self._blocks(theta).size, p + bool(self.intercept)):
                block[start + np.array(unresolved(arrays), dtype=int)] = np.nan
        more = np.maximum(LEAST_TIMES / times, 1.0) ** (1 / max(1 - self._steps.alpha, 0.1))
        return limits, self.n_seen * np.maximum(more, k.SHORTEST / max(float(segments[:, -1].sum()), 1e-9))

    def _ended(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The segments that have ended (K, d + 1), and their rates and noises (K, d) in the units of today (`path`)."""
        arrays, p, d = self._arrays, len(self._arrays.frame) - 1, self._arrays.state.shape[1]
        column, scales = np.full(d, p), np.append(arrays.frame[:p, k.SCALE], 1.0)
        self._blocks(column)[:, :p] = np.arange(p)
        ended = arrays.segments[:, d + 1 + p] > 0
        rates, noises = arrays.segments[ended, d + 1 :][:, column], arrays.segments[ended, d + p + 2 :][:, column]
        paths = without_shift(arrays.segments[:, :d], self._outputs())[ended]
        squares = scales[column] ** 2
        return np.column_stack([paths, arrays.segments[ended, d]]), rates * squares, noises * squares

    def _paired(self, features: Features) -> Sequence[int]:
        """All numbers, if they are few, and the constant. `clock="records"`, the paper's algorithm, asks nobody."""
        numbers = features.numeric if isinstance(self.features, Mapping) else np.ones(len(features.names), dtype=bool)
        if self.clock == "records" or np.count_nonzero(numbers) > _MOST_PAIRED:
            return ()
        return [*np.flatnonzero(numbers).tolist(), *([len(numbers)] if self.intercept else [])]

    def _signs(self, d: int) -> np.ndarray:
        """What the bits about pairs told, for each two parameters (2, d, d), as `path_intervals` takes it."""
        arrays, signs, p = self._arrays, np.zeros((2, d, d)), len(self._arrays.frame) - 1
        both = arrays.pairs[:-1, [pair_bits.FIRST, pair_bits.SECOND]].astype(int)
        for start in range(0, d - p, p + bool(self.intercept)):
            i, j = start + both.T
            signs[:, i, j] = signs[:, j, i] = arrays.told[:, :2].T
        if isinstance(self._loss, Huber):
            signs[1, -1] = signs[1, :, -1] = UNPAIRED  # the scale, if residuals are symmetric
        return signs
