"""SIGINT and SIGTERM stop a run after its next commit; SIGTERM ends a command whose run has not begun."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


def stopped_by_signals(stop: Callable[[], None], stopping: Callable[[], bool]) -> AbstractContextManager[None]:
    """Call `stop` on SIGINT and SIGTERM within a with statement.

    If `stopping` returns True already, SIGINT has its earlier handler, which raises `KeyboardInterrupt` unless the
    program has another one.
    """
    earlier = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stopping():
            (earlier if callable(earlier) else signal.default_int_handler)(number, frame)
        stop()

    return _handled({signal.SIGINT: handle, signal.SIGTERM: handle})


def ended_by_sigterm() -> AbstractContextManager[None]:
    """End the process with code 0 on SIGTERM within a with statement. A run within it has a handler of its own.

    The process ends at once, because an exception from a handler can come up in a module of another language, which
    does not expect it. What is committed is kept, as after any crash.
    """
    return _handled({signal.SIGTERM: lambda number, frame: os._exit(0)})


@contextmanager
def _handled(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Install handlers, and the earlier ones at the end; in the main thread, the only one that may install any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
