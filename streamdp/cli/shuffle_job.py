"""The work of the commands of `streamdp shuffle`: each runs one of the three parties until it is stopped."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from streamdp.cli.brokers import naming, need_clients
from streamdp.cli.common import say, warn
from streamdp.config.shuffle import ShuffleSourceConfig
from streamdp.errors import ConfigError, SourceUnavailableError, StoreUnavailableError
from streamdp.runtime.signals import stopped_by_signals

if TYPE_CHECKING:
    from connectors.topiclog import TopicLog, TopicOutlet
    from streamdp.config.job import JobConfig
    from streamdp.protocol.agreement import Agreement

Stopping = Callable[[], bool]


def load(path: str) -> JobConfig:
    """Read the job.

    Parameters
    ----------
    path
        The `job.yaml`.

    Raises `ConfigError`, also if the source is not of type: shuffle, or no brokers are named.
    """
    from streamdp.config.job import load_config

    config = load_config(path)
    source = _source(config)
    need_clients()
    source.servers  # noqa: B018 - raises ConfigError if no brokers are named
    return config


def _source(config: JobConfig) -> ShuffleSourceConfig:
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
    return Agreement(estimator, _source(config).minimum_share, about)


def make_topics(config: JobConfig) -> None:
    """Create missing topics, with one partition and no time limit: the shuffler deletes what it has forwarded."""
    from connectors.kafkasink import make_topic

    source = _source(config)
    for topic, settings in (
        (source.points, {"cleanup.policy": "compact"}),
        (source.messages, {"retention.ms": "-1"}),
        (source.shuffled, {"retention.ms": "-1"}),
    ):
        with naming(source.servers):
            make_topic(topic, source.servers, 1, source.security_options(), **settings)


def run_devices(
    config: JobConfig,
    data: str,
    *,
    notes: str | None = None,
    per_batch: int | None = None,
    delimiter: str | None = None,
) -> None:
    """Simulate the devices of the people in the CSV or JSONL file `data`.

    The file `notes` records which people have answered. None: `<data>.answered`. `per_batch` people answer in a batch.
    None: as many as the batch needs. `delimiter` separates CSV fields. None: a tab for `.tsv`, else a comma.
    """
    from streamdp.config.file import FileSourceConfig, file_type
    from streamdp.protocol.cohort import CohortSimulator
    from streamdp.protocol.devices import DeviceSimulator, Notes

    if data == "-":
        raise ConfigError("expected a file: the notes name the rows that have answered")
    source, agreed = _source(config), agreement(config)
    if agreed.rounds is not None and per_batch is not None:
        raise ConfigError("--per-batch: the people of a cohort answer in every round; leave it out")
    kind = file_type(data)
    if kind != "csv" and delimiter is not None:
        raise ConfigError("--delimiter is for CSV files")
    file = FileSourceConfig(type=kind, path=data, delimiter=delimiter)
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


def run_shuffler(config: JobConfig, idle_seconds: float | None = None) -> None:
    """Run the shuffler, with its own store, until `idle_seconds` pass without messages. None: until a signal."""
    from streamdp.protocol.shuffler import Mixer
    from streamdp.store.store import Store

    source, agreed = _source(config), agreement(config)
    path = source.shuffler_store
    assert path is not None, "load_config sets it"
    wait = math.inf if source.wait_seconds is None else source.wait_seconds
    with Store(path, config.job, agreed.digest) as store:

        def attempt(stopping: Stopping) -> None:
            with ExitStack() as stack:
                messages = stack.enter_context(closing(_log(source, source.messages)))
                shuffled = stack.enter_context(closing(_outlet(source, source.shuffled)))
                mixer = Mixer(agreed, messages, shuffled, store, wait_seconds=wait, tell=_tell)
                mixer.run(stopping, idle_seconds)
                if messages.kept is not None:
                    say(f"forwarded messages are still in the topic {source.messages!r}: {messages.kept}")
                last.update(waiting=mixer.waiting, late=mixer.counts.refused, dead_letters=mixer.counts.dead_letters)

        last: dict[str, int] = {}
        reason = _patiently(source, attempt)
        snapshot = store.load()
    _tell("end", reason=reason, forwarded=0 if snapshot is None else snapshot.counts.learned, **last)


def run_learner(config: JobConfig, idle_seconds: float | None = None) -> None:
    """Run the learner, with the job's store, until `idle_seconds` pass without batches. None: until a signal."""
    from streamdp.protocol.learner import Learner
    from streamdp.serving.holdout import Holdout
    from streamdp.serving.publish import Publisher
    from streamdp.store.snapshot import Snapshot
    from streamdp.store.store import Store

    source, agreed = _source(config), agreement(config)
    holdout = None if config.holdout is None else Holdout(config)

    def measured(snapshot: Snapshot, measures: dict[str, Any] | None) -> None:
        if measures is not None:
            _tell("measured", learned=snapshot.counts.learned, holdout=measures)

    with (
        Publisher(config.publish, holdout, config.store_path, (measured,), warn) as publisher,
        Store(config.store_path, config.job, config.fingerprint(), config=config.text()) as store,
    ):

        def attempt(stopping: Stopping) -> None:
            with ExitStack() as stack:
                shuffled = stack.enter_context(closing(_log(source, source.shuffled)))
                points = stack.enter_context(closing(_outlet(source, source.points)))
                estimator: Any = config.build_estimator()
                learner = Learner(agreed, estimator, shuffled, points, store, publish=[publisher], tell=_tell)
                learner.run(stopping, idle_seconds)

        reason = _patiently(source, attempt)
        snapshot = store.load()
    _tell("end", reason=reason, learned=0 if snapshot is None else snapshot.counts.learned)


def _log(source: ShuffleSourceConfig, topic: str) -> TopicLog:
    from connectors.topiclog import TopicLog

    return TopicLog(topic, source.servers, source.client_options(), source.security_options())


def _outlet(source: ShuffleSourceConfig, topic: str) -> TopicOutlet:
    from connectors.topiclog import TopicOutlet

    return TopicOutlet(topic, source.servers, source.security_options())


def _patiently(source: ShuffleSourceConfig, attempt: Callable[[Stopping], None]) -> str:
    """Run `attempt` until it ends. Retry while a broker or the database is unavailable. Returns why it ended."""
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    with stopped_by_signals(stop, lambda: stopped):
        while not stopped:
            try:
                with naming(source.servers):
                    attempt(lambda: stopped)
                break
            except (SourceUnavailableError, StoreUnavailableError) as error:
                say(f"{error}; trying again")
                time.sleep(1.0)
    return "stopped" if stopped else "done"


def _tell(event: str, **numbers: Any) -> None:
    """Print an event as one line of JSON."""
    print(json.dumps({"event": event} | numbers), flush=True)
