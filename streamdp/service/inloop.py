"""Calls of functions in the thread of an event loop, from other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable


class InLoop:
    """Calls functions in an event loop, in the order of the calls. Any thread may use it.

    To wake a loop takes a system call, during which its thread waits for the interpreter. Functions that come before
    the loop is awake wake it once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._actions: deque[Callable[[], None]] = deque()
        self._woken = False

    def __call__(self, action: Callable[[], None]) -> None:
        """Call a function, `action`, soon. The loop logs its error, and calls the others."""
        self._actions.append(action)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed after a forced exit
                self._loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        self._woken = False  # first: an action that comes from now on wakes the loop, or is called below
        while self._actions:
            self._loop.call_soon(self._actions.popleft())
