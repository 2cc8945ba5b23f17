"""Python's garbage collector, as the command sets it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 100_000  # more than a worker holds at a time


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage only after 100,000 more objects are made than freed; restore the setting at the end.

    Modules that are loaded, and a poll of Kafka, make tens of thousands of objects, few of them in a cycle. With
    Python's default setting the collector visits them again and again, which takes a twentieth of the time of a short
    command and a quarter of that of a worker. The setting holds for the whole process, so only a command may change it,
    not the library.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
