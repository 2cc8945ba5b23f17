"""The topic of reports: what goes wrong is told, and the next attempt begins at the same place."""

import asyncio
from typing import Any

import pytest

from connectors.http import Call
from streamdp.service import report_reading
from streamdp.service.report_reading import read_reports


class Polled:
    """As `connectors.reporttopic.Polled`, of which the extra may be missing."""

    def __init__(self, values: list[bytes], position: dict[str, Any]) -> None:
        self.values, self.position = values, position


class Topic:
    """A topic whose only message comes from each opening at its place."""

    opened: list[Any]

    def __init__(self, position: Any) -> None:
        self.opened.append(position)

    def poll(self, most: int, timeout_s: float) -> Polled:
        return Polled([b"{}"], {"0": 1})

    def close(self) -> None:
        pass


def test_an_unexpected_error_is_told_and_the_message_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_reading, "RETRY_S", 0.0)
    monkeypatch.setattr(Topic, "opened", [], raising=False)
    told: list[str | None] = []
    attempts: list[Any] = []

    def call_of(items: list[Any], position: Any) -> Call:
        attempts.append(items)
        if len(attempts) == 1:
            raise TypeError("SECRET")
        return Call(1, None, None, b"")

    def submit(call: Call) -> None:
        raise report_reading.SourceUnavailableError("the learner has stopped")

    asyncio.run(read_reports(Topic, {"0": 0}, call_of, submit, told.append))
    assert told == [None, "the topic of reports cannot be read: unexpected TypeError", None]
    assert attempts == [[{}], [{}]]
    assert Topic.opened == [{"0": 0}, {"0": 0}]
