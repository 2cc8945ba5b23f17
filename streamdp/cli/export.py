"""`streamdp export`: a model in a form that other programs read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from streamdp.cli.app import app
from streamdp.cli.common import JobName, say, store_of


@app.command(epilog="Example: streamdp export late.db --to sql --table flights > late.sql")
def export(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|JOB.YAML|STORE", help="A file that `save` wrote, or a job or its store.")
    ],
    to: Annotated[Literal["json", "python", "sql", "onnx", "pmml", "mlflow"], typer.Option(help="The language.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="The file to write; mlflow: a folder.")] = None,
    table: Annotated[str, typer.Option(help="For SQL: the table, as a query names it.")] = "records",
    job: JobName = None,
) -> None:
    """Write the model in another language.

    It has its statement, and predicts the same there.
    """
    import streamdp
    from streamdp.database.durable import write_durably
    from streamdp.serving.export import WRITERS, exported_model
    from streamdp.serving.publish import committed

    model = streamdp.load(what) if _is_saved(what) else committed(*store_of(what, job))
    written = WRITERS[to](exported_model(model), table)
    if isinstance(written, dict):
        _write_folder(output, written)
    elif output is None:
        sys.stdout.buffer.write(written if isinstance(written, bytes) else written.encode())
        return
    else:
        write_durably(output, written)
    say(f"wrote {output}")


def _write_folder(folder: str | None, files: dict[str, str]) -> None:
    from streamdp.database.durable import write_durably
    from streamdp.errors import ConfigError

    if folder is None or Path(folder).exists():
        came = "none" if folder is None else f"{folder!r}, which exists"
        raise ConfigError(f"export: expected a new folder in --output, got {came}")
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(str(path), text)


def _is_saved(what: str) -> bool:
    """Whether it is a file of `save`, which begins as JSON does."""
    path = Path(what)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) == b"{"
