"""A server as a child process that never outlives this one, its ports, and how to wait until it answers."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_TAIL_BYTES = 3000


class ServerError(Exception):
    """A server cannot be started; the message says why, with the end of its log where there is one."""


class MissingProgramError(ServerError):
    """A program that the server needs is not installed; the message says what to install."""


def free_ports(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """A loopback port for each name: those of the last server in this folder, or free ones, written down there.

    They lie below the range from which the kernel gives ports to outgoing connections: a client that knocks while
    its server is down could otherwise be given the server's own port.
    """
    file = folder / "ports.json"
    ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    while missing := [name for name in names if name not in ports]:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports.values():
            ports[missing[0]] = port
    file.write_text(json.dumps(ports))
    return ports


class Process:
    """A running command, its output appended to `log`. It dies with this process, however this one ends.

    At a normal exit it is ended here. For the rest (SIGKILL) Linux sends it `death_signal`, through `setpriv`. The
    kernel does so when the *thread* that started it ends; that is why one thread starts it, and lives as long.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        **options: Any,
    ) -> None:
        setpriv = shutil.which("setpriv")
        if setpriv:
            command = [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG"), *command]
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._death_signal = death_signal
        self._owner = os.getpid()
        self._over = threading.Event()
        started: Future[subprocess.Popen[bytes]] = Future()

        def hold() -> None:
            try:
                with log.open("ab") as output:
                    child = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for us alone, who then end it in order
                        **options,
                    )
            except BaseException as error:
                started.set_exception(error)
                return
            started.set_result(child)
            self._over.wait()

        threading.Thread(target=hold, name=f"parent of {command[0]}", daemon=True).start()
        self._child = started.result()
        atexit.register(self._at_exit)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def wait_until(self, ready: Callable[[], bool], name: str, timeout_s: float) -> None:
        """Return when `ready`; raises `ServerError` where the process ends before, or not in time (and ends it)."""
        deadline = time.monotonic() + timeout_s
        try:
            while not ready():
                if not self.running:
                    raise ServerError(f"{name} ended with status {self._child.returncode}:\n{self.output()}")
                if time.monotonic() > deadline:
                    raise ServerError(f"{name} did not answer within {timeout_s:g} s:\n{self.output()}")
                time.sleep(_POLL_S)
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def output(self) -> str:
        """The end of what this process wrote."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()

    def end(self, how: signal.Signals) -> None:
        """Send the signal and wait for the end; SIGKILL follows if that takes too long."""
        if self.running:
            self._child.send_signal(how)
        try:
            self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._over.set()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner:  # and not a fork of it
            self.end(self._death_signal)


def without(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The environment less the variables that begin with `prefix`, which would steer a server behind our back."""
    return {name: value for name, value in environment.items() if not name.startswith(prefix)}
