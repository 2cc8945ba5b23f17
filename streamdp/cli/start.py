"""The first and the last lines of the command: Ctrl-C ends them with a message and exit code 130, without a traceback.

This module imports little but the standard library, because loading the others takes most of a short command's time.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from streamdp.cli.version import print_version
from streamdp.errors import NotAvailableError, cli_packages

INTERRUPTED = "streamdp: interrupted; what was committed is kept\n"
SHOW_CURSOR = "\x1b[?25h"
_NEW_OBJECTS = 100_000  # more than a worker holds at a time


def start() -> None:
    """Run the command and exit with its code; see `streamdp --help`."""
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        with suppress(OSError):  # the command below says what is wrong with standard output
            print_version()
            sys.exit(0)
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before numpy is loaded
        os.environ.setdefault(name, "1")  # on matrices of some hundred columns, further threads mostly wait in a loop
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would search all installed packages for them
    installed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if installed:
        signal.signal(signal.SIGINT, _leave)
    with rare_collections():
        try:
            with cli_packages("the command streamdp"):
                from streamdp.cli.main import run_command
        except NotAvailableError as error:
            sys.stderr.write(f"streamdp: {error}\n")
            sys.exit(6)
        code = run_command()
        if installed:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the code is decided
    gc.freeze()  # otherwise the end of the process visits every object again, a seventh of the time of a short command
    sys.exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, unless a run has another handler: what is committed is kept, as after any crash.

    `KeyboardInterrupt` can come up in an import, a destructor or a module of another language, none of which expects
    it.
    """
    cursor = SHOW_CURSOR if os.isatty(2) else ""  # the display of a run hides it
    os.write(2, (cursor + INTERRUPTED).encode())
    os._exit(130)


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
