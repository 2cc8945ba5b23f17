"""Records that come by calls of an HTTP service: a source whose callers wait for the commit of what they sent.

`submit` puts a call into the queue. `poll` takes calls off the queue, encodes what goes with their features
together, and learns nothing twice: a call whose key is known, or a record whose id is known, is answered from memory.
After a commit, `acknowledge` answers all calls that were polled before it.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from connectors.httpcall import DEAD, ELSEWHERE, LEARNED, REFUSED, Answered, Call, Flaw, Memory, RowEncoder, Rows
from streamdp.data.records import Batch, DeadLetter, Position, Source, by_position, check_poll
from streamdp.errors import QueueFullError, ReusedKeyError, SourceError, SourceUnavailableError

_OUTCOMES = {LEARNED: "learned", REFUSED: "refused"}
_CODES = {text: code for code, text in _OUTCOMES.items()}
_KNOWN = Flaw("known")
_GATHER_S, _MANY = 0.005, 1000
"""A commit costs more than a call. So where several callers wait for each commit, the first call after it waits so long
for the others, unless so many records are there."""
_ELSEWHERE = "the reports answer documents of another service of this job; repeat the call there, with the same key"


class HTTPSource(Source):
    """Calls of a service. If more than `queue_records` records wait, a call is refused.

    The position is {"records": number of records read}, and under `place` the last `Call.place`, if there was one.
    """

    def __init__(self, encoder: RowEncoder, memory: Memory, queue_records: int) -> None:
        self._encoder = encoder
        self._memory = memory
        self._queue_records = queue_records
        self._queue: deque[Call] = deque()
        self.waiting = 0
        """How many records wait to be polled."""
        self._several = False  # whether the last commit answered several calls
        self._change = threading.Condition()
        self._closed = False
        self._records = 0
        self._place: Mapping[str, Any] | None = None
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
        self._several = len(calls) > 1
        for call in calls:
            call.complete(call.answer(version))

    def _copy_outcomes(self) -> None:
        """What becomes of a record becomes of those that came with its id before the commit."""
        for copy, i, first, j in self._copies:
            copy.outcomes[i] = first.outcomes[j]
            if j in first.reasons:
                copy.reasons[i] = first.reasons[j]
        self._copies.clear()

    def fail(self) -> None:
        """Tell the callers of all calls that their commit failed, and accept no more: there is no further poll."""
        with self._change:
            calls = [*self._forget(), *self._empty()]
        for call in calls:
            call.complete(_failed())

    def give_up(self) -> None:
        """As `fail`, from any thread, while the learner is in a call that does not end: it may still commit its calls.

        They are kept, so that this commit remembers their answers, and a retry counts once.
        """
        with self._change:
            calls = [*self._taken, *self._open, *self._empty()]
            self._change.notify()
        for call in calls:
            call.complete(_failed())

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
            for call in taken:
                call.complete(_failed())
            raise
        finally:
            self._taken = []

    def _batch(self, taken: list[Call]) -> Batch:
        calls = self._new(taken)
        self._open += calls
        start = self._records
        self._records += sum(call.size for call in calls)
        self._place = next((call.place for call in reversed(taken) if call.place is not None), self._place)
        flaws = self._flaws(calls)
        if not calls or calls[0].reports is not None:
            return self._reports(calls, flaws, start)
        return self._decoded(calls, flaws, start)

    def _take(self, max_records: int, timeout_s: float) -> list[Call]:
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed, timeout_s)
            gather = self._several and timeout_s > 0 and 0 < self.waiting < _MANY
        if gather:
            time.sleep(_GATHER_S)
        with self._change:
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
        new = []
        for call in calls:
            if call.key is not None and (answered := remembered.get(call.key)) is not None:
                call.complete(answered if answered.digest == call.digest else _reused())
            elif self._belongs_elsewhere(call):
                call.complete(SourceUnavailableError(_ELSEWHERE))
            elif call.key is None or (first := self._open_keys.setdefault(call.key, call)) is call:
                new.append(call)
            elif first.digest == call.digest:
                first.tell += call.tell
            else:
                call.complete(_reused())
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
        return {key: Answered(*found) for key, found in self._memory.recall(keys).items()}

    def _flaws(self, calls: list[Call]) -> list[dict[int, Flaw]]:
        """The flaws of each call, with `_KNOWN` for records whose id is known; what became of those is noted."""
        remembered = self._recall([key for call in calls for key, _ in call.ids.values()])
        found = []
        for call in calls:
            call.outcomes = np.zeros(call.size, dtype=np.uint8)
            flaws = dict(call.dead)
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
                flaws[i] = _KNOWN if before == digest else Flaw("id_reused")
            found.append(flaws)
        return found

    def _decoded(self, calls: list[Call], found: list[dict[int, Flaw]], start: int) -> Batch:
        kept: list[np.ndarray] = []
        every = Rows(np.empty(0), [], [], [])
        places: list[int] = []
        dead: list[DeadLetter] = []
        at = start
        for call, flaws in zip(calls, found, strict=True):
            rows = call.rows
            assert rows is not None
            dead += [DeadLetter(at + i, *flaw) for i, flaw in flaws.items()]
            good = [i for i in range(call.size) if i not in flaws]
            kept.append(rows.X[good])
            for field, values in (
                (every.targets, rows.targets), (every.subjects, rows.subjects), (every.budgets, rows.budgets)
            ):  # fmt: skip
                field += [values[i] for i in good]
            places += [at + i for i in good]
            at += call.size
        every = replace(every, X=np.concatenate(kept))
        batch = self._encoder.complete(every, np.array(places, dtype=np.int64), self.position)
        return self._noted(replace(batch, dead=by_position([*dead, *batch.dead])), calls, start)

    def _reports(self, calls: list[Call], found: list[dict[int, Flaw]], start: int) -> Batch:
        reports, subjects, positions, dead = [], [], [], []
        at = start
        for call, flaws in zip(calls, found, strict=True):
            assert call.reports is not None
            dead += [DeadLetter(at + i, *flaw) for i, flaw in sorted(flaws.items())]
            for i, (report, subject) in call.reports.items():
                if i not in flaws:
                    reports.append(report)
                    subjects.append(subject)
                    positions.append(at + i)
            at += call.size
        n, at_rows = len(reports), np.array(positions, dtype=np.int64)
        batch = Batch((), np.zeros((n, 0)), np.zeros(n), at_rows, {}, subjects, dead=dead, reports=reports)
        return self._noted(batch, calls, start)

    def _noted(self, batch: Batch, calls: list[Call], start: int) -> Batch:
        """The batch without the records that are known; it notes in the calls what becomes of the others."""
        edges = list(accumulate((call.size for call in calls), initial=start))
        dead = [letter for letter in batch.dead if letter.reason != _KNOWN.reason]
        for letter in dead:
            k = bisect_right(edges, letter.position) - 1
            i = letter.position - edges[k]
            column = {} if letter.column is None else {"column": letter.column}
            calls[k].outcomes[i], calls[k].reasons[i] = DEAD, {"reason": letter.reason} | column

        def answer_callers(admitted: np.ndarray | None) -> None:
            outcomes = np.zeros(edges[-1] - start, dtype=np.uint8)
            codes = LEARNED if admitted is None else np.where(admitted, LEARNED, REFUSED)
            outcomes[batch.positions - start] = codes
            for edge, call in zip(edges, calls, strict=False):
                call.outcomes |= outcomes[edge - start : edge - start + call.size]

        return replace(batch, dead=dead, position=self.position, on_learned=answer_callers)

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
