"""The `streamdp` command. Heavy modules are imported where a command needs them, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streamdp.cli.shuffle import shuffle_app
from streamdp.errors import (
    BudgetError,
    ConfigError,
    NotAtBoundaryError,
    NotAvailableError,
    QueriesExhaustedError,
    SchemaError,
    SourceError,
    StoreError,
    StreamDPError,
)

if TYPE_CHECKING:
    from streamdp.config.file import FileSourceConfig
    from streamdp.config.job import JobConfig
    from streamdp.data.records import Position, Source

EXIT_CODES: dict[type[Exception], int] = {
    ConfigError: 2,
    SourceError: 3,
    SchemaError: 3,
    StoreError: 4,
    BudgetError: 5,
    QueriesExhaustedError: 5,
    NotAvailableError: 6,
    NotAtBoundaryError: 6,
}

_CODES = """Exit codes: 0 done, or stopped by SIGINT or SIGTERM after a commit; 1 standard output cannot be written (no
message if its reader has gone, as with head; a run then stops at its last commit), or an error nobody foresaw; 2 wrong
usage or configuration; 3 the source or its data; 4 the store or the published file; 5 a record's budget; 6 not
available (yet); 130 interrupted before the run began or twice. Errors are one line on standard error and never show a
value of a record.""".replace("\n", " ")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn continuously from a stream of personal records under differential privacy.\n\n" + _CODES,
)

app.add_typer(shuffle_app, name="shuffle")

StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="The job's store, such as late.db or postgresql://HOST/DATABASE.")
]
JobName = Annotated[str | None, typer.Option(help="The job, where the store is a PostgreSQL database.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        from streamdp import __version__

        typer.echo(f"streamdp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    what: Annotated[
        str, typer.Argument(metavar="JOB.YAML|DATA", help="A job, or a CSV or JSONL file, or - for CSV on stdin.")
    ],
    max_records: Annotated[int | None, typer.Option(min=1, help="Stop after so many records.")] = None,
    stdin: Annotated[
        Literal["new", "replay"] | None,
        typer.Option(help="To resume from standard input: it holds new records, or the last input from its start."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    classes: Annotated[str | None, typer.Option(help="Its classes, as in False,True; without, it is a number.")] = None,
    target_bounds: Annotated[str | None, typer.Option(help="Public bounds of a number to predict, LOW:HIGH.")] = None,
    target_scale: Annotated[float | None, typer.Option(help="Divide it by this public constant.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="COLUMN=LOW:HIGH or COLUMN=A|B|C; once for each feature.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The column that says whose record it is.")] = None,
    budget_column: Annotated[str | None, typer.Option(help="The column with what a record may spend.")] = None,
    budget: Annotated[str | None, typer.Option(help="What others may spend: eps=E, eps=E,delta=D or mu=M.")] = None,
    cap: Annotated[str | None, typer.Option(help="What a subject may spend in all.")] = None,
    estimator: Annotated[str | None, typer.Option(help="Such as LDPASGDClassifier, which is the default.")] = None,
    loss: Annotated[str | None, typer.Option(help="The loss by name.")] = None,
    mechanism: Annotated[str | None, typer.Option(help="The mechanism by name.")] = None,
    eta: Annotated[float | None, typer.Option(help="First step size.")] = None,
    alpha: Annotated[float | None, typer.Option(help="How fast steps shrink.")] = None,
    horizon: Annotated[int | None, typer.Option(help="How many records will come; for learning in batches.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Records of a batch.")] = None,
    smoothness: Annotated[float | None, typer.Option(help="The loss's smoothness, where you know better.")] = None,
    strong_convexity: Annotated[float | None, typer.Option(help="Of the expected loss, in batches.")] = None,
    method: Annotated[str | None, typer.Option(help="How a shuffled batch or a window is learned, by name.")] = None,
    items_per_user: Annotated[
        int | None, typer.Option(help="Records of a subject in one report or window; for user-level learning.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="After so many records all subjects report, or their window is released.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job's name; the file's by default.")] = None,
    store: Annotated[str | None, typer.Option(help="The store's file; JOB.db by default.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Between CSV fields.")] = None,
    follow: Annotated[bool | None, typer.Option("--follow", help="Wait for more at the end of the file.")] = None,
    max_bad_share: Annotated[float | None, typer.Option(help="Stop over this share of bad records.")] = None,
    dead_letters: Annotated[str | None, typer.Option(help="A file for the places of bad records.")] = None,
    commit_records: Annotated[int | None, typer.Option(help="Commit after so many records.")] = None,
    commit_seconds: Annotated[float | None, typer.Option(help="Commit after so many seconds.")] = None,
    publish: Annotated[str | None, typer.Option(help="A JSON file to replace after every commit.")] = None,
    holdout: Annotated[str | None, typer.Option(help="A PUBLIC file to measure the model on.")] = None,
    idle_seconds: Annotated[
        float | None, typer.Option(min=0, help="Kafka: stop when no record came for so long.")
    ] = None,
    on_missing: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Kafka: go on there, where the broker has not the records to go on with."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Kafka: Prometheus metrics on this port of loopback; 0: any, and say which."
        ),
    ] = None,
) -> None:
    """Run a job: from JOB.YAML, or from a data file with everything given by options.

    A file is read to its end; a Kafka topic until SIGINT or SIGTERM, in a group with all other workers of the job.
    """
    settings: dict[str, Any] = {
        "job": job,
        "store": store,
        "cap": cap,
        "publish": publish,
        "holdout": holdout,
        "schema": {
            "target": {"column": target, "classes": classes, "bounds": target_bounds, "scale": target_scale},
            "features": feature,
            "subject": subject,
            "budget": budget_column,
        },
        "model": {
            "estimator": estimator,
            "loss": loss,
            "budget": budget,
            "mechanism": mechanism,
            "eta": eta,
            "alpha": alpha,
            "horizon": horizon,
            "batch_size": batch_size,
            "smoothness": smoothness,
            "strong_convexity": strong_convexity,
            "method": method,
            "items_per_user": items_per_user,
            "window": window,
        },
        "source": {
            "delimiter": delimiter,
            "follow": follow,
            "max_bad_share": max_bad_share,
            "dead_letters": dead_letters,
        },
        "commit": {"records": commit_records, "seconds": commit_seconds},
    }
    from streamdp.config.file import FileSourceConfig

    config = _configuration(what, _given(settings))
    if isinstance(source := config.source, FileSourceConfig):
        if idle_seconds is not None or on_missing is not None or metrics_port is not None:
            raise ConfigError("--idle-seconds, --on-missing and --metrics-port are for jobs that read Kafka")
        _run(config, source, max_records, stdin)
        return
    from streamdp.cli.kafka_job import run_worker

    if stdin is not None:
        raise ConfigError("--stdin is for jobs that read standard input")
    if on_missing is not None:
        config = config.model_copy(update={"source": source.model_copy(update={"on_missing": on_missing})})
    run_worker(config, max_records=max_records, idle_seconds=idle_seconds, metrics_port=metrics_port)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given."""
    nested = {key: _given(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: value for key, value in nested.items() if value not in (None, {})}


def _configuration(what: str, settings: dict[str, Any]) -> JobConfig:
    """From the YAML file alone, or from options alone: mixed, nobody could say later which job it was."""
    from streamdp.config.job import load_config, make_config

    if what.endswith((".yaml", ".yml")):
        if settings:
            raise ConfigError(f"{what} holds the whole job: with it, only options that say how to run it can be given")
        return load_config(what)
    if not what or Path(what).is_dir():
        raise ConfigError(f"{what!r}: expected a .yaml job, a data file, or - for standard input")
    schema = settings.get("schema", {})
    if "column" not in schema.get("target", {}) or "features" not in schema:
        raise ConfigError(f"{what} is not a .yaml job, so --target and at least one --feature must be given")
    features = list(map(_feature, schema["features"]))
    schema["features"] = dict(features)
    if len(schema["features"]) < len(features):
        raise ConfigError("--feature: a column is given twice")
    target = schema["target"]
    if "classes" in target:
        target["classes"] = target["classes"].split(",")
    if "bounds" in target:
        target["bounds"] = _bounds("--target-bounds", target["bounds"])
    model = settings.setdefault("model", {})
    model.setdefault("estimator", "LDPASGDClassifier" if "classes" in target else "LDPASGDRegressor")
    name = Path(what).name
    settings["source"] = settings.get("source", {}) | {
        "path": what,
        "type": "jsonl" if name.removesuffix(".gz").endswith((".jsonl", ".ndjson")) else "csv",
    }
    settings.setdefault("job", "stdin" if what == "-" else name.split(".")[0] or name)
    return make_config(settings)


def _feature(text: str) -> tuple[str, Any]:
    column, equals, declared = text.partition("=")
    if not (column and equals and declared):
        raise ConfigError(f"--feature {text!r}: expected COLUMN=LOW:HIGH or COLUMN=A|B|C")
    return column, declared.split("|") if "|" in declared else _bounds(f"--feature {column}", declared)


def _bounds(option: str, text: str) -> list[float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise ConfigError(f"{option}: expected two numbers as LOW:HIGH, got {text!r}") from None
    return [low, high]


def _run(config: JobConfig, file: FileSourceConfig, max_records: int | None, stdin: str | None) -> None:
    from contextlib import ExitStack

    from streamdp.runtime.progress import display_for_stdout
    from streamdp.runtime.runner import Runner
    from streamdp.serving.holdout import Holdout
    from streamdp.serving.publish import Publisher
    from streamdp.store.store import Store

    if stdin is not None and file.path != "-":
        raise ConfigError("--stdin is for jobs that read standard input")
    if file.path == "-":
        _need_stdin()
    with ExitStack() as stack:
        source = file.build(config.build_schema())
        stack.callback(source.close)
        holdout = None if config.holdout is None else Holdout(config)
        store = stack.enter_context(
            Store(config.store_path, config.job, config.fingerprint(), cap=config.cap_budget, config=config.text())
        )
        estimator: Any = config.build_estimator(store.ledger)
        if not estimator.guarantee.private:
            typer.echo("streamdp: warning: this model is NOT private: it has a seed, or no mechanism", err=True)
        dead_letters = file.build_dead_letters()
        if dead_letters is not None:
            stack.callback(dead_letters.close)
        display = stack.enter_context(display_for_stdout())
        if (before := store.load()) is not None:
            display.resumed(before)
        runner = Runner(
            source,
            estimator,
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            dead_letters=dead_letters,
            publish=[Publisher(config.publish, holdout, (display.committed,))],
            on_progress=display.progress,
            resume=_resume(file.path, stdin),
        )
        counts = runner.run(max_records)
        display.finished(counts, "stopped" if runner.stopping else "done")


def _need_stdin() -> None:
    if sys.stdin is None:
        raise SourceError("standard input is closed")


def _ascii(delimiter: str) -> str:
    from streamdp.config.file import tab

    delimiter = tab(delimiter)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ConfigError("--delimiter: expected one ASCII character, no quote and no line end")
    return delimiter


def _resume(path: str, stdin: str | None) -> Any:
    """How a source gets to the last position. Standard input cannot be sought, and only its user knows what it is."""
    from streamdp.runtime.runner import seek

    def refuse(source: Source, position: Position) -> None:
        raise SourceError(
            "this job has learned from standard input before, and it cannot be read again; say --stdin new if it now"
            " holds only records that come after, or --stdin replay if it is the last input from its beginning"
        )

    def begin(source: Source, position: Position) -> None:
        """The input is new: it is read from where it stands."""

    def replay(source: Source, position: Position) -> None:
        while source.position["row"] < position["row"] and not source.finished:
            source.poll(max(1, position["row"] - source.position["row"] - 1), 1.0)  # 1 less: the header is a row
        if source.position != position:
            raise SourceError("standard input is not the input that this job has read so far; nothing was learned")

    if path != "-":
        return seek
    return {None: refuse, "new": begin, "replay": replay}[stdin]


@app.command()
def produce(
    file: Annotated[str, typer.Argument(metavar="DATA.CSV", help="A CSV file, or - for standard input.")],
    topic: Annotated[str, typer.Option(help="The topic to send the rows to.")],
    brokers: Annotated[str, typer.Option(envvar="STREAMDP_KAFKA", help="HOST:PORT[,HOST:PORT].")],
    key: Annotated[str | None, typer.Option(help="The column that says whose record it is.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Make the topic first, with so many partitions, where there is none.")
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Between CSV fields.")] = ",",
) -> None:
    """Send the rows of a CSV file to a Kafka topic as JSON objects; rows of one key share a partition."""
    from streamdp.cli.kafka_job import produce as send

    delimiter = _ascii(delimiter)
    if file == "-":
        _need_stdin()
    typer.echo(f"{send(file, topic, brokers, key, partitions, delimiter):,} records sent to {topic}")


@app.command()
def status(
    store: StorePath,
    job: JobName = None,
    kafka: Annotated[str | None, typer.Option(help="Brokers to ask for the lag, HOST:PORT.")] = None,
    as_json: AsJSON = False,
) -> None:
    """What a job has learned so far."""
    from datetime import UTC, datetime

    from streamdp.serving.publish import committed
    from streamdp.store.store import Store

    model = committed(store, job)
    snapshot = model.snapshot
    rows = {
        "job": snapshot.job,
        "commits": snapshot.seq,
        "committed at": datetime.fromtimestamp(snapshot.committed_at, UTC).isoformat(timespec="seconds"),
        "learned": snapshot.counts.learned,
        "refused": snapshot.counts.refused,
        "dead": snapshot.counts.dead,
        "position": snapshot.position,
        "guarantee": str(model.estimator.guarantee),
        "cap": model.definition.cap,
    }
    if kafka is not None:
        from streamdp.cli.kafka_job import lags

        found = lags(kafka, {}, {s.shard: s.position for s in Store.snapshots(store, job)})
        rows["lag"] = {str(shard): lag for shard, lag in found.items()}
    if as_json:
        _print_json({name.replace(" ", "_"): value for name, value in rows.items()})
        return
    for name, value in rows.items():
        typer.echo(f"{name + ':':14}{value:,}" if isinstance(value, int) else f"{name + ':':14}{value or 'none'}")


@app.command()
def statement(store: StorePath, job: JobName = None) -> None:
    """The privacy statement of the committed model."""
    from streamdp.serving.publish import committed

    typer.echo(committed(store, job).estimator.statement())


@app.command()
def weights(
    store: StorePath,
    job: JobName = None,
    level: Annotated[float, typer.Option(help="Of the intervals: 0.8, 0.9, 0.95, 0.98 or 0.99.")] = 0.95,
    as_json: AsJSON = False,
) -> None:
    """The weights of the committed model, with confidence intervals where the estimator has them."""
    from dataclasses import asdict

    from streamdp.serving.publish import committed
    from streamdp.serving.publish import weights as list_weights

    found = list_weights(committed(store, job).estimator, level)
    if as_json:
        _print_json([{key: value for key, value in asdict(w).items() if value is not None} for w in found])
        return
    names = [w.name if w.label is None else f"{w.label}: {w.name}" for w in found]
    width = max(map(len, names), default=0)
    for name, w in zip(names, found, strict=True):
        interval = "" if w.low is None else f"  [{w.low:+.4f}, {w.high:+.4f}]"
        typer.echo(f"{name:{width}}  {w.value:+.4f}{interval}")
    typer.echo(f"{100 * level:g} % intervals" if found and found[0].low is not None else "no intervals")


@app.command()
def predict(
    store: StorePath,
    job: JobName = None,
    delimiter: Annotated[str, typer.Option(help="Between CSV fields.")] = ",",
    column: Annotated[str, typer.Option(help="The name of the column to add.")] = "prediction",
) -> None:
    """Read CSV rows from standard input and write them with predictions of the committed model added."""
    from streamdp.serving.predict_csv import predict_csv
    from streamdp.serving.publish import committed

    _need_stdin()
    delimiter = _ascii(delimiter)
    model = committed(store, job)
    # Bytes that are not UTF-8 go through as they came.
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")  # type: ignore[union-attr]
    bad = predict_csv(model, "-", sys.stdout, delimiter=delimiter, column=column)
    if bad:
        typer.echo(f"streamdp: {bad} rows do not fit the schema and have no prediction", err=True)


@app.command()
def plan(
    loss: Annotated[str, typer.Option(help="The loss by name.")],
    d: Annotated[int, typer.Option(min=1, help="How many parameters.")],
    budget: Annotated[str, typer.Option(help="What a record may spend: eps=E, eps=E,delta=D, mu=M.")],
    error: Annotated[float | None, typer.Option(help="The error to reach: how many records?")] = None,
    records: Annotated[int | None, typer.Option(min=1, help="So many records: which error?")] = None,
) -> None:
    """How many records reach a target error ||theta_n - theta*||, or which error so many records reach."""
    from streamdp.optim.planner import plan_error, plan_records
    from streamdp.privacy.guarantees import parse_budget

    try:
        spend = parse_budget(budget)
    except BudgetError as problem:
        raise ConfigError(f"--budget: {problem}") from None
    if error is not None and records is None:
        typer.echo(f"{plan_records(loss, d, spend, error):,} records")
    elif records is not None and error is None:
        typer.echo(f"error {plan_error(loss, d, spend, records):.4g}")
    else:
        raise ConfigError("give --error, to learn how many records it takes, or --records, to learn the error")


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def main() -> None:
    """Run the command and exit with its code; see `streamdp --help`."""
    sys.exit(_main())


def _main() -> int:
    if sys.stdout is None:  # the next file that is opened would be in its place
        return _fail("standard output is closed; use >/dev/null", 2)
    warnings.showwarning = lambda message, *_: print(f"streamdp: warning: {message}", file=sys.stderr)
    try:
        code: int = app(standalone_mode=False, prog_name="streamdp") or 0
        return code if code != 130 else _interrupted()  # Typer makes 130 of a KeyboardInterrupt
    except StreamDPError as error:
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        return _fail(str(error), code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _give_up_output()
        return 1
    except Exception as error:
        # Typer brings its usage errors under changing names; all of them can format themselves.
        if hasattr(error, "format_message"):
            return _fail(f"{error.format_message()} Try --help.", 2)
        if os.environ.get("STREAMDP_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.filename is None and error.strerror:  # files report under their names
            _give_up_output()
            return _fail(f"cannot write standard output: {error.strerror.lower()}; what was committed is kept", 1)
        # An unforeseen error may quote a record, so its text stays out.
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "" if frame is None else f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
        hint = "STREAMDP_TRACEBACK=1 shows all of it, values included"
        return _fail(f"unforeseen {type(error).__name__}{place}; {hint}", 1)


def _interrupted() -> int:
    return _fail("interrupted; what was committed is kept", 130)


def _give_up_output() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"streamdp: {' '.join(message.split())}", file=sys.stderr)
    return code
