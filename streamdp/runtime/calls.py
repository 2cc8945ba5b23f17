"""What both loops are told, and their calls of the store on a thread.

The loop reports a call that does not return, and leaves it some time after a stop.
"""

import concurrent.futures
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from streamdp.errors import ConfigError, SourceUnavailableError, StoreUnavailableError, is_number
from streamdp.runtime.defaults import COMMIT_RECORDS, COMMIT_SECONDS, POLL_TIMEOUT_S, REPORT_AFTER_S
from streamdp.runtime.protocols import DeadLetters

LEAVE_AFTER_S = 20.0
"""How long a loop that was asked to stop waits for a call that neither ends nor fails. Such a call may still commit."""

GIVE_UP_S = 10.0
"""How long a loop that was asked to stop repeats calls of a database that does not answer."""

IDLE_S = 5.0
"""How long a thread waits for the next call."""

LONGEST_DELAY_S = 3.0
"""The longest delay between two calls."""

HANGS = (
    f"a call has not returned for {REPORT_AFTER_S:g} s: the database does not end it, or a batch takes so long to learn"
)

log = logging.getLogger(__name__)
T = TypeVar("T")
Wait = Callable[[Sequence[Future[Any]], float], object]


@dataclass(kw_only=True, eq=False, repr=False)
class Loop:
    """What both loops are told: `Runner` and `Worker` describe it.

    Raises `ConfigError` if a commit interval is not positive.
    """

    commit_records: int = COMMIT_RECORDS
    commit_seconds: float = COMMIT_SECONDS
    max_bad_share: float | None = None
    name: str = "the source"
    dead_letters: DeadLetters | None = None
    on_unfit: Callable[[str], None] = log.warning
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wait: Wait = concurrent.futures.wait
    randomness: Callable[[float, float], float] = random.uniform

    def __post_init__(self) -> None:
        records, seconds = self.commit_records, self.commit_seconds
        if not (is_number(records) and is_number(seconds) and records >= 1 and seconds > 0):
            raise ConfigError("commit_records must be at least 1 and commit_seconds positive")


class Reminder:
    """Says when `REPORT_AFTER_S` have passed again. The seconds of `clock` never go backward."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Count from now."""
        self._last = self._clock()

    def due(self) -> bool:
        """Whether it is time for a report; then it counts from now."""
        due = self._clock() - self._last >= REPORT_AFTER_S
        if due:
            self.reset()
        return due


class Rarely:
    """Calls `tell` with a message, unless it did so less than `REPORT_AFTER_S` ago. `clock` is that of `Reminder`."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._told: dict[str, float] = {}

    def __call__(self, message: str) -> None:
        """Tell a `message`, or leave it out."""
        if self._clock() - self._told.get(message, -REPORT_AFTER_S) >= REPORT_AFTER_S:
            self._told[message] = self._clock()
            self._tell(message)


class Calls:
    """Makes one call after the other, on a thread that ends when no call came for `IDLE_S`.

    The process may end within a call, unlike with a thread pool.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the thread's end

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make a `call`, after those before it."""
        future: Future[T] = Future()
        with self._lock:
            self._queue.put((future, call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streamdp", daemon=True)
                self._thread.start()
        return future

    def shutdown(self, *, wait: bool) -> None:
        """End the thread after the last call, and `wait` for that or not."""
        self._queue.put(None)
        if wait and (thread := self._thread) is not None:
            thread.join()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with contextlib.suppress(Empty):
            return self._queue.get(timeout=IDLE_S)
        with self._lock:
            if self._queue.empty():
                self._thread = None
                return None
        return self._queue.get()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            future, call = item
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - `Future.result` raises it
                future.set_exception(error)


class LongCalls:
    """Calls on a thread that may take for ever.

    `on_retry` is called with the error before a call is repeated.
    """

    def __init__(self, on_retry: Callable[[BaseException], None], loop: Loop) -> None:
        self._on_retry, self._loop = on_retry, loop
        self._calls = Calls()
        self._stopped_at: float | None = None
        # the last call, until `result` has returned what it became; then None
        self.call: Future[Any] | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Begin a `call`, after those before it."""
        self.call = future = self._calls.submit(call)
        return future

    def result(self, future: Future[T], first_s: float, meanwhile: Callable[[], None]) -> T:
        """Wait for a call, a future of `submit`, and return its result.

        After `first_s` seconds, `meanwhile` is called again and again while the call goes on. Raises the error of the
        call, and `StoreUnavailableError` if it has not ended `LEAVE_AFTER_S` after `stop`.
        """
        timeout = first_s
        while True:
            self._loop.wait([future], timeout)
            if future.done():
                if future is self.call:
                    self.call = None
                return future.result()
            if self.stopped_for() > LEAVE_AFTER_S:
                raise StoreUnavailableError(
                    f"a call of the database did not end within {LEAVE_AFTER_S:g} s after the stop; the next run"
                    " learns what was not committed"
                )
            meanwhile()
            timeout = POLL_TIMEOUT_S

    def within(self, call: Callable[[], T], seconds: float) -> T:
        """The result of a `call`, waited for at most `seconds`, because this is within another one.

        Raises `StoreUnavailableError` if it has not ended by then. It is then `call`, and goes on.
        """
        before, future = self.call, self.submit(call)
        self._loop.wait([future], seconds)
        if not future.done():
            raise StoreUnavailableError(f"the database did not answer within {seconds:g} s")
        self.call = before
        return future.result()

    def ends(self, future: Future[Any]) -> bool:
        """Wait for the future of a call, after `stop` no longer than `LEAVE_AFTER_S`. Return whether it has ended."""
        self._loop.wait([future], max(0.0, LEAVE_AFTER_S - self.stopped_for()))
        return future.done()

    def stop(self) -> None:
        """From now on, wait for at most `LEAVE_AFTER_S`."""
        if self._stopped_at is None:
            self._stopped_at = self._loop.clock()

    def stopped_for(self) -> float:
        """The seconds since `stop`; 0 before it."""
        return 0.0 if self._stopped_at is None else self._loop.clock() - self._stopped_at

    def close(self, leave: Callable[[], None]) -> None:
        """End the thread after the last call.

        Wait for that, but no longer than `ends`. `leave` is called if a call goes on, also if an exception, such as
        Ctrl-C, ends the wait: the call still uses the database, which must not be closed.
        """
        ended = self.call is None
        try:
            ended = self.call is None or self.ends(self.call)
        finally:
            if not ended:
                leave()
            self._calls.shutdown(wait=ended)

    def retry(
        self, call: Callable[[], T], *, give_up_s: float = GIVE_UP_S, longest_delay_s: float = LONGEST_DELAY_S
    ) -> T:
        """Call until the store or the broker answers, with random exponential delays; used on the thread itself.

        `call` may be repeated after `StoreUnavailableError` and `SourceUnavailableError`; after a stop these errors are
        raised when `give_up_s` seconds have passed. Two calls are at most `longest_delay_s` seconds apart.
        """
        backoff = wait_exponential(multiplier=0.1, max=longest_delay_s)
        trying = Retrying(
            retry=retry_if_exception_type((StoreUnavailableError, SourceUnavailableError)),
            wait=lambda state: self._loop.randomness(0.0, backoff(state)),
            stop=lambda _: self.stopped_for() > give_up_s,
            sleep=self._loop.sleep,
            before_sleep=self._before_retry,
            reraise=True,
        )
        return trying(call)

    def _before_retry(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None:
            self._on_retry(error)
