"""`streamdp spark run`: learn on a Spark cluster what the job says that Spark reads."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli.common import (
    AcceptBudget,
    AcceptLoss,
    NewModel,
    say,
    say_cheaper,
    warn,
    warn_if_not_private,
    warn_if_weak,
)
from streamdp.cli.settings import job_config
from streamdp.errors import ConfigError, NothingLearnedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streamdp.config.job import Accepted, JobConfig
    from streamdp.spark.learning import Publish
    from streamdp.store.snapshot import Counts, Snapshot

spark_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Jobs that a Spark cluster learns.")


@spark_app.command(epilog="Example: streamdp spark run late-spark.yaml --master 'local[4]'")
def run(
    job: Annotated[str, typer.Argument(metavar="JOB.YAML", help="A job with a source of type: spark.")],
    master: Annotated[
        str | None, typer.Option(help="The cluster: local[4], spark://HOST:7077, yarn. Default: spark-submit's.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; once for each.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="The name of bounded data, by which a repeated run is recognised.")
    ] = "whole",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of a job; see streamdp run.")
    ] = None,
    accept_budget: AcceptBudget = False,
    accept_loss: AcceptLoss = False,
    new_model: NewModel = False,
) -> None:
    """Learn bounded data once, or a stream until SIGINT or SIGTERM."""
    from streamdp.config.job import Accepted

    config = job_config(job, {}, assignments or ())
    pairs = [setting.partition("=") for setting in conf or ()]
    if bad := [key for key, equals, _ in pairs if not (key and equals)]:
        raise ConfigError(f"--conf {bad[0]}: expected KEY=VALUE")
    if config.source.type != "spark":
        raise ConfigError("expected a job with a source of type: spark")
    _run(config, master, {key: value for key, _, value in pairs}, name, Accepted(accept_budget, accept_loss, new_model))


def _run(config: "JobConfig", master: str | None, conf: dict[str, str], name: str, accepted: "Accepted") -> None:
    from streamdp.config.spark import SparkSourceConfig
    from streamdp.runtime.learning import total
    from streamdp.serving.publish import Publisher
    from streamdp.serving.snapshots import combined
    from streamdp.spark.learning import learn
    from streamdp.spark.reading import read, session

    assert isinstance(config.source, SparkSourceConfig)
    publisher = Publisher(config, (_measured,), warn)
    estimator = config.build_estimator()
    warn_if_not_private(estimator)
    warn_if_weak(estimator.record_budget, config.expected_records)
    say_cheaper(config)
    spark, ours = session(config, master, conf)
    dead = Counter[str]()

    def note(snapshots: "list[Snapshot]") -> None:
        dead.clear()
        for snapshot in snapshots:
            dead.update(snapshot.position["dead_letters"])

    publish: Publish = [lambda snapshots: publisher(combined(snapshots)), note]
    try:
        frame = read(spark, config)
        if config.source.stream:
            how, counts = _learn_stream(frame, config, accepted, publish)
        else:
            how, counts = "done", learn(frame, config, name=name, accepted=accepted, publish=publish)
    finally:
        publisher.close()
        if ours:
            spark.stop()
    reasons = ", ".join(f"{reason}: {n:,}" for reason, n in sorted(dead.items()))
    said = _said(counts) + (f" ({reasons})" if reasons else "")
    if total(counts) and not counts.learned:
        raise NothingLearnedError(f"{how}, and nothing was learned: {said}; fix the schema or the data")
    say(f"{how}: {said}")


def _learn_stream(
    frame: "DataFrame", config: "JobConfig", accepted: "Accepted", publish: "Publish"
) -> "tuple[str, Counts]":
    """Returns why it ended, and the counts of the job."""
    from threading import Event

    from streamdp.runtime.signals import stopped_by_signals
    from streamdp.spark.learning import learn_stream

    stopping = Event()
    with learn_stream(frame, config, accepted=accepted, publish=publish) as learner:
        with stopped_by_signals(stopping.set, stopping.is_set):
            while not stopping.is_set() and not learner.wait(1):
                pass
        learner.stop()
        return "stopped" if stopping.is_set() else "done", learner.counts


def _said(counts: "Counts") -> str:
    not_learned = f"{counts.refused:,} refused, {counts.left_out:,} left out, {counts.dead_letters:,} do not fit"
    return f"{counts.learned:,} learned, {not_learned}"


def _measured(snapshot: "Snapshot", measures: dict[str, object] | None) -> None:
    found = [f"; {name} {value:.4g}" for name, value in (measures or {}).items() if isinstance(value, float)]
    say(f"commit {snapshot.seq}: {_said(snapshot.counts)}{''.join(found)}")
