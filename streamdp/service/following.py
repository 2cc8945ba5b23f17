"""What all processes have committed of a job: read from its store, without its lock."""

import threading
import time
from dataclasses import replace
from typing import NamedTuple

from streamdp.config.http import CallsConfig
from streamdp.config.job import JobConfig
from streamdp.errors import StoreError, StoreMismatchError, StreamDPError
from streamdp.serving.holdout import Holdout
from streamdp.serving.snapshots import combined, newest, restore
from streamdp.store.snapshot import Snapshot
from streamdp.store.store import Store

FOLLOW_S = 0.5
"""The time between two looks at the store of a job that another process learns, in seconds."""

LEFT_S = 60.0
"""After this time without a service, reports for a shard are no longer kept for the next one, in seconds."""


class Found(NamedTuple):
    """What a look at the store found."""

    snapshot: Snapshot | None = None  # the last committed one, all shards combined; None if it is the known one
    measures: dict[str, object] | None = None  # scores on the public holdout; None without a holdout
    trouble: str | None = None  # why the store cannot be read, without values; None if it can


class Follower:
    """Reads the store of one job. Threads may share it."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._holdout = None if config.holdout is None else Holdout(config)
        self._lock = threading.Lock()
        self._read: list[Snapshot] = []
        self._mine: Snapshot | None = None
        source = config.source
        self._several = config.store_on_server and isinstance(source, CallsConfig) and source.most_shards > 1
        self._held: dict[int, float] = {}

    @property
    def shards(self) -> list[Snapshot]:
        """The last known commit of each shard, in their order."""
        with self._lock:
            return self._known()

    @property
    def held(self) -> frozenset[int]:
        """The numbers of the shards that a service holds, or held in the last `LEFT_S`."""
        since = time.monotonic() - LEFT_S
        return frozenset(number for number, at in self._held.items() if at > since)

    def _known(self) -> list[Snapshot]:
        return newest([*self._read, *([] if self._mine is None else [self._mine])], self._config.job)

    def add(self, mine: Snapshot) -> Snapshot:
        """Take a commit of this process before the next look; return the snapshot of all shards combined."""
        with self._lock:
            self._mine = mine
            return combined(self._known())

    def look(self, known: Snapshot) -> Found:
        """Read the store, if it has another commit, or another number of records that wait. Any thread may call it."""
        try:
            read = Store.snapshots(self._config.store_path, self._config.job)
            if self._several:
                held = Store.held_shards(self._config.store_path, self._config.job)
                self._held = self._held | dict.fromkeys(held, time.monotonic())  # a new one: another thread may read it
            with self._lock:
                self._read = read
                snapshots = self._known()
            found = sum(s.seq for s in snapshots), sum(s.waiting for s in snapshots)
            if not snapshots or found == (known.seq, known.waiting):
                return Found()
            if found[0] == known.seq:
                return Found(replace(known, waiting=found[1]))
            snapshot = combined(snapshots)
            if self._config.fingerprint() != snapshot.fingerprint:
                raise StoreMismatchError("the store belongs to another configuration of the job")
            measures = None if self._holdout is None else self._holdout.measure(restore(snapshot).estimator)
            return Found(snapshot, measures)
        except StoreError as error:
            return Found(trouble=f"the store cannot be read: {error}")
        except StreamDPError as error:
            return Found(trouble=f"the store does not fit the job: {error}")
