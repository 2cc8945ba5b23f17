"""What is committed of a job: counts, one shard's part of a commit, a commit of the history, a whole snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamdp.data.records import WHOLE, Position, Shard


@dataclass(frozen=True, slots=True)
class Counts:
    """Records since the job began: learned from, refused by the ledger, and dead (undecodable)."""

    learned: int = 0
    refused: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of a job's history. `committed_at` is in seconds since 1970 (UTC)."""

    seq: int
    committed_at: float
    counts: Counts
    position: Position
    shard: Shard = WHOLE


class Part(NamedTuple):
    """What is committed of one shard."""

    state: Mapping[str, Any]
    position: Position
    counts: Counts


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A committed state with everything that was committed with it. `seq` counts commits from 1."""

    job: str
    fingerprint: str
    config: str
    seq: int
    committed_at: float
    counts: Counts
    position: Position
    state: dict[str, Any]
    shard: Shard = WHOLE
    epoch: int = 0
