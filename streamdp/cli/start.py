"""The first and the last lines of the command: Ctrl-C ends them with a message and exit code 130, without a traceback.

This module imports little but the standard library, because loading the others takes most of a short command's time.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from streamdp.cli.collector import rare_collections

INTERRUPTED = "streamdp: interrupted; what was committed is kept\n"


def start() -> None:
    """Run the command and exit with its code; see `streamdp --help`."""
    installed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if installed:
        signal.signal(signal.SIGINT, _leave)  # an import that KeyboardInterrupt leaves half done may fail otherwise
    sys.unraisablehook = _unraisable
    with rare_collections():
        from streamdp.cli.main import run_command

        if installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = run_command()
        except KeyboardInterrupt:  # the second one, while the first was handled
            _leave()
        finally:
            if installed:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the code is decided
    sys.exit(code)


def _leave(number: int = 0, frame: FrameType | None = None) -> None:
    """End the process at once: while modules are loaded, nothing is open."""
    os.write(2, INTERRUPTED.encode())
    os._exit(130)


def _unraisable(problem: Any) -> None:
    """An interrupt in a destructor or a callback, which Python reports and forgets."""
    if problem.exc_type is KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)  # again, for the code that runs
    else:
        sys.__unraisablehook__(problem)
