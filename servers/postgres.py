"""PostgreSQL on this machine, from the system's package, for tests that stop it, crash it or promote its standby."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from servers import programs
from servers.certificates import make_certificates
from servers.process import START_TIMEOUT_S, MissingProgramError, Process, ServerError, free_ports, without

_ORPHAN_TIMEOUT_S = 10.0
_TLS = {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem"}
_ACCESS = """hostssl all streamdp all scram-sha-256
hostnossl all streamdp all reject
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""
# Messages of a server that starts while the one before it is still ending.
_TRY_AGAIN = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')


class Postgres:
    """A PostgreSQL server. `url` needs no password, and works on this machine only.

    PostgreSQL refuses to run as root. If this process is root, the server runs as `postgres` or `nobody`. That user
    can seldom reach `folder`, so the data are in a temporary folder, which is deleted at the end of the `with`.

    Parameters
    ----------
    folder
        For data and log.
    settings
        Settings of the server.
    secure
        Let also the user `username` in, with `password` and over TLS, with a certificate signed by `ca_file`.
    """

    username = "streamdp"
    password = "only-for-tests"

    def __init__(self, folder: str | Path, settings: Mapping[str, str] | None = None, *, secure: bool = False) -> None:
        self._settings = {**(_TLS if secure else {}), **(settings or {})}
        self._secure = secure
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_file = self.folder / "postgres.log"
        self.ca_file = str(self.folder / "ca.pem")
        self._port = free_ports(self.folder, ["postgres"])["postgres"]
        self._process: Process | None = None
        self._temporary: str | None = None
        self._options: dict[str, Any] = {"env": without(os.environ, "PG")}
        if os.geteuid() == 0:
            user = _ordinary_user()
            self._options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def port(self) -> int:
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start the server, also after a crash, and return when it answers.

        Raises `ServerError`, with the end of the log, if it does not start.
        """
        if self.running:
            return
        programs = _programs()
        data = self._data_folder()
        self._options["cwd"] = data.parent  # that user may have no access to our own
        if not (data / "PG_VERSION").exists():
            self._initialise(programs, data)
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(self._port)]
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

        def answers() -> bool:
            question = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
            return subprocess.run(question, **self._options).returncode == 0

        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            # SIGQUIT is "immediate shutdown", which ends the children too. After SIGKILL they end only by themselves.
            self._process = Process(command, self.log_file, signal.SIGQUIT, **self._options)
            try:
                self._process.wait_until(answers, f"PostgreSQL ({self.log_file})", deadline - time.monotonic())
                return
            except ServerError as error:
                if time.monotonic() > deadline or not any(words in str(error) for words in _TRY_AGAIN):
                    raise
            time.sleep(0.2)

    def stop(self) -> None:
        """Shut the server down; its sessions are aborted ("fast shutdown", SIGINT)."""
        if self._process:
            self._process.end(signal.SIGINT)
            self._process = None

    def kill(self) -> None:
        """Kill the postmaster and all its children (SIGKILL), as a crash does."""
        if self._process is None:
            return
        if self._process.running:
            os.kill(self._process.pid, signal.SIGSTOP)  # so that it starts no child while we list them
        children = _children(self._process.pid)
        self._process.end(signal.SIGKILL)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _ORPHAN_TIMEOUT_S
        while any(_alive(child) for child in children) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process = None

    def follow(self, primary: Postgres) -> None:
        """Replace the data by those of a running server, and start as its standby.

        Raises `ServerError`, with what the program says, if the data cannot be copied.
        """
        self.stop()
        data = self._data_folder()
        self._options["cwd"] = data.parent
        shutil.rmtree(data, ignore_errors=True)
        command = [str(_programs() / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        self._run([*command, "-D", str(data), "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"])
        self.start()

    def promote(self) -> None:
        """Let a standby take over, and return when it can be written."""
        self._run([str(_programs() / "pg_ctl"), "promote", "-D", str(self._data_folder()), "-w"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self._temporary)
            self._temporary = None

    def _data_folder(self) -> Path:
        if "user" not in self._options:
            return self.folder / "data"
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="streamdp-postgres-")
            os.chown(self._temporary, self._options["user"], self._options["group"])
        return Path(self._temporary) / "data"

    def _initialise(self, programs: Path, data: Path) -> None:
        command = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C"]
        self._run(command)
        if self._secure:
            server_file = data / "server.pem"
            make_certificates(Path(self.ca_file), server_file)
            if "user" in self._options:
                os.chown(server_file, self._options["user"], self._options["group"])
            (data / "pg_hba.conf").write_text(_ACCESS)
            role = f"CREATE ROLE {self.username} SUPERUSER LOGIN PASSWORD '{self.password}'"
            self._run([str(programs / "postgres"), "--single", "-D", str(data), "postgres"], role)

    def _run(self, command: list[str], given: str = "") -> None:
        done = subprocess.run(command, input=given, capture_output=True, text=True, **self._options)
        if done.returncode:
            raise ServerError(f"{Path(command[0]).name} failed:\n{(done.stdout + done.stderr).strip()}")


def _programs() -> Path:
    folder = programs.postgres()
    if folder is None:
        raise MissingProgramError("there is no PostgreSQL server; `python servers/programs.py` says what to install")
    return folder


def _ordinary_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerError("PostgreSQL does not run as root, and there is no user postgres or nobody; use another user")


def _children(parent: int) -> list[int]:
    """The children of a process. Without /proc none; PostgreSQL's children then end by themselves, a little later."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state_and_parent = file.read_text().rpartition(")")[2].split()  # the name before it may hold any character
        except OSError:
            continue  # it has ended
        if int(state_and_parent[1]) == parent:
            found.append(int(file.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
