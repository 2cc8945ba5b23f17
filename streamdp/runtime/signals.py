"""SIGINT and SIGTERM stop a run after its next commit; SIGTERM ends one that has not begun."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals(stop: Callable[[], None], stopping: Callable[[], bool]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM; restore the earlier handlers at the end.

    Outside the main thread this does nothing, because only the main thread may install handlers.

    Parameters
    ----------
    stop
        Asks the run to stop.
    stopping
        Whether the run was asked to stop already; SIGINT then raises `KeyboardInterrupt`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stopping():
            raise KeyboardInterrupt
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _TerminatedError(BaseException):
    """SIGTERM came while no run had its handler."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Leave this block on SIGTERM, as if it had ended. A run within it has a handler of its own.

    Outside the main thread this does nothing, because only the main thread may install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends two: the second must not interrupt the clean-up
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _TerminatedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
