"""Forks of the test's process that work until they are killed: a new process would load the library for longer."""

import os
import signal
import time
from collections.abc import Callable

from streamdp.errors import LedgerConflictError


def repeat(learn: Callable[[], None], tell: Callable[[], None]) -> None:
    """Learn and commit without end, and tell each commit; a span that conflicts with another job's is learned again."""
    while True:
        try:
            learn()
        except LedgerConflictError:
            continue
        tell()


class Fork:
    """A child that works at once, and tells each of its commits.

    Parameters
    ----------
    work
        What the child does without end. It gets a function to call after each commit.
    """

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                work(lambda: (os.write(writer, b"."), None)[1])
            finally:
                os._exit(7)
        os.close(writer)

    def kill(self, commits: int, after_s: float) -> None:
        """Kill the child at some instant after so many commits, however long they take, and look that it was alive."""
        for _ in range(commits):
            assert os.read(self._reader, 1) == b"."
        time.sleep(after_s)
        os.kill(self._child, signal.SIGKILL)
        os.close(self._reader)
        assert os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]) == -signal.SIGKILL
