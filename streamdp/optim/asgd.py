"""Averaged stochastic gradient descent on noisy reports that all have the same noise, in batches that grow.

Everything here is about accuracy. The steps and the average are those of `steps` by information: with tau
the information of a report, D the expected distance from the start to the best theta and C the bound of a vector, a
batch of b reports at one theta makes the step of b reports,

    theta <- Proj(theta - b (3/4) (D/C) tau T_0^(alpha - 1/2) (T + T_0)^-alpha mean),   T += b tau,

C0 being the bound of the loss, I_0 = 4 d C/C0, and T_0 = I_0 or 2 I_0 as in `steps`. Its iterate has the weight b tau
sqrt(T) in the average, which is the answer. A coordinate whose progress began at T_j (`unit_table`) has T - T_j for T
in its steps.

I_0 is that of `steps` for C = C0. Vectors that are cut to C < C0 have less noise beside the same curvature, so the
information that is worth as much as knowing D falls by (C/C0)^2 near the best theta, and by less where all vectors are
cut. C/C0 was chosen by measurement (`benchmarks/user_scaling.md`).

Batches. With n reports so far, b = max(1, min(n/64, (C/C0) (n tau + I_0)^alpha / tau)): reports of the last part of the
stream do not move the point where gradients are taken by more than a part of D, so a batch is worth as much as its
reports one by one.

Source: Shi et al. 2025, eq. 3.3; the information and the batches are streamdp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.optim.growing import Growing
from streamdp.optim.steps import Steps

_PART = 64
_LARGEST_THETA = 1e100


@dataclass(frozen=True)
class Reports:
    """What is known of the reports; public.

    `information` is tau of a report in units of 1 / C^2, 1 / (E||report||^2 / C^2), above 0 and at most 1. `bound` is
    C, the largest norm of a vector before noise, `largest` C0 >= C, that of a gradient, and `distance` D, expected from
    the start to the best theta. `classes` says whether the target is a class.
    """

    information: float
    bound: float
    largest: float
    distance: float
    classes: bool = False


class Asgd(Growing):
    """The iterate, its average and the sequence of batches.

    It begins at `start` (d,); `project` maps a vector (d,) to the nearest point of the domain. If `batch` is None,
    batches grow.
    """

    def __init__(
        self, reports: Reports, start: np.ndarray, project: Callable[[np.ndarray], np.ndarray], batch: int | None
    ) -> None:
        super().__init__(np.concatenate([start, start, np.zeros(2)]), batch)
        """Theta (d,), its average (d,), T and the weight of the average."""
        self.since = np.zeros(len(start))
        """(d,) the T_j."""
        self._project = project
        self._d = len(start)
        self.expect(reports)

    def expect(self, reports: Reports) -> None:
        """Make the next steps for such reports."""
        self._reports = reports
        numbers = reports.distance, reports.bound, self._d * reports.bound / reports.largest
        self._factor, self._decay, self._offset = Steps().numbers(*numbers, reports.classes)
        self._least = Steps().numbers(*numbers)[2]

    @property
    def middle(self) -> np.ndarray:
        """See `BatchSteps.middle`: a copy of theta."""
        return self.state[: self._d].copy()

    @property
    def estimate(self) -> np.ndarray:
        """See `BatchSteps.estimate`: the average."""
        average: np.ndarray = self.state[self._d : -2]
        return average

    def _size_after(self, records: int) -> int:
        reports = self._reports
        short = (records * reports.information + self._least) ** self._decay / reports.information
        return int(max(1.0, min(records / _PART, reports.bound / reports.largest * short)))

    def move(self, total: np.ndarray, size: int, advance: int) -> None:
        """See `BatchSteps.move`."""
        d, state = self._d, self.state.copy()
        tau = advance * self._reports.information
        state[-2] += tau
        length = self._factor * tau * (state[-2] - self.since + self._offset) ** -self._decay
        theta = self._project(np.clip(state[:d] - length * (total / size), -_LARGEST_THETA, _LARGEST_THETA))
        weight = tau * math.sqrt(state[-2])
        state[-1] += weight
        state[:d] = theta
        state[d:-2] += weight / state[-1] * (theta - state[d:-2])
        self.records += advance
        self.state[:] = state

    @property
    def information(self) -> float:
        """T."""
        return float(self.state[-2])

    @property
    def least(self) -> int:
        """See `BatchSteps.least`: the reports that hold the information I_0."""
        return math.ceil(self._least / self._reports.information)

    def forget(self) -> None:
        """Begin the average anew with the next iterate."""
        self.state[-1] = 0.0

    def mapped(self, place: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Return a copy in other units; `place` maps a theta (d,) to its value in them."""
        other, d = copy(self), self._d
        other.state = np.concatenate([place(self.state[:d]), place(self.state[d:-2]), self.state[-2:]])
        return other

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
