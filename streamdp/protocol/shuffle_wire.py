"""What the parties of the protocol exchange: announcements as JSON, devices' messages and mixed batches as bytes.

Every reader checks what it reads. Logs connect the three parties: one to read, with offsets, and one to write. Kafka
topics are such logs.
"""

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError

from streamdp.aggregation.shuffled_sum import Shuffled
from streamdp.aggregation.vector_sum import VectorSum
from streamdp.errors import SchemaError, SourceError
from streamdp.privacy.guarantees import ApproxDP, parse_budget
from streamdp.protocol.local_agreement import Wire

Tell = Callable[..., None]
"""A function that is called with the name of an event and its numbers, and never with contents of a message."""


class Entry(Protocol):
    """One message of a log."""

    @property
    def offset(self) -> int:
        """The message's place in the log."""

    @property
    def key(self) -> bytes | None:
        """The message's key."""

    @property
    def value(self) -> bytes | None:
        """The message's value."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 (UTC)."""


class LogReader(Protocol):
    """A log to read. Every reader finds the messages in the same order, at any time.

    `poll` raises `SourceError` if it has found another log of the same name.
    """

    @property
    def id(self) -> str | None:
        """What another log of the same name does not have; None if that is unknown."""

    def seek(self, offset: int) -> int:
        """Continue at an `offset`, or at the oldest message if later, and return where; `SourceError` past the end."""

    def end(self) -> int:
        """The offset that the next message will have."""

    def poll(self, timeout_s: float) -> Sequence[Entry]:
        """The next messages; none if none comes in `timeout_s` seconds."""

    def forget(self, before: int) -> None:
        """Delete the messages `before` an offset, if the log permits it."""


def check_log(log: LogReader, position: Mapping[str, object]) -> None:
    """Raise `SourceError` unless a committed `position` belongs to this log, by its `topic_id` if it has one."""
    before = position.get("topic_id")
    if None not in (before, log.id) and before != log.id:
        raise SourceError(
            "a topic was deleted and created again since this store was written: its offsets are those of other"
            " messages; restore the topic, or use another store and other topics"
        )


class LogWriter(Protocol):
    """A log to write."""

    def send(self, key: bytes | None, value: bytes | None, *, timestamp_ms: int | None = None) -> object:
        """Queue a message of `key` and `value`. `timestamp_ms` is in milliseconds since 1970 (UTC); None: now."""

    def flush(self) -> object:
        """Wait until all queued messages are durable."""

    def end(self) -> int:
        """The end of the log at the time when it was opened: the offset that the next message would have had."""


def silent(event: str, **numbers: object) -> None:
    """Ignore an `event` and its `numbers`; a `Tell`."""


Place = tuple[int, int, int]
"""A batch: (epoch, phase, step) of a plan, or (0, 0, records before it) of Newton's method."""

NONCE_BYTES = 16
PART_BYTES = 512 * 1024
"""The most bytes of a mixed batch in one message: about half of what brokers allow by default."""

_MOST_BYTES = 64 << 20
_HEAD = struct.Struct(">4s16s3Q16s2IQ")  # magic, agreement, batch, name of the forwarding, part, parts, users
_MAGIC = b"sdm1"


def place_text(place: Place) -> str:
    """The text of a batch, such as `0/1/2`."""
    return "/".join(map(str, place))


_Whole = Annotated[int, Field(ge=0, lt=2**63)]


class AnnouncedSum(Wire):
    """The parameters of a batch's sum: see `VectorSum`."""

    budget: Annotated[ApproxDP, BeforeValidator(parse_budget), PlainSerializer(str)]
    bound: float
    users: _Whole
    d: _Whole
    g: _Whole
    b: _Whole
    sensitivity: float


class Announcement(Wire):
    """What the learner announces before a batch."""

    format: Annotated[int, Field(ge=1, le=1)]
    agreement: str  # the digest of the learner's agreement
    batch: tuple[_Whole, _Whole, _Whole]
    point: list[float]  # (d,), where the gradients are taken
    loss: str
    features: list[str]
    sum: AnnouncedSum


def write_announcement(announcement: Announcement) -> bytes:
    """Write an announcement as JSON."""
    return json.dumps(announcement.model_dump()).encode()


def read_announcement(text: bytes, most_bytes: int = _MOST_BYTES) -> Announcement:
    """Read an announcement of at most `most_bytes` from JSON `text`. Raises `SchemaError` if it is none.

    Nothing is computed from it: whether its sum keeps the budget is not known yet.
    """
    if len(text) > most_bytes:
        raise SchemaError("an announcement is too long")
    with contextlib.suppress(ValidationError):
        return Announcement.model_validate_json(text)
    raise SchemaError("expected an announcement, got something else")  # here: no error with a value is its context


