"""Programs that the tests start and that no Python package brings: found here, installed or named by `make programs`.

`make test` runs this file before anything is installed, so it imports the standard library only. With root and apt it
installs what is missing; otherwise it prints all that is missing, with a command for each system, and fails. The tests
run on Linux only: they start processes by calls that macOS and Windows lack. Node.js comes as a package of Python.
PostgreSQL does not: the server must not run as root, so it runs as another user, who may have no access to a package in
the folder of root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_POSTGRES = ("initdb", "postgres", "pg_isready", "pg_basebackup", "pg_ctl")
_POSTGRES_FOLDERS = (
    ("/usr/lib/postgresql", "*/bin"),  # Debian
    ("/opt/homebrew/opt", "postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)
_CHROME_OF_MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def program(*names: str) -> str | None:
    """The path of the first of some programs that is installed, also if only the PATH of root has it.

    Parameters
    ----------
    *names
        Names, or paths.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def chromium() -> str | None:
    """The path of Chromium or Chrome: that in STREAMDP_CHROMIUM, or one that is installed."""
    given = os.environ.get("STREAMDP_CHROMIUM")
    return given or program("chromium", "chromium-browser", "google-chrome", _CHROME_OF_MACOS)


def postgres() -> Path | None:
    """The folder with the programs of the newest PostgreSQL server."""
    folders = [folder for root, below in _POSTGRES_FOLDERS for folder in Path(root).glob(below)]
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).resolve().parent)
    complete = {folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in _POSTGRES)}
    return max(complete, key=lambda folder: _version(str(folder / "postgres"), "--version"), default=None)


def _version(*command: str) -> tuple[int, ...]:
    """The first number that a command prints, as "postgres (PostgreSQL) 15.12 (Debian 15.12-0)" has 15.12."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    return tuple(int(part or 0) for part in found.groups()) if found and not done.returncode else ()


@dataclass(frozen=True)
class Program:
    """Something that must be installed, and the packages that bring it; "" if the system needs no package."""

    name: str
    installed: Callable[[], object]
    debian: str
    fedora: str


PROGRAMS = (
    Program("Python >= 3.11", lambda: sys.version_info >= (3, 11), "python3", "python3"),
    Program("Python's module venv", lambda: find_spec("ensurepip"), "python3-venv", ""),
    Program(
        "the header files of Python",
        lambda: Path(sysconfig.get_path("include"), "Python.h").exists(),
        "python3-dev",
        "python3-devel",
    ),
    Program(
        "Java >= 17",
        lambda: _version("java", "-version") >= (17,),
        "default-jdk-headless",
        "java-latest-openjdk-headless",
    ),
    Program("Maven", lambda: program("mvn"), "maven", "maven"),
    Program("PostgreSQL", postgres, "postgresql", "postgresql-server"),
    Program("pgbouncer", lambda: program("pgbouncer"), "pgbouncer", "pgbouncer"),
    Program("Redis", lambda: program("redis-server"), "redis-server", "redis"),
    Program("Chromium", chromium, "chromium", "chromium"),
    Program("promtool", lambda: program("promtool"), "prometheus", "golang-github-prometheus"),
)


def missing() -> list[Program]:
    """The programs that are not installed."""
    return [one for one in PROGRAMS if not one.installed()]


def message(programs: Iterable[Program]) -> str:
    """What is missing, and how to install it.

    Parameters
    ----------
    programs
        The missing ones.
    """
    commands = {
        "Debian": ("sudo apt-get install", [one.debian for one in programs]),
        "Fedora": ("sudo dnf install", [one.fedora for one in programs]),
    }
    lines = [f"The tests need programs that are not installed: {', '.join(one.name for one in programs)}."]
    for system, (command, packages) in commands.items():
        lines.append(f"  {system}: {' '.join([command, *filter(None, packages)])}" if any(packages) else "")
    lines.append("  The tests run on Linux only.")
    return "\n".join(filter(None, lines))


def main() -> None:
    """Install what is missing, or print it and exit with code 1."""
    wanted = missing()
    apt = shutil.which("apt-get")
    if wanted and apt and os.geteuid() == 0:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}

        def run(*words: str) -> bool:
            return not subprocess.run([apt, *words], env=environment, stdin=subprocess.DEVNULL).returncode

        run("update", "-qq")
        install, packages = ("install", "-y", "-qq", "--no-install-recommends"), [one.debian for one in wanted]
        if not run(*install, *packages):  # a name that apt does not know prevents the others
            for package in packages:
                run(*install, package)
        wanted = missing()
    if wanted:
        sys.exit(message(wanted))


if __name__ == "__main__":
    main()
