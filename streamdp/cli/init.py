"""`streamdp init`: the draft of a job for a data file."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import ascii_delimiter, say, warn
from streamdp.errors import ConfigError


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
) -> None:
    """Write a job for a data file, with comments and places to fill in. It holds no value of data that are private."""
    from streamdp.config.draft import draft, may_lack_header
    from streamdp.config.file import file_type
    from streamdp.config.peek import ROWS, delimiter_of, peek
    from streamdp.database.durable import write_durably

    if not data or data == "-":
        raise ConfigError(f"{data!r}: expected a data file")
    if output != "-" and os.path.lexists(output):
        raise ConfigError(f"{output} exists already; choose another file with -o")
    source = file_type(data)
    if delimiter is None:
        delimiter = delimiter_of(data) if source == "csv" else ","
    delimiter = ascii_delimiter(delimiter)
    columns = peek(data, source, delimiter, None if public else ROWS)
    if commas := [column.name for column in columns if column.has_commas]:
        warn(
            f"{', '.join(commas)}: numbers with commas are text here: write a decimal point, and no groups of thousands"
        )
    if source == "csv" and columns[0].name.startswith("#"):
        warn(f"the first line of {data} begins with #: if it is a comment, remove the lines before the column names")
    folder = "." if output == "-" else os.path.dirname(os.path.abspath(output))
    path = os.path.relpath(data, folder)
    if source == "csv" and not public and may_lack_header(columns):
        warn(f"a column of {data} has a number as its name: without a line of column names, the job holds a record")
    text = draft(columns, source, path, target=target, subject=subject, delimiter=delimiter, public=public)
    if output == "-":
        typer.echo(text, nl=False)
        return
    try:
        write_durably(output, text, mode=0o644, replace=False)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {(error.strerror or type(error).__name__).lower()}") from None
    say(f"wrote {output}; fill in the empty places, then: streamdp check {output}")
