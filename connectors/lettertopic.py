"""A topic of dead letters, with each letter of a committed record once, also after crashes.

As in `connectors.letterfile`: a worker writes the letters of its records before it commits them, and commits with them
where the topic ended. Letters that are found after that place are not sent again.
"""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence

from connectors.kafkasink import TopicReader, TopicWriter
from streamdp.data.records import DeadLetter, Shard

MAX_PAYLOAD = 700_000
"""In bytes. In base64 this is less than the megabyte that brokers allow for a message."""

_Message = tuple[bytes, bytes]


class DeadLetterTopic:
    """Writes dead letters as JSON: topic, partition, offset, reason, column, and the payload (base64) if there is one.

    A payload of more than `MAX_PAYLOAD` bytes is left out, as brokers refuse such messages by default; `payload_bytes`
    is its length. For `bootstrap_servers` see `TopicWriter`; `options` are those that `kafka.KafkaProducer` and
    `kafka.KafkaConsumer` share. The login needs the rights to write and to read the topic. Raises the errors of
    `TopicWriter`.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | list[str], options: Mapping[str, object] | None = None
    ) -> None:
        self.name = topic
        self._reader = TopicReader(topic, bootstrap_servers, options or {})
        self._writer = TopicWriter(topic, bootstrap_servers, options)
        self._place = self._reader.ends()
        self._waiting: list[tuple[Shard, _Message]] = []
        self._found: dict[Shard, Counter[_Message]] = {}
        self._resumed: dict[Shard, dict[int, int]] = {}
        self._unsure = False

    def write(self, letters: Sequence[DeadLetter], shard: Shard) -> None:
        """Keep letters, whose positions are offsets, until `commit`, unless `resume` has found them."""
        self._waiting += self._new([(shard, _message(letter, shard)) for letter in letters])

    def commit(self) -> dict[str, int]:
        """Send the letters, and wait until the broker has them. It can be called again after an error.

        Returns where the topic ends, as far as this object knows: offsets by partition. While a shard has not come to
        all the letters that `resume` has found, it is the place after which they are: a commit before them must leave
        them for the next run to find.
        """
        self._settle()
        self._unsure = True
        for _, (key, value) in self._waiting:
            self._writer.send(key, value)
        self._place |= self._writer.flush()
        self._unsure = False
        self._waiting.clear()
        held = [place for shard, place in self._resumed.items() if self._found[shard].total()]
        return {str(p): min([offset, *(place.get(p, 0) for place in held)]) for p, offset in self._place.items()}

    def resume(self, places: Mapping[Shard, Mapping[str, int] | None]) -> None:
        """Go back to the last commit: discard what was not sent, and find what was sent after it.

        `places` is what `commit` returned before the last commit of each shard; None if it is unknown.
        """
        self._waiting = [(shard, message) for shard, message in self._waiting if shard not in places]
        self._settle()
        resumed = {shard: {int(key): at for key, at in (place or {}).items()} for shard, place in places.items()}
        self._resumed |= resumed
        self._found |= {shard: Counter() for shard in places}
        self._find(resumed)

    def _settle(self) -> None:
        """If the last `commit` has failed, leave out what it has sent all the same."""
        if self._unsure:
            self._find(dict.fromkeys((shard for shard, _ in self._waiting), self._place))
            self._waiting = self._new(self._waiting)
            self._unsure = False

    def _find(self, places: Mapping[Shard, Mapping[int, int]]) -> None:
        """Read the messages of each shard from its place to the present end, beside those that were found before."""
        if not places:
            return
        found: dict[Shard, Counter[_Message]] = {shard: Counter() for shard in places}
        ends = self._reader.ends()
        ours = {f"{shard}/".encode(): shard for shard in places}
        partitions = set.intersection(*(set(place) for place in places.values()))
        start = {partition: min(place[partition] for place in places.values()) for partition in partitions}
        for message in self._reader.read(start, ends):
            shard = ours.get((message.key or b"").rpartition(b"/")[0] + b"/")
            if shard is not None and message.offset >= places[shard].get(message.partition, 0):
                found[shard][message.key, message.value] += 1
        for shard, more in found.items():
            self._found.setdefault(shard, Counter()).update(more)
        self._place |= ends

    def _new(self, messages: list[tuple[Shard, _Message]]) -> list[tuple[Shard, _Message]]:
        new = []
        for shard, message in messages:
            found = self._found.get(shard, Counter())
            if found[message] > 0:
                found[message] -= 1
            else:
                new.append((shard, message))
        return new

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()
        self._reader.close()


def _message(letter: DeadLetter, shard: Shard) -> _Message:
    place = {"topic": shard.topic, "partition": shard.partition, "offset": letter.position}
    entry: dict[str, object] = place | {"reason": letter.reason, "column": letter.column}
    if letter.payload is not None and len(letter.payload) > MAX_PAYLOAD:
        entry["payload_bytes"] = len(letter.payload)
    elif letter.payload is not None:
        entry["payload"] = base64.b64encode(letter.payload).decode("ascii")
    return f"{shard}/{letter.position}".encode(), json.dumps(entry).encode()
