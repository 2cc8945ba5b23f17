"""`make programs` installs the programs that tests need, or names all that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import programs
from tests.support.paths import ROOT


def test_all_that_is_missing_is_named_with_a_command_for_each_system(tmp_path: Path) -> None:
    script = [sys.executable, "-I", str(ROOT / "servers" / "programs.py")]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    first, *commands, last = done.stderr.splitlines()
    assert {"Java >= 17", "Maven"} <= {name.strip(" .") for name in first.partition(":")[2].split(",")}
    for command, system in zip(commands, ("Debian", "Fedora"), strict=True):
        assert command.strip().startswith(f"{system}: ")
        assert " maven" in command
    assert "Linux only" in last


def put(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH; two programs are needed, and the user is root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    needs = [programs.Program(name, lambda name=name: programs.program(name), f"{name}-deb", "") for name in "ab"]
    monkeypatch.setattr(programs, "PROGRAMS", needs)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_root_installs_what_is_missing_and_nothing_else(only_here: Path) -> None:
    put(only_here / "a", "")
    put(only_here / "apt-get", f'echo "$@" >> "{only_here}/log"; [ "$1" = update ] || /bin/cp "$0" "{only_here}/b"')
    programs.main()
    programs.main()
    assert (only_here / "log").read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends b-deb",
    ]


def test_without_root_nothing_is_installed(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    put(only_here / "apt-get", f'echo "$@" >> "{only_here}/log"')
    with pytest.raises(SystemExit, match="not installed: a, b"):
        programs.main()
    assert not (only_here / "log").exists()


def test_an_old_java_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = next(one for one in programs.PROGRAMS if one.name.startswith("Java"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    for version, new in (("11.0.2", False), ("1.8.0_292", False), ("17.0.1", True), ("25", True)):
        put(tmp_path / "java", f"echo 'openjdk version \"{version}\"' >&2")
        assert bool(java.installed()) is new
