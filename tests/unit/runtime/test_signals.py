"""SIGTERM outside of a run: it leaves the block, and another one does not interrupt what the first one ends."""

from __future__ import annotations

import signal
import threading

from streamdp.runtime.signals import ended_by_sigterm


def test_a_second_sigterm_does_not_interrupt_the_clean_up() -> None:
    assert threading.current_thread() is threading.main_thread(), "signals arrive here"
    before, done = signal.getsignal(signal.SIGTERM), []
    with ended_by_sigterm():
        try:
            signal.raise_signal(signal.SIGTERM)
            done.append("went on")
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("cleaned up")
    assert done == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before
