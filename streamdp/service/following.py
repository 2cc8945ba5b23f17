"""What another process has committed: read from the store of a job, without its lock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from streamdp.config.job import JobConfig
from streamdp.errors import StoreError, StoreMismatchError, StreamDPError
from streamdp.serving.holdout import Holdout
from streamdp.serving.snapshots import combined, restore
from streamdp.store.snapshot import Snapshot
from streamdp.store.store import Store

FOLLOW_S = 0.5
"""The time between two looks at the store of a job that another process learns, in seconds."""


class Found(NamedTuple):
    """What a look at the store found.

    Parameters
    ----------
    snapshot
        The last committed snapshot, all shards combined; None if it is the known one.
    measures
        What the model scores on the public holdout; None without a holdout.
    trouble
        Why the store cannot be read, without values; None if it can.
    """

    snapshot: Snapshot | None = None
    measures: dict[str, Any] | None = None
    trouble: str | None = None


class Follower:
    """Reads the store of one job.

    Parameters
    ----------
    config
        The job.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._holdout = None if config.holdout is None else Holdout(config)

    def look(self, known: Snapshot) -> Found:
        """Read the store, if it has another commit, or another number of records that wait. Any thread may call it.

        Parameters
        ----------
        known
            What is shown now.
        """
        try:
            return self._read(known)
        except StoreError as error:
            return Found(trouble=f"the store cannot be read: {type(error).__name__}")
        except StreamDPError as error:
            return Found(trouble=f"the store does not fit the job: {type(error).__name__}")

    def _read(self, known: Snapshot) -> Found:
        snapshots = Store.snapshots(self._config.store_path, self._config.job)
        found = sum(s.seq for s in snapshots), sum(s.waiting for s in snapshots)
        if not snapshots or found == (known.seq, known.waiting):
            return Found()
        if found[0] == known.seq:
            return Found(replace(known, waiting=found[1]))
        snapshot = combined(snapshots)
        terms = self._config.continued(snapshot.config, snapshot.counts.learned, accept=True)
        if terms.fingerprint != snapshot.fingerprint:
            raise StoreMismatchError("the store belongs to another configuration of the job")
        return Found(snapshot, None if self._holdout is None else self._holdout.measure(restore(snapshot).estimator))
