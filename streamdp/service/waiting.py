"""Features of predictions that wait in memory for their labels. They are written nowhere."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

MOST_BYTES = 1 << 28
"""The most bytes that wait for one caller of a job."""
_ENTRY_BYTES = 400
_Own = OrderedDict[str, tuple[float, np.ndarray]]
_NOTHING: _Own = OrderedDict()
_SOON_S = 0.01
"""The least time between two looks for what is too old."""


class Waiting:
    """Encoded features by caller and id: at most `records` of each caller, for at most so many `seconds`.

    The oldest of a caller are forgotten first. No caller changes, reads or forgets what another one left. The seconds
    of `clock` never go backward.
    """

    def __init__(self, seconds: float, records: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._records, self._clock = seconds, records, clock
        self._callers: dict[str, _Own] = {}
        self._order: OrderedDict[tuple[str, str], float] = OrderedDict()  # of all callers, the oldest first

    def __len__(self) -> int:
        """How many features wait."""
        return len(self._order)

    def add(self, caller: str, names: Iterable[str | None], X: np.ndarray) -> None:
        """Remember features X (n, p) of a `caller` (see `Access.caller`) by `names`; None: the record has no id."""
        now = self._clock()
        most = min(self._records, MOST_BYTES // (8 * X.shape[1] + _ENTRY_BYTES))
        for name, row in zip(names, X, strict=True):
            if name is not None:
                self.forget(caller, [name])
                self._callers.setdefault(caller, OrderedDict())[name] = now, row.copy()
                self._order[caller, name] = now
        own = self._callers.get(caller, _NOTHING)
        self.forget(caller, list(own)[: max(0, len(own) - most)])

    def find(self, caller: str, name: str) -> np.ndarray | None:
        """The encoded features (p,) that a `caller` left under this `name`; None if they are unknown or too old."""
        at, row = self._callers.get(caller, _NOTHING).get(name, (0.0, None))
        return row if row is not None and at > self._clock() - self._seconds else None

    def forget(self, caller: str, names: Iterable[str]) -> None:
        """Forget the features that a `caller` left under these `names`, because their label was committed."""
        own = self._callers.get(caller, _NOTHING)
        for name in names:
            if own.pop(name, None) is not None:
                del self._order[caller, name]
        if not own:
            self._callers.pop(caller, None)

    def expire(self) -> float:
        """Forget what is too old, of all callers. Return after how many seconds something else can be."""
        now = self._clock()
        while self._order and (first := next(iter(self._order.items())))[1] <= now - self._seconds:
            (caller, name), _ = first
            self.forget(caller, [name])
        return self._seconds if not self._order else next(iter(self._order.values())) + self._seconds - now

    async def expire_in_time(self) -> None:
        """Forget what is too old when it is, until this is cancelled."""
        while True:
            await asyncio.sleep(max(self.expire(), _SOON_S))
