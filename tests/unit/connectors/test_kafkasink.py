"""A writer of a topic leaves a client that gets no answer: `tests/campaigns/test_kill_matrix.py` has real brokers."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from connectors import kafkasink
from streamdp.errors import SourceUnavailableError


class Producer:
    """A client that gets answers; after `stuck`, none for its first message, as kafka-python's does after a restart."""

    made: list[Producer] = []  # noqa: RUF012
    stuck = False

    def __init__(self, **settings: Any) -> None:
        self.sent: list[bytes] = []
        self.waits, self.forced, self.closed = False, False, False
        self._sender = SimpleNamespace(force_close=lambda: setattr(self, "forced", True))
        self.made.append(self)

    def send(self, topic: str, value: bytes, **more: Any) -> Any:
        self.sent.append(value)
        self.waits |= Producer.stuck
        return SimpleNamespace(get=lambda timeout: SimpleNamespace(partition=0, offset=len(self.sent) - 1))

    def flush(self, timeout: float) -> None:
        if self.waits:
            raise KafkaTimeoutError

    def close(self, timeout: float) -> None:
        self.flush(timeout)
        self.closed = True


def test_a_client_that_waits_for_ever_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkasink, "KafkaProducer", Producer)
    monkeypatch.setattr(kafkasink, "connect", lambda *given: contextlib.closing(SimpleNamespace(close=int)).thing)
    monkeypatch.setattr(kafkasink, "partitions_of", lambda *given: {0})
    monkeypatch.setattr(Producer, "made", [])
    writer = kafkasink.TopicWriter("t", "here:1")
    writer.send(None, b"1")
    assert writer.flush() == {0: 1}
    monkeypatch.setattr(Producer, "stuck", True)
    writer.send(None, b"2")
    with pytest.raises(SourceUnavailableError):
        writer.flush()
    monkeypatch.setattr(Producer, "stuck", False)
    writer.send(None, b"2")
    assert writer.flush() == {0: 1}
    assert [(one.sent, one.forced) for one in Producer.made] == [([b"1", b"2"], True), ([b"2"], False)]
    writer.close()
    assert Producer.made[-1].closed
