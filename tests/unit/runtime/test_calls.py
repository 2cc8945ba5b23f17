"""A call that goes on after an exception keeps its connection: to close one that another thread uses may crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from streamdp import LDPASGDRegressor, Runner, Store
from streamdp.data.records import Shard
from streamdp.errors import StoreUnavailableError
from streamdp.runtime import calls
from streamdp.store.snapshot import Snapshot
from streamdp.store.store import Store as AnyStore
from tests.support.clock import FakeClock
from tests.support.memory import MemorySource


class Interrupted(BaseException):
    """As a second and a third Ctrl-C raise it."""


class Slow(Store):
    """A store whose commits wait for a gate, and that notes what is done to it meanwhile."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "job", "f")
        self.begun, self.gate, self.notes = threading.Event(), threading.Event(), list[str]()

    def commit_parts(self, *parts: Any) -> dict[Shard, Snapshot]:
        """See `Store.commit_parts`."""
        self.begun.set()
        assert self.gate.wait(60)
        return super().commit_parts(*parts)

    def abandon(self) -> None:
        """See `Store.abandon`."""
        self.notes.append("left")
        super().abandon()


@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_store_is_not_closed_while_a_call_uses_it(tmp_path: Path, interrupts: int) -> None:
    store, before = Slow(tmp_path / "s.db"), set(threading.enumerate())  # threads of other tests may not have ended
    left = interrupts

    def wait(calls: Sequence[Future[Any]], timeout_s: float) -> None:
        """The run waits, and Ctrl-C comes; if no more come, the commit ends."""
        nonlocal left
        if not store.begun.is_set():
            for call in calls:
                while not (call.done() or store.begun.wait(0.01)):
                    pass
        if not store.begun.is_set():
            return
        if left:
            left -= 1
            raise Interrupted
        store.gate.set()
        for call in calls:
            call.exception(60)

    records = [({"a": 1.0}, 1.0, None, None)] * 10
    runner = Runner(MemorySource(records, ["a"]), LDPASGDRegressor(features=["a"]), store, wait=wait)
    with pytest.raises(Interrupted):
        runner.run()
    mine = [thread for thread in threading.enumerate() if thread.name == "streamdp" and thread not in before]
    store.close()
    store.gate.set()
    for thread in mine:
        thread.join(60)
    assert store.notes == (["left"] if interrupts > 1 else [])
    snapshot = AnyStore.snapshot(tmp_path / "s.db")
    assert snapshot.counts.learned == 10  # the call that was left has committed


def test_a_thread_ends_when_no_call_comes_and_a_later_call_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 idle jobs of a service kept 150 threads: two of three only waited for calls."""
    monkeypatch.setattr(calls, "IDLE_S", 0.05)
    several, order = calls.Calls(), list[int]()
    threads = []
    for round_ in range(3):
        futures = [several.submit(partial(order.append, 10 * round_ + i)) for i in range(5)]
        threads.append(several.submit(threading.current_thread).result(60))
        assert all(future.done() for future in futures)
        threads[-1].join(60)
        assert not threads[-1].is_alive()
    assert order == [10 * round_ + i for round_ in range(3) for i in range(5)]
    assert len(set(threads)) == 3
    several.shutdown(wait=True)


@pytest.mark.parametrize("moment", ["get", "empty"])
def test_a_call_that_comes_while_the_thread_ends_is_made(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    several, made = calls.Calls(), threading.Event()
    late = threading.Thread(target=lambda: several.submit(made.set))

    class Queue(SimpleQueue[Any]):
        def come(self, now: str) -> None:
            if now == moment and late.ident is None:
                late.start()
                late.join(0.1)

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            try:
                return super().get(block, timeout)
            except Empty:
                self.come("get")
                raise

        def empty(self) -> bool:
            found = super().empty()
            self.come("empty")
            return found

    monkeypatch.setattr(calls, "IDLE_S", 0.01)
    several._queue = Queue()
    several.submit(lambda: None).result(60)
    assert made.wait(60)
    several.shutdown(wait=True)


def test_a_call_that_began_when_an_exception_came_has_ended_when_its_thread_is_closed() -> None:
    several, made = calls.LongCalls(lambda error: None, calls.Loop()), threading.Event()
    begin = several._calls.submit

    def interrupted(call: Callable[[], Any]) -> Future[Any]:
        begin(call)
        raise Interrupted

    several._calls.submit = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        several.submit(lambda: made.wait(0.05) or made.set())
    several.close(pytest.fail)
    assert made.is_set()


def test_the_call_that_is_known_may_go_on() -> None:
    several = calls.LongCalls(lambda error: None, calls.Loop())
    assert several.within(lambda: 1, 60.0) == 1
    assert several.call is None
    first, second = threading.Event(), threading.Event()

    def meanwhile() -> None:
        with pytest.raises(StoreUnavailableError):
            several.within(second.wait, 0.0)
        first.set()

    assert several.result(several.submit(first.wait), 0.0, meanwhile)
    assert several.call is not None
    second.set()
    several.close(pytest.fail)


def test_a_call_that_was_left_is_not_waited_for_again() -> None:
    clock, gate = FakeClock(), threading.Event()
    loop = calls.Loop(clock=clock, wait=lambda calls, seconds: clock.sleep(seconds))
    several, left = calls.LongCalls(lambda error: None, loop), list[bool]()
    clock.sleep(1000.0)
    several.stop()
    clock.sleep(5.0)
    future = several.submit(gate.wait)
    assert not several.ends(future)
    assert clock() == 1000.0 + calls.LEAVE_AFTER_S
    clock.sleep(0.1)
    with pytest.raises(StoreUnavailableError):
        several.result(future, 0.0, pytest.fail)
    several.close(lambda: left.append(True))
    assert (left, clock()) == ([True], 1000.1 + calls.LEAVE_AFTER_S)
    gate.set()
