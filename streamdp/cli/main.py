"""The entry point of the `streamdp` command: it runs a command and turns errors into messages and exit codes.

Commands import heavy modules inside their functions, so that `--help` is quick.
"""

import io
import os
import re
import sys
import warnings

import typer

import streamdp.cli.check
import streamdp.cli.init
import streamdp.cli.produce
import streamdp.cli.run
import streamdp.cli.serve
import streamdp.cli.store  # noqa: F401 - these modules add their commands to the application
from streamdp.cli.app import app
from streamdp.cli.common import say
from streamdp.errors import (
    BUDGETS,
    BudgetError,
    ConfigError,
    NotAtBoundaryError,
    NotAvailableError,
    QueriesExhaustedError,
    SchemaError,
    SourceError,
    StoreError,
    StreamDPError,
    cli_packages,
    place_of,
)

EXIT_CODES: dict[type[StreamDPError], int] = {
    ConfigError: 2,
    SourceError: 3,
    SchemaError: 3,
    StoreError: 4,
    BudgetError: 5,
    QueriesExhaustedError: 5,
    NotAvailableError: 6,
    NotAtBoundaryError: 6,
}


def run_command() -> int:
    """Run the command and return its exit code; see `streamdp --help`."""
    if sys.stdout is None:  # the next file that is opened would take its place
        return _fail("standard output is closed; use >/dev/null", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):  # else the name of a file in a folder may end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    for argument in sys.argv[1:]:
        if not argument.isascii() and argument.encode(errors="ignore").decode() != argument:
            return _fail(f"{argument!a} is not UTF-8 text: expected arguments and names of files in UTF-8", 2)
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
    try:
        with cli_packages("the command streamdp"):
            code: int = app(standalone_mode=False, prog_name="streamdp") or 0
        return code if code != 130 else _interrupted()  # Typer returns 130 for a KeyboardInterrupt
    except StreamDPError as error:
        return _fail(str(error), next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind)))
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _discard_output()
        return 1
    except Exception as error:  # noqa: BLE001 - an unexpected error becomes a message without values
        return _unexpected(error)


def _meant(error: Exception, text: str) -> str:
    """What may be meant by a usage error, from names that other programs have, or from those of commands."""
    name = "" if (found := re.search(r"No such (?:command '|option: --)(\w+)", text)) is None else found[1]
    if name in ("validate", "verify", "lint"):
        return "Use streamdp check."
    if name in ("train", "fit", "learn", "partial_fit"):
        return "Use streamdp run."
    if name in BUDGETS:
        return f"Use --budget {BUDGETS[name]}."
    known = sorted(getattr(getattr(getattr(error, "ctx", None), "command", None), "commands", ()))
    if known and "No such command" in text and "Did you mean" not in text:
        return f"Expected one of {', '.join(known)}."
    return "Try --help."


def _unexpected(error: Exception) -> int:
    # The classes of Typer's usage errors depend on its version; all of them can format themselves.
    if hasattr(error, "format_message"):
        text = error.format_message()
        if "\n" in text:  # the help, for a command that needs more
            typer.echo(text, err=True)
            return 2
        return _fail(f"{text if text.endswith('?') else text.rstrip('.') + '.'} {_meant(error, text)}", 2)
    if os.environ.get("STREAMDP_TRACEBACK"):
        raise error
    if isinstance(error, OSError) and error.filename is None and error.strerror:  # errors of files have a name
        _discard_output()
        return _fail(f"cannot write standard output: {error.strerror.lower()}; what was committed is kept", 1)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "connectors":
        other = getattr(sys.modules.get("connectors"), "__file__", None) or "unknown"
        need = "streamdp's wheel has a package of this name; install streamdp in an environment without the other one"
        return _fail(f"another package named connectors is in the place of streamdp's: {other}; {need}", 1)
    # The text of an unexpected error may quote a record, so it is not shown.
    hint = "STREAMDP_TRACEBACK=1 shows the full error, with values"
    return _fail(f"unexpected {type(error).__name__} at {place_of(error)}; {hint}", 1)


def _interrupted() -> int:
    return _fail("interrupted; what was committed is kept", 130)


def _discard_output() -> None:
    """Redirect standard output, because Python would report the error again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    say(message)
    return code
