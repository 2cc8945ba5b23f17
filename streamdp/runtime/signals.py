"""SIGINT and SIGTERM stop a run after its next commit; SIGTERM ends a command whose run has not begun."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals(stop: Callable[[], None], stopping: Callable[[], bool]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM; restore the earlier handlers at the end.

    If `stopping` returns True already, SIGINT has its earlier handler, which raises `KeyboardInterrupt` unless the
    program has another one. Outside the main thread this does nothing, because only the main thread may install
    handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stopping():
            earlier = before[signal.SIGINT]
            (earlier if callable(earlier) else signal.default_int_handler)(number, frame)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End the process with code 0 on SIGTERM. A run within the block has a handler of its own.

    The process ends at once, because an exception from a handler can come up in a module of another language, which
    does not expect it. What is committed is kept, as after any crash. Outside the main thread this does nothing,
    because only the main thread may install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
