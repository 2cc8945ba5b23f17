"""The examples of a document: its blocks run in their order in one folder, as a reader would paste them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.zygote import Forked

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

OUTPUT = "none"
"""The language of a block with the output of the block above it: see `tests.support.outputs`."""

# A line that begins with #! may hold no space: the shell finds Python, which sees a string there.
_CLIENT = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [len(request).to_bytes(4, "big")], [0, 1, 2])
line.sendall(request)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: line.send(bytes([number])))
sys.exit(line.recv(1)[0])
"""


class Block(NamedTuple):
    """A block of code and its language."""

    language: str
    code: str


def blocks(text: str) -> list[Block]:
    """Return the blocks of a document that are no directives and no outputs."""
    return [block for block in map(Block._make, BLOCK.findall(text)) if block.language != OUTPUT]


def shown(text: str) -> list[str | None]:
    """Return, for each block of `blocks`, the output that the document shows below it; None if it shows none."""
    found = list(map(Block._make, BLOCK.findall(text)))
    after = [*found[1:], Block("", "")]
    return [
        below.code if below.language == OUTPUT else None
        for block, below in zip(found, after, strict=True)
        if block.language != OUTPUT
    ]


class Shell:
    """Runs blocks in a folder. `streamdp` is forked (see `zygote`), with its descriptors, signals and exit code."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._listening = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        programs = folder.parent / f"{folder.name}-bin"
        programs.mkdir()
        self._listening.bind(address := str(programs / "line"))
        self._listening.listen()
        program = programs / "streamdp"
        program.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
        program.chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = os.environ | {"PATH": path} | dict(environment)
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listening.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        size, descriptors, _, _ = socket.recv_fds(line, 4, 3)
        request = line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        arguments, folder, environment = json.loads(request)
        with contextlib.ExitStack() as stack:
            stack.enter_context(line)
            files = [stack.enter_context(os.fdopen(descriptor, "rb")) for descriptor in descriptors]
            with self._lock:
                process = Forked(
                    arguments, cwd=Path(folder), env=environment, stdin=files[0], stdout=files[1], stderr=files[2]
                )
            line.settimeout(0.005)
            while (code := process.poll()) is None:
                with contextlib.suppress(TimeoutError):
                    if not (number := line.recv(1)):
                        process.kill()
                        return
                    process.send_signal(number[0])
            line.sendall(bytes([code if code >= 0 else 128 - code]))

    def run(self, block: Block) -> tuple[str, str]:
        """Run a block; returns standard output and standard error. Raises AssertionError if it fails."""
        if block.language == "python":
            out = io.StringIO()
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
                exec(compile(block.code, "a block of python", "exec"), self._names)
            return out.getvalue(), ""
        if block.language == "yaml":
            name = re.match(r"# ([\w.]+\.yaml)\n", block.code)
            assert name, "a block of YAML begins with the name of its file"
            (self.folder / name[1]).write_text(block.code)
            return "", ""
        assert block.language == "sh", block
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr
