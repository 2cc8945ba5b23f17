"""The commands of `streamdp shuffle`: one for each of the three parties."""

from __future__ import annotations

from typing import Annotated

import typer

from streamdp.cli.common import IdleSeconds

shuffle_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Learn without trusting the learner.\n\nDevices, a shuffler and the learner communicate over Kafka."
    " Each party runs its own command with the same JOB.YAML.",
)

Job = Annotated[str, typer.Argument(metavar="JOB.YAML", help="A job with a source of type: shuffle.")]


@shuffle_app.command(epilog="Example: streamdp shuffle topics shuffle.yaml")
def topics(job: Job) -> None:
    """Create the three topics if they do not exist."""
    from streamdp.cli.shuffle_job import load, make_topics

    make_topics(load(job))


@shuffle_app.command(epilog="Example: streamdp shuffle randomize shuffle.yaml people.csv")
def randomize(
    job: Job,
    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV or JSONL file of people's records.")],
    notes: Annotated[
        str | None,
        typer.Option(
            help="A file that records which people have answered, so that nobody answers twice. Default: DATA.answered."
        ),
    ] = None,
    per_batch: Annotated[
        int | None,
        typer.Option(min=1, help="How many of these people answer in a batch. Default: as many as the batch needs."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="The character between CSV fields.")] = None,
) -> None:
    """Simulate the devices of the people in DATA. Each record waits for a point and answers once, with one message."""
    from streamdp.cli.shuffle_job import load, run_devices

    run_devices(load(job), data, notes=notes, per_batch=per_batch, delimiter=delimiter)


@shuffle_app.command(epilog="Example: streamdp shuffle mix shuffle.yaml")
def mix(job: Job, idle_seconds: IdleSeconds = None) -> None:
    """Run the shuffler.

    It mixes the messages of a batch when enough have come, and forwards all of them or none.
    """
    from streamdp.cli.shuffle_job import load, run_shuffler

    run_shuffler(load(job), idle_seconds)


@shuffle_app.command(epilog="Example: streamdp shuffle learn shuffle.yaml")
def learn(job: Job, idle_seconds: IdleSeconds = None) -> None:
    """Run the learner.

    It absorbs mixed batches, commits to the job's store, and announces the next point.
    """
    from streamdp.cli.shuffle_job import load, run_learner

    run_learner(load(job), idle_seconds)
