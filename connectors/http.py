"""Records that come by calls of an HTTP service: a source whose callers wait for the commit of what they sent.

`submit` puts a `Call` into the queue. `poll` takes calls off the queue, encodes what goes with their features
together, and learns nothing twice: a call whose key is known, or a record whose id is known, is answered from memory.
After a commit, `acknowledge` answers all calls that were polled before it.
"""

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress
from typing import Any, NamedTuple

import numpy as np

from streamdp.data.records import Batch, DeadLetter, Position, Source, by_position, check_poll
from streamdp.errors import QueueFullError, ReusedKeyError, SourceError, SourceUnavailableError

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


_OUTCOMES = {LEARNED: "learned", REFUSED: "refused", LEFT_OUT: "left_out"}
_CODES = {text: code for code, text in _OUTCOMES.items()}
_KNOWN = Flaw("known")
_GATHER_S, _LONGEST_GATHER_S, _MANY = 0.005, 0.2, 1000
"""A commit costs more than a call. So the first call after it waits for as many as it answered, while others come
within so many seconds of each other, unless so many records are there."""
_ELSEWHERE = "the reports answer documents of another service of this job; repeat the call there, with the same key"


class HTTPSource(Source):
    """Calls of a service. If more than `queue_records` records wait, a call is refused.

    `encode` makes a batch, as `RecordReader.complete`; `recall` returns what was answered before, as `Answers.recall`;
    `in_callers` runs, in the thread of the callers, what answers them.

    The position is {"records": number of records read}, and under `place` the last `Call.place`, if there was one.
    """

    def __init__(
        self,
        encode: Callable[[CallRecords, np.ndarray, Position], Batch],
        recall: Callable[[Sequence[bytes]], Mapping[bytes, tuple[bytes, object]]],
        queue_records: int,
        in_callers: Callable[[Callable[[], None]], object],
    ) -> None:
        self._in_callers = in_callers
        self._encode = encode
        self._answers = recall
        self._queue_records = queue_records
        self._queue: deque[Call] = deque()
        self.waiting = 0
        """How many records wait to be polled."""
        self._answered = 1  # how many calls the last commit answered
        self._wanted = 1  # how many calls `_take` waits for
        self._change = threading.Condition()  # notified when `_enough` becomes true
        self._closed = False
        self._records = 0
        self._place: Mapping[str, object] | None = None
        self._taken: list[Call] = []  # being polled
        self._open: list[Call] = []  # polled, not acknowledged
        self._open_keys: dict[bytes, Call] = {}
        self._open_ids: dict[bytes, tuple[bytes, Call, int]] = {}
        self._copies: list[tuple[Call, int, Call, int]] = []  # records with the id of one that is open

    # -- the callers --------------------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Put a call into the queue. Any thread may call it.

        `Call.tell` gets its answer, after its commit; or `ReusedKeyError` if the key was used with another body, and
        `SourceUnavailableError` if the commit failed. Raises `QueueFullError`, and `SourceUnavailableError` after
        `close`.
        """
        with self._change:
            if self._closed:
                raise SourceUnavailableError("the source is closed")
            if self.waiting + call.size > self._queue_records:
                raise QueueFullError("too many records wait for their commit; repeat the call later")
            self._queue.append(call)
            self.waiting += call.size
            if self._enough():
                self._change.notify()

    def answers(self, version: int) -> dict[bytes, Answered]:
        """What the transaction of a commit, `version`, must remember of the calls that were polled before it."""
        self._copy_outcomes()
        found: dict[bytes, Answered] = {}
        for call in self._open:
            if call.key is not None:
                found[call.key] = call.answer(version)
        for key, (digest, call, i) in self._open_ids.items():
            if (code := int(call.outcomes[i])) in _OUTCOMES:
                found[key] = Answered(digest, _OUTCOMES[code])
        return found

    def acknowledge(self, version: int) -> None:
        """Answer all calls that were polled before a commit, `version`. Call it after the commit."""
        self._copy_outcomes()
        calls = self._forget()
        self._answered = len(calls)
        self._tell([(call, call.answer(version)) for call in calls])

    def _copy_outcomes(self) -> None:
        """What becomes of a record becomes of those that came with its id before the commit."""
        for copy, i, first, j in self._copies:
            copy.outcomes[i] = first.outcomes[j]
            if j in first.reasons:
                copy.reasons[i] = first.reasons[j]
        self._copies.clear()

    def _tell(self, answers: Sequence[tuple[Call, Answered | Exception]]) -> None:
        """Answer calls, all at once: to wake the thread of the callers for each would take longer than a commit."""

        def complete() -> None:
            for call, answer in answers:
                call.complete(answer)

        if answers:
            self._in_callers(complete)

    def fail(self) -> None:
        """Tell the callers of all calls that their commit failed, and accept no more: there is no further poll."""
        with self._change:
            calls = [*self._forget(), *self._empty()]
        self._tell([(call, _failed()) for call in calls])

    def give_up(self) -> None:
        """As `fail`, from any thread, while the learner is in a call that does not end: it may still commit its calls.

        They are kept, so that this commit remembers their answers, and a retry counts once.
        """
        with self._change:
            calls = [*self._taken, *self._open, *self._empty()]
            self._change.notify()
        self._tell([(call, _failed()) for call in calls])

    def _empty(self) -> list[Call]:
        """Accept no more calls, and return those that wait in the queue."""
        self._closed, self.waiting = True, 0
        calls = list(self._queue)
        self._queue.clear()
        return calls

    def _forget(self) -> list[Call]:
        calls, self._open = self._open, []
        self._open_keys.clear()
        self._open_ids.clear()
        self._copies.clear()
        return calls

    # -- the learner --------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        return {"records": self._records} | ({} if self._place is None else {"place": self._place})

    @property
    def finished(self) -> bool:
        """Whether the source is closed, and all calls were polled."""
        with self._change:
            return self._closed and not self._queue

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """See `Source.poll`. A call is returned whole, also if it has more records; all calls have the same content."""
        check_poll(max_records, timeout_s)
        self._taken = taken = self._take(max_records, timeout_s)
        try:
            return self._batch(taken)
        except BaseException:
            self._tell([(call, _failed()) for call in taken])
            raise
        finally:
            self._taken = []

    def _batch(self, taken: list[Call]) -> Batch:
        calls = self._new(taken)
        self._open += calls
        start = self._records
        self._records += sum(call.size for call in calls)
        self._place = next((call.place for call in reversed(taken) if call.place is not None), self._place)
        edges = list(accumulate((call.size for call in calls), initial=0))
        outcomes = np.zeros(edges[-1], dtype=np.uint8)
        for call, at in zip(calls, edges, strict=False):
            call.outcomes = outcomes[at : at + call.size]
        flaws = self._flaws(calls, edges)
        kept = np.ones(edges[-1], dtype=bool)
        kept[list(flaws)] = False
        encode = self._rows if calls and calls[0].reports is None else self._reports
        batch = encode(calls, kept, start)
        dead = [DeadLetter(start + k, *flaw) for k, flaw in flaws.items() if flaw is not _KNOWN]
        dead = by_position([*dead, *batch.dead])
        for letter in dead:
            c = bisect_right(edges, letter.position - start) - 1
            column = {} if letter.column is None else {"column": letter.column}
            outcomes[letter.position - start] = DEAD
            calls[c].reasons[letter.position - start - edges[c]] = {"reason": letter.reason} | column

        def answer_callers(outcome: np.ndarray | None) -> None:
            outcomes[batch.positions - start] = LEARNED if outcome is None else LEARNED + outcome

        return replace(batch, dead=dead, position=self.position, on_learned=answer_callers)

    def _enough(self) -> bool:
        """Whether `_take` need not wait any longer."""
        return self._closed or len(self._queue) >= self._wanted or self.waiting >= _MANY

    def _take(self, max_records: int, timeout_s: float) -> list[Call]:
        with self._change:
            self._wanted = 1
            self._change.wait_for(self._enough, timeout_s)
            self._wanted, before, end = self._answered, 0, time.monotonic() + min(timeout_s, _LONGEST_GATHER_S)
            while before < len(self._queue) and not self._enough() and time.monotonic() < end:
                before = len(self._queue)
                self._change.wait(_GATHER_S)
            calls: list[Call] = []
            size = 0
            while self._queue:
                call = self._queue[0]
                same = not calls or (call.reports is None) == (calls[0].reports is None)
                if calls and (size + call.size > max_records or not same):
                    break
                calls.append(self._queue.popleft())
                size += call.size
            self.waiting -= size
            return calls

    def _new(self, calls: list[Call]) -> list[Call]:
        """The calls that were not answered before. The others are answered, or wait with the call that they repeat."""
        keys = [call.key for call in calls if call.key is not None]
        remembered = self._recall(keys)
        new: list[Call] = []
        known: list[tuple[Call, Answered | Exception]] = []
        for call in calls:
            if call.key is not None and (answered := remembered.get(call.key)) is not None:
                known.append((call, answered if answered.digest == call.digest else _reused()))
            elif self._belongs_elsewhere(call):
                known.append((call, SourceUnavailableError(_ELSEWHERE)))
            elif call.key is None or (first := self._open_keys.setdefault(call.key, call)) is call:
                new.append(call)
            elif first.digest == call.digest:
                first.tell += call.tell
            else:
                known.append((call, _reused()))
        self._tell(known)
        return new

    def _belongs_elsewhere(self, call: Call) -> bool:
        """Whether all its reports answer documents of other services, but for those that are known to be learned."""
        if all(flaw.reason != ELSEWHERE for flaw in call.dead.values()):
            return False
        known = self._recall([key for key, _ in call.ids.values()])
        new = [i for i in range(call.size) if i not in call.ids or call.ids[i][0] not in known]
        return bool(new) and all(i in call.dead and call.dead[i].reason == ELSEWHERE for i in new)

    def _recall(self, keys: list[bytes]) -> dict[bytes, Answered]:
        if not keys:
            return {}
        return {key: Answered(*found) for key, found in self._answers(keys).items()}

    def _flaws(self, calls: list[Call], edges: list[int]) -> dict[int, Flaw]:
        """The flaws of the records of some calls, by place, with `_KNOWN` for those whose id is known.

        `edges` are the places of the first records of the calls. What became of known records is noted in the calls.
        """
        remembered = self._recall([key for call in calls for key, _ in call.ids.values()])
        flaws: dict[int, Flaw] = {}
        for call, at in zip(calls, edges, strict=False):
            flaws |= {at + i: flaw for i, flaw in call.dead.items()}
            for i, (key, digest) in call.ids.items():
                if (answered := remembered.get(key)) is None:
                    before, first, j = self._open_ids.setdefault(key, (digest, call, i))
                    if (first, j) == (call, i):
                        continue
                    if before == digest:
                        self._copies.append((call, i, first, j))
                else:
                    before = answered.digest
                    if before == digest:
                        call.outcomes[i] = _CODES[answered.answer]
                flaws[at + i] = _KNOWN if before == digest else Flaw("id_reused")
        return flaws

    def _rows(self, calls: list[Call], kept: np.ndarray, start: int) -> Batch:
        rows = [call.rows for call in calls if call.rows is not None]
        columns = ([getattr(r, name) for r in rows] for name in ("targets", "subjects", "budgets"))
        values = (list(compress(chain.from_iterable(column), kept.tolist())) for column in columns)
        every = CallRecords(np.concatenate([r.X for r in rows])[kept], *values)
        return self._encode(every, start + np.flatnonzero(kept), self.position)

    def _reports(self, calls: list[Call], kept: np.ndarray, start: int) -> Batch:
        every = [(call.reports or {}).get(i, (None, None)) for call in calls for i in range(call.size)]
        found = list(compress(every, kept.tolist()))
        n, places = len(found), start + np.flatnonzero(kept)
        subjects = [subject for _, subject in found]
        return Batch((), np.zeros((n, 0)), np.zeros(n), places, {}, subjects, reports=[report for report, _ in found])

    def seek(self, position: Position) -> None:
        """See `Source.seek`: records are counted from there. Calls that were polled and not answered come again.

        Raises `SourceError` for the position of another source.
        """
        records = position.get("records") if isinstance(position, dict) else None
        if not isinstance(records, int):
            raise SourceError("expected the position of an HTTP source, got another one")
        with self._change:
            calls = self._forget()
            self._queue.extendleft(reversed(calls))
            self.waiting += sum(call.size for call in calls)
        for call in calls:
            call.reasons.clear()
        self._records, self._place = records, position.get("place")

    def close(self) -> None:
        """Accept no calls any more; those in the queue are still polled."""
        with self._change:
            self._closed = True
            self._change.notify()


def _failed() -> SourceUnavailableError:
    return SourceUnavailableError("the commit failed; repeat the call with the same key")


def _reused() -> ReusedKeyError:
    return ReusedKeyError("this key was used with another body: a new call needs a new key")
