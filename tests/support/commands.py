"""The command line as a user runs it: in a process of its own, with the lines that it writes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.support.paths import ROOT
from tests.support.zygote import Forked

Quick = Callable[..., tuple[int, str, str]]
"""The fixture `quick`: runs a command in this process; returns exit code, standard output, standard error."""


def environment(bootstrap: str | None, **more: str) -> dict[str, str]:
    """The environment without variables of streamdp but those given; `bootstrap` names the brokers."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("STREAMDP_")}
    given |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | more
    return given if bootstrap is None else given | {"STREAMDP_KAFKA": bootstrap}


def streamdp(folder: Path, *arguments: str, stdin: str | bytes = b"") -> tuple[int, str, str]:
    """Run the command in a process of its own: exit code, standard output, standard error."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode() if isinstance(stdin, str) else stdin)
        given.seek(0)
        code = Forked(list(arguments), cwd=folder, env=environment(None), stdin=given, stdout=out, stderr=err).wait()
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(errors="surrogateescape"), err.read().decode()


class Command:
    """A `streamdp` command in a process of its own; its lines are read as they come."""

    def __init__(self, folder: Path, bootstrap: str | None, *arguments: str, **more: str) -> None:
        self.process = Forked(list(arguments), cwd=folder, env=environment(bootstrap, **more))
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(
                target=self._read, args=(self.process.stdout, lambda t: self.events.append(json.loads(t)))
            ),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, keep: Callable[[str], None]) -> None:
        for line in stream:
            keep(line)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def end(self, timeout: float = 60.0) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join()
        return code

    def until(self, what: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Wait until `what` returns something true, and return it."""
        deadline = time.monotonic() + timeout
        while not (found := what()):
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, (self.events[-3:], self.errors)
            time.sleep(0.05)
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event for event in self.events if event["event"] == kind]
