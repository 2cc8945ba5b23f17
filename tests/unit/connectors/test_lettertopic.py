"""A topic of dead letters has each letter once, also if answers of the broker are lost after a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from connectors import lettertopic
from connectors.lettertopic import DeadLetterTopic
from streamdp.data.records import DeadLetter, Shard
from streamdp.errors import SourceUnavailableError

ONE, TWO = Shard("t", 0), Shard("t", 1)
LETTERS = [DeadLetter(position, "missing", "a") for position in range(4)]


class Broker:
    """A topic of one partition. As often as `lost` says, messages arrive and their answer does not."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.waiting: list[Any] = []
        self.lost = 0

    def __call__(self, *_: Any) -> Broker:
        return self

    def ends(self) -> dict[int, int]:
        return {0: len(self.messages)}

    def read(self, start: Mapping[int, int], ends: Mapping[int, int] | None = None) -> Iterator[Any]:
        yield from self.messages[start.get(0, 0) : None if ends is None else ends[0]]

    def send(self, key: bytes, value: bytes) -> None:
        self.waiting.append((key, value))

    def flush(self) -> dict[int, int]:
        for key, value in self.waiting:
            self.messages.append(SimpleNamespace(key=key, value=value, offset=len(self.messages), partition=0))
        self.waiting.clear()
        if self.lost:
            self.lost -= 1
            raise SourceUnavailableError("no answer")
        return self.ends()

    @property
    def keys(self) -> list[str]:
        return [message.key.decode() for message in self.messages]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(lettertopic, "TopicReader", broker)
    monkeypatch.setattr(lettertopic, "TopicWriter", broker)
    return broker


def commit(topic: DeadLetterTopic, lost: int) -> dict[str, int]:
    """Commit, again after each of so many lost answers."""
    for _ in range(lost):
        with pytest.raises(SourceUnavailableError):
            topic.commit()
    return topic.commit()


@pytest.mark.parametrize("lost", range(3))
def test_a_letter_that_was_found_is_not_sent_after_a_lost_answer(broker: Broker, lost: int) -> None:
    before = DeadLetterTopic("letters", "")
    before.write(LETTERS[1:2], ONE)
    before.commit()  # of two letters, only the second one arrived; then the process was killed
    topic = DeadLetterTopic("letters", "")
    topic.resume({ONE: {"0": 0}})
    topic.write(LETTERS[:1], ONE)
    broker.lost = lost
    assert commit(topic, lost) == {"0": 0}  # the next run must find the letter that is still to come
    topic.write(LETTERS[1:3], ONE)
    assert commit(topic, 0) == {"0": 3}
    assert broker.keys == ["t/0/1", "t/0/0", "t/0/2"]


@pytest.mark.parametrize("lost", range(1, 3))
def test_letters_of_other_shards_are_sent_once_if_one_goes_back(broker: Broker, lost: int) -> None:
    topic = DeadLetterTopic("letters", "")
    topic.write(LETTERS[:1], ONE)
    topic.write(LETTERS[:1], TWO)
    broker.lost = lost
    with pytest.raises(SourceUnavailableError):
        topic.commit()
    topic.resume({TWO: {"0": 0}})
    topic.write(LETTERS[:2], TWO)
    assert commit(topic, lost - 1) == {"0": 3}
    assert broker.keys == ["t/0/0", "t/1/0", "t/1/1"]
