"""One-pass Newton steps from noisy sums of gradients and curvature.

A batch gives a noisy sum of the vectors of `curvature` at a query point. Kept are the query points and the gradients,
in blocks (`change`), and the mean Hessian. The answer, which is also the next query point, is the posterior mean under
all noise: of gradients, and of the Hessian times the way from its query point. Batches grow; no horizon is needed. A
change of the stream is looked for after each batch, and by probes within it, and what was before is dropped. With
bounds of the target the first batches search for its centre and spread.

Everything here is about accuracy. Privacy depends only on the batches being disjoint, not on any number chosen here.
The rules, with the constants below: docs/proofs/curvature.md, the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import scipy

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError, NotAvailableError
from streamdp.optim.batch_steps import Probes
from streamdp.optim.classes import ClassProblem
from streamdp.optim.curvature import Curvature
from streamdp.optim.cuts import ROOM, UNEVEN, Cuts
from streamdp.optim.growing import Growing
from streamdp.optim.losses import Logistic
from streamdp.optim.newton_state import State, bend_of, slope_of
from streamdp.optim.secants import Secants
from streamdp.optim.shrinkage import pooled, shrunk
from streamdp.reading import change
from streamdp.reading.batch_intervals import BATCHES, Spread, StepEstimates, steps_of
from streamdp.scaling import column_units
from streamdp.scaling.batch_search import BatchSearch
from streamdp.scaling.units import FAR, FAR_OF_NUMBERS, MOST, Units, level_of, ranges_of

# All of them matter for accuracy only; the reasons are in docs/proofs/curvature.md.
_GROWTH, _LARGEST = 2, 2**20  # a batch holds so many times the records before it, and at most so many
_CALM, _SLOW = 16, 8  # without probes: so many N_0, or that part of the records before, as a change is seen at its end
_SURE, _SURE_BY_PROBES = 8, 1  # the last blocks of a change have this many N_0 records
_COST, _MOST = 0.04, 0.5  # the share by which probes may raise the variance of a mean gradient; their most of mu^2
_PROBE, _LEAST_PROBE = 10.0, 512.0  # records of a probe, over the root of N_0 / share; fewer take longer than learning
_SOON, _OFTEN = 16, 4  # a change is soon within so many N_0 of the one before, or within that part of the records
_BRIEF = 3  # with so many that are soon, changes do not last: the last blocks have a quarter of that part
_LATEST = 16  # so many probes are added up before it is worth looking for a change
_SHARES = 1 / np.arange(1.0, _LATEST + 1)
_LONGEST = 3.5  # so many batches of a search of columns are enough
_AFTER = 0.25  # after a change the first batch has this many N_0
_PRIOR = 0.5  # the weight of a Hessian from before a change
_VARIANCES, _SCALE_VARIANCE = (0.02, 0.05), 0.25
_KNOWING = 0.25  # of the most information of a block: the least of those that all are compared with
_BENT = 0.3  # the share by which a gradient may change otherwise than by A on the way to the answer
_FLOOR = 0.3  # of the noise of A
_LOST = 100.0  # a deviation of coefficients over sigma, far above any prior's
_STEP = 2.0  # about the most by which a step moves the intercept, over sigma
_LITTLE = 0.01  # a part of the variance of targets that is as good as nothing
_PASSES = 3  # for the weights and the noise, which depend on the answer
_SCALE_SHARE = 0.25  # of the variance of the scale's gradient in its curvature times sigma, for normal residuals
_OUTGROWN = 1.3  # of the mean slope: for normal residuals of 4.3 sigma, if c = 1.345
_LOUD = 1e100  # a variance of which squares are within the doubles
_NO_COLUMNS = np.zeros(0, dtype=bool)


class Round(NamedTuple):
    """A noisy sum (size,) of vectors at a query point (d,), with noise of this deviation on each coordinate.

    The `share` is that of the weight of all rounds about the same vectors.
    """

    point: np.ndarray
    total: np.ndarray
    deviation: float
    share: float = 1.0


class Solved(NamedTuple):
    """The answer (d,), the variance of what it predicts from the columns, and its expected squared error: in sigma."""

    theta: np.ndarray
    signal: float
    error: float


class Newton(Growing):
    """The sums, the query point and the sequence of batches.

    The first query point is `start` (d,); `project` maps to the domain. `deviation` is z >= 0, the standard deviation
    of the noise of a sum, on each coordinate. If `batch` is None, batches grow. If `wide`, Huber's sigma may begin far
    too large, at half the width of the target's bounds. `scaled` (p,) says which columns may be centred and scaled; if
    there is any, or `wide`, the model has an intercept. With `follow` a change of the stream is looked for, and with
    `replans` the sizes of batches begin anew at a change, unless devices know them from the job alone. `own` are
    the columns of what a group has of its own. `slopes` (p,) are what columns that are `Curvature.apart` are where they
    are not 0, without units of their own; empty: 1.
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
        own: tuple[int, ...] = (),
        slopes: Sequence[float] = (),
    ) -> None:
        self._huber = curvature.loss.has_scale
        self._cuts = Cuts(curvature) if curvature.loss.grows else None
        self._scaled = scaled if wide or scaled.any() else _NO_COLUMNS
        self._levels = np.zeros(curvature.columns - 1, dtype=bool)
        self._levels[[j for columns in curvature.apart for j in columns]] = True
        self._shown, self.ranges = start.copy(), np.zeros((2, len(self._scaled)))
        self._bounds = (float(start[-2]), float(start[-1])) if wide else (0.0, 1.0)
        search = BatchSearch(*self._bounds).numbers if wide and len(self._scaled) else np.zeros(0)
        self.curvature, self._project, self.deviation = curvature, project, deviation
        self._linked = wide and curvature.loss.log_link
        super().__init__(State.first(curvature, start, self._unseen, search), batch)
        if self._linked:
            self._begin_at(start)
        self.noise = deviation**2 * curvature.parameters
        self._follow, self._replans, self._own = follow, replans, own
        self._slopes = np.array(slopes) if len(slopes) else np.ones(curvature.columns - 1)
        self._secants, self._joint = Secants(), curvature.joint[np.triu_indices(curvature.columns)]  # as a svec
        self._model: tuple[np.ndarray, ClassProblem] | None = None  # that of the state with this `curved`

    @staticmethod
    def size(curvature: Curvature) -> int:
        """How many numbers the state has without units."""
        return len(State.first(curvature, np.zeros(curvature.parameters), np.zeros((2, 0)), np.zeros(0)).numbers())

    @property
    def middle(self) -> np.ndarray:
        """See `BatchSteps.middle`: the query point in the units of the columns (d,), their centres and their slopes."""
        units = self.state.units if not self.searching else [self.state.units[0], -np.abs(self.state.units[1])]
        return np.append(self._units.inward(self.state.point), units)

    @property
    def state(self) -> State:
        """All that was learned."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self._shown[:] = state.point  # what predicts holds these arrays
        far = FAR_OF_NUMBERS if self.curvature.loss.keeps_tails else FAR
        self.ranges[:] = ranges_of(state.units, np.where(state.units[1] < MOST, FAR / far, 1.0))

    @property
    def estimate(self) -> np.ndarray:
        return self._shown

    @property
    def _units(self) -> Units:
        level = float(self.state.level[0]) if self._linked else 0.0
        return Units(self.state.units, outputs=self.curvature.outputs, level=level)

    @property
    def link(self) -> float:
        return 0.0 if self.searching else self._units.level

    @property
    def changes(self) -> int:
        return int(self.state.changes)

    @property
    def renewals(self) -> int:
        return int(self.state.renewals)

    @property
    def last_change(self) -> int | None:
        return int(self.state.noticed) or None

    def answer(self, least: int = BATCHES, spread: Spread | None = None) -> StepEstimates | None:
        """The answer (d,) without shrinkage, with its covariance; None if there are fewer than the `least` blocks.

        `spread`: as for `steps_of`, for a scale of 1.

        None also if blocks of several learners were added up; NaN: that of the scale is not known. The Hessian that
        vectors have is above Huber's in the linear part of the loss, by a factor that is known for normal residuals.
        Raises `NotAvailableError` for several classes.
        """
        state, curvature, d, q = self.state, self.curvature, self.curvature.parameters, self.curvature.columns
        if curvature.outputs > 1:
            raise NotAvailableError("interval: Newton's steps have none for the softmax loss")
        if self.searching or not state.weight or state.merged:
            return None
        units, expected = self._units, min(1.0, math.sqrt(2 / q))
        point = units.inward(self.state.point)
        blocks, sigma, uneven = self._weighed(state, point), 1.0, 1.0
        hessian, entry = self._bent(state, point, blocks)
        if self._huber:
            sigma, uneven = float(point[-1]), curvature.loss.cut**2 / curvature.loss.kappa
            if self._cuts is None:
                hessian *= slope_of(curvature.loss.cut) / bend_of(curvature.loss.cut)
            else:
                sigma, uneven = self._unit(state, point) ** 2 / sigma, UNEVEN
        leading, floor = np.r_[:q, d : d + q, 2 * d : 2 * d + 7], math.sqrt(2 * q) * entry
        if spread is not None and spread.hessian is not None:
            spread = spread._replace(hessian=spread.hessian / sigma, of_hessian=spread.of_hessian / sigma**2)
        found = steps_of(blocks[:, leading], hessian, floor, expected * sigma, least, uneven, spread)
        if found is None:
            return None
        answer, covariance, freedom = np.full(d, np.nan), np.full((d, d), np.nan), np.full(d, np.nan)
        answer[:q], covariance[:q, :q], freedom[:q] = found
        if self._cuts is not None:  # the most by which the cut is wrong
            covariance[np.arange(q), np.arange(q)] += (sigma / (4 * curvature.loss.cut)) ** 2
        if self._huber and self._cuts is None:
            last = blocks[:, np.r_[d - 1, 2 * d - 1, 2 * d : 2 * d + 7]]
            last[:, change.WEIGHT] = last[:, change.SCALE_WEIGHT]
            last = last[(last[:, change.WEIGHT] > 0) | (last[:, change.LEVEL] == 0)]
            covariance[-1, :-1] = covariance[:-1, -1] = 0.0
            usual, bend = _SCALE_SHARE * expected * sigma, np.array([[state.curved[-1]]])
            if (scale := steps_of(last, bend, 2 * math.sqrt(state.variance), usual, least)) is not None:
                answer[-1:], covariance[-1:, -1:], freedom[-1:] = scale
        return StepEstimates(answer, covariance, freedom).through(units.outward)

    def _bent(self, state: State, point: np.ndarray, blocks: np.ndarray) -> tuple[np.ndarray, float]:
        """A (q, q), and the deviation of an entry. Of two classes, A is that at a `point`.

        There the gradients that `blocks` have for query points become, in place, points where a step along A has them.
        """
        if not self.curvature.of_columns:
            return state.hessian(self.curvature.columns), math.sqrt(state.variance)
        model, counts, q = self._classes(state), blocks[:, [change.WEIGHT]], self.curvature.columns
        hessian, noise = model.hessian(point), math.sqrt(float(blocks[:, change.NOISE].sum())) / float(counts.sum())
        blocks[:, :q] = counts * point + (blocks[:, :q] - counts * model.gradient(point)) @ np.linalg.inv(hessian)
        share = float(hessian[-1, -1]) / model.weight  # p (1 - p), of which noise in p changes 1 - 2 p, and so all of A
        wrong = noise / float(hessian[-1, -1]) * math.sqrt(max(0.0, 1 - 4 * share)) / math.sqrt(2 * q)
        least = max(float(np.linalg.eigvalsh(hessian)[0]), 0.0)
        return hessian, math.hypot(math.sqrt(state.variance) * share, wrong * least)

    @property
    def _unseen(self) -> np.ndarray:
        """(2, p) the units before anything is known."""
        return np.where(self._scaled, [[0.0], [-1.0]], [[0.0], [1.0]])

    @property
    def searching(self) -> bool:
        """Whether the places of the columns and the target are not known yet, so that no model is learned."""
        return bool(np.any(self.state.units[1] < 0) or self.state.search.any())

    @property
    def target(self) -> tuple[float, float, float]:
        """The centre and the spread of the target, as far as they are known, and half the width of its bounds.

        The spread is that of a target with independent columns of spread 1 in their units, and sigma. It is 0 with no
        search, or before.
        """
        if self.searching or not len(self.state.search):
            return 0.0, 0.0, 0.0
        point = self._units.inward(self.state.point)
        slopes, unit = point[:-2], self._unit(self.state, point)
        return float(point[-2]), math.hypot(float(np.linalg.norm(slopes)), unit), self._bounds[1]

    def _anew(self, point: np.ndarray, units: np.ndarray, search: np.ndarray) -> State:
        """The state that goes on at a point without averages; the changes stay."""
        state = State.first(self.curvature, point, units, search)
        kept = ("level", "noticed", "replanned", "renewals", "since", "changes", "soon")
        return replace(state, **{name: getattr(self.state, name) for name in kept})

    def begin_anew(self) -> None:
        """Forget the averages, whose units are no longer those of the query point; that and the changes stay."""
        self.state = self._anew(self.state.point, self.state.units, self.state.search)

    @property
    def least(self) -> int:
        """See `BatchSteps.least`: N_0, of several classes a part, each has its own signal, and ten for each column."""
        return math.ceil(self.noise / self.curvature.variance / self.curvature.outputs + 10 * self.curvature.columns)

    @property
    def flatness(self) -> float:
        """See `BatchSteps.flatness`: 1/4 over the mean curvature of the logistic loss, which is p (1 - p) of a share p.

        A curvature below its own noise is taken for that.
        """
        state, curvature = self.state, self.curvature
        if not isinstance(curvature.loss, Logistic) or not state.weight:
            return 1.0
        if curvature.of_columns:
            return max(1.0, 0.25 / float(self._classes(state).spreads(self._units.inward(state.point))[-1]))
        mean = float(np.diag(state.hessian(curvature.columns))[-1]) / curvature.factor
        return max(1.0, 0.25 / max(mean, math.sqrt(state.variance) / curvature.factor))

    @property
    def begun(self) -> bool:
        return bool(self.state.weight)

    @property
    def determined(self) -> float | None:
        if self.searching:
            return 0.0
        if not self.state.weight:
            return None
        found, slopes = self._solved(self.state, self._units.inward(self.state.point)), len(self.state.point) - 1
        most = (1 + math.sqrt(2 / max(slopes, 1))) * found.error  # a deviation above what is expected
        return found.signal / (found.signal + most + _LITTLE)

    @property
    def _search_batch(self) -> int:
        """The records of a batch of the search: so many that its means have the `ERROR`.

        Targets alone take fewer than columns do, which share the room of a vector.
        """
        error, columns = column_units.ERROR, not self._replans or bool(np.any(self.state.units[1] < 0))
        reach = self.curvature.reach if columns else 0.5
        return max(32, math.ceil(self.deviation / reach / error + column_units.SPREAD / error**2))

    @property
    def _least_batch(self) -> float:
        return max(32.0, 10.0 * self.curvature.parameters)

    def _size_after(self, records: int) -> int:
        balance, since = self.noise / self.curvature.variance, int(self.state.replanned)
        first = max(self._least_batch, 4 * math.sqrt(balance), _AFTER * balance * (since > 0))
        later = max(0, records - since)
        grown = float(min(_GROWTH * later, _LARGEST))
        if self._follow and not self._replans:  # there are no probes
            grown = min(grown, max(_CALM * balance, later / _SLOW))
        return self._search_batch if self._searches(records) else int(max(first, grown))

    def _searches(self, records: int) -> bool:
        """Whether the batch after so many records has the size of a search, which may have to be public before."""
        if self._replans or self._fixed is not None:
            return self.searching
        return bool(self._scaled.size) and records < _LONGEST * self._search_batch

    @contextmanager
    def planned(self) -> Iterator[None]:
        """See `BatchSteps.planned`: a change of the stream leaves them."""
        before, self._replans = self._replans, False
        try:
            with super().planned():
                yield
        finally:
            self._replans = before
            if before:
                self.state = replace(self.state, replanned=max(self.state.noticed, self.state.replanned))

    # -- steps -------------------------------------------------------------------------------------------------------

    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        asked = self.state.point
        self.records += advance
        if self.searching:
            self._search(total, size)
            if self._replans and self._fixed is None and not self.searching:  # batches grow from here on
                self.state = replace(self.state, replanned=float(self.records))
            return
        if self._searches(self.records - advance):  # too few for a step
            return
        if self._outgrown(total, size):
            self._search_anew()
            return
        found = None if probes is None else probes.found
        if probes is not None and found is not None:
            before = change.used(self.state.blocks)
            if found.block > before:
                self._begin_with(probes, found.block - before, found.new)
                return
            self.state = self._forgotten(found.block, found.new)
        deviation = self.deviation * (1.0 if probes is None else probes.louder)
        self.learn([Round(asked, total, deviation)], size, self._information(size, deviation))
        if self._scaled.size:
            q, tails = self.curvature.columns, self.curvature.loss.keeps_tails
            most = column_units.WIDE if tails else column_units.FAR
            self._refit(self.state.hessian(q), math.sqrt(self.state.variance), column_units.NEAR * tails, most)
        if self._follow and found is None:
            self.follow(_SURE)

    def _refit(self, moments: np.ndarray, error: float, least: float, most: float) -> None:
        """Go on in units that fit the columns: see `column_units.moved`."""
        units, numbers = self.state.units.copy(), ~self._levels
        last = np.append(numbers, True)
        units[:, numbers] = column_units.moved(units[:, numbers], moments[np.ix_(last, last)], error, least, most)
        self.state = self.state.in_units(units, math.inf, self.curvature)

    def _outgrown(self, total: np.ndarray, size: int) -> bool:
        """Whether sigma is far too small, by this batch alone."""
        loss, curvature = self.curvature.loss, self.curvature
        if not (len(self.state.search) and self._huber):
            return False
        last, most = curvature.size - 2, _OUTGROWN * (loss.cut**2 - loss.kappa) / curvature.factor
        excess = -2 * float(total[curvature.parameters - 1]) - most * float(total[last])
        return excess > 4 * math.sqrt((4 + most**2) * self.deviation**2 + size)

    def _search_anew(self) -> None:
        """Forget all but the intercept, and search for the target within its bounds again."""
        search, (middle, half) = BatchSearch(*self._bounds), self._bounds
        search.numbers[0] = min(max(self._intercept_and_scale[0], middle - half), middle + half)
        self._go_on(search, self.state.units)

    def _go_on(self, search: BatchSearch, units: np.ndarray) -> None:
        """Go on with the search for a target, or at its end, in these units (2, p)."""
        point, size = np.zeros_like(self.state.point), self._search_batch
        point[-2:] = search.place
        left = bool(np.any(units[1] < 0) or not search.clear)
        if self._cuts is not None and not left:
            point[-1] = self._cuts.first(point[-1], self._bounds[1], math.sqrt(4 * self.deviation**2 + size) / size)
        self.state = self._anew(point, units, search.numbers * left)
        self._begin_at(point)

    def _begin_at(self, point: np.ndarray) -> None:
        """Go to a point whose predictor is the target itself; a log link begins at its level."""
        if self._linked:
            self.state = replace(self.state, level=np.array([level_of(point[-2], point[-1] / ROOM)]))
        self.state = replace(self.state, point=self._project(self._units.outward(point)))

    @property
    def _intercept_and_scale(self) -> tuple[float, float]:
        """Intercept and scale at the query point, in units of the target."""
        intercept, scale = self._units.inward(self.state.point)[-2:].tolist()
        return intercept, scale

    def _search(self, total: np.ndarray, size: int) -> None:
        """Find the places of the columns and of the target, from a batch in which the model saw no columns."""
        curvature, d, p, noise = self.curvature, self.curvature.parameters, len(self._scaled), self.deviation**2
        loss, each, reach = curvature.loss, np.arange(p), curvature.reach * size
        distances = total[d + each * (p + 1) - each * (each - 1) // 2] / reach
        error = math.sqrt(noise / curvature.reach**2 + column_units.SPREAD * size) / size
        units = column_units.searched(self.state.units, total[:p] / reach, distances, error, self._levels)
        if self.records - self.state.replanned > _LONGEST * max(size, self._search_batch):
            units = column_units.ended(units)
        point, error = self.state.point.copy(), math.sqrt(noise + size) / size
        if self._huber and len(self.state.search):
            search = BatchSearch(*self._bounds)
            search.read(self.state.search)
            means = -float(total[d - 2]) / size, loss.kappa - 2 * float(total[d - 1]) / size
            place, errors = self._intercept_and_scale, (error, math.sqrt(4 * noise + size) / size)
            search.take(place, loss.cut, means, errors)
            self._go_on(search, units)
            return
        if not self._huber:  # the mean shares of classes give the intercepts
            seen, last = self.records - self.missing, slice(curvature.columns - 1, d, curvature.columns)
            error *= math.sqrt(size / seen)
            if curvature.outputs > 1:
                shares = np.log(np.maximum(scipy.special.softmax(point[last]) - total[last] / seen, error))
                point[last] = shares - np.mean(shares)
            else:
                share = float(scipy.special.expit(point[-1])) - float(total[d - 1]) / seen
                point[-1] = scipy.special.logit(min(max(share, error), 1 - error)) if error < 0.5 else 0.0
        self.state = self._anew(self._project(point), units, self.state.search)

    def learn(self, rounds: Sequence[Round], size: int, information: float) -> None:
        """Add noisy sums of the same vectors, `size` many, to the averages as one block, and move the query point.

        They have the information tau > 0 together, in proportion to their shares.
        """
        curvature, d, q = self.curvature, self.curvature.parameters, self.curvature.columns
        state, units = self.state, self._units
        points = np.array([units.inward(each.point) for each in rounds])
        means = np.array([each.total for each in rounds]) / size
        means[:, d : d + q * (q + 1) // 2] *= self._joint
        deviations = np.array([each.deviation for each in rounds]) / size
        weights = np.array([each.share for each in rounds])
        weights *= information / weights.sum()
        spreads = deviations if self._cuts is None else deviations * self._cuts.rounds(points, means)
        per_entry = curvature.bend / (curvature.factor * (points[:, -1] if self._huber else np.ones(len(rounds))))
        self._secants = Secants()
        if len(rounds) > 1 and not curvature.of_columns:
            for point, mean, deviation in zip(points[:, :q], means[:, :q], spreads.tolist(), strict=True):
                self._secants.add(point, mean, deviation**-2)
        near = 1.0  # the share of its weight that is left to the Hessian of earlier blocks
        if earlier := change.used(state.blocks):  # those before the newest one were nearer when it came
            newest = state.blocks[earlier - 1]
            kept = float(self._weighed(state, points[-1], whole=True)[earlier - 1, change.WEIGHT])
            near = kept / float(newest[change.WEIGHT])
            near = max(near, 1 - information / max(state.weight, 1e-300))  # a short batch replaces less
        bent = 1.0  # A of another sigma, which is the last parameter of the newest block
        if self._huber and earlier:
            bent = float(newest[d - 1] / newest[change.WEIGHT] / points[-1, -1])
        weight = near * state.weight + information
        curved = (near * bent * state.weight * state.curved + (weights * per_entry) @ means[:, d:]) / weight
        noise = (near * bent) ** 2 * state.noise + float(np.sum((weights * per_entry * deviations) ** 2))
        numbers = *3 * (information,), information**2 / size, np.sum((weights * spreads) ** 2), size, 0.0
        blocks = state.blocks.copy()
        change.add(blocks, np.concatenate([weights @ points, weights @ means[:, :d], numbers]))
        since = state.since + size
        state = replace(state, curved=curved, weight=weight, noise=noise, blocks=blocks, since=since)
        self.state = replace(state, point=self._next(points[-1], state))

    def _information(self, size: int, deviation: float) -> float:
        """tau of the sum of so many vectors."""
        curvature = self.curvature
        return 1 / (curvature.variance / size + deviation**2 * curvature.parameters / size**2)

    def _unit(self, state: State, point: np.ndarray) -> float:
        """The spread of residuals, at a `point` in the present units; 1 for classes."""
        if self._cuts is not None and state.weight:
            return self._cuts.spread(state.blocks)
        return float(point[-1]) if self._huber else 1.0

    def _spread(self, state: State, point: np.ndarray) -> float:
        """The variance of a record's gradient over A, at a `point` in the present units."""
        sigma = float(point[-1]) if self._huber else 1.0
        return self._unit(state, point) ** 2 / sigma * min(1.0, math.sqrt(2 / self.curvature.columns))

    def _uneven(self, point: np.ndarray) -> float:
        """The most that gradients vary over what their columns do, at a `point` in the present units."""
        if self._cuts is None:
            return 1.0
        return min(1.0, UNEVEN * (self._unit(self.state, point) / float(point[-1])) ** 2)

    def _weighed(
        self, state: State, point: np.ndarray, blocks: np.ndarray | None = None, whole: bool = False
    ) -> np.ndarray:
        """The blocks of a state, or others, as new ones: each has the weight of its own error at a `point`.

        That is in the present units. The way from its query point adds the noise of A and a share of the gradient, by
        which A changes on it. Without changes to follow, the average over all of the past is wanted: the share is 0.
        Only what a way adds beyond the best of the large blocks and the newest one counts, but for merged ones. If
        `whole`, all of it does, and so does as noise what another scale may have cut. With several classes, the query
        points are replaced by the gradients there of `ClassProblem`, so that A is 1.
        """
        d, q, blocks = self.curvature.parameters, self.curvature.columns, state.blocks if blocks is None else blocks
        counts = np.maximum(blocks[:, change.WEIGHT], 1e-300)
        if self._cuts is not None and state.weight:
            blocks, wrong = self._cuts.placed(blocks, state.sigma)
            blocks[:, change.NOISE] += wrong * whole
        if self.curvature.of_columns:
            model = self._classes(state)
            blocks = model.placed(blocks)
            ways = carried = blocks[:, :d] / counts[:, None] - model.gradient(point)
            errors = np.zeros(len(blocks))
        else:
            ways = blocks[:, :q] / counts[:, None] - point[:q]
            hessian, left = self._pooled(state)
            carried, errors = ways @ hessian, ways**2 @ left.sum(axis=0)
        information = blocks[:, change.INFORMATION]
        if self._follow:
            errors += (_BENT * (1 + state.merged)) ** 2 * np.sum(carried**2, axis=1)
        if not (whole or state.merged):
            known = information >= _KNOWING * information.max()
            known[change.used(blocks) - 1] = True
            errors = np.maximum(errors - errors[known].min(), 0.0)
        if state.merged:  # many old blocks have one error in common, so their noise must be known well
            spread = (
                self._spread(state, np.append(point[:q], state.sigma))
                * float(np.trace(state.hessian(q)))
                * self.curvature.outputs
                * self.curvature.loss.bend
                / self.curvature.bend
            )
            noise = blocks[:, change.SQUARES] * spread + blocks[:, change.NOISE] * d
            information = counts**2 / np.maximum(noise, 1e-300)
        powers = np.zeros(blocks.shape[1])
        powers[: 2 * d], powers[[change.WEIGHT, change.SCALE_WEIGHT]] = 1, 1
        powers[[change.SQUARES, change.NOISE]] = 2
        shares = 1 / (1 + (information * errors)[:, None])
        return blocks * shares**powers

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
        known, new = (change.used(blocks) for blocks in (self.state.blocks, probes.blocks))
        sure = _SURE if self.state.soon >= _BRIEF else _SURE_BY_PROBES
        found = self._find(np.concatenate([self.state.blocks[:known], probes.blocks[:new]]), sure)
        probes.found = found if found is None or not found.scale_alone else None
        return probes.found is not None

    def _begin_with(self, probes: Probes, first: int, new: bool) -> None:
        """Forget all blocks; begin with the probes from the first one on."""
        latest = probes.blocks[first : change.used(probes.blocks)]
        state = self._forgotten(change.used(self.state.blocks), new)
        blocks = np.zeros_like(state.blocks)
        blocks[: len(latest)] = latest
        since = state.since + (0.0 if new else float(latest[:, change.RECORDS].sum()))
        self._step(replace(state, blocks=blocks, since=since))

    def _step(self, state: State) -> None:
        """Go on with other averages, at the answer by them."""
        self.state = replace(state, point=self._next(self._units.inward(self.state.point), state))

    @property
    def variances(self) -> np.ndarray:
        """About the most that gradients of the coefficients vary, by A and what its noise hides."""
        state = self.state
        scale = float(self._units.inward(state.point)[-1]) if self._huber else 1.0
        found = (np.diag(state.hessian(self.curvature.columns)) + 2 * math.sqrt(2 * state.variance)) * scale
        least = np.maximum(found, _VARIANCES[self._huber])
        return np.tile(least * self._uneven(self._units.inward(state.point)), self.curvature.outputs)

    def changed(self, state: State) -> State:
        """The state after a change that is known otherwise, of what was this one before."""
        anew = self._anew(self.state.point, state.units, state.search)
        return replace(anew, noticed=0.0, since=0.0, changes=state.changes + 1, renewals=state.renewals + 1)

    def follow(self, sure: float) -> None:
        """Look for a change of the stream; if there is one, forget what was before it, and move the query point.

        A change needs `sure` times N_0 records.
        """
        found = self._find(self.state.blocks, sure)
        if found is None:
            return
        if found.scale_alone:
            blocks = self.state.blocks.copy()
            change.forget_scale(blocks, len(self.state.point), found.block)
            self._step(replace(self.state, blocks=blocks))
        else:
            self._step(self._forgotten(found.block, found.new))

    def _find(self, blocks: np.ndarray, sure: float) -> change.Change | None:
        """Where the stream changed, by these blocks; the last ones need `sure` times N_0 records."""
        curvature, state, q = self.curvature, self.state, self.curvature.columns
        point = self._units.inward(self.state.point)
        blocks, scale = self._weighed(state, point, blocks, whole=True), float(point[-1]) if self._huber else None
        carries, entry = np.eye(curvature.parameters), 0.0
        if not curvature.of_columns:
            carries[:q, :q], entry = state.hessian(q), state.variance
        lowest = _VARIANCES[self._huber] if state.weight else 1.0  # columns have a spread of 1 in units that are new
        spreads = self._classes(state).spreads(point) if curvature.of_columns else np.diag(carries) * (scale or 1.0)
        variances = np.maximum(spreads, lowest)
        if self._huber:
            carries[-1, -1], variances[-1] = max(float(state.curved[-1]), 0.0), _SCALE_VARIANCE
        variances *= self._uneven(point)
        if self._cuts is not None:
            variances[-1] = _LOUD  # a scale that grows is no change
        least = max(sure * self.noise / curvature.variance, self.records / (4 * _OFTEN) * (state.soon >= _BRIEF))
        larger, newest = 1.0, state.blocks[change.used(state.blocks) - 1]
        # Before the first change, the scale comes down from that of the declared bounds: A of its batches is smaller.
        if scale is not None and not state.renewals and newest[change.SCALE_WEIGHT] > 0:
            larger = max(1.0, float(newest[curvature.parameters - 1] / newest[change.SCALE_WEIGHT]) / scale)
        find = partial(
            change.find, hessian=carries, variances=variances, scale=scale, least=least, entry=entry, larger=larger
        )
        found = find(blocks, curved=self.renewals == 0)
        if found is None or not self.changes:
            return found
        records = blocks[:, change.RECORDS]
        later = blocks[np.cumsum(records[::-1])[::-1] - records / 2 <= state.since]
        return found._replace(new=find(later, curved=True) is not None)

    def _forgotten(self, before: int, new: bool) -> State:
        """The state without the first blocks, `before` many, as after a change, a `new` one or not."""
        state, blocks = self.state, self.state.blocks.copy()
        change.forget(blocks, before)
        known, left = (float(those[:, change.WEIGHT].sum()) for those in (state.blocks, blocks))
        kept = left / known if known else 0.0  # units that are new have no blocks yet
        share = kept + _PRIOR * (1 - kept)
        forgotten = replace(
            state,
            blocks=blocks,
            weight=share * state.weight,
            noise=share**2 * state.noise,
            renewals=state.renewals + 1,
            replanned=float(self.records) if self._replans else state.replanned,
        )
        if not new:
            return forgotten
        near = max(_SOON * self.noise / self.curvature.variance, self.records / _OFTEN)
        soon = state.changes > 0 and state.since < near
        noticed = replace(forgotten, noticed=float(self.records), since=0.0, changes=state.changes + 1)
        return replace(noticed, soon=state.soon + soon)

    @property
    def latest(self) -> float:
        records = self.state.records  # 0: not known, because the averages began anew
        return records / self.records if self.renewals and self.records and records else 1.0

    def keep_latest(self, share: float) -> None:
        records = self.state.blocks[: change.used(self.state.blocks), change.RECORDS]
        last = np.cumsum(records[::-1])[::-1]  # in the blocks from each one on
        if (before := min(int(np.count_nonzero(last > share * self.records)), len(records) - 1)) > 0:
            self._step(self._forgotten(before, new=False))  # the others count it

    def _next(self, point: np.ndarray, state: State) -> np.ndarray:
        """The query point after `point`, which is in the present units, from the averages of a state."""
        return self._project(self._units.outward(self._solved(state, point).theta))

    def _pooled(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """A (q, q) nearer to columns that are alike, and the variances of its noise, by a state."""
        q = self.curvature.columns
        slopes = state.units[1] if state.units.size else self._slopes
        return pooled(state.hessian(q), state.variance, self.curvature.apart, slopes, self._own)

    def _solved(self, state: State, point: np.ndarray) -> Solved:
        """The posterior mean (d,) after `point`, by a state; both in the present units."""
        if self.curvature.of_columns:
            return self._solved_of_classes(state, point)
        d, q, sigma = self.curvature.parameters, self.curvature.columns, float(point[-1]) if self._huber else 1.0
        hessian, left = self._pooled(state)
        unit, entry = self._unit(state, point), float(left[-1, -1])
        if state.level.size:  # coefficients of a logarithm are not large
            unit = min(unit, float(state.level[0]))
        rows = np.diag(left.mean(axis=0))
        if self._secants:
            hessian, rows = self._secants.improved(hessian, float(left.mean()))
        values, vectors = np.linalg.eigh(hessian)
        floors = _FLOOR * np.sqrt(2 * q * np.sum((rows @ vectors) * vectors, axis=0))  # a fault of A shortens steps
        floors += 1e-9 * max(abs(values[-1]), 1e-3 / sigma)
        spread, prior = self._spread(state, point), np.full(q, _LOST**-2)
        prior[-1] += _STEP**-2
        answer = point[:q]
        for _ in range(_PASSES):
            total = self._weighed(state, answer).sum(axis=0)
            found, gradient = change.means(total, d, self._huber)
            noise, squares = (total[[change.NOISE, change.SQUARES]] / total[change.WEIGHT] ** 2).tolist()
            noises = np.full(q, noise)
            if not self._secants:  # the noise of A on the way
                noises = np.minimum(noise + left @ (found[:q] - answer) ** 2 @ vectors**2, _LOUD)
            raised = np.maximum(values, np.maximum(floors, np.sqrt(noises) / (_LOST * unit)))
            along = vectors.T @ found[:q] - vectors.T @ gradient[:q] / raised
            certain = unit**2 / (noises / raised**2 + spread * squares / raised + 1e-300)
            covariance = np.linalg.inv((vectors * certain) @ vectors.T + np.diag(prior))
            mean = vectors @ (certain * along)
            mean[-1] += _STEP**-2 * point[q - 1]
            expected, covariance = shrunk(covariance @ mean / unit, covariance, self._own)
            move = vectors.T @ (unit * expected - found[:q])
            decrement = float(move**2 @ np.maximum(values, 0.0))
            answer = found[:q] + min(1.0, math.sqrt(sigma / max(decrement, 1e-300))) * (vectors @ move)
        if self._huber:
            if self._cuts is not None:
                wanted = self._cuts.scale(state.blocks, sigma, self.deviation)
            else:
                bend = max(float(state.curved[-1]), 0.05 / sigma, 2 * math.sqrt(state.variance))
                wanted = found[-1] - gradient[-1] / bend
            found[-1] = min(max(wanted, sigma / 4), 8 * sigma)
        found[:q], slopes = answer, expected[:-1]
        curved = (vectors * np.maximum(values, 0.0)) @ vectors.T
        curved /= max(float(curved[-1, -1]), math.sqrt(entry), 1e-9)
        products = curved[:-1, :-1] - np.outer(curved[:-1, -1], curved[:-1, -1])
        return Solved(found, float(slopes @ products @ slopes), float(np.sum(products * covariance[:-1, :-1])))

    def _classes(self, state: State) -> ClassProblem:
        """The model of several classes, by a state."""
        if self._model is None or self._model[0] is not state.curved:
            ends = None
            if state.units.size:  # of columns between -1 and 1, in their units, as they are cut
                ends = np.clip(ranges_of(state.units, 1.0), -1.0, 1.0)
                ends[0, self._levels] = 0.0
                ends = (ends - state.units[0]) * state.units[1]
            moments, left = self._pooled(state)
            self._model = state.curved, ClassProblem(moments, float(left.max()), self.curvature.outputs, ends)
        return self._model[1]

    def _solved_of_classes(self, state: State, point: np.ndarray) -> Solved:
        """As `_solved`: the answer of `ClassProblem`."""
        model, last, found = self._classes(state), point, None
        for _ in range(_PASSES):
            total = self._weighed(state, point).sum(axis=0)
            there, gradient = change.means(total, len(point), False)
            noise, squares = (total[[change.NOISE, change.SQUARES]] / total[change.WEIGHT] ** 2).tolist()
            found = model.answer(there - gradient, noise, self._spread(state, point) * squares, last, found)
            point = np.ravel(found.theta)
        assert found is not None
        return Solved(point, found.signal, found.error)

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def _numbers(self) -> np.ndarray:
        return self.state.numbers()

    def _take(self, numbers: np.ndarray) -> None:
        self.state = self.state.of(numbers)

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        state = self.state.of(numbers)
        state.check(self.curvature, check)
        centre, slope = state.units
        if not (np.all(np.abs(centre) <= 1) and np.all((np.abs(slope) >= 1) & (np.abs(slope) <= MOST))):
            raise ConfigError("state: the units of its columns are out of range")
        if self._linked:
            state.check_level()
        if state.search.any():
            BatchSearch(*self._bounds).read(state.search)

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `BatchSteps.merge`: their sums are added up, in common units and at a common sigma.

        The units are those of the part that knows most. Parts that still search for the target count only if all do;
        then the one with the most records goes on.
        """
        self.records = min(MOST_RECORDS, sum(part.records for part in parts))
        found, states = [part for part in parts if not part.searching], [part.state for part in parts]
        counts: dict[str, Any] = {
            name: max(getattr(state, name) for state in states) for name in ("changes", "renewals", "soon")
        }
        if not found:
            self.state = replace(max(parts, key=lambda part: part.records).state, **counts)
            return
        if len(found) < len(parts):
            average = np.average([part.estimate for part in found], axis=0, weights=[part.records for part in found])
            states = [part.state for part in found]
        weights = np.array([state.weight for state in states])
        at = int(np.argmax(weights))
        if self._huber and weights.sum() > 0:
            sigma = np.exp(np.average(np.log([state.sigma for state in states]), weights=weights))
            states, average[-1] = [state.at_sigma(float(sigma), self.curvature) for state in states], sigma
        first, q = states[at], self.curvature.columns
        states = [state.at_level(first.level, self.curvature) for state in states]
        states = [state.in_units(first.units, float(first.hessian(q)[-1, -1]), self.curvature) for state in states]
        state = State.first(self.curvature, average, first.units, np.zeros_like(first.search))
        self.state = replace(state, level=first.level, since=sum(state.since for state in states), **counts)
        if weights.sum() > 0:
            weights = np.array([state.weight for state in states])
            state = replace(
                self.state,
                curved=np.average([state.curved for state in states], axis=0, weights=weights),
                weight=float(weights.sum()),
                noise=sum(state.noise for state in states),
                blocks=change.joined([state.blocks for state in states]),
                merged=1.0,
            )
            self._step(state)
