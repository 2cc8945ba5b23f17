"""Steps whose batches grow with the stream, so that no horizon is needed: the common base of `Newton` and `Asgd`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError
from streamdp.optim.batch_steps import BatchSteps, Place


class Growing(BatchSteps):
    """The state, and the position in the sequence of batches.

    A subclass says how large a batch is, and makes the steps. If `batch` is None, batches grow.
    """

    def __init__(self, state: Any, batch: int | None) -> None:
        self.state = state
        self.records = 0  # n, of all batches before, with those that are `missing`
        self._fixed = batch

    def _size_after(self, records: int) -> int:
        """The number of records of the batch that follows so many records, if batches grow."""
        raise NotImplementedError

    @property
    def _numbers(self) -> np.ndarray:
        return self.state

    @property
    def batch(self) -> int:
        return self._after(self.records)

    def _after(self, records: int) -> int:
        return self._size_after(records) if self._fixed is None else self._fixed

    def runs(self) -> Iterator[tuple[int, int]]:
        if self._fixed is not None:
            yield self._fixed, MOST_RECORDS
        records = self.records + self.batch
        while True:
            batch = self._after(records)
            yield batch, 1
            records += batch

    @property
    def place(self) -> Place:
        return 0, 0, self.records

    def go(self, place: Place) -> None:
        if place[:2] != (0, 0) or not 0 <= place[2] <= MOST_RECORDS:
            raise ConfigError("state: its place is out of range")
        self.records = place[2]

    def skip(self) -> None:
        self.records += self.batch

    @contextmanager
    def planned(self) -> Iterator[None]:
        """See `BatchSteps.planned`."""
        try:
            yield
        finally:
            self.records, self.missing = self.records - self.missing, 0

    def closed(self, records: int) -> int:
        return records
