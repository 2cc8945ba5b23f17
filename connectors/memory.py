"""A source in memory, for tests and for programs that hold their records already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np

from streamdp.errors import SourceError
from streamdp.records import Batch, DeadLetter, Position, Record


class Sentinel(Enum):
    """Not a record, but something that happens where one would be."""

    END = auto()
    ABORT = auto()
    BAD = auto()


END = Sentinel.END
"""The stream ends here, for this run: a run that seeks to the position after it goes on with what follows."""
ABORT = Sentinel.ABORT
"""Polling fails here with `SourceError`, once per source, after everything before was polled: a crash."""
BAD = Sentinel.BAD
"""A record that cannot be decoded: a dead letter with the reason `bad`."""

Item = Record | Sentinel | tuple
