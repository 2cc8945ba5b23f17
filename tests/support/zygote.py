"""Processes of the command line without their start: a process that has loaded the library forks one for each command.

Loading the library and its compiled code takes two seconds of processor, which each of some hundred commands would
need. A forked command is a process of its own in every other respect: memory, signals, descriptors, end. It becomes a
child of the test's process, which Linux offers (`PR_SET_CHILD_SUBREAPER`). polars is not loaded before the fork,
because it starts threads, and a fork has none of them. Tests of the start itself use `sys.executable`.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, Any

from tests.support.noise import NOISE, SEED
from tests.support.paths import ROOT

_SUBREAPER = 36
_LOADED = (
    "confluent_kafka", "cryptography.hazmat.primitives.ciphers", "fastapi", "kafka", "orjson", "prometheus_client",
    "psycopg", "pydantic.fields", "pydantic.v1", "scipy.special", "streamdp.cli.main", "streamdp.config.kafka",
    "streamdp.runtime.runner", "streamdp.store.store", "typer._adapters", "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio", "uvicorn.protocols.http.h11_impl", "yaml",
)  # fmt: skip
_ROOMS = ("cli", "config", "data", "estimators", "optim", "protocol", "runtime", "service", "serving", "store")


class Forked:
    """`python -m streamdp ARGUMENTS`, forked: what tests use of `subprocess.Popen`.

    `stdout` and `stderr` are written to; None: a pipe, which is read from the attribute of that name.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.returncode: int | None = None
        with open(os.devnull, "rb") as nothing:
            mine, theirs = zip(*(os.pipe() for _ in range(2)), strict=True)
            given = [
                (stdin or nothing).fileno(),
                *(end if file is None else file.fileno() for file, end in zip((stdout, stderr), theirs, strict=True)),
            ]
            request = {"arguments": ["streamdp", *arguments], "cwd": str(cwd), "env": dict(env) | NOISE.of_process()}
            self.pid = _fork(json.dumps(request).encode(), given)
        for end in theirs:
            os.close(end)
        self.stdout, self.stderr = (open(end, encoding="utf-8") for end in mine)  # noqa: SIM115 - the readers close them

    def poll(self) -> int | None:
        """The exit code, None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for the end; returns the exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("streamdp", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _fork(request: bytes, descriptors: list[int]) -> int:
    """Ask for a process; returns its number."""
    line = _zygote()
    socket.send_fds(line, [len(request).to_bytes(4, "big")], descriptors)
    line.sendall(request)
    return int.from_bytes(line.recv(4), "big")


@cache
def _zygote() -> socket.socket:
    """The line to the zygote of this process, which ends when the line is closed."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    mine, its = socket.socketpair()
    subprocess.Popen(
        [sys.executable, "-m", "tests.support.zygote", str(its.fileno())],
        pass_fds=[its.fileno()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
    )
    its.close()
    return mine


def _load() -> None:
    for name in _LOADED:
        import_module(name)
    import streamdp

    for kind in (streamdp.LDPASGDRegressor, streamdp.LDPASGDClassifier):
        model = kind(features=["a"])
        model.learn_one({"a": 0.0}, False)
        model.predict_one({"a": 0.0})
    modules: dict[str, Any] = sys.modules
    assert "polars" not in modules
    modules["polars"] = None  # a module that needs it cannot be loaded
    for room in _ROOMS:
        package = import_module(f"streamdp.{room}")
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):
                import_module(module.name)
    del modules["polars"]


def _serve(line: socket.socket) -> list[str]:
    """Fork for each request; returns the arguments in each forked process."""
    while True:
        size, descriptors, _, _ = socket.recv_fds(line, 4, 3)
        if not size:
            sys.exit()
        request = json.loads(line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        reads, writes = os.pipe()
        if not os.fork():
            if child := os.fork():
                os.write(writes, child.to_bytes(4, "big"))
                os._exit(0)
            line.close()
            for own, given in enumerate(descriptors):
                os.dup2(given, own)
            os.closerange(3, max(*descriptors, reads, writes) + 1)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            arguments: list[str] = request["arguments"]
            return arguments
        child_number = os.read(reads, 4)
        os.wait()  # then the process belongs to whoever asked
        for descriptor in (*descriptors, reads, writes):
            os.close(descriptor)
        line.sendall(child_number)


def _disturb(environment: Mapping[str, str]) -> None:
    """What a test does to a command: its noise has these words; files may have so many bytes; SIGUSR1 moves the clock
    by so many seconds; a service adds a shard after so many seconds; it is killed before it publishes to a sink."""
    if name := environment.get(SEED):
        NOISE.begin(name)
    if most := environment.get("TESTS_FILE_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))
    if shard_seconds := environment.get("TESTS_SHARD_SECONDS"):
        import_module("streamdp.service.learning_job").ADD_AFTER_S = float(shard_seconds)
    if "TESTS_KILLED_BEFORE_SINKS" in environment:
        import_module("streamdp.serving.publish").Outlet.offer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if seconds := environment.get("TESTS_CLOCK_SECONDS"):
        real = time.time
        moved = [0.0]

        def jump(*_: object) -> None:
            moved[0] += float(seconds)

        time.time = lambda: real() + moved[0]
        signal.signal(signal.SIGUSR1, jump)


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    _load()
    gc.freeze()  # what is shared with the forked processes is not looked at, which would copy it
    sys.argv = _serve(line)
    # The streams of the zygote know whether its own descriptors can be sought; these are others.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - they end with the process
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    _disturb(os.environ)
    try:
        runpy.run_module("streamdp", run_name="__main__", alter_sys=True)
    except SystemExit as ends:
        if ends.code is None or isinstance(ends.code, int):
            _end(ends.code or 0)
        raise


def _end(code: int) -> None:
    """End the process as Python does, but without freeing memory object by object, which would copy what is shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # Python's own end says what could not be written
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
