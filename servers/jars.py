"""Jars from Maven, in a folder of the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from servers import programs
from servers.process import MissingProgramError, ServerError

SPARK_KAFKA = "spark.xml", "spark-kafka-4.1.1"
"""What `jars` takes for Spark's connector for Kafka."""


def jars(pom: str, name: str, *options: str) -> Path:
    """The folder of some jars. Maven downloads them the first time; the folder appears when it is complete.

    Parameters
    ----------
    pom
        The file beside this one that names them.
    name
        The name of the folder, with the version.
    *options
        Further options of Maven.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamdp"
    folder = cache / name
    if folder.is_dir():
        return folder
    maven = program("mvn")
    print(f"waiting for Maven to download {name}, once, to {folder}", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        draft = Path(temporary) / "jars"
        command = [maven, "-B", "-q", "-f", str(Path(__file__).with_name(pom)), *options]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={draft}"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"Maven cannot download {name}:\n{(done.stdout + done.stderr).strip()[-3000:]}")
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def program(name: str) -> str:
    """The path of a program of Java. Raises `MissingProgramError` if it is not there.

    Parameters
    ----------
    name
        Its name.
    """
    path = programs.program(name)
    if path is None:
        raise MissingProgramError(f"there is no {name} on PATH; `python servers/programs.py` says what to install")
    return path
