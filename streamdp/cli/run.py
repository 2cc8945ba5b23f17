"""`streamdp run`: run a job that reads a file or a Redis stream here, or start a worker of a job that reads Kafka."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamdp.cli.app import app
from streamdp.cli.common import (
    AcceptBudget,
    AcceptLoss,
    IdleSeconds,
    NewModel,
    Settings,
    Trace,
    need_stdin,
    say,
    say_cheaper,
    say_opened,
    warn,
    warn_if_not_private,
)
from streamdp.cli.settings import job_config, parse_bounds, parse_classes, parse_features
from streamdp.errors import ConfigError, SourceError, StoreUnavailableError

if TYPE_CHECKING:
    from streamdp.config.job import Accepted, JobConfig
    from streamdp.config.settings import ReadConfig
    from streamdp.data.records import Position, Source
    from streamdp.estimators.estimator import Estimator
    from streamdp.runtime.display import RunnerDisplay


@app.command(epilog="Example: streamdp run late.yaml")
def run(
    what: Annotated[
        str, typer.Argument(metavar="JOB.YAML|DATA", help="A job, or a CSV or JSONL file, or - for standard input.")
    ],
    max_records: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    stdin: Annotated[
        Literal["new", "replay"] | None,
        typer.Option(help="To resume from standard input: it has new records, or the last input from its beginning."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="The classes of the target, such as False,True. Default: it is a number.")
    ] = None,
    target_bounds: Annotated[str | None, typer.Option(help="Public bounds of a numeric target, LOW:HIGH.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="COLUMN=LOW:HIGH or COLUMN=A|B|C; once for each feature.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The column that identifies the person of a record.")] = None,
    budget: Annotated[str | None, typer.Option(help="What a record may spend: eps=E, eps=E,delta=D or mu=M.")] = None,
    cap: Annotated[str | None, typer.Option(help="What a subject may spend: eps=8, or eps=8 per 30 days.")] = None,
    trust: Annotated[
        str | None,
        typer.Option(
            help="Who may see the raw records: nobody, process, window (default) or shuffler; `init` explains."
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="The name of the job. Default: the name of the file.")] = None,
    store: Annotated[str | None, typer.Option(help="The file of the store. Default: JOB.db.")] = None,
    publish: Annotated[
        str | None,
        typer.Option(
            help="A JSON file to replace after every commit, postgresql://USER@HOST/DATABASE?table=NAME, or"
            " https://HOST/PATH."
        ),
    ] = None,
    assignments: Settings = None,
    accept_budget: AcceptBudget = False,
    accept_loss: AcceptLoss = False,
    new_model: NewModel = False,
    idle_seconds: IdleSeconds = None,
    on_missing: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Kafka: continue at this offset if the broker no longer has the next records."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Kafka: serve Prometheus metrics on this port of loopback; 0: any free port."
        ),
    ] = None,
    trace: Trace = False,
) -> None:
    """Run a job: from JOB.YAML, or from a data file and options.

    A file or a Redis stream is read to its end; a Kafka topic until SIGINT or SIGTERM, in a group with all
    other workers of the job.
    """
    settings: dict[str, object] = {
        "job": job,
        "store": store,
        "cap": cap,
        "publish": publish,
        "schema": {
            "target": {
                "column": target,
                "classes": None if classes is None else parse_classes(classes),
                "bounds": None if target_bounds is None else parse_bounds("--target-bounds", target_bounds),
            },
            "features": parse_features(feature or ()),
            "subject": subject,
        },
        "model": {"trust": trust, "budget": budget},
    }
    from streamdp.config.file import FileSourceConfig
    from streamdp.config.http import CallsConfig
    from streamdp.config.job import Accepted
    from streamdp.config.settings import ReadConfig
    from streamdp.runtime.signals import ended_by_sigterm
    from streamdp.runtime.tracing import traced

    with ended_by_sigterm(), traced(trace):
        config = job_config(what, settings, assignments or ())
        accepted = Accepted(accept_budget, accept_loss, new_model)
        source = config.source
        if isinstance(source, CallsConfig):
            raise ConfigError("this job learns from requests: use `streamdp serve`")
        if source.type == "spark":
            raise ConfigError("this job learns on Spark: use `streamdp spark run`")
        if source.type == "mixer":
            raise ConfigError("this job shuffles reports for another service: use `streamdp serve`")
        if source.type == "shuffle":
            raise ConfigError("use `streamdp shuffle` for a job with a source of type: shuffle; see its --help")
        if stdin is not None and not (isinstance(source, FileSourceConfig) and source.path == "-"):
            raise ConfigError("--stdin is for jobs that read standard input")
        if isinstance(source, ReadConfig):
            if idle_seconds is not None or on_missing is not None or metrics_port is not None:
                raise ConfigError("--idle-seconds, --on-missing and --metrics-port are for jobs that read Kafka")
            _run_alone(config, source, max_records, stdin, accepted)
            return
        from streamdp.cli.kafka_job import run_worker

        if on_missing is not None:
            config = config.model_copy(update={"source": source.model_copy(update={"on_missing": on_missing})})
        run_worker(
            config, max_records=max_records, idle_seconds=idle_seconds, metrics_port=metrics_port, accepted=accepted
        )


def _run_alone(
    config: JobConfig, settings: ReadConfig, max_records: int | None, stdin: str | None, accepted: Accepted
) -> None:
    from contextlib import ExitStack, suppress

    from streamdp.config.checking import first_block, unended
    from streamdp.config.file import FileSourceConfig
    from streamdp.data.records import WHOLE
    from streamdp.runtime.expected import Expected
    from streamdp.runtime.learning import total
    from streamdp.runtime.runner import Runner
    from streamdp.serving.doubts import doubts
    from streamdp.serving.publish import Publisher

    path = settings.path if isinstance(settings, FileSourceConfig) else None
    if path == "-":
        need_stdin()
    for warning in first_block(config):
        warn(warning)
    with ExitStack() as stack:
        source = settings.build(config.build_schema())
        stack.callback(source.close)
        display = stack.enter_context(_display(config, lambda: source.share))
        publisher = stack.enter_context(Publisher(config, (display.committed,), display.published))
        dead_letters = settings.build_dead_letters()
        if dead_letters is not None:
            stack.callback(dead_letters.close)
        store = stack.enter_context(config.open_store(accepted))  # last: what fails before leaves no new store behind
        say_opened(store)
        if store.source_key is not None:
            source.recognise(store.source_key)
        estimator = config.build_estimator(store.ledger)
        warn_if_not_private(estimator)
        if (before := store.load()) is not None:
            display.resumed(before)
        else:
            display.followed(estimator)
        _say_opening(settings, estimator)
        expected = Expected(config.expected_records, estimator.record_budget, warn)
        runner = Runner(
            source,
            estimator,
            store,
            commit_records=config.commit.records,
            commit_seconds=config.commit.seconds,
            max_bad_share=settings.max_bad_share,
            name=settings.name,
            dead_letters=dead_letters,
            publish=[
                # The model of the commit: the one that learns may have gone on within a batch.
                lambda snapshot: display.judged(publisher.model(snapshot).quality),
                lambda snapshot: display.followed(publisher.model(snapshot).estimator),
                lambda snapshot: expected.learned_in({WHOLE: snapshot.counts}),
                publisher,
            ],
            on_progress=display.progress,
            on_waiting=display.waiting,
            on_unfit=warn,
            resume=_resume(path, stdin),
        )
        counts = runner.run(max_records)
        left = source.unended[-1:]
        # The next run reads the last record, if it has its end by then.
        if left and isinstance(settings, FileSourceConfig) and left == settings.files()[-1:]:
            with suppress(StoreUnavailableError):  # it is for readers only, and all is committed
                store.note_waiting({WHOLE: runner.waiting + 1})
        ended = "stopped" if runner.stopping else "done"
        display.finished(counts, ended, doubts(estimator, counts), runner.waiting)
        for sentence in unended(source.unended):
            display.waiting(sentence)
            warn(sentence)
        if not (runner.stopping or total(counts) + runner.waiting):
            warn(f"{settings.name}: there are no records")
        for line in display.conclusions():
            say(line)
        say_cheaper(config)
        runner.unlearned.check()


def _say_opening(settings: ReadConfig, estimator: Estimator) -> None:
    """Say what a run waits for whose source may never end."""
    from streamdp.serving.doubts import opening

    if settings.follow and (sentence := opening(estimator)) is not None:
        say(f"{settings.name} is followed: {sentence}, or the stop of the run")


def _display(config: JobConfig, share: Callable[[], float | None]) -> RunnerDisplay:
    """What the run shows of itself: also the share that was read, the spends, and the next commands."""
    from streamdp.runtime.display import RunnerDisplay

    cap = "" if config.cap is None else f"; the cap of a person: {config.cap}"
    store = shlex.quote(config.store_path)
    shown = f"streamdp weights {store}; streamdp statement {store}"
    if config.statistics is not None:
        shown = f"streamdp stats {store}; " + (shown if config.has_model else f"streamdp statement {store}")
    return RunnerDisplay(share, {"spends": f"a record: {config.promise().spend}{cap}"}, shown)


def _resume(path: object, stdin: str | None) -> Callable[[Source, Position], None]:
    """How to return to the last position. Standard input cannot be sought, and only the user knows its content."""
    from streamdp.runtime.runner import seek

    def refuse(source: Source, position: Position) -> None:
        raise SourceError(
            "this job has learned from standard input before, and standard input cannot be read again; use --stdin new"
            " if it has only new records, or --stdin replay if it has the last input from its beginning"
        )

    def begin(source: Source, position: Position) -> None:
        """The input is new: read it from its beginning."""

    def replay(source: Source, position: Position) -> None:
        while source.position["row"] < position["row"] and not source.finished:
            source.poll(max(1, position["row"] - source.position["row"] - 1), 1.0)  # 1 less: the header is a row
        if any(source.position.get(name) != value for name, value in position.items()):
            raise SourceError("standard input is not the input that this job has read so far; nothing was learned")

    if path != "-":
        return seek
    return {None: refuse, "new": begin, "replay": replay}[stdin]
