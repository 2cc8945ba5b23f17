"""Functions that other threads have called in an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from streamdp.service.inloop import InLoop


def test_all_functions_are_called_in_order_and_in_the_thread_of_the_loop() -> None:
    threads, each = 4, 2000

    async def run() -> list[tuple[int, int]]:
        in_loop, mine = InLoop(asyncio.get_running_loop()), threading.get_ident()
        found: list[tuple[int, int]] = []
        done = asyncio.Event()

        def note(thread: int, i: int) -> None:
            assert threading.get_ident() == mine
            found.append((thread, i))
            if len(found) == threads * each:
                done.set()

        def call(thread: int) -> None:
            for i in range(each):
                in_loop(lambda i=i: note(thread, i))  # type: ignore[misc]

        started = [threading.Thread(target=call, args=(k,)) for k in range(threads)]
        for thread in started:
            thread.start()
        await asyncio.wait_for(done.wait(), 60)
        for thread in started:
            thread.join()
        return found

    found = asyncio.run(run())
    for k in range(threads):
        assert [i for thread, i in found if thread == k] == list(range(each))


def test_many_functions_wake_the_loop_once_and_an_error_stops_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[list[int], int, int]:
        loop = asyncio.get_running_loop()
        found: list[int] = []
        errors: list[Any] = []
        woken = 0
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        wake = loop.call_soon_threadsafe

        def counted(*of: Any) -> Any:
            nonlocal woken
            woken += 1
            return wake(*of)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        in_loop = InLoop(loop)
        in_loop(lambda: found.append(1 // 0))
        for i in range(64):
            in_loop(lambda i=i: found.append(i))  # type: ignore[misc]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found, woken, len(errors)

    assert asyncio.run(run()) == (list(range(64)), 1, 1)


def test_after_the_end_of_the_loop_nothing_is_called() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    InLoop(loop)(lambda: pytest.fail("the loop is closed"))
