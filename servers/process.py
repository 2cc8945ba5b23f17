"""A server as a child process, which never outlives this process; its ports; waiting until it answers."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import IO, Any

START_TIMEOUT_S = 300.0
"""How long a server may take to start: the machine may be busy."""
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_TAIL_BYTES = 3000


class ServerError(Exception):
    """A server cannot be started. The message says why, with the end of the log if there is one."""


class MissingProgramError(ServerError):
    """A program that the server needs is not installed; the message says what to install."""


_RESERVED: set[int] = set()


@cache
def _reservations() -> IO[bytes]:
    """A file in which a process locks the byte at each port that it reserves. The locks end with the process."""
    return open(os.path.join(tempfile.gettempdir(), f"streamdp-ports-{os.getuid()}"), "wb")


def free_ports(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """A loopback port for each name: the ports of the last server in this folder, or free ones, which are stored there.

    Parameters
    ----------
    folder
        The server's folder.
    names
        Names of listeners.

    The ports lie below the range from which the kernel takes ports for outgoing connections. Otherwise a client that
    tries to connect while its server is down could get the server's own port. No other process of this user gets one of
    the new ports before this process ends.
    """
    file = folder / "ports.json"
    ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    _RESERVED.update(ports.values())
    while missing := [name for name in names if name not in ports]:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _RESERVED:
            _RESERVED.add(port)
            ports[missing[0]] = port
    file.write_text(json.dumps(ports))
    return ports


class Process:
    """A running command, which ends with this process, however this process ends.

    A normal exit of this process ends it. After a SIGKILL of this process, Linux sends it `death_signal`, through
    `setpriv`. The kernel does so when the *thread* that started it ends; so a thread starts it and waits for its end.

    Parameters
    ----------
    command
        Program and arguments.
    log
        The file to which output is appended.
    death_signal
        The signal to send if this process ends.
    options
        Other options of `subprocess.Popen`.
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
                        start_new_session=True,  # only this process receives Ctrl-C, and then ends the child
                        **options,
                    )
            except BaseException as error:  # noqa: BLE001 - `started.result()` raises it in the thread that waits
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

    def wait_until(self, ready: Callable[[], object], name: str, timeout_s: float) -> None:
        """Wait until the server is ready. If it is not ready in time, kill it.

        Parameters
        ----------
        ready
            Whether the server answers.
        name
            The server's name, for the error.
        timeout_s
            The time to wait, in seconds.

        Raises `ServerError` if the process ends, or if it is not ready in time.
        """
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
        """The end of the output of this process."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()

    def end(self, how: signal.Signals) -> None:
        """Send a signal and wait for the end; send SIGKILL if that takes too long.

        Parameters
        ----------
        how
            The signal.
        """
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
        if os.getpid() == self._owner:  # not in a fork of it
            self.end(self._death_signal)


def without(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """An environment without the variables that would change a server's settings.

    Parameters
    ----------
    environment
        Variables and values.
    prefix
        Variables whose names begin so are left out.
    """
    return {name: value for name, value in environment.items() if not name.startswith(prefix)}
