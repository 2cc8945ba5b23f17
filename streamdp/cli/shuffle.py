"""The commands of `streamdp shuffle`: one for each of the three parties, which runs until it is stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli.common import IdleSeconds, TextSettings, naming, need_clients, patient, say, warn, warn_if_weak
from streamdp.errors import ConfigError
from streamdp.runtime.signals import stopped_by_signals

if TYPE_CHECKING:
    from connectors.topiclog import TopicLog, TopicOutlet
    from streamdp.config.job import JobConfig
    from streamdp.config.shuffle import ShuffleSourceConfig
    from streamdp.protocol.agreement import Agreement
    from streamdp.store.snapshot import Snapshot

shuffle_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Learn without trusting the learner.\n\nDevices, a shuffler and the learner communicate over Kafka."
    " Each party runs its own command with the same JOB.YAML.",
)

Job = Annotated[str, typer.Argument(metavar="JOB.YAML", help="A job with a source of type: shuffle.")]
Stopping = Callable[[], bool]


@shuffle_app.command(epilog="Example: streamdp shuffle topics shuffle.yaml")
def topics(job: Job) -> None:
    """Create the three topics if they do not exist."""
    _, source = _load(job)
    from connectors.kafkasink import make_topic

    for topic, settings in (
        (source.points, {"cleanup.policy": "compact"}),
        (source.messages, {"retention.ms": "-1"}),  # no time limit: the shuffler deletes what it has forwarded
        (source.shuffled, {"retention.ms": "-1"}),
    ):
        with naming(source.servers):
            make_topic(topic, source.servers, 1, source.security_options(), **settings)


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
    assignments: TextSettings = None,
) -> None:
    """Simulate the devices of the people in DATA. Each record waits for a point and answers once, with one message."""
    config, source = _load(job)
    from streamdp.cli.settings import file_like
    from streamdp.protocol.cohort import CohortSimulator
    from streamdp.protocol.devices import DeviceSimulator, Notes

    if data == "-":
        raise ConfigError("expected a file: the notes name the rows that have answered")
    agreed = agreement(config)
    if agreed.rounds is not None and per_batch is not None:
        raise ConfigError("--per-batch: the people of a cohort answer in every round; leave it out")
    file = file_like(data, None, assignments or ())
    remembered = Notes(f"{data}.answered" if notes is None else notes, agreed)
    file.build(config.build_schema()).close()  # report errors of the file before waiting for brokers

    def attempt(stopping: Stopping) -> None:
        with ExitStack() as stack:
            records = stack.enter_context(closing(file.build(config.build_schema())))
            points = stack.enter_context(closing(_log(source, source.points)))
            messages = stack.enter_context(closing(_outlet(source, source.messages)))
            parties = agreed, records, points, messages, remembered
            crowd = (
                DeviceSimulator(*parties, per_batch=per_batch, tell=_tell)
                if agreed.rounds is None
                else CohortSimulator(*parties, tell=_tell)
            )
            crowd.run(stopping)

    reason = _patiently(source, attempt)
    _tell(
        "end", reason=reason, answered=remembered.answered, declined=remembered.declined, dead_letters=remembered.dead
    )


@shuffle_app.command(epilog="Example: streamdp shuffle mix shuffle.yaml")
def mix(job: Job, idle_seconds: IdleSeconds = None) -> None:
    """Run the shuffler.

    It mixes the messages of a batch when enough have come, and forwards all of them or none.
    """
    config, source = _load(job)
    from streamdp.protocol.shuffler import Mixer
    from streamdp.store.store import Store

    agreed, path = agreement(config), source.shuffler_store
    assert path is not None, "load_config sets it"
    wait = math.inf if source.wait_seconds is None else source.wait_seconds
    with ExitStack() as held:
        store = cache(lambda: held.enter_context(Store(path, config.job, agreed.digest)))  # none without the topics

        def attempt(stopping: Stopping) -> None:
            with ExitStack() as stack:
                messages = stack.enter_context(closing(_log(source, source.messages)))
                shuffled = stack.enter_context(closing(_outlet(source, source.shuffled)))
                mixer = Mixer(agreed, messages, shuffled, store(), wait_seconds=wait, tell=_tell)
                mixer.run(stopping, idle_seconds)
                if messages.kept is not None:
                    say(f"forwarded messages are still in the topic {source.messages!r}: {messages.kept}")
                last.update(waiting=mixer.waiting, late=mixer.counts.refused, dead_letters=mixer.counts.dead_letters)

        last: dict[str, int] = {}
        reason = _patiently(source, attempt)
        snapshot = store().load()
    _tell("end", reason=reason, forwarded=0 if snapshot is None else snapshot.counts.learned, **last)


@shuffle_app.command(epilog="Example: streamdp shuffle learn shuffle.yaml")
def learn(job: Job, idle_seconds: IdleSeconds = None) -> None:
    """Run the learner.

    It absorbs mixed batches, commits to the job's store, and announces the next point.
    """
    config, source = _load(job)
    from streamdp.config.definition import read_definition
    from streamdp.protocol.learner import ShuffleLearner
    from streamdp.serving.publish import Publisher
    from streamdp.store.identity import Terms
    from streamdp.store.store import Store

    agreed = agreement(config)

    def measured(snapshot: Snapshot, measures: dict[str, object] | None) -> None:
        if measures is not None:
            _tell("measured", learned=snapshot.counts.learned, holdout=measures)

    def same(stored: str, learned: int, *, cap: object) -> Terms:
        """The terms of a job that goes on; with another budget, the devices and the shuffler agreed on another job."""
        changed = bool(learned) and read_definition(stored).model.budget != config.model.budget
        return Terms(agreed.digest if changed else config.fingerprint(), config.text())

    given = config.store_path, config.job, config.fingerprint()
    with Publisher(config, (measured,), warn) as publisher, ExitStack() as held:
        store = cache(lambda: held.enter_context(Store(*given, config=config.text(), continued=same)))  # as in `mix`

        def attempt(stopping: Stopping) -> None:
            with ExitStack() as stack:
                shuffled = stack.enter_context(closing(_log(source, source.shuffled)))
                points = stack.enter_context(closing(_outlet(source, source.points)))
                estimator: Any = config.build_estimator()
                learner = ShuffleLearner(agreed, estimator, shuffled, points, store(), publish=[publisher], tell=_tell)
                learner.run(stopping, idle_seconds)

        reason = _patiently(source, attempt)
        snapshot = store().load()
    _tell("end", reason=reason, learned=0 if snapshot is None else snapshot.counts.learned)


def _load(path: str) -> tuple[JobConfig, ShuffleSourceConfig]:
    """The job and its source. Raises `ConfigError`, also for another type of source, or without brokers."""
    from streamdp.config.job import load_config

    config = load_config(path)
    source = _source(config)
    need_clients()
    source.servers  # noqa: B018 - raises ConfigError if no brokers are named
    return config, source


def _source(config: JobConfig) -> ShuffleSourceConfig:
    from streamdp.config.shuffle import ShuffleSourceConfig

    if not isinstance(config.source, ShuffleSourceConfig):
        raise ConfigError("expected a job with a source of type: shuffle")
    return config.source


def agreement(config: JobConfig) -> Agreement:
    """Derive what the parties of a job agree on; `ConfigError` if `minimum_share` gives no guarantee."""
    from streamdp.protocol.agreement import Agreement

    about = json.dumps([config.job, config.fingerprint()])
    estimator: Any = config.build_estimator()
    if not estimator.guarantee.private:
        say("warning: this job is NOT private: it has a seed")
    warn_if_weak(estimator.record_budget, config.expected_records)
    return Agreement(estimator, _source(config).minimum_share, about)


def _log(source: ShuffleSourceConfig, topic: str) -> TopicLog:
    from connectors.topiclog import TopicLog

    return TopicLog(topic, source.servers, source.client_options(), source.security_options())


def _outlet(source: ShuffleSourceConfig, topic: str) -> TopicOutlet:
    from connectors.topiclog import TopicOutlet

    return TopicOutlet(topic, source.servers, source.security_options())


def _patiently(source: ShuffleSourceConfig, attempt: Callable[[Stopping], None]) -> str:
    """Run `attempt` until it ends. Retry while a broker or the database is unavailable. Returns why it ended."""
    stopping = Event()

    def once() -> None:
        if not stopping.is_set():
            with naming(source.servers):
                attempt(stopping.is_set)

    with stopped_by_signals(stopping.set, stopping.is_set):
        patient()(once)
    return "stopped" if stopping.is_set() else "done"


def _tell(event: str, **numbers: object) -> None:
    print(json.dumps({"event": event} | numbers), flush=True)
