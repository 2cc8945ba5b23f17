"""The thread that uses the store: the loop stays in its group while a call waits for the database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from streamdp.data.records import ShardedSource
from streamdp.errors import SourceError, SourceUnavailableError, StoreUnavailableError
from streamdp.runtime.calls import LongCalls, Wait

PAUSE_AFTER_S = 1.0
"""A call that takes longer pauses the source, and polling continues only to stay in the group."""
GIVE_UP_S = 10.0
"""How long a worker that was asked to stop repeats calls of a database that does not answer."""

LONGEST_DELAY_S = 3.0
"""The longest delay between two calls."""

T = TypeVar("T")


class StoreThread(LongCalls):
    """Runs every call that uses the store or an estimator on one thread, one call after the other.

    The source is paused while a call takes longer than `PAUSE_AFTER_S`; `stay` polls it then, so that the group keeps
    this worker. `on_retry` is called with the error before a call is repeated. For `clock`, `sleep`, `wait` and
    `randomness` see `streamdp.runtime.worker.Worker`.
    """

    def __init__(
        self,
        source: ShardedSource,
        stay: Callable[[], None],
        on_retry: Callable[[BaseException], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        wait: Wait,
        randomness: Callable[[float, float], float],
    ) -> None:
        super().__init__(clock, wait)
        self._source = source
        self._stay = stay
        self._on_retry = on_retry
        self._sleep = sleep
        self._randomness = randomness

    def result_in_group(self, future: Future[T]) -> T:
        """The result of a call, a future. If it takes long, pause the source and poll it, to stay in the group.

        Raises `StoreUnavailableError` if the call has not ended `LEAVE_AFTER_S` after `stop`.
        """
        paused = False

        def stay() -> None:
            nonlocal paused
            if not paused:
                self._source.pause()
                paused = True
            self._stay()

        try:
            return self.result(future, PAUSE_AFTER_S, stay)
        finally:
            if paused:
                self._source.resume()

    def within(self, call: Callable[[], T], seconds: float) -> T:
        """The result of a `call`, waited for at most `seconds` without a poll, because this is within one.

        Raises `StoreUnavailableError` if it has not ended by then. It is then `call`, and goes on.
        """
        before, future = self.call, self.submit(call)
        self._wait([future], seconds)
        if not future.done():
            raise StoreUnavailableError(f"the database did not answer within {seconds:g} s")
        self.call = before
        return future.result()

    def ends_well(self, call: Future[Any]) -> bool:
        """Wait for a call without a poll, for `LEAVE_AFTER_S` at most; whether it succeeded or met a bad source."""
        return self.ends(call) and isinstance(call.exception(), SourceError | None)

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
            wait=lambda state: self._randomness(0.0, backoff(state)),
            stop=lambda _: self.stopped_for() > give_up_s,
            sleep=self._sleep,
            before_sleep=self._before_retry,
            reraise=True,
        )
        return trying(call)

    def _before_retry(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None:
            self._on_retry(error)
