"""The command line as a user runs it: in a process of its own, with the lines that it writes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
import typer

from streamdp.cli.main import run_command
from streamdp.config.definition import SEEDS_ALLOWED
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S
from tests.support.zygote import Forked

get_command = cache(typer.main.get_command)
"""Typer reads the signatures of all commands each time that one is called: a quarter of a test's time."""


class Quick:
    """Runs the command in this process, by default in a folder and without brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch, self._capsys, self._folder = monkeypatch, capsys, folder

    def __call__(
        self, *arguments: str, folder: Path | None = None, bootstrap: str | None = None, **more: str
    ) -> tuple[int, str, str]:
        """Exit code, standard output, standard error; `more` are variables of the environment."""
        monkeypatch = self._monkeypatch
        monkeypatch.chdir(folder or self._folder)
        monkeypatch.setattr("typer.main.get_command", get_command)
        monkeypatch.setattr(sys, "argv", ["streamdp", *arguments])
        monkeypatch.delenv("STREAMDP_SUBJECT_KEY", raising=False)
        monkeypatch.delenv("STREAMDP_KAFKA", raising=False)
        for name, value in (more if bootstrap is None else more | {"STREAMDP_KAFKA": bootstrap}).items():
            monkeypatch.setenv(name, value)
        try:
            code = run_command()
        except SystemExit as ended:  # what completes words for a shell
            code = int(ended.code or 0)
        return code, *self._capsys.readouterr()

    def output(self, *arguments: str, **options: Any) -> str:
        """Standard output of a command that must succeed."""
        code, out, err = self(*arguments, **options)
        assert code == 0, err
        return out

    def silent(self, *arguments: str, **options: Any) -> str:
        """Standard output of a command that must succeed and say nothing else."""
        code, out, err = self(*arguments, **options)
        assert (code, err) == (0, ""), err
        return out

    def error(self, expected: int, *arguments: str, **options: Any) -> str:
        """Standard error of a command that must end with this code."""
        code, _, err = self(*arguments, **options)
        assert code == expected, err
        return err


def environment(bootstrap: str | None, **more: str) -> dict[str, str]:
    """The environment without variables of streamdp but those given; `bootstrap` names the brokers."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("STREAMDP_")}
    given |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200", SEEDS_ALLOWED: "1"} | more
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

    def end(self, timeout: float = PATIENCE_S) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join()
        return code

    def until(self, what: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
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
