"""What the loops need of dead-letter writers and observers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streamdp.data.records import Batch, DeadLetter, Position, Shard, Stall
from streamdp.store.snapshot import Counts, Part


class DeadLetters(Protocol):
    """Writes dead letters; `connectors.letterfile.DeadLetterFile` and `connectors.lettertopic.DeadLetterTopic` do.

    Each letter of a committed record is written once, also after a crash, because the writer finds what was written
    after the last commit. `name` is that of the file or topic, to which the places of `commit` belong.
    """

    name: str

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        """Write letters in the order of positions, unless `resume` has found them; they need not be durable yet."""

    def commit(self) -> object:
        """Make the written letters durable. Returns the place after them, in plain JSON values, which is committed."""

    def resume(self, places: Mapping[Shard, Any]) -> None:
        """Discard the letters after the last commit that are not durable, and find those that are.

        `places` has what was committed with the last commit of each shard; None if it is unknown.
        """


class Observer:
    """Watches a worker, for progress and metrics. The worker's threads call it, so it must be quick."""

    def learned(self, shard: Shard, batch: Batch, counts: Counts) -> None:
        """A batch was learned; these are all records of the shard. It is not committed, and may be `rolled_back`."""

    def rolled_back(self) -> None:
        """All shards went back to their last commit; what came after it will be learned again."""

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        """Parts of shards were committed in so many `seconds`."""

    def changed(self, shard: Shard, changes: int) -> None:
        """With a commit it became known that the model of a shard has noticed so many more changes of the stream."""

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        """The worker's shards have changed; all that it has now come with their committed counts."""

    def watched(self, positions: dict[Shard, Position], stalls: Sequence[Stall]) -> None:
        """About every second, with the last committed `positions` of shards that have one."""

    def on_stall(self, stall: Stall, *, ended: bool) -> None:
        """A shard that should be read is not read, or this has `ended`.

        It ends by a record, for another reason to wait, or because the shard was taken away.
        """

    def on_retry(self, kind: str, message: str) -> None:
        """A transient fault occurred, and the worker tries again.

        `kind` is `fenced`, `conflict`, `store`, `publish`; `source`, once in 30 seconds for each message; or `waiting`:
        the worker has no shard, or no answer to a call of the store, for long. `message` shows no value of a record.
        """
