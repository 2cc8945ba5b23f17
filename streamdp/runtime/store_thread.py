"""The thread that uses the store: the loop stays in its group while a call waits for the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from streamdp.data.records import ShardedSource
from streamdp.errors import SourceUnavailableError, StoreUnavailableError
from streamdp.runtime.defaults import POLL_TIMEOUT_S

PAUSE_AFTER_S = 1.0
"""A call that takes longer pauses the source, and polling continues only to stay in the group."""
GIVE_UP_S = 10.0
"""How long a worker that was asked to stop waits for a database that does not answer."""

_BACKOFF = wait_exponential(multiplier=0.1, max=3.0)

T = TypeVar("T")
Wait = Callable[[Sequence[Future[Any]], float], object]


class StoreThread:
    """Runs every call that uses the store or an estimator on one thread, one call after the other.

    Parameters
    ----------
    source
        It is paused while a call takes longer than `PAUSE_AFTER_S`.
    stay
        Polls the paused source, so that the group keeps this worker.
    on_retry
        Called with the error before a call is repeated.
    clock, sleep, wait, randomness
        As for `streamdp.runtime.worker.Worker`.
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
        self._source = source
        self._stay = stay
        self._on_retry = on_retry
        self._clock = clock
        self._sleep = sleep
        self._wait = wait
        self._randomness = randomness
        self._executor = ThreadPoolExecutor(1, "streamdp")
        self._call: Future[Any] | None = None
        self._stopped_at: float | None = None

    @property
    def call(self) -> Future[Any] | None:
        """The last call, until `result` has returned or `abandon` was called; then None."""
        return self._call

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Begin a call.

        Parameters
        ----------
        call
            It may use `retry`.
        """
        self._call = future = self._executor.submit(call)
        return future

    def result(self, future: Future[T]) -> T:
        """The result of a call. If it takes long, pause the source and poll it, to stay in the group.

        Parameters
        ----------
        future
            From `submit`.
        """
        paused = False
        try:
            while True:
                self._wait([future], POLL_TIMEOUT_S if paused else PAUSE_AFTER_S)
                if future.done():
                    return future.result()
                if not paused:
                    self._source.pause()
                    paused = True
                self._stay()
        finally:
            self._call = None
            if paused:
                self._source.resume()

    def abandon(self) -> None:
        """Forget the last call; it has ended."""
        self._call = None

    def retry(self, call: Callable[[], T]) -> T:
        """Call until the store or the broker answers, with random exponential delays; used on the thread itself.

        Parameters
        ----------
        call
            It may be repeated after `StoreUnavailableError` and `SourceUnavailableError`; after a stop these errors are
            raised when `GIVE_UP_S` have passed.
        """
        trying = Retrying(
            retry=retry_if_exception_type((StoreUnavailableError, SourceUnavailableError)),
            wait=lambda state: self._randomness(0.0, _BACKOFF(state)),
            stop=self._gives_up,
            sleep=self._sleep,
            before_sleep=self._before_retry,
            reraise=True,
        )
        return trying(call)

    def _gives_up(self, state: RetryCallState) -> bool:
        return self._stopped_at is not None and self._clock() - self._stopped_at > GIVE_UP_S

    def _before_retry(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None:
            self._on_retry(error)

    def stop(self) -> None:
        """From now on, wait at most `GIVE_UP_S` for an answer."""
        if self._stopped_at is None:
            self._stopped_at = self._clock()

    def close(self) -> None:
        """Wait for the last call, and end the thread."""
        self._executor.shutdown()
