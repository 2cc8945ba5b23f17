"""The first and the last lines of the command: Ctrl-C ends them with a message and exit code 130, without a traceback.

This module imports little but the standard library, because loading the others takes most of a short command's time.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from streamdp.cli.collector import rare_collections

INTERRUPTED = "streamdp: interrupted; what was committed is kept\n"
SHOW_CURSOR = "\x1b[?25h"


def start() -> None:
    """Run the command and exit with its code; see `streamdp --help`."""
    installed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if installed:
        signal.signal(signal.SIGINT, _leave)
    with rare_collections():
        from streamdp.cli.main import run_command

        code = run_command()
        if installed:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the code is decided
    sys.exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, unless a run has another handler: what is committed is kept, as after any crash.

    `KeyboardInterrupt` can come up in an import, a destructor or a module of another language, none of which expects
    it.
    """
    cursor = SHOW_CURSOR if os.isatty(2) else ""  # the display of a run hides it
    os.write(2, (cursor + INTERRUPTED).encode())
    os._exit(130)
