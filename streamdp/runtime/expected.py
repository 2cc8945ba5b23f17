"""Whether a job has learned more records than it declares, or than its delta allows. Both are public numbers."""

import math
from collections.abc import Callable

from streamdp.data.records import Shard
from streamdp.privacy.guarantees import ApproxDP, Budget, weakness
from streamdp.runtime.protocols import Observer
from streamdp.store.snapshot import Counts, Part


class Expected(Observer):
    """Says once that more was learned than `expected_records`: the one sign that records may come again.

    It says, too, that the budget protects little: at once, or when there are more than 1 / delta. No record is
    remembered.

    A worker counts the shards that it has, so it may say less than all workers have learned, and never more. The job
    declares so many `records`, or None. A record spends a `budget`. `say` takes the sentence.
    """

    def __init__(self, records: int | None, budget: Budget, say: Callable[[str], None]) -> None:
        self._records = math.inf if records is None else records
        self._budget, self._say = budget, say
        self._learned: dict[Shard, int] = {}
        self._few = True
        self._count(records)

    def assigned(self, shards: dict[Shard, Counts]) -> None:
        self._learned = {}
        self.learned_in(shards)

    def committed(self, parts: dict[Shard, Part], seconds: float) -> None:
        self.learned_in({shard: part.counts for shard, part in parts.items()})

    def learned_in(self, shards: dict[Shard, Counts]) -> None:
        """Take the committed counts of some shards, and say it if all together are too many."""
        self._learned |= {shard: counts.learned for shard, counts in shards.items()}
        self._count(learned := sum(self._learned.values()))
        if learned <= self._records:
            return
        more = f", with a delta below 1 / {learned:,}" if isinstance(self._budget, ApproxDP) else ""
        self._say(
            f"{learned:,} records were learned, and expected_records is {self._records:,}. If the same records come "
            "again, each pass spends their budget again, and the statement counts one: end the job, or give records a "
            f"subject and people a cap. If there are more records, declare more in the next job{more}"
        )
        self._records = math.inf

    def _count(self, records: int | None) -> None:
        if self._few and (said := weakness(self._budget, records)) is not None:
            self._few = False
            self._say(said)
