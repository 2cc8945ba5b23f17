"""`streamdp plot`: a picture of a committed model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import JobName, StorePath, say, store_of
from streamdp.errors import ConfigError


@app.command(epilog="Example: streamdp plot late.yaml -o late.png --log run.jsonl")
def plot(
    store: StorePath,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file to write: .png, .svg or .html.")
    ] = "model.png",
    log: Annotated[
        str | None, typer.Option(help="What `streamdp run` printed: its measures on a public holdout are drawn.")
    ] = None,
    job: JobName = None,
    level: Annotated[float, typer.Option(help="The level of the intervals, such as 0.95.")] = 0.95,
) -> None:
    """Draw weights, statistics, counts and measured errors."""
    from streamdp.serving.doubts import doubts
    from streamdp.serving.plots import draw, measured, write
    from streamdp.serving.publish import committed
    from streamdp.store.store import Store

    store, job = store_of(store, job)
    try:
        lines = [] if log is None else Path(log).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"--log {log}: cannot be read as text") from None
    model = committed(store, job)
    figure = draw(model, Store.history(store, job=job), measured(lines), level)
    verdict = [] if model.quality is None else [model.quality.sentence()]
    verdict += [] if model.change is None else [model.change]
    below = [*verdict, *doubts(model.estimator, model.snapshot.counts), model.statement()]
    write(figure, output, "\n".join(below))
    say(f"wrote {output}")
