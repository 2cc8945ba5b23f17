"""A Redis stream as a source: its entries in order, from the one after the last that a job has learned.

A position is the stream, the id of an entry, and how many entries were added up to it. Redis counts all entries that
it ever added to a stream: so entries that were trimmed before they were read, and a stream that was deleted and made
anew, are recognised. One transaction of Redis reads the counts and the entries.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from connectors.jsonrows import encode_json
from streamdp.data.records import Batch, Encoder, Position, Source, check_poll
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, needing, raise_alone

with needing("a Redis stream", "redis"):
    import redis

MOST_ENTRIES = 10_000
"""The most entries of one poll, so that neither side needs much memory."""
_START = "0-0"


class RedisSource(Source):
    """The `stream` of the server at `url`. The server is Redis 7 or later.

    An entry is a record: its fields are columns with text, which the `encoder` reads. If it has only the field `value`,
    and no column has this name, the value is a JSON object. The position is {"id": id of the last polled entry, "row":
    entries added up to it, "stream"}. With `follow`, the source waits for more entries at the end, until `close()`.
    With `keep_payload`, the entries that do not fit are in their dead letters, as JSON. `options` are those of
    `redis.Redis`, such as `username` and `password`.

    Dead letters have the reasons of `jsonrows.encode_json`. Raises `ConfigError` if the address is not understood, and
    `SourceError` if the server refuses to read the stream, or has none and it is not followed.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        encoder: Encoder,
        *,
        follow: bool = False,
        keep_payload: bool = False,
        **options: object,
    ) -> None:
        self._stream = stream
        self._encoder = encoder
        self._follow = follow
        self._keep_payload = keep_payload
        self._at_end = self._closed = False
        self._id, self._row = _START, 0
        try:
            self._client = redis.Redis.from_url(url, protocol=2, **options)
        except ValueError:
            raise ConfigError("source.url: expected redis://HOST:PORT/DATABASE, or rediss:// for TLS") from None
        self._client.set_response_callback("XRANGE", lambda entries: entries)  # the client's own loses repeated fields
        with suppress(SourceUnavailableError):  # `poll` says it, and a run waits for the server
            self._ask(1)

    @property
    def position(self) -> Position:
        """The position after the last polled entry."""
        return {"id": self._id, "row": self._row, "stream": self._stream}

    @property
    def finished(self) -> bool:
        """True at the end of the stream unless it is followed, and after `close()`."""
        return self._closed or (self._at_end and not self._follow)

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """See `records.Source.poll`.

        Raises `SourceError` if entries are lost or the stream is another one; `SourceUnavailableError` if the server
        does not answer.
        """
        check_poll(max_records, timeout_s)
        with self._errors():
            if self._at_end and self._follow and timeout_s > 0:
                self._client.xread({self._stream: self._id}, count=1, block=max(1, int(1000 * min(timeout_s, 1.0))))
        return self._read(min(max_records, MOST_ENTRIES))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.ResponseError, redis.AuthenticationError) as error:
            code = str(error).partition(" ")[0]  # a word such as WRONGTYPE or NOAUTH
            raise_alone(SourceError(f"Redis refused to read the stream {self._stream!r}: {code}"))
        except redis.RedisError:
            raise_alone(SourceUnavailableError(f"Redis does not answer, to read the stream {self._stream!r}"))

    def _ask(self, most: int) -> tuple[dict[str, Any] | None, list[Any]]:
        """What Redis says of the stream, None if there is none, and its next entries."""
        with self._errors():
            both = self._client.pipeline(transaction=True)
            both.xinfo_stream(self._stream)
            both.xrange(self._stream, min=f"({self._id}", max="+", count=most)
            info, entries = both.execute(raise_on_error=False)
            if isinstance(entries, Exception):
                raise entries
            if isinstance(info, Exception) and "no such key" not in str(info):
                raise info
        self._check(info := None if isinstance(info, Exception) else info)
        return info, entries

    def _read(self, most: int) -> Batch:
        info, entries = self._ask(most)
        self._at_end = len(entries) < most
        first = self._row + 1
        if entries:
            self._id, self._row = entries[-1][0].decode(), self._row + len(entries)
        if self._at_end and info is not None:
            self._row = info["entries-added"]  # also those that were deleted one by one before they were read
        texts = [self._text(fields) for _, fields in entries]
        batch = encode_json(texts, np.arange(first, first + len(texts)), self.position, self._encoder)
        if self._keep_payload:
            batch = replace(batch, dead=[replace(one, payload=texts[one.position - first]) for one in batch.dead])
        return batch

    def _check(self, info: dict[str, Any] | None) -> None:
        """Raise `SourceError` unless all entries after the position are in the stream, by what Redis says of it."""
        learned = self._id != _START
        if info is None:
            if learned or not self._follow:
                raise self._made_anew() if learned else SourceError(f"Redis has no stream {self._stream!r}")
            return
        if "entries-added" not in info:
            raise SourceError("expected Redis 7 or later: this server does not count the entries added to a stream")
        added, left = info["entries-added"], info["first-entry"]
        removed = added - info["length"]
        if not learned:
            self._row = removed
            return
        last = _order(self._id)
        if _order(info["last-generated-id"]) < last or added < self._row:
            raise self._made_anew()
        if left is None or _order(left[0]) > last:  # then all that were read are removed
            if removed < self._row:
                raise self._made_anew()
            if removed > self._row:
                raise SourceError(
                    f"the stream {self._stream!r} no longer has the entries after the last one that this job has read: "
                    f"{removed - self._row} were trimmed before they were read, and are lost. Keep more entries, or "
                    "start a new job."
                )

    def _made_anew(self) -> SourceError:
        return SourceError(
            f"the stream {self._stream!r} is not the one that this job has read so far: it was deleted or made anew. "
            "Give the original stream, or start a new job."
        )

    def _text(self, fields: list[bytes]) -> bytes:
        """An entry's names and values in turn, as a JSON object."""
        if len(fields) == 2 and fields[0] == b"value" and "value" not in self._encoder.columns:
            return fields[1]
        try:
            texts = [orjson.dumps(field.decode()) for field in fields]
        except UnicodeDecodeError:
            return b"\xff"  # a dead letter: not_utf8
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return b"{" + b",".join(name + b":" + value for name, value in pairs) + b"}"

    def seek(self, position: Position) -> None:
        """See `records.Source.seek`. The next poll compares the stream with the position."""
        at, row = (position.get("id"), position.get("row")) if isinstance(position, dict) else (None, None)
        if not (isinstance(at, str) and isinstance(row, int)):
            raise SourceError(f"expected a position of the Redis stream {self._stream!r}, got another one")
        if (read := position.get("stream")) != self._stream:
            raise SourceError(
                f"this job has read the Redis stream {read!r} so far, and ids of {self._stream!r} say nothing about it:"
                " give the original stream, or start a new job"
            )
        self._id, self._row, self._at_end = at, row, False

    def close(self) -> None:
        """Stop, also while following. Safe to call twice."""
        self._closed = True
        self._client.close()


def _order(entry: str | bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in (entry.decode() if isinstance(entry, bytes) else entry).split("-"))
