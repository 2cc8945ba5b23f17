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

__all__ = [
    "WHOLE",
    "Batch",
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
