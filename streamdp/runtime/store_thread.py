"""The thread that uses the store: the loop stays in its group while a call waits for the database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from streamdp.data.records import ShardedSource
from streamdp.errors import SourceError, StoreUnavailableError
from streamdp.runtime.calls import LongCalls, Wait

PAUSE_AFTER_S = 1.0
"""A call that takes longer pauses the source, and polling continues only to stay in the group."""

T = TypeVar("T")


class StoreThread(LongCalls):
    """Runs every call that uses the store or an estimator on one thread, one call after the other.

    The source is paused while a call takes longer than `PAUSE_AFTER_S`; `stay` polls it then, so that the group keeps
    this worker. For `on_retry`, `clock`, `sleep`, `wait` and `randomness` see `LongCalls`.
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
        super().__init__(on_retry, clock, sleep, wait, randomness)
        self._source = source
        self._stay = stay

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
