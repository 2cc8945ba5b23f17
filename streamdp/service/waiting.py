"""Features of predictions that wait in memory for their labels. They are written nowhere."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

MOST_BYTES = 1 << 28
"""The most bytes that wait for one caller of a job."""
_ENTRY_BYTES = 400
_NOTHING: OrderedDict[str, tuple[float, np.ndarray]] = OrderedDict()


class Waiting:
    """Encoded features by caller and id: at most `records` of each caller, for at most so many `seconds`.

    The oldest of a caller are forgotten first. No caller changes, reads or forgets what another one left. The seconds
    of `clock` never go backward.
    """

    def __init__(self, seconds: float, records: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._records, self._clock = seconds, records, clock
        self._callers: dict[str, OrderedDict[str, tuple[float, np.ndarray]]] = {}

    def add(self, caller: str, names: Iterable[str | None], X: np.ndarray) -> None:
        """Remember features X (n, p) of a `caller` (see `Access.caller`) by `names`; None: the record has no id."""
        now = self._clock()
        own = self._callers.setdefault(caller, OrderedDict())
        for name, row in zip(names, X, strict=True):
            if name is not None:
                own.pop(name, None)
                own[name] = now, row.copy()
        most = min(self._records, MOST_BYTES // (8 * X.shape[1] + _ENTRY_BYTES))
        while own and (len(own) > most or next(iter(own.values()))[0] < now - self._seconds):
            own.popitem(last=False)

    def find(self, caller: str, name: str) -> np.ndarray | None:
        """The encoded features (p,) that a `caller` left under this `name`; None if they are unknown or too old."""
        at, row = self._callers.get(caller, _NOTHING).get(name, (0.0, None))
        return row if row is not None and at >= self._clock() - self._seconds else None

    def forget(self, caller: str, names: Iterable[str]) -> None:
        """Forget the features that a `caller` left under these `names`, because their label was committed."""
        own = self._callers.get(caller, _NOTHING)
        for name in names:
            own.pop(name, None)
