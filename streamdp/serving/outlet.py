"""The way of published documents to a file or a sink: a thread that sends the last one, until the sink has it.

Learning never waits for a sink. While the sink does not take a document, later commits replace it. What was not sent
before the end of the process is sent by the next one, because a job publishes its last commit when it resumes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import orjson

from streamdp.database.durable import write_durably
from streamdp.errors import SinkError, reason_of

if TYPE_CHECKING:
    from connectors.sinks import Message, Sink
    from streamdp.config.publish import SinkConfig

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
"""After a failure the next attempt is made after so many seconds, then after twice as many each time, up to this."""
CLOSE_S = 5.0
"""How long the end of a run waits for a sink."""
NOTE_S = 5.0
"""While all goes well, what a sink has is noted so often, and at the end."""

Note = Callable[[str, tuple[int, float], str], None]
"""Notes for readers that a sink, by its name, has a commit, or the reason why it has not: see `store.sinks`."""


class FileSink:
    """The file at `path`, which each document replaces. Everybody may read it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, message: Message) -> None:
        """Write the document of the `message`. Raises `SinkError`."""
        document = json.dumps(orjson.loads(message.document), indent=2)
        try:
            write_durably(self._path, document + "\n", mode=0o644)
        except OSError as error:
            raise SinkError(error.strerror or type(error).__name__) from None

    def close(self) -> None:
        """Do nothing: the file is open during `send` only."""


class Outlet:
    """Sends the last message to the sink of a `config`, or to the file of this path.

    `tell` gets a sentence when it fails for the first time, and when it is over; then, and from time to time, `note` is
    called. What `note` cannot write is left out.

    Raises `ConfigError` if what the sink needs is not installed.
    """

    def __init__(self, config: SinkConfig | str, tell: Callable[[str], None], note: Note) -> None:
        self._build: Callable[[], Sink]
        if isinstance(config, str):
            self.name, self._build = config, partial(FileSink, config)
        else:
            config.check_installed()
            self.name, self._build = config.name, config.build
        self._tell, self._note = tell, note
        self.trouble: str | None = None
        """Why the sink has not taken the last message; None if it has, or if none was sent."""
        self._changed = threading.Condition()
        self._message: Message | None = None  # None if the sink has it
        self._closing = False
        self._thread: threading.Thread | None = None  # a daemon: a sink that hangs does not keep the process

    def offer(self, message: Message) -> None:
        """Send a `message` in place of an earlier one that the sink has not taken. It returns at once."""
        with self._changed:
            self._message = message
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"to {self.name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the sink, for at most `CLOSE_S`."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._thread = None
        if (left := self._message) is not None:
            self._tell(f"{self.name} does not have commit {left.commit}: the next run of the job publishes it")

    def _run(self) -> None:
        sink: Sink | None = None
        wait_s = 0.0
        sent: Message | None = None  # not noted yet
        noted_at = -NOTE_S
        while (message := self._next(wait_s)) is not None:
            try:
                sink = sink or self._build()
                sink.send(message)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt connects again
                _close(sink)
                sink = None
                wait_s = min(max(2 * wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
                before, self.trouble = self.trouble, reason_of(error)
                if before != self.trouble:
                    self._write(message, self.trouble)
                if before is None:
                    self._tell(f"cannot publish to {self.name}, trying again: {self.trouble}")
                if self._closing:
                    return
                continue
            with self._changed:
                if self._message is message:
                    self._message = None
            sent = message
            if self.trouble is not None or time.monotonic() - noted_at >= NOTE_S:
                self._write(message)
                sent, noted_at = None, time.monotonic()
            if self.trouble is not None:
                self._tell(f"published to {self.name} again")
            wait_s, self.trouble = 0.0, None
        if sent is not None:
            self._write(sent)
        _close(sink)

    def _write(self, message: Message, reason: str = "") -> None:
        with contextlib.suppress(Exception):  # whatever it is, the sink goes on
            self._note(self.name, (0, 0.0) if reason else (message.commit, message.committed_at), reason)

    def _next(self, wait_s: float) -> Message | None:
        """Wait, at most until the end, and return the message to send; None if the sink has all, and no other comes."""
        with self._changed:
            if wait_s:
                self._changed.wait_for(lambda: self._closing, wait_s)
            else:
                self._changed.wait_for(lambda: self._closing or self._message is not None)
            return self._message


def _close(sink: Sink | None) -> None:
    if sink is not None:
        sink.close()
