"""Commands that read the store of a job, and never change it: from `status` to `export`."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.app import app
from streamdp.cli.common import (
    AsJSON,
    JobName,
    StorePath,
    TextSettings,
    moment,
    need_stdin,
    say,
    shown,
    store_of,
    warn,
    writing,
)
from streamdp.errors import ConfigError, NotAvailableError, SchemaError

if TYPE_CHECKING:
    from streamdp.data.records import Position
    from streamdp.serving.snapshots import Model
    from streamdp.store.reading import SinkState

_MOST_DECIMALS = 12
"""Smaller numbers are shown with a power of ten."""


@app.command(epilog="Example: streamdp status late.db")
def status(
    store: StorePath,
    job: JobName = None,
    kafka: Annotated[str | None, typer.Option(help="The brokers to ask for the lag, HOST:PORT.")] = None,
    as_json: AsJSON = False,
) -> None:
    """What a job has learned so far."""
    from streamdp.privacy.statement import brief
    from streamdp.serving.doubts import doubts, opening
    from streamdp.serving.publish import present
    from streamdp.store.reading import sinks

    store, job = store_of(store, job)
    model = present(store, job)
    snapshot = model.snapshot
    reasons = [*snapshot.doubts, *doubts(model.estimator, snapshot.counts)]
    if snapshot.waiting and not snapshot.counts.learned and (sentence := opening(model.estimator)) is not None:
        reasons.append(f"{sentence}; {snapshot.waiting:,} wait")
    rows = {
        "job": snapshot.job,
        "commits": snapshot.seq,
        "committed at": moment(snapshot.committed_at) if snapshot.seq else None,
        "learned": snapshot.counts.learned,
        "refused": snapshot.counts.refused,
        "left_out": snapshot.counts.left_out,
        "dead_letters": snapshot.counts.dead_letters,
        "waiting": snapshot.waiting,
        "position": snapshot.position,
        "guarantee": str(model.estimator.guarantee),
        "cap": model.definition.cap,
        "doubts": reasons,
    }
    quality = model.quality
    if quality is not None:
        rows["validation"] = quality.document() if as_json else quality.sentence()
    if model.change is not None:
        rows["change"] = model.change
    published = sinks(store, snapshot.job)
    if published:
        rows["sinks"] = [asdict(sink) for sink in published]
    if kafka is not None:
        from streamdp.cli.kafka_job import lags
        from streamdp.store.reading import snapshots

        found = lags(kafka, {}, {s.shard: s.position for s in snapshots(store, job)})
        unknown = None if as_json else "unknown"
        rows["lag"] = {str(shard): unknown if lag is None else lag for shard, lag in found.items()}
    if as_json:
        _print_json({name.replace(" ", "_"): value for name, value in rows.items()})
        return
    del rows["doubts"]
    rows["position"] = _place(snapshot.position)
    rows.pop("sinks", None)
    rows = {"do not fit" if name == "dead_letters" else name.replace("_", " "): value for name, value in rows.items()}
    more = [("doubt", doubt) for doubt in reasons] + [("sink", _delivered(sink)) for sink in published]
    for name, value in [*rows.items(), *more]:
        typer.echo(f"{name + ':':14}{value:,}" if isinstance(value, int) else f"{name + ':':14}{value or 'none'}")
    typer.echo(f"\n{brief(model.statement())}")


def _place(position: "Position") -> str:
    """A position without what stands elsewhere, or what a program alone compares."""
    shown = {name: at for name, at in position.items() if name not in ("bad", "head", "first")}
    return ", ".join(f"{name} {at:,}" if isinstance(at, int) else f"{name} {at}" for name, at in shown.items())


def _delivered(sink: "SinkState") -> str:
    has = f"{sink.name} has commit {sink.commit}" if sink.commit else f"{sink.name} has no commit yet"
    return f"{has}; it fails since {moment(sink.failing_since)}: {shown(sink.reason)}" if sink.reason else has


@app.command(epilog="Example: streamdp statement late.db")
def statement(
    store: StorePath,
    job: JobName = None,
    full: Annotated[bool, typer.Option("--full", help="With all notes: neighbours, caps, how it learns.")] = False,
) -> None:
    """The privacy statement of the committed model: in short."""
    from streamdp.privacy.statement import brief

    said = _committed(store, job).statement()
    typer.echo(said if full else brief(said))


@app.command(epilog="Example: streamdp weights late.db --level 0.9")
def weights(
    store: StorePath,
    job: JobName = None,
    level: Annotated[float, typer.Option(help="The level of the intervals, such as 0.95.")] = 0.95,
    as_json: AsJSON = False,
) -> None:
    """The weights of the model, and their intervals, if it has them."""
    from streamdp.serving.publish import needs, shown_weights

    model = _committed(store, job)
    found = shown_weights(model, level)
    model.estimator.need_learned("weights")
    baselines = {name: shown(baseline) for name, baseline in model.definition.schema_.baselines().items()}
    beside = [baselines.get(w.name) for w in found]
    if as_json:
        rows = [asdict(w) | {"baseline": baseline} for w, baseline in zip(found, beside, strict=True)]
        _print_json([{key: value for key, value in row.items() if value is not None} for row in rows])
        return
    names = [shown(w.name if w.label is None else f"{w.label}: {w.name}") for w in found]
    width = max(map(len, names), default=0)
    for name, w, baseline in zip(names, found, beside, strict=True):
        size = abs(w.value) if w.low is None or w.high is None else (w.high - w.low) / 2
        decimals = max(4, 1 - math.floor(math.log10(size))) if size > 0 else 4  # two digits of what is not known
        shape = f"+.{decimals}f" if decimals <= _MOST_DECIMALS else "+.4e"
        interval = "" if w.low is None else f"  [{w.low:{shape}}, {w.high:{shape}}]"
        compared = "" if baseline is None else f"  beside {baseline}"
        settled = "  not settled" if w.settled is False else interval
        typer.echo(f"{name:{width}}  {w.value:{shape}}{settled}{compared}")
    if any(w.low is not None for w in found):
        typer.echo(f"{100 * level:g} % intervals")
    elif not found or found[0].settled is None:
        typer.echo("no intervals")
    if (method := model.estimator.learner.method_name) is not None:
        typer.echo(f"learned by {method}")
    for doubt in [*needs(model.estimator, found), *model.doubts]:
        typer.echo(doubt)


@app.command(epilog="Example: streamdp stats visits.db --level 0.9")
def stats(
    store: StorePath,
    job: JobName = None,
    level: Annotated[float, typer.Option(help="The level of the intervals, such as 0.95.")] = 0.95,
    as_json: AsJSON = False,
    consistent: Annotated[bool, typer.Option(help="Counts that agree with each other, without intervals.")] = False,
) -> None:
    """The committed statistics, with confidence intervals."""
    from streamdp.reading.doubts import of_statistics
    from streamdp.reading.estimates import name_of

    model = _committed(store, job)
    if (statistics := model.estimator.estimated) is None:
        raise NotAvailableError("this job has a model and no statistics: `streamdp weights STORE` shows it")
    rows = statistics.tables().rows() if consistent else statistics.rows(level)
    if as_json:
        _print_json(rows)
        return
    names = [shown(name_of(row)) for row in rows]
    width = max(map(len, names), default=0)
    for name, row in zip(names, rows, strict=True):
        value, low, high = (None if row.get(key) is None else f"{row[key]:,.6g}" for key in ("value", "low", "high"))
        typer.echo(f"{name:{width}}  {value or 'not known yet'}{'' if low is None else f'  [{low}, {high}]'}")
    for doubt in of_statistics(rows):
        typer.echo(doubt)
    if consistent:
        typer.echo("consistent counts of one distribution, from released numbers; without --consistent: with intervals")
        return
    typer.echo(f"{100 * level:g} % intervals: of counts and sums for noise, of the others for noise and sampling")


@app.command(epilog="Example: streamdp synthesize people.db --records 1000 > synthetic.csv")
def synthesize(
    store: StorePath,
    job: JobName = None,
    records: Annotated[int | None, typer.Option(help="How many; by default as many as were counted.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same records.")] = None,
) -> None:
    """Draw synthetic records from the committed counts, as CSV.

    They have the columns that the job's counts, shares and histograms are about, and
    depend on each other as these say. This spends nothing.
    """
    if (statistics := _committed(store, job).estimator.estimated) is None:
        raise NotAvailableError("this job has a model and no statistics: declare `statistics` with counts")
    statistics.tables().draw(records, seed).write_csv(sys.stdout.buffer)


@app.command(epilog="Example: streamdp predict late.yaml flights.csv > predicted.csv")
def predict(
    store: StorePath,
    data: Annotated[str, typer.Argument(metavar="[DATA]", help="A CSV, JSONL, Parquet or Arrow file.")] = "-",
    job: JobName = None,
    column: Annotated[str, typer.Option(help="The name of the column to add.")] = "prediction",
    assignments: TextSettings = None,
) -> None:
    """Add predictions to the records of a file.

    Without DATA, they come from standard input. They go to standard output in the
    same format. The file is read as the job's own files are, if it is of their type.
    """
    from streamdp.cli.settings import file_like
    from streamdp.runtime.bad_records import by_reason, fixes
    from streamdp.serving.predict_file import predict_file

    if data == "-":
        need_stdin()
    model = _committed(store, job)
    source = file_like(data, model.definition.written, assignments or ())
    found = predict_file(model, source, sys.stdout.buffer, column)
    if bad := found.unfit.total():
        said = f"{bad:,} of {found.rows:,} rows do not fit the schema and have no prediction: {by_reason(found.unfit)}"
        if bad == found.rows:
            raise SchemaError("; ".join([said, *fixes(found.unfit)]))
        say(said)
    for doubt in model.doubts:  # last, so that an error stands alone
        warn(doubt)


@app.command(epilog="Example: streamdp export late.db --to sql --table flights > late.sql")
def export(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|JOB.YAML|STORE", help="A file that `save` wrote, or a job or its store.")
    ],
    to: Annotated[str, typer.Option(help="The language: json, python, sql, onnx or mlflow.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="The file to write; mlflow: a folder.")] = None,
    table: Annotated[str, typer.Option(help="For SQL: the table, as a query names it.")] = "records",
    job: JobName = None,
) -> None:
    """Write the model in another language.

    It has its statement, and predicts the same there.
    """
    import streamdp
    from streamdp.database.durable import write_durably
    from streamdp.serving.export import exported_model, written

    if not table.strip():
        raise ConfigError("--table: expected the name of a table")
    model = streamdp.load(what) if _is_saved(what) else _committed(what, job)
    found = written(exported_model(model), to, table)
    if isinstance(found, dict):
        _write_folder(output, found)
    elif output is None:
        sys.stdout.buffer.write(found if isinstance(found, bytes) else found.encode())
        return
    else:
        with writing(output):
            write_durably(output, found)
    say(f"wrote {output}")


def _write_folder(folder: str | None, files: dict[str, str]) -> None:
    from streamdp.database.durable import write_durably

    if folder is None or Path(folder).exists():
        came = "none" if folder is None else f"{folder!r}, which exists"
        raise ConfigError(f"export: expected a new folder in --output, got {came}")
    with writing(folder):
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


def _committed(what: str, job: str | None) -> "Model":
    """The committed model of a job, by its file or its store."""
    from streamdp.serving.publish import committed

    return committed(*store_of(what, job))


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
