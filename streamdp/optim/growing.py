"""A walk whose batches grow with the stream, so that no horizon is needed: what `Newton` and `Asgd` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from streamdp.errors import ConfigError
from streamdp.optim.states import finite_array

MOST = 10**18
"""The largest number of records of a walk."""


class Growing:
    """The state, and the place in the sequence of batches. A subclass says how large a batch is, and makes the steps.

    Parameters
    ----------
    state
        The numbers of the walk.
    batch
        Records of each batch; None: they grow.
    """

    def __init__(self, state: np.ndarray, batch: int | None) -> None:
        self.state = state
        self.records = 0
        """n, the records of all batches before."""
        self._fixed = batch

    def _size_after(self, records: int) -> int:
        """The number of records of the batch that follows so many records, if batches grow."""
        raise NotImplementedError

    def _check_state(self, numbers: np.ndarray, check: Callable[[np.ndarray], None]) -> None:
        """Check what is to become `state`; `check` raises `ConfigError` for a vector (d,) that is no parameter."""
        raise NotImplementedError

    @property
    def batch(self) -> int:
        """The number of records of the next batch."""
        return self._after(self.records)

    def _after(self, records: int) -> int:
        return self._size_after(records) if self._fixed is None else self._fixed

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the batches after the next one: (records, how many batches of that size)."""
        if self._fixed is not None:
            yield self._fixed, MOST
        records = self.records + self.batch
        while True:
            batch = self._after(records)
            yield batch, 1
            records += batch

    @property
    def place(self) -> tuple[int, int, int]:
        """The next batch, in the form that is also used for planned walks: (0, 0, n)."""
        return 0, 0, self.records

    def batch_at(self, place: tuple[int, int, int]) -> int:
        """Return the number of records of a batch.

        Parameters
        ----------
        place
            As `place` returns it.

        Raises `ConfigError` for a place out of range.
        """
        return self._after(_records_of(place))

    def go(self, place: tuple[int, int, int]) -> None:
        """Go to a batch; what was learned stays.

        Parameters
        ----------
        place
            As `place` returns it.

        Raises `ConfigError` for a place out of range.
        """
        self.records = _records_of(place)

    def skip(self) -> None:
        """Go to the batch after the next one."""
        self.records += self.batch

    def closed(self, records: int) -> int:
        """What the sum of a batch that was closed with so many records is divided by: their number.

        Parameters
        ----------
        records
            At least 1.
        """
        return records

    def learned(self) -> dict[str, Any]:
        """The state as plain values and new arrays."""
        return {"state": self.state.copy(), "place": list(self.place)}

    def read(self, state: Mapping[str, Any], check: Callable[[np.ndarray], None]) -> Callable[[], None]:
        """Check what `learned` returned; return the function that takes it over.

        Parameters
        ----------
        state
            The entries of `learned`.
        check
            Raises `ConfigError` for a vector (d,) that is no parameter.

        Raises `ConfigError` for numbers out of range.
        """
        numbers = finite_array(state, "state", self.state.shape)
        self._check_state(numbers, check)
        epoch, phase, records = (int(number) for number in state["place"])
        records = _records_of((epoch, phase, records))

        def take_over() -> None:
            self.records = records
            self.state[:] = numbers

        return take_over


def _records_of(place: tuple[int, int, int]) -> int:
    if place[:2] != (0, 0) or not 0 <= place[2] <= MOST:
        raise ConfigError("state: its place is out of range")
    return place[2]
