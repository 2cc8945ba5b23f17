"""One-pass averaged Newton steps from noisy sums of gradients and curvature.

A batch gives a noisy sum of the vectors of `curvature` at a query point. Kept are weighted means of query points,
gradients and Hessians, in blocks (`change`). The next query point, which is also the answer, is a Newton step of the
averages. Batches grow; no horizon is needed. A change of the stream is looked for after each batch, and by probes
within it, and what was before is dropped. With bounds of the target the first batches search for its centre and spread.

Everything here is about accuracy. Privacy depends only on the batches being disjoint, not on any number chosen here.
The rules, with the constants below: docs/proofs/curvature.md, the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import scipy

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.optim.batch_steps import Probes
from streamdp.optim.curvature import Curvature
from streamdp.optim.growing import Growing
from streamdp.optim.losses import Huber
from streamdp.optim.secants import Secants
from streamdp.optim.shrinkage import shrunk
from streamdp.reading import change
from streamdp.reading.batch_intervals import BATCHES, Steps, steps_of
from streamdp.scaling.batch_search import SPREADS, BatchSearch
from streamdp.scaling.column_units import LEAST, START, narrowed
from streamdp.scaling.units import Units

# The numbers of the batches and of the weights were found on simulations. They matter for accuracy only.
_GROWTH, _LARGEST = 3, 2**20
_CALM, _LARGE = (16, 8), (16, 64)  # without and with following: a change is noticed at the end of a batch
_SURE, _SURE_BY_PROBES = 8, 1  # the last blocks of a change have this many N_0 records
_COST, _MOST = 0.04, 0.5  # the share by which probes may raise the variance of a mean gradient; their most of mu^2
_PROBE, _LEAST_PROBE = 10.0, 512.0  # records of a probe, over the root of N_0 / share; fewer take longer than learning
_SOON, _BRIEF = 16, 3  # with so many changes within that many N_0 of the one before, changes do not last
_LATEST = 16  # so many probes are added up before it is worth looking for a change
_SHARES = 1 / np.arange(1.0, _LATEST + 1)
_FAINT = 0.02  # the weight of the batch or probes that showed a change: their query point is far from the next ones
_AFTER = 0.25  # after a change the first batch has this many N_0
_PRIOR = 0.5
_VARIANCES, _SCALE_VARIANCE = (0.02, 0.05), 0.25
_FORGOTTEN = 300.0
_FLOOR = (1.0, 0.3)  # of nu, in rounds about the same records, for logistic and Huber's loss
_SCALE_SHARE = 0.25  # of the variance of the scale's gradient in its curvature times sigma, for normal residuals
_OUTGROWN = 0.7
_NO_COLUMNS = np.zeros(0, dtype=bool)
_WEIGHT, _NOISE, _NOTICED, _REPLANNED, _RENEWALS, _SINCE, _CHANGES, _SOON_AFTER = range(8)
_SUMS = 8
"""The numbers between the curvature and the blocks: see `Newton._sums`."""
_LARGEST_SUM = 1e150  # its square stays within the doubles


def _inside(c: float) -> float:
    """The Hessian of Huber's loss over what stands for it in vectors, for normal residuals."""
    inside = math.erf(c / math.sqrt(2))
    return float(inside / (inside + c * scipy.special.exp1(c**2 / 2) / math.sqrt(2 * math.pi)))


class Round(NamedTuple):
    """A noisy sum (size,) of vectors at a query point (d,), with noise of this deviation on each coordinate.

    The `share` is that of the weight of all rounds about the same vectors.
    """

    point: np.ndarray
    total: np.ndarray
    deviation: float
    share: float = 1.0


