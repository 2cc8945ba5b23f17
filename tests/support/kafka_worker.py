"""A worker of the Kafka kill campaign, a process of its own: what happens to it stands in a log that all workers share.

SIGUSR1 makes it stop itself (SIGSTOP) between learning and its next commit, SIGUSR2 after its next claim, before it
reads a record; SIGHUP takes both back. It ends with 0 when asked to (SIGTERM), and with 75 where broker or database
give no answer and it cannot go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from connectors.kafka import KafkaSource
from streamdp import LDPASGDRegressor, PureDP
from streamdp.data.records import Batch, Shard
from streamdp.data.schema import Schema
from streamdp.errors import SourceUnavailableError, StoreUnavailableError
from streamdp.runtime.protocols import Observer
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store

JOB, FINGERPRINT, CAP = "campaign", "f", 3.0
UNAVAILABLE = 75
SCHEMA = Schema({"a": (0, 1), "b": (-1, 1)}, "y", target_bounds=(-2, 2), budget="epsilon")


def make_model(ledger: Any = None) -> LDPASGDRegressor:
    """Without noise, so that a state says exactly which records it learned, in which order."""
    return LDPASGDRegressor(features=["a", "b"], budget="eps=1", mechanism="none", ledger=ledger)


class Log:
    """One JSON object a line, each written at once."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._who = who

    def __call__(self, what: str, **more: Any) -> None:
        os.write(self._file, (json.dumps({"who": self._who, "what": what} | more) + "\n").encode())


class WatchedStore(Store):
    """Says under which epochs it claims and commits, and falls asleep when told to."""

    log: Log
    sleep_before_commit = sleep_after_claim = False

    def claim(self, shards: Iterable[Shard]) -> dict[Shard, Snapshot | None]:
        found = super().claim(shards)
        self.log("claimed", epochs={s.partition: self._claims[s].epoch for s in found})
        if self.sleep_after_claim and found:
            self.sleep_after_claim = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return found

    def commit_parts(self, parts: Mapping[Shard, Part]) -> None:
        claims = {s: (c.epoch, c.seq) for s, c in self._claims.items()}  # those of `parts`, unless one was given up
        said = {s.partition: [*claims.get(s, (0, 0)), p.position["offset"]] for s, p in parts.items()}
        if self.sleep_before_commit:
            self.sleep_before_commit = False
            self.log("asleep", parts=said)
            os.kill(os.getpid(), signal.SIGSTOP)
        super().commit_parts(parts)
        self.log("committed", parts=said)


class WatchedWorker(Worker):
    log: Log

    def revoked(self, shards: set[Shard]) -> None:
        self.log("revoked", partitions=sorted(s.partition for s in shards))
        super().revoked(shards)

    def lost(self, shards: set[Shard]) -> None:
        self.log("lost", partitions=sorted(s.partition for s in shards))
        super().lost(shards)


class Watcher(Observer):
    def __init__(self, log: Log) -> None:
        self.log = log

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        self.log("learned", partition=shard.partition, offset=batch.position["offset"])

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None: ...

    def assigned(self, shards: dict[Shard, Counts]) -> None: ...

    def on_retry(self, kind: str, message: str) -> None:
        self.log(kind, message=message)


def run(bootstrap: str, topic: str, session_ms: int, client: str, url: str, log: Log) -> None:
    options = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": 500}
    with WatchedStore(url, JOB, FINGERPRINT, cap=PureDP(CAP), shared=True) as store:
        store.log = log

        def before_commit(*_: object) -> None:
            store.sleep_before_commit = True

        def after_claim(*_: object) -> None:
            store.sleep_after_claim = True

        def neither(*_: object) -> None:
            store.sleep_before_commit = store.sleep_after_claim = False

        signal.signal(signal.SIGUSR1, before_commit)
        signal.signal(signal.SIGUSR2, after_claim)
        signal.signal(signal.SIGHUP, neither)
        source = KafkaSource(
            topic,
            SCHEMA,
            bootstrap_servers=bootstrap,
            group="campaign",
            key_is_subject=True,
            client=client,
            options=options,
        )
        worker = WatchedWorker(
            source,
            lambda: make_model(store.ledger),
            store,
            commit_seconds=0.2,
            max_bad_in_a_row=None,
            observers=[Watcher(log)],
        )
        worker.log = log
        worker.run()


def main() -> int:
    bootstrap, topic, session_ms, client, url, path, who = sys.argv[1:]
    log = Log(path, who)
    log("started")
    try:
        run(bootstrap, topic, int(session_ms), client, url, log)
    except (SourceUnavailableError, StoreUnavailableError) as error:
        log("unavailable", message=str(error))
        return UNAVAILABLE
    log("left")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
