"""A call of an HTTP service that waits for the commit of its records, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamdp.data.records import Batch, Position

LEARNED, REFUSED, DEAD = 1, 2, 3
"""What becomes of a record, in `Call.outcomes`; 0: nothing yet."""

ELSEWHERE = "elsewhere"
"""The reason of a report that answers the document of another service, which alone can learn it."""


class Flaw(NamedTuple):
    """Why a record is not learned.

    Parameters
    ----------
    reason
        Of its dead letter.
    column
        The feature or the field that does not fit, if it is one.
    """

    reason: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """n records of a call. Each field is apart from the others, so that nothing in one is read as another.

    Parameters
    ----------
    X
        (n, p), the encoded features. The row of a record with a flaw has no meaning.
    targets, subjects, budgets
        n JSON scalars, as they were sent.
    """

    X: np.ndarray
    targets: list[Any]
    subjects: list[Any]
    budgets: list[Any]


class RowEncoder(Protocol):
    """Makes a batch of records whose features are encoded already."""

    def complete(self, rows: Rows, positions: np.ndarray, position: Position) -> Batch:
        """Encode what goes with the features. Records that cannot be encoded go to `Batch.dead`.

        Parameters
        ----------
        rows
            n records, of one call or of several.
        positions
            (n,) int64, the position of each.
        position
            The source's position after the last record.
        """


class Answered(NamedTuple):
    """The answer to a call or to a record with an id, as a `Memory` keeps it.

    Parameters
    ----------
    digest
        The digest of the body.
    answer
        The outcome: of a call as JSON, of a record as `learned` or `refused`.
    """

    digest: bytes
    answer: Any


class Memory(Protocol):
    """What was answered before. `streamdp.store.answers.Answers` implements it."""

    def recall(self, keys: Sequence[bytes]) -> Mapping[bytes, tuple[bytes, Any]]:
        """Return the answers under some keys: the digest of the body, and the answer.

        Parameters
        ----------
        keys
            Digests.
        """


@dataclass(eq=False, slots=True)
class Call:
    """A call that waits for its commit.

    Parameters
    ----------
    size
        How many records or reports it has.
    rows
        The records of the call; None for reports.
    key
        The digest of the caller's key; None for a call without a key.
    digest
        The digest of the body; empty for a call without a key.
    ids
        By index: the digests of the id of a record, and of the record.
    reports
        None for records. Else the reports that passed their checks, by index, each with its subject or None. Those that
        are not in it are in `dead`.
    dead
        By index: the flaws of records or reports that are dead already.
    tell
        Each is called once with the answer or the error, in any thread: the caller's, and those of callers who sent the
        same key meanwhile.
    place
        For reports of a topic: the position of the topic after them, which is committed with them. None for a call.
    outcomes, reasons
        What becomes of each record (size,); and by index its reason and maybe its column, if it is dead.
    """

    size: int
    rows: Rows | None
    key: bytes | None
    digest: bytes
    ids: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    reports: dict[int, tuple[Any, Any]] | None = None
    dead: dict[int, Flaw] = field(default_factory=dict)
    tell: list[Callable[[Answered | Exception], None]] = field(default_factory=list)
    place: Mapping[str, Any] | None = None
    outcomes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    reasons: dict[int, dict[str, str]] = field(default_factory=dict)

    def answer(self, version: int) -> Answered:
        """The answer after a commit: numbers, and index, reason and maybe column of each dead record.

        Parameters
        ----------
        version
            The number of the commit.
        """
        numbers = np.bincount(self.outcomes, minlength=DEAD).tolist()
        document = {
            "version": version,
            "learned": numbers[LEARNED],
            "refused": numbers[REFUSED],
            "dead": [{"index": i, **self.reasons[i]} for i in sorted(self.reasons)],
        }
        return Answered(self.digest, document)

    def complete(self, answer: Answered | Exception) -> None:
        """Tell all callers that wait for it, unless they were told before."""
        told, self.tell = self.tell, []
        for tell in told:
            tell(answer)
