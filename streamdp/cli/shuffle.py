"""The commands of `streamdp shuffle`: the three parties, each to be run where it belongs."""

from __future__ import annotations

from typing import Annotated

import typer

shuffle_app = typer.Typer(
    no_args_is_help=True,
    help="Learn without trusting the learner: devices, a shuffler between, and the learner, over Kafka."
    " Each party runs its command, with the same JOB.YAML.",
)

Job = Annotated[str, typer.Argument(metavar="JOB.YAML", help="A job with a source of type: shuffle.")]
Idle = Annotated[float | None, typer.Option(min=0, help="Stop when nothing came for so long.")]


@shuffle_app.command()
def topics(job: Job) -> None:
    """Make the three topics where there are none."""
    from streamdp.cli.shuffle_job import load, make_topics

    make_topics(load(job))


@shuffle_app.command()
def randomize(
    job: Job,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV or JSONL file of people's records.")],
    notes: Annotated[
        str | None,
        typer.Option(help="A file of who has answered, so that nobody does twice; DATA.answered by default."),
    ] = None,
    per_batch: Annotated[
        int | None,
        typer.Option(min=1, help="So many of these people answer in a batch; as many as it takes by default."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Between CSV fields.")] = None,
) -> None:
    """Play the devices of the people in DATA: each record waits for a point, becomes one message, and answers once."""
    from streamdp.cli.shuffle_job import load, run_devices

    run_devices(load(job), data, notes=notes, per_batch=per_batch, delimiter=delimiter)


@shuffle_app.command()
def mix(job: Job, idle_seconds: Idle = None) -> None:
    """The shuffler: mixes the messages of a batch when enough have come, and forwards all of them or none."""
    from streamdp.cli.shuffle_job import load, run_shuffler

    run_shuffler(load(job), idle_seconds)


@shuffle_app.command()
def learn(job: Job, idle_seconds: Idle = None) -> None:
    """The learner: absorbs mixed batches, commits to the job's store, and announces the next point."""
    from streamdp.cli.shuffle_job import load, run_learner

    run_learner(load(job), idle_seconds)
