"""Offsets of some partitions, while others have no leader or do not answer."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from connectors.kafkaclient import known_offsets


class Brokers:
    """As `KafkaConsumer.end_offsets`: one partition that cannot be asked spoils the answer about all."""

    def __init__(self, faults: dict[str, Exception]) -> None:
        self.faults, self.calls = faults, 0

    def __call__(self, keys: list[Any], timeout_ms: int) -> dict[Any, int]:
        self.calls += 1
        for key in keys:
            if key in self.faults:
                raise self.faults[key]
        return {key: ord(key) for key in keys}


@pytest.mark.parametrize("fault", [KeyError("b"), KafkaTimeoutError()])
def test_the_others_are_known(fault: Exception) -> None:
    assert known_offsets(Brokers({"b": fault}), ["a", "b", "c"], 0.1) == {"a": 97, "c": 99}
    assert known_offsets(Brokers({"b": fault}), ["b"], 0.1) == {}


def test_all_are_asked_at_once_if_they_can_be() -> None:
    brokers = Brokers({})
    assert known_offsets(brokers, ["a", "b"], 0.1) == {"a": 97, "b": 98}
    assert known_offsets(brokers, [], 0.1) == {}
    assert brokers.calls == 1


def test_an_error_that_would_come_again_is_raised() -> None:
    with pytest.raises(TopicAuthorizationFailedError):
        known_offsets(Brokers({"b": TopicAuthorizationFailedError()}), ["a", "b"], 0.1)
