"""`streamdp init`: the draft of a job for a data file."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import ascii_delimiter, say, warn
from streamdp.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from streamdp.config.trust import Trust


@app.command(epilog="Example: streamdp init flights.csv --target late -o late.yaml")
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The data file.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write; - for standard output.")
    ] = "job.yaml",
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    subject: Annotated[str | None, typer.Option(help="The column that identifies the person of a record.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="The character between CSV fields. Default: the one that the header shows.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The data are PUBLIC: copy bounds and categories from them.")
    ] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            help="Who may see the raw records while they are processed: nobody, process (this process, and nothing"
            " stays), window (this process, for a window of people) or shuffler. It is asked at a terminal. Default:"
            " window."
        ),
    ] = None,
    items_per_user: Annotated[
        int | None,
        typer.Option(min=1, help="--trust window: the most records of a person. Default: 16 with --subject, else 1."),
    ] = None,
) -> None:
    """Write a job for a data file, with places to fill in.

    It holds no value of data that are private.
    """
    from streamdp.config.draft import draft, may_lack_header, plain_numbers
    from streamdp.config.file import file_type
    from streamdp.config.peek import ROWS, delimiter_of, form_of, peek
    from streamdp.database.durable import write_durably

    if not data or data == "-":
        raise ConfigError(f"{data!r}: expected a data file")
    if output != "-" and os.path.lexists(output):
        raise ConfigError(f"{output} exists already; choose another file with -o")
    source = file_type(data)
    chosen = _trust(source) if trust is None else _answer(trust)
    if items_per_user is not None and chosen != "window":
        raise ConfigError(
            "--items-per-user is for --trust window, where all records of a person are protected together"
        )
    form = form_of(data) if source == "csv" else None
    if delimiter is None:
        delimiter = delimiter_of(data, form) if source == "csv" else ","
    delimiter = ascii_delimiter(delimiter)
    columns = peek(data, source, delimiter, None if public else ROWS, form)
    commas = [column.name for column in columns if column.has_commas]
    if commas and (source != "csv" or plain_numbers(columns) is None):
        warn(
            f"{', '.join(commas)}: numbers with commas are text here: set source.decimal: ',' and source.thousands to"
            " the mark between groups of digits, or source.thousands: ',' alone"
        )
    if source == "csv" and columns[0].name.startswith("#"):
        warn(f"the first line of {data} begins with #: if it is a comment, set source.comment: '#', and begin anew")
    folder = "." if output == "-" else os.path.dirname(os.path.abspath(output))
    path = os.path.relpath(data, folder)
    if source == "csv" and not public and may_lack_header(columns):
        warn(f"a column of {data} has a number as its name: without a line of column names, the job holds a record")
    text = draft(
        columns,
        source,
        path,
        target=target,
        subject=subject,
        delimiter=delimiter,
        form=form,
        public=public,
        trust=chosen,
        items_per_user=items_per_user,
    )
    if output == "-":
        typer.echo(text, nl=False)
        return
    try:
        write_durably(output, text, mode=0o644, replace=False)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {(error.strerror or type(error).__name__).lower()}") from None
    say(f"wrote {output}; fill in the empty places, then: streamdp check {output}")


def _trust(source: str) -> Trust:
    """Ask who may see the raw records, at a terminal; elsewhere it is as usual for a file."""
    from streamdp.config.trust import ANSWERS, QUESTION, usual_trust

    usual = usual_trust({"source": {"type": source}})
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return usual
    say(QUESTION)
    for number, (answer, meaning) in enumerate(ANSWERS.items(), 1):
        say(f"  {number} {answer}: {meaning}")
    answers = [*ANSWERS]
    given = typer.prompt("Number or word", default=usual, err=True).strip()
    return _answer(answers[int(given) - 1] if given in ("1", "2", "3", "4") else given)


def _answer(given: str) -> Trust:
    from streamdp.config.trust import ANSWERS

    if given not in ANSWERS:
        raise ConfigError(f"--trust: expected one of {', '.join(ANSWERS)}{suggestion(given, ANSWERS)}")
    return given
