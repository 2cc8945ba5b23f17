"""Records, batches and the protocols of sources, for programs that bring their own source."""

from streamdp.data.records import (
    WHOLE,
    Batch,
    DeadLetter,
    Encoder,
    Position,
    RebalanceListener,
    Record,
    Shard,
    ShardedSource,
    Source,
    Subject,
)
from streamdp.data.subjects import Dated

__all__ = [
    "WHOLE",
    "Batch",
    "Dated",
    "DeadLetter",
    "Encoder",
    "Position",
    "RebalanceListener",
    "Record",
    "Shard",
    "ShardedSource",
    "Source",
    "Subject",
]
