"""`streamdp init`: the draft of a job for a data file or a topic."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import naming, need_clients, say, warn, writing
from streamdp.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from streamdp.config.draft import DraftColumn
    from streamdp.estimators.door import Trust


@app.command(epilog="Example: streamdp init flights.csv --target late -o late.yaml")
def init(
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help="The data file.")] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write; - for standard output.")
    ] = "job.yaml",
    topic: Annotated[
        str | None, typer.Option(help="Instead of a file, a Kafka topic of JSON objects, the latest of which are read.")
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(envvar="STREAMDP_KAFKA", help="With --topic: HOST:PORT[,HOST:PORT].")
    ] = None,
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
            " window; for a topic process."
        ),
    ] = None,
    items_per_user: Annotated[
        int | None,
        typer.Option(min=1, help="--trust window: the most records of a person. Default: 16 with --subject, else 1."),
    ] = None,
) -> None:
    """Write a job for a file or a topic, with places to fill in.

    It has what the data show of how they are written, and texts that ten records
    or more share, as categories to confirm: it is not private.
    """
    from streamdp.config.file import file_type
    from streamdp.database.durable import write_durably

    _check_arguments(data, topic, output, delimiter)
    source: str = "kafka" if data is None else file_type(data)
    chosen = _trust(source) if trust is None else _answer(trust)
    if items_per_user is not None and chosen != "window":
        raise ConfigError(
            "--items-per-user is for --trust window, where all records of a person are protected together"
        )
    if topic is not None:
        draft = _of_topic(topic, brokers, delimiter)
    elif data is not None:
        folder = "." if output == "-" else os.path.dirname(os.path.abspath(output))
        draft = _of_file(data, data if "://" in data else os.path.relpath(data, folder), delimiter, public)
    text = draft(target=target, subject=subject, public=public, trust=chosen, items_per_user=items_per_user)
    if output == "-":
        typer.echo(text, nl=False)
        return
    with writing(output):
        write_durably(output, text, mode=0o644, replace=False)
    say(f"wrote {output}; fill in the empty places, then: streamdp check {output}")


def _check_arguments(data: str | None, topic: str | None, output: str, delimiter: str | None) -> None:
    from streamdp.cli.settings import check_there
    from streamdp.config.file import tab
    from streamdp.config.job import check_no_store

    if data is None and topic is None:
        raise ConfigError("Missing argument: expected a data file, or --topic")
    if data is not None and topic is not None:
        raise ConfigError("expected a data file or --topic, got both")
    if data in ("", "-"):
        raise ConfigError(f"{data!r}: expected a data file")
    if data is not None and data.endswith((".yaml", ".yml")):
        raise ConfigError(f"{data} is a job, expected data; `streamdp check {data}` says what the job lacks")
    if data is not None:
        check_there(data)
        check_no_store(data, "give a file of data")
    if delimiter is not None and (len(tab(delimiter)) != 1 or not delimiter.isascii()):
        raise ConfigError(f"--delimiter: expected one ASCII character, got {delimiter!r}")
    if output != "-" and os.path.lexists(output):
        raise ConfigError(f"{output} exists already; choose another file with -o")


def _of_file(data: str, path: str, delimiter: str | None, public: bool) -> Callable[..., str]:
    from streamdp.config.draft import draft, may_lack_header
    from streamdp.config.file import FileSourceConfig, file_type, tab
    from streamdp.config.peek import ROWS, delimiter_of, form_of, names_twice, peek

    source, form, delimiter = file_type(data), None, tab(delimiter)
    file = FileSourceConfig(type=source, path=data).files()[0]
    if source == "csv":
        form = form_of(file)
        delimiter = delimiter or delimiter_of(file, form)
        if twice := names_twice(file, delimiter, form):
            names = ", ".join(map(repr, twice))
            warn(f"the header of {data} has {names} more than once: rename these columns to use them")
    columns = peek(file, source, delimiter or ",", None if public else ROWS, form)
    if source == "csv":
        _warn_of_doubt(columns)
        if columns[0].name.startswith("#"):
            warn(f"the first line of {data} begins with #: if it is a comment, set source.comment: '#', and begin anew")
        if not public and may_lack_header(columns):
            warn(f"a column of {data} has a number as its name: without a line of column names, the job holds a record")
    elif commas := _with_commas(columns):
        warn(f"{commas}: numbers with commas or units are text in such files; write them as 1234.5")
    return partial(draft, columns, {"type": source, "path": path}, delimiter=delimiter or ",", form=form)


def _with_commas(columns: "Sequence[DraftColumn]") -> str:
    """The names of columns with numbers as only CSV files may have them."""
    from streamdp.config.draft import settled

    read = settled(columns).columns
    return ", ".join(c.name for c, r in zip(columns, read, strict=True) if r.kind == "number" != c.kind)


def _warn_of_doubt(columns: "Sequence[DraftColumn]") -> None:
    from streamdp.config.draft import settled

    found = settled(columns)
    names = ", ".join(found.doubtful)
    if any(column.kind == "text" for column in found.columns if column.name in found.doubtful):
        warn(
            f"{names}: numbers with commas are text here, because nothing shows whether 1,234 is 1.234: set"
            " source.decimal: ',', or source.thousands: ','"
        )
    elif names:
        warn(
            f"{names}: 1.234 is read as 1.234 and not as 1234, because nothing shows which it is: if it is 1234, set"
            " source.decimal: ',' and source.thousands: '.'"
        )


def _of_topic(topic: str, brokers: str | None, delimiter: str | None) -> Callable[..., str]:
    from streamdp.config.draft import draft

    if brokers is None or delimiter is not None:
        raise ConfigError("--topic: expected --brokers HOST:PORT or STREAMDP_KAFKA with it, and no --delimiter")
    need_clients()
    from streamdp.config.kafka import KafkaSourceConfig
    from streamdp.config.peek import peek_topic

    source = {"type": "kafka", "topic": topic, "brokers": brokers}
    with naming(brokers):
        columns, others = peek_topic(KafkaSourceConfig.model_validate(source))
    if others:
        warn(f"{others:,} of the latest messages of {topic} are no JSON objects and would not be learned")
    if commas := _with_commas(columns):
        warn(f"{commas}: numbers with commas or units are text in a topic: its producers must write 1234.5")
    return partial(draft, columns, source)


def _trust(source: str) -> "Trust":
    """Ask who may see the raw records, at a terminal; elsewhere it is as usual for a source."""
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


def _answer(given: str) -> "Trust":
    from streamdp.config.trust import ANSWERS

    if given not in ANSWERS:
        raise ConfigError(f"--trust: expected one of {', '.join(ANSWERS)}{suggestion(given, ANSWERS)}")
    return given
