"""Averaged stochastic gradient descent on noisy reports that all have the same noise, in batches that grow.

Everything here is about accuracy. A batch of b reports at one theta makes the step of b reports by the information of
`steps`, and counts as one report with b times the information where a change of the stream is looked for. The steps,
the batches and their source: docs/proofs/user_level.md, averaged steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.optim import follow, loops
from streamdp.optim.arrays import CHANGES, Arrays
from streamdp.optim.batch_steps import Probes
from streamdp.optim.growing import Growing
from streamdp.optim.steps import Steps
from streamdp.scaling import unit_table as k
from streamdp.scaling.arrays import UnitArrays, begin

_PART = 64
_LARGEST_THETA = 1e100


@dataclass(frozen=True)
class Reports:
    """What is known of the reports; public.

    `information` is tau of a report in units of 1 / C^2, 1 / (E||report||^2 / C^2), above 0 and at most 1. `bound` is
    C, the largest norm of a vector before noise, `largest` C0 >= C, that of a gradient, and `distance` D, expected from
    the start to the best theta. `classes` says whether the target is a class, and `scaled` whether the last parameter
    is Huber's scale. `curvature` is the expected h of `follow`; 0: changes of the stream are not looked for.
    """

    information: float
    bound: float
    largest: float
    distance: float
    classes: bool = False
    scaled: bool = False
    curvature: float = 0.0


class Asgd(Growing):
    """The iterate, its average and the sequence of batches.

    It begins at `start` (d,); `project` maps to the domain. If `batch` is None, batches grow.
    """

    def __init__(
        self, reports: Reports, start: np.ndarray, project: Callable[[np.ndarray], np.ndarray], batch: int | None
    ) -> None:
        super().__init__(np.concatenate([start, start, np.zeros(2)]), batch)
        """Theta (d,), its average (d,), T and the weight of the average."""
        self.since = np.zeros(len(start))  # the T_j
        self.blocks = np.zeros((follow.ROWS, 5 * len(start) + 2))  # those of `follow`
        self._project, self._reports = project, reports
        self._d = d = len(start)
        numbers = reports.distance, reports.bound, d * reports.bound / reports.largest
        self._factor, self._decay, self._offset = Steps().numbers(*numbers, reports.classes)
        self._least = Steps().numbers(*numbers)[2]
        self._spec = np.zeros(loops.SPEC)
        self._spec[loops.LOSS] = loops.HUBER if reports.scaled else loops.LOGISTIC
        self._spec[[loops.BOUND, loops.CURVATURE, loops.OFFSET]] = reports.bound, reports.curvature, self._offset

    @property
    def middle(self) -> np.ndarray:
        return self.state[: self._d].copy()

    @property
    def estimate(self) -> np.ndarray:
        return self.state[self._d : -2]

    def _size_after(self, records: int) -> int:
        reports, each = self._reports, self._reports.information
        known = float(self.state[-2]) + (records - self.records) * each
        short = (known + self._least) ** self._decay / each
        return int(max(1.0, min(known / each / _PART, reports.bound / reports.largest * short)))

    def move(self, total: np.ndarray, size: int, advance: int, probes: Probes | None = None) -> None:
        d, state, blocks, since = self._d, self.state.copy(), self.blocks.copy(), self.since
        tau, mean = advance * self._reports.information, total / size
        arrays = self._arrays(blocks)
        state[-2] += tau
        arrays.units.progress[k.TOTAL] = state[-2]
        changed = self._reports.curvature > 0 and follow.notice(arrays, mean, tau)
        length = self._factor * tau * (state[-2] - self.since + self._offset) ** -self._decay
        theta = self._project(np.clip(state[:d] - length * mean, -_LARGEST_THETA, _LARGEST_THETA))
        weight = tau * math.sqrt(blocks[follow.NUMBERS, follow.FOLLOWED] or state[-2])
        state[-1] += weight
        state[:d] = theta
        state[d:-2] += weight / state[-1] * (theta - state[d:-2])
        if changed:
            since = np.maximum(since + arrays.units.progress[k.TOTAL] - state[-2], 0.0)
            state[d:-2], state[-2:] = theta, (arrays.units.progress[k.TOTAL], 0.0)
        self.records += advance
        self.state[:], self.blocks, self.since = state, blocks, since

    def _arrays(self, blocks: np.ndarray, units: UnitArrays | None = None) -> Arrays:
        """What `follow` reads and writes; without units of columns."""
        if units is None:
            table = np.zeros((1, k.TABLE))
            table[:, k.SCALE] = 1.0
            units = begin(table, [])
        d, theta = self._d, np.zeros((3, self._d))
        theta[0] = self.state[:d]
        segments = np.zeros((0, d + 1 + 2 * len(units.table)))
        return Arrays(self._spec, np.zeros((2, d)), theta, segments, blocks, units)

    @property
    def changes(self) -> int:
        return int(self.blocks[CHANGES])

    @property
    def renewals(self) -> int:
        return int(self.blocks[follow.NUMBERS, follow.RENEWALS])

    @property
    def information(self) -> float:
        """T, that of all reports."""
        return float(self.state[-2])

    @property
    def least(self) -> int:
        return math.ceil(self._least / self._reports.information)

    def forget(self) -> None:
        """Begin the average anew with the next iterate."""
        self.state[-1] = 0.0

    @property
    def latest(self) -> float:
        return self.information / float(self.blocks[follow.NUMBERS, follow.EVER] or self.information or 1.0)

    def keep_latest(self, share: float) -> None:
        arrays = self._arrays(self.blocks)
        arrays.units.progress[k.TOTAL] = self.information
        mean = follow.keep_latest(arrays, share)
        if mean is not None:
            self.since = np.maximum(self.since + arrays.units.progress[k.TOTAL] - self.information, 0.0)
            self.state[self._d :] = np.append(mean, [arrays.units.progress[k.TOTAL], 0.0])

    def mapped(self, place: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Return a copy in other units, but for its blocks; `place` maps a theta (d,) to its value in them."""
        other, d = copy(self), self._d
        other.state = np.concatenate([place(self.state[:d]), place(self.state[d:-2]), self.state[-2:]])
        other.blocks = self.blocks.copy()
        return other

    def carry(self, units: UnitArrays, before: np.ndarray) -> None:
        """Carry the blocks along, when columns got other units than in the table `before`."""
        follow.carry(self._arrays(self.blocks, units), before)

    def learned(self) -> dict[str, object]:
        return super().learned() | {"blocks": self._arrays(self.blocks).saved_blocks()}

    def read(self, state: Mapping[str, object], check: Callable[[np.ndarray], None]) -> None:
        blocks = self._arrays(self.blocks).read_blocks(state)
        super().read(state, check)
        self.blocks = blocks

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        if not (numbers[-2:].min() >= 0 and np.abs(numbers).max() <= _LARGEST_THETA):
            raise ConfigError("state: its sums are out of range")
        check(numbers[: self._d])
        check(numbers[self._d : -2])

    def merge(self, parts: Sequence[Self], average: np.ndarray) -> None:
        """See `BatchSteps.merge`: their numbers are weighted by information."""
        states = np.array([part.state for part in parts])
        known, weights = states[:, -2:].sum(axis=0).tolist()
        state = np.concatenate([average, average, np.zeros(2)])
        if known > 0:
            state[:-2] = states[:, -2] @ states[:, :-2] / known
            state[-2:] = known, weights
        self.records = min(MOST_RECORDS, sum(part.records for part in parts))
        self.state[:] = state
        arrays = [part._arrays(part.blocks) for part in (self, *parts)]  # noqa: SLF001 - the same class
        arrays[0].merge_blocks(arrays[1:], self.estimate)