class Newton(Growing):
    """The sums, the query point and the sequence of batches.

    The first query point is `start` (d,); `project` maps to the domain. `deviation` is z >= 0, the standard deviation
    of the noise of a sum, on each coordinate. If `batch` is None, batches grow. If `wide`, Huber's sigma may begin far
    too large, at half the width of the target's bounds. `scaled` (p,) says which columns may be centred and scaled; if
    there is any, or `wide`, the model has an intercept. With `follow` a change of the stream is looked for, and with
    `replans` the sizes of batches begin anew at a change, unless devices know them from the job alone. `shrinks`:
    whether columns have units of about their spread and the model an intercept; so it is, too, if any are `scaled`.
    `own` are the columns of what a group has of its own.
    """

    def __init__(
        self,
        curvature: Curvature,
        start: np.ndarray,
        project: Callable[[np.ndarray], np.ndarray],
        deviation: float,
        batch: int | None = None,
        wide: bool = False,
        scaled: np.ndarray = _NO_COLUMNS,
        follow: bool = True,
        replans: bool = True,
        shrinks: bool = False,
        own: tuple[int, ...] = (),
    ) -> None:
        scaled = scaled if wide or scaled.any() else _NO_COLUMNS
        self._size = self.size(curvature)
        self._whole = self._size + 2 * len(scaled)
        more = SPREADS + 2 if wide and len(scaled) else 0
        super().__init__(np.zeros(self._whole + more), batch)
        """The query point (d,); the weighted mean of what follows the gradient in vectors (size - d,), its weight and v
        times its square; `_sums`; the blocks; the centres (p,) and slopes (p,) of the columns; if `wide`, the numbers
        of the search, zeros after it."""
        self.curvature = curvature
        self._scaled = scaled
        self._project = project
        self.deviation = deviation
        d, q = curvature.parameters, curvature.columns
        self.noise = deviation**2 * d
        self._upper = np.triu_indices(q)
        self.state[:d] = start
        self._wide, self._follow, self._replans = wide, follow, replans
        self._shrinks = isinstance(curvature.loss, Huber) and (shrinks or bool(scaled.size))
        self._own = own
        self._secants = Secants()
        self._bounds = (float(start[-2]), float(start[-1])) if wide else (0.0, 1.0)
        self.units[:] = self._first_units
        if more:
            self.state[self._whole :] = BatchSearch(*self._bounds).numbers

    @staticmethod
    def size(curvature: Curvature) -> int:
        """The length of `state` without units."""
        return curvature.size + _SUMS + change.BLOCKS * change.width(curvature.parameters)

    @staticmethod
    def check(curvature: Curvature, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        """Check finite numbers (size,) that are to become `state`. Raises `ConfigError` for numbers out of range.

        So does the `check` that is passed, for a vector (d,) that is no parameter.
        """
        d, size = curvature.parameters, curvature.size
        sums, blocks = numbers[size : size + _SUMS], numbers[size + _SUMS :].reshape(change.BLOCKS, -1)
        if not (np.min(sums) >= 0 and np.max(sums) <= _LARGEST_SUM and np.max(np.abs(numbers)) <= _LARGEST_SUM):
            raise ConfigError("state: its sums are out of range")
        change.check(blocks, _LARGEST_SUM)
        total = blocks.sum(axis=0)
        if (total[change.WEIGHT] > 0) != (sums[_WEIGHT] > 0):
            raise ConfigError("state: its sums are out of range")
        check(numbers[:d])
        if sums[_WEIGHT] > 0:
            check(change.means(total, d, isinstance(curvature.loss, Huber))[0])

    @property
    def middle(self) -> np.ndarray:
        """See `BatchSteps.middle`: the query point in the units of the columns (d,), their centres and their slopes."""
        return np.append(Units(self.units).inward(self.estimate), self.units)

    @property
    def estimate(self) -> np.ndarray:
        point: np.ndarray = self.state[: self.curvature.parameters]
        return point

    @property
    def units(self) -> np.ndarray:
        """(2, p) centres and slopes: a view."""
        return self.state[self._size : self._whole].reshape(2, -1)

    @property
    def _sums(self) -> np.ndarray:
        """The curvature's weight and v times its square, and of changes of the stream: a view (8,).

        The records when the last one was noticed, and those when sizes of batches began anew (`_REPLANNED`);
        `renewals`; the records of blocks since the last one was noticed; `changes`, and how many of them came soon
        after the one before.
        """
        return self._sums_of(self.state)

    def _sums_of(self, state: np.ndarray) -> np.ndarray:
        return state[self.curvature.size : self.curvature.size + _SUMS]

    @property
    def _blocks(self) -> np.ndarray:
        return self._blocks_of(self.state)

    def _blocks_of(self, state: np.ndarray) -> np.ndarray:
        return state[self.curvature.size + _SUMS : self._size].reshape(change.BLOCKS, -1)

    @property
    def changes(self) -> int:
        return int(self._sums[_CHANGES])

    @property
    def renewals(self) -> int:
        return int(self._sums[_RENEWALS])

    @property
    def last_change(self) -> int | None:
        return int(self._sums[_NOTICED]) or None

    def answer(self, least: int = BATCHES) -> Steps | None:
        """The answer (d,) without shrinkage, with its covariance; None if there are fewer than the `least` blocks.

        NaN: that of the scale is not known. The Hessian that vectors have is above Huber's in the linear part of the
        loss, by a factor that is known for normal residuals.
        """
        curvature, d, q = self.curvature, self.curvature.parameters, self.curvature.columns
        weight, noise = self._sums[:_NOTICED].tolist()
        if self.searching or not weight:
            return None
        units, entries = Units(self.units), noise / weight**2
        hessian, expected = self._hessian(self._curved), min(1.0, math.sqrt(2 / q))
        leading = np.r_[:q, d : d + q, 2 * d : 2 * d + 7]
        sigma = 1.0
        if isinstance(curvature.loss, Huber):
            hessian *= _inside(curvature.loss.c)
            sigma = float(units.inward(self.estimate)[-1])
        found = steps_of(self._blocks[:, leading], hessian, math.sqrt(2 * q * entries), expected * sigma, least)
        if found is None:
            return None
        answer, covariance, freedom = np.full(d, np.nan), np.full((d, d), np.nan), np.full(d, np.nan)
        answer[:q], covariance[:q, :q], freedom[:q] = found
        if isinstance(curvature.loss, Huber):
            last = self._blocks[:, np.r_[d - 1, 2 * d - 1, 2 * d : 2 * d + 7]]
            last[:, change.WEIGHT] = last[:, change.SCALE_WEIGHT]
            last = last[(last[:, change.WEIGHT] > 0) | (last[:, change.LEVEL] == 0)]
            bend = np.array([[float(self._curved[-1])]])
            covariance[-1, :-1] = covariance[:-1, -1] = 0.0
            usual = _SCALE_SHARE * expected * sigma
            if (scale := steps_of(last, bend, 2 * math.sqrt(entries), usual, least)) is not None:
                answer[-1:], covariance[-1:, -1:], freedom[-1:] = scale
        return Steps(answer, covariance, freedom).through(units.outward)

    @property
    def _first_units(self) -> np.ndarray:
        return self._seen_units * (not self._wide)

    @property
    def _seen_units(self) -> np.ndarray:
        return np.array([np.zeros(len(self._scaled)), np.where(self._scaled, 1 / START, 1.0)])

    @property
    def searching(self) -> bool:
        """Whether the centre and the scale of the target are not known yet, so that no columns are seen."""
        return bool(self._scaled.size) and not self.units[1].any()

    @property
    def target(self) -> tuple[float, float, float]:
        """The centre and the spread of the target, as far as they are known, and half the width of its bounds.

        The spread is that of a target with independent columns of spread 1 in their units, and sigma. It is 0 with no
        search, or before.
        """
        if self.searching or len(self.state) == self._whole:
            return 0.0, 0.0, 0.0
        point = Units(self.units).inward(self.estimate)
        return float(point[-2]), float(np.linalg.norm(np.delete(point, -2))), self._bounds[1]

    def begin_anew(self) -> None:
        """Forget the averages, whose units are no longer those of the query point; that and the changes stay."""
        d, size = self.curvature.parameters, self.curvature.size
        state = self.state.copy()
        state[d : size + 2] = state[size + _SUMS : self._size] = 0
        self.state[:] = state

    @property
    def least(self) -> int:
        """See `BatchSteps.least`: N_0."""
        return math.ceil(self.noise / self.curvature.variance)

    @property
    def _least_batch(self) -> float:
        return max(32.0, 10.0 * self.curvature.parameters)

    def _size_after(self, records: int) -> int:
        balance = self.noise / self.curvature.variance
        first = max(self._least_batch, 4 * math.sqrt(balance))
        since = int(self._sums[_REPLANNED])
        if since:
            first = max(first, _AFTER * balance)
        later = max(0, records - since)
        grown = max(min(later / _GROWTH, _CALM[self._follow] * balance), min(later / _LARGE[self._follow], _LARGEST))
        return int(max(first, grown))

    @contextmanager
    def planned(self) -> Iterator[None]:
        """See `BatchSteps.planned`: a change of the stream leaves them."""
        before, self._replans = self._replans, False
        try:
            yield
        finally:
            self._replans = before
            if before:
                self._sums[_REPLANNED] = max(self._sums[[_NOTICED, _REPLANNED]])

    # -- steps -------------------------------------------------------------------------------------------------------

    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        self.records += advance
        if self.searching:
            self._search(total, size)
            return
        if self._outgrown(total, size):
            self._search_anew()
            return
        louder, faint = 1.0, 1.0
        if probes is not None:
            louder = probes.louder
            if probes.found is not None:
                before = change.used(self._blocks)
                if probes.found.block > before:
                    self._begin_with(probes, probes.found.block - before, probes.found.new)
                    return
                faint, state = _FAINT, self.state.copy()
                self._forget(state, probes.found.block, probes.found.new)
                self.state[:] = state
        deviation = self.deviation * louder
        tau = self._information(size, deviation)
        omega = faint * tau * self._kept(float(self._blocks[:, change.INFORMATION].sum()) + tau)
        self.learn([Round(self.estimate, total, deviation)], size, tau, omega)
        if self._follow and faint == 1:
            self.follow(_SURE)
        weight, noise = self._sums[:_NOTICED].tolist()
        units = narrowed(self.units, self._scaled, self._hessian(self._curved), noise / weight**2)
        if units is not None:
            self.begin_anew()
            self.units[:] = units

    @property
    def _curved(self) -> np.ndarray:
        """The mean of what follows the gradient in vectors: a view."""
        return self.state[self.curvature.parameters : self.curvature.size]

    def _outgrown(self, total: np.ndarray, size: int) -> bool:
        """Whether sigma is far too small, by this batch alone."""
        loss, curvature = self.curvature.loss, self.curvature
        if not (len(self.state) > self._whole and isinstance(loss, Huber)):
            return False
        excess = -2 * float(total[curvature.parameters - 1]) / size
        most = (loss.c**2 - loss.kappa) * min(1.0, math.sqrt(2 / curvature.columns))
        return excess > _OUTGROWN * most + 4 * math.sqrt(4 * self.deviation**2 + size) / size

    def _search_anew(self) -> None:
        """Forget all but the intercept, and search for the target within its bounds again."""
        search, d, (middle, half) = BatchSearch(*self._bounds), self.curvature.parameters, self._bounds
        search.numbers[0] = min(max(float(self.state[d - 2]), middle - half), middle + half)
        state = np.zeros_like(self.state)
        state[d - 2 : d], state[self._whole :] = search.place, search.numbers
        state[:d] = self._project(state[:d])
        self._sums_of(state)[_NOTICED:] = self._sums[_NOTICED:]
        self.state[:] = state

    def _search(self, total: np.ndarray, size: int) -> None:
        """Find the centre and the scale of the target, from a batch that saw no columns."""
        loss, d = self.curvature.loss, self.curvature.parameters
        assert isinstance(loss, Huber)
        search = BatchSearch(*self._bounds)
        search.read(self.state[self._whole :])
        gradient, noise = total[d - 2 : d] / size, self.deviation**2
        search.take(
            (float(self.state[d - 2]), float(self.state[d - 1])),
            loss.c,
            (-float(gradient[0]), loss.kappa - 2 * float(gradient[1])),
            (math.sqrt(noise + size) / size, math.sqrt(4 * noise + size) / size),
        )
        state = np.zeros_like(self.state)
        state[d - 2 : d] = search.place
        state[:d] = self._project(state[:d])
        self._sums_of(state)[_NOTICED:] = self._sums[_NOTICED:]
        if search.clear:
            state[self._size : self._whole] = self._seen_units.ravel()
        else:
            state[self._whole :] = search.numbers
        self.state[:] = state

    def learn(self, rounds: Sequence[Round], size: int, information: float, weight: float) -> None:
        """Add noisy sums of the same vectors, `size` many, to the averages as one block, and move the query point.

        They add the information tau to T and have the weight omega > 0 together, in proportion to their shares.
        """
        curvature, d, huber = self.curvature, self.curvature.parameters, isinstance(self.curvature.loss, Huber)
        state, units, q = self.state.copy(), Units(self.units), self.curvature.columns
        points = np.array([units.inward(each.point) for each in rounds])
        means = np.array([each.total for each in rounds]) / size
        deviations = np.array([each.deviation for each in rounds]) / size
        weights = np.array([each.share for each in rounds])
        weights *= weight / weights.sum()
        per_entry = 1 / (curvature.factor * (points[:, -1] if huber else np.full(len(rounds), 4.0)))
        self._secants = Secants()
        if len(rounds) > 1:
            for point, mean, deviation in zip(points[:, :q], means[:, :q], deviations.tolist(), strict=True):
                self._secants.add(point, mean, deviation**-2)
        curved, sums = state[d : curvature.size], self._sums_of(state)
        curved += ((weights * per_entry) @ means[:, d:] - weight * curved) / (sums[_WEIGHT] + weight)
        sums[[_WEIGHT, _NOISE, _SINCE]] += weight, np.sum((weights * per_entry * deviations) ** 2), size
        numbers = weight, weight, information, weight**2 / size, np.sum((weights * deviations) ** 2), size, 0.0
        change.add(self._blocks_of(state), np.concatenate([weights @ points, weights @ means[:, :d], numbers]))
        state[:d] = self._next(points[-1], state)
        self.state[:] = state

    def _information(self, size: int, deviation: float) -> float:
        """tau of the sum of so many vectors."""
        curvature = self.curvature
        return 1 / (curvature.variance / size + deviation**2 * curvature.parameters / size**2)

    def _kept(self, known: float) -> float:
        """omega / tau at the information T."""
        return known / (known + _FORGOTTEN * self.curvature.parameters / self.curvature.variance)

    @property
    def probing(self) -> tuple[int, float]:
        able = self._follow and self._replans and self._fixed is None and not self.searching
        balance, batch = self.noise / self.curvature.variance, self.batch
        share = min(_MOST, 1 - 1 / (1 + _COST * (1 + batch / max(balance, 1.0))))
        each = math.ceil(max(_LEAST_PROBE, self._least_batch, _PROBE * math.sqrt(balance / share)))
        return (each, share) if able and batch >= 2 * each else (0, 0.0)

    def looks(self, probes: Probes, total: np.ndarray) -> bool:
        probes.sums.append(total)
        probes.waiting += 1
        d, size, deviation = len(total), probes.each, probes.deviation
        tau = self._information(size, deviation)
        latest = np.add.accumulate(probes.sums[: -_LATEST - 1 : -1])
        largest = (np.einsum("ij,ij->i", latest, latest) * _SHARES[: len(latest)]).max()
        if largest * tau * d < change.least_sum(d) / 2 * size**2:  # what follows takes ten times as long
            return False
        numbers = tau, tau, tau, tau**2 / size, (tau * deviation / size) ** 2, size, 0.0
        for each in probes.sums[-probes.waiting :]:
            change.add(probes.blocks, np.concatenate([tau * probes.point, tau / size * each, numbers]))
        probes.waiting = 0
        known, new = (change.used(blocks) for blocks in (self._blocks, probes.blocks))
        sure = _SURE if self._sums[_SOON_AFTER] >= _BRIEF else _SURE_BY_PROBES
        found = self._find(np.concatenate([self._blocks[:known], probes.blocks[:new]]), sure)
        probes.found = found if found is None or not found.scale_alone else None
        return probes.found is not None

    def _begin_with(self, probes: Probes, first: int, new: bool) -> None:
        """Forget all blocks; begin with the probes from the first one on."""
        state, blocks = self.state.copy(), probes.blocks[first : change.used(probes.blocks)]
        share, d = _FAINT * self._kept(float(blocks[:, change.INFORMATION].sum())), self.curvature.parameters
        powers = np.zeros(blocks.shape[1])
        powers[: 2 * d], powers[[change.WEIGHT, change.SCALE_WEIGHT]] = 1, 1
        powers[[change.SQUARES, change.NOISE]] = 2
        self._forget(state, change.used(self._blocks), new)
        self._sums_of(state)[_SINCE] += 0 if new else blocks[:, change.RECORDS].sum()
        self._blocks_of(state)[: len(blocks)] = blocks * share**powers
        state[:d] = self._next(Units(self.units).inward(state[:d]), state)
        self.state[:] = state

    def follow(self, sure: float) -> None:
        """Look for a change of the stream; if there is one, forget what was before it, and move the query point.

        A change needs `sure` times N_0 records.
        """
        state, d = self.state.copy(), self.curvature.parameters
        point, blocks = Units(self.units).inward(state[:d]), self._blocks_of(state)
        found = self._find(blocks, sure)
        if found is None:
            return
        if found.scale_alone:
            change.forget_scale(blocks, d, found.block)
        else:
            self._forget(state, found.block, found.new)
        state[:d] = self._next(point, state)
        self.state[:] = state

    def _find(self, blocks: np.ndarray, sure: float) -> change.Change | None:
        """Where the stream changed, by these blocks; the last ones need `sure` times N_0 records."""
        curvature, d, huber = self.curvature, self.curvature.parameters, isinstance(self.curvature.loss, Huber)
        point = Units(self.units).inward(self.estimate)
        carries = np.zeros((d, d))
        carries[: curvature.columns, : curvature.columns] = self._hessian(self._curved)
        variances = np.diag(carries) * (float(point[-1]) if huber else 1.0)
        variances = np.maximum(variances, _VARIANCES[huber])
        if huber:
            carries[-1, -1], variances[-1] = max(float(self._curved[-1]), 0.0), _SCALE_VARIANCE
        scale, least = float(point[-1]) if huber else None, sure * self.noise / curvature.variance
        find = partial(change.find, hessian=carries, variances=variances, scale=scale, least=least)
        found = find(blocks, curved=self.renewals == 0)
        if found is None or not self.changes:
            return found
        records = blocks[:, change.RECORDS]
        later = blocks[np.cumsum(records[::-1])[::-1] - records / 2 <= self._sums[_SINCE]]
        return found._replace(new=find(later, curved=True) is not None)

    def _forget(self, state: np.ndarray, before: int, new: bool) -> None:
        """Forget the first blocks, `before` many, of an array like `state`, as after a change, a `new` one or not."""
        blocks = self._blocks_of(state)
        sums, whole = self._sums_of(state), float(blocks[:, change.WEIGHT].sum())
        change.forget(blocks, before)
        kept = float(blocks[:, change.WEIGHT].sum()) / whole
        share = kept + _PRIOR * (1 - kept)
        sums[[_WEIGHT, _NOISE]] *= share, share**2
        sums[_RENEWALS] += 1
        if self._replans:
            sums[_REPLANNED] = self.records
        if new:
            sums[_SOON_AFTER] += sums[_CHANGES] > 0 and sums[_SINCE] * self.curvature.variance < _SOON * self.noise
            sums[_CHANGES] += 1
            sums[_NOTICED], sums[_SINCE] = self.records, 0

    @property
    def latest(self) -> float:
        records = float(self._blocks[:, change.RECORDS].sum())  # 0: not known, because the averages began anew
        return records / self.records if self.renewals and self.records and records else 1.0

    def keep_latest(self, share: float) -> None:
        records = self._blocks[: change.used(self._blocks), change.RECORDS]
        last = np.cumsum(records[::-1])[::-1]  # in the blocks from each one on
        if (before := min(int(np.count_nonzero(last > share * self.records)), len(records) - 1)) > 0:
            state = self.state.copy()
            self._forget(state, before, new=False)  # the others count it
            d = self.curvature.parameters
            state[:d] = self._next(Units(self.units).inward(state[:d]), state)
            self.state[:] = state

    def _next(self, point: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The query point after `point`, which is in the present units, from the averages of a state."""
        curvature, d, q = self.curvature, self.curvature.parameters, self.curvature.columns
        huber = isinstance(curvature.loss, Huber)
        weight, noise = state[curvature.size : curvature.size + 2].tolist()
        variance = noise / weight**2
        total = self._blocks_of(state).sum(axis=0)
        found, gradient = change.means(total, d, huber)
        sigma = float(point[-1]) if huber else 1.0
        curved = state[d : curvature.size]
        hessian, rows, loud = self._hessian(curved), variance * np.eye(q), 1.0
        if self._secants:
            hessian, rows = self._secants.improved(hessian, variance)
            loud = _FLOOR[huber]
        values, vectors = np.linalg.eigh(hessian)
        floors = loud * np.sqrt(2 * q * np.sum((rows @ vectors) * vectors, axis=0))
        values = np.maximum(values, np.maximum(floors, max(1e-9 * abs(values[-1]), 1e-12 / sigma)))
        along = vectors.T @ gradient[:q]
        decrement = float(np.sum(along**2 / values))
        found[:q] -= min(1.0, math.sqrt(sigma / max(decrement, 1e-300))) * (vectors @ (along / values))
        if self._shrinks or self._own:
            inverse = (vectors / values) @ vectors.T
            error = float(total[change.NOISE]) / float(total[change.WEIGHT]) ** 2 / sigma**2
            found[:q] = sigma * shrunk(found[:q] / sigma, error * inverse @ inverse, self._own, self._shrinks)
        if huber:
            bend = max(float(curved[-1]), 0.05 / sigma, 2 * math.sqrt(variance))
            found[-1] = min(max(found[-1] - gradient[-1] / bend, sigma / 2), 2 * sigma)
        return self._project(Units(self.units).outward(found))

    def _hessian(self, curved: np.ndarray) -> np.ndarray:
        """A (q, q) of the weighted mean of what follows the gradient in vectors."""
        q = self.curvature.columns
        hessian = np.zeros((q, q))
        hessian[self._upper] = curved[: q * (q + 1) // 2]
        hessian = (hessian + hessian.T) / math.sqrt(2)
        hessian[np.diag_indices(q)] /= math.sqrt(2)
        return hessian

    # -- state -------------------------------------------------------------------------------------------------------

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        self.check(self.curvature, numbers[: self._size], check)
        centre, slope = numbers[self._size : self._whole].reshape(2, -1)
        seen = slope.any()
        if not (np.all(np.abs(centre) <= 1) and np.all((seen <= slope) & (slope <= seen / LEAST))):
            raise ConfigError("state: the units of its columns are out of range")
        if len(numbers) > self._whole and not seen:
            BatchSearch(*self._bounds).read(numbers[self._whole :])

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `BatchSteps.merge`: their numbers are weighted by information.

        If their units differ, the averages begin anew, in the units of the part that knows most. Parts that still
        search for the target count only if all do; then the one with the most records goes on.
        """
        self.records = min(MOST_RECORDS, sum(part.records for part in parts))
        found = [part for part in parts if not part.searching]
        changes, renewals = max(part.changes for part in parts), max(part.renewals for part in parts)
        if not found:
            self.state[:] = max(parts, key=lambda part: part.records).state
            soon = max(part._sums[_SOON_AFTER] for part in parts)  # noqa: SLF001
            self._sums[[_RENEWALS, _CHANGES, _SOON_AFTER]] = renewals, changes, soon
            return
        if len(found) < len(parts):
            average = np.average([part.estimate for part in found], axis=0, weights=[part.records for part in found])
            parts = found
        self.state[self._whole :] = 0
        self.begin_anew()
        d, size = self.curvature.parameters, self.curvature.size
        self.state[:d] = average
        first = max(parts, key=lambda part: float(part._blocks[:, change.INFORMATION].sum()))  # noqa: SLF001
        self.units[:] = first.units
        since, soon = np.array([part._sums[[_SINCE, _SOON_AFTER]] for part in parts]).T  # noqa: SLF001
        self._sums[_NOTICED:] = 0, 0, renewals, since.sum(), changes, soon.max()
        same = all(np.array_equal(part.units, self.units) for part in parts)
        weights = np.array([part._sums[_WEIGHT] for part in parts])  # noqa: SLF001
        if weights.sum() > 0 and same:
            state = self.state.copy()
            state[d:size] = np.average([part._curved for part in parts], axis=0, weights=weights)  # noqa: SLF001
            self._sums_of(state)[:_NOTICED] = np.sum([part._sums[:_NOTICED] for part in parts], axis=0)  # noqa: SLF001
            blocks = self._blocks_of(state)
            blocks[0] = np.sum([part._blocks.sum(axis=0) for part in parts], axis=0)  # noqa: SLF001
            blocks[0, change.LEVEL] = max(part._blocks[:, change.LEVEL].max() for part in parts)  # noqa: SLF001
            state[:d] = self._next(Units(self.units).inward(average), state)
            self.state[:] = state
