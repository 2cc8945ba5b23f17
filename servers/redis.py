"""Redis on this machine, from the system's package, for tests that read a stream."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from servers import programs
from servers.process import START_TIMEOUT_S, MissingProgramError, Process, free_ports


class Redis:
    """A Redis server on loopback that keeps nothing on the disk; its user `default` needs `password`.

    Parameters
    ----------
    folder
        For the log.
    """

    password = "only-for-tests"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port = free_ports(self.folder, ["redis"])["redis"]
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        program = programs.program("redis-server")
        if program is None:
            raise MissingProgramError("there is no Redis server; `python servers/programs.py` says what to install")
        log = self.folder / "redis.log"
        command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--requirepass", self.password]
        self._process = Process(command, log)
        self._process.wait_until(self._answers, f"Redis ({log})", START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            self._process.end(signal.SIGTERM)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"-NOAUTH")  # with a password, that is an answer
        except OSError:
            return False
