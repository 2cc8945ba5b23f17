"""Features of predictions that wait in memory for their labels. They are written nowhere."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from connectors.jsoncalls import Cut
from connectors.recordblocks import Records

MOST_BYTES = 1 << 28
"""The most bytes that wait for one job."""


class Waiting:
    """Features by id: a bounded number, for a bounded time. The oldest are forgotten first.

    Parameters
    ----------
    seconds
        How long features wait.
    records
        How many wait at most.
    clock
        Returns the time in seconds; it never goes backward.
    """

    def __init__(self, seconds: float, records: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._records, self._clock = seconds, records, clock
        self._features: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._features)

    def add(self, call: Cut) -> None:
        """Remember the features of the records that have an id."""
        now = self._clock()
        for name, text in zip(call.texts(call.ids[call.named]), call.flat.raw(call.named), strict=True):
            self._drop(name)
            self._features[name] = now, text[1:-1]  # without the braces
            self._bytes += len(text)
        while self._features and (
            len(self._features) > self._records
            or self._bytes > MOST_BYTES
            or next(iter(self._features.values()))[0] < now - self._seconds
        ):
            self._drop(next(iter(self._features)))

    def join(self, call: Cut) -> tuple[Cut, dict[int, str], list[bytes]]:
        """Join labels with the features that they belong to.

        Returns the call with whole records; the reason why each other label is dead, by index; and the ids to forget
        after the commit.
        """
        if not call.labels:
            return call, {}, []
        texts = call.flat.raw(range(len(call)))
        dead: dict[int, str] = {}
        found: list[bytes] = []
        since = self._clock() - self._seconds
        for i in call.labels:
            (name,) = call.texts(call.ids[i : i + 1])
            at, features = self._features.get(name, (0.0, b""))
            if not name:
                dead[i] = "missing"
            elif not features or at < since:
                dead[i] = "unknown_id"
            else:
                texts[i] = b"{%s,%s" % (features, texts[i][1:]) if len(texts[i]) > 2 else b"{%s}" % features
                found.append(name)
        ends = np.cumsum([len(text) + 1 for text in texts])
        return replace(call, flat=Records(b"\n".join([*texts, b""]), ends, call.flat.flaws)), dead, found

    def forget(self, names: list[bytes]) -> None:
        """Forget features whose label was committed.

        Parameters
        ----------
        names
            Ids that `join` returned.
        """
        for name in names:
            self._drop(name)

    def _drop(self, name: bytes) -> None:
        _, text = self._features.pop(name, (0.0, b""))
        self._bytes -= len(text) + 2 if text else 0
