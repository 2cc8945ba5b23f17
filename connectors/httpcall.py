"""A call of an HTTP service that waits for the commit of its records, and what becomes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

LEARNED, REFUSED, LEFT_OUT, DEAD = 1, 2, 3, 4
"""What becomes of a record, in `Call.outcomes`; 0: nothing yet."""

ELSEWHERE = "elsewhere"
"""The reason of a report that answers the document of another service, which alone can learn it."""


class Flaw(NamedTuple):
    """Why a record is not learned: the reason of its dead letter, and the feature or field that does not fit."""

    reason: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecords:
    """n records of a call. Each field is apart from the others, so that nothing in one is read as another.

    X (n, p) has the encoded features; the row of a record with a flaw has no meaning. The others are n JSON scalars, as
    they were sent.
    """

    X: np.ndarray
    targets: list[object]
    subjects: list[object]
    budgets: list[Any]


class Answered(NamedTuple):
    """The answer to a call or to a record with an id, as `streamdp.store.answers` keeps it."""

    digest: bytes  # of the body
    answer: Any  # of a call as JSON, of a record as `learned`, `refused` or `left_out`


@dataclass(eq=False, slots=True)
class Call:
    """A call that waits for its commit."""

    size: int  # how many records or reports it has
    rows: CallRecords | None  # None for reports
    key: bytes | None  # the digest of the caller's key; None for a call without a key
    digest: bytes  # of the body; empty for a call without a key
    # by index: the digests of the id of a record, and of the record
    ids: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    # None for records; else the reports that passed their checks, each with its subject or None; others are in `dead`
    reports: dict[int, tuple[Any, Any]] | None = None
    # by index: the flaws of records or reports that are known to be unusable
    dead: dict[int, Flaw] = field(default_factory=dict)
    # each is called once with the answer or the error, in the thread of the callers: the caller's, and those of callers
    # who sent the same key meanwhile
    tell: list[Callable[[Answered | Exception], None]] = field(default_factory=list)
    # for reports of a topic: its position after them, which is committed with them
    place: Mapping[str, object] | None = None
    outcomes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))  # of each record, (size,)
    # of each unusable record, by index: its reason and maybe its column
    reasons: dict[int, dict[str, str]] = field(default_factory=dict)

    def answer(self, version: int) -> Answered:
        """The answer after a commit, `version`: numbers, and index, reason and maybe column of each unusable one."""
        outcomes = self.outcomes.tobytes()
        document = {
            "version": version,
            "learned": outcomes.count(LEARNED),
            "refused": outcomes.count(REFUSED),
            "left_out": outcomes.count(LEFT_OUT),
            "dead": [{"index": i, **self.reasons[i]} for i in sorted(self.reasons)],
        }
        return Answered(self.digest, document)

    def complete(self, answer: Answered | Exception) -> None:
        """Answer all callers that wait for it, each once."""
        waiting, self.tell = self.tell, []
        for answer_caller in waiting:
            answer_caller(answer)