# -- one person's message --------------------------------------------------------------------------------------------


def message_key(agreement: str, place: Place) -> bytes:
    """The key of a device's message; `agreement` is the agreement's digest."""
    return f"{agreement}/{place_text(place)}".encode()


def read_key(key: bytes | None, agreement: str) -> Place:
    """The batch of a message's `key`. Raises `SchemaError` without a batch or for another `agreement` (a digest)."""
    try:
        digest, *numbers = (key or b"").decode("ascii").split("/")
        epoch, phase, step = (int(text) for text in numbers if text.isdigit() and len(text) < 19)
    except ValueError:
        raise SchemaError("a message has no batch") from None
    place = epoch, phase, step
    if digest != agreement or message_key(agreement, place) != key:
        raise SchemaError("a message is of another agreement")
    return place


def read_message(value: bytes | None, params: VectorSum) -> tuple[bytes, bytes]:
    """The random bytes and packed bits (d w bytes) in a `value`. Raises `SchemaError` if they are of another sum."""
    if value is None or len(value) != NONCE_BYTES + params.message_bytes:
        raise SchemaError(f"expected a message of {NONCE_BYTES + params.message_bytes} bytes")
    bits = value[NONCE_BYTES:]
    width = params.message_bytes // params.d
    past = (1 << (8 * width - params.g - params.b)) - 1
    if past and any(last & past for last in bits[width - 1 :: width]):
        raise SchemaError("a message has ones past its bits")
    return value[:NONCE_BYTES], bits


# -- a mixed batch ---------------------------------------------------------------------------------------------------


def cut(shuffled: Shuffled, agreement: str, place: Place, name: bytes, size: int = PART_BYTES) -> Iterator[bytes]:
    """Cut a mixed batch into messages with at most `size` bytes of it; `agreement` is the agreement's digest.

    `name` is 16 random bytes, the same for all parts. Use other bytes each time the batch is forwarded.
    """
    data = shuffled.bits.tobytes()
    parts = max(1, -(-len(data) // size))
    for part in range(parts):
        head = _HEAD.pack(_MAGIC, bytes.fromhex(agreement), *place, name, part, parts, shuffled.users)
        yield head + data[part * size : (part + 1) * size]


@dataclass(frozen=True)
class MixedPart:
    """One of the parts that `cut` makes."""

    place: Place
    name: bytes  # as for `cut`
    part: int  # from 0
    parts: int
    users: int  # the number of people who answered
    data: bytes


def read_part(value: bytes | None, agreement: str) -> MixedPart:
    """Read a part of a mixed batch from a `value`. Raises `SchemaError` for another `agreement` (a digest)."""
    if value is None or len(value) < _HEAD.size:
        raise SchemaError("expected a part of a mixed batch")
    magic, digest, epoch, phase, step, name, part, parts, users = _HEAD.unpack_from(value)
    if magic != _MAGIC or digest.hex() != agreement or part >= parts:
        raise SchemaError("expected a part of a mixed batch of this agreement")
    return MixedPart((epoch, phase, step), name, part, parts, users, value[_HEAD.size :])


class Assembly:
    """Joins the parts of one batch. If a crash interrupts a forwarding, its parts are dropped for later ones."""

    _most = 4

    def __init__(self, params: VectorSum) -> None:
        self._params = params
        self._found: dict[bytes, list[bytes]] = {}

    def add(self, part: MixedPart) -> Shuffled | None:
        """Add a part, or raise `SchemaError` if it does not fit; returns the batch after its last part, else None."""
        params = self._params
        width = (part.users * (params.g + params.b) + 7) // 8
        pieces = self._found.setdefault(part.name, [])
        whole = sum(map(len, pieces)) + len(part.data)
        complete = part.part == part.parts - 1
        fits = 1 <= part.users <= params.users and part.part == len(pieces) and whole <= params.d * width
        if not fits or (complete and whole != params.d * width):
            self._found.pop(part.name)
            raise SchemaError("a part of a mixed batch does not fit the others")
        pieces.append(part.data)
        if complete:
            data = b"".join(self._found.pop(part.name))
            return Shuffled(np.frombuffer(data, np.uint8).reshape(params.d, width), part.users)
        while len(self._found) > self._most:
            self._found.pop(next(iter(self._found)))
        return None
