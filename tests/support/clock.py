"""A clock for tests: time passes only while somebody sleeps."""

import threading


class FakeClock:
    """A clock that `sleep` moves, from any thread; nobody really sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.slept.append(seconds)
            self._now += seconds
